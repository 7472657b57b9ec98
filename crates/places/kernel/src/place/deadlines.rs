//! Deadlines between netdevs of this host: the eBPF programs' results in the host switch's form.
//!
//! As with waits, measurement is no part of the promise: without it, the vNIC states the reason.

use super::netdev::netdev;
use crate::ebpf::deadline::DeadlineError;
use crate::ebpf::{DeadlineMeter, Delays, Loss, MissSeen, Part, Promise};
use crate::tc::Network;
use std::collections::BTreeMap;
use tidegate_contract::{Method, Vnic};
use tidegate_evidence::MISSES;
use tidegate_evidence::NetdevDrop;
use tidegate_evidence::{Delay, DropReason, Histogram, Miss, MissCause, VnicStats, time_of_day};

/// The programs, while there is a deadline.
#[derive(Debug, Default)]
pub struct DeadlineWatch {
    meter: Option<Result<DeadlineMeter, String>>,
}

/// A receiver's vNIC, and the delays of frames to it.
pub type Seen = BTreeMap<String, Delays>;

impl DeadlineWatch {
    /// Watches the deadlines of these contracts and no others; returns each such vNIC's results. An error
    /// has the reason of a missing measurement.
    pub fn watch(&mut self, vnics: &[&Vnic], network: &Network) -> Result<BTreeMap<String, Seen>, String> {
        let promises = promises(vnics, network);
        if promises.is_empty() {
            // The programs end with it: a host without deadlines pays nothing per frame.
            self.meter = None;
            return Ok(BTreeMap::new());
        }
        let load = || {
            let loaded = DeadlineMeter::load().map_err(|e| e.to_string());
            loaded.inspect_err(|why| tracing::warn!("deadlines of netdevs are not watched: {why}"))
        };
        match self.meter.get_or_insert_with(load) {
            Ok(meter) => read(meter, &promises).map_err(|e| e.to_string()),
            Err(why) => Err(why.clone()),
        }
    }
}

/// A promise with its deadline, ns, and the names of both vNICs.
type Promises<'a> = BTreeMap<Promise, (u64, &'a str, &'a str)>;

/// Returns the promises to watch: of present netdevs, and shaped senders.
fn promises<'a>(vnics: &[&'a Vnic], network: &Network) -> Promises<'a> {
    let index = |vnic: &Vnic| netdev(vnic).and_then(|name| Some(network.by_name(name)?.0));
    let mut found = BTreeMap::new();
    for vnic in vnics {
        let Some(deadline) = vnic.deadline.filter(|_| vnic.tx.method == Method::Shape) else { continue };
        for to in vnics.iter().filter(|other| vnic.to.contains(&other.name)) {
            if let (Some(from), Some(at)) = (index(vnic), index(to)) {
                let names = (deadline.get(), vnic.name.as_str(), to.name.as_str());
                found.insert(Promise { from, to: at }, names);
            }
        }
    }
    found
}

fn read(meter: &DeadlineMeter, promises: &Promises<'_>) -> Result<BTreeMap<String, Seen>, DeadlineError> {
    for gone in meter.watched().into_iter().filter(|promise| !promises.contains_key(promise)) {
        meter.forget(gone)?;
    }
    let mut all: BTreeMap<String, Seen> = BTreeMap::new();
    for (promise, (deadline, from, to)) in promises {
        meter.watch(*promise, *deadline)?;
        if let Some(seen) = meter.read(*promise)? {
            all.entry((*from).to_owned()).or_default().insert((*to).to_owned(), seen);
        }
    }
    Ok(all)
}

/// Enters a vNIC's results; returns its latest misses, oldest first.
pub fn enter(stats: &mut VnicStats, seen: &Seen) -> Vec<Miss> {
    let mut buckets: Vec<u64> = Vec::new();
    let (mut max, mut sum) = (0, 0);
    let mut latest = Vec::new();
    for (to, delays) in seen {
        buckets.resize(delays.buckets.len().max(buckets.len()), 0);
        buckets.iter_mut().zip(&delays.buckets).for_each(|(all, n)| *all += n);
        max = delays.max.max(max);
        sum += delays.sum;
        let late = delays.late.iter().map(|(part, n)| (of_part(*part), n));
        for (cause, n) in late.chain(delays.lost.iter().map(|(loss, n)| (of_loss(*loss), n))) {
            *stats.misses.entry(cause.label().to_owned()).or_default() += n;
        }
        latest.extend(delays.latest.iter().map(|miss| (to, delays.deadline, miss)));
    }
    if let Some(histogram) = Histogram::recorded(max, sum, buckets) {
        stats.delay = Delay::from(&histogram);
        // The kernel's programs see each frame arrive: both ends are equal.
        stats.delay_least = stats.delay.clone();
    }
    stats.realtime_delivered = stats.delay.count;
    (stats.realtime_worst_ns, stats.realtime_worst_least_ns) = (max, max);
    latest.sort_by_key(|(.., miss)| miss.at);
    let all: u64 = stats.misses.values().sum();
    let numbered = latest.into_iter().rev().take(MISSES).zip((1..=all).rev());
    let mut entry: Vec<Miss> =
        numbered.map(|((to, deadline, seen), number)| miss(number, to, deadline, seen)).collect();
    entry.reverse();
    entry
}

