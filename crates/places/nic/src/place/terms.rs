//! From contracts and `[host.nic.NAME]` to what the loop of one NIC is told. Pure.

use super::function::address;
use super::shared_link::SharedLink;
use crate::control::{LinkTerms, Member, Tenant, admissible};
use crate::device::Group;
use std::collections::{BTreeMap, BTreeSet};
use tidegate_contract::{Aggregate, Control, Nic, Rate, Segment, Vnic};
use tidegate_place::Refusal;

/// The input of one NIC's loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The link that the loop divides.
    pub link: LinkTerms,
    /// The functions that share it.
    pub members: Vec<Member>,
    /// The aggregates of their segments.
    pub tenants: Vec<Tenant>,
}

/// Frames of 1514 bytes fill 98.4 % of a link with what is counted of them: preamble, FCS and gap are not.
const COUNTED_PERCENT: u64 = 98;

/// Contracts by their NIC.
pub fn by_nic<'a>(vnics: impl IntoIterator<Item = &'a Vnic>) -> BTreeMap<&'a str, Vec<&'a Vnic>> {
    let mut all: BTreeMap<&str, Vec<&Vnic>> = BTreeMap::new();
    for vnic in vnics {
        if let Some((pf, _)) = address(vnic) {
            all.entry(pf).or_default().push(vnic);
        }
    }
    all
}

/// Returns the reason for which a contract needs the loop; `None` if it needs none.
pub fn reason_for_loop(vnic: &Vnic, nic: &Nic, link: &SharedLink) -> Option<String> {
    let aggregate = nic.segment.get(&vnic.segment).filter(|a| a.max.is_some() || a.min.is_some());
    let aggregate = aggregate.filter(|_| !link.groups);
    let min = vnic.tx.min.and(link.lacks_min.as_ref());
    match (min, aggregate) {
        (Some(why), _) => Some(format!("tx.min: the NIC keeps no minimum by itself ({why})")),
        (None, Some(_)) => {
            Some(format!("an aggregate of segment {}: this NIC limits single functions only", vnic.segment))
        }
        (None, None) if vnic.weight != 1 => Some("weight: the NIC has no weights".into()),
        (None, None) => None,
    }
}

/// The input of a NIC's loop; `None` if no loop is needed, or the link's capacity is unknown.
pub fn terms(vnics: &[&Vnic], nic: &Nic, link: &SharedLink) -> Option<Terms> {
    let runs = match nic.control {
        Control::Off => false,
        Control::On => true,
        Control::Auto => vnics.iter().any(|v| reason_for_loop(v, nic, link).is_some()),
    };
    runs.then(|| terms_of(vnics, nic, link)).flatten()
}

/// The groups of functions whose aggregates the NIC enforces: one per segment, named after it.
pub fn groups(vnics: &[&Vnic], nic: &Nic, link: &SharedLink) -> Vec<Group> {
    let group = |(segment, aggregate): (&Segment, &Aggregate)| {
        let members = vnics.iter().filter(|v| v.segment == *segment).filter_map(|v| Some(address(v)?.1));
        let vfs: BTreeSet<u16> = members.collect();
        let group = Group { name: segment.to_string(), tx_max: aggregate.max, tx_min: aggregate.min, vfs };
        (!group.vfs.is_empty()).then_some(group)
    };
    if link.groups { nic.segment.iter().filter_map(group).collect() } else { Vec::new() }
}

/// Every promise that does not fit.
pub fn refusals(pf: &str, vnics: &[&Vnic], nic: &Nic, link: &SharedLink) -> Vec<Refusal> {
    if nic.control == Control::Off {
        let needs = vnics.iter().filter_map(|v| Some((v, reason_for_loop(v, nic, link)?)));
        let refusals: Vec<Refusal> = needs
            .map(|(vnic, why)| Refusal {
                vnic: vnic.name.clone(),
                reason: format!("{why}, and host.nic.{pf}.control is \"off\"; leave it out there, or here"),
            })
            .collect();
        if !refusals.is_empty() {
            return refusals;
        }
    }
    let Some(terms) = terms_of(vnics, nic, link) else { return vec![] };
    let promising = |v: &&&Vnic| v.tx.min.is_some();
    let named = |id: u16| vnics.iter().find(|v| address(v).is_some_and(|(_, index)| index == id));
    let of = |refusal: crate::control::TermsError| {
        // What concerns all of them is told of one: the last, as what is new often is.
        let whose = refusal.function().and_then(named).or(vnics.iter().rfind(promising));
        let vnic = whose.or(vnics.last()).map(|v| v.name.clone()).unwrap_or_default();
        Refusal { vnic, reason: format!("on {pf}: {refusal}") }
    };
    admissible(&terms.link, &terms.members, &terms.tenants).err().into_iter().flatten().map(of).collect()
}

impl Terms {
    /// Sum of the promises to all members, bit/s; a limit is at least one unit.
    pub fn promised(&self) -> u64 {
        let unit = self.link.unit;
        self.members.iter().map(|m| m.min.unwrap_or(unit).max(unit).bits()).sum()
    }
}

/// Limit of all functions together, bit/s of counted bytes.
fn capacity(nic: &Nic, link: &SharedLink) -> Option<Rate> {
    match nic.capacity {
        Some(said) => Some(carried(said, link.speed)),
        None => link.speed.map(|speed| carried(Rate::MAX, Some(speed))),
    }
}

