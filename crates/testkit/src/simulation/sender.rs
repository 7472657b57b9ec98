//! Senders: UDP at a rate, and TCP whose window grows until a loss halves it.

use super::nic::per_tick;
use std::time::Duration;
use tidegate_contract::Rate;

/// Length of a segment (bytes).
const SEGMENT: f64 = 1500.0;
/// The receiver's window (bytes).
const WINDOW: f64 = 8e6;
/// The initial window (segments; RFC 6928).
const FIRST: f64 = 10.0;

/// How a sender sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// At a fixed rate, regardless of losses.
    Udp(Rate),
    /// Slow start, then one more segment per round trip; half the window after a loss (RFC 5681).
    Tcp {
        /// Round trip without queues.
        rtt: Duration,
        /// Rate of the application's data; `None`: unlimited.
        demand: Option<Rate>,
    },
}

/// When a sender sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activity {
    /// Start of sending.
    pub start: Duration,
    /// End of sending.
    pub stop: Duration,
    /// Length of each sending period; no pauses if `off` is 0.
    pub on: Duration,
    /// Length of each pause.
    pub off: Duration,
}

impl Activity {
    /// Sends from `start` on, without end.
    pub const fn from(start: Duration) -> Self {
        Self { start, stop: Duration::MAX, on: Duration::ZERO, off: Duration::ZERO }
    }

    fn sends(&self, now: Duration) -> bool {
        let on = || (now - self.start).as_nanos() % (self.on + self.off).as_nanos() < self.on.as_nanos();
        (self.start..self.stop).contains(&now) && (self.off.is_zero() || on())
    }
}

/// A sender.
#[derive(Clone, Debug)]
pub struct Sender {
    /// How it sends.
    pub kind: Kind,
    /// When it sends.
    pub activity: Activity,
}

/// A running sender (bytes; ticks of a millisecond).
pub struct Source {
    sender: Sender,
    speed: f64,
    window: f64,
    threshold: f64,
    in_flight: f64,
    /// Data that the application has not sent yet.
    ready: f64,
    recovered: u64,
    /// Later feedback, by tick modulo the round trip: acknowledged, lost.
    heard: Vec<(f64, f64)>,
}

impl Source {
    pub fn new(sender: Sender, speed: Rate) -> Self {
        let trip = match sender.kind {
            Kind::Tcp { rtt, .. } => (rtt.as_millis() as usize).max(1),
            Kind::Udp(_) => 1,
        };
        Self {
            sender,
            speed: per_tick(speed),
            window: FIRST * SEGMENT,
            threshold: f64::INFINITY,
            in_flight: 0.0,
            ready: 0.0,
            recovered: 0,
            heard: vec![(0.0, 0.0); trip],
        }
    }

    /// Returns the bytes sent in this tick.
    pub fn offer(&mut self, now: u64) -> f64 {
        let active = self.sender.activity.sends(Duration::from_millis(now));
        match self.sender.kind {
            Kind::Udp(rate) => {
                if active {
                    per_tick(rate)
                } else {
                    0.0
                }
            }
            Kind::Tcp { demand, .. } => {
                self.hear(now);
                if !active {
                    self.ready = 0.0;
                    return 0.0;
                }
                self.ready += demand.map_or(f64::INFINITY, per_tick);
                let offered = (self.window - self.in_flight).clamp(0.0, self.speed).min(self.ready);
                self.in_flight += offered;
                if demand.is_some() {
                    // An application catches up on at most one second.
                    self.ready = (self.ready - offered).min(1000.0 * demand.map_or(0.0, per_tick));
                }
                offered
            }
        }
    }

    /// Records bytes that arrived, for feedback after a round trip.
    pub fn acknowledged(&mut self, now: u64, bytes: f64) {
        let trip = self.heard.len() as u64;
        self.heard[(now % trip) as usize].0 += bytes;
    }

    pub fn lost(&mut self, now: u64, bytes: f64) {
        let trip = self.heard.len() as u64;
        self.heard[(now % trip) as usize].1 += bytes;
    }

    fn hear(&mut self, now: u64) {
        let trip = self.heard.len() as u64;
        let (acknowledged, lost) = std::mem::take(&mut self.heard[(now % trip) as usize]);
        // An unused window says nothing about the path's capacity (RFC 7661).
        let in_use = self.in_flight >= 0.9 * self.window;
        self.in_flight = (self.in_flight - acknowledged - lost).max(0.0);
        if lost > 0.0 {
            if now >= self.recovered {
                self.threshold = (self.window / 2.0).max(2.0 * SEGMENT);
                self.window = self.threshold;
                self.recovered = now + trip;
            }
        } else if in_use {
            let opened = if self.window < self.threshold { 1.0 } else { SEGMENT / self.window };
            self.window = (self.window + acknowledged * opened).min(WINDOW);
        }
    }
}
