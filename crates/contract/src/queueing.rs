//! The order in which the frames of one vNIC wait for its rate: its `queueing`.

use crate::Nanos;
use serde::{Deserialize, Serialize};

/// The order in which frames wait for `tx.max` and `rx.max`. Real-time frames have an order of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Queueing {
    /// Each flow has a queue of its own, and none waits long (RFC 8290).
    Flows(FlowQueueing),
    /// All wait in one queue, first come, first served.
    Fifo,
}

/// Settings of queueing by flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FlowQueueing {
    /// Permanent wait that a flow may have (RFC 8289): 100 us to 100 ms, default 5 ms.
    pub target: Nanos,
    /// Time for which frames may wait longer than `target` before one is marked or dropped (RFC 8289), about the
    /// longest round trip of the flows: twice `target` to 2 s, default 100 ms.
    pub interval: Nanos,
    /// Whether hosts share the rate first, and then the flows of each host. A host is a source address of sent frames,
    /// and a destination address of received ones.
    pub per_host: bool,
}

impl Queueing {
    /// Returns whether it is the default of a contract.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl Default for Queueing {
    fn default() -> Self {
        Self::Flows(FlowQueueing::default())
    }
}

impl Default for FlowQueueing {
    /// The advice of RFC 8289 (section 4.2, 4.3) for the Internet.
    fn default() -> Self {
        Self { target: Nanos::new(5_000_000), interval: Nanos::new(100_000_000), per_host: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Vnic, testing};

    #[test]
    fn queueing_of_the_release_before_is_read() {
        let mut vnic = testing::vnic("a");
        let written = serde_json::to_string(&vnic).expect("serialises");
        assert!(!written.contains("queueing"), "and it reads ours: {written}");
        assert_eq!(serde_json::from_str::<Vnic>(&written).expect("parses").queueing, Queueing::default());
        vnic.queueing = Queueing::Fifo;
        let written = serde_json::to_string(&vnic).expect("serialises");
        assert!(written.contains(r#""queueing":"fifo""#), "{written}");
        let flows = r#"{"flows": {"target": "2ms"}}"#;
        let wanted = FlowQueueing { target: Nanos::new(2_000_000), ..FlowQueueing::default() };
        assert_eq!(serde_json::from_str::<Queueing>(flows).expect("parses"), Queueing::Flows(wanted));
    }
}
