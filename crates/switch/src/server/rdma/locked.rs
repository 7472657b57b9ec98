//! Locked memory that guests may have, and what they leave to queue pairs.
//!
//! ```text
//!  limit of the process (RLIMIT_MEMLOCK) ─▶ Budget ─ take ─▶ Locked, as long as a guest's memory is registered
//!                                             ▲                └ dropped: given back
//!                                             └ never taken: SPARE
//! ```

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that guests leave to queue pairs and their buffers, if there is a limit: almost twice what one uplink with all
/// its queue pairs has (66 MiB). So no guest keeps other vNICs from RDMA.
const SPARE: u64 = 128 << 20;

/// The locked memory of all guests.
#[derive(Debug, Default)]
pub(super) struct Budget {
    /// Bytes that are taken.
    taken: Mutex<u64>,
    /// Most bytes that the process may lock; `None` without a limit.
    limit: Option<u64>,
}

/// Bytes of locked memory. Given back by its drop.
#[derive(Debug)]
pub(super) struct Locked {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Budget {
    /// Returns that of a process that may lock so many bytes; `None`: without a limit.
    pub(super) fn new(limit: Option<u64>) -> Arc<Self> {
        Arc::new(Self { limit, ..Self::default() })
    }

    /// Takes `bytes`.
    ///
    /// # Errors
    /// Guests would have too much: the limit.
    pub(super) fn take(self: &Arc<Self>, bytes: u64) -> Result<Locked, u64> {
        let mut taken = self.taken();
        let after = taken.saturating_add(bytes);
        if let Some(limit) = self.limit.filter(|limit| after > limit.saturating_sub(SPARE)) {
            return Err(limit);
        }
        *taken = after;
        Ok(Locked { budget: self.clone(), bytes })
    }

    fn taken(&self) -> MutexGuard<'_, u64> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        *self.budget.taken() -= self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Guests never have more of the limit than queue pairs leave, and give all back.
        #[test]
        fn locked_memory_is_left_for_queue_pairs(
            wishes in prop::collection::vec((0..SPARE, any::<bool>()), 0..40),
            limit in prop::option::of(0..SPARE * 8),
        ) {
            let budget = Budget::new(limit);
            let mut taken: Vec<Locked> = vec![];
            for (bytes, gives_back) in wishes {
                if gives_back {
                    taken.pop();
                }
                let before: u64 = taken.iter().map(|locked| locked.bytes).sum();
                let fits = limit.is_none_or(|limit| before + bytes + SPARE <= limit);
                let got = budget.take(bytes);
                // Nothing fits into any limit.
                prop_assert!(got.is_ok() == fits || bytes + before == 0);
                taken.extend(got);
            }
            drop(taken);
            prop_assert_eq!(*budget.taken(), 0);
        }
    }
}
