//! The CPUs of the demo, in both phases: the switch's worker and voice's threads on one CPU, bulk traffic
//! on the others.
//!
//! A kernel without preemption runs no other thread, of whatever priority, before a system call or softirq
//! of bulk traffic has ended on that CPU. So an operator keeps such work off the CPU that real-time frames
//! pass.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

pub fn allowed() -> Vec<usize> {
    let Ok(allowed) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect()
}

/// Returns the CPU of the worker and of voice: the first that this process may use; `None` if there is only
/// one.
pub fn voice_cpus() -> Option<usize> {
    match allowed()[..] {
        [first, _, ..] => Some(first),
        _ => None,
    }
}

/// Restricts the calling thread, and those that it starts later, to `cpu`.
pub fn keep_to(cpu: Option<usize>) {
    let Some(cpu) = cpu else { return };
    let mut set = CpuSet::new();
    set.set(cpu);
    // If the kernel refuses, the figures are only worse.
    let _ = sched_setaffinity(None, &set);
}

/// Keeps the calling thread, and those that it starts later, off `cpu`.
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
        let Some(cpu) = voice_cpus() else { return };
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
