//! Two links over loopback, or a link and a plain socket.

use super::super::*;
use crate::fdb::{Destination, PeerIndex, SegmentIndex};
use crate::frame::offload::{check, segments, wire_bytes};
use crate::frame::testing::{self, Frame as Spec};
use crate::frame::vnet_hdr::{GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM};
use crate::frame::{HEADER_MAX, Headers, Segmenter, VnetHdr, finish_checksum, parse};
use crate::link::delivery::payload;
use crate::link::reading::Reads;
use crate::link::{Posted, Taken};
use crate::slots::{Frame, Slots, body_spans, slice_spans};
use crate::virtio::{MAX_SPANS, Span};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use tidegate_evidence::DropReason;

/// The segment of all scenes, and its VNI.
pub const SEGMENT: (SegmentIndex, u32) = (SegmentIndex(3), 4242);
/// A segment that no peer carries.
pub const OTHER: (SegmentIndex, u32) = (SegmentIndex(4), 4343);
/// The port of each link.
pub const PORT: PortIndex = 9;

/// Sets an option of a socket.
pub fn set(socket: &UdpSocket, level: i32, name: i32, value: i32) {
    // SAFETY: the kernel reads an integer of that length.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), size_of::<i32>() as u32)
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// Returns a socket as the agent makes it.
pub fn socket(address: IpAddr) -> UdpSocket {
    let socket = UdpSocket::bind((address, 0)).unwrap();
    socket.set_nonblocking(true).unwrap();
    set(&socket, libc::SOL_UDP, libc::UDP_GRO, 1);
    match address {
        IpAddr::V4(_) => {
            set(&socket, libc::IPPROTO_IP, libc::IP_RECVTOS, 1);
            set(&socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO);
        }
        IpAddr::V6(_) => {
            set(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1);
            set(&socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO);
        }
    }
    socket
}

/// Returns a peer that carries [`SEGMENT`].
pub fn peer(number: u16, address: SocketAddr) -> Peer {
    let index = PeerIndex::new(number).unwrap();
    Peer { index, address, segments: vec![SEGMENT.0], takes_stamps: false }
}

/// A link that receives at `address`.
pub struct Host {
    pub tx: Tx,
    pub rx: Rx,
    pub address: SocketAddr,
    /// Super-frames that were taken.
    pub joined: usize,
}

/// Returns a link at `address` with so many sending sockets, to `peers`.
pub fn host(address: IpAddr, sending: usize, peers: Vec<Peer>) -> Host {
    host_with(address, sending, 0, peers)
}

/// The same, with so many sending sockets for single pairs of vNICs.
pub fn host_with(address: IpAddr, sending: usize, pair_lanes: usize, peers: Vec<Peer>) -> Host {
    host_of(address, (sending, pair_lanes), peers, None)
}

/// The same, with queue pairs.
pub fn host_of(
    address: IpAddr,
    (sending, pair_lanes): (usize, usize),
    peers: Vec<Peer>,
    rdma: Option<rdma::Setup>,
) -> Host {
    let receive = socket(address);
    let at = receive.local_addr().unwrap();
    let send = || (0..sending).map(|_| socket(address).into()).collect::<Vec<_>>();
    let fdb = Fdb::new();
    if let Some(peer) = peers.first() {
        let to = Destination::Peer { link: PORT, peer: peer.index };
        fdb.pin(SEGMENT.0, testing::DST, to).unwrap();
    }
    let (send_v4, send_v6) = if address.is_ipv4() { (send(), vec![]) } else { (vec![], send()) };
    let setup = Setup {
        receive: vec![receive.into()],
        send_v4,
        pairs: (0..pair_lanes).map(|_| socket(address).into()).collect(),
        send_v6,
        peers: Arc::new(Peers::new(peers, &[SEGMENT, OTHER]).unwrap()),
        fdb: Arc::new(fdb),
        clocks: Arc::default(),
        train: 65_507,
        rdma,
    };
    let (tx, rx) = halves(setup, PORT, 0, 0);
    Host { tx, rx, address: at, joined: 0 }
}

/// Returns two links that are each other's peer.
pub fn pair(v6: bool, sending: usize) -> (Host, Host) {
    let addresses =
        if v6 { ["::1", "::1"] } else { ["127.0.0.1", "127.0.0.2"] }.map(|text| text.parse().unwrap());
    pair_of(addresses, sending, [None, None])
}

/// The same, at these addresses, with queue pairs.
pub fn pair_of([a, b]: [IpAddr; 2], sending: usize, [of_a, of_b]: [Option<rdma::Setup>; 2]) -> (Host, Host) {
    let mut a = host_of(a, (sending, 0), vec![], of_a);
    let b = host_of(b, (sending, 0), vec![peer(5, a.address)], of_b);
    let peers = Arc::new(Peers::new(vec![peer(6, b.address)], &[SEGMENT, OTHER]).unwrap());
    a.tx.set_peers(peers.clone());
    a.rx.set_peers(peers);
    let to = Destination::Peer { link: PORT, peer: PeerIndex::new(6).unwrap() };
    a.rx.fdb.pin(SEGMENT.0, testing::DST, to).unwrap();
    (a, b)
}

/// A frame of a guest, with its memory.
pub struct Sent {
    pub frame: Frame,
    _memory: Vec<u8>,
}

/// Returns a frame without requests.
pub fn plain(bytes: &[u8]) -> Sent {
    sent(bytes.to_vec(), VnetHdr::default())
}

/// Returns a frame that asks for segments of `size` bytes, or for its checksum.
pub fn asking(spec: &Spec, size: Option<u16>) -> Sent {
    let memory = spec.build();
    let headers = parse(&memory[..memory.len().min(HEADER_MAX)], memory.len()).unwrap();
    let gso_type = match (spec.tcp, spec.v6) {
        (true, false) => GSO_TCPV4,
        (true, true) => GSO_TCPV6,
        (false, _) => GSO_UDP_L4,
    };
    let vnet = VnetHdr {
        flags: NEEDS_CSUM,
        gso_type: size.map_or(0, |_| gso_type),
        gso_size: size.unwrap_or(0),
        csum_start: u16::from(headers.l4_offset),
        csum_offset: if spec.tcp { 16 } else { 6 },
        ..VnetHdr::default()
    };
    sent(memory, vnet)
}

fn sent(mut memory: Vec<u8>, vnet: VnetHdr) -> Sent {
    let head_len = memory.len().min(HEADER_MAX);
    let mut slots = Slots::new(1, 0, 0);
    let reference = slots.take().unwrap();
    let frame = reference.get_mut();
    (frame.segment, frame.vnet, frame.len) = (SEGMENT.0, vnet, memory.len() as u32);
    frame.head_len = head_len as u16;
    frame.bytes[..head_len].copy_from_slice(&memory[..head_len]);
    frame.headers = parse(&memory[..head_len], memory.len()).unwrap();
    frame.offload = check(&vnet, &frame.headers, head_len, memory.len()).unwrap();
    frame.wire_bytes = wire_bytes(frame.offload, &frame.headers, memory.len());
    frame.wire_frames = segments(frame.offload, &frame.headers, memory.len());
    // In two pieces.
    let (first, second) = memory[head_len..].split_at_mut((frame.len as usize - head_len) / 3);
    frame.spans[0] = Span { ptr: first.as_mut_ptr(), len: first.len() as u32 };
    frame.spans[1] = Span { ptr: second.as_mut_ptr(), len: second.len() as u32 };
    frame.span_count = 2;
    let frame = frame.clone();
    slots.give(reference);
    Sent { frame, _memory: memory }
}

/// Returns a frame that was taken, as the worker inspects it; its memory stays where it is.
fn inspected(frame: &Frame) -> Sent {
    let mut frame = frame.clone();
    let len = frame.len as usize;
    frame.headers = parse(frame.head(), len).unwrap_or(Headers::NONE);
    frame.offload = check(&frame.vnet, &frame.headers, frame.head().len(), len).unwrap();
    Sent { frame, _memory: vec![] }
}

/// Returns a frame's bytes.
pub fn bytes(head: &[u8], spans: &[Span]) -> Vec<u8> {
    let mut bytes = head.to_vec();
    for span in spans {
        // SAFETY: it points into the memory of a living frame.
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(span.ptr, span.len as usize) });
    }
    bytes
}

