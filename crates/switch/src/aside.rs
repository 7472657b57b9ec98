//! Threads that are no workers leave the CPUs that workers have for themselves.
//!
//! ```text
//!  server::cpus ── leave: the CPUs that are left ──▶ [ set, number ] ◀── step: each thread, whenever it has woken
//! ```
//!
//! A thread may change its own CPUs alone: confinement allows no more. A new thread has those of the thread that made it.

use rustix::thread::{CpuSet, sched_setaffinity};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The CPUs for all threads but workers; none before the first [`leave`].
static LEFT: Mutex<Option<CpuSet>> = Mutex::new(None);
/// How often they have changed.
static CHANGES: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The change that this thread has followed.
    static FOLLOWED: Cell<u64> = const { Cell::new(0) };
}

/// All threads but workers are to run on `cpus`, as soon as they have something to do.
pub fn leave(cpus: &CpuSet) {
    let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    if left.as_ref() != Some(cpus) {
        *left = Some(*cpus);
        CHANGES.fetch_add(1, Ordering::Release);
    }
}

/// Where threads are to run that are no workers; `None` before the first [`leave`].
pub fn left() -> Option<CpuSet> {
    *LEFT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The calling thread goes where it is to run. Costs a load where it is there.
pub fn step() {
    let change = CHANGES.load(Ordering::Acquire);
    if FOLLOWED.get() == change {
        return;
    }
    FOLLOWED.set(change);
    if let Some(cpus) = left() {
        // It only helps: where the kernel refuses, the thread runs where it ran.
        let _ = sched_setaffinity(None, &cpus);
    }
}

/// [`step`] for a thread whose CPUs were changed by itself or by the kernel since.
pub fn step_again() {
    FOLLOWED.set(0);
    step();
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::sched_getaffinity;

    #[test]
    fn a_thread_steps_aside_when_it_wakes() {
        let all = sched_getaffinity(None).unwrap();
        let first = (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).unwrap();
        let mut one = CpuSet::new();
        one.set(first);
        leave(&one);
        let (here, child) = std::thread::spawn(|| {
            step();
            // A thread that it makes is there already.
            (sched_getaffinity(None), std::thread::spawn(|| sched_getaffinity(None)).join().unwrap())
        })
        .join()
        .unwrap();
        assert_eq!((here, child), (Ok(one), Ok(one)));
        leave(&all);
        let here = std::thread::spawn(|| {
            step();
            sched_getaffinity(None)
        });
        assert_eq!(here.join().unwrap(), Ok(all));
    }
}
