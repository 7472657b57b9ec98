//! How many misses of each vNIC are examined when there are too many. Pure.
//!
//! ```text
//!  new misses   voice 3   web 32   bulk 32   ──▶ 40 at most ──▶ 3, 19, 18
//! ```
//!
//! A vNIC with constant misses takes nothing from one with a few.

/// Returns how many misses of each vNIC are examined, with `new` ones each and `most` in all. A vNIC that
/// gets fewer than its new ones gets at most one fewer than any other. The indivisible rest goes to the
/// vNICs from `first` on; callers rotate it.
pub fn quotas(new: &[usize], most: usize, first: usize) -> Vec<usize> {
    let count = new.len().max(1);
    let mut order: Vec<usize> = (0..new.len()).collect();
    order.sort_by_key(|at| (new[*at], (at + count - first % count) % count));
    let mut quotas = vec![0; new.len()];
    let mut remaining = most;
    // The vNIC with the fewest first: its rest is for the others.
    for (done, at) in order.iter().enumerate() {
        quotas[*at] = new[*at].min(remaining.div_ceil(new.len() - done));
        remaining -= quotas[*at];
    }
    quotas
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_vnic_with_many_misses_takes_no_quota_from_a_vnic_with_few() {
        let tenants = [32, 32, 32, 32, 1, 3];
        assert_eq!(quotas(&tenants, 128, 0), [31, 31, 31, 31, 1, 3]);
        assert_eq!(quotas(&[3, 32, 32], 40, 0), [3, 19, 18]);
        assert_eq!(quotas(&[3, 32, 32], 40, 2), [3, 18, 19]);
        assert_eq!(quotas(&[5, 0], 128, 7), [5, 0]);
        assert!(quotas(&[], 128, 1).is_empty());
    }

    proptest! {
        #[test]
        fn quotas_give_out_all_room_in_equal_shares(
            new in prop::collection::vec(0usize..40, 0..12),
            most in 0usize..200,
            first in 0usize..30,
        ) {
            let quotas = quotas(&new, most, first);
            prop_assert_eq!(quotas.iter().sum::<usize>(), most.min(new.iter().sum()));
            for (quota, new) in quotas.iter().zip(&new) {
                prop_assert!(quota <= new);
                if quota < new {
                    prop_assert!(quotas.iter().all(|other| *other <= quota + 1), "{:?}", quotas);
                }
            }
        }

        /// If even one each is too much, each has its turn.
        #[test]
        fn no_vnic_is_left_out_for_ever(count in 1usize..20, most in 1usize..20) {
            let mut had = vec![0; count];
            for first in 0..count {
                let quotas = quotas(&vec![1; count], most, first);
                had.iter_mut().zip(quotas).for_each(|(had, quota)| *had += quota);
            }
            prop_assert!(had.iter().all(|had| *had == most.min(count)), "{:?}", had);
        }
    }
}
