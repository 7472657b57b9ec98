//! The kernel as a place: limits, shares and marks on netdevs that are there already, and the VLANs of their bridge ports.
//!
//! ```text
//!  plan (pure) ──▶ KernelPlace ── contracts ─▶ shape: Shaping ─▶ crate: plan, steps ──▶ kernel
//!                    │    ▲                                                                        │
//!                    │    └──────────── observe: what differs, counters ◀──────────────────────────┘
//!                    └─▶ Record: what this place was entry, on disk
//! ```
//!
//! Nothing has to run for limits to be kept. Whatever action is to be done, all of the namespace is brought to what the record says:
//! what others changed meanwhile is put right with it. A netdev that is gone keeps its contract, and is shaped when
//! it is there again.
//!
//! - `plan`: from wanted and observed to actions
//! - `settle`: the kernel as the record says
//! - `observe`: what is in force
//! - `drift`: what there is to do, and whom it concerns
//! - `shape`: from a contract to limits
//! - `record`: what this place was entry
//! - `devices`: which devices a contract is about, where somebody renamed one
//! - `others`: what others made, taken over and given back
//! - `port`: the VLANs that a bridge port had before
//! - `qdiscs`: the qdiscs for short queues that the kernel has
//! - `deadlines`: which frames of real-time vNICs were late
//! - `unknown`: what the kernel does not count
//! - `waits`: how long frames waited

mod action;
mod bridge_port;
mod deadlines;
mod devices;
mod drift;
mod in_the_way;
mod observe;
mod plan;
mod qdiscs;
mod record;
mod settle;
mod shape;
mod take_over;
mod unknown;
mod waits;

use crate::ebpf::Marks;
use crate::foreign::{BridgePort as Port, TakenOver};
use crate::tc::{
    Ends, Flows, Kernel, Missing, Network, ObserveError, Plan, Shaping, Step, StepError, Ways,
    plan as steps_for,
};
use action::KernelAction;
use deadlines::DeadlineWatch;
use devices::Devices;
use in_the_way::InTheWayOf;
use qdiscs::KnownQdiscs;
use record::{Entry, Record};
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use tidegate_contract::{Attach, Vnic};
use tidegate_durable::DurableError;
use tidegate_place::{
    Adopt, Capabilities, ContractChange, Observed, Place, PlaceError, Plan as PlacePlan, Refusal, Wanted,
};
use waits::WaitMeter;

/// How often a plan is made anew because something vanished while it was done.
const ATTEMPTS: usize = 3;

/// What is asked for beside links, qdiscs, classes and filters.
#[derive(Clone, Copy, Debug, Default)]
struct Beside {
    /// The VLANs of bridge ports, where some contract says them.
    vlans: bool,
    /// Others' rules at ingresses, where something may wait for a limit before them.
    rules: bool,
}

impl Beside {
    /// What these contracts ask for.
    fn of<'a>(vnics: impl Iterator<Item = &'a Vnic>) -> Self {
        vnics.fold(Self::default(), |all, vnic| {
            let limited = shape::limited(vnic);
            Self { vlans: all.vlans || limited.segment, rules: all.rules || limited.tx || limited.rx }
        })
    }
}

/// The kernel of the agent's network namespace.
pub struct KernelPlace {
    kernel: Option<Kernel>,
    record: Record,
    /// Interface index of each netdev as it was last seen shaped, by vNIC: another one is another device.
    shaped: BTreeMap<String, u32>,
    /// The devices of each contract, also those that were renamed.
    devices: Devices,
    /// Interface index of each netdev that gets a contract with the change that was planned last, by vNIC.
    coming: BTreeMap<String, u32>,
    /// The bridge port of each netdev that gets a segment with that change, as it is, by vNIC.
    ports: BTreeMap<String, Port>,
    /// What was logged of rules that are gone past, while it is so.
    gone_past: BTreeSet<String>,
    /// Why others' rules could not be read at the last look.
    unread: Option<String>,
    /// Foreign objects in the way of the contracts that the last look was asked about.
    in_the_way: InTheWayOf,
    /// The last look found something of ours that belongs to no netdev with a contract.
    left_over: bool,
    /// What the kernel lacks, once somebody wanted to know; `None` where it cannot be tried.
    missing: OnceCell<Option<Missing>>,
    /// The qdiscs for short queues that the kernel has, once something was to wait in one.
    qdiscs: KnownQdiscs,
    waits: WaitMeter,
    /// The most flows that waited at a look, sent and received, by vNIC and interface index.
    flows_most: BTreeMap<(String, u32), [u64; 2]>,
    deadlines: DeadlineWatch,
}

