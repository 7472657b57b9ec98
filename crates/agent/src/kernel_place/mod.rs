//! The kernel as a place: limits on netdevs that are there already.
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
//! - `observe`: what is in force
//! - `plan`: from wanted and observed to actions
//! - `record`: what this place was told
//! - `shape`: from a contract to limits

mod observe;
mod plan;
mod record;
mod shape;

use crate::durable::DurableError;
use crate::place::{Action, Capabilities, Observed, Place, PlaceError, Refusal, Wanted};
use record::Record;
use std::collections::BTreeMap;
use std::path::Path;
use tidegate_contract::{Attach, Vnic};
use tidegate_kernel::{Kernel, Missing, Network, Shaping, Step, StepError, plan as steps_for};

/// How often a plan is made anew because something vanished while it was done.
const ATTEMPTS: usize = 3;

/// The kernel of the agent's network namespace.
pub struct KernelPlace {
    kernel: Option<Kernel>,
    record: Record,
    /// Interface index of each netdev as it was last seen shaped, by vNIC: another one is another device.
    shaped: BTreeMap<String, u32>,
    /// What the kernel lacks, once somebody wanted to know.
    missing: Option<Missing>,
}

impl KernelPlace {
    /// What it was told is kept in `state`. The second value is what was damaged.
    pub fn new(state: &Path) -> Result<(Self, Option<String>), DurableError> {
        let (record, damage) = Record::load(state)?;
        Ok((Self { kernel: None, record, shaped: BTreeMap::new(), missing: None }, damage))
    }

    /// The contracts it was last told to keep.
    pub fn made(&self) -> Vec<Vnic> {
        self.record.iter().cloned().collect()
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

    fn network(&mut self) -> Result<Network, PlaceError> {
        let network = self.kernel()?.observe();
        // A conversation that broke off is begun anew.
        network.map_err(|e| {
            self.kernel = None;
            PlaceError::Unreachable(e.to_string())
        })
    }

    /// The feature that the running kernel lacks for a shaping.
    fn lacks(&mut self, shaping: &Shaping, network: &Network) -> Option<String> {
        if self.missing.is_none() {
            // Where it cannot be tried, doing it says what is wrong.
            self.missing = tidegate_kernel::probe().inspect_err(|why| tracing::warn!("{why}")).ok();
        }
        let missing = self.missing.as_ref()?;
        let kind = network.by_name(&shaping.netdev).and_then(|(_, link)| link.kind.clone());
        let (egress, ingress) = shaping.uses(kind.as_deref())?;
        let lacking = missing.egress.as_ref().filter(|_| egress);
        let lacking = lacking.or(missing.ingress.as_ref().filter(|_| ingress))?;
        Some(format!("this kernel cannot limit {}: it lacks {lacking}", shaping.netdev))
    }

    /// Enters a contract, and brings the kernel to what the record says then. Where that fails, the record is as
    /// before, and the kernel too as far as it goes.
    fn tell(&mut self, vnic: &Vnic) -> Result<(), PlaceError> {
        let before = self.record.set(&vnic.name, Some(vnic.clone()));
        let known = before.as_ref().is_some_and(|b| b.attach == vnic.attach);
        let told = self.note().and_then(|()| self.settle((!known).then_some(vnic)));
        if told.is_err() {
            self.record.set(&vnic.name, before);
            if let Err(error) = self.settle(None) {
                tracing::warn!(vnic = vnic.name, %error, "cannot take back what was done of it; trying again soon");
            }
            // What is on disk says too much at worst, until the next look.
            let _ = self.record.save();
        }
        told
    }

    /// Strikes a contract out. It is on record until nothing of it is left.
    fn forget(&mut self, name: &str) -> Result<(), PlaceError> {
        let before = self.record.set(name, None);
        let gone = self.settle(None);
        if gone.is_err() {
            self.record.set(name, before);
        }
        // A disk that is full is a problem of its own, seen at the next look.
        let _ = self.record.save();
        gone
    }

    fn note(&mut self) -> Result<(), PlaceError> {
        let failed = |e| PlaceError::Failed(format!("nothing was changed, because it cannot be noted: {e}"));
        self.record.save().map_err(failed)
    }

    /// Brings the kernel to what the record says. Others' qdiscs are in the way of `new` only.
    fn settle(&mut self, new: Option<&Vnic>) -> Result<(), PlaceError> {
        let is_new = |v: &Vnic| new.is_some_and(|n| n.name == v.name);
        let wanted: Vec<Shaping> =
            self.record.iter().filter_map(|v| shape::shaping(v, !is_new(v)).ok()).collect();
        let mut failed = None;
        for _ in 0..ATTEMPTS {
            let network = self.network()?;
            let plan = steps_for(&wanted, &network);
            // One that is not there is shaped when it is.
            let netdev = new.and_then(observe::netdev).filter(|name| network.by_name(name).is_some());
            if let Some(refusal) = plan.refusals.iter().find(|r| Some(r.netdev.as_str()) == netdev) {
                return Err(PlaceError::Failed(refusal.reason.clone()));
            }
            let kernel = self.kernel()?;
            let mut apply = |step: &Step| {
                tracing::debug!(%step, "doing");
                kernel.apply(step)
            };
            match plan.steps.iter().try_for_each(&mut apply) {
                Ok(()) => return Ok(()),
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
            "its source addresses are not checked by this place".into(),
        ];
        Some(Capabilities { deadline: false, min: false, notes })
    }

    fn plan(&self, wanted: &Wanted<'_>, observed: &Observed) -> Result<Vec<Action>, Vec<Refusal>> {
        plan::plan(wanted, observed)
    }

    fn prepare(&mut self, actions: &[&Action]) -> Result<(), PlaceError> {
        let coming = actions.iter().filter_map(|a| if let Action::Create(v) = a { Some(v) } else { None });
        self.record.reserve(coming).map_err(|e| PlaceError::Failed(e.to_string()))
    }

    fn apply(&mut self, action: &Action) -> Result<(), PlaceError> {
        match action {
            Action::Create(vnic) | Action::Change { to: vnic, .. } => self.tell(vnic),
            Action::Remove(vnic) => self.forget(&vnic.name),
            Action::Reconnect(_) => self.settle(None),
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
