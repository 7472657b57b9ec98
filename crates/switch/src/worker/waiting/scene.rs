//! A sender above its limit, behind a ring or a tap, and a receiver that takes all, on a worker whose time
//! the test sets.

use super::super::Worker;
use super::super::testing::{self, add_link, add_tap, set_time};
use crate::fdb::SegmentIndex;
use crate::frame::testing::{Frame, sum};
use crate::frame::vnet_hdr::{GSO_NONE, GSO_TCPV4, NEEDS_CSUM, VnetHdr};
use crate::link::Link;
use crate::port::{PortContract, PortInfo, PortSet};
use crate::stats::Region;
use crate::stats::layout::VnicSlot;
use crate::vhost_user::VringSetup;
use crate::virtio::GuestMemory;
use crate::virtio::memory::RegionSpec;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use tidegate_contract::{Host, Vnic};
use tidegate_evidence::DropReason;
use tidegate_frontend::driver::{Buffer, DriverFeatures, DriverQueue};
use tidegate_frontend::memory::SharedMemory;

/// TCP payload of a segment.
pub(super) const SEGMENT: usize = 1448;
/// Ethernet, IPv4 and TCP.
pub(super) const HEADERS: usize = 54;
pub(super) const MS: u64 = 1_000_000;
pub(super) const SENDER: u16 = 1;
pub(super) const RECEIVER: u16 = 2;
const OTHER: u16 = 3;
/// Flows from this one on go to the other receiver.
pub(super) const TO_OTHER: u16 = 32;
/// A receiver of another worker.
const ELSEWHERE: u16 = 4;
/// Flows from this one on go there.
pub(super) const TO_ELSEWHERE: u16 = 48;
const START: u64 = 1_000_000_000_000;
/// Loops after which no work remains at that time.
const LOOPS: usize = 300;
const V1: u64 = 1 << 32;
const PACKED: u64 = 1 << 34;
const IN_ORDER: u64 = 1 << 35;

thread_local! {
    /// Regions are never unmapped, so cases share one.
    static REGION: Region = Region::create().unwrap();
}

/// How the sender is attached.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Tap,
    Ring { size: u16, packed: bool, in_order: bool },
}

impl Kind {
    /// Whether frames wait in the ring if earlier ones fill half of it.
    pub(super) fn is_in_order(self) -> bool {
        matches!(self, Self::Ring { in_order: true, .. })
    }
}

/// An arrived segment, or several of them in one frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Got {
    pub(super) flow: u16,
    pub(super) payload: usize,
    pub(super) at: u64,
    pub(super) marked: bool,
}

impl Got {
    pub(super) fn segments(&self) -> usize {
        self.payload.div_ceil(SEGMENT)
    }

    pub(super) fn wire(&self) -> u64 {
        (self.payload + self.segments() * HEADERS) as u64
    }
}

enum End {
    Tap(OwnedFd),
    Ring { memory: Arc<SharedMemory>, ring: DriverQueue, base: u32, features: u64 },
}

pub(super) struct Scene {
    pub(super) worker: Worker,
    pub(super) now: u64,
    pub(super) got: Vec<Got>,
    pub(super) stats: &'static VnicSlot,
    /// Segments that were sent, and their frames.
    pub(super) sent: usize,
    pub(super) frames: u64,
    /// Whether senders understand marks.
    pub(super) ecn: u8,
    end: End,
    /// Rings beside the first.
    further: Vec<DriverQueue>,
    receiver: OwnedFd,
    other: OwnedFd,
    /// The first receiver takes nothing.
    pub(super) stalled: bool,
    /// The worker polls for another one's room or a receiver.
    pub(super) never_done: bool,
    /// For each flow, the sent bytes, and the end of those that arrived.
    flows: Vec<(u32, u32)>,
}

impl Scene {
    /// Returns a sender whose contract has these keys.
    pub(super) fn new(kind: Kind, keys: &str) -> Self {
        set_time(START);
        Self::of_worker(testing::worker().0, kind, keys)
    }

    /// The same beside another, idle worker.
    pub(super) fn beside(kind: Kind, keys: &str) -> (Self, Worker) {
        set_time(START);
        let mut workers = testing::workers(2);
        let (other, (worker, _)) = (workers.remove(1).0, workers.remove(0));
        let mut scene = Self::of_worker(worker, kind, keys);
        let info = PortInfo::new(&vnic(ELSEWHERE, ""), other.id, SegmentIndex(0), PortSet::EMPTY);
        scene.worker.set_info(ELSEWHERE, Some(info));
        scene.worker.fdb.pin(SegmentIndex(0), vnic(ELSEWHERE, "").mac, ELSEWHERE).unwrap();
        (scene, other)
    }