impl KernelPlace {
    /// What it was entry is kept in `state`. The second value is what was damaged.
    pub fn new(state: &Path) -> Result<(Self, Option<String>), DurableError> {
        let (record, damage) = Record::load(state)?;
        tidegate_ebpf::log_by_tracing();
        Ok((
            Self {
                kernel: None,
                record,
                shaped: BTreeMap::new(),
                devices: Devices::default(),
                coming: BTreeMap::new(),
                ports: BTreeMap::new(),
                gone_past: BTreeSet::new(),
                unread: None,
                in_the_way: InTheWayOf::new(),
                left_over: false,
                missing: OnceCell::new(),
                qdiscs: KnownQdiscs::new(crate::tc::probe_queues),
                waits: WaitMeter::default(),
                flows_most: BTreeMap::new(),
                deadlines: DeadlineWatch::default(),
            },
            damage,
        ))
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

    /// All of it.
    fn network(&mut self, beside: Beside) -> Result<Network, PlaceError> {
        self.look_with(beside, Kernel::observe)
    }

    fn look_with(
        &mut self,
        beside: Beside,
        look: impl FnOnce(&mut Kernel) -> Result<Network, ObserveError>,
    ) -> Result<Network, PlaceError> {
        let kernel = self.kernel()?;
        let network = look(kernel).and_then(|mut network| {
            if beside.vlans {
                kernel.read_vlans(&mut network)?;
            }
            let unread = beside.rules.then(|| kernel.read_ingress_rules(&mut network).err()).flatten();
            Ok((network, unread))
        });
        // A firewall that changes all the time is no reason to keep no limits: what was read last is believed.
        let network = network.map(|(network, unread)| {
            let why = unread.map(|e| format!("others' rules at ingresses (nftables) cannot be read: {e}"));
            if let Some(why) = why.as_ref().filter(|why| self.unread.as_ref() != Some(why)) {
                tracing::warn!("{why}");
            }
            if beside.rules {
                self.unread = why;
            }
            network
        });
        // A conversation that broke off is begun anew.
        network.map_err(|e| {
            self.kernel = None;
            PlaceError::Unreachable(e.to_string())
        })
    }

    /// What the running kernel lacks. Where it cannot be tried, doing it says what is wrong.
    fn missing(&self) -> Option<&Missing> {
        let probe = || crate::tc::probe().inspect_err(|why| tracing::warn!("{why}")).ok();
        self.missing.get_or_init(probe).as_ref()
    }

    /// What is wanted, as the running kernel can have frames wait for it.
    fn queue_here(&self, wanted: &mut [Shaping]) {
        for shaping in wanted.iter_mut().filter(|shaping| shape::waiting(shaping).is_some()) {
            shape::have(shaping, self.qdiscs.get());
        }
    }

    /// The feature that the running kernel lacks to see to priority marks.
    fn cannot_mark(&self) -> Option<&str> {
        self.missing()?.marks.as_deref()
    }

    /// The plan on the running kernel. Whether that can mark is tried where there is something to mark: what is marked
    /// already needs no trial.
    fn plan_here(&self, wanted: &mut [Shaping], network: &Network) -> Plan {
        self.queue_here(wanted);
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
        if let Some(refusal) = shape::waiting(shaping).and_then(Flows::refusal) {
            return Some(refusal.into());
        }
        let ends = shaping.uses(kind).filter(|ends| *ends != Ends::default())?;
        let lacking = missing.egress.as_ref().filter(|_| ends.egress);
        let ingress = if shaping.tx_police.is_some() { &missing.police } else { &missing.ingress };
        let lacking = lacking.or(ingress.as_ref().filter(|_| ends.ingress))?;
        Some(format!("this kernel cannot limit {}: it lacks {lacking}", shaping.netdev))
    }

    /// Enters a contract, and brings the kernel to what the record says then; what others made is taken over as
    /// `adopt` says. Where that fails, the record is as before, and what was changed in the kernel is undone where it can be.
    fn enforce(&mut self, vnic: &Vnic, adopt: Adopt) -> Result<(), PlaceError> {
        let known = self.record.known(&vnic.attach);
        let (mut owned, mut theirs, port, devices) = known.map_or_else(Default::default, |entry| {
            (entry.owned, entry.taken_over, entry.port, entry.devices)
        });
        if adopt != Adopt::No {
            let found = self.find_foreign(vnic, owned, adopt)?;
            if theirs.index != found.index {
                theirs = TakenOver::default();
            }
            theirs.add(&found, Ends::BOTH);
            owned = owned.or(shape::limited(vnic));
        }
        let entry = Entry {
            vnic: vnic.clone(),
            owned: shape::limited(vnic),
            taken_over: theirs.clone(),
            port: port.clone(),
            devices,
        };
        let before = self.record.set(&vnic.name, Some(entry));
        let former = before.as_ref().map(|entry| &entry.vnic);
        let done = self
            .note(&vnic.name)
            .and_then(|()| self.settle_from(former, Some(vnic), Some(owned)))
            .and_then(|()| self.restore_foreign(&theirs))
            .map(|given| self.forget_restored(&vnic.name, given))
            .and_then(|()| self.restore_port(port.as_ref()));
        if done.is_err() {
            // Its port may have been remembered just now.
            let port = self.record.set(&vnic.name, before).and_then(|entry| entry.port);
            let undone = self
                .settle(Some(vnic), None)
                .and_then(|()| self.restore_foreign(&theirs).map(drop))
                .and_then(|()| self.restore_port(port.as_ref()));
            if let Err(error) = undone {
                tracing::warn!(vnic = vnic.name, %error, "cannot take back what was done of it; trying again soon");
            }
        }
        done
    }

    /// Strikes a contract out; what others had there before is there again. It is on record until nothing of it is
    /// left, and on disk until that is accepted.
    fn release(&mut self, vnic: &Vnic) -> Result<(), PlaceError> {
        let known = self.record.known(&vnic.attach);
        let (theirs, port) = known.map_or_else(Default::default, |entry| (entry.taken_over, entry.port));
        let before = self.record.set(&vnic.name, None);
        let gone = self
            .settle(Some(vnic), None)
            .and_then(|()| self.restore_foreign(&theirs).map(drop))
            .and_then(|()| self.restore_port(port.as_ref()));
        if gone.is_err() {
            self.record.set(&vnic.name, before);
            if let Err(error) = self.settle(Some(vnic), None) {
                tracing::warn!(vnic = vnic.name, %error, "cannot put back its limits; trying again soon");
            }
        }
        gone
    }

    fn note(&mut self, name: &str) -> Result<(), PlaceError> {
        let failed = |e| PlaceError::Failed(format!("nothing was changed, because it cannot be noted: {e}"));
        self.record.note(name).map_err(failed)
    }
}

fn step_failed(error: StepError) -> PlaceError {
    PlaceError::Failed(error.to_string())
}

impl Place for KernelPlace {
    type Action = KernelAction;
    type Facts = InTheWayOf;

