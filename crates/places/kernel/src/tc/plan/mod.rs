//! From the wanted and the observed state to steps. Pure.
//!
//! ```text
//!  Shaping per netdev ─┐             ┌─ refusals: what others made, devices that are not there
//!                      ├─▶ sort out ─┤
//!  Network ────────────┘             └─▶ take away ─▶ IFB: class, queue, classifier ─▶ netdev: redirect, root qdisc
//! ```
//!
//! There is no state in between: marks identify our objects. The order of steps loses no frame: a path is
//! built from its end, and removed from its beginning. In a partly observed network, the other devices stay
//! as they are. VLANs have no mark (`vlan`): the caller remembers a port's former ones, and restores them.
//! A refused netdev stays as it is, and does not affect others.

mod congestion;
mod filters;
mod foreign;
mod leaf;
mod leaves;
mod marks;
#[cfg(test)]
mod model;
#[cfg(test)]
mod properties;
mod shares;
#[cfg(test)]
mod tests;
mod vlan;

use crate::ebpf::police::Bucket;
use crate::handle::Handle;
use crate::tc::class::HtbClass;
use crate::tc::network::{ANY_PROTOCOL, Filter, Netdev, Network, Rule, Setting};
use crate::tc::owner::{self, Cookie};
use crate::tc::shaping::{Ends, NetdevRefusal, Shaping, Sides};
use crate::tc::step::{Device, Step};
use leaf::{Leaf, has_root, root};
use leaves::Leaves;
use std::collections::{BTreeMap, BTreeSet};
pub(crate) use vlan::lead;

/// The steps from the observed state to the wanted one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// In order.
    pub steps: Vec<Step>,
    /// The netdevs that are not shaped, with the reason.
    pub refusals: Vec<NetdevRefusal>,
}

/// An existing device that may be changed.
struct Target<'a> {
    sides: Sides<'a>,
    segment: Option<u16>,
    owned: Ends,
}

/// The refusals of [`plan`], without planning steps.
pub fn refusals(wanted: &[Shaping], network: &Network) -> Vec<NetdevRefusal> {
    let names = network.names();
    wanted.iter().filter_map(|shaping| target(shaping, &names, network).err()).collect()
}

/// The steps that shape each netdev of `wanted`, and no other.
pub fn plan(wanted: &[Shaping], network: &Network) -> Plan {
    let mut targets = BTreeMap::new();
    let mut left_alone = BTreeSet::new();
    let mut refusals = Vec::new();
    let names = network.names();
    for shaping in wanted {
        match target(shaping, &names, network) {
            // Nothing was read of a device that only exists.
            Ok((index, _)) if !network.is_about(index) => {}
            Ok((index, target)) => drop(targets.insert(index, target)),
            Err(refusal) => {
                refusals.push(refusal);
                left_alone.extend(names.get(shaping.netdev.as_str()).map(|(index, _)| index));
            }
        }
    }
    lead_to(&targets, &left_alone, refusals, network)
}

/// Returns the plan for one link of any kind, and for no other.
pub(crate) fn settle_link(index: u32, sides: Sides<'_>, network: &Network) -> Plan {
    let targets = [(index, Target { sides, segment: None, owned: Ends::BOTH })].into();
    lead_to(&targets, &BTreeSet::new(), vec![], network)
}

fn lead_to(
    targets: &BTreeMap<u32, Target<'_>>,
    left_alone: &BTreeSet<u32>,
    refusals: Vec<NetdevRefusal>,
    network: &Network,
) -> Plan {
    let mut plan = Plan { steps: vec![], refusals };
    let ifb = network.ifb();
    let shaped = |index: u32| {
        !network.is_about(index)
            || left_alone.contains(&index)
            || targets.get(&index).is_some_and(|t| t.sides.ingress.is_some())
    };

    let touched = |index: &u32| network.is_about(*index) && !left_alone.contains(index);
    for (index, link) in network.netdevs.iter().filter(|(index, _)| touched(index)) {
        let sides = targets.get(index).map(|t| t.sides).unwrap_or_default();
        if Some(*index) != ifb.map(|(i, _)| i) {
            take_away(&mut plan.steps, &Device::of(*index, link), link, sides);
        }
    }
    let mut leaves = Leaves::of_ifb(network, shaped);
    let needed = targets.values().any(|t| t.sides.ingress.is_some())
        || left_alone.iter().map(|index| (index, &network.netdevs[index])).any(|(index, link)| {
            let redirected = link.filters.iter().any(|f| matches!(f.rule, Rule::Redirect { .. }));
            redirected || leaves.minor(*index).is_some()
        })
        // It may belong to others.
        || (network.scope.is_some() && ifb.is_some());
    if needed {
        leaves.drop_others(&mut plan.steps);
        set_ifb(&mut plan.steps, ifb.map(|(_, link)| link), &mut leaves);
    }

    for (index, target) in targets {
        let link = &network.netdevs[index];
        let device = Device::of(*index, link);
        let known = leaves.minor(*index).is_some() || target.owned.ingress;
        if let Some(limit) = target.sides.ingress {
            let class = HtbClass::sender(limit, target.sides.realtime);
            let waiting = target.sides.waiting_at_ingress(limit, link.mtu);
            let leaf = Leaf { class, parent: Handle::ROOT, waiting };
            if let Err(reason) = leaves.set(&mut plan.steps, *index, &device, &leaf) {
                plan.refusals.push(NetdevRefusal::new(&link.name, reason));
                continue;
            }
        }
        if target.sides.filters_ingress() {
            let made_clsact = set_clsact(&mut plan.steps, &device, link, known);
            let ifb = ifb.map(|(i, _)| i);
            set_ingress(&mut plan.steps, &device, link, target, ifb, Cookie { made_clsact });
        }
        if let Some(limit) = target.sides.egress {
            let waiting = target.sides.waiting_at_egress(limit, link.mtu);
            let made =
                shares::set(&mut plan.steps, &device, link, limit, &waiting, target.sides.shares, network);
            plan.refusals.extend(made.err().map(|reason| NetdevRefusal::new(&link.name, reason)));
        }
        if let Some(segment) = target.segment {
            vlan::set(&mut plan.steps, &device, link, segment);
        }
    }
    if !needed && ifb.is_some() {
        plan.steps.push(Step::DeleteIfb);
    }
    plan
}

