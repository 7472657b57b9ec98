//! Two hosts with an RDMA device each, over a fabric in memory.

use super::{LocalPair, MemberEntry, Setup, Tables};
use crate::fdb::{PeerIndex, PortIndex, SegmentIndex};
use std::net::IpAddr;
use std::sync::Arc;
use tidegate_contract::Mac;
use tidegate_verbs::simulated::{self, Fabric};
use tidegate_verbs::{Address, Library};

/// A host's device.
pub struct Side {
    /// The device, for orders to it.
    pub device: simulated::Device,
    /// Its lane.
    pub setup: Setup,
    /// Its address.
    pub address: IpAddr,
    /// What connects it.
    pub fabric: Fabric,
}

/// Returns a host at this address.
pub fn side(fabric: &Fabric, address: IpAddr) -> Side {
    let device = simulated::Device::new(fabric, "sim0", &[address]);
    let open = Library::simulated(std::slice::from_ref(&device)).open("sim0").unwrap();
    let gid = open.gids().unwrap().into_iter().find(|gid| gid.is_roce_v2 && gid.address == address).unwrap();
    Side { device, setup: Setup::new(&open, gid.index).unwrap(), address, fabric: fabric.clone() }
}

/// Returns two hosts, at 127.0.0.1 and 127.0.0.2, or at IPv6 addresses.
pub fn sides(fabric: &Fabric, v6: bool) -> [Side; 2] {
    let addresses = if v6 { ["::1", "::2"] } else { ["127.0.0.1", "127.0.0.2"] };
    addresses.map(|address| side(fabric, address.parse().unwrap()))
}

impl Side {
    /// Makes the queue pair of a port's vNIC. Its Q_Key is the segment's index.
    pub fn pair(&self, port: PortIndex, segment: (SegmentIndex, u32), mac: Mac) -> Arc<LocalPair> {
        self.setup.pair(port, segment, mac, segment.0.0.into()).unwrap()
    }

    /// Returns the member that a vNIC of the `other` host is here, behind `peer`.
    pub fn member(&self, other: &Self, pair: &LocalPair, peer: PeerIndex) -> MemberEntry {
        let handle = |at| {
            Address::new(&self.setup.device, self.setup.gid, other.address, super::members::traffic_class(at))
        };
        MemberEntry {
            segment: pair.segment,
            vni: pair.vni,
            mac: pair.mac,
            peer,
            address: other.address,
            queue_pair: pair.number(),
            q_key: pair.segment.0.into(),
            longest: super::longest_frame(self.setup.mtu, false),
            handles: Some(std::array::from_fn(|at| handle(at).unwrap())),
        }
    }
}

/// Returns tables of each host, where the vNIC with this address in `segment`, at port 0, has a queue pair, and is a member
/// at the other host.
pub fn tables(
    [a, b]: &[Side; 2],
    segment: (SegmentIndex, u32),
    [mac_a, mac_b]: [Mac; 2],
    [peer_of_a, peer_of_b]: [PeerIndex; 2],
) -> [Arc<Tables>; 2] {
    let (of_a, of_b) = (a.pair(0, segment, mac_a), b.pair(0, segment, mac_b));
    let (in_a, in_b) = (a.member(b, &of_b, peer_of_b), b.member(a, &of_a, peer_of_a));
    [Tables::new(vec![of_a], vec![in_a]), Tables::new(vec![of_b], vec![in_b])].map(Arc::new)
}