/// Capacity of a link of this speed, bit/s of counted bytes.
pub fn carried(capacity: Rate, speed: Option<Rate>) -> Rate {
    let counted = speed.and_then(|speed| Rate::from_bits(speed.bits() / 100 * COUNTED_PERCENT));
    counted.map_or(capacity, |counted| capacity.min(counted))
}

fn terms_of(vnics: &[&Vnic], nic: &Nic, link: &SharedLink) -> Option<Terms> {
    let member = |vnic: &&Vnic| {
        let (_, id) = address(vnic)?;
        Some(Member { id, max: vnic.tx.max, min: vnic.tx.min, weight: vnic.weight, segment: vnic.segment })
    };
    let tenant = |(segment, a): (&_, &Aggregate)| Tenant { segment: *segment, max: a.max, min: a.min };
    Some(Terms {
        link: LinkTerms::new(capacity(nic, link)?),
        members: vnics.iter().filter_map(member).collect(),
        tenants: nic.segment.iter().map(tenant).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_testkit::contract::vf;

    fn mbit(n: u64) -> Option<Rate> {
        Rate::from_bits(n * 1_000_000)
    }

    /// A NIC of 1 Gbit/s that enforces maxima only.
    fn gigabit() -> SharedLink {
        SharedLink { speed: mbit(1000), lacks_min: Some("Invalid argument".into()), groups: false }
    }

    fn promised(name: &str, index: u16, min: u64) -> Vnic {
        let mut vnic = vf(name, index as u8 + 1, "eth1", index);
        (vnic.tx.min, vnic.tx.max) = (mbit(min), mbit(900));
        vnic
    }

    #[test]
    fn the_loop_runs_where_something_needs_it() {
        let (nic, plain) = (Nic::default(), vf("a", 1, "eth1", 0));
        let runs = |vnic: &Vnic, nic: &Nic, link: &SharedLink| terms(&[vnic], nic, link).is_some();
        assert!(!runs(&plain, &nic, &gigabit()));
        assert!(runs(&promised("a", 0, 100), &nic, &gigabit()));
        assert!(!runs(&promised("a", 0, 100), &nic, &SharedLink { lacks_min: None, ..gigabit() }));
        assert!(runs(&Vnic { weight: 2, ..plain.clone() }, &nic, &gigabit()));
        assert!(runs(&plain, &Nic { control: Control::On, ..nic.clone() }, &gigabit()));
        let tenant = Aggregate { max: mbit(100), min: None };
        let aggregate = Nic { segment: [(plain.segment, tenant)].into(), ..nic.clone() };
        assert!(runs(&plain, &aggregate, &gigabit()));
        assert!(!runs(&plain, &aggregate, &SharedLink { groups: true, ..gigabit() }));
        let elsewhere = Nic { segment: [(Segment::new(9).expect("in range"), tenant)].into(), ..nic };
        assert!(!runs(&plain, &elsewhere, &gigabit()));
    }

    #[test]
    fn the_capacity_is_the_configured_one_or_that_of_the_link() {
        let of = |nic: &Nic, link: &SharedLink| capacity(nic, link).map(|c| c.bits() / 1_000_000);
        let said = |n| Nic { capacity: mbit(n), ..Nic::default() };
        assert_eq!(of(&Nic::default(), &gigabit()), Some(980));
        assert_eq!(of(&said(800), &gigabit()), Some(800));
        assert_eq!(of(&said(2000), &gigabit()), Some(980));
        assert_eq!(of(&said(800), &SharedLink::default()), Some(800));
        assert_eq!(of(&Nic::default(), &SharedLink::default()), None);
    }

    #[test]
    fn a_slower_link_carries_less_and_promised_rates_are_summed() {
        let mbits = |rate: Option<Rate>| rate.map(|r| r.bits() / 1_000_000);
        assert_eq!(mbits(mbit(800).map(|said| carried(said, mbit(100)))), Some(98));
        assert_eq!(mbits(mbit(800).map(|said| carried(said, None))), Some(800));
        let (a, b) = (promised("a", 0, 300), vf("b", 2, "eth1", 1));
        let terms = terms_of(&[&a, &b], &Nic::default(), &gigabit()).expect("the capacity is known");
        assert_eq!(terms.promised(), 301_000_000, "a limit is at least a unit");
    }

    #[test]
    fn minima_above_the_capacity_of_the_link_are_refused() {
        let (a, b) = (promised("a", 0, 500), promised("b", 1, 400));
        assert_eq!(refusals("eth1", &[&a, &b], &Nic::default(), &gigabit()), []);
        let c = promised("c", 2, 100);
        let refused = refusals("eth1", &[&a, &b, &c], &Nic::default(), &gigabit());
        assert_eq!(refused.len(), 1, "{refused:?}");
        assert!(refused[0].vnic == "c" && refused[0].reason.contains("980mbit"), "{refused:?}");
        let off = Nic { control: Control::Off, ..Nic::default() };
        let refused = refusals("eth1", &[&a, &vf("d", 4, "eth1", 3)], &off, &gigabit());
        assert_eq!(refused.len(), 1, "{refused:?}");
        assert!(refused[0].reason.contains("host.nic.eth1.control is \"off\""), "{refused:?}");
        let by_itself = SharedLink { lacks_min: None, ..gigabit() };
        assert_eq!(refusals("eth1", &[&a], &off, &by_itself), []);
    }
}
