//! Names the culprit of each deadline miss with cause `worker`: what held the worker up while the frame
//! waited.
//!
//! ```text
//!  misses: from when until when each frame waited ─────────────┐
//!  long loops of the worker (the switch's own account) ────────┼─▶ attribute (pure) ─▶ Culprit of each miss, counted by kind
//!  NoiseMeter: what kept workers from their CPUs (eBPF) ───────┘
//! ```
//!
//! - `attribute`: divides a time among its causes
//! - [`noise`]: what keeps workers from their CPUs, by eBPF programs
//! - `pace`: when the eBPF programs are loaded
//! - `quota`: how many misses of each vNIC are examined
//! - `words`: names of culprits
//!
//! The eBPF programs run while the agent's record has a vNIC with a deadline, and `--observe-cpu` is on.
//! Without them, the worker's own loops are still named, and other time stays unexplained.
//!
//! The switch's data on loops and misses are not trusted: their amount is bounded by its region, names are
//! those of vNICs, and numbers have no effect but numbers.

mod attribute;
pub mod noise;
mod pace;
mod quota;
mod words;

use attribute::{Span, shares};
use noise::{Interval, Noise, NoiseMeter};
use pace::{Pace, Step};
use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;
use tidegate_evidence::Culprit;
use tidegate_evidence::Evidence;
use tidegate_switch::stats::{LateWait, LongLoop, Reader};
use words::What;

/// Remembered intervals of all workers: some seconds of a busy host.
const REMEMBERED: usize = 8192;
/// A cause may continue after the frame's delivery, and is known when it ends: misses are examined this
/// long after them (ns).
const SETTLED: u64 = 20_000_000;
/// Misses per look, of all vNICs: a lying switch cannot keep the agent busy.
const MOST: usize = 16;
/// Longest examined wait (ns): the longest possible deadline.
const LONGEST: u64 = 10_000_000_000;

/// A noted wake-up ends when the worker's thread runs; the worker reads the clock within this time after it
/// (ns).
const MOMENT: u64 = 200_000;

/// Returns since when a sleeping worker was runnable, if that was noted; `noise` is ordered by end. A frame
/// that came during its sleep woke it. `None` if it slept on, or nothing was noted.
fn woken<'a>(wait: &LateWait, noise: impl DoubleEndedIterator<Item = &'a Interval>) -> Option<u64> {
    let mut since = wait.from;
    // Several tasks may have run in a row before it.
    for interval in noise.rev().filter(|i| matches!(i.noise, Noise::Task(_) | Noise::Idle)) {
        if interval.to.abs_diff(since) <= MOMENT {
            since = since.min(interval.from.max(wait.asleep));
        }
    }
    (since < wait.from).then_some(since)
}

/// Names culprits, and counts them.
#[derive(Debug)]
pub struct Culprits {
    /// Whether CPUs may be observed.
    observe: bool,
    pace: Pace,
    /// The observed switch, by its process id, or the reason why it is not.
    meter: Option<(u32, Result<NoiseMeter, String>)>,
    intervals: VecDeque<Interval>,
    /// This agent's first look (CLOCK_MONOTONIC): it knows nothing from before.
    since: u64,
    /// By vNIC.
    found: BTreeMap<String, Found>,
    /// Number of looks.
    looks: usize,
}

/// Findings for one vNIC's misses.
#[derive(Clone, Debug, Default)]
struct Found {
    /// Examined misses that the switch still remembers, by number: the end of each, and its culprit. A
    /// switch that takes over may continue the numbers, or begin anew with 1: the time distinguishes.
    looked_at: BTreeMap<u64, (u64, Option<Culprit>)>,
    /// Number of misses by kind of culprit.
    counts: BTreeMap<String, u64>,
}

impl Found {
    /// Returns the culprit of a miss, by its number.
    fn culprit(&self, number: u64) -> Option<&Culprit> {
        self.looked_at.get(&number)?.1.as_ref()
    }
}

impl Culprits {
    /// Returns empty findings; CPUs are observed if `observe` is set and a deadline is in force.
    pub fn new(observe: bool) -> Self {
        let since = tidegate_switch::clock::clock();
        Self {
            observe,
            pace: Pace::default(),
            meter: None,
            intervals: VecDeque::new(),
            since,
            found: BTreeMap::new(),
            looks: 0,
        }
    }

