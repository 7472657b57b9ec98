//! Which CPU does what, in both phases: the switch's worker and voice's threads on one CPU, bulk
//! traffic on the others.
//!
//! A kernel without preemption lets no thread in, of whatever priority, before a system call or
//! softirq that bulk traffic makes on its CPU has ended. So an operator keeps such work off the
//! CPU that real-time frames pass.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The CPUs this process may use.
pub fn allowed() -> Vec<usize> {
    let Ok(allowed) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect()
}

/// The CPU of the worker and of voice: the first of those this process may use. None where there
/// is only one.
pub fn prompt() -> Option<usize> {
    match allowed()[..] {
        [first, _, ..] => Some(first),
        _ => None,
    }
}

/// Keeps the calling thread, and those it starts from now on, to `cpu`.
pub fn keep_to(cpu: Option<usize>) {
    let Some(cpu) = cpu else { return };
    let mut set = CpuSet::new();
    set.set(cpu);
    // It only helps: where the kernel refuses, the figures are what they are.
    let _ = sched_setaffinity(None, &set);
}

/// Keeps the calling thread, and those it starts from now on, off `cpu`.
pub fn keep_off(cpu: Option<usize>) {
    let (Some(cpu), Ok(mut set)) = (cpu, sched_getaffinity(None)) else { return };
    set.unset(cpu);
    let _ = sched_setaffinity(None, &set);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn voice_and_bulk_share_no_cpu() {
        let Some(cpu) = prompt() else { return };
        let allowed_after = |place: fn(Option<usize>)| {
            std::thread::spawn(move || {
                place(Some(cpu));
                sched_getaffinity(None).unwrap()
            })
            .join()
            .unwrap()
        };
        let (voice, bulk) = (allowed_after(keep_to), allowed_after(keep_off));
        assert!(voice.is_set(cpu) && voice.count() == 1);
        assert!(!bulk.is_set(cpu) && bulk.count() > 0);
    }
}
