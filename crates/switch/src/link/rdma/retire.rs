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

/// Replaced tables of a link. Dropped while the device may still read them, they are leaked, unless the link is gone, so
/// that their queue pairs end with them.
#[derive(Debug)]
pub struct Retiring {
    old: Option<Arc<Tables>>,
    counters: Arc<Counters>,
    began: u64,
    is_stuck: bool,
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
        Self { old: Some(old), counters: counters.clone(), began: now, is_stuck: false }
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
            _ => {
                self.is_stuck = true;
                Retired::Stuck
            }
        }
    }
}

impl Retiring {
    /// Whether the queue pairs are destroyed with the tables, before what the device reads.
    fn has_last_pairs(&self) -> bool {
        let is_last = |old: &Arc<Tables>| {
            Arc::strong_count(old) == 1 && old.pairs().iter().all(|pair| Arc::strong_count(pair) == 1)
        };
        self.old.as_ref().is_some_and(is_last)
    }
}

impl Drop for Retiring {
    fn drop(&mut self) {
        if self.counters.replaced.get() > 0 && (self.is_stuck || !self.has_last_pairs()) {
            std::mem::forget(self.old.take());
        }
    }
}
