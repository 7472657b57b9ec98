//! The delay condition of an egress that serves by earliest deadline first, or by strict priorities.

use super::egress::{Egress, Order, Point, Source};
use super::{edf, priority};

impl Egress {
    pub(super) fn points(&self) -> Vec<Point> {
        match self.order {
            Order::Edf => edf::points(self),
            Order::Priority => priority::points(self),
        }
    }

    /// Returns whether the egress can keep every promise.
    pub(super) fn fits(&self) -> bool {
        self.promised() <= u128::from(self.capacity) && self.points().iter().all(|p| p.slack >= 0)
    }

    /// Returns, per source, the delay bound (ns) and the point it comes from; meaningful if
    /// [`Egress::fits`].
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

    /// Returns the smallest capacity with which everything fits (bit/s); `None` if no capacity suffices.
    pub(super) fn least_capacity(&self) -> Option<u128> {
        let mut least = self.promised();
        for point in self.points() {
            let time = u128::from(point.t.checked_sub(self.host_latency).filter(|time| *time > 0)?);
            least = least.max(((point.demand + self.blocked()) as u128).div_ceil(time));
        }
        Some(least)
    }
}
