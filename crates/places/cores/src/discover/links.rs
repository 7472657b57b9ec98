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

use super::nic::Nic;
use super::stages::{Stages, of_device};
use super::{Frames, LookInput};
use crate::load::Loads;
use std::collections::BTreeMap;
use std::time::Duration;
use tidegate_contract::{Attach, UPLINK, Vnic};
use tidegate_cores::stage::{Handle, Link, Stage, ThreadKind};

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

/// Returns the links between the stages.
pub fn links(
    stages: &Stages,
    frames: &BTreeMap<String, Frames>,
    nics: &[Nic],
    loads: &Loads,
    input: &LookInput<'_>,
) -> Vec<Link> {
    let mut links = Links { stages, frames: BTreeMap::new() };
    let carried = |nic: &Nic, sent: bool| {
        loads.devices.per(&(nic.device.clone(), sent), Duration::from_secs(1)).unwrap_or(u64::MAX)
    };
    for vnic in input.contracts {
        let of = frames.get(&vnic.name).copied().unwrap_or_default();
        of_vnic(&mut links, vnic, of, input);
        if !matches!(vnic.attach, Attach::Netdev { .. }) {
            continue;
        }
        // Of a vNIC in a bridge, no more than what its physical ports carry.
        let vhost = handles(&stages.threads_of(&vnic.name, ThreadKind::Vhost));
        for nic in nics.iter().filter(|nic| nic.for_vnics.contains(&vnic.name)) {
            links.add(&receive(nic), &vhost, of.received.min(carried(nic, false)));
            links.add(&vhost, &transmit(nic), of.sent.min(carried(nic, true)));
        }
    }
    for nic in nics {
        let measured = carried(nic, false);
        let measured = if measured == u64::MAX { 0 } else { measured };
        for queue in queues(nic.receive.len()) {
            let irqs: Vec<Handle> = nic.irqs_of(queue).map(|irq| super::stages::irq(nic, irq)).collect();
            let share = measured / nic.receive.len().max(1) as u64;
            links.add(&irqs, &[Handle::Receive(of_device(&nic.device, queue))], share);
        }
    }
    for uplink in &input.network.uplinks {
        for nic in nics
            .iter()
            .filter(|nic| uplink.device.as_ref().is_some_and(|device| nic.for_devices.contains(device)))
        {
            let port = [Handle::Port(uplink.name.clone())];
            let known = |sent| Some(carried(nic, sent)).filter(|frames| *frames != u64::MAX).unwrap_or(0);
            links.add(&receive(nic), &port, known(false));
            links.add(&port, &transmit(nic), known(true));
        }
    }
    let frames = |frames: u64| u32::try_from(frames).unwrap_or(u32::MAX);
    let link = |((from, to), of): ((Handle, Handle), u64)| Link { from, to, frames: frames(of) };
    links.frames.into_iter().map(link).collect()
}

fn of_vnic(links: &mut Links<'_>, vnic: &Vnic, of: Frames, input: &LookInput<'_>) {
    let vcpus = handles(&links.stages.threads_of(&vnic.name, ThreadKind::Vcpu));
    let port = [Handle::Port(vnic.name.clone())];
    match &vnic.attach {
        Attach::Netdev { name } => {
            let vhost = handles(&links.stages.threads_of(&vnic.name, ThreadKind::Vhost));
            links.add(&vhost, &vcpus, of.both());
            let stacks: Vec<Handle> = queues(usize::from(vnic.queues))
                .map(|queue| Handle::Receive(of_device(name, queue)))
                .collect();
            links.add(&vhost, &stacks, of.sent);
        }
        Attach::VhostUser { .. } => links.add(&port, &vcpus, of.both()),
        Attach::Tap { name, netns } => {
            let queue = |queue| {
                Handle::Receive(tidegate_cores::stage::Queue {
                    netns: netns.clone(),
                    device: name.clone(),
                    queue,
                })
            };
            let stacks: Vec<Handle> = queues(usize::from(vnic.queues)).map(queue).collect();
            links.add(&port, &stacks, of.received);
        }
        Attach::Vf { .. } => {}
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

/// Returns the frames a second of each interrupt and queue of interfaces, as far as they were counted.
pub fn device_frames(nics: &[Nic], loads: &Loads) -> BTreeMap<Handle, u64> {
    let mut found = BTreeMap::new();
    for nic in nics {
        let rate = |sent| loads.devices.per(&(nic.device.clone(), sent), Duration::from_secs(1)).unwrap_or(0);
        let share = |sent, of: usize| rate(sent) / of.max(1) as u64;
        found.extend(receive(nic).into_iter().map(|handle| (handle, share(false, nic.receive.len()))));
        found.extend(transmit(nic).into_iter().map(|handle| (handle, share(true, nic.transmit.len()))));
    }
    found
}

/// Returns the CPU time of interrupts and of receive stacks, millionths of one CPU, as far as it can be told: the time of all
/// softirqs of a CPU, shared among the interrupts of the interfaces there by their number. Other devices' softirqs count as theirs.
pub fn softirq_loads(nics: &[Nic], loads: &Loads) -> BTreeMap<Handle, u32> {
    let per_minute = |irq: u32, cpu: usize| loads.arrivals.per(&(irq, cpu), Duration::from_secs(60));
    let mut arrivals = BTreeMap::<usize, u64>::new();
    let irqs = || nics.iter().flat_map(|nic| nic.irqs.iter().map(move |irq| (nic, irq)));
    for (_, irq) in irqs() {
        for cpu in 0..irq.counts.len() {
            *arrivals.entry(cpu).or_default() += per_minute(irq.number, cpu).unwrap_or(0);
        }
    }
    let mut found = BTreeMap::<Handle, u32>::new();
    for (nic, irq) in irqs() {
        let mut add = |handle: Handle, of: &crate::load::rates::Rates<usize>| {
            for (cpu, all) in arrivals.iter().filter(|(_, all)| **all > 0) {
                let (Some(time), Some(own)) = (loads.millionths(of, cpu), per_minute(irq.number, *cpu))
                else {
                    continue;
                };
                let share = u64::from(time) * own / all;
                let sum = found.entry(handle.clone()).or_default();
                *sum = sum.saturating_add(u32::try_from(share).unwrap_or(u32::MAX)).min(1_000_000);
            }
        };
        add(super::stages::irq(nic, irq), &loads.hard);
        let queue = irq.queue.filter(|_| !irq.transmit_only);
        // Steered stacks run on other CPUs than their interrupt, whose softirq time is not theirs.
        let steered = |queue: u16| nic.receive.get(usize::from(queue)).is_some_and(|cpus| !cpus.is_empty());
        if let Some(queue) = queue.filter(|queue| !steered(*queue)) {
            add(Handle::Receive(of_device(&nic.device, queue)), &loads.soft);
        }
    }
    found
}

fn handles(stages: &[&Stage]) -> Vec<Handle> {
    stages.iter().map(|stage| stage.handle.clone()).collect()
}

fn receive(nic: &Nic) -> Vec<Handle> {
    queues(nic.receive.len()).map(|queue| Handle::Receive(of_device(&nic.device, queue))).collect()
}

fn transmit(nic: &Nic) -> Vec<Handle> {
    queues(nic.transmit.len()).map(|queue| Handle::Transmit(of_device(&nic.device, queue))).collect()
}

fn queues(count: usize) -> std::ops::Range<u16> {
    0..u16::try_from(count).unwrap_or(u16::MAX)
}