    fn of_worker(mut worker: Worker, kind: Kind, keys: &str) -> Self {
        let stats = REGION.with(|region| region.claim(usize::from(SENDER), "v1"));
        let (link, end) = match kind {
            Kind::Tap => {
                let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
                let (theirs, ours) =
                    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
                (Link::tap(vec![ours], SENDER, 0, START), End::Tap(theirs))
            }
            Kind::Ring { size, packed, in_order } => {
                let memory = Arc::new(SharedMemory::new(0, 64 << 20).unwrap());
                let driver = DriverFeatures { packed, in_order, ..DriverFeatures::default() };
                let ring = DriverQueue::new(&memory, size, driver);
                let has = |set: bool, feature| if set { feature } else { 0 };
                let features = V1 | has(packed, PACKED) | has(in_order, IN_ORDER);
                let base = if packed { 0x8000_8000 } else { 0 };
                (Link::vhost_user(), End::Ring { memory, ring, base, features })
            }
        };
        let info = add_link(&mut worker, SENDER, keys, link, stats);
        worker.set_info(SENDER, Some(info));
        let (receiver, other) = (add_tap(&mut worker, RECEIVER), add_tap(&mut worker, OTHER));
        let flows = vec![(0, 0); 64];
        let mut scene = Self {
            worker,
            now: START,
            got: vec![],
            stats,
            sent: 0,
            frames: 0,
            ecn: 0,
            end,
            further: vec![],
            receiver,
            other,
            stalled: false,
            never_done: false,
            flows,
        };
        if let End::Ring { memory, features, .. } = &scene.end {
            let fd = memory.fd().as_fd().try_clone_to_owned().unwrap();
            let (user_addr, size) = (memory.user_addr(), memory.size());
            let region = RegionSpec { guest_addr: 0, user_addr, size, mmap_offset: 0, fd };
            scene.worker.set_features(SENDER, *features);
            scene.worker.set_memory(SENDER, &Arc::new(GuestMemory::map(vec![region]).unwrap())).unwrap();
        }
        scene.start();
        scene
    }

    /// The same with this many split rings.
    pub(super) fn with_rings(size: u16, keys: &str, rings: u16) -> Self {
        let kind = Kind::Ring { size, packed: false, in_order: false };
        let mut scene = Self::new(kind, &format!("queues = {rings}\n{keys}"));
        for pair in 1..rings {
            let End::Ring { memory, .. } = &scene.end else { continue };
            let ring = DriverQueue::new(memory, size, DriverFeatures::default());
            start(&mut scene.worker, memory, &ring, pair, 0);
            scene.further.push(ring);
        }
        scene
    }

    fn start(&mut self) {
        let End::Ring { memory, ring, base, .. } = &self.end else { return };
        start(&mut self.worker, memory, ring, 0, *base);
    }

    /// Sends a frame of a flow with this payload (bytes), a super-frame if it exceeds a segment. Whether
    /// there was room.
    pub(super) fn send(&mut self, flow: u16, payload: usize) -> bool {
        self.send_by(0, flow, payload)
    }

    /// The same, by one of the rings.
    pub(super) fn send_by(&mut self, ring_number: usize, flow: u16, payload: usize) -> bool {
        let seq = self.flows[usize::from(flow)].0;
        let frame = Frame {
            ports: [1000 + flow, 80],
            seq,
            ecn: self.ecn,
            payload: (0..payload as u32).map(|i| byte(flow, seq + i)).collect(),
            ..Frame::tcp4(0)
        };
        let gso = if payload > SEGMENT { GSO_TCPV4 } else { GSO_NONE };
        let vnet = VnetHdr {
            flags: NEEDS_CSUM,
            gso_type: gso,
            hdr_len: HEADERS as u16,
            gso_size: if payload > SEGMENT { SEGMENT as u16 } else { 0 },
            csum_start: 34,
            csum_offset: 16,
            num_buffers: 0,
        };
        let mut header = [0; VnetHdr::LEN];
        vnet.write(&mut header);
        let mut bytes = [&header[..], &frame.build()].concat();
        bytes[VnetHdr::LEN + 5] = match flow {
            ..TO_OTHER => RECEIVER as u8,
            TO_OTHER..TO_ELSEWHERE => OTHER as u8,
            TO_ELSEWHERE.. => ELSEWHERE as u8,
        };
        let sent = match &mut self.end {
            End::Tap(end) => rustix::io::write(&*end, &bytes).is_ok(),
            End::Ring { memory, ring, .. } => {
                let ring = ring_number.checked_sub(1).map_or(ring, |further| &mut self.further[further]);
                let at = memory.alloc(bytes.len() as u64, 64);
                memory.write(at, &bytes);
                let added = ring.add(&[Buffer::readable(at, bytes.len() as u32)]).is_some();
                let _ = ring.publish();
                added
            }
        };
        if sent {
            self.flows[usize::from(flow)].0 += payload as u32;
            self.sent += payload.div_ceil(SEGMENT);
            self.frames += 1;
        }
        sent
    }

