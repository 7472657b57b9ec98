//! The kernel as a place: limits, shares and marks on netdevs that are there already, and the VLANs of their bridge ports.
//!
//! ```text
//!  plan (pure) ──▶ KernelPlace ── contracts ─▶ shape: Shaping ─▶ tidegate_kernel: plan, steps ──▶ kernel
//!                    │    ▲                                                                        │
//!                    │    └──────────── observe: what differs, counters ◀──────────────────────────┘
//!                    └─▶ Record: what this place was told, on disk
//! ```
//!
//! Nothing has to run for limits to be kept. Whatever action is to be done, all of the namespace is brought to what the record says:
//! what others changed meanwhile is put right with it. A netdev that is gone keeps its contract, and is shaped when
//! it is there again.
//!
//! - `drift`: what there is to do, and whom it concerns
//! - `deadlines`: which frames of real-time vNICs were late
//! - `observe`: what is in force
//! - `plan`: from wanted and observed to actions
//! - `record`: what this place was told
//! - `port`: the VLANs that a bridge port had before
//! - `shape`: from a contract to limits
//! - `waits`: how long frames waited

mod deadlines;
mod drift;
mod observe;
mod plan;
mod port;
mod record;
mod shape;
mod waits;

use crate::durable::DurableError;
use crate::place::{Action, Capabilities, Observed, Place, PlaceError, Refusal, Wanted};
use deadlines::DeadlineWatch;
use record::{Record, Told};
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use tidegate_contract::{Attach, Vnic};
use tidegate_kernel::{
    Device, Ends, Kernel, Marks, Missing, Network, ObserveError, Plan, Port, Shaping, Step, StepError,
    Theirs, Ways, plan as steps_for,
};
use waits::WaitMeter;

/// How often a plan is made anew because something vanished while it was done.
const ATTEMPTS: usize = 3;

/// The kernel of the agent's network namespace.
pub struct KernelPlace {
    kernel: Option<Kernel>,
    record: Record,
    /// Interface index of each netdev as it was last seen shaped, by vNIC: another one is another device.
    shaped: BTreeMap<String, u32>,
    /// Interface index of each netdev that gets a contract with the change that was planned last, by vNIC.
    coming: BTreeMap<String, u32>,
    /// The bridge port of each netdev that gets a segment with that change, as it is, by vNIC.
    ports: BTreeMap<String, Port>,
    /// The last look found something of ours that belongs to no netdev with a contract.
    left_over: bool,
    /// What the kernel lacks, once somebody wanted to know; `None` where it cannot be tried.
    missing: OnceCell<Option<Missing>>,
    waits: WaitMeter,
    deadlines: DeadlineWatch,
}

impl KernelPlace {
    /// What it was told is kept in `state`. The second value is what was damaged.
    pub fn new(state: &Path) -> Result<(Self, Option<String>), DurableError> {
        let (record, damage) = Record::load(state)?;
        Ok((
            Self {
                kernel: None,
                record,
                shaped: BTreeMap::new(),
                coming: BTreeMap::new(),
                ports: BTreeMap::new(),
                left_over: false,
                missing: OnceCell::new(),
                waits: WaitMeter::default(),
                deadlines: DeadlineWatch::default(),
            },
            damage,
        ))
    }

    /// The contracts it was last told to keep.
    pub fn made(&self) -> Vec<Vnic> {
        self.told().into_iter().cloned().collect()
    }

    fn kernel(&mut self) -> Result<&mut Kernel, PlaceError> {
        if self.kernel.is_none() {
            let opened = Kernel::open();
            let opened =
                opened.map_err(|e| PlaceError::Unreachable(format!("cannot talk to the kernel: {e}")))?;
            self.kernel = Some(opened);
        }
        self.kernel.as_mut().ok_or_else(|| PlaceError::Unreachable("the kernel is not spoken to".into()))
    }

    /// All of it; with the VLANs of bridge ports where some contract says them.
    fn network(&mut self, vlans: bool) -> Result<Network, PlaceError> {
        self.look_with(vlans, Kernel::observe)
    }

    fn look_with(
        &mut self,
        vlans: bool,
        look: impl FnOnce(&mut Kernel) -> Result<Network, ObserveError>,
    ) -> Result<Network, PlaceError> {
        let kernel = self.kernel()?;
        let network = look(kernel).and_then(|mut network| {
            if vlans {
                kernel.read_vlans(&mut network)?;
            }
            Ok(network)
        });
        // A conversation that broke off is begun anew.
        network.map_err(|e| {
            self.kernel = None;
            PlaceError::Unreachable(e.to_string())
        })
    }

