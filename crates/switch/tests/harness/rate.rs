//! A rate that is kept, as the receiving guest sees it.
//!
//! ```text
//!  look: bytes that came since the last ─┬─▶ Envelope ─▶ at most, in every window however short
//!                                        └─▶ sum of a window of a second ─▶ at least, in one of ten
//! ```
//!
//! A host that takes the CPU from a worker for longer than a burst lasts spoils the rate of a window; it never makes it more.
//! So the lower bound has to hold once, and the upper one always.

use super::bytes_in;
use std::time::Instant;
use tidegate_contract::testing::envelope::Envelope;

/// Windows until one reaches the rate.
const WINDOWS: usize = 10;

/// What one of them has to reach: a rate that is not kept is off by a half, or ten times.
const LEAST: f64 = 0.75;

/// What is to be kept.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Bits per second.
    pub rate: u64,
    /// Bytes.
    pub burst: u64,
    /// The longest frame that there is, bytes on the wire.
    pub frame: u64,
}

impl Limit {
    /// Bytes that may come beyond the rate. A worker that stands still between taking frames and delivering them delivers what
    /// was in its hands, at most a burst and a frame, just before what has conformed meanwhile, which is as much.
    fn most_beyond(&self) -> f64 {
        2.0 * (self.burst + self.frame) as f64
    }
}

/// What came, look by look.
pub struct Arrivals {
    began: Instant,
    /// When the last look began, ns.
    last: u64,
    envelope: Envelope,
    bytes: u64,
}

impl Arrivals {
    /// Nothing came yet; it is held to `rate` bit/s.
    pub fn new(rate: u64) -> Self {
        Self { began: Instant::now(), last: 0, envelope: Envelope::new(rate), bytes: 0 }
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// One look: `receive` takes the frames that are there, and says how many bytes that were on the wire.
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

/// Fails unless traffic that always has more to send keeps to `limit` in every window, and reaches its rate in one of those that
/// `traffic` makes.
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