    fn name(&self) -> &'static str {
        "kernel"
    }

    fn capabilities(&self, attach: &Attach) -> Option<Capabilities> {
        let Attach::Netdev { .. } = attach else { return None };
        let notes = vec!["its source addresses are not checked by this place".into()];
        Some(Capabilities { deadline: true, min: true, uplink: false, notes })
    }

    fn notes(&self, vnic: &Vnic) -> Vec<String> {
        let of_all = self.capabilities(&vnic.attach).map(|capabilities| capabilities.notes);
        let taken_over = self.in_the_way.get(&vnic.name).map(in_the_way::InTheWay::note);
        let promises = shape::how_its_deadline_is_kept(vnic);
        shape::how_limits_are_kept(vnic, || self.qdiscs.get())
            .into_iter()
            .chain(promises)
            .chain(of_all.unwrap_or_default())
            .chain(taken_over)
            .collect()
    }

    fn plan(
        &self,
        wanted: &Wanted<'_>,
        observed: &Observed,
        in_the_way: &InTheWayOf,
    ) -> Result<PlacePlan<KernelAction>, Vec<Refusal>> {
        plan::plan(wanted, observed, in_the_way).map(PlacePlan::from)
    }

    fn prepare(&mut self, actions: &[&KernelAction]) -> Result<(), PlaceError> {
        use ContractChange::{Change, Create};
        let coming = actions.iter().filter_map(|action| match action {
            // Its foreign objects are entered, and its ends owned, when they are taken over.
            KernelAction::TakeOver { to, .. } => Some((to, Ways::NONE)),
            KernelAction::Contract(Create(vnic) | Change { to: vnic, .. }) => {
                Some((vnic, shape::limited(vnic)))
            }
            _ => None,
        });
        let coming = coming.map(|(vnic, owned)| (vnic, owned, self.ports.get(&vnic.name).cloned()));
        self.record.reserve(coming).map_err(|e| PlaceError::Failed(e.to_string()))
    }

    fn apply(&mut self, action: &KernelAction) -> Result<(), PlaceError> {
        use ContractChange::{Change, Create, Remove};
        match action {
            // The netdev of an incomplete object is not known: all netdevs are settled.
            KernelAction::Contract(Change { from, to }) if from == to && self.left_over => {
                self.enforce(to, Adopt::No).and_then(|()| self.settle(None, None))
            }
            KernelAction::Enforce(_) if self.left_over => self.settle(None, None),
            KernelAction::Enforce(vnic) => self.settle(Some(vnic), None),
            KernelAction::Contract(Create(vnic) | Change { to: vnic, .. }) => self.enforce(vnic, Adopt::No),
            KernelAction::Contract(Remove(vnic)) => self.release(vnic),
            KernelAction::TakeOver { to, anyway: false, .. } => self.enforce(to, Adopt::Exactly),
            KernelAction::TakeOver { to, anyway: true, .. } => self.enforce(to, Adopt::Anyway),
        }
    }

    fn accept(&mut self, _contracts: &[Vnic]) {
        self.record.accept();
    }

    fn observe(&mut self, coming: &[Vnic]) -> Result<(Observed, InTheWayOf), PlaceError> {
        let (observed, in_the_way) = self.look(coming)?;
        self.in_the_way.clone_from(&in_the_way);
        Ok((observed, in_the_way))
    }

    fn recorded(&self) -> Vec<Vnic> {
        self.record.iter().map(|entry| entry.vnic.clone()).collect()
    }
}

impl std::fmt::Debug for KernelPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KernelPlace").field("record", &self.record).finish_non_exhaustive()
    }
}
