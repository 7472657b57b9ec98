//! The delay condition of an egress, by its order of service: earliest deadline first, or strict priorities.

use super::egress::{Egress, Order, Point, Source};
use super::{edf, priority};

impl Egress {
    pub(super) fn points(&self) -> Vec<Point> {
        match self.order {
            Order::Edf => edf::points(self),
            Order::Priority => priority::points(self),
        }
    }

    pub(super) fn fits(&self) -> bool {
        self.promised_rate() <= u128::from(self.capacity) && self.points().iter().all(|p| p.slack >= 0)
    }

    /// Returns for each source the delay bound (ns) and its point; meaningful if [`Egress::fits`].
    pub(super) fn bounds(&self) -> Vec<(u64, Point)> {
        let critical = match self.order {
            Order::Edf => edf::critical(self),
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

    /// Returns the smallest capacity with which everything fits (bit/s); `None` if no capacity helps.
    pub(super) fn least_capacity(&self) -> Option<u128> {
        let mut least = self.promised_rate();
        for point in self.points() {
            let time = u128::from(point.t.checked_sub(self.host_latency).filter(|time| *time > 0)?);
            least = least.max(((point.demand + self.blocking_nanobits()) as u128).div_ceil(time));
        }
        Some(least)
    }
}
