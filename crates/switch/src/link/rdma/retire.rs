//! The end of tables that were replaced: nothing is destroyed while the device uses it. Not for workers.
//!
//! ```text
//!  set_rdma(new) ─▶ old ─ Retiring ─▶ pairs that are not in the new one fail ─▶ sends under way end ─▶ old is freed
//!                                     and those that failed since                └ 2 s without end ─▶ stuck
//! ```

use super::counters::Counters;
use super::members::Tables;
use super::pair::LocalPair;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Longest wait for the ends of sends (ns).
const LONGEST: u64 = 2_000_000_000;

/// Replaced tables of a link. Dropped while the device may still read them, they are leaked, unless the link is gone, so
/// that their queue pairs end with them.
#[derive(Debug)]
pub struct Retiring {
    old: Option<Arc<Tables>>,
    counters: Arc<Counters>,
    began: u64,
    /// Numbers of queue pairs that were brought to fail.
    failed: Vec<u32>,
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
        let mut retiring =
            Self { old: None, counters: counters.clone(), began: now, failed: vec![], is_stuck: false };
        for pair in old.pairs().iter().filter(|pair| !stays(pair.port, pair.number())) {
            retiring.fail(pair);
        }
        retiring.old = Some(old);
        retiring
    }

    /// Brings a queue pair to fail, once: what was posted to it ends.
    fn fail(&mut self, pair: &LocalPair) {
        if !self.failed.contains(&pair.number()) {
            self.failed.push(pair.number());
            // A device that is gone completes nothing, and reads nothing.
            let _ = pair.fail();
        }
    }

    /// Frees the tables if the device is done with what was sent by them, which the link's worker notes within microseconds. Only
    /// one set of a link retires at a time: the worker counts the sends of all replaced ones together.
    pub fn look(&mut self, now: u64) -> Retired {
        match self.counters.replaced.get() {
            0 => {
                self.old = None;
                Retired::Yes
            }
            _ if now.saturating_sub(self.began) <= LONGEST => {
                // The worker gave them up: no other tables replace them before these are gone.
                if let Some(old) = self.old.clone() {
                    old.pairs().iter().filter(|pair| pair.is_failed()).for_each(|pair| self.fail(pair));
                }
                Retired::NotYet
            }
            _ => {
                self.is_stuck = true;
                Retired::Stuck
            }
        }
    }

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
        if self.counters.replaced.get() == 0 {
            return;
        }
        if self.is_stuck || !self.has_last_pairs() {
            std::mem::forget(self.old.take());
            return;
        }
        let undestroyed = || self.counters.undestroyed_pairs.load(Ordering::Relaxed);
        let before = undestroyed();
        let guests = self.old.as_ref().map(|old| old.guests().to_vec());
        self.old = None;
        if undestroyed() > before {
            // One of its queue pairs may still read it.
            std::mem::forget(guests);
        }
    }
}
