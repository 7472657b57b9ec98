//! The kernel as a place: limits, shares and marks on netdevs that are there already, and the VLANs of their bridge ports.
//!
//! ```text
//!  plan (pure) ──▶ KernelPlace ── contracts ─▶ shape: Shaping ─▶ crate: plan, steps ──▶ kernel
//!                    │    ▲                                                                        │
//!                    │    └──────────── observe: what differs, counters ◀──────────────────────────┘
//!                    └─▶ Record: the contracts of this place, on disk
//! ```
//!
//! The kernel enforces the limits without this process. Each action brings the kernel to the state of the record, and so repairs
//! the changes of other programs. The contract of a netdev that is gone stays, and applies when the netdev is back.
//!
//! - `plan`: from wanted and observed to actions
//! - `action`: the changes at this place
//! - `state`: the state between two calls
//! - `enforce`: one contract comes into force, or ends
//! - `settle`: steps that bring the kernel to the state of the record
//! - `observe`: the state in force
//! - `drift`: steps that are due, by vNIC
//! - `shape`: from a contract to limits
//! - `record`: the contracts, on disk
//! - `netdev`: the netdev that a contract names
//! - `devices`: the devices of a contract, also renamed ones
//! - `in_the_way`: foreign objects that a contract needs to take over
//! - `take_over`: foreign objects, taken over and restored
//! - `bridge_port`: the VLANs that a bridge port had before its contract
//! - `qdiscs`: the qdiscs for short queues that the kernel has
//! - `deadlines`: late frames of real-time vNICs
//! - `unknown`: counters that the kernel does not have
//! - `waits`: waiting times of frames

mod action;
mod bridge_port;
mod deadlines;
mod devices;
mod drift;
mod enforce;
mod in_the_way;
mod netdev;
mod observe;
mod plan;
mod qdiscs;
mod record;
mod settle;
mod shape;
mod state;
mod take_over;
mod unknown;
mod waits;

use crate::tc::Ways;
use action::KernelAction;
pub use state::KernelPlace;
use tidegate_contract::{Attach, Vnic};
use tidegate_durable::DurableError;
use tidegate_place::{
    Adopt, Capabilities, ContractChange, Installation, Observed, Place, PlaceError, Plan as PlacePlan,
    Refusal, Site, Wanted,
};

/// Installs the place.
///
/// # Errors
/// Its record cannot be read, or a newer release wrote it.
pub fn install(site: &Site<'_>) -> Result<Installation, DurableError> {
    let (place, damage) = KernelPlace::new(site.state)?;
    Ok(Installation::new(place, "kernel state", damage))
}

impl Place for KernelPlace {
    type Action = KernelAction;
    type Facts = plan::Facts;

    fn name(&self) -> &'static str {
        "kernel"
    }

    fn unit(&self) -> &'static str {
        tidegate_place::AGENT
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
        facts: &plan::Facts,
    ) -> Result<PlacePlan<KernelAction>, Vec<Refusal>> {
        plan::plan(wanted, observed, facts).map(PlacePlan::from)
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
            KernelAction::Enforce(_) if self.left_over => {
                if self.is_new {
                    tracing::warn!("objects that an earlier agent left in the kernel are removed");
                }
                self.settle(None, None)
            }
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

    fn observe(&mut self, coming: &[Vnic]) -> Result<(Observed, plan::Facts), PlaceError> {
        let (observed, in_the_way) = self.look(coming)?;
        self.in_the_way.clone_from(&in_the_way);
        Ok((observed, plan::Facts { in_the_way, of_earlier_agent: self.left_over && self.is_new }))
    }

    fn recorded(&self) -> Vec<Vnic> {
        self.record.iter().map(|entry| entry.vnic.clone()).collect()
    }
}
