//! Who sends: UDP at a rate, TCP with a window that opens while all arrives and halves when something does not.

use super::nic::per_tick;
use std::time::Duration;
use tidegate_contract::Rate;

/// Bytes of a segment.
const SEGMENT: f64 = 1500.0;
/// The receiver's window, bytes.
const WINDOW: f64 = 8e6;
/// The first window, segments (RFC 6928).
const FIRST: f64 = 10.0;

/// How one sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// At a rate, whatever becomes of it.
    Udp(Rate),
    /// As much as arrives: slow start, then one segment more a round trip, half after a loss (RFC 5681).
    Tcp {
        /// Round trip, without queues.
        rtt: Duration,
        /// What the application has to send; `None`: always more.
        demand: Option<Rate>,
    },
}

/// When one sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activity {
    /// From then on.
    pub start: Duration,
    /// Until then.
    pub stop: Duration,
    /// For so long, and not for so long, again and again; always where `off` is 0.
    pub on: Duration,
    /// See `on`.
    pub off: Duration,
}

impl Activity {
    /// From `start` on.
    pub const fn from(start: Duration) -> Self {
        Self { start, stop: Duration::MAX, on: Duration::ZERO, off: Duration::ZERO }
    }

    fn sends(&self, now: Duration) -> bool {
        let on = || (now - self.start).as_nanos() % (self.on + self.off).as_nanos() < self.on.as_nanos();
        (self.start..self.stop).contains(&now) && (self.off.is_zero() || on())
    }
}

/// One sender.
#[derive(Clone, Debug)]
pub struct Sender {
    /// How.
    pub kind: Kind,
    /// When.
    pub activity: Activity,
}

/// A sender at work. Bytes, and ticks of a millisecond.
pub struct Source {
    sender: Sender,
    speed: f64,
    window: f64,
    threshold: f64,
    in_flight: f64,
    /// What the application handed over and was not sent.
    ready: f64,
    recovered: u64,
    /// What will be heard, by tick modulo the round trip: acknowledged, lost.
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

    /// What it hands over in this tick.
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
                    // What an application cannot send for a second it does not make up for.
                    self.ready = (self.ready - offered).min(1000.0 * demand.map_or(0.0, per_tick));
                }
                offered
            }
        }
    }

    /// So much arrived; the sender hears of it a round trip later.
    pub fn acknowledged(&mut self, now: u64, bytes: f64) {
        let trip = self.heard.len() as u64;
        self.heard[(now % trip) as usize].0 += bytes;
    }

    /// So much was lost.
    pub fn lost(&mut self, now: u64, bytes: f64) {
        let trip = self.heard.len() as u64;
        self.heard[(now % trip) as usize].1 += bytes;
    }

    /// What was entered a round trip ago.
    fn hear(&mut self, now: u64) {
        let trip = self.heard.len() as u64;
        let (acknowledged, lost) = std::mem::take(&mut self.heard[(now % trip) as usize]);
        // A window that was not in use says nothing about what the path bears (RFC 7661).
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
