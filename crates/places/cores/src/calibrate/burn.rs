//! The used time of a CPU: a thread that runs only while nothing else does (SCHED_IDLE) sees how often it is away.
//!
//! The kernel's own accounts do not have it: without CONFIG_IRQ_TIME_ACCOUNTING, softirqs are charged to the thread that they interrupt,
//! and `/proc/stat` counts in ticks.

use super::threads::{Gate, pin};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

/// Longest time from one look at the clock to the next that nothing came between; a look takes about 30 ns.
const UNDISTURBED: Duration = Duration::from_nanos(250);
/// Longest wait for a thread to begin.
const PATIENCE: Duration = Duration::from_secs(1);
/// Looks at the clock per look at the gate.
const LOOKS: u32 = 256;

/// A thread that burns the time that nothing else uses.
#[derive(Debug, Default)]
pub struct Burner(AtomicI32);

impl Burner {
    /// Waits until the thread is there, and lets it run only while no other does.
    pub fn give_way(&self) {
        let begin = Instant::now();
        while self.0.load(Ordering::Acquire) == 0 && begin.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_micros(50));
        }
        self.schedule(libc::SCHED_IDLE);
    }

    /// Lets it end: on a busy CPU it would not run again for seconds.
    pub fn hurry(&self) {
        self.schedule(libc::SCHED_OTHER);
    }

    /// Changes the thread's policy. Without the right it stays: the figures are worse then.
    fn schedule(&self, policy: i32) {
        let parameters = libc::sched_param { sched_priority: 0 };
        let thread = self.0.load(Ordering::Acquire);
        if thread != 0 {
            // SAFETY: reads one `sched_param`, which outlives the call; the thread is one of this process.
            unsafe { libc::sched_setscheduler(thread, policy, &raw const parameters) };
        }
    }
}

/// Runs until the gate closes. Returns the unused part of the measured time, ns.
pub fn burn(cpu: usize, burner: &Burner, gate: &Gate) -> Result<f64, String> {
    pin(cpu)?;
    burner.0.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Release);
    gate.wait_open();
    let (mut unused, mut last) = (Duration::ZERO, Instant::now());
    while gate.is_open() {
        for _ in 0..LOOKS {
            let now = Instant::now();
            let gap = now - last;
            if gap <= UNDISTURBED {
                unused += gap;
            }
            last = now;
        }
    }
    Ok(unused.as_nanos() as f64)
}