    /// What the running kernel lacks. Where it cannot be tried, doing it says what is wrong.
    fn missing(&self) -> Option<&Missing> {
        let probe = || tidegate_kernel::probe().inspect_err(|why| tracing::warn!("{why}")).ok();
        self.missing.get_or_init(probe).as_ref()
    }

    /// The feature that the running kernel lacks to see to priority marks.
    fn cannot_mark(&self) -> Option<&str> {
        self.missing()?.marks.as_deref()
    }

    /// The plan on the running kernel. Whether that can mark is tried where there is something to mark: what is marked
    /// already needs no trial.
    fn plan_here(&self, wanted: &mut [Shaping], network: &Network) -> Plan {
        let plan = steps_for(wanted, network);
        let marks = plan.steps.iter().any(|step| matches!(step, Step::Mark { .. }));
        if !marks || self.cannot_mark().is_none() {
            return plan;
        }
        wanted.iter_mut().for_each(shape::leave_marks);
        steps_for(wanted, network)
    }

    /// The feature that the running kernel lacks for a shaping.
    fn lacks(&self, shaping: &Shaping, kind: Option<&str>) -> Option<String> {
        let missing = self.missing()?;
        if let (Some(Marks::Set { .. }), Some(lacking)) = (shaping.marks, &missing.marks) {
            let netdev = &shaping.netdev;
            return Some(format!(
                "this kernel cannot mark what {netdev} sends as real-time, as its deadline needs: it lacks {lacking}"
            ));
        }
        let ends = shaping.uses(kind).filter(|ends| *ends != Ends::default())?;
        let lacking = missing.egress.as_ref().filter(|_| ends.egress);
        let ingress = if shaping.tx_police.is_some() { &missing.police } else { &missing.ingress };
        let lacking = lacking.or(ingress.as_ref().filter(|_| ends.ingress))?;
        Some(format!("this kernel cannot limit {}: it lacks {lacking}", shaping.netdev))
    }

    /// Enters a contract, and brings the kernel to what the record says then; what others made is taken over where
    /// that is said. Where that fails, the record is as before, and the kernel too as far as it goes.
    fn tell(&mut self, vnic: &Vnic, take_over: bool) -> Result<(), PlaceError> {
        let known = self.record.known(&vnic.attach);
        let (mut held, mut theirs, port) =
            known.map_or_else(Default::default, |told| (told.held, told.theirs, told.port));
        if take_over {
            let found = self.find_theirs(vnic, held)?;
            if theirs.index != found.index {
                theirs = Theirs::default();
            }
            theirs.add(&found, Ends::BOTH);
            held = held.or(shape::limited(vnic));
        }
        let told = Told {
            vnic: vnic.clone(),
            held: shape::limited(vnic),
            theirs: theirs.clone(),
            port: port.clone(),
        };
        let before = self.record.set(&vnic.name, Some(told));
        let former = before.as_ref().map(|told| &told.vnic);
        let done = self
            .note(&vnic.name)
            .and_then(|()| self.settle_from(former, Some(vnic), Some(held)))
            .and_then(|()| self.give_back(&theirs))
            .map(|given| self.forget_given(&vnic.name, given))
            .and_then(|()| self.give_back_port(port.as_ref()));
        if done.is_err() {
            // Its port may have been remembered just now.
            let port = self.record.set(&vnic.name, before).and_then(|told| told.port);
            let undone = self
                .settle(Some(vnic), None)
                .and_then(|()| self.give_back(&theirs).map(drop))
                .and_then(|()| self.give_back_port(port.as_ref()));
            if let Err(error) = undone {
                tracing::warn!(vnic = vnic.name, %error, "cannot take back what was done of it; trying again soon");
            }
        }
        done
    }

    fn find_theirs(&mut self, vnic: &Vnic, held: Ways) -> Result<Theirs, PlaceError> {
        let network = self.network(shape::segment(vnic).is_some())?;
        let shaping =
            shape::shaping(vnic, held, &self.told()).map_err(|why| PlaceError::Failed(why.join("; ")))?;
        self.theirs(&shaping, &network).map_err(PlaceError::Failed)
    }

    /// Strikes a contract out; what others had there before is there again. It is on record until nothing of it is
    /// left, and on disk until that is accepted.
    fn forget(&mut self, vnic: &Vnic) -> Result<(), PlaceError> {
        let known = self.record.known(&vnic.attach);
        let (theirs, port) = known.map_or_else(Default::default, |told| (told.theirs, told.port));
        let before = self.record.set(&vnic.name, None);
        let gone = self
            .settle(Some(vnic), None)
            .and_then(|()| self.give_back(&theirs).map(drop))
            .and_then(|()| self.give_back_port(port.as_ref()));
        if gone.is_err() {
            self.record.set(&vnic.name, before);
            if let Err(error) = self.settle(Some(vnic), None) {
                tracing::warn!(vnic = vnic.name, %error, "cannot put back its limits; trying again soon");
            }
        }
        gone
    }

