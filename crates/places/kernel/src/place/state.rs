//! The state of the kernel place between two calls, and the questions that all its parts ask the kernel.

use super::deadlines::DeadlineWatch;
use super::devices::Devices;
use super::in_the_way::InTheWayOf;
use super::qdiscs::KnownQdiscs;
use super::record::Record;
use super::shape;
use super::waits::WaitMeter;
use crate::ebpf::Marks;
use crate::foreign::BridgePort as Port;
use crate::tc::{
    Ends, Flows, Kernel, Missing, Network, ObserveError, Plan, Shaping, Step, StepError, plan as steps_for,
};
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use tidegate_contract::Vnic;
use tidegate_durable::DurableError;
use tidegate_place::PlaceError;

/// Attempts at a plan, if a device vanishes while its steps are done.
pub const ATTEMPTS: usize = 3;

/// Observations beside links, qdiscs, classes and filters.
#[derive(Clone, Copy, Debug, Default)]
pub struct AlsoRead {
    /// The VLANs of bridge ports: a contract has a segment.
    pub vlans: bool,
    /// Foreign nftables rules at ingresses: frames of a limited vNIC may skip them.
    pub rules: bool,
}

impl AlsoRead {
    /// The observations that these contracts need.
    pub fn of<'a>(vnics: impl Iterator<Item = &'a Vnic>) -> Self {
        vnics.fold(Self::default(), |all, vnic| {
            let limited = shape::limited(vnic);
            Self { vlans: all.vlans || limited.segment, rules: all.rules || limited.tx || limited.rx }
        })
    }
}

/// The kernel of the agent's network namespace.
pub struct KernelPlace {
    pub(super) kernel: Option<Kernel>,
    pub(super) record: Record,
    /// Interface index of each netdev as it was last seen shaped, by vNIC: another one is another device.
    pub(super) shaped: BTreeMap<String, u32>,
    /// The devices of each contract, also those that were renamed.
    pub(super) devices: Devices,
    /// Interface index of each netdev that gets a contract with the change that was planned last, by vNIC.
    pub(super) coming: BTreeMap<String, u32>,
    /// The bridge port of each netdev that gets a segment with that change, as it is, by vNIC.
    pub(super) ports: BTreeMap<String, Port>,
    /// Warnings about skipped foreign rules that were logged and still hold.
    pub(super) bypass_notes: BTreeSet<String>,
    /// The reason why foreign rules could not be read at the last observation.
    pub(super) unread: Option<String>,
    /// Foreign objects in the way of the contracts that the last look was asked about.
    pub(super) in_the_way: InTheWayOf,
    /// The last observation found an object of ours that belongs to no netdev with a contract.
    pub(super) left_over: bool,
    /// No look so far found all objects to belong to netdevs with contracts.
    pub(super) is_new: bool,
    /// The features that the kernel lacks, probed at first use; `None` if the probe cannot run.
    pub(super) missing: OnceCell<Option<Missing>>,
    /// The qdiscs for short queues that the kernel has, once something was to wait in one.
    pub(super) qdiscs: KnownQdiscs,
    pub(super) waits: WaitMeter,
    /// The most flows that waited at a look, sent and received, by vNIC and interface index.
    pub(super) flows_most: BTreeMap<(String, u32), [u64; 2]>,
    pub(super) deadlines: DeadlineWatch,
}

impl KernelPlace {
    /// The place; its record is in the folder `state`. The second value describes a damaged record.
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
                bypass_notes: BTreeSet::new(),
                unread: None,
                in_the_way: InTheWayOf::new(),
                left_over: false,
                is_new: true,
                missing: OnceCell::new(),
                qdiscs: KnownQdiscs::new(crate::tc::probe_queues),
                waits: WaitMeter::default(),
                flows_most: BTreeMap::new(),
                deadlines: DeadlineWatch::default(),
            },
            damage,
        ))
    }

    /// The conversation with the kernel; opened anew after it broke off.
    pub fn kernel(&mut self) -> Result<&mut Kernel, PlaceError> {
        if self.kernel.is_none() {
            let opened = Kernel::open();
            let opened =
                opened.map_err(|e| PlaceError::Unreachable(format!("cannot talk to the kernel: {e}")))?;
            self.kernel = Some(opened);
        }
        self.kernel.as_mut().ok_or_else(|| PlaceError::Unreachable("the netlink socket is not open".into()))
    }

    /// The whole network, with `also_read`.
    pub fn network(&mut self, also_read: AlsoRead) -> Result<Network, PlaceError> {
        self.look_with(also_read, Kernel::observe)
    }

    /// The part of the network that `look` observes, with `also_read`.
    pub fn look_with(
        &mut self,
        also_read: AlsoRead,
        look: impl FnOnce(&mut Kernel) -> Result<Network, ObserveError>,
    ) -> Result<Network, PlaceError> {
        let kernel = self.kernel()?;
        let network = look(kernel).and_then(|mut network| {
            if also_read.vlans {
                kernel.read_vlans(&mut network)?;
            }
            let unread = also_read.rules.then(|| kernel.read_ingress_rules(&mut network).err()).flatten();
            Ok((network, unread))
        });
        // A firewall that changes all the time must not end the limits: the rules of the last successful read hold.
        let network = network.map(|(network, unread)| {
            let why =
                unread.map(|e| format!("nftables rules of other programs at ingresses cannot be read: {e}"));
            if let Some(why) = why.as_ref().filter(|why| self.unread.as_ref() != Some(why)) {
                tracing::warn!("{why}");
            }
            if also_read.rules {
                self.unread = why;
            }
            network
        });
        // The next call opens a new socket.
        network.map_err(|e| {
            self.kernel = None;
            PlaceError::Unreachable(e.to_string())
        })
    }

    /// The features that the running kernel lacks; `None` if the probe failed: then the first step that needs one fails.
    pub fn missing(&self) -> Option<&Missing> {
        let probe = || crate::tc::probe().inspect_err(|why| tracing::warn!("{why}")).ok();
        self.missing.get_or_init(probe).as_ref()
    }

    /// Adapts the wanted queueing to the running kernel.
    pub fn queue_here(&self, wanted: &mut [Shaping]) {
        for shaping in wanted.iter_mut().filter(|shaping| shape::waiting(shaping).is_some()) {
            shape::set_kernel_qdiscs(shaping, self.qdiscs.get());
        }
    }

    /// Returns the kernel's missing feature for priority marks, if any.
    pub fn cannot_mark(&self) -> Option<&str> {
        self.missing()?.marks.as_deref()
    }

    /// Returns the plan for the running kernel. Marking is probed only for new marks: existing ones need no
    /// probe.
    pub fn plan_here(&self, wanted: &mut [Shaping], network: &Network) -> Plan {
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
    pub fn lacks(&self, shaping: &Shaping, kind: Option<&str>) -> Option<String> {
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
}

pub fn step_failed(error: StepError) -> PlaceError {
    PlaceError::Failed(error.to_string())
}

impl std::fmt::Debug for KernelPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KernelPlace").field("record", &self.record).finish_non_exhaustive()
    }
}
