//! Housekeeping CPUs: those for threads that are no workers, so that workers have their CPUs for themselves.
//!
//! ```text
//!  switch: set_cpus(housekeeping CPUs) ──▶ [ set, number of changes ] ◀── follow(): each thread, after it has woken
//! ```
//!
//! Confinement lets a thread change its own CPUs alone. A new thread inherits the CPUs of the thread that made it.

use rustix::thread::{CpuSet, sched_setaffinity};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The housekeeping CPUs; `None` before the first [`set_cpus`].
static CPUS: Mutex<Option<CpuSet>> = Mutex::new(None);
/// How often [`CPUS`] has changed.
static CHANGES: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The change that this thread has followed.
    static FOLLOWED: Cell<u64> = const { Cell::new(0) };
}

/// Sets the housekeeping CPUs. A thread moves there at its next [`follow`].
pub fn set_cpus(cpus: &CpuSet) {
    let mut current = CPUS.lock().unwrap_or_else(PoisonError::into_inner);
    if current.as_ref() != Some(cpus) {
        *current = Some(*cpus);
        CHANGES.fetch_add(1, Ordering::Release);
    }
}

/// The housekeeping CPUs; `None` before the first [`set_cpus`].
pub fn cpus() -> Option<CpuSet> {
    *CPUS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Moves the calling thread to the housekeeping CPUs. Costs one load where they have not changed.
pub fn follow() {
    let change = CHANGES.load(Ordering::Acquire);
    if FOLLOWED.get() == change {
        return;
    }
    FOLLOWED.set(change);
    if let Some(cpus) = cpus() {
        // An optimisation: where the kernel refuses, the thread stays on its CPUs.
        let _ = sched_setaffinity(None, &cpus);
    }
}

/// [`follow`] for a thread whose CPUs the thread itself or the kernel has changed since.
pub fn follow_again() {
    FOLLOWED.set(0);
    follow();
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::sched_getaffinity;

    #[test]
    fn a_thread_follows_when_it_wakes() {
        let all = sched_getaffinity(None).unwrap();
        let first = (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).unwrap();
        let mut one = CpuSet::new();
        one.set(first);
        set_cpus(&one);
        let (here, child) = std::thread::spawn(|| {
            follow();
            // A new thread inherits its CPUs.
            (sched_getaffinity(None), std::thread::spawn(|| sched_getaffinity(None)).join().unwrap())
        })
        .join()
        .unwrap();
        assert_eq!((here, child), (Ok(one), Ok(one)));
        set_cpus(&all);
        let here = std::thread::spawn(|| {
            follow();
            sched_getaffinity(None)
        });
        assert_eq!(here.join().unwrap(), Ok(all));
    }
}
