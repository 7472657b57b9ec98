//! Assigns due steps, in a plan that should be empty, to netdevs. Pure.

use crate::ebpf::Classes;
use crate::handle::Handle;
use crate::tc::network::Counters;
use crate::tc::owner;
use crate::tc::{Device, Netdev, Network, Plan, Shaping, Step};
use std::collections::{BTreeMap, BTreeSet};

/// A network with lookups for many netdevs.
pub struct Seen<'a> {
    /// By name.
    pub links: BTreeMap<&'a str, (u32, &'a Netdev)>,
    /// Classes on the IFB by interface index of the netdev of origin.
    pub leaves: BTreeMap<u32, Handle>,
    /// Counters of the IFB's classes.
    pub counters: BTreeMap<Handle, Counters>,
    /// Counters of its classifier.
    classifier: Option<Classes>,
}

impl<'a> Seen<'a> {
    /// Indexes a network.
    pub fn new(network: &'a Network) -> Self {
        let ifb = network.ifb().map(|(_, link)| link);
        let classes = ifb.iter().flat_map(|ifb| &ifb.classes);
        Self {
            links: network.names(),
            leaves: ifb.iter().flat_map(|ifb| ifb.classified()).collect(),
            counters: classes.map(|class| (class.id, class.counters)).collect(),
            classifier: ifb.and_then(Netdev::classifier_map).and_then(|map| Classes::open(map).ok()),
        }
    }

    /// Returns the super-frames from a netdev that were dropped on the IFB.
    pub fn double_tagged(&self, index: u32) -> u64 {
        self.classifier.as_ref().and_then(|classes| classes.double_tagged(index).ok()).unwrap_or_default()
    }

    /// Returns the netdev of a shaping.
    pub fn link(&self, shaping: &Shaping) -> Option<(u32, &'a Netdev)> {
        self.links.get(shaping.netdev.as_str()).copied()
    }
}

/// A plan that would be empty without foreign changes.
pub struct Drift<'a> {
    plan: &'a Plan,
    /// The sender of each step that concerns its class at another netdev's egress.
    senders: Vec<Option<u32>>,
}

impl<'a> Drift<'a> {
    /// Makes it from a plan for this network.
    pub fn new(plan: &'a Plan, network: &Network) -> Self {
        let mut rebuilt = BTreeSet::new();
        let mut classes: BTreeMap<(u32, Handle), u32> = BTreeMap::new();
        for (at, link) in network.netdevs.iter().filter(|(_, link)| !link.is_our_ifb()) {
            classes.extend(link.classified().map(|(from, to)| ((*at, to), from)));
        }
        for step in &plan.steps {
            match step {
                // The receiver was changed, and all its senders' classes with it.
                Step::SetQdisc { device: Device::Netdev { index, .. }, parent: Handle::ROOT, .. } => {
                    rebuilt.insert(*index);
                }
                Step::Classify {
                    device: Device::Netdev { index: at, .. },
                    from: Device::Netdev { index: from, .. },
                    to,
                } => drop(classes.insert((*at, *to), *from)),
                _ => {}
            }
        }
        let sender = |step: &Step| {
            let (Device::Netdev { index: at, .. }, class) = class_of(step)? else { return None };
            classes.get(&(*at, class)).copied().filter(|_| !rebuilt.contains(at))
        };
        Self { plan, senders: plan.steps.iter().map(sender).collect() }
    }

    /// Describes the next step for a netdev whose contract is in force; `None` if it needs none.
    pub fn of(&self, shaping: &Shaping, index: u32, seen: &Seen<'_>) -> Option<String> {
        let refused =
            self.plan.refusals.iter().find(|r| r.netdev == shaping.netdev).map(|r| r.reason.clone());
        let step = || self.steps().find(|(step, sender)| concerns(step, *sender, shaping, index, seen));
        refused
            .or_else(|| Some(format!("its netdev differs from its contract; the next step: {}", step()?.0)))
    }

    /// Describes the next step that concerns no netdev with a contract; `None` if there is none.
    pub fn of_no_netdev(&self, owned: &[Shaping], seen: &Seen<'_>) -> Option<String> {
        let indexed: Vec<_> = owned.iter().filter_map(|s| Some((s, seen.link(s)?.0))).collect();
        let of_none = |(step, sender): &(&Step, Option<u32>)| {
            !indexed.iter().any(|(s, index)| concerns(step, *sender, s, *index, seen))
        };
        Some(format!("objects of an ended contract remain; the next step: {}", self.steps().find(of_none)?.0))
    }

    fn steps(&self) -> impl Iterator<Item = (&Step, Option<u32>)> {
        self.plan.steps.iter().zip(self.senders.iter().copied())
    }
}

