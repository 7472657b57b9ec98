//! When a flow must send less: CoDel (RFC 8289), for one flow.
//!
//! ```text
//!   sojourn ≥ target for a whole interval ──▶ drop, then again after interval/√2, interval/√3 ...
//!   sojourn < target, or no more than a frame is left ──▶ stop
//! ```
//!
//! The RFC's loop drops frames until one may go. Here each frame is judged by itself, just before it would
//! leave; judging the next frame after a drop is the loop's next turn. A mark (ECN) informs the sender like
//! a drop, and the frame leaves.

use super::Verdict;

/// A drop state left less than so many intervals ago continues at its rate (RFC 8289, 5.5).
const RESUMED: u64 = 16;

/// Parameters of the longest waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ControlLaw {
    /// Shortest wait that is too long (ns).
    pub(super) target: u64,
    /// How long it must have been too long (ns); below 2^32.
    pub(super) interval: u64,
    /// Bytes that may always wait: one frame of the largest size.
    pub(super) frame: u32,
}

impl ControlLaw {
    /// Whether a frame with `bytes` of its flow behind it may have waited for `sojourn` ns.
    #[inline]
    fn allows(&self, sojourn: u64, bytes: u64) -> bool {
        sojourn < self.target || bytes <= u64::from(self.frame)
    }

    /// Returns when the next drop is due after one at `time`, the `count`th in a row. Exact: rounded down
    /// once.
    fn next(&self, time: u64, count: u32) -> u64 {
        let interval = self.interval.min(u32::MAX.into());
        time.saturating_add((interval * interval / u64::from(count.max(1))).isqrt())
    }
}

/// The state of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Codel {
    /// When the wait will have been too long for an interval (ns); 0: it is not too long.
    first_above: u64,
    /// When the next drop is due (ns), while dropping.
    drop_next: u64,
    /// Drops since dropping began.
    count: u32,
    /// `count` at the beginning.
    last_count: u32,
    dropping: bool,
    /// A frame was dropped: the next drop follows the law if the next frame waited too long, too.
    dropped: bool,
}

impl Codel {
    /// The flow has no frame to judge: its wait is not too long.
    pub(super) fn empty(&mut self) {
        self.first_above = 0;
        self.dropping = false;
        self.dropped = false;
    }

    /// Judges a frame that has waited for `sojourn` ns, with `bytes` of its flow behind it.
    #[inline]
    pub(super) fn judge(
        &mut self,
        now: u64,
        sojourn: u64,
        bytes: u64,
        law: &ControlLaw,
        ect: impl FnOnce() -> bool,
    ) -> Verdict {
        if law.allows(sojourn, bytes) {
            // Nearly all frames.
            self.empty();
            return Verdict::Pass;
        }
        if !self.is_too_long(now, law) {
            self.dropping = false;
            self.dropped = false;
            return Verdict::Pass;
        }
        self.too_long(now, law, ect)
    }

    /// Whether [`judge`](Self::judge) would certainly pass such a frame, whatever its sender understands.
    /// Then it also passes a later one behind it at the same `now`.
    #[inline]
    pub(super) fn passes(&self, now: u64, sojourn: u64, bytes: u64, law: &ControlLaw) -> bool {
        law.allows(sojourn, bytes) || self.first_above == 0 || now < self.first_above
    }

    /// Whether frames have waited too long for an interval.
    fn is_too_long(&mut self, now: u64, law: &ControlLaw) -> bool {
        if self.first_above == 0 {
            self.first_above = now.saturating_add(law.interval);
            return false;
        }
        now >= self.first_above
    }

