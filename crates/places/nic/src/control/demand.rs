//! What a function wants, told from what it used under its limit. Rates are in units of the limit.
//!
//! ```text
//!  used near its limit ─▶ wants more: its minimum at once, else twice its limit a period
//!  used less           ─▶ wants the most that it used of late, and a tenth above
//!  not known           ─▶ wants all: what cannot be seen is not idle
//! ```
//!
//! "Of late" is a [`WINDOW`] or two: a demand grows at once and shrinks slowly, which is what damps the loop.

use std::time::Duration;

/// Share of its limit from which a function counts as wanting more.
pub const PRESSED: f64 = 0.95;
/// One that wants more goes on to, while it uses this share: a TCP sender that backs off is not content.
pub const PRESSED_STILL: f64 = 0.9;
/// What a function that wants no more has above what it used: room to show that it does, below [`PRESSED`].
pub const HEADROOM: f64 = 1.1;
/// The largest share of its limit that a function with [`HEADROOM`] may use before its limit follows, some noise below
/// [`PRESSED`].
pub const FOLLOWED: f64 = 0.93;
/// How a limit grows in a period, beyond the minimum.
pub const GROWTH: f64 = 2.0;
/// Least length of a window, in samples and in time: shorter than a round trip, no sample says much.
const WINDOW: (f64, Duration) = (3.0, Duration::from_millis(150));
/// So many samples missed in a row, and nothing is known any more.
const FORGOTTEN: u32 = 10;

/// Recent use.
#[derive(Clone, Debug, Default)]
pub struct Demand {
    known: bool,
    missed: u32,
    /// How much of the window `now` is over, seconds.
    age: f64,
    now: Window,
    before: Window,
}

#[derive(Clone, Copy, Debug, Default)]
struct Window {
    peak: f64,
    pressed: bool,
}

impl Demand {
    /// A sample: `used` under `limit`, counted to within `slack` (what may be counted at once), over `elapsed`.
    pub fn observe(&mut self, used: f64, slack: f64, limit: f64, elapsed: Duration) {
        let elapsed = elapsed.as_secs_f64();
        if self.age >= (WINDOW.0 * elapsed).max(WINDOW.1.as_secs_f64()) * 0.999 {
            (self.before, self.now, self.age) = (self.now, Window::default(), 0.0);
        }
        let most = used + slack;
        let share = if self.wants_more() { PRESSED_STILL } else { PRESSED };
        if !self.known {
            *self = Self { known: true, ..Self::default() };
        }
        self.missed = 0;
        self.age += elapsed;
        self.now.peak = self.now.peak.max(most);
        self.now.pressed |= most >= share * limit;
    }

    /// No sample, or a sample that is not trusted: the last state holds for a while.
    pub fn miss(&mut self) {
        self.missed += 1;
        if self.missed >= FORGOTTEN {
            self.known = false;
        }
    }

    /// Whether anything is known.
    pub fn is_known(&self) -> bool {
        self.known
    }

    /// Whether it would use more than its limit lets it.
    pub fn wants_more(&self) -> bool {
        self.known && (self.now.pressed || self.before.pressed)
    }

    /// The most that it used of late.
    pub fn peak(&self) -> f64 {
        self.now.peak.max(self.before.peak)
    }

    /// The limit that it should have, capacity permitting, with `limit` in force and `min` promised.
    pub fn wanted(&self, limit: f64, min: f64) -> f64 {
        if !self.known {
            f64::INFINITY
        } else if self.wants_more() {
            min.max(GROWTH * limit)
        } else {
            // Whole, since limits are: rounded down it would press against its limit.
            (HEADROOM * self.peak()).ceil()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_millis(100);

    #[test]
    fn a_sender_near_its_limit_wants_more_until_it_clearly_sends_less() {
        let mut demand = Demand::default();
        assert_eq!(demand.wanted(8.0, 0.0), f64::INFINITY, "not known");
        demand.observe(2.0, 0.0, 8.0, PERIOD);
        assert!(!demand.wants_more());
        assert_eq!(demand.wanted(8.0, 400.0), 3.0);
        demand.observe(7.7, 0.0, 8.0, PERIOD);
        assert!(demand.wants_more());
        assert_eq!(demand.wanted(8.0, 400.0), 400.0, "its minimum at once");
        assert_eq!(demand.wanted(8.0, 0.0), 16.0, "twice the limit");
        for _ in 0..20 {
            demand.observe(365.0, 0.0, 400.0, PERIOD);
            assert!(demand.wants_more(), "a sender that backs off");
        }
        for _ in 0..7 {
            demand.observe(300.0, 0.0, 400.0, PERIOD);
        }
        assert!(!demand.wants_more());
        assert!((330.0..=331.0).contains(&demand.wanted(400.0, 400.0)));
    }

    #[test]
    fn a_demand_that_shrank_is_believed_after_two_windows() {
        let mut demand = Demand::default();
        demand.observe(100.0, 0.0, 400.0, PERIOD);
        let mut samples = 0;
        while demand.peak() > 50.0 {
            demand.observe(1.0, 0.0, 400.0, PERIOD);
            samples += 1;
        }
        assert!((3..=6).contains(&samples), "{samples}");
    }

    #[test]
    fn a_vf_without_samples_for_long_is_not_idle() {
        let mut demand = Demand::default();
        demand.observe(1.0, 0.0, 400.0, PERIOD);
        for _ in 1..FORGOTTEN {
            demand.miss();
            assert_eq!(demand.wanted(400.0, 0.0), 2.0);
        }
        demand.miss();
        assert_eq!(demand.wanted(400.0, 0.0), f64::INFINITY);
        demand.observe(1.0, 0.0, 400.0, PERIOD);
        assert_eq!(demand.wanted(400.0, 0.0), 2.0);
    }

    #[test]
    fn the_coarseness_of_the_counter_is_allowed_for() {
        let mut demand = Demand::default();
        // One frame less than the limit may have been sent all the same.
        demand.observe(6.5, 1.2, 8.0, PERIOD);
        assert!(demand.wants_more());
    }
}
