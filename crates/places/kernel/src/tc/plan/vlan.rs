//! The VLAN of a netdev that is a bridge port.
//!
//! Nothing on a port tells who set its VLANs. So foreign VLANs are in the way of a new segment, and those
//! found are remembered ([`crate::foreign::BridgePort`]); while it is owned, all of a port's VLANs are
//! ours.

use crate::tc::network::{Netdev, Network};
use crate::tc::step::{Device, Step};
use crate::tc::vlan::{Member, Vlans};

/// Returns the foreign VLANs of a link's port.
///
/// # Errors
/// The port cannot be kept in `segment`, with the reason and what to do.
pub fn others(link: &Netdev, segment: u16, network: &Network) -> Result<Vlans, String> {
    let name = &link.name;
    let no = |why: String, how: String| {
        Err(format!(
            "interface {name} is on {why}, so no bridge would keep it in segment {segment}; {how}, or write segment = \
             0, which promises nothing here"
        ))
    };
    let filter = |bridge: &str| format!("ip link set {bridge} type bridge vlan_filtering 1");
    let Some(master) = link.master.and_then(|index| network.netdevs.get(&index)) else {
        let how =
            format!("put it on one that filters VLANs (ip link set {name} master br0; {})", filter("br0"));
        return no("no bridge".into(), how);
    };
    let (on, kind) = (&master.name, master.kind.as_deref().unwrap_or("physical"));
    let Some(bridge) = master.bridge else {
        return no(
            format!("{on}, which is of kind {kind}"),
            "put it on a Linux bridge that filters VLANs".into(),
        );
    };
    if !bridge.filters {
        let how = format!("let it ({}; it takes a kernel with CONFIG_BRIDGE_VLAN_FILTERING)", filter(on));
        return no(format!("bridge {on}, which does not filter VLANs"), how);
    }
    let Some(vlans) = &link.vlans else {
        return no(format!("bridge {on}, whose VLANs were not read"), "try again".into());
    };
    // As on a new port, or as an agent of ours left it that died in between.
    let nobodys =
        |vid, member| Some(vid) == bridge.default_pvid || (vid, member) == (segment, Member::ACCESS);
    Ok(vlans.only(|vid, member| !nobodys(vid, member)))
}

/// Makes the port of a link an access port.
pub fn set(steps: &mut Vec<Step>, device: &Device, link: &Netdev, segment: u16) {
    if let Some(now) = &link.vlans {
        steps.extend(lead(device, now, &Vlans::access(segment)));
    }
}

