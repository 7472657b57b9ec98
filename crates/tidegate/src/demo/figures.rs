//! The results of the demo as numbers: the measurements, and the object that `--json` prints.

use super::blame::Blame;
use super::contracts::Where;
use serde::Serialize;
use tidegate_evidence::Histogram;

#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    pub sent: u64,
    /// Voice frames received, of those sent.
    pub received: u64,
    /// Tr - Ts of voice, as the place measured it.
    pub inside: Histogram,
    /// Least possible Tr - Ts of the same frames; `None` if the place sees only one end.
    pub inside_least: Option<Histogram>,
    /// Possible misses: in time by the least delay, late by the largest; `None` without a deadline.
    pub possible: Option<u64>,
    /// Frames late only if the worker took that long to wake up, which it cannot measure; `None` without a
    /// deadline.
    pub asleep: Option<u64>,
    /// Certain deadline misses that the place counted; without a deadline, frames that would have missed
    /// it.
    pub misses: u64,
    /// Who is to blame for `misses`; `None` without a deadline.
    pub misses_blame: Option<Blame>,
    /// Latest misses inside, certain and possible, each with what it waited for; newest first.
    pub latest_misses: Vec<String>,
    /// One-way delay of voice between the applications.
    pub delay: Histogram,
    /// Exact longest delay between the applications (ns).
    pub longest: u64,
    /// Voice frames that took longer than the deadline between the applications.
    pub late: u64,
    /// Who is to blame for `late`; `None` without a deadline.
    pub late_blame: Option<Blame>,
    /// Timer lateness of a thread without other work on the CPUs that voice passed; if permitted, with the
    /// highest priority there.
    pub timer: Histogram,
    /// Timer lateness of voice's sender, which is not part of the delay.
    pub wakeup: Histogram,
    /// CPU time of the switch's workers (cores); `None` without a switch.
    pub worker: Option<f64>,
    /// Bulk goodput (bit/s).
    pub bulk: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    pub fifo: Figures,
    pub edf: Figures,
    pub place: Where,
    /// Whether the worker, voice's threads and the control threads ran under SCHED_FIFO, in both phases.
    pub realtime_priority: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Runs<'a> {
    pub runs: &'a [Report],
}

/// Figures of one phase, as explained in `Measured`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    pub switch_delay_us: Quantiles,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub switch_delay_least_us: Option<Quantiles>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub voice_misses_possible: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub voice_misses_asleep: Option<u64>,
    pub voice_misses: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub misses_blame: Option<Blame>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub latest_misses: Vec<String>,
    pub voice_delay_us: Quantiles,
    pub voice_late: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub late_blame: Option<Blame>,
    pub voice_lost: u64,
    pub timer_us: Quantiles,
    pub host_wakeup_us: Quantiles,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_cpu: Option<f64>,
    /// Goodput of all bulk connections (Mbit/s).
    pub bulk_mbps: f64,
}

/// A distribution in microseconds, with one decimal.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Quantiles {
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

impl Quantiles {
    fn of(histogram: &Histogram, longest: u64) -> Self {
        let us = |ns: u64| (ns.min(longest) as f64 / 100.0).round() / 10.0;
        Self {
            p50: us(histogram.quantile(0.5)),
            p99: us(histogram.quantile(0.99)),
            p999: us(histogram.quantile(0.999)),
            max: us(longest),
        }
    }
}

impl Quantiles {
    pub fn all(&self) -> [f64; 4] {
        [self.p50, self.p99, self.p999, self.max]
    }
}

impl Measured {
    pub fn figures(&self) -> Figures {
        let whole = |histogram: &Histogram| Quantiles::of(histogram, histogram.max());
        Figures {
            switch_delay_us: whole(&self.inside),
            switch_delay_least_us: self.inside_least.as_ref().map(whole),
            voice_misses_possible: self.possible,
            voice_misses_asleep: self.asleep,
            voice_misses: self.misses,
            misses_blame: self.misses_blame,
            latest_misses: self.latest_misses.clone(),
            voice_delay_us: Quantiles::of(&self.delay, self.longest),
            voice_late: self.late,
            late_blame: self.late_blame,
            voice_lost: self.sent.saturating_sub(self.received),
            timer_us: whole(&self.timer),
            host_wakeup_us: whole(&self.wakeup),
            worker_cpu: self.worker.map(|share| (share * 1000.0).round() / 1000.0),
            bulk_mbps: (self.bulk as f64 / 1e5).round() / 10.0,
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::demo::order::histogram;

    /// Returns a phase in which each frame took `delay` ns, half of it inside the switch.
    pub fn measured(delay: u64, misses: u64, blame: Option<Blame>) -> Measured {
        Measured {
            sent: 6_000,
            received: 5_998,
            inside: histogram(&[(delay / 2, 5_998)]),
            inside_least: Some(histogram(&[(delay / 4, 5_998)])),
            possible: blame.map(|_| 7),
            asleep: blame.map(|_| 9),
            misses,
            misses_blame: blame,
            latest_misses: blame.iter().map(|_| "missed by 2 ms".into()).collect(),
            delay: histogram(&[(delay, 5_998)]),
            longest: delay,
            late: misses,
            late_blame: blame,
            timer: histogram(&[(20_000, 6_000)]),
            wakeup: histogram(&[(5_000, 6_000)]),
            worker: Some(0.25),
            bulk: 941_230_000,
        }
    }

    /// Returns a run with `delay` ns under contract.
    pub fn report(delay: u64, blame: Blame) -> Report {
        Report {
            fifo: measured(12_000_000, 5_998, None).figures(),
            edf: measured(delay, blame.late, Some(blame)).figures(),
            place: Where::Switch,
            realtime_priority: true,
        }
    }

    #[test]
    fn json_is_one_object_of_two_phases() {
        let blame = Blame { late: 3, steal: 1, stalled: 0, unexplained: 2 };
        let same = |us: f64| serde_json::json!({"p50": us, "p99": us, "p999": us, "max": us});
        let blamed = serde_json::json!({"late": 3, "steal": 1, "stalled": 0, "unexplained": 2});
        let expected = serde_json::json!({
            "fifo": {
                "switch_delay_us": same(6000.0), "switch_delay_least_us": same(3000.0), "voice_misses": 5998,
                "voice_delay_us": same(12000.0), "voice_late": 5998, "voice_lost": 2,
                "timer_us": same(20.0), "host_wakeup_us": same(5.0), "worker_cpu": 0.25, "bulk_mbps": 941.2
            },
            "edf": {
                "switch_delay_us": same(25.0), "switch_delay_least_us": same(12.5),
                "voice_misses": 3, "voice_misses_possible": 7, "voice_misses_asleep": 9, "misses_blame": blamed,
                "latest_misses": ["missed by 2 ms"],
                "voice_delay_us": same(50.0), "voice_late": 3, "late_blame": blamed, "voice_lost": 2,
                "timer_us": same(20.0), "host_wakeup_us": same(5.0), "worker_cpu": 0.25, "bulk_mbps": 941.2
            },
            "place": "switch",
            "realtime_priority": true
        });
        assert_eq!(serde_json::to_value(report(50_000, blame)).unwrap(), expected);
    }
}
