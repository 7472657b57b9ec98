//! Metrics of the host: workers of the switch, logs, places, the agent itself.

use super::families::{Families, Kind::Counter, Kind::Gauge, NANOS};
use crate::views::{AttentionKind, HostView, StatusView};
use std::fmt;
use tidegate_evidence::LogStats;

impl Families<'_, '_> {
    /// The workers, and the logs of both processes.
    pub(super) fn workers(&mut self, host: &HostView) -> fmt::Result {
        let workers: Vec<String> = (0..host.workers.len()).map(|i| i.to_string()).collect();
        let workers = || workers.iter().zip(&host.workers).map(|(i, w)| (vec![("worker", i.as_str())], w));
        self.family("worker_loops", "Worker loops that found work", Counter, {
            workers().map(|(l, w)| (l, w.loops as f64))
        })?;
        self.family("worker_loops_over_budget", "Worker loops longer than the host budget", Counter, {
            workers().map(|(l, w)| (l, w.loops_over_budget as f64))
        })?;
        self.family("worker_longest_loop_seconds", "The longest worker loop", Gauge, {
            workers().map(|(l, w)| (l, w.longest_loop_ns as f64 * NANOS))
        })?;
        self.family("worker_asleep_seconds", "Time a worker slept", Counter, {
            workers().map(|(l, w)| (l, w.asleep_ns as f64 * NANOS))
        })?;
        self.family("worker_awake_seconds", "Time a worker was awake with nothing to do", Counter, {
            workers().map(|(l, w)| (l, w.awake_ns as f64 * NANOS))
        })?;
        self.family("switch_denied_calls", "System calls denied to the switch", Counter, {
            [(vec![], host.denied_calls as f64)].into_iter()
        })?;
        self.family("worker_events_lost", "Events of a worker that the log does not report", Counter, {
            workers().map(|(l, w)| (l, w.events_lost as f64))
        })?;
        let logs = |count: fn(&LogStats) -> u64| {
            let of = move |(process, log)| (vec![("process", String::as_str(process))], count(log) as f64);
            host.logs.iter().map(of)
        };
        self.family(
            "log_lost_lines",
            "Lines that were not written: the program that reads the log is slow",
            Counter,
            logs(|log| log.lost),
        )?;
        self.family(
            "log_suppressed_lines",
            "Lines that the limit left out: enough of their kind were written",
            Counter,
            logs(|log| log.suppressed),
        )?;
        Ok(())
    }

    /// The places, and the agent's own work.
    pub(super) fn agent(&mut self, host: &HostView, status: &StatusView) -> fmt::Result {
        self.family("place_reachable", "1 where the place answers", Gauge, {
            host.places.iter().map(|p| (vec![("place", p.name.as_str())], f64::from(u8::from(p.reachable))))
        })?;
        self.family("agent_reconcile_errors", "Failed attempts to bring a contract into force", Counter, {
            [(vec![], host.reconcile_errors as f64)].into_iter()
        })?;
        self.family(
            "agent_drift_repaired",
            "Differences between contract and place that the agent repaired",
            Counter,
            [(vec![], host.drift_repaired as f64)].into_iter(),
        )?;
        let refused = host.files.iter().filter(|f| f.error.is_some()).count();
        self.family("agent_refused_files", "Files whose present contents are not in force", Gauge, {
            [(vec![], refused as f64)].into_iter()
        })?;
        self.family("agent_attention", "Problems that need a person, by kind; 0 without a problem", Gauge, {
            AttentionKind::ALL.into_iter().map(|kind| {
                let count = status.attention.iter().filter(|a| a.kind == kind).count();
                (vec![("kind", kind.label())], count as f64)
            })
        })
    }
}
