//! How long a period of the loop is: as short as the NIC bears.

use std::time::Duration;

/// The shortest and the longest period: 100 and 1 a second.
pub const SHORTEST: Duration = Duration::from_millis(10);
/// See [`SHORTEST`].
pub const LONGEST: Duration = Duration::from_secs(1);
/// A period is so many times what reading and setting take: a tenth of the time is spent on them.
pub const SPARE: u32 = 10;

/// Follows what reading and setting take: at once when it is more, slowly when it is less.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    shortest: Duration,
    spare: u32,
    cost: Duration,
    period: Duration,
}

impl Pace {
    /// Periods from `shortest`, which is brought into [`SHORTEST`] to [`LONGEST`], of which a tenth may be spent.
    pub fn new(shortest: Duration) -> Self {
        let shortest = shortest.clamp(SHORTEST, LONGEST);
        Self { shortest, spare: SPARE, cost: Duration::ZERO, period: shortest }
    }

    /// The same, but one part in `spare` may be spent; at least one.
    pub fn spending_one_in(self, spare: u32) -> Self {
        Self { spare: spare.max(1), ..self }
    }

    /// Takes what a turn took, reading and setting; returns the period to keep from now on.
    pub fn spent(&mut self, cost: Duration) -> Duration {
        // An eighth a turn: what one turn took extra, such as setting many limits, is gone after a few seconds.
        self.cost = if cost > self.cost { cost } else { self.cost - (self.cost - cost) / 8 };
        let wanted = (self.cost * self.spare).clamp(self.shortest, LONGEST);
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

    /// Whether even the longest period is too short for what this NIC takes.
    pub fn too_slow(&self) -> bool {
        self.cost * self.spare > LONGEST
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn a_tenth_is_spent() {
        let mut pace = Pace::new(ms(10));
        assert_eq!(pace.period(), ms(10));
        assert_eq!(pace.spent(ms(5)), ms(50));
        assert_eq!(pace.spent(ms(300)), LONGEST);
        assert!(pace.too_slow());
        for _ in 0..100 {
            pace.spent(ms(1));
        }
        assert!(!pace.too_slow());
        assert!(pace.period() <= ms(14), "{:?}", pace.period());
        assert_eq!(Pace::new(ms(1)).period(), SHORTEST);
        assert_eq!(Pace::new(ms(9000)).period(), LONGEST);
        assert_eq!(Pace::new(ms(10)).spending_one_in(2).spent(ms(50)), ms(100));
    }

    proptest! {
        #[test]
        fn never_more_than_its_part(costs in prop::collection::vec(0u64..200, 1..50), shortest in 0u64..2000) {
            let mut pace = Pace::new(ms(shortest));
            for cost in costs {
                let period = pace.spent(ms(cost));
                prop_assert!((SHORTEST..=LONGEST).contains(&period));
                prop_assert!(period >= (ms(cost) * SPARE).min(LONGEST));
            }
        }
    }
}
