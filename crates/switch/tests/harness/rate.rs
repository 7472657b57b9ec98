//! Checks that a rate holds, as the receiving guest sees it.
//!
//! ```text
//!  look: bytes that came since the last ─┬─▶ Envelope ─▶ at most, in every window however short
//!                                        └─▶ sum of a window of a second ─▶ at least, in one of ten
//! ```
//!
//! A host that takes a worker's CPU for longer than a burst only lowers a window's rate. So the lower bound
//! must hold once, and the upper bound always.

use super::bytes_in;
use std::time::Instant;
use tidegate_contract::testing::envelope::Envelope;

const WINDOWS: usize = 10;

/// Share that one window must reach: a wrong rate is off by a half or more in all.
const LEAST: f64 = 0.75;

#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Bits per second.
    pub rate: u64,
    /// Bytes.
    pub burst: u64,
    /// Longest frame (bytes on the wire).
    pub frame: u64,
}

impl Limit {
    /// Returns the bytes allowed beyond the rate. A worker that stalls between taking and delivering frames
    /// delivers the taken ones, at most a burst and a frame, just before as much that has conformed
    /// meanwhile.
    fn most_beyond(&self) -> f64 {
        2.0 * (self.burst + self.frame) as f64
    }
}

pub struct Arrivals {
    began: Instant,
    /// Begin of the last look (ns).
    last: u64,
    envelope: Envelope,
    bytes: u64,
}

impl Arrivals {
    /// Starts without arrivals; the limit is `rate` (bit/s).
    pub fn new(rate: u64) -> Self {
        Self { began: Instant::now(), last: 0, envelope: Envelope::new(rate), bytes: 0 }
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// Takes one look: `receive` returns the bytes on the wire of the waiting frames.
    pub fn look(&mut self, receive: impl FnOnce() -> u64) {
        let began = self.now();
        let bytes = receive();
        if bytes > 0 {
            self.envelope.observe(self.last, self.now(), bytes);
            self.bytes += bytes;
        }
        self.last = began;
    }
}

/// Checks that greedy traffic keeps to `limit` in every window, and reaches its rate in one.
#[track_caller]
pub fn keeps_rate(what: &str, limit: Limit, mut traffic: impl FnMut(&mut Arrivals)) {
    let mut arrivals = Arrivals::new(limit.rate);
    let mut shares = Vec::new();
    while shares.iter().all(|share| *share < LEAST) {
        assert!(shares.len() < WINDOWS, "{what}: {shares:.3?} of its rate came, in no window {LEAST}");
        let (before, began) = (arrivals.bytes, Instant::now());
        traffic(&mut arrivals);
        shares.push((arrivals.bytes - before) as f64 / bytes_in(limit.rate, began.elapsed()));
        let (_, beyond) = arrivals.envelope.excess();
        assert!(
            beyond <= limit.most_beyond(),
            "{what}: {beyond:.0} bytes came beyond its rate in some window; {limit:?} allows {:.0}",
            limit.most_beyond()
        );
    }
}
