//! The end of tables that were replaced: nothing is destroyed while the device uses it. Not for workers.
//!
//! ```text
//!  set_rdma(new) ─▶ old ─ Retiring ─▶ pairs that are not in the new one fail ─▶ sends under way end ─▶ old is freed
//!                                                                                └ 2 s without end ─▶ stuck
//! ```

use super::counters::Counters;
use super::members::Tables;
use std::sync::Arc;

/// Longest wait for the ends of sends (ns).
const LONGEST: u64 = 2_000_000_000;

/// Replaced tables of a link. Dropped while the device may still read them, they are leaked.
#[derive(Debug)]
pub struct Retiring {
    old: Option<Arc<Tables>>,
    counters: Arc<Counters>,
    began: u64,
}

/// What became of replaced tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retired {
    /// The device is done with them.
    Yes,
    /// The device still completes what was sent by them.
    NotYet,
    /// The device does not complete it.
    Stuck,
}

impl Retiring {
    /// Begins at `now` (ns) to free replaced tables, with the address handles and queue pairs that are not in `new`.
    pub fn begin(old: Arc<Tables>, new: &Tables, counters: &Arc<Counters>, now: u64) -> Self {
        let stays = |port, number| new.pair(port).is_some_and(|pair| pair.number() == number);
        for pair in old.pairs().iter().filter(|pair| !stays(pair.port, pair.number())) {
            // A device that is gone completes nothing, and reads nothing.
            let _ = pair.fail();
        }
        Self { old: Some(old), counters: counters.clone(), began: now }
    }

    /// Frees the tables if the device is done with what was sent by them, which the link's worker notes within microseconds. Only
    /// one set of a link retires at a time: the worker counts the sends of all replaced ones together.
    pub fn look(&mut self, now: u64) -> Retired {
        match self.counters.replaced.get() {
            0 => {
                self.old = None;
                Retired::Yes
            }
            _ if now.saturating_sub(self.began) <= LONGEST => Retired::NotYet,
            _ => Retired::Stuck,
        }
    }
}

impl Drop for Retiring {
    fn drop(&mut self) {
        if self.counters.replaced.get() > 0 {
            std::mem::forget(self.old.take());
        }
    }
}
