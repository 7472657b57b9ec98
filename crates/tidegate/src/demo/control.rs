//! Observes the host machine during a window: by a control thread on each CPU, with the highest priority of
//! the demo, that only wakes by a timer, and by the steal time in /proc/stat.
//!
//! ```text
//!  timer, each ms ─▶ control thread of a CPU ─┬▶ how late it woke: the bare timer of the same window
//!                                             └▶ late by 0.5 ms and more: the CPU was away ─┐
//!  /proc/stat, each 20 ms ─▶ steal of a CPU ────────────────────────────────────────────────┴▶ [`blame`](super::blame)
//! ```

use super::blame::{CpuAbsence, Sign};
use super::order::{Window, histogram};
use super::{clock, placement, priority};
use std::collections::BTreeMap;
use std::fs;
use std::thread::{self, JoinHandle};
use tidegate_evidence::Histogram;

/// Time between two wake-ups of a control thread (ns).
const PERIOD: u64 = 1_000_000;
/// Lateness of a control thread that shows that its CPU was away (ns). It is above the longest work of the
/// switch that no thread interrupts: 64 kB into a tap, 412 us.
const STALL: u64 = 500_000;
/// Time between two reads of /proc/stat (ns); its steal time has steps of 10 ms.
const LOOK: u64 = 20_000_000;

#[derive(Clone, Debug, Default)]
pub struct HostObservations {
    pub timers: BTreeMap<usize, Histogram>,
    pub absences: Vec<CpuAbsence>,
}

impl HostObservations {
    /// Returns the lateness of the control threads of `cpus` together, each value rounded up to the end of
    /// its bucket; without any such thread, that of all CPUs.
    pub fn timer(&self, cpus: &[usize]) -> Histogram {
        let known = cpus.iter().any(|cpu| self.timers.contains_key(cpu));
        let of = self.timers.iter().filter(|(cpu, _)| !known || cpus.contains(cpu));
        histogram(&of.flat_map(|(_, timer)| timer.occupied()).collect::<Vec<_>>())
    }

    pub fn absences(&self, cpus: &[usize]) -> Vec<CpuAbsence> {
        self.absences.iter().filter(|absence| cpus.contains(&absence.cpu)).copied().collect()
    }
}

type Control = (Histogram, Vec<CpuAbsence>);

/// Control threads, which run until some time after the window.
#[derive(Debug)]
pub struct Watch {
    controls: Vec<(usize, JoinHandle<Control>)>,
    steal: JoinHandle<Vec<CpuAbsence>>,
}

impl Watch {
    /// Starts the threads. Timers are recorded in `window`, absent CPUs until `settle` ns after it. Without
    /// permitted `realtime` a control thread also waits for other threads, so it shows nothing about the
    /// host.
    pub fn begin(window: Window, settle: u64, realtime: bool) -> Self {
        let control = |cpu| (cpu, thread::spawn(move || control(cpu, window, settle, realtime)));
        let controls = placement::allowed().into_iter().map(control).collect();
        let steal = thread::spawn(move || {
            placement::keep_off(placement::voice_cpus());
            steal(Window { to: window.to + settle, ..window })
        });
        Self { controls, steal }
    }

    /// Waits for the end of the threads, and returns the observations.
    pub fn finish(self) -> HostObservations {
        let mut observed = HostObservations::default();
        for (cpu, control) in self.controls {
            // A thread that panicked has no observations.
            let (timer, absences) = control.join().unwrap_or_default();
            observed.timers.insert(cpu, timer);
            observed.absences.extend(absences);
        }
        observed.absences.extend(self.steal.join().unwrap_or_default());
        observed
    }
}

fn control(cpu: usize, window: Window, settle: u64, realtime: bool) -> Control {
    placement::keep_to(Some(cpu));
    clock::wake_soon();
    let above = realtime && priority::take(priority::CONTROL);
    let (mut timer, mut absences) = (Histogram::default(), Vec::new());
    let (mut due, mut ran) = (window.from, 0);
    while due < window.to + settle {
        clock::sleep_until(due);
        let now = clock::now();
        if window.holds(due) {
            timer.record(now - due);
        }
        // The next due times within the absence are late as well: the span counts once.
        let span = Window { from: due.max(ran), to: now };
        if above && span.to.saturating_sub(span.from) >= STALL {
            absences.push(CpuAbsence { sign: Sign::Stalled, cpu, span, least_ns: span.to - span.from });
        }
        ran = now;
        due += PERIOD;
    }
    (timer, absences)
}

fn steal(window: Window) -> Vec<CpuAbsence> {
    let tick = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
    let (mut absences, mut due) = (Vec::new(), window.from);
    let mut before: Option<(u64, BTreeMap<usize, u64>)> = None;
    while due < window.to {
        clock::sleep_until(due);
        let now = clock::now();
        let stolen = fs::read_to_string("/proc/stat").map(|text| stolen(&text)).unwrap_or_default();
        if let Some((then, earlier)) = &before {
            for (cpu, ticks) in &stolen {
                let more = ticks.saturating_sub(*earlier.get(cpu).unwrap_or(ticks));
                // Steal time is in whole ticks: of the first tick only the end is certain to be in this
                // span.
                let least_ns = (more.saturating_sub(1) * tick).min(now - then);
                if least_ns > 0 {
                    let span = Window { from: *then, to: now };
                    absences.push(CpuAbsence { sign: Sign::Steal, cpu: *cpu, span, least_ns });
                }
            }
        }
        before = Some((now, stolen));
        due += LOOK;
    }
    absences
}

/// Returns the ticks that the hypervisor took from each CPU: the eighth figure of its line (proc(5),
/// /proc/stat).
fn stolen(text: &str) -> BTreeMap<usize, u64> {
    let line = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let cpu = words.next()?.strip_prefix("cpu")?.parse().ok()?;
        Some((cpu, words.nth(7)?.parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steal_time_is_the_eighth_figure() {
        let text = "cpu  9 9 9 9 9 9 9 99 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\ncpu12 0 0 0 0 0 0 0 5 0 0\nintr 1\ncpu3 1\n";
        assert_eq!(stolen(text), BTreeMap::from([(0, 8), (12, 5)]));
    }

    #[test]
    fn each_cpu_has_a_timer() {
        let from = clock::now() + 1_000_000;
        let watch = Watch::begin(Window { from, to: from + 30_000_000 }, 0, false);
        let observed = watch.finish();
        assert_eq!(observed.timers.keys().copied().collect::<Vec<_>>(), placement::allowed());
        assert!(observed.timers.values().all(|timer| timer.count() == 30));
        assert!(observed.absences.iter().all(|absence| absence.sign == Sign::Steal), "no priority, no sign");
        let first = placement::allowed()[0];
        assert_eq!(observed.timer(&[first]).count(), 30);
        assert_eq!(observed.timer(&[usize::MAX]).count(), 30 * observed.timers.len() as u64);
        assert_eq!(observed.timer(&[]).count(), 30 * observed.timers.len() as u64);
    }
}
