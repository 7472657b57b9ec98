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
//! - `meter`: the counters of several PFs
//! - `counted`: totals, their sources, doubts
//! - `mapping`: the registers of a PCI device

pub mod accumulator;
mod counted;
mod counting;
mod mapping;
mod meter;
#[cfg(test)]
mod tests;
pub mod window;

use counting::Counting;

pub use counted::{Counted, Doubts, Figure, Traffic};
pub(crate) use counting::sources;
pub use meter::Meter;

use crate::device::pf::Pf;
use accumulator::Most;
use std::time::Duration;
use window::Layout;

/// How often counters have to be asked for, at least, so that none wraps unseen; `None` where that takes years, or where the
/// NIC's speed is not known.
pub fn longest_interval(pf: &Pf) -> Option<Duration> {
    let layout = Layout::of(pf.pci_id?)?;
    let speed = pf.top_speed.max(pf.speed)?;
    Some(Most::interval_until(layout.octets_range(), speed))
}
