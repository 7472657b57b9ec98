//! Foreign objects on a netdev: qdiscs, classes and filters that other software made. They are remembered when a contract takes the
//! netdev over, and restored when the contract goes.
//!
//! ```text
//!  kernel ── dump ──▶ Object … ─ settings ─▶ TakenOver ─▶ state file
//!                                              │
//!            rehearse: made in another namespace, read back: equal?    before the netdev is touched
//!                                              │
//!  kernel ◀── Step::Restore ◀── restore (pure) ◀┘ ◀── the netdev at that time
//! ```
//!
//! The attributes that the kernel reports of an object are those that make such an object, apart from counters and derived values. So
//! this code need not understand each kind. The rehearsal shows whether that holds for the objects at hand.
//!
//! - `settings`: the attributes of a kind that are settings
//! - `options`: the options that make the kernel report the same settings
//! - `filter`: both, for filters and their policers
//! - `read`: from the kernel to objects
//! - `bridge_port`: the VLANs of a bridge port
//! - `restore`: from objects to steps
//! - `rehearse`: whether objects can be restored

mod bridge_port;
mod filter;
mod options;
mod read;
#[cfg(test)]
mod recorded;
mod rehearse;
mod restore;
mod settings;

pub use bridge_port::BridgePort;
pub(crate) use options::options_for;
pub(crate) use read::read;
pub use rehearse::rehearse;

use crate::tc::handle::Handle;
use crate::tc::netlink::attribute::{Attributes, read as attributes};
use crate::tc::shaping::Ends;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What others made at the ends of a netdev that were taken over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenOver {
    /// Interface index: what was on another device of the same name is gone with it.
    pub index: u32,
    /// The root qdisc with all below it, each after what it hangs on.
    pub egress: Vec<Object>,
    /// The ingress qdisc, then its filters.
    pub ingress: Vec<Object>,
    /// What was taken over and is not made again.
    #[serde(default, skip_serializing_if = "Lost::is_empty")]
    pub lost: Lost,
}

/// Why what others made at an end cannot be made again, where it cannot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// At the root.
    pub egress: Option<String>,
    /// At the ingress.
    pub ingress: Option<String>,
}

/// A qdisc, a class or a filter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// Which of them.
    pub layer: Layer,
    /// Its name; of a filter, its number among those of its preference.
    pub handle: Handle,
    /// What it hangs on.
    pub parent: Handle,
    /// Of a filter: preference and protocol, as netlink has them.
    pub info: u32,
    /// Such as `htb`.
    pub kind: String,
    /// Its settings, as netlink has them; those that a kind does not have are absent.
    pub options: Option<Vec<u8>>,
    /// Of a filter: the chain it is in.
    pub chain: Option<u32>,
}

/// What an [`Object`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// A qdisc.
    Qdisc,
    /// A class.
    Class,
    /// A filter.
    Filter,
}

impl TakenOver {
    /// Whether there is nothing to remember.
    pub fn is_empty(&self) -> bool {
        self.egress.is_empty() && self.ingress.is_empty() && self.lost.is_empty()
    }

    /// What others had at these ends, too, where nothing is remembered of an end yet.
    pub fn add(&mut self, other: &Self, ends: Ends) {
        self.index = other.index;
        let (ours, theirs) = (&mut self.lost, &other.lost);
        for (ours, theirs, lost, lost_too, is_one) in [
            (&mut self.egress, &other.egress, &mut ours.egress, &theirs.egress, ends.egress),
            (&mut self.ingress, &other.ingress, &mut ours.ingress, &theirs.ingress, ends.ingress),
        ] {
            if is_one && ours.is_empty() && lost.is_none() {
                ours.clone_from(theirs);
                lost.clone_from(lost_too);
            }
        }
    }

    /// What others had at these ends is not made again, and why.
    pub fn lose(&mut self, ends: Ends, why: &str) {
        for (lost, is_one) in [(&mut self.lost.egress, ends.egress), (&mut self.lost.ingress, ends.ingress)] {
            if is_one {
                *lost = Some(why.to_owned());
            }
        }
    }

    /// Nothing of these ends any more.
    pub fn remove(&mut self, ends: Ends) {
        if ends.egress {
            self.egress.clear();
            self.lost.egress = None;
        }
        if ends.ingress {
            self.ingress.clear();
            self.lost.ingress = None;
        }
    }
}

impl Lost {
    /// Whether nothing is.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<&str> =
            [&self.egress, &self.ingress].into_iter().flatten().map(String::as_str).collect();
        f.write_str(&all.join("; "))
    }
}

impl Object {
    /// Of a filter: lower ones are asked first.
    pub fn preference(&self) -> u16 {
        (self.info >> 16) as u16
    }

    /// Of a filter: Ethernet protocol.
    pub fn protocol(&self) -> u16 {
        u16::from_be(self.info as u16)
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { handle, parent, kind, .. } = self;
        match self.layer {
            Layer::Qdisc => write!(f, "qdisc {kind} {handle} at {parent}"),
            Layer::Class => write!(f, "class {handle} of {kind}"),
            Layer::Filter => write!(f, "the {kind} filter of preference {} at {parent}", self.preference()),
        }
    }
}

/// Attributes, each as `change` makes it; `None` leaves one out.
fn rewrite(bytes: &[u8], mut change: impl FnMut(u16, &[u8]) -> Option<Vec<u8>>) -> Vec<u8> {
    let mut out = Attributes::default();
    for (kind, value) in attributes(bytes) {
        if let Some(value) = change(kind, value) {
            out.put(kind, &value);
        }
    }
    out.0
}
