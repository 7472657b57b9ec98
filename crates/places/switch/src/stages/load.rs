//! The load of workers and vNICs, from the switch's counters over the last minute. Pure.
//!
//! ```text
//!  evidence of each look ─▶ samples, one each 5 s ─▶ differences from the oldest ─▶ Measured
//! ```
//!
//! The switch may lie: no load exceeds one CPU, and counters that go back count as idle.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};
use tidegate_evidence::{Evidence, Traffic, VnicStats, Work, WorkerStats};

/// All of a CPU's time, in the unit of loads.
pub const WHOLE: u64 = 1_000_000;
/// Loads are measured over this time.
const WINDOW: Duration = Duration::from_secs(60);
/// Pause between samples.
const STEP: Duration = Duration::from_secs(5);
/// Shortest time over which a load is measured.
const SHORTEST: Duration = Duration::from_secs(1);

/// The counters of one vNIC or uplink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counters {
    /// Time of workers for it, ns.
    work: u64,
    sent: Count,
    received: Count,
}

/// Frames as the guest has them, and their bytes; so far, or each second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// A super-frame is one.
    pub frames: u64,
    /// Bytes on the wire.
    pub bytes: u64,
}

#[derive(Debug)]
struct Sample {
    at: Instant,
    /// Busy time of each worker, ns.
    busy: Vec<u64>,
    /// Time of each worker asleep or without work, ns.
    idle: Vec<u64>,
    vnics: BTreeMap<String, Counters>,
}

/// The samples of the last minute.
#[derive(Debug, Default)]
pub struct Loads {
    /// Start of the switch process that they are of.
    process: u64,
    samples: VecDeque<Sample>,
}

/// Loads and rates over the last minute, or since the first sample.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// Busy time of each worker, millionths of a CPU; `None` before the second sample.
    pub workers: Vec<Option<u64>>,
    /// vNICs and uplinks that were there for long enough.
    pub vnics: BTreeMap<String, Rates>,
}

/// The rates of one vNIC or uplink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Time of workers for it, millionths of a CPU.
    pub work: u64,
    /// What it sent each second.
    pub sent: Count,
    /// What it received each second.
    pub received: Count,
}

impl Loads {
    /// Adds a look at the switch process that started at `process`; returns the loads until then.
    pub fn see(&mut self, now: Instant, process: u64, evidence: &Evidence) -> Measured {
        if std::mem::replace(&mut self.process, process) != process {
            self.samples.clear();
        }
        let last = Sample::of(now, evidence);
        while self.samples.len() > 1 && now.saturating_duration_since(self.samples[1].at) >= WINDOW {
            self.samples.pop_front();
        }
        let measured = self.until(&last);
        if self.samples.back().is_none_or(|sample| now.saturating_duration_since(sample.at) >= STEP) {
            self.samples.push_back(last);
        }
        measured
    }

    fn until(&self, last: &Sample) -> Measured {
        let passed = |sample: &Sample| last.at.saturating_duration_since(sample.at);
        let old = || self.samples.iter().filter(|sample| passed(sample) >= SHORTEST);
        let worker = |worker: usize| {
            let first = old().find(|sample| worker < sample.busy.len())?;
            let busy = last.busy[worker].saturating_sub(first.busy[worker]);
            let idle = last.idle[worker].saturating_sub(first.idle[worker]);
            // Loops are known by buckets of 3 %; a sleep that lasts is not counted yet.
            let awake = passed(first).saturating_sub(Duration::from_nanos(idle));
            Some(share(busy.min(nanos(awake)), passed(first)))
        };
        let vnic = |(name, now): (&String, &Counters)| {
            let (sample, before) = old().find_map(|sample| Some((sample, sample.vnics.get(name)?)))?;
            let time = passed(sample);
            let rates = Rates {
                work: share(now.work.saturating_sub(before.work), time),
                sent: now.sent.since(before.sent, time),
                received: now.received.since(before.received, time),
            };
            Some((name.clone(), rates))
        };
        Measured {
            workers: (0..last.busy.len()).map(worker).collect(),
            vnics: last.vnics.iter().filter_map(vnic).collect(),
        }
    }
}

