//! What is in force: what the kernel has, beside what this place was told.

use super::{KernelPlace, shape};
use crate::place::{Evidence, Keeper, Observed, ObservedVnic, PlaceError};
use std::collections::BTreeMap;
use std::time::Instant;
use tidegate_contract::{Attach, Vnic};
use tidegate_kernel::handle::Handle;
use tidegate_kernel::network::{Counters, Rule};
use tidegate_kernel::{Device, Link, Network, Plan, Shaping, owner, plan};
use tidegate_switch::control::Connection;
use tidegate_switch::stats::{Traffic, VnicStats};

impl KernelPlace {
    /// [`Place::observe`](crate::place::Place::observe).
    pub(super) fn look(&mut self, coming: &[Vnic]) -> Result<Observed, PlaceError> {
        let mut observed = nothing();
        observed.problem = self.record.save().err().map(|e| format!("no change can be made: {e}"));
        // A host without such contracts pays nothing.
        if self.record.is_empty() && coming.is_empty() {
            return Ok(observed);
        }
        let network = self.network()?;
        observed.evidence.taken = Instant::now();
        let held: Vec<(&Vnic, Shaping)> =
            self.record.iter().filter_map(|v| Some((v, shape::shaping(v, true).ok()?))).collect();
        let shapings: Vec<Shaping> = held.iter().map(|(_, s)| s.clone()).collect();
        let drift = plan(&shapings, &network);
        for (vnic, shaping) in &held {
            let mut there = there(vnic, Connection::Up);
            match network.by_name(&shaping.netdev) {
                None => {
                    there.connection = Connection::Disconnected;
                    let name = &shaping.netdev;
                    there.notes.push(format!("interface {name} is not there; it is shaped as soon as it is"));
                }
                Some((_, link)) => {
                    there.broken = differs(&drift, shaping);
                    there.notes.extend(shape::notes(shaping));
                    observed.evidence.vnics.insert(vnic.name.clone(), counted(vnic, link, &network));
                }
            }
            there.notes.extend(there.broken.clone());
            observed.vnics.insert(vnic.name.clone(), there);
        }
        observed.obstacles = self.obstacles(coming, &network);
        Ok(observed)
    }

    /// Why what is `coming` cannot be had.
    fn obstacles(&mut self, coming: &[Vnic], network: &Network) -> BTreeMap<String, String> {
        let mut obstacles = BTreeMap::new();
        for vnic in coming {
            let held = self.record.iter().any(|v| v.attach == vnic.attach);
            // What is wrong with the contract itself, the plan says.
            let Ok(shaping) = shape::shaping(vnic, held) else { continue };
            let missing = self.lacks(&shaping, network);
            let refused = plan(std::slice::from_ref(&shaping), network).refusals.into_iter().next();
            if let Some(why) = missing.or(refused.map(|r| r.reason)) {
                obstacles.insert(vnic.name.clone(), why);
            }
        }
        obstacles
    }
}

/// Nothing at all.
pub(super) fn nothing() -> Observed {
    Observed {
        host: None,
        vnics: BTreeMap::new(),
        obstacles: BTreeMap::new(),
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

/// What there is to do for a netdev that should be shaped already.
fn differs(drift: &Plan, shaping: &Shaping) -> Option<String> {
    let of_ours = |device: &Device| matches!(device, Device::Netdev { name, .. } if *name == shaping.netdev);
    let refused = drift.refusals.iter().find(|r| r.netdev == shaping.netdev).map(|r| r.reason.clone());
    let concerned = drift.steps.iter().find(|step| match step.device() {
        // What is on the IFB concerns everybody who sends.
        Device::Ifb => shaping.tx.is_some() || shaping.rx.is_some(),
        device => of_ours(&device),
    });
    refused.or_else(|| Some(format!("somebody changed its limits; to be done: {}", concerned?)))
}

/// What the classes of a netdev counted.
fn counted(vnic: &Vnic, link: &Link, network: &Network) -> VnicStats {
    let egress = link.class(owner::ROOT_CLASS).map(|c| c.counters);
    let index = network.by_name(&link.name).map(|(index, _)| index);
    let ingress = network.by_name(owner::IFB).and_then(|(_, ifb)| {
        let leads = |rule: &Rule| match rule {
            Rule::Classify { from, to } if *from == index => Some(*to),
            _ => None,
        };
        let class: Handle = ifb.filters.iter().find_map(|f| leads(&f.rule))?;
        ifb.class(class).map(|c| c.counters)
    });
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

fn traffic(counters: Option<Counters>, full: &str) -> Traffic {
    let Counters { bytes, packets, drops, .. } = counters.unwrap_or_default();
    Traffic {
        // The kernel counts segments only.
        frames: packets,
        wire_frames: packets,
        wire_bytes: bytes,
        dropped: (drops > 0).then(|| (full.to_owned(), drops)).into_iter().collect(),
        ..Traffic::default()
    }
}

/// The netdev of a contract.
pub(super) fn netdev(vnic: &Vnic) -> Option<&str> {
    match &vnic.attach {
        Attach::Netdev { name } => Some(name),
        _ => None,
    }
}
