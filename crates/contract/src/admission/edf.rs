//! The delay condition of one egress, which serves by deadline (EDF) or by strict priorities.
//!
//! Times are nanoseconds, rates bit/s. Amounts of data in sums with rates are
//! in nanobits (bit/s times ns), where everything is an integer: with at most
//! 400 Gbit/s, 10 s and 1 GB each, a sum of 2^50 vNICs stays below 2^127.

use super::priority;
use crate::{Bytes, Rate};

/// Nanobits in a bit.
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
    /// The least rate it may declare, bit/s: its `tx.min`.
    pub smallest_rate: u64,
    /// The least burst it may declare, bytes.
    pub smallest_burst: u64,
}

/// In which order an egress serves real-time frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Earliest deadline first.
    Edf,
    /// Strict priorities, by deadline.
    Priority,
}

/// An egress and what was promised there.
#[derive(Clone, Debug)]
pub(super) struct Egress {
    pub name: String,
    pub order: Order,
    /// Where its capacity is set.
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
    /// Sum of what is promised, bit/s.
    pub(super) fn promised(&self) -> u128 {
        let rates = self.sources.iter().map(|s| s.rate);
        rates.chain(self.minima.iter().map(|(_, min)| *min)).map(u128::from).sum()
    }

    /// The conditions to be met.
    pub(super) fn points(&self) -> Vec<Point> {
        match self.order {
            Order::Edf => self.edf_points(),
            Order::Priority => priority::points(self),
        }
    }

    /// The condition where `demand` may be due within `t`.
    pub(super) fn point(&self, t: u64, demand: i128) -> Point {
        Point { t, demand, slack: self.served(t) - demand - self.blocked() }
    }

    /// The condition at every distinct deadline, shortest first. Between two
    /// deadlines the slack changes with slope C minus the rates so far, so with
    /// rates that sum up to at most C these are its only minima.
    fn edf_points(&self) -> Vec<Point> {
        let mut sources: Vec<&Source> = self.sources.iter().collect();
        sources.sort_unstable_by_key(|s| s.deadline);
        let (mut bursts, mut rates, mut offset) = (0i128, 0i128, 0i128);
        let mut points: Vec<Point> = Vec::with_capacity(sources.len());
        for source in sources {
            let (t, rate) = (i128::from(source.deadline), i128::from(source.rate));
            bursts += source.burst as i128 * NANO;
            rates += rate;
            offset += rate * t;
            let demand = bursts + rates * t - offset;
            let point = self.point(source.deadline, demand);
            match points.last_mut() {
                Some(last) if last.t == point.t => *last = point,
                _ => points.push(point),
            }
        }
        points
    }

    /// C (t - H), nanobits; negative before H.
    pub(super) fn served(&self, t: u64) -> i128 {
        i128::from(self.capacity) * (i128::from(t) - i128::from(self.host_latency))
    }

    /// L, nanobits.
    pub(super) fn blocked(&self) -> i128 {
        i128::from(self.blocking) * NANO
    }

    /// Whether every promise can be kept.
    pub(super) fn fits(&self) -> bool {
        self.promised() <= u128::from(self.capacity) && self.points().iter().all(|p| p.slack >= 0)
    }

    /// Per source, the delay bound in ns and the point it comes from; meaningful where [`Egress::fits`].
    pub(super) fn bounds(&self) -> Vec<(u64, Point)> {
        let critical = match self.order {
            Order::Edf => self.edf_critical(),
            Order::Priority => priority::points(self),
        };
        let bound = |(source, critical): (&Source, Point)| {
            // Nanobits by bit/s are ns; rounding the spare time down rounds the bound up.
            let spare = critical.slack.div_euclid(i128::from(self.capacity));
            let bound = u64::try_from(i128::from(source.deadline) - spare).unwrap_or(u64::MAX);
            (bound, critical)
        };
        self.sources.iter().zip(critical).map(bound).collect()
    }

    /// Per source, the tightest condition from its deadline on.
    fn edf_critical(&self) -> Vec<Point> {
        let points = self.edf_points();
        let mut tightest = points.clone();
        for i in (1..points.len()).rev() {
            if tightest[i].slack < tightest[i - 1].slack {
                tightest[i - 1] = tightest[i];
            }
        }
        let of = |source: &Source| tightest[points.partition_point(|p| p.t < source.deadline)];
        self.sources.iter().map(of).collect()
    }

    /// The smallest capacity with which everything fits, bit/s; `None` where no capacity helps.
    pub(super) fn least_capacity(&self) -> Option<u128> {
        let mut least = self.promised();
        for point in self.points() {
            let time = u128::from(point.t.checked_sub(self.host_latency).filter(|time| *time > 0)?);
            least = least.max(((point.demand + self.blocked()) as u128).div_ceil(time));
        }
        Some(least)
    }
}

/// Nanobits as bytes, rounded up.
pub(super) fn bytes_up(nanobits: i128) -> Bytes {
    Bytes::new(u64::try_from((nanobits.max(0) as u128).div_ceil(8 * NANO as u128)).unwrap_or(u64::MAX))
}

/// Nanobits as bytes, rounded down; nothing where negative.
pub(super) fn bytes_down(nanobits: i128) -> Bytes {
    Bytes::new(u64::try_from(nanobits.max(0) / (8 * NANO)).unwrap_or(u64::MAX))
}

/// A capacity as the rate it came from.
pub(super) fn rate(bits: u64) -> Rate {
    Rate::from_bits(bits).expect("taken from a rate")
}
