//! Threads that wake up on the workers' CPUs as a worker does, and copy now and then.
//!
//! Each sleeps for 0.5 to 1.5 ms, a different time after each wake-up so that it does not keep step with
//! the kernel's tick, and measures how late it wakes. After every sixteenth wake-up it copies 64 KB. This
//! takes 0.5 to 2 % of the CPU.

use crate::demo::{clock, priority};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::hint::black_box;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use tidegate_evidence::Histogram;

/// Size of the copy that H contains (bytes): the largest frame.
pub const COPY: usize = 65_536;
/// Size of the copies' source (bytes): larger than the caches next to a CPU, as guests' memory is.
const SOURCE: usize = 256 * COPY;
/// Wake-ups per copy.
const COPY_EACH: u64 = 16;
/// Shortest sleep, and the largest random addition (ns).
const SLEEP: u64 = 500_000;
const SPREAD: u64 = 1_000_000;

#[derive(Debug)]
pub struct Cpu {
    pub cpu: usize,
    /// SCHED_FIFO priority of the thread; `None` under SCHED_OTHER with a short slice.
    pub priority: Option<u8>,
    /// Lateness of the thread's wake-ups (ns).
    pub wakeups: Histogram,
    /// Durations of copies of 64 KB (ns).
    pub copies: Histogram,
}

pub struct Timers {
    ended: Arc<AtomicBool>,
    threads: Vec<(usize, Option<u8>, JoinHandle<io::Result<Cpu>>)>,
}

impl Timers {
    /// Starts a thread on each CPU, under SCHED_FIFO if a priority is given and permitted.
    ///
    /// # Errors
    /// A thread cannot be created.
    pub fn start(cpus: impl Iterator<Item = (usize, Option<u8>)>) -> io::Result<Self> {
        let source: Arc<[u8]> = vec![1; SOURCE].into();
        let ended = Arc::new(AtomicBool::new(false));
        let mut timers = Self { ended: ended.clone(), threads: vec![] };
        for (cpu, wanted) in cpus {
            let (ended, source) = (ended.clone(), source.clone());
            let measure = move || measure(cpu, wanted, &source, &ended);
            let thread = std::thread::Builder::new().name(format!("calibrate-{cpu}")).spawn(measure)?;
            timers.threads.push((cpu, wanted, thread));
        }
        Ok(timers)
    }

    /// Stops the threads. Returns the measurements, and what was not measured as intended.
    pub fn stop(mut self) -> (Vec<Cpu>, Vec<String>) {
        self.ended.store(true, Ordering::Relaxed);
        let (mut all, mut unseen) = (vec![], vec![]);
        for (cpu, wanted, thread) in self.threads.drain(..) {
            match thread.join() {
                Ok(Ok(measured)) => {
                    if let Some(priority) = wanted.filter(|_| measured.priority.is_none()) {
                        unseen.push(format!(
                            "CPU {cpu}: its worker is under SCHED_FIFO {priority}, the timer that was measured is not \
                             (needs CAP_SYS_NICE or RLIMIT_RTPRIO): wake-ups may be better than measured"
                        ));
                    }
                    all.push(measured);
                }
                Ok(Err(error)) => {
                    unseen.push(format!("CPU {cpu}: this program may run no thread there: {error}"))
                }
                Err(_) => unseen.push(format!("CPU {cpu}: its timer ended early")),
            }
        }
        (all, unseen)
    }
}

impl Drop for Timers {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

fn measure(cpu: usize, wanted: Option<u8>, source: &[u8], ended: &AtomicBool) -> io::Result<Cpu> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set)?;
    clock::wake_soon();
    let priority = wanted.filter(|priority| priority::take(*priority));
    let mut target = vec![0; COPY];
    let (mut wakeups, mut copies) = (Histogram::default(), Histogram::default());
    // A pseudo-random sequence (Knuth's MMIX), different on each CPU.
    let mut random = cpu as u64;
    for number in 1.. {
        if ended.load(Ordering::Relaxed) {
            break;
        }
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let due = clock::now() + SLEEP + (random >> 33) % SPREAD;
        clock::sleep_until(due);
        wakeups.record(clock::now().saturating_sub(due));
        if number % COPY_EACH == 0 {
            let at = (number / COPY_EACH) as usize % (SOURCE / COPY) * COPY;
            let begin = clock::now();
            black_box(&mut target).copy_from_slice(black_box(&source[at..at + COPY]));
            copies.record(clock::now().saturating_sub(begin));
        }
    }
    Ok(Cpu { cpu, priority, wakeups, copies })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_measure_permitted_cpus_and_report_the_others() {
        let allowed = rustix::thread::sched_getaffinity(None).unwrap();
        let here = (0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).unwrap();
        let timers = Timers::start([(here, None), (CpuSet::MAX_CPU - 1, None)].into_iter()).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(200));
        let (cpus, unseen) = timers.stop();
        assert_eq!(cpus.iter().map(|c| c.cpu).collect::<Vec<_>>(), [here]);
        assert!(cpus[0].wakeups.count() > 10 && cpus[0].copies.count() > 0, "{:?}", cpus[0]);
        assert!(
            unseen.len() == 1 && unseen[0].contains("this program may run no thread there"),
            "{unseen:?}"
        );
    }
}
