//! What stages cost: CPU time over the last minute, else by contract.
//!
//! ```text
//!  ticks of threads ─────────┐
//!  /proc/stat, by CPU ───────┼─▶ rates ─▶ millionths of a CPU
//!  interrupts, by CPU ───────┤
//!  frames of vNICs, NICs ────┘─▶ rates ─▶ frames a second ─▶ links; times prior costs: loads that are not measured
//! ```
//!
//! - [`rates`]: growth of counters over the last minute
//! - [`cpu`]: times of CPUs
//! - [`prior`]: loads before anything is measured

pub mod cpu;
pub mod prior;
pub mod rates;

use rates::Rates;
use std::time::Duration;
use tidegate_cores::stage::Thread;

/// The counters of the last minute.
#[derive(Debug)]
pub struct Loads {
    /// Ticks a second.
    pub ticks: u64,
    /// CPU time of threads, ticks.
    pub threads: Rates<Thread>,
    /// Busy time of CPUs, ticks.
    pub busy: Rates<usize>,
    /// Time in softirqs, ticks.
    pub soft: Rates<usize>,
    /// Time in interrupts, ticks; 0 on kernels that do not count it apart.
    pub hard: Rates<usize>,
    /// Arrivals of an interrupt at a CPU.
    pub arrivals: Rates<(u32, usize)>,
    /// Frames of a vNIC: received, or sent (`true`).
    pub vnics: Rates<(String, bool)>,
    /// Frames of a network interface: received, or sent (`true`).
    pub devices: Rates<(String, bool)>,
}

impl Default for Loads {
    fn default() -> Self {
        Self {
            ticks: rustix::param::clock_ticks_per_second(),
            threads: Rates::default(),
            busy: Rates::default(),
            soft: Rates::default(),
            hard: Rates::default(),
            arrivals: Rates::default(),
            vnics: Rates::default(),
            devices: Rates::default(),
        }
    }
}

impl Loads {
    /// Returns a rate of ticks as millionths of one CPU.
    pub fn millionths<K: Ord>(&self, of: &Rates<K>, key: &K) -> Option<u32> {
        // Ticks in a million seconds.
        let ticks = of.per(key, Duration::from_secs(1_000_000))?;
        Some(u32::try_from(ticks / self.ticks.max(1)).unwrap_or(u32::MAX).min(1_000_000))
    }

    /// Returns the CPU time of a thread, millionths of one CPU.
    pub fn thread(&self, thread: Thread) -> Option<u32> {
        self.millionths(&self.threads, &thread)
    }
}
