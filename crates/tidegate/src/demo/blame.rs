//! Who is to blame for a late frame. Pure.
//!
//! ```text
//!  late frame       ├──────────── 2.4 ms ────────────┤   deadline 1 ms
//!  control thread          ├─ did not run: 1.9 ms ─┤
//!                          without it: 0.5 ms, in time ─▶ the host machine's
//! ```
//!
//! The host machine is to blame for a frame only if the frame would have been in time without the time that
//! was taken from one CPU of its way. All other late frames are unexplained, and count as the switch's.

use super::order::Window;
use serde::Serialize;

/// Evidence that a CPU did not run its threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// Steal time in /proc/stat: the hypervisor took the CPU.
    Steal,
    /// A control thread did not run, although its priority is the highest on its CPU.
    Stalled,
}

/// A span of time in which a CPU was away, at least in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuAbsence {
    pub sign: Sign,
    pub cpu: usize,
    /// The span (CLOCK_MONOTONIC, ns).
    pub span: Window,
    /// Least time for which the CPU was away in the span (ns).
    pub least_ns: u64,
}

impl CpuAbsence {
    /// Returns the least time for which the CPU was away during `frame` (ns): assumes that as much as
    /// possible of the absence was outside the frame.
    fn least_within(&self, frame: Window) -> u64 {
        let overlap = self.span.to.min(frame.to).saturating_sub(self.span.from.max(frame.from));
        let outside = self.span.to.saturating_sub(self.span.from) - overlap;
        self.least_ns.saturating_sub(outside)
    }
}

/// Late frames, by who is to blame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Blame {
    pub late: u64,
    /// Frames late because of the host machine's steal time.
    pub steal: u64,
    /// Frames late because a control thread did not run: the host machine's fault, or kernel work that no
    /// thread interrupts.
    pub stalled: u64,
    pub unexplained: u64,
}

impl Blame {
    /// Judges `late` frames. `known` has the spans of some of them, from the begin of the wait to the end.
    /// `away` covers the CPUs that the frames passed. A frame that took longer than `deadline` ns was late.
    pub fn of(late: u64, known: &[Window], absences: &[CpuAbsence], deadline: u64) -> Self {
        let mut blame = Self { late, ..Self::default() };
        for frame in known.iter().take(late.try_into().unwrap_or(usize::MAX)) {
            let in_time = |sign| frame.to - frame.from - absent_ns(*frame, absences, sign) <= deadline;
            if in_time(Sign::Steal) {
                blame.steal += 1;
            } else if in_time(Sign::Stalled) {
                blame.stalled += 1;
            }
        }
        blame.unexplained = late - blame.steal - blame.stalled;
        blame
    }
}

/// Returns how much of a frame's time one CPU, the one that was away longest, took at least (ns). Spans of
/// the same sign and CPU do not overlap.
fn absent_ns(frame: Window, absences: &[CpuAbsence], sign: Sign) -> u64 {
    let of = |cpu: usize| -> u64 {
        absences.iter().filter(|a| a.sign == sign && a.cpu == cpu).map(|a| a.least_within(frame)).sum()
    };
    absences.iter().map(|a| of(a.cpu)).max().unwrap_or(0).min(frame.to - frame.from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn window(from: u64, to: u64) -> Window {
        Window { from, to }
    }

    fn stalled(cpu: usize, from: u64, to: u64) -> CpuAbsence {
        CpuAbsence { sign: Sign::Stalled, cpu, span: window(from, to), least_ns: to - from }
    }

    #[test]
    fn the_host_is_blamed_for_frames_that_would_have_been_in_time() {
        let frames = [window(0, 24), window(100, 125), window(200, 230)];
        let absences = [
            stalled(0, 5, 20),
            // The second frame lost too little: 25 - 14 > 10.
            stalled(0, 90, 114),
            // Two CPUs took half of the third frame each: neither took enough alone.
            stalled(0, 200, 212),
            stalled(1, 212, 224),
        ];
        let blame = Blame::of(4, &frames, &absences, 10);
        assert_eq!(blame, Blame { late: 4, steal: 0, stalled: 1, unexplained: 3 });
    }

    #[test]
    fn stolen_time_counts_only_where_it_certainly_was_in_the_frame() {
        let stolen = |least_ns| CpuAbsence { sign: Sign::Steal, cpu: 0, span: window(0, 20), least_ns };
        let of = |least| Blame::of(1, &[window(5, 25)], &[stolen(least)], 10).steal;
        // 5 ns of the span are outside the frame: of 14 ns stolen 9 are in it, of 15 ns 10.
        assert_eq!((of(14), of(15)), (0, 1));
    }

    #[test]
    fn a_late_frame_without_a_sign_is_unexplained() {
        assert_eq!(Blame::of(2, &[window(0, 50)], &[], 10).unexplained, 2);
        assert_eq!(Blame::of(0, &[], &[stalled(0, 0, 9)], 10), Blame::default());
    }

    proptest! {
        /// Compares with a count of single nanoseconds, in which absences lie outside the frame first.
        #[test]
        fn blame_equals_a_count_of_single_nanoseconds(
            cuts in prop::collection::btree_set(0u64..60, 2..12),
            shares in prop::collection::vec((0usize..2, 0u64..=60), 6),
            (from, length, deadline) in (0u64..50, 1u64..30, 0u64..20),
        ) {
            let frame = window(from, from + length);
            let cuts: Vec<u64> = cuts.into_iter().collect();
            let absences: Vec<CpuAbsence> = cuts.windows(2).zip(shares).map(|(cut, (cpu, least))| CpuAbsence {
                sign: Sign::Stalled, cpu, span: window(cut[0], cut[1]), least_ns: least.min(cut[1] - cut[0]),
            }).collect();
            let most = (0..2).map(|cpu| {
                let mut inside = BTreeSet::new();
                for a in absences.iter().filter(|a| a.cpu == cpu) {
                    let mut instants: Vec<u64> = (a.span.from..a.span.to).collect();
                    instants.sort_by_key(|ns| frame.holds(*ns));
                    inside.extend(instants.into_iter().take(a.least_ns as usize).filter(|ns| frame.holds(*ns)));
                }
                inside.len() as u64
            }).max().unwrap();
            let host = length - most <= deadline;
            let blame = Blame::of(1, &[frame], &absences, deadline);
            prop_assert_eq!(blame.stalled + blame.steal, u64::from(host));
            prop_assert_eq!(blame.unexplained, u64::from(!host));
        }
    }
}
