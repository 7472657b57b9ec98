//! Which frames of one sender have arrived: no stamped frame is accepted twice.
//!
//! ```text
//!              128 numbers
//!  ──── lost ─┬───────────────┬──▶ sequence
//!             │ 1 1 0 1 … 1 1 │ newest
//!             └───────────────┘
//! ```
//!
//! A sender numbers the frames of a pair (vNIC, remote) in the order of their Ts. So a frame with a later Ts than all
//! others is no replay, even with a lower number: its sender has restarted. The window accepts a frame with an earlier
//! Ts once, if neither its number nor its Ts lies before the window. The Ts tells a number of this round from the same
//! number of an earlier start, or of an earlier round through all 2^32 numbers.

/// Numbers in the window: a frame that 128 later ones have overtaken is not accepted.
pub const WINDOW: u32 = 128;

/// The arrived sequence numbers of one sender.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Ts of the newest frame (ns); `None` before the first.
    newest_sent: Option<u64>,
    /// Number of the newest frame.
    newest: u32,
    /// Bit n: number `newest - n` has arrived, or comes before the sender's first known frame.
    arrived: u128,
    /// No frame in the window has an earlier Ts (ns).
    oldest_sent: u64,
    /// Number and Ts (ns) of a frame that becomes `oldest_sent` when the window has passed it.
    mark: (u32, u64),
    /// Numbers that left the window without an arrival.
    lost: u64,
}

/// How a frame's number and Ts relate to those of the frames before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The newest frame so far.
    InOrder,
    /// A frame that later ones have overtaken.
    Reordered,
    /// The first frame of a sender that has started to count anew.
    Restarted,
    /// Refused: this frame has arrived before.
    Replayed,
    /// Refused: its number or its Ts lies before the window.
    TooOld,
    /// Refused: a higher number with an earlier Ts, which no sender makes.
    Contradiction,
}

impl Arrival {
    /// Whether the frame is delivered.
    pub const fn is_accepted(self) -> bool {
        matches!(self, Self::InOrder | Self::Reordered | Self::Restarted)
    }
}

impl Window {
    /// Records the arrival of a frame with a valid tag.
    #[inline]
    pub fn arrive(&mut self, sequence: u32, sent_ns: u64) -> Arrival {
        let Some(newest_sent) = self.newest_sent else {
            self.begin(sequence, sent_ns);
            return Arrival::InOrder;
        };
        // Serial numbers (RFC 1982): the lower half of the circle is ahead.
        let ahead = sequence.wrapping_sub(self.newest);
        if (1..1 << 31).contains(&ahead) {
            if sent_ns < newest_sent {
                return Arrival::Contradiction;
            }
            self.advance(ahead);
            self.newest = sequence;
            self.newest_sent = Some(sent_ns);
            let (number, mark_sent) = self.mark;
            if sequence.wrapping_sub(number) >= WINDOW {
                self.oldest_sent = mark_sent;
                self.mark = (sequence, sent_ns);
            }
            return Arrival::InOrder;
        }
        if sent_ns > newest_sent {
            self.lost += self.missing();
            self.begin(sequence, sent_ns);
            return Arrival::Restarted;
        }
        let behind = ahead.wrapping_neg();
        if behind >= WINDOW || sent_ns < self.oldest_sent {
            return Arrival::TooOld;
        }
        let bit = 1u128 << behind;
        if self.arrived & bit != 0 {
            return Arrival::Replayed;
        }
        self.arrived |= bit;
        Arrival::Reordered
    }

    /// Returns the Ts of the newest frame (ns); `None` before the first.
    #[inline]
    pub const fn newest_sent(&self) -> Option<u64> {
        self.newest_sent
    }

    /// Counts frames that were sent and cannot arrive any more, from the first arrived frame on.
    pub const fn lost(&self) -> u64 {
        self.lost
    }

    fn begin(&mut self, sequence: u32, sent_ns: u64) {
        self.newest = sequence;
        self.newest_sent = Some(sent_ns);
        self.arrived = u128::MAX;
        self.oldest_sent = sent_ns;
        self.mark = (sequence, sent_ns);
    }

    /// Moves the window's end by `steps`, 1 to 2^31 - 1.
    fn advance(&mut self, steps: u32) {
        if steps >= WINDOW {
            self.lost += self.missing() + u64::from(steps - WINDOW);
            self.arrived = 1;
        } else {
            let leaving = self.arrived >> (WINDOW - steps);
            self.lost += u64::from(steps) - u64::from(leaving.count_ones());
            self.arrived = self.arrived << steps | 1;
        }
    }

