//! Frames from stage to stage.
//!
//! ```text
//!  vhost-net:   interrupt ─▶ receive stack of a NIC ─▶ vhost ◀─▶ virtual CPUs
//!                                                       └─▶ receive stack of the tap, transmission of the NIC
//!  vhost-user:  receive stack of a NIC ─▶ port of the uplink ◀─▶ port of the vNIC ◀─▶ virtual CPUs
//! ```
//!
//! Which queue and which virtual CPU a frame takes is not counted: a vNIC's frames are shared equally, the first queue with the first
//! virtual CPU and so on, as drivers of several queues do.

use super::frames::Frames;
use super::input::LookInput;
use super::nic::Nic;
use super::stages::Stages;
use crate::load::{Loads, prior};
use std::collections::BTreeMap;
use std::time::Duration;
use tidegate_contract::{Attach, UPLINK, Vnic};
use tidegate_cores::stage::{Handle, Link, Queue, Stage, ThreadKind};

/// Links being gathered; those between the same stages are added up.
struct Links<'a> {
    stages: &'a Stages,
    frames: BTreeMap<(Handle, Handle), u64>,
}

impl Links<'_> {
    /// Adds `frames` a second between stages that exist: the first with the first, and so on; the shorter list goes around.
    fn add(&mut self, from: &[Handle], to: &[Handle], frames: u64) {
        let exists = |handle: &&Handle| self.stages.get(handle).is_some();
        let (from, to): (Vec<_>, Vec<_>) =
            (from.iter().filter(exists).collect(), to.iter().filter(exists).collect());
        if from.is_empty() || to.is_empty() {
            return;
        }
        let pairs = from.len().max(to.len());
        for pair in 0..pairs {
            let (one, other) = (from[pair % from.len()].clone(), to[pair % to.len()].clone());
            if one == other {
                continue;
            }
            let ends = if one <= other { (one, other) } else { (other, one) };
            let sum = self.frames.entry(ends).or_default();
            *sum = sum.saturating_add(frames / pairs as u64);
        }
    }
}

/// Returns the links between the stages that frames take.
pub fn links(
    stages: &Stages,
    frames: &BTreeMap<String, Frames>,
    nics: &[Nic],
    uplinks: &BTreeMap<String, String>,
    loads: &Loads,
    input: &LookInput<'_>,
) -> Vec<Link> {
    let mut links = Links { stages, frames: BTreeMap::new() };
    let carried = |nic: &Nic, sent: bool| {
        loads.devices.per(&(nic.device.clone(), sent), Duration::from_secs(1)).unwrap_or(u64::MAX)
    };
    for vnic in input.contracts {
        let of = frames.get(&vnic.name).copied().unwrap_or_default();
        of_vnic(&mut links, vnic, of, nics, input);
        if !matches!(vnic.attach, Attach::Netdev { .. }) {
            continue;
        }
        // Of a vNIC in a bridge, no more than what its physical ports carry.
        let vhost = handles(&stages.threads_of(&vnic.name, ThreadKind::Vhost));
        for nic in nics.iter().filter(|nic| nic.for_vnics.contains(&vnic.name)) {
            links.add(&nic.receive_handles(), &vhost, of.received.min(carried(nic, false)));
            links.add(&vhost, &nic.transmit_handles(), of.sent.min(carried(nic, true)));
        }
    }
    for nic in nics {
        let known = Some(carried(nic, false)).filter(|frames| *frames != u64::MAX).unwrap_or(0);
        // The stack of an idle queue stays with its interrupt.
        let of_queue = (known / nic.receive.len().max(1) as u64).max(prior::IDLE);
        for (queue, _) in nic.receive_queues() {
            let irqs: Vec<Handle> = nic.irqs_of(queue).map(|irq| irq.handle(&nic.device)).collect();
            links.add(&irqs, &[Handle::Receive(nic.queue(queue))], of_queue);
        }
    }
    for (uplink, device) in uplinks {
        for nic in nics.iter().filter(|nic| nic.for_devices.contains(device)) {
            let port = [Handle::Port(uplink.clone())];
            let known = |sent| Some(carried(nic, sent)).filter(|frames| *frames != u64::MAX).unwrap_or(0);
            links.add(&nic.receive_handles(), &port, known(false));
            links.add(&port, &nic.transmit_handles(), known(true));
        }
    }
    let frames = |frames: u64| u32::try_from(frames).unwrap_or(u32::MAX);
    let link = |((from, to), of): ((Handle, Handle), u64)| Link { from, to, frames: frames(of) };
    links.frames.into_iter().filter(|(_, of)| *of > 0).map(link).collect()
}

fn of_vnic(links: &mut Links<'_>, vnic: &Vnic, of: Frames, nics: &[Nic], input: &LookInput<'_>) {
    let vcpus = handles(&links.stages.threads_of(&vnic.name, ThreadKind::Vcpu));
    let port = [Handle::Port(vnic.name.clone())];
    match &vnic.attach {
        Attach::Netdev { name } => {
            let vhost = handles(&links.stages.threads_of(&vnic.name, ThreadKind::Vhost));
            links.add(&vhost, &vcpus, of.both());
            links.add(&vhost, &stacks(name, vnic.queues), of.sent);
        }
        Attach::VhostUser { .. } => links.add(&port, &vcpus, of.both()),
        // The stack runs where the switch writes.
        Attach::Tap { .. } => {}
        Attach::Vf { .. } => {
            let own = nics.iter().flat_map(|nic| nic.irqs.iter().map(move |irq| (nic, irq)));
            let own = own.filter(|(_, irq)| irq.vnic.as_ref() == Some(&vnic.name));
            let irqs: Vec<Handle> = own.map(|(nic, irq)| irq.handle(&nic.device)).collect();
            links.add(&irqs, &vcpus, of.received);
        }
    }
    // Its peers, as the contract names them: who talks with whom is not counted here.
    for peer in &vnic.to {
        let peers: Vec<Handle> =
            if peer == UPLINK || input.network.remotes.iter().any(|remote| remote.name == *peer) {
                input.network.uplinks.iter().map(|uplink| Handle::Port(uplink.name.clone())).collect()
            } else {
                vec![Handle::Port(peer.clone())]
            };
        links.add(&port, &peers, of.sent / vnic.to.len() as u64);
    }
}

fn handles(stages: &[&Stage]) -> Vec<Handle> {
    stages.iter().map(|stage| stage.handle.clone()).collect()
}

/// Returns the receive stacks of a tap.
fn stacks(device: &str, queues: u16) -> Vec<Handle> {
    let queue = |queue| Queue { device: device.to_owned(), queue };
    (0..queues).map(queue).map(Handle::Receive).collect()
}
