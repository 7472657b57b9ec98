//! A worker without a thread, for tests.

use super::crossing::Peer;
use super::events::{Event, Events};
use super::lending::Lending;
use super::{Peers, Worker, WorkerHandle, mailbox};
use crate::claims::Claims;
pub use crate::clock::test_clock::set_time;
use crate::fdb::{Fdb, PeerIndex, PortIndex, SegmentIndex};
use crate::frame::VnetHdr;
use crate::link::{Link, vxlan};
use crate::port::{Port, PortContract, PortInfo, PortSet};
use crate::stats::Region;
use crate::stats::layout::VnicSlot;
use rtrb::Consumer;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tidegate_contract::{Host, Mac, Rate, Vnic};
use tidegate_uplink::vxlan::header as vxlan_header;

/// Returns a worker that is alone, and its handle.
pub fn worker() -> (Worker, WorkerHandle) {
    let (worker, handle, _) = worker_and_events();
    (worker, handle)
}

/// The same, with its events.
pub fn worker_and_events() -> (Worker, WorkerHandle, Consumer<Event>) {
    all(1).remove(0)
}

/// Returns workers that know each other, and their handles.
pub fn workers(count: usize) -> Vec<(Worker, WorkerHandle)> {
    all(count).into_iter().map(|(worker, handle, _)| (worker, handle)).collect()
}

fn all(count: usize) -> Vec<(Worker, WorkerHandle, Consumer<Event>)> {
    let (handles, inboxes): (Vec<_>, Vec<_>) = (0..count).map(|_| mailbox().unwrap()).unzip();
    let mut peers: Vec<Peers> = (0..count).map(|_| (0..count).map(|_| None).collect()).collect();
    for (a, b) in (0..count).flat_map(|a| (0..a).map(move |b| (a, b))) {
        let (at_a, at_b) = Peer::pair();
        peers[a][b] = Some((at_a, inboxes[b].bell().clone()));
        peers[b][a] = Some((at_b, inboxes[a].bell().clone()));
    }
    let (fdb, claims, lending) =
        (Arc::new(Fdb::new()), Arc::new(Claims::new()), Arc::new(Lending::default()));
    let region = Region::create().unwrap();
    let all = inboxes.into_iter().zip(peers).zip(&region.layout().workers).enumerate();
    let workers = all.map(|(id, ((inbox, peers), stats))| {
        let (faults, _) = std::sync::mpsc::channel();
        let (events, consumer) = Events::new(Arc::default());
        let (id, fdb, claims, lending) = (id as u16, fdb.clone(), claims.clone(), lending.clone());
        (Worker::new(id, inbox, fdb, claims, lending, peers, stats, faults, events).unwrap(), consumer)
    });
    workers.zip(handles).map(|((worker, consumer), handle)| (worker, handle, consumer)).collect()
}

/// Returns a frame from the vNIC of port `from` to that of port `to`, as a tap's descriptor has it.
pub fn tap_frame(from: PortIndex, to: PortIndex) -> Vec<u8> {
    // A virtio header without requests, and an EtherType for local experiments (IEEE 802).
    [&[0; VnetHdr::LEN][..], &mac(to).0, &mac(from).0, &[0x88, 0xb5], &[0; 46]].concat()
}

/// Adds a vhost-user port without front end and limits.
pub fn add_port(worker: &mut Worker, index: PortIndex) {
    let info = add_port_with(worker, index, "");
    worker.set_info(index, Some(info));
}

/// Adds a vhost-user port with further contract `keys`, without front end; returns what all workers know of
/// it.
pub fn add_port_with(worker: &mut Worker, index: PortIndex, keys: &str) -> PortInfo {
    let stats = &Region::create().unwrap().layout().vnics[usize::from(index)];
    add_link(worker, index, keys, Link::vhost_user(), stats)
}

/// Adds a tap without limits; returns the other end of its descriptor: a read takes a frame that the tap
/// got, a write is a frame of the kernel's, virtio header included.
pub fn add_tap(worker: &mut Worker, index: PortIndex) -> OwnedFd {
    add_tap_with(worker, index, "")
}