    /// Observes the workers of the switch with this process id while a vNIC `has_deadline`, and a while
    /// longer.
    pub fn observe(&mut self, process: u32, has_deadline: bool) {
        let step =
            if self.observe { self.pace.step(Instant::now(), process, has_deadline) } else { Step::Rest };
        if step == Step::Keep {
            return;
        }
        // The programs end with it: a host without deadlines pays nothing. Those of an earlier switch end
        // first.
        self.meter = None;
        self.intervals.clear();
        if step == Step::Wait {
            // Misses before the load stay unexplained.
            self.since = u64::MAX;
        }
        if step == Step::Load {
            let loaded = NoiseMeter::load(process).map_err(|e| e.to_string());
            let loaded = loaded.inspect_err(|why| {
                tracing::warn!(
                    "the agent does not observe what keeps workers from their CPUs: {why}. As the cause of a late \
                     frame it names long loops of the worker only"
                );
            });
            self.since = tidegate_switch::clock::clock();
            self.meter = Some((process, loaded));
        }
    }

    /// Returns why CPUs are not observed during a deadline; `None` if they are.
    fn unobserved(&self) -> Option<&str> {
        match &self.meter {
            _ if !self.observe => Some("the agent was started with --observe-cpu off"),
            Some((_, Err(why))) => Some(why),
            _ => None,
        }
    }

