//! The protocol between the demo and its tenants: one JSON object per line, over a socket that is the
//! tenant's standard input and output.

use serde::{Deserialize, Serialize};
use std::net::Ipv4Addr;
use tidegate_evidence::Histogram;

/// UDP port on which the sink receives voice.
pub const VOICE_PORT: u16 = 5002;
/// TCP port on which the sink receives bulk data.
pub const BULK_PORT: u16 = 5001;

/// Most late frames of a window whose spans are reported.
pub const LATE: usize = 1_024;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Wait for `eth0`, give it this address in a /24, and start the role's work.
    Start {
        address: Ipv4Addr,
        /// The sink's address, the peer.
        sink: Ipv4Addr,
        realtime: bool,
    },
    /// Count what happens from `from` to `to` (CLOCK_MONOTONIC, ns).
    Measure(Window),
    Report,
}

/// A span of CLOCK_MONOTONIC (ns).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    pub from: u64,
    pub to: u64,
}

impl Window {
    pub fn holds(&self, at: u64) -> bool {
        (self.from..self.to).contains(&at)
    }
}

/// A tenant's answer: one per order, and [`Answer::Done`] when its namespace exists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    Done,
    Figures(Figures),
    Failed(String),
}

/// A tenant's figures of one window; zero for what its role does not count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// Voice: frames sent in the window. Sink: frames received, each counted once.
    pub frames: u64,
    /// Sink: one-way delays between the applications (ns, frames).
    pub delays: Vec<(u64, u64)>,
    /// Sink: exact longest delay (ns).
    pub longest: u64,
    /// Sink: frames that took longer than the deadline.
    pub late: u64,
    /// Sink: spans of the first late frames, at most [`LATE`].
    pub late_spans: Vec<Window>,
    /// Sink: bytes of bulk data read.
    pub bytes: u64,
}

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
