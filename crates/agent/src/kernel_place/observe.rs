//! What is in force: what the kernel has, beside what this place was told.

use super::{KernelPlace, shape};
use crate::place::{Evidence, InTheWay, Keeper, Observed, ObservedVnic, PlaceError};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;
use tidegate_contract::{Attach, Vnic};
use tidegate_kernel::handle::Handle;
use tidegate_kernel::network::{Counters, Rule};
use tidegate_kernel::{
    Device, Link, Network, Plan, Policed, Port, Queue, Refusal, Shaping, Step, Theirs, Ways, owner, plan,
    rehearse,
};
use tidegate_switch::control::Connection;
use tidegate_switch::stats::{Traffic, VnicStats};

impl KernelPlace {
    /// [`Place::observe`](crate::place::Place::observe).
    pub(super) fn look(&mut self, coming: &[Vnic]) -> Result<Observed, PlaceError> {
        let mut observed = nothing();
        // Changes are made between two looks.
        self.record.accepted();
        self.coming.clear();
        self.ports.clear();
        observed.problem = self.record.save().err().map(|e| format!("no change can be made: {e}"));
        // A host without such contracts pays nothing.
        if self.record.is_empty() && coming.is_empty() {
            return Ok(observed);
        }
        let vnics = self.record.iter().map(|told| &told.vnic).chain(coming);
        let vlans = vnics.into_iter().any(|vnic| shape::segment(vnic).is_some());
        let network = self.network(None, vlans)?;
        let all = self.told();
        observed.evidence.taken = Instant::now();
        let held: Vec<(&Vnic, Shaping)> = self
            .record
            .iter()
            .filter_map(|t| Some((&t.vnic, shape::shaping(&t.vnic, t.held, &all).ok()?)))
            .collect();
        let shapings: Vec<Shaping> = held.iter().map(|(_, s)| s.clone()).collect();
        let drift = plan(&shapings, &network);
        let waited = self.waits.measure(&queues(&shapings, &network));
        for (vnic, shaping) in &held {
            let mut there = there(vnic, Connection::Up);
            match network.by_name(&shaping.netdev) {
                None => {
                    there.connection = Connection::Disconnected;
                    let name = &shaping.netdev;
                    there.notes.push(format!("interface {name} is not there; it is shaped as soon as it is"));
                }
                Some((index, link)) => {
                    let differs = differs(&drift, shaping, index, &network);
                    if differs.is_none() {
                        self.shaped.insert(vnic.name.clone(), index);
                    } else if self.shaped.get(&vnic.name) != Some(&index) {
                        // A VM that has just started, not somebody who changed something.
                        there.connection = Connection::Connected;
                    }
                    there.broken = differs;
                    there.notes.extend(shape::notes(shaping));
                    let mut counted = counted(vnic, link, &network);
                    match &waited {
                        // How long the VM waits to send; what it receives waits for its own `rx.max`.
                        Ok(waited) => {
                            let tx = Queue { index, ingress: link.kind.as_deref() != Some("macvtap") };
                            let waited = waited.get(&tx).cloned().unwrap_or_default();
                            counted.delay = waited.delay;
                            counted.throttled_ns = waited.throttled_ns;
                        }
                        Err(why) => there.notes.push(format!("how long frames wait is not measured: {why}")),
                    }
                    observed.evidence.vnics.insert(vnic.name.clone(), counted);
                }
            }
            there.notes.extend(there.broken.clone());
            observed.vnics.insert(vnic.name.clone(), there);
        }
        if let Some(left) = left_over(&drift, &shapings, &network) {
            // Of a VM that ended where there is one, else put there by somebody.
            let whose = observed.vnics.values().find(|o| o.connection == Connection::Disconnected);
            let whose = whose.or(observed.vnics.values().next()).map(|o| o.vnic.name.clone());
            let whose = whose.and_then(|name| observed.vnics.get_mut(&name));
            if let Some(vnic) = whose.filter(|o| o.broken.is_none()) {
                vnic.broken = Some(left);
            }
        }
        self.look_ahead(coming, &network, &mut observed);
        Ok(observed)
    }

