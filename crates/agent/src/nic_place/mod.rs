//! NICs as a place: what SR-IOV functions may send, and as whom.
//!
//! ```text
//!  plan (pure) ──▶ NicPlace ── contracts ─▶ function ─▶ tidegate_nic: plan, steps ──▶ NIC
//!                    │   ▲                                                             │
//!                    │   ├──────────── observe: what differs, counters ◀───────────────┤
//!                    │   └── engine: a loop per NIC that needs one ─ limits, counters ─┘
//!                    └─▶ Record: what this place was told, and what functions were before, on disk
//! ```
//!
//! A function bypasses the host: what keeps its contract is the NIC alone. Limits stay in force without the agent; what a
//! NIC cannot keep by itself, such as minima, its loop keeps while the agent runs.
//!
//! - `abilities`: what a NIC takes, in words
//! - `engine`: the loops
//! - `function`: from a contract to what a NIC is told
//! - `observe`: what is in force
//! - `plan`: from wanted and observed to actions
//! - `record`: what this place was told
//! - `statistics`: what NICs count
//! - `terms`: what a loop is told

mod abilities;
mod engine;
mod function;
mod observe;
mod plan;
mod record;
mod statistics;
mod terms;

use crate::durable::DurableError;
use crate::place::{Action, Capabilities, Observed, Place, PlaceError, Refusal, Wanted};
use engine::Engine;
use function::address;
use observe::Seen;
use record::Record;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};
use tidegate_contract::{Attach, Nic as Settings, Rate, Vnic};
use tidegate_nic::{Abilities, Function, Nic, NicError, Pf, Step, plan as steps_for, probe::probe, undo};

/// A NIC that could not be asked for all of its abilities is asked again after so long.
const ASK_AGAIN: Duration = Duration::from_secs(10);

/// What a look showed is no more to be relied on after this.
const FRESH: Duration = Duration::from_millis(500);

/// The NICs of the agent's network namespace.
pub struct NicPlace {
    conversation: Conversation,
    record: Record,
    /// `[host.nic.NAME]`, in force.
    settings: BTreeMap<String, Settings>,
    /// What each NIC takes, and when it was asked.
    abilities: RefCell<BTreeMap<String, (Instant, Abilities)>>,
    /// The fastest that each link was seen.
    fastest: BTreeMap<String, Option<Rate>>,
    /// What the functions are that get a contract with the change that was planned last, by vNIC.
    coming: BTreeMap<String, Function>,
    /// As the last look showed them.
    seen: BTreeMap<String, Seen>,
    engine: Engine,
    /// Loops that cannot run, and why.
    refused_loops: BTreeMap<String, String>,
}

impl NicPlace {
    /// What it was told is kept in `state`. The second value is what was damaged.
    pub fn new(state: &Path) -> Result<(Self, Option<String>), DurableError> {
        let (record, damage) = Record::load(state)?;
        let place = Self {
            conversation: Conversation::default(),
            record,
            settings: BTreeMap::new(),
            abilities: RefCell::default(),
            fastest: BTreeMap::new(),
            coming: BTreeMap::new(),
            seen: BTreeMap::new(),
            engine: Engine::default(),
            refused_loops: BTreeMap::new(),
        };
        Ok((place, damage))
    }

    /// The contracts it was last told to keep.
    pub fn made(&self) -> Vec<Vnic> {
        self.record.vnics().cloned().collect()
    }

    /// What a NIC takes: asked once, and again where something could not be asked.
    fn abilities(&mut self, pf: &Pf) -> Result<Abilities, PlaceError> {
        let now = Instant::now();
        if let Some((asked, known)) = self.abilities.borrow().get(&pf.name)
            && (abilities::is_complete(known) || now.duration_since(*asked) < ASK_AGAIN)
        {
            return Ok(known.clone());
        }
        let abilities = self.conversation.ask(|nic| Ok(probe(nic, pf)))?;
        self.abilities.borrow_mut().insert(pf.name.clone(), (now, abilities.clone()));
        Ok(abilities)
    }

