//! Frames and CPU time of interrupts and queues.

use super::nic::Nic;
use crate::load::Loads;
use crate::load::rates::Rates;
use std::collections::BTreeMap;
use std::time::Duration;
use tidegate_cores::stage::Handle;

/// Returns the frames a second of each interrupt and queue of interfaces; those that were not counted are missing.
pub fn frames(nics: &[Nic], counted: &Loads) -> BTreeMap<Handle, u64> {
    let mut found = BTreeMap::new();
    for nic in nics {
        let rate =
            |sent| counted.devices.per(&(nic.device.clone(), sent), Duration::from_secs(1)).unwrap_or(0);
        let share = |sent, of: usize| rate(sent) / of.max(1) as u64;
        found.extend(
            nic.receive_handles().into_iter().map(|handle| (handle, share(false, nic.receive.len()))),
        );
        found.extend(
            nic.transmit_handles().into_iter().map(|handle| (handle, share(true, nic.transmit.len()))),
        );
    }
    found
}

/// Returns the CPU time of interrupts and of receive stacks, millionths of one CPU: the time of all
/// softirqs of a CPU, shared among the interrupts of the interfaces there by their number. Other devices' softirqs count as theirs.
pub fn loads(nics: &[Nic], counted: &Loads) -> BTreeMap<Handle, u32> {
    let per_minute = |irq: u32, cpu: usize| counted.arrivals.per(&(irq, cpu), Duration::from_secs(60));
    let mut arrivals = BTreeMap::<usize, u64>::new();
    let irqs = || nics.iter().flat_map(|nic| nic.irqs.iter().map(move |irq| (nic, irq)));
    for (_, irq) in irqs() {
        for cpu in 0..irq.counts.len() {
            *arrivals.entry(cpu).or_default() += per_minute(irq.number, cpu).unwrap_or(0);
        }
    }
    let mut found = BTreeMap::<Handle, u32>::new();
    for (nic, irq) in irqs() {
        let mut add = |handle: Handle, of: &Rates<usize>| {
            for (cpu, all) in arrivals.iter().filter(|(_, all)| **all > 0) {
                let (Some(time), Some(own)) = (counted.millionths(of, cpu), per_minute(irq.number, *cpu))
                else {
                    continue;
                };
                let share = u64::from(time) * own / all;
                let sum = found.entry(handle.clone()).or_default();
                *sum = sum.saturating_add(u32::try_from(share).unwrap_or(u32::MAX)).min(1_000_000);
            }
        };
        add(irq.handle(&nic.device), &counted.hard);
        let queue = irq.queue.filter(|_| !irq.transmit_only);
        // Steered stacks run on other CPUs than their interrupt, whose softirq time is not theirs.
        let steered = |queue: u16| nic.receive.get(usize::from(queue)).is_some_and(|cpus| !cpus.is_empty());
        if let Some(queue) = queue.filter(|queue| !steered(*queue)) {
            add(Handle::Receive(nic.queue(queue)), &counted.soft);
        }
    }
    found
}