    /// Counts the numbers in the window that have not arrived.
    fn missing(&self) -> u64 {
        u64::from(self.arrived.count_zeros())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// What happens to a frame on its way.
    #[derive(Clone, Copy, Debug)]
    enum Fate {
        Lost,
        Arrives,
        /// So many later frames overtake it.
        Delayed(usize),
        /// Arrives, and once more after so many frames.
        Replayed(usize),
    }

    fn fate() -> impl Strategy<Value = Fate> {
        prop_oneof![
            4 => Just(Fate::Arrives),
            1 => Just(Fate::Lost),
            1 => (1usize..100).prop_map(Fate::Delayed),
            1 => (0usize..300).prop_map(Fate::Replayed),
        ]
    }

    /// The arrivals in their order: index of the frame, and whether it is a replay.
    fn arrivals(fates: &[Fate]) -> Vec<(usize, bool)> {
        let mut at: Vec<(usize, usize, bool)> = Vec::new();
        for (n, fate) in fates.iter().enumerate() {
            match *fate {
                Fate::Lost => {}
                Fate::Arrives => at.push((n, n, false)),
                Fate::Delayed(by) => at.push((n + by, n, false)),
                Fate::Replayed(after) => at.extend([(n, n, false), (n + after, n, true)]),
            }
        }
        at.sort();
        at.into_iter().map(|(_, n, replay)| (n, replay)).collect()
    }

    proptest! {
        /// Against a set of all frames that arrived: no replay is accepted, each frame is, and what is lost is counted.
        #[test]
        fn each_frame_is_accepted_once(
            start in prop_oneof![any::<u32>(), Just(u32::MAX - 50)],
            fates in prop::collection::vec(fate(), 1..600),
            together in 1u64..5,
        ) {
            let mut window = Window::default();
            let arriving = arrivals(&fates);
            let first = arriving.first().map_or(fates.len(), |&(n, _)| n);
            for &(n, replay) in &arriving {
                // Frames of one poll share their Ts.
                let arrival = window.arrive(start.wrapping_add(n as u32), n as u64 / together);
                if replay {
                    prop_assert!(!arrival.is_accepted(), "frame {} twice: {:?}", n, arrival);
                } else if n >= first {
                    prop_assert!(arrival.is_accepted(), "frame {}: {:?}", n, arrival);
                }
            }
            // 128 more frames push every other number out of the window.
            for n in fates.len()..fates.len() + 128 {
                window.arrive(start.wrapping_add(n as u32), n as u64 / together);
            }
            let lost = fates[first..].iter().filter(|f| matches!(f, Fate::Lost)).count();
            prop_assert_eq!(window.lost(), lost as u64);
        }

        /// Frames of any numbers and times, in any order: none twice.
        #[test]
        fn no_frame_is_accepted_twice(frames in prop::collection::vec((0u32..300, 0u64..40), 1..400)) {
            let mut window = Window::default();
            let mut accepted = BTreeSet::new();
            for (sequence, sent) in frames {
                if window.arrive(sequence, sent).is_accepted() {
                    prop_assert!(accepted.insert((sequence, sent)), "{} at {} twice", sequence, sent);
                }
            }
        }
    }

    #[test]
    fn a_sender_that_restarts_is_accepted_and_its_old_frames_are_not() {
        let mut window = Window::default();
        for n in 0..1000 {
            window.arrive(n, u64::from(n));
        }
        assert_eq!(window.arrive(0, 2000), Arrival::Restarted);
        assert_eq!(window.arrive(1, 2001), Arrival::InOrder);
        assert_eq!(window.arrive(999, 999), Arrival::Contradiction);
        assert_eq!(window.arrive(1, 2001), Arrival::Replayed);
        assert_eq!(window.lost(), 0);
    }

    #[test]
    fn a_frame_from_long_ago_is_too_old() {
        let mut window = Window::default();
        for n in (0..1000).filter(|n| *n != 500) {
            window.arrive(n, u64::from(n));
        }
        assert_eq!(window.arrive(500, 500), Arrival::TooOld);
        assert_eq!(window.lost(), 1);
        assert_eq!(window.arrive(2_000_000, 3000), Arrival::InOrder);
        assert_eq!(window.lost(), 1 + 1_999_000 - 127);
    }
}