impl Sample {
    fn of(at: Instant, evidence: &Evidence) -> Self {
        let busy = |worker: &WorkerStats| {
            let loops = worker.loop_time.buckets.iter().map(|(ns, count)| ns.saturating_mul(*count));
            loops.fold(0_u64, u64::saturating_add)
        };
        let idle = |worker: &WorkerStats| worker.asleep_ns.saturating_add(worker.awake_ns);
        let count = |traffic: &Traffic| Count { frames: traffic.frames, bytes: traffic.wire_bytes };
        let counters = |(name, stats): (&String, &VnicStats)| {
            let work = stats.work.as_ref().map_or(0, Work::total_ns);
            (name.clone(), Counters { work, sent: count(&stats.tx), received: count(&stats.rx) })
        };
        Self {
            at,
            busy: evidence.workers.iter().map(busy).collect(),
            idle: evidence.workers.iter().map(idle).collect(),
            vnics: evidence.vnics.iter().map(counters).collect(),
        }
    }
}

impl Count {
    /// Returns what came since `before`, each second.
    fn since(self, before: Self, time: Duration) -> Self {
        let rate = |now: u64, before: u64| {
            let all = u128::from(now.saturating_sub(before)) * 1_000_000_000 / time.as_nanos().max(1);
            u64::try_from(all).unwrap_or(u64::MAX)
        };
        Self { frames: rate(self.frames, before.frames), bytes: rate(self.bytes, before.bytes) }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns `part` (ns) of a time, in millionths, at most all.
fn share(part: u64, of: Duration) -> u64 {
    let share = u128::from(part) * u128::from(WHOLE) / of.as_nanos().max(1);
    u64::try_from(share).map_or(WHOLE, |share| share.min(WHOLE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_evidence::Delay;

    fn evidence(busy: u64, asleep: u64, names: &[(&str, u64)]) -> Evidence {
        let mut evidence = Evidence::empty("a test");
        let loop_time = Delay { buckets: vec![(busy / 2, 2)], ..Delay::default() };
        evidence.workers = vec![WorkerStats { asleep_ns: asleep, loop_time, ..WorkerStats::default() }];
        for (name, frames) in names {
            let tx = Traffic { frames: *frames, wire_bytes: frames * 100, ..Traffic::default() };
            let work = Some(Work { take_ns: frames * 1000, ..Work::default() });
            let stats = VnicStats { name: (*name).into(), tx, work, ..VnicStats::default() };
            evidence.vnics.insert((*name).into(), stats);
        }
        evidence
    }

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn loads_are_those_of_the_last_minute() {
        let (mut loads, begin) = (Loads::default(), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        let first = loads.see(at(0), 1, &evidence(0, 0, &[("a", 0)]));
        assert_eq!((first.workers, first.vnics.len()), (vec![None], 0));
        let half = loads.see(at(2), 1, &evidence(SECOND, SECOND, &[("a", 2000), ("b", 7)]));
        assert_eq!(half.workers, [Some(WHOLE / 2)]);
        let a = Rates { work: 1000, sent: Count { frames: 1000, bytes: 100_000 }, ..Rates::default() };
        assert_eq!(half.vnics, BTreeMap::from([("a".into(), a)]), "b was not there before");
        for second in 3..200 {
            let idle = evidence(SECOND, SECOND * (second - 1), &[("a", 2000), ("b", 7)]);
            let now = loads.see(at(second), 1, &idle);
            let expected = if second < 62 { WHOLE / second } else { 0 };
            if !(60..=70).contains(&second) {
                assert_eq!(now.workers, [Some(expected)], "after {second} s");
            }
        }
        assert!(loads.samples.len() <= 14, "{}", loads.samples.len());
        let other = loads.see(at(200), 2, &evidence(SECOND, 0, &[("a", 9000)]));
        assert_eq!((other.workers, other.vnics.len()), (vec![None], 0), "another process counts anew");
    }

    #[test]
    fn a_switch_that_lies_is_bounded() {
        let (mut loads, begin) = (Loads::default(), Instant::now());
        loads.see(begin, 1, &evidence(0, u64::MAX, &[("a", 0)]));
        let most = evidence(u64::MAX, 0, &[("a", u64::MAX / 1000)]);
        let lie = loads.see(begin + Duration::from_secs(5), 1, &most);
        assert_eq!(lie.workers, [Some(WHOLE)]);
        assert!(lie.vnics["a"].work <= WHOLE);
        let back = loads.see(begin + Duration::from_secs(11), 1, &evidence(0, 0, &[]));
        assert_eq!((back.workers, back.vnics.len()), (vec![Some(0)], 0));
        let mut fewer = evidence(0, 0, &[]);
        fewer.workers.resize(64, WorkerStats::default());
        assert_eq!(loads.see(begin + Duration::from_secs(20), 1, &fewer).workers.len(), 64);
    }
}
