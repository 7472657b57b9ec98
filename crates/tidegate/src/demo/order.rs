//! What the demo and its tenants say to each other: one JSON object a line, over
//! a socket that is the tenant's standard input and output.

use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;
use tidegate_evidence::Histogram;

/// UDP port the sink hears voice on.
pub const VOICE_PORT: u16 = 5002;
/// TCP port the sink takes bulk data on.
pub const BULK_PORT: u16 = 5001;

/// Late frames of a window of which it is told when they were under way.
pub const LATE: usize = 1_024;

/// What the demo asks of a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Wait for `eth0`, give it this address in a /24, start the role's work. The peer
    /// is the sink.
    Start {
        /// The tenant's own address.
        address: Ipv4Addr,
        /// The sink's.
        sink: Ipv4Addr,
        /// Voice's threads are to take real-time priority.
        realtime: bool,
    },
    /// Count what happens from `from` to `to` (CLOCK_MONOTONIC, ns).
    Measure(Window),
    /// Tell the figures of the last window.
    Report,
}

/// A span of CLOCK_MONOTONIC, ns; the end is not part of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// First instant.
    pub from: u64,
    /// First instant after it.
    pub to: u64,
}

impl Window {
    /// Whether `at` lies in it.
    pub fn holds(&self, at: u64) -> bool {
        (self.from..self.to).contains(&at)
    }
}

/// What a tenant answers; one answer per order, and [`Answer::Done`] when its
/// namespace is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Done.
    Done,
    /// To [`Order::Report`].
    Figures(Figures),
    /// It could not be done.
    Failed(String),
}

/// One tenant's figures of one window; what its role does not count is zero.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// Voice: frames sent in the window. Sink: frames that arrived, each counted once.
    pub frames: u64,
    /// Sink: one-way delay from application to application, (ns, frames).
    pub delays: Vec<(u64, u64)>,
    /// Sink: the longest of them, ns, exactly.
    pub longest: u64,
    /// Sink: frames that took longer than their deadline.
    pub late: u64,
    /// Sink: when the first of the late ones were under way, up to [`LATE`] of them.
    pub late_spans: Vec<Window>,
    /// Sink: bytes the bulk receivers read.
    pub bytes: u64,
}

/// A histogram from its occupied buckets.
pub fn histogram(buckets: &[(u64, u64)]) -> Histogram {
    let mut histogram = Histogram::default();
    for (value, count) in buckets {
        (0..*count).for_each(|_| histogram.record(*value));
    }
    histogram
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_survives_the_trip() {
        let mut original = Histogram::default();
        [1_000, 1_000, 2_000_000].into_iter().for_each(|v| original.record(v));
        let buckets: Vec<_> = original.occupied().collect();
        assert_eq!(histogram(&buckets).occupied().collect::<Vec<_>>(), buckets);
    }

    #[test]
    fn a_window_ends_before_its_end() {
        let window = Window { from: 10, to: 20 };
        assert_eq!([9, 10, 19, 20].map(|t| window.holds(t)), [false, true, true, false]);
    }
}
