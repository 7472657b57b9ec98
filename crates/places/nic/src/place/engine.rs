//! The traffic-engineering loops of this host's NICs, on a thread of their own.
//!
//! ```text
//!  place: terms, PF ─▶ loops ─ every period ─▶ counters ─▶ Controller::step ─▶ limits ─▶ NIC
//!                        └──▶ what is in force, and why ──▶ place
//! ```
//!
//! A thread that looks at a NIC holds the loops meanwhile: so it sees what they set last. Where the agent ends, the last
//! limits stay: together they are not more than the link carries.

use super::terms::{self, Terms};
use crate::control::{Controller, Pace, Standing, Usage};
use crate::counters::Meter;
use crate::device::{Abilities, Function, Nic, Pf, plan};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidegate_contract::Rate;

/// The task of one loop.
#[derive(Clone, Debug)]
pub struct Task {
    /// The capacity that the loop divides, and the functions that share it.
    pub terms: Terms,
    /// Shortest period of the loop.
    pub period: Duration,
    /// The NIC as of the last look.
    pub pf: Pf,
    /// The abilities of the NIC.
    pub abilities: Abilities,
    /// Whether the NIC enforces minima by itself, beside the limits.
    pub keeps_min: bool,
}

/// All loops, and the thread that runs them.
#[derive(Debug, Default)]
pub struct Engine {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Shared by the loops' thread and the threads that observe NICs.
#[derive(Debug, Default)]
pub struct Shared {
    loops: Mutex<Loops>,
    changed: Condvar,
}

/// The loops; they pause while the lock is held.
#[derive(Debug, Default)]
pub struct Loops {
    all: BTreeMap<String, Loop>,
    stop: bool,
}

#[derive(Debug)]
struct Loop {
    task: Task,
    controller: Controller,
    pace: Pace,
    due: Instant,
    /// The last reading, by function.
    read: BTreeMap<u16, Reading>,
    /// The reason for which the last turn did nothing, or only a part.
    trouble: Option<String>,
}

#[derive(Clone, Copy, Debug)]
struct Reading {
    bytes: u64,
    doubts: u64,
    at: Instant,
}

impl Engine {
    /// A handle to pause the loops.
    pub fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// Starts the thread if a loop exists, and wakes it for changed tasks.
    pub fn start(&mut self) {
        if self.thread.is_none() && !self.shared.lock().all.is_empty() {
            let shared = self.shared();
            match std::thread::Builder::new().name("nic-loop".into()).spawn(move || shared.run()) {
                Ok(thread) => self.thread = Some(thread),
                Err(error) => {
                    tracing::error!(%error, "no loop runs: cannot start its thread; trying again soon")
                }
            }
        }
        self.shared.changed.notify_all();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // It says itself why it failed.
            let _ = thread.join();
        }
    }
}

impl Loops {
    /// Whether a loop runs for this NIC.
    pub fn runs(&self, pf: &str) -> bool {
        self.all.contains_key(pf)
    }

    /// The limit that the loop set last for a function; `None` before the first.
    pub fn limit(&self, pf: &str, function: u16) -> Option<Rate> {
        self.standing(pf, function)?.limit
    }

    /// The state of a function in its loop.
    pub fn standing(&self, pf: &str, function: u16) -> Option<Standing> {
        self.all.get(pf)?.controller.standings().find(|s| s.id == function)
    }

    /// The period of a NIC's loop, and the reason for which its last turn did nothing, or only a part.
    pub fn pace(&self, pf: &str) -> Option<(Duration, Option<&str>)> {
        self.all.get(pf).map(|l| (l.pace.period(), l.trouble.as_deref()))
    }

    /// Starts, changes or (with `None`) ends the loop of a NIC.
    ///
    /// # Errors
    /// The task is not possible; a loop that runs keeps its task.
    pub fn set(&mut self, name: &str, task: Option<Task>) -> Result<(), String> {
        match task {
            Some(task) => self.set_task(name, task),
            None => {
                self.all.remove(name);
                Ok(())
            }
        }
    }

    /// Ends the loops of all other NICs.
    pub fn retain(&mut self, is_there: impl Fn(&str) -> bool) {
        self.all.retain(|pf, _| is_there(pf));
    }