    /// Makes again what others had at the ends of a netdev that no contract limits any more; which ends those are.
    fn give_back(&mut self, theirs: &Theirs) -> Result<Ends, PlaceError> {
        if theirs.is_empty() {
            return Ok(Ends::default());
        }
        let network = self.network(false)?;
        // What was on a netdev that is gone went with it.
        let Some(link) = network.links.get(&theirs.index) else { return Ok(Ends::BOTH) };
        let here = self.record.iter().filter(|t| observe::netdev(&t.vnic) == Some(link.name.as_str()));
        let limited = here.map(|t| shape::limited(&t.vnic)).fold(Ways::NONE, Ways::or);
        let free = Ends::BOTH.without(limited.ends(link.kind.as_deref()).unwrap_or_default());
        let kernel = self.kernel()?;
        for step in theirs.again(link, free) {
            tracing::info!(%step, "giving back");
            kernel.apply(&step).map_err(step_failed)?;
        }
        Ok(free)
    }

    /// What was given back is not remembered any more.
    fn forget_given(&mut self, name: &str, given: Ends) {
        if let Some(told) = self.record.get_mut(name) {
            told.theirs.remove(given);
        }
    }

    /// The contracts it was last told to keep.
    fn told(&self) -> Vec<&Vnic> {
        self.record.iter().map(|told| &told.vnic).collect()
    }

    /// The netdevs that a change of one contract is about: its own, and those it promises something to. And those that
    /// have a share of what one of these sends.
    fn concerned(&self, about: &Vnic, former: Option<&Vnic>) -> (BTreeSet<String>, BTreeSet<String>) {
        let versions = || self.record.versions(&about.name).chain([about]).chain(former);
        let promised = versions().flat_map(|v| &v.to).flat_map(|to| self.record.versions(to));
        let concerned: Vec<&Vnic> = promised.chain(versions()).collect();
        let sends = |v: &&Vnic| v.to.iter().any(|to| concerned.iter().any(|c| c.name == *to));
        let senders = self.record.iter().map(|told| &told.vnic).filter(sends);
        let netdevs =
            |vnics: Vec<&Vnic>| vnics.into_iter().filter_map(observe::netdev).map(str::to_owned).collect();
        (netdevs(concerned.clone()), netdevs(senders.collect()))
    }

    fn note(&mut self, name: &str) -> Result<(), PlaceError> {
        let failed = |e| PlaceError::Failed(format!("nothing was changed, because it cannot be noted: {e}"));
        self.record.note(name).map_err(failed)
    }

    /// Brings the kernel to what the record says: the netdev of one contract, so that others that come and go are of no
    /// concern to it and their number not of its cost, or all of it. Where `about` is new, others' qdiscs are in its way
    /// but for what is `held`.
    fn settle(&mut self, about: Option<&Vnic>, held: Option<Ways>) -> Result<(), PlaceError> {
        self.settle_from(None, about, held)
    }

