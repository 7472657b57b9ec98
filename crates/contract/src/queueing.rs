//! The key `queueing`: the order in which frames of a vNIC wait for its rate.

use crate::Nanos;
use serde::{Deserialize, Serialize};

/// How frames of a vNIC wait for `tx.max` and `rx.max`. It does not affect frames that do not wait for a
/// rate, nor real-time frames, which the deadline orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Queueing {
    /// Each flow has a queue of its own, and no flow waits long (RFC 8290).
    Flows(FlowQueueing),
    /// All frames wait in one queue, first come, first served.
    Fifo,
}

/// How flows wait, and after what time their senders are signalled to slow down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FlowQueueing {
    /// Time that frames of a flow may wait permanently (RFC 8289): 100 us to 100 ms. Default 5 ms.
    pub target: Nanos,
    /// Time for which they may wait longer than `target` before one is marked or dropped (RFC 8289), about
    /// the longest round trip of the flows: twice `target` to 2 s. Default 100 ms.
    pub interval: Nanos,
    /// Whether hosts share the rate first, and then the flows of each host. Hosts are source addresses of
    /// frames that the VM sends, and destination addresses of frames that it receives.
    pub per_host: bool,
}

impl Queueing {
    /// Returns whether it is the default.
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
    /// Returns what RFC 8289 (section 4.2, 4.3) advises for the Internet.
    fn default() -> Self {
        Self { target: Nanos::new(5_000_000), interval: Nanos::new(100_000_000), per_host: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Vnic, testing};

    #[test]
    fn what_the_release_before_wrote_is_read() {
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
