//! An egress: its capacity and its promises.
//!
//! Times are nanoseconds, rates bit/s. Data in sums with rates is in nanobits (bit/s times ns), always an integer:
//! with at most 400 Gbit/s, 10 s, 1 GB and a growth of 3 each, a sum of 2^48 vNICs stays below 2^127.

use super::result::Beyond;
use crate::frame::SMALLEST_FRAME;
use crate::{Bytes, Rate};

/// Nanobits in a bit.
pub(super) const NANO: i128 = 1_000_000_000;

/// A real-time vNIC's envelope and deadline.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub name: String,
    /// The kind of its table: `vnic` or `remote`.
    pub table: &'static str,
    /// Declared burst, bits.
    pub burst: u128,
    /// Declared rate, bit/s.
    pub rate: u64,
    /// This host's part of the declared deadline, ns.
    pub deadline: u64,
    /// Longest time between conformance and arrival, ns.
    pub jitter: u64,
    /// Bytes that each frame grows by.
    pub added: u64,
    /// The other part of the deadline, which comes after this host.
    pub away: Option<Beyond>,
    /// Least rate that the vNIC may declare (bit/s): its `tx.min`.
    pub smallest_rate: u64,
    /// Least burst that the vNIC may declare (bytes).
    pub smallest_burst: u64,
}

impl Source {
    /// Returns the burst with which it counts: after the jitter, as on the wire (bits).
    pub(super) fn wire_burst(&self) -> u128 {
        let bunched = (u128::from(self.rate) * u128::from(self.jitter)).div_ceil(NANO as u128);
        on_wire(self.burst + bunched, self.added)
    }

    /// Returns the rate with which it counts (bit/s).
    pub(super) fn wire_rate(&self) -> u128 {
        on_wire(self.rate.into(), self.added)
    }

    /// Returns the part of its deadline that comes after this host (ns).
    pub(super) fn beyond(&self) -> u64 {
        self.away.as_ref().map_or(0, |away| away.total().get())
    }

    /// Returns what is left for this host of another `deadline` (ns).
    pub(super) fn left_of(&self, deadline: u64) -> u64 {
        match &self.away {
            Some(away) if away.asked => deadline.saturating_sub(away.arrival_budget.get()).div_ceil(2),
            _ => deadline.saturating_sub(self.beyond()),
        }
    }
}

/// A guarantee of a vNIC without deadline.
#[derive(Clone, Debug)]
pub(super) struct Minimum {
    pub name: String,
    /// bit/s.
    pub rate: u64,
    /// Bytes that each frame grows by.
    pub added: u64,
}

impl Minimum {
    /// Returns the rate with which it counts (bit/s).
    pub(super) fn wire_rate(&self) -> u128 {
        on_wire(self.rate.into(), self.added)
    }
}

/// Returns the most that frames of `data` bits are on a wire where each grows by `added` bytes, rounded up.
pub(crate) fn on_wire(data: u128, added: u64) -> u128 {
    (data * u128::from(SMALLEST_FRAME + added)).div_ceil(SMALLEST_FRAME.into())
}

/// Returns the most data whose frames are at most `wire` on a wire where each grows by `added` bytes.
pub(super) fn off_wire(wire: u128, added: u64) -> u128 {
    wire * u128::from(SMALLEST_FRAME) / u128::from(SMALLEST_FRAME + added)
}

/// The order in which an egress serves real-time frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Earliest deadline first.
    Edf,
    /// Strict priorities, by deadline.
    Priority,
}

/// An egress and its promises.
#[derive(Clone, Debug)]
pub(super) struct Egress {
    pub name: String,
    pub order: Order,
    /// The key that sets its capacity.
    pub capacity_key: String,
    /// C, bit/s.
    pub capacity: u64,
    /// L, bits.
    pub blocking: u64,
    /// H, ns.
    pub host_latency: u64,
    pub sources: Vec<Source>,
    /// Guarantees of vNICs without deadline.
    pub minima: Vec<Minimum>,
    /// The names of all that promise, in their order.
    pub senders: Vec<String>,
}

/// The condition at one interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Point {
    /// ns.
    pub t: u64,
    /// demand(t), nanobits.
    pub demand: i128,
    /// C (t - H) - demand(t) - L, nanobits.
    pub slack: i128,
}

impl Egress {
    /// Returns the sum of the promised rates (bit/s).
    pub(super) fn promised_rate(&self) -> u128 {
        let rates = self.sources.iter().map(Source::wire_rate);
        rates.chain(self.minima.iter().map(Minimum::wire_rate)).sum()
    }

    /// Returns the condition for a `demand` that may be due within `t`.
    pub(super) fn point(&self, t: u64, demand: i128) -> Point {
        Point { t, demand, slack: self.service_within(t) - demand - self.blocking_nanobits() }
    }

    /// Returns C (t - H) in nanobits; negative before H.
    pub(super) fn service_within(&self, t: u64) -> i128 {
        i128::from(self.capacity) * (i128::from(t) - i128::from(self.host_latency))
    }

    /// Returns L in nanobits.
    pub(super) fn blocking_nanobits(&self) -> i128 {
        i128::from(self.blocking) * NANO
    }
}

pub(super) fn bytes_rounded_up(nanobits: i128) -> Bytes {
    Bytes::new(u64::try_from((nanobits.max(0) as u128).div_ceil(8 * NANO as u128)).unwrap_or(u64::MAX))
}

/// Returns nanobits as bytes, rounded down; 0 if negative.
pub(super) fn bytes_rounded_down(nanobits: i128) -> Bytes {
    Bytes::new(u64::try_from(nanobits.max(0) / (8 * NANO)).unwrap_or(u64::MAX))
}

pub(super) fn rate(bits: u64) -> Rate {
    Rate::from_bits(bits).expect("taken from a rate")
}