fn target<'a>(
    shaping: &'a Shaping,
    names: &BTreeMap<&str, (u32, &Netdev)>,
    network: &Network,
) -> Result<(u32, Target<'a>), NetdevRefusal> {
    let name = &shaping.netdev;
    let no = |reason| NetdevRefusal::new(name, reason);
    let (index, link) = *names.get(name.as_str()).ok_or_else(|| {
        no(format!(
            "interface {name} does not exist in this network namespace; start its VM, or correct the name"
        ))
    })?;
    let kind = link.kind.as_deref();
    let (Some(sides), Some(owned)) = (shaping.sides(kind), shaping.owned.ends(kind)) else {
        let kind = kind.unwrap_or("physical");
        return Err(no(format!(
            "interface {name} is of kind {kind}; expected a tap, macvtap or veth with a VM behind it, or a physical one"
        )));
    };
    if link.loopback {
        return Err(no(format!("interface {name} is the loopback, which reaches no VM")));
    }
    if sides.ingress.is_some()
        && let Some((_, other)) = names.get(owner::IFB)
        && !other.is_our_ifb()
    {
        let ifb = owner::IFB;
        return Err(no(format!(
            "interface {ifb} is there and is not ours; rename it (ip link set {ifb} name …)"
        )));
    }
    if kind == Some("macvtap") {
        if shaping.promises {
            return Err(no(format!(
                "interface {name} is a macvtap, whose frames do not come in by a device, so the kernel cannot tell them from \
                 others: leave tx.min, deadline and weight out"
            )));
        }
        if !shaping.rx_shares.is_empty() {
            return Err(no(no_shares_at(name)));
        }
    }
    if shaping.tx_police.is_some() && shaping.tx.is_none() && sides.police.is_none() {
        return Err(no(format!(
            "interface {name} is a macvtap, which sends what its VM sends: a policer is for what comes in by a device; \
             leave tx.method out, and it is shaped"
        )));
    }
    let used = Ends { egress: sides.egress.is_some(), ingress: sides.limits_ingress() };
    let vlans =
        shaping.segment.map(|segment| vlan::others(link, segment, network)).transpose().map_err(no)?;
    let vlans = vlans.filter(|_| !shaping.owned.segment).unwrap_or_default();
    foreign::refuse(link, used.without(owned), &vlans)?;
    marks::refuse(link, shaping.marks, sides, owned.ingress)?;
    Ok((index, Target { sides, segment: shaping.segment, owned }))
}

/// Returns why no sender has a share of a macvtap's frames to its VM.
pub fn no_shares_at(name: &str) -> String {
    format!(
        "interface {name} is a macvtap, into which the device below sends, past all classes: leave it out of `to`, or give \
         its VM a tap"
    )
}

/// Removes our unwanted objects.
fn take_away(steps: &mut Vec<Step>, device: &Device, link: &Netdev, sides: Sides<'_>) {
    let goes = |f: &Filter| {
        let wanted = if f.marks() { sides.marks.is_some() } else { sides.limits_ingress() };
        f.cookie().is_some() && !wanted
    };
    if let Some(filter) = link.filters_at(Handle::INGRESS).find(|f| goes(f)) {
        filters::delete(steps, device, link.filters_at(Handle::INGRESS), goes);
        let others = link.filters_at(Handle::INGRESS).any(|f| !goes(f));
        if filter.cookie().is_some_and(|c| c.made_clsact) && !others && !sides.filters_ingress() {
            let (parent, handle) = (Handle::CLSACT, Handle::INGRESS_QDISC);
            steps.push(Step::DeleteQdisc { device: device.clone(), parent, handle });
        }
    }
    if sides.egress.is_none() && link.root_is_ours() {
        let (parent, handle) = (Handle::ROOT, owner::ROOT_QDISC);
        steps.push(Step::DeleteQdisc { device: device.clone(), parent, handle });
    }
}

