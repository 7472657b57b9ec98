//! An egress: its capacity and its promises.
//!
//! Times are in nanoseconds, rates in bit/s. Sums of data are in nanobits (bit/s times ns), always
//! integers: with at most 400 Gbit/s, 10 s and 1 GB each, a sum over 2^50 vNICs stays below 2^127.

use crate::{Bytes, Rate};

pub(super) const NANO: i128 = 1_000_000_000;

/// A real-time vNIC's envelope and deadline.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub name: String,
    /// Bits.
    pub burst: u128,
    /// bit/s.
    pub rate: u64,
    /// ns.
    pub deadline: u64,
    /// Least rate that it may declare (bit/s): its `tx.min`.
    pub smallest_rate: u64,
    /// Least burst that it may declare (bytes).
    pub smallest_burst: u64,
}

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
    /// Key that sets the capacity.
    pub capacity_key: String,
    /// C, bit/s.
    pub capacity: u64,
    /// L, bits.
    pub blocking: u64,
    /// H, ns.
    pub host_latency: u64,
    pub sources: Vec<Source>,
    /// Guarantees of vNICs without deadline: name and bit/s.
    pub minima: Vec<(String, u64)>,
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
    pub(super) fn promised(&self) -> u128 {
        let rates = self.sources.iter().map(|s| s.rate);
        rates.chain(self.minima.iter().map(|(_, min)| *min)).map(u128::from).sum()
    }

    /// Builds the condition for a `demand` that may be due within `t`.
    pub(super) fn point(&self, t: u64, demand: i128) -> Point {
        Point { t, demand, slack: self.served(t) - demand - self.blocked() }
    }

    /// Returns C (t - H) in nanobits; negative before H.
    pub(super) fn served(&self, t: u64) -> i128 {
        i128::from(self.capacity) * (i128::from(t) - i128::from(self.host_latency))
    }

    pub(super) fn blocked(&self) -> i128 {
        i128::from(self.blocking) * NANO
    }
}

/// Converts nanobits to bytes, rounded up.
pub(super) fn bytes_up(nanobits: i128) -> Bytes {
    Bytes::new(u64::try_from((nanobits.max(0) as u128).div_ceil(8 * NANO as u128)).unwrap_or(u64::MAX))
}

/// Converts nanobits to bytes, rounded down; 0 if negative.
pub(super) fn bytes_down(nanobits: i128) -> Bytes {
    Bytes::new(u64::try_from(nanobits.max(0) / (8 * NANO)).unwrap_or(u64::MAX))
}

/// Converts a capacity back to the rate it came from.
pub(super) fn rate(bits: u64) -> Rate {
    Rate::from_bits(bits).expect("taken from a rate")
}