    /// Enters a contract and brings its NIC to what the record says then. Where that fails, all is as before.
    fn tell(&mut self, former: Option<&Vnic>, vnic: &Vnic) -> Result<(), PlaceError> {
        let Some((pf, _)) = address(vnic) else { return Ok(()) };
        self.record.enter(vnic);
        let Err(error) = self.settle(pf, Some(vnic)) else { return Ok(()) };
        match former {
            Some(former) => self.record.enter(former),
            None => self.record.strike(vnic),
        }
        Err(error)
    }

    /// Strikes a contract out: its function is as it was before.
    fn forget(&mut self, vnic: &Vnic) -> Result<(), PlaceError> {
        let Some((pf, _)) = address(vnic) else { return Ok(()) };
        let before = self.record.before(&vnic.attach).cloned();
        self.record.strike(vnic);
        let given = before.map_or(Ok(()), |before| self.give_back(pf, before));
        // Others may have what it had, and its loop has one less.
        let settled = given.and_then(|()| self.settle(pf, None));
        settled.inspect_err(|_| self.record.enter(vnic))
    }

    fn give_back(&mut self, pf: &str, before: Function) -> Result<(), PlaceError> {
        let Some(mut seen) = self.just_seen(pf)? else { return Ok(()) };
        let index = before.index;
        // Made anew since, or gone: it is nobody's.
        if !seen.pf.vfs.contains_key(&index) {
            return Ok(());
        }
        let plan = steps_for(&[before], &seen.pf, &seen.abilities);
        for refusal in plan.refusals.iter().map(|r| &r.reason).chain(plan.pending.iter().map(|p| &p.reason)) {
            tracing::warn!(nic = pf, "not all that its function had before is given back: {refusal}");
        }
        self.conversation.apply(&plan.steps, &mut seen.pf, Some(index))?;
        self.seen.insert(pf.to_owned(), seen);
        Ok(())
    }

    /// Brings all functions of a NIC to what the record says. What is refused, fails or is pending for others is no
    /// concern of the change `about` one.
    fn settle(&mut self, pf: &str, about: Option<&Vnic>) -> Result<(), PlaceError> {
        let held: Vec<Vnic> = self.made();
        let held: Vec<&Vnic> =
            held.iter().filter(|v| address(v).is_some_and(|(name, _)| name == pf)).collect();
        let Some(mut seen) = self.just_seen(pf)? else {
            return match about {
                Some(vnic) => Err(PlaceError::Failed(format!("{}: {pf} is gone", vnic.name))),
                None => Ok(()),
            };
        };
        self.set_loop(&held, &seen);
        // What is planned is done before a loop sets something else.
        let loops = self.engine.hold();
        let plan = Self::wishes(&self.settings(pf), &held, &seen, &loops);
        let index = about.and_then(address).map(|(_, index)| index);
        if let Some(refusal) = plan.refusals.iter().find(|r| Some(r.vf) == index) {
            return Err(PlaceError::Failed(refusal.reason.clone()));
        }
        self.conversation.apply(&plan.steps, &mut seen.pf, index)?;
        drop(loops);
        self.seen.insert(pf.to_owned(), seen);
        Ok(())
    }

    /// A NIC as the last look showed it, with what was done since: changes follow a look at once.
    fn just_seen(&mut self, pf: &str) -> Result<Option<Seen>, PlaceError> {
        match self.seen.remove(pf).filter(|seen| seen.at.elapsed() < FRESH) {
            Some(seen) => Ok(Some(seen)),
            None => self.see(pf),
        }
    }
}

/// The conversation with NICs, once there is something to say; begun anew when it broke off.
#[derive(Debug, Default)]
struct Conversation(Option<Nic>);

