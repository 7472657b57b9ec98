//! Whether a machine can tell two placements apart. Pure.
//!
//! ```text
//!  rounds: (together, apart), (together, apart), ... ─▶ differences ─▶ median, spread ─▶ told apart, or not
//! ```

use serde::{Deserialize, Serialize};

/// Fewest rounds of which anything is said.
pub const FEWEST: usize = 5;
/// Smaller differences are not told apart, of the smaller median.
const LEAST: f64 = 0.02;

/// Two placements compared; values are costs, so less is better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// Median of the first, ns.
    pub together: f64,
    /// Median of the second, ns.
    pub apart: f64,
    /// Median of the rounds' differences, first less second, ns.
    pub difference: f64,
    /// Half of the range that the middle half of the differences covers, ns.
    pub spread: f64,
    /// Number of rounds.
    pub rounds: usize,
    /// Whether the difference is beyond the spread: seven of eight rounds agree on its sign, the median is larger than the spread,
    /// and 2 % of the value.
    pub told_apart: bool,
}

/// Compares two placements, measured in turns.
pub fn judge(rounds: &[(f64, f64)]) -> Judged {
    let mut together: Vec<f64> = rounds.iter().map(|(one, _)| *one).collect();
    let mut apart: Vec<f64> = rounds.iter().map(|(_, other)| *other).collect();
    let mut differences: Vec<f64> = rounds.iter().map(|(one, other)| one - other).collect();
    let (together, apart) = (median(&mut together), median(&mut apart));
    let difference = median(&mut differences);
    let spread = (quantile(&differences, 0.75) - quantile(&differences, 0.25)) / 2.0;
    let agree = differences.iter().filter(|d| **d != 0.0 && (**d > 0.0) == (difference > 0.0)).count();
    let told_apart = rounds.len() >= FEWEST
        && agree * 8 >= rounds.len() * 7
        && difference.abs() > spread
        && difference.abs() >= LEAST * together.min(apart);
    Judged { together, apart, difference, spread, rounds: rounds.len(), told_apart }
}

/// Returns the median, and sorts the values; 0 if there are none.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    quantile(values, 0.5)
}

/// Returns the value below which `part` of the sorted values lie, between two of them by their distance.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let at = part * last as f64;
    let (low, high) = (at.floor() as usize, at.ceil() as usize);
    sorted[low] + (sorted[high] - sorted[low]) * (at - low as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn clear_differences_are_told_apart_and_noise_is_not() {
        let clear: Vec<_> = (0..9).map(|n| (1_000.0 + f64::from(n), 500.0 - f64::from(n))).collect();
        let found = judge(&clear);
        assert!(found.told_apart && found.difference > 400.0, "{found:?}");
        // One disturbed round of nine does no harm; two do.
        let mut disturbed = clear.clone();
        disturbed[3] = (500.0, 9_000.0);
        assert!(judge(&disturbed).told_apart);
        disturbed[5] = (500.0, 9_000.0);
        assert!(!judge(&disturbed).told_apart);
        let noise = [(10.0, 11.0), (12.0, 9.0), (10.0, 10.0), (9.0, 11.0), (11.0, 10.0)];
        assert!(!judge(&noise).told_apart);
        assert!(!judge(&clear[..4]).told_apart, "too few rounds");
        assert_eq!(judge(&[]), Judged::default());
    }

    proptest! {
        /// Which placement comes first does not matter, and equal ones are never told apart.
        #[test]
        fn it_is_symmetric(rounds in prop::collection::vec((1.0..1e6_f64, 1.0..1e6_f64), 0..20)) {
            let swapped: Vec<_> = rounds.iter().map(|(one, other)| (*other, *one)).collect();
            let (found, other) = (judge(&rounds), judge(&swapped));
            prop_assert_eq!(found.told_apart, other.told_apart);
            prop_assert!((found.difference + other.difference).abs() < 1e-6 * 1e6);
            prop_assert!(found.spread >= 0.0);
            let same: Vec<_> = rounds.iter().map(|(one, _)| (*one, *one)).collect();
            prop_assert!(!judge(&same).told_apart);
        }
    }
}