    /// Why what is `coming` cannot be had, or what is in its way.
    fn look_ahead(&mut self, coming: &[Vnic], network: &Network, observed: &mut Observed) {
        for vnic in coming {
            let known = self.record.known(&vnic.attach);
            let (held, port) =
                known.as_ref().map_or((Ways::NONE, None), |told| (told.held, told.port.as_ref()));
            // What is wrong with the contract itself, the plan says.
            let all: Vec<&Vnic> = coming.iter().collect();
            let Ok(shaping) = shape::shaping(vnic, held, &all) else { continue };
            if let Some((index, link)) = network.by_name(&shaping.netdev)
                && shaping.segment.is_some()
                && !port.is_some_and(|port| port.is(index, link))
                && let Some(port) = Port::now(index, link)
            {
                self.ports.insert(vnic.name.clone(), port);
            }
            match network.by_name(&shaping.netdev) {
                // Its VM is not running: the change waits for it, as the contract does.
                None if known.is_some() => continue,
                Some((index, _)) if known.is_none() => drop(self.coming.insert(vnic.name.clone(), index)),
                _ => {}
            }
            let missing = self.lacks(&shaping, network);
            let refused = plan(std::slice::from_ref(&shaping), network).refusals.into_iter().next();
            let obstacle = match (missing, refused) {
                (Some(missing), _) => missing,
                (None, Some(Refusal { reason, theirs: Some(what), .. })) => {
                    match self.theirs(&shaping, network) {
                        Ok(_) => {
                            observed.in_the_way.insert(vnic.name.clone(), InTheWay { what, reason });
                            continue;
                        }
                        Err(why) => format!("{reason}; --adopt cannot take it over: {why}"),
                    }
                }
                (None, Some(refused)) => refused.reason,
                (None, None) => continue,
            };
            observed.obstacles.insert(vnic.name.clone(), obstacle);
        }
    }

    /// What others made where a shaping has no hold yet; it can be made again.
    pub(super) fn theirs(&mut self, shaping: &Shaping, network: &Network) -> Result<Theirs, String> {
        let name = &shaping.netdev;
        let (index, link) = network.by_name(name).ok_or_else(|| format!("interface {name} is not there"))?;
        let new = shaping.uses(link.kind.as_deref()).unwrap_or_default();
        let new = new.without(shaping.held.ends(link.kind.as_deref()).unwrap_or_default());
        let theirs = self.kernel().map_err(|e| e.to_string())?.theirs(index, new)?;
        rehearse(&theirs, name)?;
        Ok(theirs)
    }
}

/// Nothing at all.
pub(super) fn nothing() -> Observed {
    Observed {
        host: None,
        vnics: BTreeMap::new(),
        obstacles: BTreeMap::new(),
        in_the_way: BTreeMap::new(),
        evidence: Evidence {
            taken: Instant::now(),
            vnics: BTreeMap::new(),
            misses: BTreeMap::new(),
            workers: vec![],
            denied_calls: 0,
        },
        keeper: Keeper {
            version: std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().into(),
            ..Keeper::default()
        },
        problem: None,
    }
}

/// A vNIC of ours.
pub(super) fn there(vnic: &Vnic, connection: Connection) -> ObservedVnic {
    ObservedVnic {
        vnic: vnic.clone(),
        present: true,
        ours: true,
        found: None,
        connection,
        broken: None,
        last_error: None,
        refused_connections: 0,
        thrown_out: BTreeMap::new(),
        notes: vec![],
    }
}

/// The queues of what is shaped and there.
fn queues(shapings: &[Shaping], network: &Network) -> BTreeSet<Queue> {
    let of = |shaping: &Shaping| {
        let (index, link) = network.by_name(&shaping.netdev)?;
        let ends = shaping.uses(link.kind.as_deref())?;
        // What is policed does not wait.
        let ends = [(false, ends.egress), (true, ends.ingress && shaping.tx_police.is_none())];
        Some(ends.into_iter().filter(|(_, used)| *used).map(move |(ingress, _)| Queue { index, ingress }))
    };
    shapings.iter().filter_map(of).flatten().collect()
}

/// What there is to do for a netdev that should be shaped already.
fn differs(drift: &Plan, shaping: &Shaping, index: u32, network: &Network) -> Option<String> {
    let refused = drift.refusals.iter().find(|r| r.netdev == shaping.netdev).map(|r| r.reason.clone());
    let step = || drift.steps.iter().find(|step| concerns(step, &drift.steps, shaping, index, network));
    refused.or_else(|| Some(format!("its netdev is not as it should be, so: {}", step()?)))
}

/// What there is to do that concerns no netdev.
fn left_over(drift: &Plan, held: &[Shaping], network: &Network) -> Option<String> {
    let indexed: Vec<_> = held.iter().filter_map(|s| Some((s, network.by_name(&s.netdev)?.0))).collect();
    let nobodys =
        |step: &&Step| !indexed.iter().any(|(s, index)| concerns(step, &drift.steps, s, *index, network));
    Some(format!("something is left over, so: {}", drift.steps.iter().find(nobodys)?))
}