    /// Names the culprits of new misses of these vNICs; forgets all others.
    pub fn look<'a>(&mut self, reader: &Reader, vnics: impl Iterator<Item = &'a str>) {
        let until = tidegate_switch::clock::clock().saturating_sub(SETTLED);
        let waits = |name| reader.late_waits(name).into_iter().take_while(|wait| wait.to <= until).collect();
        let waits: BTreeMap<&str, Vec<LateWait>> = vnics.map(|name| (name, waits(name))).collect();
        self.found.retain(|name, _| waits.contains_key(name.as_str()));
        // After the misses: the fetched intervals now include all their causes.
        if let Some((_, Ok(meter))) = &self.meter {
            self.intervals.extend(meter.take());
            let old = self.intervals.len().saturating_sub(REMEMBERED);
            self.intervals.drain(..old);
        }
        let mut new = Vec::new();
        for (name, waits) in waits {
            let found = self.found.entry(name.to_owned()).or_default();
            let mut before = std::mem::take(&mut found.looked_at);
            let mut is_new = |wait: &LateWait| {
                let known = before.remove(&wait.number).filter(|(to, _)| *to == wait.to);
                let is_new = known.is_none() && wait.asleep >= self.since;
                // Also a miss for which there is no time.
                found.looked_at.insert(wait.number, known.unwrap_or((wait.to, None)));
                is_new
            };
            let waits: Vec<LateWait> = waits.into_iter().filter(|wait| is_new(wait)).collect();
            if !waits.is_empty() {
                new.push((name, waits));
            }
        }
        let counts: Vec<usize> = new.iter().map(|(_, waits)| waits.len()).collect();
        let quotas = quota::quotas(&counts, MOST, self.looks);
        self.looks = self.looks.wrapping_add(1);
        let mut loops: BTreeMap<usize, Vec<LongLoop>> = BTreeMap::new();
        for ((name, waits), quota) in new.into_iter().zip(quotas) {
            let mut found = self.found.remove(name).unwrap_or_default();
            // Readers see the culprits of the latest first.
            for wait in &waits[waits.len() - quota..] {
                let loops = loops.entry(wait.worker).or_insert_with(|| reader.long_loops(wait.worker));
                let Some((delay, culprit)) = self.culprit(wait, loops) else { continue };
                tracing::warn!(
                    vnic = name,
                    culprit = culprit.kind,
                    delay = words::duration(delay),
                    "a deadline was missed: {} took {}",
                    culprit.what,
                    words::duration(culprit.took),
                );
                *found.counts.entry(culprit.kind.clone()).or_default() += 1;
                found.looked_at.insert(wait.number, (wait.to, Some(culprit)));
            }
            self.found.insert(name.to_owned(), found);
        }
    }

    /// Returns a frame's wait (ns) and its cause; `None` if the wake-up shows it was in time, or if it
    /// waited longer than any deadline.
    fn culprit(&self, wait: &LateWait, loops: &[LongLoop]) -> Option<(u64, Culprit)> {
        if wait.to.saturating_sub(wait.from) > LONGEST {
            return None;
        }
        let noise = || self.intervals.iter().filter(|interval| interval.worker == wait.worker);
        let from = woken(wait, noise()).unwrap_or(wait.from);
        let delay = wait.to.checked_sub(from).filter(|delay| *delay > wait.deadline)?;
        let meets = |began: u64, ended: u64| began < wait.to && from < ended;
        let noise = noise().filter(|interval| meets(interval.from, interval.to));
        let own = loops.iter().filter(|own| meets(own.began, own.ended));
        let spans: Vec<Span<What<'_>>> = own.map(What::of_loop).chain(noise.map(What::of_noise)).collect();
        Some((delay, words::culprit(&shares(from, wait.to, &spans))?))
    }

    /// Enters the findings.
    pub fn enter(&self, evidence: &mut Evidence) {
        for (name, found) in &self.found {
            for miss in evidence.misses.get_mut(name).into_iter().flatten() {
                miss.culprit = found.culprit(miss.number).cloned();
            }
            evidence.culprits.insert(name.clone(), found.counts.clone());
        }
        evidence.unobserved = self.unobserved().map(str::to_owned);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_evidence::MissCause;
    use tidegate_switch::stats::layout::{NO_PORT, VnicSlot};
    use tidegate_switch::stats::{LoopPart, Region};

    fn interval(from: u64, to: u64, noise: Noise) -> Interval {
        Interval { from, to, worker: 0, cpu: 1, noise }
    }

    #[test]
    fn a_late_wake_up_begins_when_the_worker_was_to_run() {
        let wait =
            LateWait { number: 1, worker: 0, asleep: 0, from: 5_000_000, to: 5_100_000, deadline: 1_000_000 };
        let woken = |noise: &[Interval]| woken(&wait, noise.iter());
        assert_eq!(woken(&[]), None);
        let late = interval(3_000_000, 4_990_000, Noise::Idle);
        assert_eq!(woken(std::slice::from_ref(&late)), Some(3_000_000));
        let before = interval(2_000_000, 3_000_000, Noise::Idle);
        assert_eq!(woken(&[before, late.clone()]), Some(2_000_000), "one after the other");
        let long_ago = interval(1_000_000, 1_500_000, Noise::Idle);
        assert_eq!(woken(&[long_ago, late]), Some(3_000_000), "it ran in between");
        assert_eq!(
            woken(&[interval(3_000_000, 4_990_000, Noise::Stolen)]),
            None,
            "nobody says that it was to run"
        );
        // The frame cannot have come earlier.
        let wait = LateWait { asleep: 4_000_000, ..wait };
        assert_eq!(
            super::woken(&wait, [interval(3_000_000, 4_990_000, Noise::Idle)].iter()),
            Some(4_000_000)
        );
    }

    /// Enters a miss of cause `worker` into a vNIC's log.
    fn enter(slot: &VnicSlot, number: u64, to: u64, delay: u64, slept: u64) {
        let record = &slot.miss_log[(number as usize - 1) % slot.miss_log.len()];
        record.at.set(to);
        record.delay.set(delay);
        record.slept.set(slept);
        record.deadline.set(1_000_000);
        record.dropped.set(NO_PORT);
        record.cause.set(MissCause::Worker as u64);
        record.number.set(number);
        slot.misses_seen.set(number);
    }

    #[test]
    fn a_switch_that_takes_over_goes_on_with_misses_or_begins_anew() {
        let [before, inherits, anew] = [1, 2, 3].map(|_| Region::create().unwrap());
        let mut culprits = Culprits::new(false);
        culprits.since = 0;
        let mut look = |region: &Region| {
            culprits.look(&Reader::open(region.file()).unwrap(), ["voice"].into_iter());
            let found = &culprits.found["voice"];
            (found.counts["unexplained"], found.culprit(1).map(|culprit| culprit.took))
        };
        enter(before.claim(1, "voice"), 1, 4_000_000, 2_000_000, 0);
        assert_eq!(look(&before), (1, Some(2_000_000)));
        assert_eq!(look(&before), (1, Some(2_000_000)), "each is looked at once");
        inherits.inherit(&Reader::open(before.file()).unwrap());
        assert_eq!(look(&inherits), (1, Some(2_000_000)));
        // As many misses as before, all unknown.
        enter(anew.claim(1, "voice"), 1, 5_000_000, 3_000_000, 0);
        assert_eq!(look(&anew), (2, Some(3_000_000)));
        assert_eq!(look(&anew), (2, Some(3_000_000)));
    }

    #[test]
    fn vnics_that_miss_all_the_time_hide_no_other() {
        let region = Region::create().unwrap();
        let names: Vec<String> = (0..6).map(|n| format!("tenant-{n}")).chain(["voice".into()]).collect();
        let slots: Vec<_> = (0..).zip(&names).map(|(index, name)| region.claim(index, name)).collect();
        let (voice, tenants) = slots.split_last().unwrap();
        for slot in tenants {
            (1..=32).for_each(|number| enter(slot, number, 4_000_000, 2_000_000, 0));
        }
        enter(voice, 1, 4_000_000, 2_000_000, 0);
        let mut culprits = Culprits::new(false);
        culprits.since = 0;
        culprits.look(&Reader::open(region.file()).unwrap(), names.iter().map(String::as_str));
        let counts: Vec<u64> = names.iter().map(|name| culprits.found[name].counts["unexplained"]).collect();
        assert_eq!(counts, [3, 3, 3, 2, 2, 2, 1]);
        let latest = |name: &String| culprits.found[name].culprit(32).is_some();
        assert!(names[..6].iter().all(latest), "the latest are looked at");
    }

    #[test]
    fn a_wait_longer_than_any_deadline_gets_no_culprit() {
        let region = Region::create().unwrap();
        let slot = region.claim(1, "voice");
        enter(slot, 1, 10_100_000_000, LONGEST + 1, 0);
        enter(slot, 2, 10_100_000_000, LONGEST, 0);
        let mut culprits = Culprits::new(false);
        culprits.since = 0;
        culprits.look(&Reader::open(region.file()).unwrap(), ["voice"].into_iter());
        let found = &culprits.found["voice"];
        assert_eq!(found.counts["unexplained"], 1);
        assert!(found.culprit(1).is_none() && found.culprit(2).is_some());
    }

    #[test]
    fn the_loop_that_held_a_frame_up_is_named_without_observing_cpus() {
        let region = Region::create().unwrap();
        let layout = region.layout();
        let slot = region.claim(3, "voice");
        let mut culprits = Culprits::new(false);
        culprits.since = 0;
        let miss = |number, to, delay, slept| enter(slot, number, to, delay, slept);
        let own = &layout.workers[0].long_loops[0];
        own.at.set(4_000_000);
        own.took.set(900_000);
        own.part.set(LoopPart::Ingress as u64);
        own.port.set(3);
        own.share.set(800_000);
        own.number.set(1);
        layout.workers[0].long_loops_seen.set(1);
        miss(1, 4_100_000, 1_200_000, 0);
        // Late only if it came just as the worker fell asleep, which is unknown.
        miss(2, 4_100_000, 10_000, 2_000_000);
        let reader = Reader::open(region.file()).unwrap();
        let look = |culprits: &mut Culprits| {
            culprits.look(&reader, ["voice", "other"].into_iter());
            let found = &culprits.found["voice"];
            (found.counts.clone(), found.culprit(1).cloned(), found.culprit(2).cloned())
        };
        let (counts, first, second) = look(&mut culprits);
        assert_eq!(counts, BTreeMap::from([("own_loop".into(), 1)]));
        let first = first.unwrap();
        assert_eq!(
            (first.what.as_str(), first.took),
            ("own loop of 900 us (800 us for frames of voice)", 900_000)
        );
        assert_eq!(second, None);
        // Each is examined once; this agent does not explain misses before its start.
        assert_eq!(look(&mut culprits).0["own_loop"], 1);
        miss(3, 9_000_000, 3_000_000, 0);
        culprits.since = 7_000_000;
        assert_eq!(look(&mut culprits).0["own_loop"], 1);
        assert_eq!(culprits.unobserved(), Some("the agent was started with --observe-cpu off"));
    }
}