    /// Enters the observed state of a NIC, and limits that its loop did not set.
    pub fn enter_observed(&mut self, pf: &Pf, set: impl Iterator<Item = (u16, Option<Rate>)>) {
        let Some(one) = self.all.get_mut(&pf.name) else { return };
        one.task.pf = pf.clone();
        for (function, limit) in set {
            match limit {
                Some(limit) => one.controller.found(function, limit),
                None => one.controller.forget(function),
            }
        }
    }

    fn set_task(&mut self, name: &str, task: Task) -> Result<(), String> {
        let words = |refused: Vec<crate::control::TermsError>| {
            refused.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
        };
        let Terms { link, members, tenants } = &task.terms;
        let Some(one) = self.all.get_mut(name) else {
            let controller = Controller::new(*link, members, tenants).map_err(words)?;
            let (pace, due, read) = (Pace::new(task.period), Instant::now(), BTreeMap::new());
            self.all.insert(name.to_owned(), Loop { task, controller, pace, due, read, trouble: None });
            return Ok(());
        };
        if one.task.terms != task.terms {
            one.controller.reconfigure(*link, members, tenants).map_err(words)?;
            one.due = Instant::now();
        }
        if one.task.period != task.period {
            one.pace = Pace::new(task.period);
        }
        one.task = task;
        Ok(())
    }
}