    /// Passes time, and lets the worker do all its work.
    pub(super) fn pass(&mut self, ns: u64) {
        self.now += ns;
        set_time(self.now);
        self.worker.check_kicks();
        for _ in 0..LOOPS {
            let worked = self.worker.work();
            self.check_slots();
            self.receive();
            if !worked {
                return;
            }
        }
        assert!(self.stalled || self.never_done, "it is never done");
    }

    /// The same, with a look at every `step`.
    pub(super) fn pass_in_steps(&mut self, ns: u64, step: u64) {
        (0..ns / step).for_each(|_| self.pass(step));
    }

    /// Passes time until no frame is under way.
    pub(super) fn finish(&mut self) {
        for _ in 0..4000 {
            self.pass(10 * MS);
            if self.in_flight() == 0 && self.unreturned() == 0 {
                break;
            }
        }
        assert_eq!((self.in_flight(), self.unreturned()), (0, 0), "all came back");
    }

    /// Checks that at most half a ring was sent and is not back.
    fn check_slots(&mut self) {
        let End::Ring { ring, .. } = &self.end else { return };
        if !self.further.is_empty() {
            return;
        }
        let size = usize::from(ring.size());
        let port = self.worker.ports[usize::from(SENDER)].as_mut().expect("it is there");
        let Some(queue) = port.link.tx.rings().and_then(|rings| rings.queue(0)) else { return };
        let (slots, waiting) = (&queue.slots, port.waiting.as_ref().map_or(0, |room| room.backlog().frames));
        assert_eq!(slots.waiting(), waiting as usize);
        // A frame whose last part was sent comes back after its parts.
        let sent = slots.in_flight() - slots.waiting() - slots.pieces();
        assert!(slots.pieces() <= size / 2 && sent <= size / 2 + slots.pieces(), "{sent} of {size} are sent");
        assert!(slots.in_flight() - slots.pieces() <= size);
    }

    fn receive(&mut self) {
        let mut bytes = vec![0; 70_000];
        let stalled = self.stalled;
        let read = |bytes: &mut [u8]| {
            let first =
                if stalled { Err(Errno::AGAIN) } else { rustix::io::read(&self.receiver, &mut *bytes) };
            first.or_else(|_| rustix::io::read(&self.other, bytes))
        };
        while let Ok(len) = read(&mut bytes[..]) {
            let frame = &bytes[VnetHdr::LEN..len];
            let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
            let flow = word(34) - 1000;
            let from = u32::from_be_bytes(frame[38..42].try_into().unwrap());
            let payload = &frame[HEADERS..];
            assert_eq!(sum(&frame[14..34]), 0xffff, "the header's checksum is right");
            assert_eq!(usize::from(word(16)), frame.len() - 14, "the length is right");
            let (sent, upto) = &mut self.flows[usize::from(flow)];
            assert!(from >= *upto, "flow {flow}: {from} after {upto}");
            *upto = from + payload.len() as u32;
            assert!(*upto <= *sent);
            for (at, found) in (from..).zip(payload) {
                assert_eq!(*found, byte(flow, at), "flow {flow}, byte {at}");
            }
            let marked = frame[15] & 3 == 3;
            self.got.push(Got { flow, payload: payload.len(), at: self.now, marked });
        }
        if let End::Ring { ring, .. } = &mut self.end {
            while ring.reap().is_some() {}
        }
        self.further.iter_mut().for_each(|ring| while ring.reap().is_some() {});
    }

