//! Two hosts with an RDMA device each, over a fabric in memory.

use super::{GuestRegions, LocalPair, MemberEntry, Setup, Tables};
use crate::fdb::{PeerIndex, PortIndex, SegmentIndex};
use crate::virtio::memory::RegionSpec;
use crate::virtio::{GuestMemory, Span};
use std::net::IpAddr;
use std::sync::Arc;
use tidegate_contract::Mac;
use tidegate_frontend::memory::SharedMemory;
use tidegate_verbs::simulated::{self, Fabric};
use tidegate_verbs::{Access, Address, Library, Region};

/// Bytes of each of a guest's two regions.
const REGION: usize = 1 << 18;

/// A guest that puts bytes into its memory: two regions.
pub struct Guest {
    pub memory: Arc<GuestMemory>,
    /// Where the next bytes go.
    at: usize,
}

impl Guest {
    /// Returns one with zeroed memory.
    pub fn new() -> Self {
        let shared = SharedMemory::new(0, 2 * REGION).unwrap();
        let spec = |at: u64| {
            let (guest_addr, mmap_offset) = (2 * at * REGION as u64, at * REGION as u64);
            let fd = shared.fd().try_clone_to_owned().unwrap();
            RegionSpec { guest_addr, user_addr: guest_addr, size: REGION as u64, mmap_offset, fd }
        };
        Self { memory: Arc::new(GuestMemory::map(vec![spec(0), spec(1)]).unwrap()), at: 0 }
    }

    /// Puts bytes behind those before and a gap, or into the other region, and returns where they are.
    pub fn put(&mut self, bytes: &[u8], gap: usize, in_other: bool) -> Span {
        let from = self.at + gap + if in_other { REGION } else { 0 };
        let (region, from) = (from / REGION % 2, from % REGION);
        let from = if from + bytes.len() > REGION { 0 } else { from };
        self.at = region * REGION + from + bytes.len();
        let (start, len) = self.memory.regions().nth(region).unwrap();
        assert!(from + bytes.len() <= len);
        let ptr = start.wrapping_add(from);
        // SAFETY: in the region, which is mapped as long as the guest is there.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), ptr, bytes.len()) };
        Span { ptr, len: bytes.len() as u32 }
    }

    /// Registers the memory, as that of a port, with a host's device.
    pub fn regions(&self, side: &Side, port: PortIndex) -> Arc<GuestRegions> {
        let region = |(start, len)| {
            // SAFETY: the memory keeps it mapped.
            unsafe { Region::over(&side.setup.device, start, len, self.memory.clone(), Access::Read) }
                .unwrap()
        };
        Arc::new(GuestRegions::new(port, self.memory.clone(), self.memory.regions().map(region).collect()))
    }
}

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