impl Shared {
    /// The loops, which pause until the guard is dropped.
    pub fn lock(&self) -> MutexGuard<'_, Loops> {
        self.loops.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut nic = None;
        let mut loops = self.lock();
        while !loops.stop {
            let now = Instant::now();
            for one in loops.all.values_mut().filter(|l| l.due <= now) {
                one.turn(&mut nic);
            }
            let next = loops.all.values().map(|l| l.due).min();
            let pause =
                next.map_or(Duration::from_secs(1), |due| due.saturating_duration_since(Instant::now()));
            loops = self.changed.wait_timeout(loops, pause).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Loop {
    fn turn(&mut self, nic: &mut Option<(Nic, Meter)>) {
        let begin = Instant::now();
        let trouble = self.try_turn(nic).err();
        if trouble != self.trouble {
            match &trouble {
                Some(why) => tracing::warn!(nic = self.task.pf.name, "its loop has a problem: {why}"),
                None => tracing::info!(nic = self.task.pf.name, "its loop runs"),
            }
            self.trouble = trouble;
        }
        self.due = begin + self.pace.spent(begin.elapsed());
    }

    fn try_turn(&mut self, nic: &mut Option<(Nic, Meter)>) -> Result<(), String> {
        if !self.task.pf.carrier {
            self.read.clear();
            return Err("there is no link".into());
        }
        if nic.is_none() {
            *nic = Some((Nic::open().map_err(|e| e.to_string())?, Meter::default()));
        }
        let (conversation, meter) = nic.as_mut().ok_or("no conversation")?;
        let usage = match self.usage(conversation, meter) {
            Ok(usage) => usage,
            Err(why) => {
                *nic = None;
                return Err(why);
            }
        };
        let changes = self.controller.step(&usage).to_vec();
        let mut trouble = None;
        // What could not be lowered, bit/s: others cannot have it.
        let mut missing = 0_u64;
        for change in changes {
            let (from, to) = (change.from.map_or(u64::MAX, Rate::bits), change.to.bits());
            let raised = if change.from.is_none() { 0 } else { to.saturating_sub(from) };
            if raised > 0 && missing > 0 {
                missing = missing.saturating_sub(raised);
                self.controller.not_set(change.id);
                continue;
            }
            if let Err(why) = self.set_limit(conversation, change.id, change.to) {
                missing = missing.saturating_add(from.saturating_sub(to));
                self.controller.not_set(change.id);
                trouble.get_or_insert(why);
            }
        }
        trouble.map_or(Ok(()), Err)
    }

    /// Bytes that each member sent since the last reading. The traffic of other functions lowers the link's capacity.
    fn usage(&mut self, nic: &mut Nic, meter: &mut Meter) -> Result<Vec<Option<Usage>>, String> {
        let counted = meter.read(nic, &self.task.pf).map_err(|e| e.to_string())?;
        let at = Instant::now();
        let mut used = BTreeMap::new();
        for (function, counted) in counted {
            let Some(bytes) = counted.tx.bytes else { continue };
            let doubts = counted.doubts.missed_wraps + counted.doubts.resets;
            let now = Reading { bytes: bytes.total, doubts, at };
            let before = self.read.insert(function, now);
            let before = before.filter(|b| b.doubts == doubts && b.bytes <= now.bytes);
            let sent = before.map(|b| Usage { bytes: now.bytes - b.bytes, elapsed: at - b.at });
            used.extend(sent.map(|usage| (function, usage)));
        }
        let members = &self.task.terms.members;
        let others = used.iter().filter(|(function, _)| !members.iter().any(|m| m.id == **function));
        let others: f64 = others.map(|(_, u)| u.bytes as f64 * 8.0 / u.elapsed.as_secs_f64().max(1e-3)).sum();
        let Task { terms, pf, .. } = &self.task;
        let carried = terms::carried(terms.link.capacity, pf.speed).bits();
        // Who has no contract cannot take what others are promised.
        let available = carried.saturating_sub(others as u64).max(terms.promised().min(carried));
        self.controller.set_capacity(Rate::from_bits(available.max(1)).unwrap_or(Rate::MAX));
        Ok(members.iter().map(|m| used.get(&m.id).copied()).collect())
    }

    /// Sets the limit of one function.
    fn set_limit(&mut self, nic: &mut Nic, function: u16, limit: Rate) -> Result<(), String> {
        let Task { terms, pf, abilities, keeps_min, .. } = &mut self.task;
        let min = terms.members.iter().find(|m| m.id == function).and_then(|m| m.min);
        // What is lent of a minimum is lent by its limit.
        let min = min.filter(|_| *keeps_min).map(|min| min.min(limit));
        let wanted = Function { index: function, tx_max: Some(limit), tx_min: min, ..Function::default() };
        let plan = plan(&[wanted], pf, abilities);
        let why = plan
            .refusals
            .into_iter()
            .map(|r| r.reason)
            .chain(plan.pending.into_iter().map(|p| p.reason))
            .next();
        if let Some(why) = why {
            return Err(why);
        }
        for step in &plan.steps {
            nic.apply(step).map_err(|e| e.to_string())?;
            step.done(pf);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{LinkTerms, Member};
    use tidegate_contract::Segment;

    fn task(minima: &[u64]) -> Task {
        let mbit = |n: u64| Rate::from_bits(n * 1_000_000);
        let member = |(id, min): (usize, &u64)| {
            let segment = Segment::new(1).expect("in range");
            Member { id: id as u16, max: None, min: mbit(*min), weight: 1, segment }
        };
        let members = minima.iter().enumerate().map(member).collect();
        let terms = Terms { link: LinkTerms::new(mbit(1000).expect("a rate")), members, tenants: Vec::new() };
        let pf = Pf { name: "eth1".into(), carrier: true, ..Pf::default() };
        let (period, abilities) = (Duration::from_millis(100), Abilities::default());
        Task { terms, period, pf, abilities, keeps_min: false }
    }

    #[test]
    fn a_loop_continues_with_its_old_task_if_the_new_one_does_not_fit() {
        let mut loops = Loops::default();
        loops.set("eth1", Some(task(&[300, 300]))).expect("it fits");
        loops.enter_observed(&task(&[]).pf, [(0, Rate::from_bits(400_000_000))].into_iter());
        assert_eq!(loops.limit("eth1", 0), Rate::from_bits(400_000_000));
        assert!(loops.set("eth1", Some(task(&[900, 300]))).is_err());
        assert_eq!(loops.limit("eth1", 0), Rate::from_bits(400_000_000), "nothing is forgotten");
        loops.enter_observed(&task(&[]).pf, [(0, None)].into_iter());
        assert_eq!(loops.limit("eth1", 0), None);
        loops.set("eth1", None).expect("it stops");
        assert!(!loops.runs("eth1"));
    }
}
