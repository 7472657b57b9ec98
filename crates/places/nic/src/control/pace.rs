//! How long a period of the loop is: as short as the NIC bears.

use std::time::Duration;

/// The shortest and the longest period: 100 and 1 a second.
pub const SHORTEST: Duration = Duration::from_millis(10);
/// See [`SHORTEST`].
pub const LONGEST: Duration = Duration::from_secs(1);
/// A period is so many times what reading and setting take: a tenth of the time is spent on them.
pub const SPARE: u32 = 10;

/// How much one turn counts in the mean: one part in so many.
const MEMORY: u32 = 8;

/// Follows what reading and setting take, in the mean: reading is of every turn, setting of few, and just those are not
/// to make the next ones late.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    shortest: Duration,
    spare: u32,
    mean: Duration,
    period: Duration,
}

impl Pace {
    /// Periods from `shortest`, which is brought into [`SHORTEST`] to [`LONGEST`], of which a tenth may be spent.
    pub fn new(shortest: Duration) -> Self {
        let shortest = shortest.clamp(SHORTEST, LONGEST);
        Self { shortest, spare: SPARE, mean: Duration::ZERO, period: shortest }
    }

    /// The same, but one part in `spare` may be spent; at least one.
    pub fn spending_one_in(self, spare: u32) -> Self {
        Self { spare: spare.max(1), ..self }
    }

    /// Enters the time that a turn took for reading and setting; returns the new period.
    pub fn spent(&mut self, cost: Duration) -> Duration {
        self.mean = self.mean - self.mean / MEMORY + cost / MEMORY;
        let wanted = (self.mean * self.spare).clamp(self.shortest, LONGEST);
        // Small differences are noise, and a steady period makes steady samples.
        if wanted > self.period || wanted < self.period / 4 * 3 {
            self.period = wanted;
        }
        self.period
    }

    /// The period to keep.
    pub fn period(&self) -> Duration {
        self.period
    }

    /// Whether even the longest period is too short for this NIC.
    pub fn too_slow(&self) -> bool {
        self.mean * self.spare > LONGEST
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn spend(pace: &mut Pace, turns: usize, cost: Duration) {
        for _ in 0..turns {
            pace.spent(cost);
        }
    }

    #[test]
    fn the_loop_spends_a_tenth_of_the_time() {
        let settled = |mut pace: Pace, cost| {
            spend(&mut pace, 100, cost);
            (pace.period().as_millis(), pace.too_slow())
        };
        assert_eq!(Pace::new(ms(10)).period(), ms(10));
        assert!(matches!(settled(Pace::new(ms(10)), ms(5)), (48..=50, false)));
        assert_eq!(settled(Pace::new(ms(10)), ms(300)), (1000, true));
        assert_eq!(settled(Pace::new(ms(50)), ms(1)), (50, false));
        assert!(matches!(settled(Pace::new(ms(10)).spending_one_in(2), ms(50)), (95..=100, false)));
        assert_eq!(Pace::new(ms(1)).period(), SHORTEST);
        assert_eq!(Pace::new(ms(9000)).period(), LONGEST);
    }

    #[test]
    fn one_slow_turn_is_soon_forgotten() {
        let mut pace = Pace::new(ms(20));
        spend(&mut pace, 50, ms(1));
        assert!(pace.spent(ms(100)) < ms(150));
        spend(&mut pace, 20, ms(1));
        assert!(pace.period() < ms(30), "{:?}", pace.period());
    }

    proptest! {
        #[test]
        fn the_loop_never_spends_more_than_its_part_in_the_long_run(
            costs in prop::collection::vec(0u64..95, 1..200), shortest in 0u64..2000,
        ) {
            let mut pace = Pace::new(ms(shortest));
            let (mut spent, mut passed) = (ms(0), ms(0));
            for cost in costs {
                let period = pace.spent(ms(cost));
                prop_assert!((SHORTEST..=LONGEST).contains(&period));
                (spent, passed) = (spent + ms(cost), passed + period);
                prop_assert!(spent <= passed / SPARE + ms(95) * MEMORY, "{spent:?} of {passed:?}");
            }
        }
    }
}