/// Returns the class of a step, and its device.
fn class_of(step: &Step) -> Option<(&Device, Handle)> {
    match step {
        Step::SetClass { device, id, .. } => Some((device, *id)),
        Step::SetQdisc { device, parent, .. } | Step::DeleteQdisc { device, parent, .. } => {
            Some((device, owner::class_above(*parent)))
        }
        Step::Classify { device, to, .. } => Some((device, *to)),
        _ => None,
    }
}

/// Whether a step's absence affects frames of a netdev.
fn concerns(step: &Step, sender: Option<u32>, shaping: &Shaping, index: u32, seen: &Seen<'_>) -> bool {
    if let Some(sender) = sender {
        return sender == index;
    }
    let uses_ifb = || {
        let kind = seen.link(shaping).and_then(|(_, link)| link.kind.as_deref());
        shaping.uses(kind).is_some_and(|ends| ends.ingress)
    };
    let is_ours = |device: &Device| matches!(device, Device::Netdev { index: i, .. } if *i == index);
    match step {
        Step::AddIfb | Step::DeleteIfb | Step::RaiseIfb | Step::AddClassifier { device: Device::Ifb } => {
            uses_ifb()
        }
        Step::Classify { device: Device::Ifb, from, .. } => is_ours(from),
        Step::Unclassify { from, .. } => *from == index,
        // Of a gone sender.
        Step::DeleteClass { .. } => false,
        Step::DeleteFilter { filter, .. } if filter.parent == owner::ROOT_QDISC => false,
        Step::SetQdisc { device: Device::Ifb, parent: Handle::ROOT, .. } => uses_ifb(),
        Step::SetQdisc { device: Device::Ifb, .. }
        | Step::DeleteQdisc { device: Device::Ifb, .. }
        | Step::SetClass { device: Device::Ifb, .. } => {
            class_of(step).is_some_and(|(_, class)| seen.leaves.get(&index) == Some(&class))
        }
        other => is_ours(&other.device()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tc::{Limit, Share, plan};
    use tidegate_contract::{Bytes, Rate};

    fn tap(name: &str) -> Netdev {
        Netdev { name: name.into(), kind: Some("tun".into()), up: true, ..Netdev::default() }
    }

    /// `a` sends to `b`, which has a share for it.
    fn shapings() -> [Shaping; 2] {
        let limit = |mbit: u64| {
            Limit::new(Rate::from_bits(mbit * 1_000_000).expect("a rate"), Bytes::new(65_536), None, 1518)
                .ok()
        };
        let share = Share { from: "a".into(), guaranteed: limit(1), priority: Share::LAST, weight: 1 };
        [
            Shaping { netdev: "a".into(), promises: true, ..Shaping::default() },
            Shaping { netdev: "b".into(), rx: limit(9), rx_shares: vec![share], ..Shaping::default() },
        ]
    }

    fn entry(network: &Network) -> [Option<String>; 3] {
        let shapings = shapings();
        let (plan, seen) = (plan(&shapings, network), Seen::new(network));
        let drift = Drift::new(&plan, network);
        let of =
            |n: usize| seen.link(&shapings[n]).and_then(|(index, _)| drift.of(&shapings[n], index, &seen));
        [of(0), of(1), drift.of_no_netdev(&shapings, &seen)]
    }

    #[test]
    fn a_receiver_that_is_set_up_again_is_no_drift_of_its_senders() {
        let network = Network { netdevs: [(1, tap("a")), (2, tap("b"))].into(), ..Network::default() };
        let [a, b, leftover] = entry(&network);
        assert_eq!(a, None);
        assert!(b.is_some_and(|what| what.contains("set qdisc htb at root of b")));
        assert_eq!(leftover, None);
    }

    #[test]
    fn a_missing_class_is_drift_of_its_sender() {
        use crate::tc::class::HtbClass;
        use crate::tc::network::{Class, Qdisc, Setting};
        let [_, receiver] = shapings();
        let limit = receiver.rx.expect("limited");
        let mut b = tap("b");
        let qdisc = |handle, parent, setting| Qdisc { handle, parent, setting };
        b.qdiscs = vec![
            qdisc(owner::ROOT_QDISC, Handle::ROOT, Setting::Htb { default: 0xffff }),
            qdisc(Handle::new(1, 0), owner::REST_CLASS, Setting::Bfifo { limit: limit.fifo() }),
        ];
        let class = |id, parent, htb| Class { id, parent, htb: Some(htb), counters: Counters::default() };
        b.classes = vec![
            class(owner::ROOT_CLASS, Handle::ROOT, limit.into()),
            class(owner::REST_CLASS, owner::ROOT_CLASS, HtbClass::rest(limit)),
        ];
        let network = Network { netdevs: [(1, tap("a")), (2, b)].into(), ..Network::default() };
        let [a, b, leftover] = entry(&network);
        assert!(a.is_some_and(|what| what.contains("set class 7464:2 of b")));
        assert!(b.is_some_and(|what| what.contains("classify what goes to b")), "the way to all of them");
        assert_eq!(leftover, None);
    }
}