/// Returns the frames on the wire, with their checksums finished.
pub fn on_the_wire(sent: &Sent) -> Vec<Vec<u8>> {
    let frame = &sent.frame;
    let finished = |head: &mut [u8], vnet: &mut VnetHdr, headers: &Headers, spans: &[Span]| {
        // SAFETY: as in `bytes`.
        let payload = unsafe { crate::frame::Payload::new(spans) };
        assert!(finish_checksum(head, vnet, headers, &payload));
        bytes(head, spans)
    };
    if frame.offload.gso_size().is_none() {
        let (mut head, mut vnet) = (frame.head().to_vec(), frame.vnet);
        return vec![finished(&mut head, &mut vnet, &frame.headers, frame.payload())];
    }
    let body = payload(frame) as usize;
    let mut segmenter = Segmenter::new(frame.head(), &frame.headers, frame.offload, body).unwrap();
    let (spans, count) = body_spans(frame);
    let (mut head, mut all) = ([0; HEADER_MAX], vec![]);
    while let Some(mut part) = segmenter.next(&mut head) {
        let mut piece = [Span::EMPTY; MAX_SPANS + 1];
        let n = slice_spans(&spans[..count], part.payload_offset, part.payload_len, &mut piece);
        all.push(finished(&mut head[..part.head_len], &mut part.vnet, &part.headers, &piece[..n]));
    }
    all
}

impl Host {
    /// Posts a frame, and flushes.
    pub fn send(&mut self, sent: &Sent) -> Posted {
        let posted = self.rx.post(&sent.frame);
        self.rx.flush();
        posted
    }

    /// Takes all that arrived: frames as they were on the wire, with the peer and the reasons of drops.
    pub fn receive(&mut self) -> (Vec<(u16, Vec<u8>)>, Vec<DropReason>) {
        let (mut frames, mut drops) = (vec![], vec![]);
        (0..2).for_each(|queue| self.tx.readiness.note_readable(queue, 0, 0));
        loop {
            match self.tx.take() {
                Taken::New(pending, 1) => {
                    let frame = pending.frame.get();
                    assert_eq!((frame.segment, frame.source), (SEGMENT.0, PORT));
                    assert!(pending.arrival.earliest <= pending.arrival.latest);
                    let peer = frame.peer.unwrap().get();
                    self.joined += usize::from(frame.vnet.gso_type != 0);
                    frames.extend(on_the_wire(&inspected(frame)).into_iter().map(|bytes| (peer, bytes)));
                    self.tx.store.give_back(pending.frame);
                }
                Taken::Dropped(reason, 1) => drops.push(reason),
                Taken::Nothing => break,
                other => panic!("{other:?}"),
            }
        }
        assert!(self.tx.can_be_quiet());
        assert_eq!(self.tx.store.in_flight(), 0);
        (frames, drops)
    }

    /// Takes the frames, none of which is dropped.
    pub fn frames(&mut self) -> Vec<Vec<u8>> {
        let (frames, drops) = self.receive();
        assert_eq!(drops, []);
        frames.into_iter().map(|(_, bytes)| bytes).collect()
    }
}