/// The same, with further contract `keys`.
pub fn add_tap_with(worker: &mut Worker, index: PortIndex, keys: &str) -> OwnedFd {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (theirs, ours) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let stats = &Region::create().unwrap().layout().vnics[usize::from(index)];
    let link = Link::tap(vec![ours], index, worker.id, worker.now);
    let info = add_link(worker, index, keys, link, stats);
    worker.set_info(index, Some(info));
    theirs
}

/// The segment of [`add_uplink`]'s frames, as VXLAN has it.
pub const VNI: u32 = 7;

/// The host at the other end of an uplink, as a plain socket.
pub struct Far {
    socket: UdpSocket,
    uplink: SocketAddr,
}

impl Far {
    /// Sends a frame to the uplink.
    pub fn send(&self, frame: &[u8]) {
        let datagram = [&vxlan_header(VNI)[..], frame].concat();
        assert_eq!(self.socket.send_to(&datagram, self.uplink).unwrap(), datagram.len());
    }

    /// Returns the next frame that arrived.
    pub fn receive(&self) -> Option<Vec<u8>> {
        let mut datagram = [0; 1 << 16];
        let (len, _) = self.socket.recv_from(&mut datagram).ok()?;
        Some(datagram[vxlan_header(VNI).len()..len].to_vec())
    }
}

/// Adds an uplink over loopback to one peer, number `index`, of which the result is. It carries segment 0.
/// Without a limit for practical purposes.
pub fn add_uplink(worker: &mut Worker, index: PortIndex) -> Far {
    add_uplink_of(worker, index, Rate::from_bits(100_000_000_000).unwrap())
}

/// The same, of this rate.
pub fn add_uplink_of(worker: &mut Worker, index: PortIndex, rate: Rate) -> Far {
    let bound = |last: u16| {
        let socket = UdpSocket::bind((Ipv4Addr::new(127, 0, 1, last as u8), 0)).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    };
    let (socket, receive) = (bound(index), bound(0));
    let far = Far { uplink: receive.local_addr().unwrap(), socket };
    let peer = vxlan::Peer {
        index: PeerIndex::new(index).unwrap(),
        address: far.socket.local_addr().unwrap(),
        segments: vec![SegmentIndex(0)],
        takes_stamps: false,
    };
    let peers = Arc::new(vxlan::Peers::new(vec![peer], &[(SegmentIndex(0), VNI)]).unwrap());
    let (receive, send_v4, fdb) = (vec![receive.into()], vec![bound(0).into()], worker.fdb.clone());
    let setup = vxlan::Setup {
        receive,
        send_v4,
        send_v6: vec![],
        pairs: vec![],
        peers,
        fdb,
        clocks: Arc::default(),
        train: 65_507,
        rdma: None,
    };
    let link = Link::vxlan(setup, index, worker.id, worker.now);
    let contract = PortContract::of_uplink(rate, 1518, 50, 1568, &Host::default());
    let stats = &Region::create().unwrap().layout().vnics[usize::from(index)];
    worker.add_port(Box::new(Port::new(index, SegmentIndex::OF_EACH_FRAME, contract, stats, link)));
    worker.set_info(index, Some(PortInfo::of_uplink(worker.id)));
    far
}

/// Returns the address of a port's vNIC.
pub fn mac(index: PortIndex) -> Mac {
    Mac([0x52, 0x54, 0, 0, 0, index as u8])
}

/// Adds a port with this link, which counts there.
pub fn add_link(
    worker: &mut Worker,
    index: PortIndex,
    keys: &str,
    link: Link,
    stats: &'static VnicSlot,
) -> PortInfo {
    let text = format!(
        "[vnic.v{index}]\nattach = {{ vhost-user = \"/tmp/v{index}\" }}\n\
         mac = \"52:54:00:00:00:{index:02x}\"\nsegment = 7\n{keys}\n"
    );
    let vnic: Vnic = tidegate_contract::parse(&text, "test").unwrap().vnics.remove(0).value;
    let segment = SegmentIndex(0);
    let contract = PortContract::new(&vnic, &Host::default());
    worker.add_port(Box::new(Port::new(index, segment, contract, stats, link)));
    worker.fdb.pin(segment, vnic.mac, index).unwrap();
    PortInfo::new(&vnic, worker.id, segment, PortSet::EMPTY)
}
