//! The used time of a CPU: a thread that runs only while nothing else does (SCHED_IDLE) sees how often it is away.
//!
//! The kernel's own accounts do not have it: without CONFIG_IRQ_TIME_ACCOUNTING, softirqs are charged to the thread that they interrupt,
//! and `/proc/stat` counts in ticks.

use super::threads::{Gate, pin};
use std::time::{Duration, Instant};

/// Longest time from one look at the clock to the next that nothing came between; a look takes about 30 ns.
const UNDISTURBED: Duration = Duration::from_nanos(250);
/// Looks at the clock per look at the gate.
const LOOKS: u32 = 256;

/// Runs until the gate closes. Returns the unused part of the measured time, ns.
pub fn burn(cpu: usize, gate: &Gate) -> Result<f64, String> {
    pin(cpu)?;
    idle_priority();
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

/// Lets the thread run only while no other does. Without the right it runs as before: the figures are worse then.
fn idle_priority() {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: reads one `sched_param`, which outlives the call; 0 is the calling thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) };
}
