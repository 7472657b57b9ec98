//! What VFs sent and received, whatever the NIC counts with.
//!
//! ```text
//!  IFLA_VF_STATS (64 bits) ───────────┐
//!  register window (32, 36 bits) ─────┼─▶ Reading ──▶ Accumulator: wraps, resets ──▶ Counted: totals, sources, doubts
//!  representor (64 bits, other side) ─┘
//! ```
//!
//! Zero is not idle: drivers may have the statistics and never count in them. What is zero for every VF is believed only
//! where a second source says so, too.
//!
//! - [`accumulator`]: from counters that wrap to totals. Pure
//! - [`window`]: where registers are, and how wide. Pure
//! - `counting`: which source, and reading it
//! - `mapping`: the registers of a PCI device

pub mod accumulator;
pub(crate) mod counting;
mod mapping;
#[cfg(test)]
mod tests;
pub mod window;

pub(crate) use counting::{Counting, sources};

use crate::device::pf::Pf;
use accumulator::Most;
use std::fmt;
use std::time::Duration;
use window::Layout;

/// Where a figure is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// What the PF's driver says of its VFs (`IFLA_VF_STATS`), 64 bits.
    VfStatistics,
    /// Registers of the NIC, read by mapping a file of the PF, 32 or 36 bits.
    Registers,
    /// The VF's representor in switchdev mode, 64 bits.
    Representor,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::VfStatistics => "VF statistics",
            Self::Registers => "registers",
            Self::Representor => "representor",
        })
    }
}

/// One figure, since the VF was first counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Figure {
    /// How many.
    pub total: u64,
    /// Where it is from.
    pub source: Source,
}

/// One direction of a VF; `None` is unknown, not zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Traffic {
    /// Ethernet frames.
    pub frames: Option<Figure>,
    /// Bytes of those, without FCS.
    pub bytes: Option<Figure>,
    /// Multicast frames among them.
    pub multicast: Option<Figure>,
    /// Frames that the NIC dropped.
    pub dropped: Option<Figure>,
}

/// What is not certain about totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Doubts {
    /// Intervals so long that a counter may have wrapped unseen: totals may be too low by multiples of its range.
    pub missed_wraps: u64,
    /// Times that counters began anew, since the NIC was reset, the VF made again, or the source changed: what was counted
    /// between the last look and that is missing.
    pub resets: u64,
}

/// What was counted for one VF.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counted {
    /// What the VM sent.
    pub tx: Traffic,
    /// What the VM received.
    pub rx: Traffic,
    /// What is not certain about it.
    pub doubts: Doubts,
    /// Why nothing is known, where that is so.
    pub unknown: Option<String>,
}

/// How often counters have to be asked for, at least, so that none wraps unseen; `None` where that takes years, or where the
/// NIC's speed is not known.
pub fn longest_interval(pf: &Pf) -> Option<Duration> {
    let layout = Layout::of(pf.pci_id?)?;
    let speed = pf.top_speed.max(pf.speed)?;
    Some(Most::interval_until(layout.octets_range(), speed))
}
