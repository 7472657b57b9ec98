//! The agent's directions: which CPU each worker, and which worker each vNIC is to use; and the report on them.
//!
//! ```text
//!  control socket ─▶ Directions ─┬▶ cpus: the CPU of each directed worker ──────────┐
//!                                └▶ placer, new ports: the worker of each vNIC ─────┴─▶ reasons ─▶ WorkStatus
//!                                                          traffic between ports ─────────────────────▲
//! ```
//!
//! The options `--cpus LIST`, `--cpus none` and `--placement fixed` prevail over directions.

use super::Switch;
use crate::capacity::VNICS;
use crate::clock::clock;
use crate::control::message::{NotFollowed, WorkStatus};
use crate::fdb::PortIndex;
use crate::port::talk::{PAIRS, PairTraffic};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tidegate_contract::Vnic;
use tidegate_cores::directions::Directions;

/// Traffic that was measured earlier is not told (ns): the placer does not measure idle workers.
const CURRENT: u64 = 3_000_000_000;
/// Traffic (cost a second) below which a pair is forgotten.
const LEAST: u64 = 1000;

/// The directions in force, and their outcome.
#[derive(Debug)]
pub struct Directed {
    state: Mutex<State>,
    /// The switch chooses its workers' CPUs: `--cpus auto`.
    chooses_cpus: bool,
    /// The switch chooses its vNICs' workers: not `--placement fixed`.
    chooses_workers: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    directions: Directions,
    /// Why workers are not on the CPUs directed.
    workers: BTreeMap<usize, String>,
    /// Why vNICs could not move to the workers directed, at the last try.
    vnics: BTreeMap<String, String>,
    /// Traffic of pairs of ports, cost a second, and when it was measured (ns).
    traffic: (u64, BTreeMap<(PortIndex, PortIndex), u64>),
}