/// Returns the steps from a port's VLANs to the wanted ones. New ones come first: a failed request leaves
/// the port as it was.
pub fn lead(device: &Device, now: &Vlans, wanted: &Vlans) -> Vec<Step> {
    let new = wanted.only(|vid, member| now.get(vid) != Some(member));
    let gone = now.only(|vid, _| wanted.get(vid).is_none());
    let device = || device.clone();
    let new = (!new.is_empty()).then(|| Step::SetVlans { device: device(), vlans: new });
    let gone = (!gone.is_empty()).then(|| Step::DeleteVlans { device: device(), vlans: gone });
    new.into_iter().chain(gone).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{Plan, model, plan};
    use super::*;
    use crate::foreign::BridgePort;
    use crate::tc::network::Bridge;
    use crate::tc::shaping::{Shaping, Ways};
    use proptest::prelude::*;

    const TAP: u32 = 3;

    /// Returns `tap3` on `br0`, with the VLAN of every port, and `br1` beside it, which does not filter.
    fn bridged() -> Network {
        let bridge = |name: &str, filters| Netdev {
            name: name.into(),
            kind: Some("bridge".into()),
            bridge: Some(Bridge { filters, default_pvid: Some(1) }),
            ..Netdev::default()
        };
        let tap = Netdev {
            name: "tap3".into(),
            kind: Some("tun".into()),
            master: Some(1),
            vlans: Some(Vlans::access(1)),
            ..Netdev::default()
        };
        Network {
            netdevs: [(1, bridge("br0", true)), (2, bridge("br1", false)), (TAP, tap)].into(),
            ..Network::default()
        }
    }

    fn wanted(segment: Option<u16>, owned: bool) -> [Shaping; 1] {
        let owned = Ways { segment: owned, ..Ways::NONE };
        [Shaping { netdev: "tap3".into(), segment, owned, ..Shaping::default() }]
    }

    fn shown(plan: &Plan) -> Vec<String> {
        plan.steps.iter().map(ToString::to_string).collect()
    }

    fn run(network: &mut Network, steps: &[Step]) {
        steps.iter().for_each(|step| model::apply(network, step).unwrap_or_else(|e| panic!("{step}: {e}")));
    }

    fn vlans(text: &[(u16, bool, bool)]) -> Vlans {
        text.iter().map(|(vid, pvid, untagged)| (*vid, Member { pvid: *pvid, untagged: *untagged })).collect()
    }

    #[test]
    fn a_port_becomes_an_access_port_and_is_restored() {
        let mut network = bridged();
        let before = BridgePort::now(TAP, &network.netdevs[&TAP]).expect("a port");
        for (segment, steps) in [
            (42, ["put tap3 into VLAN 42 (PVID, untagged)", "take tap3 out of VLAN 1 (PVID, untagged)"]),
            (43, ["put tap3 into VLAN 43 (PVID, untagged)", "take tap3 out of VLAN 42 (PVID, untagged)"]),
        ] {
            let made = plan(&wanted(Some(segment), segment != 42), &network);
            assert_eq!((shown(&made), &made.refusals[..]), (steps.map(String::from).to_vec(), &[][..]));
            run(&mut network, &made.steps);
            assert_eq!(plan(&wanted(Some(segment), false), &network), Plan::default());
        }
        assert_eq!(
            plan(&wanted(None, true), &network),
            Plan::default(),
            "what was found is not in the kernel"
        );
        let again = before.restore(&network.netdevs[&TAP]);
        run(&mut network, &again);
        assert_eq!(network, bridged());
    }

    #[test]
    fn a_segment_that_no_bridge_keeps_is_refused_with_advice() {
        let refused = |change: fn(&mut Netdev)| {
            let mut network = bridged();
            change(network.netdevs.get_mut(&TAP).expect("a tap"));
            let bond = Netdev { name: "bond0".into(), kind: Some("bond".into()), ..Netdev::default() };
            network.netdevs.insert(9, bond);
            let made = plan(&wanted(Some(42), true), &network);
            assert_eq!((made.steps, made.refusals.len(), &made.refusals[0].foreign), (vec![], 1, &None));
            made.refusals[0].reason.clone()
        };
        assert_eq!(
            refused(|tap| tap.master = Some(2)),
            "interface tap3 is on bridge br1, which does not filter VLANs, so no bridge would keep it in segment 42; let it \
             (ip link set br1 type bridge vlan_filtering 1; it takes a kernel with CONFIG_BRIDGE_VLAN_FILTERING), or write \
             segment = 0, which promises nothing here"
        );
        assert!(refused(|tap| tap.master = None).starts_with(
            "interface tap3 is on no bridge, so no bridge would keep it in segment 42; put it on one that filters VLANs \
             (ip link set tap3 master br0; "
        ));
        assert!(refused(|tap| tap.master = Some(9)).contains("is on bond0, which is of kind bond"));
    }

    #[test]
    fn foreign_vlans_are_in_the_way_until_they_are_taken_over() {
        let mut network = bridged();
        let theirs = vlans(&[(1, false, true), (7, true, true), (10, false, false), (11, false, false)]);
        network.netdevs.get_mut(&TAP).expect("a tap").vlans = Some(theirs.clone());
        let refused = plan(&wanted(Some(42), false), &network);
        assert_eq!(refused.steps, []);
        assert_eq!(
            refused.refusals[0].reason,
            "interface tap3 has VLAN 7 (PVID, untagged), 10-11 on its bridge port, which another program made; remove it \
             first (bridge vlan del dev tap3 vid 7; bridge vlan del dev tap3 vid 10-11)"
        );
        assert!(refused.refusals[0].foreign.is_some());
        let before = BridgePort::now(TAP, &network.netdevs[&TAP]).expect("a port");
        let made = plan(&wanted(Some(42), true), &network);
        assert_eq!(
            shown(&made),
            [
                "put tap3 into VLAN 42 (PVID, untagged)",
                "take tap3 out of VLAN 1 (untagged), 7 (PVID, untagged), 10-11"
            ]
        );
        run(&mut network, &made.steps);
        let again = before.restore(&network.netdevs[&TAP]);
        run(&mut network, &again);
        assert_eq!(network.netdevs[&TAP].vlans, Some(theirs));
    }

    #[test]
    fn a_vlan_of_the_segment_with_other_flags_is_foreign() {
        let mut network = bridged();
        let mut refusals = |found: Vlans| {
            network.netdevs.get_mut(&TAP).expect("a tap").vlans = Some(found);
            plan(&wanted(Some(42), false), &network).refusals.len()
        };
        assert_eq!(refusals(vlans(&[(1, true, true), (42, false, false)])), 1);
        // Interrupted after the first step; and made by hand as a contract would.
        assert_eq!(refusals(vlans(&[(1, false, true), (42, true, true)])), 0);
        assert_eq!(refusals(Vlans::access(42)), 0);
        assert_eq!(refusals(Vlans::default()), 0);
    }

    #[test]
    fn vlans_of_another_bridge_are_not_restored() {
        let mut network = bridged();
        let before = BridgePort::now(TAP, &network.netdevs[&TAP]).expect("a port");
        let tap = network.netdevs.get_mut(&TAP).expect("a tap");
        (tap.master, tap.vlans) = (Some(2), Some(Vlans::access(5)));
        assert_eq!(before.restore(&network.netdevs[&TAP]), []);
    }

    fn any_vlans() -> impl Strategy<Value = Vlans> {
        let each = proptest::collection::vec((1_u16..9, any::<bool>()), 0..9);
        (each, prop::option::of(1_u16..9)).prop_map(|(each, pvid)| {
            let member = |vid, untagged| Member { pvid: Some(vid) == pvid, untagged };
            each.into_iter().map(|(vid, untagged)| (vid, member(vid, untagged))).collect()
        })
    }

    proptest! {
        /// From any VLANs to any others, also after an interruption, each step at most once.
        #[test]
        fn any_vlans_lead_to_any_other_vlans(now in any_vlans(), wanted in any_vlans(), cut in 0_usize..3) {
            let mut network = bridged();
            network.netdevs.get_mut(&TAP).expect("a tap").vlans = Some(now);
            let port = BridgePort { index: TAP, bridge: 1, vlans: wanted.clone() };
            let begun = port.restore(&network.netdevs[&TAP]);
            prop_assert!(begun.len() <= 2);
            run(&mut network, &begun[..cut.min(begun.len())]);
            let rest = port.restore(&network.netdevs[&TAP]);
            run(&mut network, &rest);
            prop_assert_eq!(network.netdevs[&TAP].vlans.as_ref(), Some(&wanted));
            prop_assert_eq!(port.restore(&network.netdevs[&TAP]), vec![]);
        }

        /// Owned VLANs are repaired after any damage; others are refused, or free.
        #[test]
        fn one_plan_leads_to_the_segment(now in any_vlans(), segment in 1_u16..9, owned: bool) {
            let mut network = bridged();
            network.netdevs.get_mut(&TAP).expect("a tap").vlans = Some(now.clone());
            let made = plan(&wanted(Some(segment), owned), &network);
            run(&mut network, &made.steps);
            let there = network.netdevs[&TAP].vlans.clone();
            let right = there == Some(Vlans::access(segment));
            prop_assert_eq!(right, made.refusals.is_empty());
            prop_assert!(right || (!owned && there == Some(now)));
        }
    }
}
