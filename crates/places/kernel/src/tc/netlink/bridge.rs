//! The VLANs of bridge ports in link messages of the family `AF_BRIDGE` (linux/if_bridge.h).

use super::attribute::{Attributes, find, read, u16_at, u32_at};
use super::constants::*;
use crate::tc::vlan::{LAST, Member, Vlans};
use tidegate_netlink::link;

/// Returns `struct ifinfomsg` of a bridge port.
pub fn port_header(index: u32) -> Attributes {
    let mut bytes = vec![AF_BRIDGE, 0, 0, 0];
    for field in [index, 0, 0] {
        bytes.extend(field.to_ne_bytes());
    }
    Attributes(bytes)
}

/// Returns a request for all bridge ports with their VLANs, as ranges: a list of all VLANs of a trunk may
/// not fit into a message.
pub fn ports() -> Vec<u8> {
    let mut body = port_header(0);
    body.put_u32(IFLA_EXT_MASK, RTEXT_FILTER_BRVLAN_COMPRESSED);
    body.0
}

/// Returns interface index and VLANs of an `RTM_NEWLINK`; `None` if it is not of a port.
pub fn port(body: &[u8]) -> Option<(u32, Vlans)> {
    let index = u32_at(body, 4)?;
    let attributes = body.get(link::HEADER..)?;
    find(attributes, IFLA_MASTER)?;
    let mut each = Vec::new();
    let mut begun = None;
    for (_, value) in read(find(attributes, IFLA_AF_SPEC).unwrap_or_default())
        .filter(|(kind, _)| *kind == IFLA_BRIDGE_VLAN_INFO)
    {
        // struct bridge_vlan_info: flags, vid.
        let (Some(flags), Some(vid)) = (u16_at(value, 0), u16_at(value, 2)) else { continue };
        let is = |flag| flags & flag != 0;
        if is(BRIDGE_VLAN_INFO_RANGE_BEGIN) {
            begun = Some(vid);
            continue;
        }
        let first = begun.take().filter(|_| is(BRIDGE_VLAN_INFO_RANGE_END)).unwrap_or(vid);
        let member = Member { pvid: is(BRIDGE_VLAN_INFO_PVID), untagged: is(BRIDGE_VLAN_INFO_UNTAGGED) };
        each.extend((first.max(1)..=vid.min(LAST)).map(|vid| (vid, member)));
    }
    Some((index, each.into_iter().collect()))
}

/// Adds VLANs to set or delete.
pub fn put_vlans(body: &mut Attributes, vlans: &Vlans) {
    body.nest(IFLA_AF_SPEC, |list| {
        let mut put = |vid: u16, flags: u16| {
            list.put(IFLA_BRIDGE_VLAN_INFO, &[flags.to_ne_bytes(), vid.to_ne_bytes()].concat());
        };
        for range in vlans.ranges() {
            let Member { pvid, untagged } = range.member;
            let flags = if pvid { BRIDGE_VLAN_INFO_PVID } else { 0 }
                | if untagged { BRIDGE_VLAN_INFO_UNTAGGED } else { 0 };
            if range.first == range.last {
                put(range.first, flags);
            } else {
                put(range.first, flags | BRIDGE_VLAN_INFO_RANGE_BEGIN);
                put(range.last, flags | BRIDGE_VLAN_INFO_RANGE_END);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(vlans: &Vlans) -> Vec<u8> {
        let mut body = port_header(7);
        body.put_u32(IFLA_MASTER, 9);
        put_vlans(&mut body, vlans);
        body.0
    }

    #[test]
    fn a_trunk_fits_into_few_bytes() {
        let trunk: Vlans = (1..=LAST).map(|vid| (vid, Member::default())).collect();
        assert!(message(&trunk).len() < 60);
        assert_eq!(port(&message(&trunk)), Some((7, trunk)));
        assert_eq!(port(&port_header(7).0), None, "not a port");
    }

    proptest! {
        #[test]
        fn vlans_read_back(given in proptest::collection::btree_map(1_u16..=LAST, any::<bool>(), 0..50), pvid: usize) {
            let pvid = given.keys().nth(pvid % 60).copied();
            let member = |vid, untagged| Member { pvid: Some(vid) == pvid, untagged };
            let vlans: Vlans = given.into_iter().map(|(vid, untagged)| (vid, member(vid, untagged))).collect();
            prop_assert_eq!(port(&message(&vlans)), Some((7, vlans)));
        }

        #[test]
        fn no_message_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut body = port_header(7);
            body.put_u32(IFLA_MASTER, 9);
            body.put(IFLA_AF_SPEC, &bytes);
            let _ = (port(&body.0), port(&bytes));
            let mut list = Attributes::default();
            bytes.chunks(4).for_each(|info| list.put(IFLA_BRIDGE_VLAN_INFO, info));
            body.put(IFLA_AF_SPEC, &list.0);
            let _ = port(&body.0);
        }
    }
}
