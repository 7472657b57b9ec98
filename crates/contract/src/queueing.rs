//! In which order the frames of one vNIC wait for its rate: its `queueing`.

use crate::Nanos;
use serde::{Deserialize, Serialize};

/// How frames of a vNIC wait for its `tx.max` and its `rx.max`. Frames that do not wait for a rate are not concerned, nor
/// are real-time ones: a deadline has an order of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Queueing {
    /// Each flow waits for itself, and no flow waits long (RFC 8290).
    Flows(FlowQueueing),
    /// All wait in one queue, first come, first served.
    Fifo,
}

/// How flows wait, and for how long before their senders are told to slow down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FlowQueueing {
    /// How long frames of a flow may wait for good (RFC 8289): 100 us to 100 ms; 5 ms unless said otherwise.
    pub target: Nanos,
    /// For how long they may wait longer than that before one is marked or dropped (RFC 8289), about the longest round
    /// trip of the flows: twice `target` to 2 s; 100 ms unless said otherwise.
    pub interval: Nanos,
    /// Whether the rate is shared between hosts first, and then between the flows of each: what the VM sends between
    /// source addresses, what it receives between destination addresses.
    pub per_host: bool,
}

impl Queueing {
    /// Whether it is what a contract has that does not say.
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
    /// What RFC 8289 (section 4.2, 4.3) advises for the Internet.
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
