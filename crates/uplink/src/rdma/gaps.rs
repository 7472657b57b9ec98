//! Counts lost datagrams of one sending queue pair.
//!
//! ```text
//!              64 numbers
//!  ───────────┬───────────────┬──▶ sequence
//!             │ 1 1 0 1 … 1 1 │ newest      Ahead { missing }: numbers that were left out
//!             └───────────────┘             Late: one of those came after all
//! ```
//!
//! Lost are all `missing` less all `Late`: two sums that only grow. For diagnosis, not for accounting: a host that can
//! use a peer's address can send any numbers.

/// Numbers that are remembered.
pub const WINDOW: u32 = 64;
/// Most numbers that one step leaves out: a longer step is taken for a new sender's.
pub const MISSING_MAX: u32 = 1 << 24;

/// The numbers of one sending queue pair's datagrams that have arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gaps {
    /// The number that comes next; `None` before the first.
    next: Option<u32>,
    /// Bit n: number `next - 1 - n` has arrived, or comes before the first.
    arrived: u64,
}

/// How a datagram's number relates to those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The newest so far.
    Ahead {
        /// Numbers between the newest one before and this one: 0 to [`MISSING_MAX`].
        missing: u32,
    },
    /// One of the numbers that were missing.
    Late,
    /// It has arrived before.
    Again,
    /// The first one, or one far from those before: a sender that began to count anew.
    Anew,
}

impl Gaps {
    /// Records the arrival of a number.
    #[inline]
    pub fn arrive(&mut self, sequence: u32) -> Step {
        let Some(next) = self.next else { return self.begin(sequence) };
        // Serial numbers (RFC 1982): the lower half of the circle is ahead.
        let missing = sequence.wrapping_sub(next);
        if missing <= MISSING_MAX {
            self.next = Some(sequence.wrapping_add(1));
            self.arrived = self.arrived.checked_shl(missing + 1).unwrap_or(0) | 1;
            return Step::Ahead { missing };
        }
        let behind = next.wrapping_sub(sequence) - 1;
        if behind >= WINDOW {
            return self.begin(sequence);
        }
        let bit = 1 << behind;
        let step = if self.arrived & bit == 0 { Step::Late } else { Step::Again };
        self.arrived |= bit;
        step
    }

    fn begin(&mut self, sequence: u32) -> Step {
        *self = Self { next: Some(sequence.wrapping_add(1)), arrived: u64::MAX };
        Step::Anew
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// What became of one datagram on its way.
    #[derive(Clone, Copy, Debug)]
    enum Fate {
        Arrives,
        Lost,
        /// It arrives after so many others.
        Overtaken(usize),
        Doubled,
    }

    fn fates() -> impl Strategy<Value = Vec<Fate>> {
        let fate = prop_oneof![
            6 => Just(Fate::Arrives),
            2 => Just(Fate::Lost),
            1 => (1..20usize).prop_map(Fate::Overtaken),
            1 => Just(Fate::Doubled),
        ];
        prop::collection::vec(fate, 1..300)
    }

    /// Returns the order in which numbers from 0 on arrive. The first arrives first.
    fn arrivals(fates: &[Fate]) -> Vec<u64> {
        let mut places = vec![(0, 0)];
        for (number, fate) in (1u64..).zip(fates) {
            let place = number as usize;
            match fate {
                Fate::Arrives => places.push((place, number)),
                Fate::Lost => {}
                Fate::Overtaken(by) => places.push((place + by, number)),
                Fate::Doubled => places.extend([(place, number), (place + 3, number)]),
            }
        }
        places.sort_by_key(|(place, _)| *place);
        places.into_iter().map(|(_, number)| number).collect()
    }

    proptest! {
        /// Against a set of all numbers that came; also across the end of 32 bits.
        #[test]
        fn losses_are_those_of_a_set(fates in fates(), start in prop_oneof![Just(0), Just(u32::MAX - 20), any::<u32>()]) {
            let (mut gaps, mut seen) = (Gaps::default(), BTreeSet::new());
            let (mut missing, mut late) = (0u64, 0u64);
            for number in arrivals(&fates) {
                let step = gaps.arrive(start.wrapping_add(number as u32));
                let newest = seen.last().copied();
                let is_new = seen.insert(number);
                match step {
                    Step::Anew => prop_assert_eq!(newest, None),
                    Step::Ahead { missing: more } => {
                        prop_assert!(newest.is_some_and(|newest| number > newest));
                        missing += u64::from(more);
                    }
                    Step::Late => {
                        prop_assert!(is_new && newest.is_some_and(|newest| number < newest));
                        late += 1;
                    }
                    Step::Again => prop_assert!(!is_new),
                }
                let lost = seen.last().unwrap() + 1 - seen.len() as u64;
                prop_assert_eq!(missing - late, lost);
            }
        }

        #[test]
        fn any_numbers_are_taken(numbers in prop::collection::vec(any::<u32>(), 0..100)) {
            let mut gaps = Gaps::default();
            for number in numbers {
                if let Step::Ahead { missing } = gaps.arrive(number) {
                    prop_assert!(missing <= MISSING_MAX);
                }
                prop_assert_eq!(gaps.arrive(number), Step::Again);
            }
        }
    }

    #[test]
    fn a_step_out_of_reach_is_a_new_senders() {
        let mut gaps = Gaps::default();
        assert_eq!(gaps.arrive(1000), Step::Anew);
        assert_eq!(gaps.arrive(1000 - WINDOW), Step::Anew, "its 64th predecessor is forgotten");
        assert_eq!(gaps.arrive(1000 - WINDOW + 1 + MISSING_MAX), Step::Ahead { missing: MISSING_MAX });
        let next = 1000 - WINDOW + 2 + MISSING_MAX;
        assert_eq!(gaps.arrive(next + MISSING_MAX + 1), Step::Anew);
        assert_eq!(gaps.arrive(0), Step::Anew);
        assert_eq!(
            gaps.arrive(u32::MAX),
            Step::Again,
            "what came before the first is not known to be missing"
        );
    }

    #[test]
    fn a_number_that_was_missing_comes_late_once() {
        let mut gaps = Gaps::default();
        let steps = [7, 10, 8, 8, 9, 11].map(|number| gaps.arrive(number));
        let ahead = |missing| Step::Ahead { missing };
        assert_eq!(steps, [Step::Anew, ahead(2), Step::Late, Step::Again, Step::Late, ahead(0)]);
    }
}
