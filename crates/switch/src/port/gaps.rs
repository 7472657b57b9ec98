//! Expects the next real-time frame of a source. Pure.
//!
//! ```text
//!  arrivals ─▶ shortest and longest gap, forgotten slowly ─▶ [last + shortest, last + longest + SLACK]
//!                                                                   │
//!  all sources, how late a timer may be ────────────────────────────┴▶ awake now, from then on, or not at all
//! ```
//!
//! A stream of one frame a millisecond has a window as long as its jitter: a worker may sleep until the
//! window opens, and so waits awake for a small part of the time. Irregular gaps have an open window: the
//! [budget](super::awake) bounds its cost.

/// Frames closer together than this are one arrival (ns): no timer is shorter.
const TOGETHER: u64 = 30_000;
/// A longer gap is a pause of the stream (ns), and teaches nothing.
const PAUSE: u64 = 200_000_000;
/// With each arrival, one part in this many of a gap's excess is forgotten.
const FORGET: u64 = 64;
/// Extra time of waiting for a frame (ns).
const SLACK: u64 = 30_000;

/// The gaps between the arrivals of one source.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gaps {
    /// The latest arrival, ns; 0 before the first.
    last: u64,
    /// The shortest gap, ns.
    shortest: u64,
    /// The longest gap, ns; 0 while none is known.
    longest: u64,
}

impl Gaps {
    /// Notes frames at `now` (ns).
    #[inline]
    pub(crate) fn arrived(&mut self, now: u64) {
        let gap = now.saturating_sub(std::mem::replace(&mut self.last, now));
        if !(TOGETHER..=PAUSE).contains(&gap) {
            return;
        }
        if self.longest == 0 {
            (self.shortest, self.longest) = (gap, gap);
            return;
        }
        self.shortest = gap.min(self.shortest + gap.saturating_sub(self.shortest) / FORGET);
        self.longest = gap.max(self.longest - self.longest.saturating_sub(gap) / FORGET);
    }

    /// Returns the beginning and end of the next frame's window (ns); in the distant past for a source
    /// without frames.
    #[inline]
    fn window(&self) -> (u64, u64) {
        (self.last + self.shortest, self.last + self.longest + SLACK)
    }
}

/// Returns when to be awake for the next frame of any of these sources (ns): `now`, later, or never. The
/// caller sets a timer, which may be `late` ns late.
#[inline]
pub(crate) fn next_wake<'a>(sources: impl Iterator<Item = &'a Gaps>, now: u64, late: u64) -> Option<u64> {
    let open = sources.map(Gaps::window).filter(|(_, until)| now <= *until);
    open.map(|(from, _)| from.saturating_sub(late).max(now)).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn after(arrivals: impl IntoIterator<Item = u64>) -> Gaps {
        let mut gaps = Gaps::default();
        arrivals.into_iter().for_each(|at| gaps.arrived(at));
        gaps
    }

    /// Gaps of all lengths, or of similar ones.
    fn gaps() -> impl Strategy<Value = Vec<u64>> {
        const APART: u64 = 1_000_000;
        let alike = (TOGETHER..PAUSE - APART, prop::collection::vec(0..APART, 2..200))
            .prop_map(|(least, more)| more.iter().map(|more| least + more).collect());
        prop_oneof![prop::collection::vec(TOGETHER..PAUSE, 2..200), alike]
    }

    #[test]
    fn a_periodic_stream_is_awaited_for_its_jitter_alone() {
        let gaps = after((1..100).map(|n| n * 1_000_000));
        let last = 99_000_000;
        assert_eq!(next_wake([&gaps].into_iter(), last + 1, 100_000), Some(last + 900_000));
        assert_eq!(next_wake([&gaps].into_iter(), last + 950_000, 100_000), Some(last + 950_000));
        let late = last + 1_000_000 + SLACK;
        assert_eq!(next_wake([&gaps].into_iter(), late, 0), Some(late), "a little late");
        assert_eq!(next_wake([&gaps].into_iter(), late + 1, 0), None, "it ended");
    }

    #[test]
    fn a_burst_is_one_arrival() {
        let gaps = after((1..100).flat_map(|n| [0, 5_000, 9_000].map(|at| n * 20_000_000 + at)));
        let last = 99 * 20_000_000 + 9_000;
        let from = next_wake([&gaps].into_iter(), last + SLACK, 0).unwrap();
        assert!((19_900_000..=20_000_000).contains(&(from - last)), "{}", from - last);
    }

    #[test]
    fn no_frame_is_awaited_from_a_silent_source() {
        assert_eq!(next_wake([&Gaps::default()].into_iter(), 1_000_000, 0), None);
        let paused = after([1_000_000, 2_000_000, 3_000_000, 5_000_000_000]);
        let next = next_wake([&paused].into_iter(), 5_000_000_001, 0);
        assert_eq!(next, Some(5_001_000_000), "the pause taught nothing");
    }

    proptest! {
        /// With each arrival one part in [`FORGET`] of the gaps' spread is forgotten, and no more: a recent
        /// gap finds the worker awake.
        #[test]
        fn a_worker_is_awake_for_every_recent_gap(gaps in gaps(), late in 0u64..1_000_000) {
            let mut now = 1_000_000_000;
            let mut learned = Gaps::default();
            learned.arrived(now);
            for gap in &gaps {
                now += gap;
                learned.arrived(now);
            }
            let spread = gaps.iter().max().unwrap() - gaps.iter().min().unwrap();
            for (since, gap) in (0u64..).zip(gaps.iter().rev()) {
                let forgotten = since * spread / FORGET;
                prop_assert!(learned.shortest <= gap + forgotten, "{gap} is {since} arrivals ago");
                prop_assert!(learned.longest + forgotten >= *gap, "{gap} is {since} arrivals ago");
                if forgotten > SLACK {
                    continue;
                }
                let (next, late) = (now + gap, late.max(forgotten));
                prop_assert_eq!(next_wake([&learned].into_iter(), next, late), Some(next));
                // Any look before that returns a time in time.
                for part in 0..10 {
                    let at = now + gap / 10 * part;
                    let wakes = next_wake([&learned].into_iter(), at, late);
                    prop_assert!(wakes.is_some_and(|wakes| wakes >= at && wakes <= next));
                }
            }
        }

        /// The exact extremes stay within the remembered ones until they are forgotten.
        #[test]
        fn the_remembered_gaps_lie_between_the_extremes(gaps in prop::collection::vec(TOGETHER..PAUSE, 1..100)) {
            let mut now = 7;
            let mut learned = Gaps::default();
            learned.arrived(now);
            for gap in &gaps {
                now += gap;
                learned.arrived(now);
            }
            let (least, most) = (*gaps.iter().min().unwrap(), *gaps.iter().max().unwrap());
            let last = *gaps.last().unwrap();
            prop_assert!((least..=last).contains(&learned.shortest));
            prop_assert!((last..=most).contains(&learned.longest));
        }

        /// Of many sources the earliest counts.
        #[test]
        fn the_first_of_all_sources_is_awaited(
            sources in prop::collection::vec((1u64..1 << 40, TOGETHER..PAUSE, 0..PAUSE), 0..20),
            now in 0u64..1 << 41, late in 0u64..1_000_000,
        ) {
            let sources: Vec<_> = sources.into_iter()
                .map(|(last, shortest, more)| Gaps { last, shortest, longest: shortest + more })
                .collect();
            let each = sources.iter().filter_map(|source| next_wake([source].into_iter(), now, late)).min();
            prop_assert_eq!(next_wake(sources.iter(), now, late), each);
        }
    }
}