    fn too_long(&mut self, now: u64, law: &ControlLaw, ect: impl FnOnce() -> bool) -> Verdict {
        if !self.dropping {
            self.dropping = true;
            let delta = self.count.wrapping_sub(self.last_count);
            let resumed = delta > 1 && now.saturating_sub(self.drop_next) < RESUMED * law.interval;
            self.count = if resumed { delta } else { 1 };
            self.last_count = self.count;
            self.drop_next = law.next(now, self.count);
            return if ect() { Verdict::Mark } else { Verdict::Drop };
        }
        if std::mem::take(&mut self.dropped) {
            self.drop_next = law.next(self.drop_next, self.count);
        }
        if now < self.drop_next {
            return Verdict::Pass;
        }
        self.count = self.count.saturating_add(1);
        if ect() {
            self.drop_next = law.next(self.drop_next, self.count);
            return Verdict::Mark;
        }
        self.dropped = true;
        Verdict::Drop
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    /// RFC 8289, section 5, literally: a queue of frames, each a time and a size.
    #[derive(Default)]
    struct Rfc {
        queue: VecDeque<(u64, u32)>,
        first_above_time: u64,
        drop_next: u64,
        count: u32,
        lastcount: u32,
        dropping: bool,
    }

    impl Rfc {
        fn control_law(t: u64, count: u32, law: &ControlLaw) -> u64 {
            // The largest step whose square does not exceed interval^2 / count.
            let exact = law.interval as f64 / f64::from(count).sqrt();
            let mut step = exact as u64 + 2;
            while u128::from(step).pow(2) * u128::from(count) > u128::from(law.interval).pow(2) {
                step -= 1;
            }
            t + step
        }

        fn dodequeue(&mut self, now: u64, law: &ControlLaw) -> (Option<(u64, u32)>, bool) {
            let Some(p) = self.queue.pop_front() else {
                self.first_above_time = 0;
                return (None, false);
            };
            let bytes: u64 = self.queue.iter().map(|p| u64::from(p.1)).sum();
            let mut ok_to_drop = false;
            if now - p.0 < law.target || bytes <= u64::from(law.frame) {
                self.first_above_time = 0;
            } else if self.first_above_time == 0 {
                self.first_above_time = now + law.interval;
            } else if now >= self.first_above_time {
                ok_to_drop = true;
            }
            (Some(p), ok_to_drop)
        }

        /// Returns the frame that leaves, and the number dropped before.
        fn deque(&mut self, now: u64, law: &ControlLaw) -> (Option<(u64, u32)>, u32) {
            let (mut p, mut ok_to_drop) = self.dodequeue(now, law);
            let mut drops = 0;
            if self.dropping {
                if !ok_to_drop {
                    self.dropping = false;
                }
                while now >= self.drop_next && self.dropping {
                    drops += 1;
                    self.count += 1;
                    (p, ok_to_drop) = self.dodequeue(now, law);
                    if !ok_to_drop {
                        self.dropping = false;
                    } else {
                        self.drop_next = Self::control_law(self.drop_next, self.count, law);
                    }
                }
            } else if ok_to_drop {
                drops += 1;
                (p, _) = self.dodequeue(now, law);
                self.dropping = true;
                let delta = self.count - self.lastcount;
                self.count = 1;
                if delta > 1 && (now as i64 - self.drop_next as i64) < (16 * law.interval) as i64 {
                    self.count = delta;
                }
                self.drop_next = Self::control_law(now, self.count, law);
                self.lastcount = self.count;
            }
            (p, drops)
        }
    }

    /// The same queue, with each frame judged by itself.
    #[derive(Default)]
    struct Judged {
        queue: VecDeque<(u64, u32)>,
        codel: Codel,
    }

    impl Judged {
        fn deque(&mut self, now: u64, law: &ControlLaw) -> (Option<(u64, u32)>, u32) {
            let mut drops = 0;
            while let Some(&(since, bytes)) = self.queue.front() {
                let all: u64 = self.queue.iter().map(|p| u64::from(p.1)).sum();
                let verdict = self.codel.judge(now, now - since, all - u64::from(bytes), law, || false);
                self.queue.pop_front();
                match verdict {
                    Verdict::Drop => drops += 1,
                    _ => return (Some((since, bytes)), drops),
                }
            }
            self.codel.empty();
            (None, drops)
        }
    }

    const LAW: ControlLaw = ControlLaw {
        target: 5_000_000,
        interval: 100_000_000,
        frame: tidegate_contract::frame::FRAME as u32,
    };

    fn law() -> impl Strategy<Value = ControlLaw> {
        let any = (100_000..100_000_000u64, 2..40u64, 0..3000u32).prop_map(|(target, times, frame)| {
            ControlLaw { target, interval: (target * times).min(2_000_000_000), frame }
        });
        prop_oneof![Just(LAW), any]
    }

    /// Frame size, arrivals and departures per step, its length and number: lasting loads, so that drop
    /// states are entered, left, and entered once more.
    fn phases() -> impl Strategy<Value = Vec<(u32, u32, u64, u32)>> {
        let time = prop_oneof![10_000..300_000u64, 100_000..3_000_000u64];
        prop::collection::vec((0..4u32, 0..3u32, time, 1..400u32), 1..12)
    }

    proptest! {
        #[test]
        fn agrees_with_the_rfc(law in law(), phases in phases(), sizes in prop::collection::vec(60..1514u32, 1..9)) {
            let (mut rfc, mut judged) = (Rfc::default(), Judged::default());
            let mut now = 1_000_000_000;
            let mut sizes = sizes.iter().cycle();
            for (arrive, leave, time, times) in phases {
                for _ in 0..times {
                    now += time;
                    for _ in 0..arrive {
                        let frame = (now, *sizes.next().unwrap());
                        rfc.queue.push_back(frame);
                        judged.queue.push_back(frame);
                    }
                    for _ in 0..leave {
                        prop_assert_eq!(judged.deque(now, &law), rfc.deque(now, &law));
                        prop_assert_eq!(judged.codel.count, rfc.count);
                        prop_assert_eq!(judged.codel.last_count, rfc.lastcount);
                        // A loop that ends in a frame that may stay ends one frame earlier here.
                        prop_assert_eq!(judged.codel.first_above, rfc.first_above_time);
                    }
                }
            }
        }
    }

    /// Returns when a queue standing at 20 ms, with one frame a millisecond, informs its sender.
    fn verdicts(ect: bool, frames: u64) -> Vec<u64> {
        let mut codel = Codel::default();
        let mut told = Vec::new();
        for ms in 1..frames {
            let now = ms * 1_000_000;
            loop {
                match codel.judge(now, 20_000_000, 50_000, &LAW, || ect) {
                    Verdict::Pass => break,
                    verdict => {
                        assert_eq!(verdict == Verdict::Mark, ect);
                        told.push(ms);
                        if ect {
                            break;
                        }
                    }
                }
            }
        }
        told
    }

    #[test]
    fn a_standing_queue_gets_a_verdict_more_and_more_often() {
        // 100 ms after it began to stand; then after 100, 100/√2, 100/√3 ... ms.
        assert_eq!(verdicts(false, 440), [101, 201, 272, 330, 380, 425]);
        assert_eq!(verdicts(true, 440), verdicts(false, 440), "by marks as by drops");
    }

    #[test]
    fn a_short_queue_and_a_last_frame_get_no_verdict() {
        let mut codel = Codel::default();
        for ms in 0..1000u64 {
            let now = ms * 1_000_000;
            assert_eq!(codel.judge(now, 4_999_999, 1 << 20, &LAW, || false), Verdict::Pass);
            assert_eq!(codel.judge(now, 1 << 40, 1514, &LAW, || false), Verdict::Pass);
        }
    }

    #[test]
    fn one_frame_in_time_ends_the_dropping() {
        let mut codel = Codel::default();
        let mut at = |ms: u64, sojourn: u64| codel.judge(ms * 1_000_000, sojourn, 9_999, &LAW, || false);
        assert_eq!(at(1, 6_000_000), Verdict::Pass);
        assert_eq!(at(100, 4_000_000), Verdict::Pass);
        assert_eq!(at(101, 6_000_000), Verdict::Pass, "an interval begins");
        assert_eq!(at(200, 6_000_000), Verdict::Pass);
        assert_eq!(at(201, 6_000_000), Verdict::Drop);
    }
}
