//! As many items as fit together, in few tries. Pure.
//!
//! ```text
//!  all fit? ─ yes ─▶ done, in one try
//!     └ no ─▶ the first half fits? ─▶ … ─▶ one that does not fit: declined, with the reason
//!              then the second half beside it ─▶ …
//! ```
//!
//! One item of n that does not fit takes about 2 log n tries. Earlier items come first: of two that do not fit together,
//! the later one is declined.

/// What fits.
#[derive(Debug)]
pub struct Fitted<T> {
    /// Fits together.
    pub kept: Vec<T>,
    /// Does not fit beside these, and why. Of an item that has a weaker form, that one may be kept.
    pub declined: Vec<(T, String)>,
}

/// Fits `items`, with at most `most` tries: what is not known to fit then is declined. An item that does not fit is tried
/// in its `weaker` form.
pub fn fit<T: Clone>(
    items: Vec<T>,
    most: usize,
    weaker: impl Fn(&T) -> Option<T>,
    mut fits: impl FnMut(&[T]) -> Result<(), String>,
) -> Fitted<T> {
    let mut left = most;
    let mut fitted = Fitted { kept: Vec::new(), declined: Vec::new() };
    let mut open = vec![items];
    while let Some(mut chunk) = open.pop() {
        if chunk.is_empty() {
            continue;
        }
        let mut trial = |kept: &[T], more: &[T]| -> Result<(), String> {
            left = left.checked_sub(1).ok_or("it is still to be tried, after others that do not fit")?;
            fits(&[kept, more].concat())
        };
        match trial(&fitted.kept, &chunk) {
            Ok(()) => fitted.kept.append(&mut chunk),
            Err(why) if chunk.len() == 1 => {
                let item = chunk.remove(0);
                if let Some(weaker) = weaker(&item)
                    && trial(&fitted.kept, std::slice::from_ref(&weaker)).is_ok()
                {
                    fitted.kept.push(weaker);
                }
                fitted.declined.push((item, why));
            }
            Err(_) => {
                let second = chunk.split_off(chunk.len() / 2);
                open.extend([second, chunk]);
            }
        }
    }
    fitted
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Items are kept as if they were tried one by one, and few tries suffice.
        #[test]
        fn equals_one_by_one(sizes in prop::collection::vec(0u64..100, 0..60), room in 0u64..2000) {
            let fits = |items: &[u64]| {
                let sum: u64 = items.iter().sum();
                if sum <= room { Ok(()) } else { Err(format!("{sum} of {room}")) }
            };
            let mut one_by_one = Vec::new();
            for size in &sizes {
                one_by_one.push(*size);
                if fits(&one_by_one).is_err() {
                    one_by_one.pop();
                }
            }
            let mut tries = 0;
            let fitted = fit(sizes.clone(), 1000, |_| None, |items| { tries += 1; fits(items) });
            prop_assert_eq!(fitted.kept.len() + fitted.declined.len(), sizes.len());
            prop_assert!(tries <= 1 + 14 * fitted.declined.len());
            prop_assert_eq!(fitted.kept, one_by_one);
        }

        #[test]
        fn tries_are_bounded(count in 0usize..200, most in 0usize..20) {
            let mut tries = 0;
            let fitted = fit(vec![1u8; count], most, |_| Some(0), |_| { tries += 1; Err("never".into()) });
            prop_assert!(tries <= most);
            prop_assert_eq!((fitted.kept.len(), fitted.declined.len()), (0, count));
        }
    }

    #[test]
    fn an_item_that_does_not_fit_may_fit_in_a_weaker_form() {
        let fits =
            |items: &[i32]| if items.iter().all(|item| *item <= 5) { Ok(()) } else { Err("too much".into()) };
        let fitted = fit(vec![1, 9, 3, 40], 100, |item| (*item < 20).then_some(0), fits);
        assert_eq!(fitted.kept, [1, 0, 3]);
        assert_eq!(fitted.declined, [(9, "too much".into()), (40, "too much".into())]);
    }
}
