//! A foreign qdisc, class or filter: remembered when its netdev is taken over, made again by [`Step::Restore`](crate::tc::Step::Restore).

use crate::handle::Handle;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A qdisc, a class or a filter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// Its kind of object.
    pub layer: Layer,
    /// Its handle; of a filter, its number among the filters of its preference.
    pub handle: Handle,
    /// Its parent: a qdisc or class, or an end of the device.
    pub parent: Handle,
    /// Of a filter: preference and protocol (`tcm_info`).
    pub info: u32,
    /// Such as `htb`.
    pub kind: String,
    /// Its settings (`TCA_OPTIONS`); `None` for a kind without settings.
    pub options: Option<Vec<u8>>,
    /// Of a filter: its chain; `None` is chain 0.
    pub chain: Option<u32>,
}

/// The kind of an [`Object`].
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

impl Object {
    /// Returns a filter's preference: the kernel tries lower ones first.
    pub fn preference(&self) -> u16 {
        (self.info >> 16) as u16
    }

    /// Returns a filter's Ethernet protocol (`ETH_P_…`).
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
