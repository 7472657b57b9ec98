//! Computes `host-latency` from the measurements. Pure.
//!
//! ```text
//!  H = workers of a crossing (1 or 2) × (wake-up + loop) + one copy of 64 KB
//! ```
//!
//! The sum is the worst case of one frame: a worker under load has no wake-up, and an idle worker has no
//! loop. A stall may count in both, so the sum may be too large, but never too small.

use super::look::Machine;
use super::timers::Cpu;
use serde::Serialize;
use tidegate_contract::Nanos;
use tidegate_evidence::Histogram;

/// Margin above the worst that was seen (percent): a longer measurement sees worse.
pub const MARGIN_PERCENT: u64 = 25;
/// First digits of a round duration, ascending.
const STEPS: [u64; 11] = [10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100];
/// Quantile of the copies: excludes those that an interruption made long.
const COPIES: f64 = 0.99;

/// What a value of `host-latency` covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Cover {
    #[serde(rename = "p99")]
    P99,
    #[serde(rename = "p99.9")]
    P999,
    /// All that were seen, plus the margin.
    #[serde(rename = "worst")]
    Worst,
}

impl Cover {
    pub const ALL: [Self; 3] = [Self::P99, Self::P999, Self::Worst];

    fn share(self) -> f64 {
        match self {
            Self::P99 => 0.99,
            Self::P999 => 0.999,
            Self::Worst => 1.0,
        }
    }

    fn margin_percent(self) -> u64 {
        if self == Self::Worst { MARGIN_PERCENT } else { 0 }
    }
}

/// The measurements from which H follows.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Wake-ups on the CPUs of each worker; if no worker is known, one histogram of all measured CPUs.
    pub wakeups: Vec<Histogram>,
    /// Workers of the switch, also if their loops are unknown; 0 if unknown.
    pub workers: usize,
    /// Loops of each worker; empty if unknown.
    pub loops: Vec<Histogram>,
    pub copies: Histogram,
}

/// A value of `host-latency`, and its parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Proposal {
    pub covers: Cover,
    /// Wake-up of the worker that wakes latest.
    pub wakeup_ns: u64,
    /// Loop of the worker with the longest loops; 0 if none was counted.
    pub loop_ns: u64,
    /// One copy of 64 KB; 99 % of copies take no longer.
    pub copy_ns: u64,
    /// Number of workers that a frame may pass: 1 or 2.
    pub workers: u64,
    pub sum_ns: u64,
    pub margin_percent: u64,
    /// The sum plus the margin, rounded up to a round value.
    pub host_latency_ns: u64,
}

impl Proposal {
    pub fn host_latency(&self) -> Nanos {
        Nanos::new(self.host_latency_ns)
    }
}

impl Measured {
    /// Gathers the measurements. `workers` is the number that the agent reports; `loops` has one histogram
    /// for each, if known.
    pub fn new(cpus: &[Cpu], machine: &Machine, workers: usize, loops: Vec<Histogram>) -> Self {
        let on = |allowed: &dyn Fn(usize) -> bool| {
            let wakeups = cpus.iter().filter(|cpu| allowed(cpu.cpu)).map(|cpu| &cpu.wakeups);
            sum_histograms(wakeups)
        };
        let mut wakeups: Vec<Histogram> =
            machine.workers.iter().map(|w| on(&|cpu| w.cpus.contains(&cpu))).collect();
        wakeups.retain(|histogram| histogram.count() > 0);
        if wakeups.is_empty() {
            wakeups.push(on(&|_| true));
        }
        let workers = workers.max(machine.workers.len());
        Self { wakeups, workers, loops, copies: sum_histograms(cpus.iter().map(|cpu| &cpu.copies)) }
    }

    /// Returns whether any loop of a worker was counted. Without loops, every proposal is too small.
    pub fn has_loops(&self) -> bool {
        self.loops.iter().any(|loops| loops.count() > 0)
    }

    /// Computes the proposal for `covers`.
    pub fn proposal(&self, covers: Cover) -> Proposal {
        let longest = |all: &[Histogram]| all.iter().map(|h| h.quantile(covers.share())).max().unwrap_or(0);
        let (wakeup_ns, loop_ns) = (longest(&self.wakeups), longest(&self.loops));
        let copy_ns = self.copies.quantile(COPIES);
        // Loops are unknown if the switch was replaced meanwhile; frames still cross from worker to worker.
        let workers = self.workers.max(self.loops.len()).clamp(1, 2) as u64;
        let sum_ns = (wakeup_ns + loop_ns) * workers + copy_ns;
        let margin_percent = covers.margin_percent();
        let host_latency_ns = rounded_up(sum_ns + sum_ns * margin_percent / 100);
        Proposal { covers, wakeup_ns, loop_ns, copy_ns, workers, sum_ns, margin_percent, host_latency_ns }
    }
}

fn sum_histograms<'a>(all: impl Iterator<Item = &'a Histogram>) -> Histogram {
    let mut counts = vec![0u64; tidegate_evidence::histogram::BUCKETS];
    let mut max = 0;
    for histogram in all {
        max = max.max(histogram.max());
        for (upper, n) in histogram.occupied() {
            counts[tidegate_evidence::histogram::bucket(upper)] += n;
        }
    }
    Histogram::recorded(max, 0, counts).unwrap_or_default()
}