/// Sets up the IFB with a root qdisc that passes unclassified frames.
fn set_ifb(steps: &mut Vec<Step>, ifb: Option<&Netdev>, leaves: &mut Leaves<'_>) {
    if ifb.is_none() {
        steps.push(Step::AddIfb);
    }
    let setting = Setting::Htb { default: 0 };
    if !ifb.is_some_and(|link| has_root(link, &setting)) {
        let replace = ifb.is_some_and(|link| link.root().is_some());
        leaves.forget();
        steps.push(root(Device::Ifb, setting, replace));
    }
    leaves.set_classifier(steps);
    if !ifb.is_some_and(|link| link.up) {
        steps.push(Step::RaiseIfb);
    }
}

/// Sets the filters at the ingress; shaped frames go to `ifb`.
fn set_ingress(
    steps: &mut Vec<Step>,
    device: &Device,
    link: &Netdev,
    target: &Target<'_>,
    ifb: Option<u32>,
    cookie: Cookie,
) {
    let Target { sides, owned, .. } = target;
    if sides.ingress.is_some() {
        set_redirect(steps, device, link, ifb, cookie, owned.ingress);
    }
    if let Some(bucket) = sides.police {
        set_police(steps, device, link, bucket, cookie, owned.ingress);
    }
    if sides.limits_ingress() {
        let waiting = sides.ingress.map(|limit| sides.waiting_at_ingress(limit, link.mtu));
        let marked = waiting.and_then(|waiting| waiting.congestion);
        // Before the marks beside it: all of its preference may go.
        congestion::set(steps, device, Some(link), Handle::INGRESS, marked, cookie);
    }
    marks::set(steps, device, link, *sides, cookie);
}

/// Whether a filter at an ingress must not be beside the one that limits it. Foreign ones in unreachable
/// chains stay.
fn is_in_the_way(filter: &Filter, owned: bool) -> bool {
    let ours = filter.cookie().is_some();
    debug_assert!(owned || ours || filter.chain != 0, "others' filters are refused before");
    !filter.marks() && !filter.marks_congestion() && (ours || filter.chain == 0)
}

fn set_redirect(
    steps: &mut Vec<Step>,
    device: &Device,
    link: &Netdev,
    ifb: Option<u32>,
    cookie: Cookie,
    owned: bool,
) {
    let is_right = |f: &&Filter| {
        matches!(f.rule, Rule::Redirect { to, .. } if Some(to) == ifb)
            && f.place() == (0, owner::PREFERENCE, ANY_PROTOCOL)
    };
    let right = link.filters_at(Handle::INGRESS).find(is_right);
    // An owned shaping removes foreign filters that came beside it.
    filters::delete(steps, device, link.filters_at(Handle::INGRESS), |f| {
        is_in_the_way(f, owned) && !right.is_some_and(|right| std::ptr::eq(right, f))
    });
    if right.is_none() {
        steps.push(Step::Redirect { device: device.clone(), cookie });
    }
}

fn set_police(
    steps: &mut Vec<Step>,
    device: &Device,
    link: &Netdev,
    bucket: Bucket,
    cookie: Cookie,
    owned: bool,
) {
    let is_policer = |f: &&Filter| {
        matches!(f.rule, Rule::Police { .. }) && f.place() == (0, owner::PREFERENCE, ANY_PROTOCOL)
    };
    let policer = link.filters_at(Handle::INGRESS).find(is_policer);
    filters::delete(steps, device, link.filters_at(Handle::INGRESS), |f| {
        is_in_the_way(f, owned) && !policer.is_some_and(|policer| std::ptr::eq(policer, f))
    });
    let instead = match policer.map(|f| (f.rule.clone(), f.handle)) {
        Some((Rule::Police { bucket: known, program, .. }, _)) if known == bucket && program.is_current() => {
            return;
        }
        Some((Rule::Police { program, .. }, handle)) => Some((handle, program.map)),
        _ => None,
    };
    steps.push(Step::Police { device: device.clone(), bucket, cookie, instead });
}

/// Returns the qdisc of the ingress filters, made if necessary, and whether we made it. `known`: a filter
/// of ours was in it.
fn set_clsact(steps: &mut Vec<Step>, device: &Device, link: &Netdev, known: bool) -> bool {
    let ours = link.filters_at(Handle::INGRESS).find_map(Filter::cookie);
    let empty = link.filters_at(Handle::INGRESS).next().is_none();
    match (link.ingress(), ours) {
        (None, _) => {
            let (parent, handle) = (Handle::CLSACT, Handle::INGRESS_QDISC);
            let (device, setting) = (device.clone(), Setting::Clsact);
            steps.push(Step::SetQdisc { device, parent, handle, setting, replace: false });
            true
        }
        (Some(_), Some(cookie)) => cookie.made_clsact,
        // The agent ended between making it and the filter, or another program deleted the filter.
        (Some(q), None) => known && empty && q.setting == Setting::Clsact,
    }
}