    /// Gets all frames back, before a change. Whether any waited for tokens meanwhile.
    fn quiet(&mut self) -> bool {
        self.worker.pause(SENDER);
        let waited = self.worker.drain(SENDER);
        let mut looks = 0;
        while looks < 100 && self.worker.drain(SENDER) {
            self.pass(MS / 10);
            looks += 1;
        }
        self.worker.drop_source(SENDER);
        while !self.worker.is_quiet(SENDER) {
            self.pass(MS / 10);
        }
        assert!(!self.port().waits() && self.in_flight() == 0);
        waited
    }

    /// Acts as a front end that asks where a ring stands. Whether frames waited for tokens meanwhile.
    pub(super) fn stop(&mut self, ring: u16) -> bool {
        let waited = self.quiet();
        self.worker.stop_queue(SENDER, 2 * ring + 1);
        self.worker.resume(SENDER);
        waited
    }

    /// Acts as a front end that stops and restarts the ring, as the next process does.
    pub(super) fn stop_and_start(&mut self) {
        self.quiet();
        if let Some((stopped, _)) = self.worker.stop_queue(SENDER, 1)
            && let End::Ring { base, ring, .. } = &mut self.end
        {
            while ring.reap().is_some() {}
            assert_eq!(stopped, ring.base(), "all that was taken came back");
            *base = stopped;
            self.start();
        }
        self.worker.resume(SENDER);
    }

    /// Sets other keys in the sender's contract.
    pub(super) fn change(&mut self, keys: &str) {
        self.change_of(SENDER, keys);
    }

    /// Sets other keys in a contract.
    pub(super) fn change_of(&mut self, port: u16, keys: &str) {
        self.worker.set_contract(port, PortContract::new(&vnic(port, keys), &Host::default()));
    }

    pub(super) fn port(&self) -> &crate::port::Port {
        self.worker.ports[usize::from(SENDER)].as_ref().expect("it is there")
    }

    pub(super) fn in_flight(&self) -> usize {
        self.port().link.tx.in_flight()
    }

    /// Returns the number of buffers that the guest has not back.
    pub(super) fn unreturned(&self) -> u16 {
        match &self.end {
            End::Tap(_) => 0,
            End::Ring { ring, .. } => ring.size() - ring.free(),
        }
    }

    pub(super) fn dropped(&self, reason: DropReason) -> usize {
        self.stats.tx.dropped[reason as usize].get() as usize
    }

    /// Returns dropped frames by reason.
    pub(super) fn drops(&self) -> Vec<(&'static str, usize)> {
        let all = DropReason::ALL.iter().map(|reason| (reason.label(), self.dropped(*reason)));
        all.filter(|(_, count)| *count > 0).collect()
    }

    pub(super) fn all_dropped(&self) -> usize {
        self.drops().iter().map(|(_, count)| count).sum()
    }

    /// Returns the number of arrived segments.
    pub(super) fn segments(&self) -> usize {
        self.got.iter().map(Got::segments).sum()
    }

    /// Returns the bytes on the wire that arrived since `at`.
    pub(super) fn wire_since(&self, at: u64) -> u64 {
        self.got.iter().filter(|got| got.at > at).map(Got::wire).sum()
    }
}

fn vnic(port: u16, keys: &str) -> Vnic {
    let text = format!(
        "[vnic.v{port}]\nattach = {{ vhost-user = \"/tmp/v{port}\" }}\nmac = \"52:54:00:00:00:{port:02x}\"\n\
         segment = 7\n{keys}\n"
    );
    tidegate_contract::parse(&text, "test").unwrap().vnics.remove(0).value
}

/// Puts the transmit ring of a queue pair into service.
fn start(worker: &mut Worker, memory: &SharedMemory, ring: &DriverQueue, pair: u16, base: u32) {
    let user = |addr| memory.to_user(addr);
    let setup = VringSetup {
        size: ring.size(),
        desc: user(ring.desc_addr()),
        avail: user(ring.avail_addr()),
        used: user(ring.used_addr()),
        base,
        log: None,
        kick: None,
        call: None,
        inflight: None,
    };
    worker.start_queue(SENDER, 2 * pair + 1, setup).unwrap();
    worker.enable_queue(SENDER, 2 * pair + 1, true);
}

fn byte(flow: u16, at: u32) -> u8 {
    (at ^ (at >> 8) ^ (u32::from(flow) * 37)) as u8
}