    /// The same, where the contract was `former` just now: a change that is taken back leads from what the kernel has.
    fn settle_from(
        &mut self,
        former: Option<&Vnic>,
        about: Option<&Vnic>,
        held: Option<Ways>,
    ) -> Result<(), PlaceError> {
        let new = about.zip(held);
        let held = |told: &Told| match new {
            Some((vnic, held)) if vnic.name == told.vnic.name => held,
            _ => told.held,
        };
        let name = about.and_then(observe::netdev);
        // With the last contract all that is ours goes.
        let near = about.filter(|_| !self.record.is_empty()).map(|vnic| self.concerned(vnic, former));
        let netdev = name.filter(|_| new.is_some());
        let expected = new.and_then(|(vnic, _)| self.coming.get(&vnic.name).copied());
        // A device of that name that is gone has left its leaf.
        let mut known: BTreeSet<u32> = about
            .iter()
            .flat_map(|v| [self.shaped.get(&v.name), self.coming.get(&v.name)])
            .flatten()
            .copied()
            .collect();
        let vlans = self.record.iter().any(|told| shape::segment(&told.vnic).is_some());
        let mut failed = None;
        for _ in 0..ATTEMPTS {
            let network = self.look_with(vlans, |kernel| match &near {
                Some((names, senders)) => kernel.observe_near(names, senders, &known),
                None => kernel.observe(),
            })?;
            let concerned = near.iter().flat_map(|(names, _)| names);
            known.extend(concerned.filter_map(|name| network.by_name(name)).map(|(index, _)| index));
            let is_near = |netdev: Option<&str>| {
                near.as_ref().is_none_or(|(names, _)| netdev.is_some_and(|netdev| names.contains(netdev)))
            };
            let is_seen = |told: &&Told| network.near.is_none() || is_near(observe::netdev(&told.vnic));
            let all = self.told();
            let shaping = |told: &Told| shape::nearest(&told.vnic, held(told), &all);
            let mut wanted: Vec<Shaping> = self.record.iter().filter(is_seen).filter_map(shaping).collect();
            let there = netdev.and_then(|name| Some((name, network.by_name(name)?.0)));
            if let (Some(name), Some(index)) = (netdev, expected)
                && there != Some((name, index))
            {
                return Err(PlaceError::Failed(format!(
                    "interface {name} went away while its contract came into force; start its VM, and apply again"
                )));
            }
            let plan = self.plan_here(&mut wanted, &network);
            // One that is not there is shaped when it is.
            let refusal = plan.refusals.iter().find(|r| there.is_some_and(|(name, _)| r.netdev == name));
            if let Some(refusal) = refusal {
                return Err(PlaceError::Failed(refusal.reason.clone()));
            }
            self.remember_ports(&network, &plan)?;
            // Where all had to be looked at, others are no concern of it either.
            let is_near = |step: &&Step| match step.device() {
                Device::Netdev { index, .. } => near.is_none() || known.contains(&index),
                Device::Ifb => true,
            };
            let kernel = self.kernel()?;
            let mut apply = |step: &Step| {
                tracing::debug!(%step, "doing");
                kernel.apply(step)
            };
            match plan.steps.iter().filter(is_near).try_for_each(&mut apply) {
                Ok(()) => {
                    self.left_over &= near.is_some();
                    if let (Some((vnic, _)), Some((_, index))) = (new, there) {
                        self.shaped.insert(vnic.name.clone(), index);
                    }
                    return Ok(());
                }
                Err(e) => failed = Some(e),
            }
        }
        Err(failed.map_or_else(|| PlaceError::Failed("nothing was tried".into()), step_failed))
    }
}

fn step_failed(error: StepError) -> PlaceError {
    PlaceError::Failed(error.to_string())
}

impl Place for KernelPlace {
    fn name(&self) -> &'static str {
        "kernel"
    }

    fn capabilities(&self, attach: &Attach) -> Option<Capabilities> {
        let Attach::Netdev { name } = attach else { return None };
        let notes = vec![
            format!(
                "limits of {name} are kept by the kernel: what exceeds one waits in a queue, first come, first served"
            ),
            format!(
                "deadlines towards {name} are kept by strict priority, the shorter one first; etf is not used"
            ),
            "its source addresses are not checked by this place".into(),
        ];
        Some(Capabilities { deadline: true, min: true, uplink: false, notes })
    }

    fn plan(&self, wanted: &Wanted<'_>, observed: &Observed) -> Result<Vec<Action>, Vec<Refusal>> {
        plan::plan(wanted, observed)
    }

    fn prepare(&mut self, actions: &[&Action]) -> Result<(), PlaceError> {
        let coming = actions.iter().filter_map(|a| match a {
            // What others have there is noted with it, and held from then on.
            Action::TakeOver { to, .. } => Some((to, Ways::NONE)),
            Action::Create(vnic) | Action::Change { to: vnic, .. } => Some((vnic, shape::limited(vnic))),
            _ => None,
        });
        let coming = coming.map(|(vnic, held)| (vnic, held, self.ports.get(&vnic.name).cloned()));
        self.record.reserve(coming).map_err(|e| PlaceError::Failed(e.to_string()))
    }

    fn apply(&mut self, action: &Action) -> Result<(), PlaceError> {
        match action {
            // Where that is, nobody knows.
            Action::Change { from, to } if from == to && self.left_over => {
                self.tell(to, false).and_then(|()| self.settle(None, None))
            }
            Action::Reconnect(_) if self.left_over => self.settle(None, None),
            Action::Create(vnic) | Action::Change { to: vnic, .. } => self.tell(vnic, false),
            Action::TakeOver { to: vnic, .. } => self.tell(vnic, true),
            Action::Remove(vnic) => self.forget(vnic),
            // Its VM has just started.
            Action::Reconnect(vnic) => self.settle(Some(vnic), None),
            Action::SetHost { .. } | Action::Adopt(_) | Action::Own(_) | Action::Release(_) => Ok(()),
        }
    }

    fn observe(&mut self, coming: &[Vnic]) -> Result<Observed, PlaceError> {
        self.look(coming)
    }
}

impl std::fmt::Debug for KernelPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KernelPlace").field("record", &self.record).finish_non_exhaustive()
    }
}