/// Rounds a duration (ns) up to a round one: two digits, and at least 1 us.
pub fn rounded_up(ns: u64) -> u64 {
    let mut unit = 100;
    loop {
        let step = STEPS.iter().map(|step| step.saturating_mul(unit)).find(|value| *value >= ns);
        match step {
            Some(value) => return value,
            None => unit *= 10,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::look::Worker;
    use super::*;
    use proptest::prelude::*;
    use tidegate_evidence::histogram::upper;

    fn histogram(values: &[u64]) -> Histogram {
        let mut all = Histogram::default();
        values.iter().for_each(|value| all.record(*value));
        all
    }

    #[test]
    fn a_proposal_is_a_number_that_a_person_would_write() {
        let cases = [
            (0, 1_000),
            (1_000, 1_000),
            (1_001, 1_200),
            (61_000, 80_000),
            (81_000, 100_000),
            (1_760_000, 2_000_000),
        ];
        for (ns, expected) in cases {
            assert_eq!(rounded_up(ns), expected, "{ns}");
        }
        assert_eq!(Nanos::new(rounded_up(1_201_000)).to_string(), "1.5ms");
    }

    #[test]
    fn both_workers_of_a_crossing_count() {
        let mut measured = Measured {
            wakeups: vec![histogram(&[10_000, 40_000])],
            workers: 1,
            loops: vec![histogram(&[20_000])],
            copies: histogram(&[6_000]),
        };
        let one = measured.proposal(Cover::Worst);
        assert_eq!((one.workers, one.sum_ns, one.host_latency_ns), (1, 66_000, 100_000));
        measured.wakeups.push(histogram(&[30_000]));
        measured.loops.push(histogram(&[50_000]));
        measured.workers = 2;
        let two = measured.proposal(Cover::Worst);
        assert_eq!((two.workers, two.sum_ns, two.host_latency_ns), (2, 186_000, 250_000));
        assert!(measured.has_loops());
        // Unknown loops do not remove the wake-up of the second worker.
        measured.loops.clear();
        let unknown = measured.proposal(Cover::Worst);
        assert_eq!((unknown.workers, unknown.sum_ns), (2, 86_000));
        // Without a switch there are no loops and no second worker.
        measured.workers = 0;
        assert_eq!(measured.proposal(Cover::Worst).sum_ns, 46_000);
    }

    #[test]
    fn the_number_of_workers_is_that_of_the_agent_or_of_the_machine() {
        let worker = |number| Worker { name: format!("worker-{number}"), ..Worker::default() };
        for (shown, said, factor) in
            [(0, 0, 1), (1, 0, 1), (0, 1, 1), (2, 0, 2), (0, 2, 2), (2, 1, 2), (3, 9, 2)]
        {
            let machine = Machine { workers: (0..shown).map(worker).collect(), ..Machine::default() };
            let measured = Measured::new(&[], &machine, said, vec![]);
            assert_eq!(measured.proposal(Cover::Worst).workers, factor, "{shown} {said}");
            assert!(!measured.has_loops());
        }
    }

    #[test]
    fn workers_without_loops_give_no_loop_figures() {
        let loops =
            |all: &[u64]| Measured { loops: vec![histogram(&[]), histogram(all)], ..Measured::default() };
        assert!(!loops(&[]).has_loops());
        assert!(loops(&[1_000]).has_loops());
    }

    proptest! {
        #[test]
        fn a_proposal_is_rounded_up_by_a_third_at_most(ns in 1_000u64..1 << 40) {
            let value = rounded_up(ns);
            prop_assert!(value >= ns && value * 3 <= ns * 4, "{} for {}", value, ns);
            prop_assert_eq!(rounded_up(value), value);
        }

        #[test]
        fn more_cover_is_never_less(
            wakeups in prop::collection::vec(0u64..1 << 30, 1..100),
            loops in prop::collection::vec(prop::collection::vec(0u64..1 << 30, 1..50), 0..4),
            copies in prop::collection::vec(0u64..1 << 20, 1..20),
        ) {
            let measured = Measured {
                wakeups: vec![histogram(&wakeups)],
                workers: loops.len(),
                loops: loops.iter().map(|all| histogram(all)).collect(),
                copies: histogram(&copies),
            };
            let all = Cover::ALL.map(|cover| measured.proposal(cover));
            prop_assert!(all.is_sorted_by_key(|p| p.host_latency_ns));
            // `Worst` covers any frame: every wake-up and every loop, on both workers.
            let worst = wakeups.iter().max().unwrap() + loops.iter().flatten().max().unwrap_or(&0);
            prop_assert!(all[2].host_latency_ns >= worst * all[2].workers);
        }

        #[test]
        fn histograms_together_hold_the_same(values in prop::collection::vec(0u64..1 << 30, 2..50), at in 1usize..50) {
            let (a, b) = values.split_at(at.min(values.len() - 1));
            let both = sum_histograms([&histogram(a), &histogram(b)].into_iter());
            let all = histogram(&values);
            prop_assert_eq!(both.count(), all.count());
            prop_assert_eq!(both.max(), all.max());
            prop_assert_eq!(both.quantile(0.5), all.quantile(0.5));
            prop_assert!(upper(0) == 0);
        }
    }
}