/// Whether frames of a netdev meet something else while a step, one of `steps`, is not done.
fn concerns(step: &Step, steps: &[Step], shaping: &Shaping, index: u32, network: &Network) -> bool {
    if let Some(sender) = sender(step, steps, network) {
        return sender == index;
    }
    let kind = network.links.get(&index).and_then(|l| l.kind.as_deref());
    let uses_ifb = shaping.uses(kind).is_some_and(|ends| ends.ingress);
    let is_ours = |device: &Device| matches!(device, Device::Netdev { index: i, .. } if *i == index);
    match step {
        Step::AddIfb | Step::DeleteIfb | Step::RaiseIfb => uses_ifb,
        // Of a sender that is gone.
        Step::DeleteClass { .. } => false,
        Step::DeleteFilter { filter, .. } if filter.parent == owner::ROOT_QDISC => false,
        Step::SetQdisc { device: Device::Ifb, parent: Handle::ROOT, .. } => uses_ifb,
        Step::SetQdisc { device: Device::Ifb, parent: class, .. }
        | Step::SetClass { device: Device::Ifb, id: class, .. } => leaf(network, index) == Some(*class),
        other => is_ours(&other.device()),
    }
}

/// The netdev whose frames a step about a class at the egress of another is for.
fn sender(step: &Step, steps: &[Step], network: &Network) -> Option<u32> {
    let (at, class) = match step {
        Step::SetClass { device: device @ Device::Netdev { .. }, id, .. } => (device, *id),
        Step::SetQdisc { device: device @ Device::Netdev { .. }, parent, .. } => (device, *parent),
        Step::Classify { from: Device::Netdev { index, .. }, .. } => return Some(*index),
        _ => return None,
    };
    let coming = steps.iter().find_map(|step| match step {
        Step::Classify { on, from: Device::Netdev { index, .. }, to } if (on, *to) == (at, class) => {
            Some(*index)
        }
        _ => None,
    });
    let Device::Netdev { index, .. } = at else { return coming };
    coming.or_else(|| {
        network.links.get(index)?.filters_at(owner::ROOT_QDISC).find_map(|f| match f.rule {
            Rule::Classify { from, to } if to == class => from,
            _ => None,
        })
    })
}

/// The class on the IFB that what came in by a netdev goes to.
fn leaf(network: &Network, index: u32) -> Option<Handle> {
    let (_, ifb) = network.by_name(owner::IFB)?;
    ifb.filters.iter().find_map(|f| match f.rule {
        Rule::Classify { from: Some(from), to } if from == index => Some(to),
        _ => None,
    })
}

/// What the class of all that a netdev sends counted. Its parts drop, and have what waits.
fn sent(link: &Link) -> Option<Counters> {
    let all = link.class(owner::ROOT_CLASS)?.counters;
    let parts = link.classes.iter().filter(|c| c.parent == owner::ROOT_CLASS).map(|c| c.counters);
    Some(parts.fold(all, |all, part| Counters {
        drops: all.drops + part.drops,
        backlog: all.backlog + part.backlog,
        ..all
    }))
}

/// What the classes of a netdev counted.
fn counted(vnic: &Vnic, link: &Link, network: &Network) -> VnicStats {
    let egress = sent(link);
    let ingress = network.by_name(&link.name).and_then(|(index, _)| {
        let (_, ifb) = network.by_name(owner::IFB)?;
        ifb.class(leaf(network, index)?).map(|c| c.counters)
    });
    if let Some(policed) = policed(link) {
        return VnicStats {
            name: vnic.name.clone(),
            tx: Traffic {
                frames: policed.frames,
                wire_frames: policed.frames,
                wire_bytes: policed.bytes,
                dropped: (policed.dropped > 0)
                    .then(|| ("policed".to_owned(), policed.dropped))
                    .into_iter()
                    .collect(),
            },
            rx: traffic(egress, "queue_full"),
            ..VnicStats::default()
        };
    }
    let macvtap = link.kind.as_deref() == Some("macvtap");
    let (tx, rx) = if macvtap { (egress, ingress) } else { (ingress, egress) };
    VnicStats {
        name: vnic.name.clone(),
        throttled: tx.is_some_and(|c| c.backlog > 0),
        tx: traffic(tx, "pool_full"),
        rx: traffic(rx, "queue_full"),
        ..VnicStats::default()
    }
}

/// What the policer at its ingress counted.
fn policed(link: &Link) -> Option<Policed> {
    link.filters.iter().find_map(|filter| match filter.rule {
        Rule::Police { map, .. } => {
            let policed = Policed::read(map);
            policed.inspect_err(|why| tracing::debug!(link = link.name, "{why}")).ok()
        }
        _ => None,
    })
}

fn traffic(counters: Option<Counters>, full: &str) -> Traffic {
    let Counters { bytes, packets, drops, .. } = counters.unwrap_or_default();
    Traffic {
        // The kernel counts segments only.
        frames: packets,
        wire_frames: packets,
        wire_bytes: bytes,
        dropped: (drops > 0).then(|| (full.to_owned(), drops)).into_iter().collect(),
    }
}

/// The netdev of a contract.
pub(super) fn netdev(vnic: &Vnic) -> Option<&str> {
    match &vnic.attach {
        Attach::Netdev { name } => Some(name),
        _ => None,
    }
}