fn miss(number: u64, to: &str, deadline: u64, seen: &MissSeen) -> Miss {
    let [worker, queue, buffers] = seen.parts;
    let cause = seen.lost.map_or_else(|| of_part(seen.longest()), of_loss);
    let dropped = seen.lost.map(|loss| match loss {
        Loss::QueueFull => DropReason::QueueFull.label(),
        Loss::RingFull => NetdevDrop::RingFull.label(),
        Loss::Other => NetdevDrop::Kernel.label(),
    });
    let delay = worker + queue + buffers;
    Miss {
        number,
        at: time_of_day(seen.at),
        egress: to.to_owned(),
        cause: cause.label().to_owned(),
        dropped: dropped.map(str::to_owned),
        behind: None,
        // Its arrival was seen.
        delay,
        delay_least: delay,
        slept: 0,
        seen: None,
        by: None,
        deadline,
        // The clock starts after that.
        tokens: 0,
        worker,
        queue,
        buffers,
        culprit: None,
    }
}

fn of_part(part: Part) -> MissCause {
    match part {
        Part::Host => MissCause::Worker,
        Part::Queue => MissCause::Queue,
        Part::Receiver => MissCause::Buffers,
    }
}

fn of_loss(loss: Loss) -> MissCause {
    match loss {
        Loss::QueueFull => MissCause::Queue,
        Loss::RingFull => MissCause::Buffers,
        Loss::Other => MissCause::Dropped,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ebpf::wait::BUCKETS;
    use crate::tc::Netdev;
    use tidegate_contract::Nanos;
    use tidegate_testkit::contract::netdev;

    fn realtime(name: &str, mac: u8, interface: &str, to: &[&str]) -> Vnic {
        let to = to.iter().map(|name| (*name).to_owned()).collect();
        Vnic { deadline: Some(Nanos::new(1_000_000)), to, ..netdev(name, mac, interface) }
    }

    #[test]
    fn promises_are_between_existing_netdevs() {
        let link = |name: &str| Netdev { name: name.into(), ..Netdev::default() };
        let links = [(1, link("vnet1")), (2, link("vnet2")), (3, link("vnet3"))].into();
        let network = Network { netdevs: links, ..Network::default() };
        let (a, b) = (realtime("a", 1, "vnet1", &["b", "c", "d"]), netdev("b", 2, "vnet2"));
        let (c, gone) = (realtime("c", 3, "vnet3", &["a"]), netdev("d", 4, "vnet4"));
        let mut policed = realtime("e", 5, "vnet2", &["a"]);
        policed.tx.method = Method::Police;
        let vnics = [&a, &b, &c, &gone, &policed];
        let found: Vec<_> = promises(&vnics, &network).into_iter().collect();
        let promise = |from, to| Promise { from, to };
        let expected = [
            (promise(1, 2), (1_000_000, "a", "b")),
            (promise(1, 3), (1_000_000, "a", "c")),
            (promise(3, 1), (1_000_000, "c", "a")),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn misses_are_reported_in_the_form_of_the_switch() {
        let seen = |at, parts, lost| MissSeen { at, parts, lost };
        let mut buckets = vec![0; BUCKETS];
        buckets[3] = 5;
        let b = Delays {
            deadline: 10,
            max: 40,
            sum: 60,
            late: [(Part::Queue, 2), (Part::Host, 1)].into(),
            lost: [(Loss::QueueFull, 1), (Loss::Other, 3)].into(),
            latest: vec![seen(100, [1, 30, 9], None), seen(300, [5, 5, 0], Some(Loss::QueueFull))],
            buckets: buckets.clone(),
        };
        let c = Delays {
            deadline: 10,
            max: 70,
            sum: 80,
            late: [(Part::Receiver, 1)].into(),
            lost: [(Loss::RingFull, 1)].into(),
            latest: vec![seen(200, [1, 2, 67], None)],
            buckets,
        };
        let mut stats = VnicStats::default();
        let entry = enter(&mut stats, &[("b".to_owned(), b), ("c".to_owned(), c)].into());
        let causes: Vec<_> = stats.misses.iter().map(|(cause, n)| (cause.as_str(), *n)).collect();
        assert_eq!(causes, [("buffers", 2), ("dropped", 3), ("queue", 3), ("worker", 1)]);
        assert_eq!((stats.delay.count, stats.delay.max), (10, 70));
        assert_eq!((stats.realtime_delivered, stats.realtime_worst_ns), (10, 70));
        let shown: Vec<_> =
            entry.iter().map(|m| (m.number, m.egress.as_str(), m.cause.as_str(), m.delay)).collect();
        assert_eq!(shown, [(7, "b", "queue", 40), (8, "c", "buffers", 70), (9, "b", "queue", 10)]);
        assert_eq!(entry[2].dropped.as_deref(), Some("queue_full"));
    }
}