impl Conversation {
    fn nic(&mut self) -> Result<&mut Nic, NicError> {
        match &mut self.0 {
            Some(nic) => Ok(nic),
            none => Ok(none.insert(Nic::open()?)),
        }
    }

    /// A question.
    fn ask<T>(&mut self, question: impl FnOnce(&mut Nic) -> Result<T, NicError>) -> Result<T, PlaceError> {
        let answer = self.nic().and_then(question);
        answer.map_err(|error| {
            self.0 = None;
            PlaceError::Unreachable(format!("cannot talk to NICs' drivers: {error}"))
        })
    }

    /// All of them; `pf` is then as they leave it. Where one fails that is `about` this function, what was done is taken
    /// back; where another's does, it is tried again soon.
    fn apply(&mut self, steps: &[Step], pf: &mut Pf, about: Option<u16>) -> Result<(), PlaceError> {
        let nic = self.nic().map_err(|e| PlaceError::Unreachable(e.to_string()))?;
        let before = pf.clone();
        let mut done: Vec<Step> = Vec::new();
        for step in steps {
            tracing::debug!(%step, "doing");
            match nic.apply(step) {
                Ok(()) => {
                    step.done(pf);
                    done.push(step.clone());
                }
                Err(error) if step.vf() == about || step.vf().is_none() => {
                    for back in undo(&done, &before) {
                        if let Err(error) = nic.apply(&back) {
                            tracing::warn!(%error, "cannot take back; trying again soon");
                        }
                    }
                    return Err(PlaceError::Failed(error.to_string()));
                }
                Err(error) => tracing::warn!(%error, "a step for another contract failed; trying again soon"),
            }
        }
        Ok(())
    }
}

impl Place for NicPlace {
    fn name(&self) -> &'static str {
        "nic"
    }

    fn capabilities(&self, attach: &Attach) -> Option<Capabilities> {
        let Attach::Vf { pf, .. } = attach else { return None };
        let known = self.abilities.borrow().get(pf).map(|(_, abilities)| abilities::told(abilities));
        let notes = known.unwrap_or_default().into_iter().map(|line| format!("{pf} {line}")).collect();
        Some(Capabilities { deadline: false, min: true, uplink: true, notes })
    }

    fn plan(&self, wanted: &Wanted<'_>, observed: &Observed) -> Result<Vec<Action>, Vec<Refusal>> {
        plan::plan(wanted, observed)
    }

    fn prepare(&mut self, actions: &[&Action]) -> Result<(), PlaceError> {
        let coming = actions.iter().filter_map(|action| match action {
            Action::Create(vnic) => Some((&vnic.attach, self.coming.get(&vnic.name)?.clone())),
            _ => None,
        });
        let coming: Vec<_> = coming.collect();
        self.record.reserve(coming.into_iter()).map_err(|e| PlaceError::Failed(e.to_string()))
    }

    fn apply(&mut self, action: &Action) -> Result<(), PlaceError> {
        match action {
            Action::SetHost { to, .. } => {
                let before = std::mem::replace(&mut self.settings, to.nic.clone());
                let held = self.made();
                let pfs: BTreeSet<&str> = held.iter().filter_map(|v| Some(address(v)?.0)).collect();
                let settled = pfs.into_iter().try_for_each(|pf| self.settle(pf, None));
                settled.inspect_err(|_| self.settings = before)
            }
            Action::Create(vnic) => self.tell(None, vnic),
            Action::Change { from, to } => self.tell(Some(from), to),
            Action::Remove(vnic) => self.forget(vnic),
            Action::TakeOver { .. }
            | Action::Adopt(_)
            | Action::Own(_)
            | Action::Release(_)
            | Action::Reconnect(_) => Ok(()),
        }
    }

    fn observe(&mut self, coming: &[Vnic]) -> Result<Observed, PlaceError> {
        self.look(coming)
    }
}

impl std::fmt::Debug for NicPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NicPlace").field("record", &self.record).finish_non_exhaustive()
    }
}
