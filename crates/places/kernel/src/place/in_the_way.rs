//! Foreign objects in the way of a contract.

use std::collections::BTreeMap;

/// By vNIC.
pub type InTheWayOf = BTreeMap<String, InTheWay>;

/// A foreign object at an end of a netdev where a contract is to be enforced. It can be taken over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InTheWay {
    /// The object, such as `qdisc tbf 1: at its root`.
    pub what: String,
    /// The reason for which it is in the way, and what to do.
    pub reason: String,
    /// The reason for which it cannot be restored; `None` if it can.
    pub lost: Option<String>,
}

impl InTheWay {
    /// The consequence of taking it over, for a reader of the plan.
    pub fn note(&self) -> String {
        let restored = match &self.lost {
            None => "restored when the contract ends".to_owned(),
            Some(why) => format!("not restored when the contract ends: {why}"),
        };
        format!("{} is taken over, and {restored}", self.what)
    }
}