impl Directed {
    /// Returns no directions.
    pub fn new(chooses_cpus: bool) -> Self {
        Self { state: Mutex::default(), chooses_cpus, chooses_workers: AtomicBool::new(false) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets directions choose the workers of vNICs.
    pub fn choose_workers(&self) {
        self.chooses_workers.store(true, Relaxed);
    }

    /// Returns the CPUs of directed workers.
    pub fn cpus(&self) -> BTreeMap<usize, usize> {
        self.state().directions.workers.clone()
    }

    /// Returns the workers of directed vNICs; none if the vNICs stay where they are.
    pub fn vnics(&self) -> BTreeMap<String, usize> {
        if self.chooses_workers.load(Relaxed) {
            self.state().directions.vnics.clone()
        } else {
            BTreeMap::new()
        }
    }

    /// Returns the worker of a directed vNIC.
    pub fn worker_of(&self, vnic: &str) -> Option<usize> {
        let directed = self.state().directions.vnics.get(vnic).copied();
        directed.filter(|_| self.chooses_workers.load(Relaxed))
    }

    /// Notes why workers are not on the CPUs directed; logs changes.
    pub fn note_workers(&self, reasons: BTreeMap<usize, String>) {
        let mut state = self.state();
        for (worker, reason) in reasons.iter().filter(|(worker, why)| state.workers.get(worker) != Some(why))
        {
            tracing::warn!(worker, "worker is not on the CPU that the agent directs: {reason}");
        }
        state.workers = reasons;
    }

    /// Notes the outcome of a vNIC's move.
    pub fn note_move(&self, vnic: &str, outcome: Result<(), String>) {
        match outcome {
            Ok(()) => drop(self.state().vnics.remove(vnic)),
            Err(reason) => drop(self.state().vnics.insert(vnic.into(), reason)),
        }
    }

    /// Adds the traffic of an interval of `time` ns, averaged with what was before.
    pub fn note_traffic(&self, time: u64, pairs: &[PairTraffic]) {
        let (at, traffic) = &mut self.state().traffic;
        let rate = |cost: u64| u128::from(cost) * 1_000_000_000 / u128::from(time.max(1));
        if clock().saturating_sub(*at) > CURRENT {
            traffic.clear();
        }
        *at = clock();
        traffic.values_mut().for_each(|rate| *rate /= 2);
        for (from, to, cost) in pairs {
            let half = u64::try_from(rate(*cost) / 2).unwrap_or(u64::MAX);
            let known = traffic.entry((*from, *to)).or_default();
            *known = known.saturating_add(half);
        }
        traffic.retain(|_, rate| *rate >= LEAST);
    }
}

impl Switch {
    /// Follows other directions from now on. Those that end leave the choice to the switch again.
    ///
    /// # Errors
    /// A worker does not exist, or there are more vNICs than a switch has. Nothing has changed.
    pub fn direct(&self, directions: Directions) -> Result<(), String> {
        let count = self.workers.len();
        let mut workers = directions.workers.keys().chain(directions.vnics.values());
        if let Some(worker) = workers.find(|worker| **worker >= count) {
            return Err(format!("there is no worker {worker}: the switch has {count} (--workers), from 0"));
        }
        if directions.vnics.len() > VNICS || !directions.vnics.keys().all(|name| Vnic::is_name(name)) {
            return Err(format!("directions name at most {VNICS} vNICs, by valid names"));
        }
        let mut state = self.directed.state();
        if state.directions != directions {
            tracing::info!(
                workers = directions.workers.len(),
                vnics = directions.vnics.len(),
                "the agent directs CPUs of workers and workers of vNICs"
            );
            let before = std::mem::replace(&mut state.directions, directions.clone());
            let stays = |name: &str| {
                directions.vnics.get(name).is_some_and(|worker| before.vnics.get(name) == Some(worker))
            };
            state.vnics.retain(|name, _| stays(name));
        }
        drop(state);
        self.realtime_changed();
        Ok(())
    }

    /// Whether a directed vNIC is not at its worker yet.
    pub(super) fn moves_are_due(&self) -> bool {
        let directed = self.directed.vnics();
        !directed.is_empty() && {
            let table = self.lock();
            let elsewhere = |(name, worker): (&String, &usize)| {
                table.entries.get(name).is_some_and(|entry| entry.worker != *worker)
            };
            directed.iter().any(elsewhere)
        }
    }

    /// Returns the directions in force, their outcome, and traffic between ports.
    pub fn work_status(&self) -> WorkStatus {
        let table = self.lock();
        let state = self.directed.state();
        let chooses_workers = self.directed.chooses_workers.load(Relaxed);
        let reason = |(name, worker): (&String, &usize)| {
            let why = match table.entries.get(name) {
                None if table.uplinks.contains_key(name) => "an uplink stays at its worker".into(),
                Some(entry) if entry.worker != *worker && !chooses_workers => {
                    "the switch was started with --placement fixed, which prevails".into()
                }
                Some(entry) if entry.worker != *worker => state.vnics.get(name)?.clone(),
                _ => return None,
            };
            Some((name.clone(), why))
        };
        let (at, traffic) = &state.traffic;
        let is_current = clock().saturating_sub(*at) <= CURRENT;
        let pairs = traffic.iter().filter(|_| is_current);
        let mut traffic: Vec<PairTraffic> = pairs.map(|((from, to), rate)| (*from, *to, *rate)).collect();
        traffic.sort_unstable_by_key(|(from, to, rate)| (Reverse(*rate), *from, *to));
        traffic.truncate(PAIRS);
        WorkStatus {
            chooses_cpus: self.directed.chooses_cpus,
            chooses_workers,
            not_followed: NotFollowed {
                workers: state.workers.clone(),
                vnics: state.directions.vnics.iter().filter_map(reason).collect(),
            },
            directions: state.directions.clone(),
            traffic,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn switch(workers: usize) -> std::sync::Arc<Switch> {
        Switch::start(workers, &[], None).unwrap()
    }

    fn directions(workers: &[(usize, usize)], vnics: &[(&str, usize)]) -> Directions {
        let vnics = vnics.iter().map(|(name, worker)| ((*name).into(), *worker));
        Directions { workers: workers.iter().copied().collect(), vnics: vnics.collect() }
    }

    #[test]
    fn directions_for_workers_that_do_not_exist_are_refused_as_a_whole() {
        let switch = switch(2);
        let valid = directions(&[], &[("a", 1)]);
        switch.direct(valid.clone()).unwrap();
        for wrong in [directions(&[(2, 0)], &[]), directions(&[], &[("a", 0), ("b", 2)])] {
            let error = switch.direct(wrong).unwrap_err();
            assert!(error.contains("there is no worker 2: the switch has 2"), "{error}");
        }
        assert!(switch.direct(directions(&[], &[("../a", 0)])).is_err());
        assert_eq!(switch.work_status().directions, valid);
        switch.direct(Directions::default()).unwrap();
        assert_eq!(switch.work_status().directions, Directions::default());
    }

    #[test]
    fn a_reason_ends_with_its_direction() {
        let switch = switch(2);
        switch.directed.choose_workers();
        switch.direct(directions(&[], &[("a", 1), ("b", 1)])).unwrap();
        for name in ["a", "b"] {
            switch.directed.note_move(name, Err("a worker is behind".into()));
        }
        switch.direct(directions(&[], &[("a", 0), ("b", 1)])).unwrap();
        assert_eq!(switch.directed.state().vnics.keys().collect::<Vec<_>>(), ["b"]);
        switch.directed.note_move("gone", Err("it came too late".into()));
        switch.direct(directions(&[], &[("a", 1), ("b", 1)])).unwrap();
        assert_eq!(switch.directed.state().vnics.keys().collect::<Vec<_>>(), ["b"]);
        switch.directed.note_move("b", Ok(()));
        assert!(switch.directed.state().vnics.is_empty());
        assert!(switch.work_status().not_followed.vnics.is_empty(), "neither vNIC is there");
    }

    #[test]
    fn traffic_is_a_rate_that_fades() {
        let directed = Directed::new(true);
        let half_second = 500_000_000;
        directed.note_traffic(half_second, &[(1, 2, 50_000), (2, 1, u64::MAX)]);
        let rates = || directed.state().traffic.1.clone();
        assert_eq!(rates()[&(1, 2)], 50_000);
        directed.note_traffic(half_second, &[(1, 2, 50_000)]);
        assert_eq!(rates()[&(1, 2)], 75_000);
        for _ in 0..70 {
            directed.note_traffic(half_second, &[]);
        }
        assert!(rates().is_empty());
    }
}
