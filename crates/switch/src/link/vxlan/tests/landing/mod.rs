//! Frames that land in a guest's buffers: two links over a fabric in memory, and a guest's receive ring at one of them.
//!
//! ```text
//!  a ─ frame ─▶ device ══ device ─▶ buffers of the guest │ b.tx: taken ─▶ Rx::post ─▶ completed ─▶ driver
//! ```

mod end;
mod random;
mod refused;
mod shown;

use super::by_rdma::{Scene, scene};
use super::*;
use crate::fdb::PortIndex;
use crate::frame::offload::{check, segments, wire_bytes};
use crate::frame::{HEADER_MAX, VnetHdr, parse};
use crate::link::rdma::{Feed, GuestRegions, Landing, PortHalf, Tables};
use crate::link::{Delivery, Link, Scratch};
use crate::slots::{FrameRef, Owner};
use crate::vhost_user::VringSetup;
use crate::vhost_user::features::{F_RING_PACKED, F_VERSION_1, NET_F_GUEST_CSUM, NET_F_MRG_RXBUF};
use crate::virtio::memory::RegionSpec;
use crate::virtio::{GuestMemory, Inflight};
use std::collections::BTreeMap;
use tidegate_frontend::driver::{Buffer, DriverFeatures, DriverQueue};
use tidegate_frontend::memory::SharedMemory;
use tidegate_verbs::{Access, Region};

/// Its features.
const FEATURES: u64 = F_VERSION_1 | NET_F_MRG_RXBUF;
/// Its port, as the queue pair's.
const GUEST: PortIndex = 0;

/// A guest with a receive ring.
struct Guest {
    memory: Arc<SharedMemory>,
    map: Arc<GuestMemory>,
    driver: DriverQueue,
    link: Link,
    scratch: Scratch,
    features: u64,
    region: Inflight,
    /// Buffers that the driver gave, by head.
    given: BTreeMap<u16, u64>,
    /// Buffers that it has.
    own: Vec<u64>,
    len: u32,
    /// Buffers that came back empty.
    empty: usize,
}

impl Guest {
    /// Returns one with a ring of `size` entries, and `count` buffers of `len` bytes that it gives.
    fn new(packed: bool, size: u16, (count, len): (usize, u32), more: u64) -> Self {
        let memory = Arc::new(SharedMemory::new(0x10_0000, 8 << 20).unwrap());
        let fd = memory.fd().try_clone_to_owned().unwrap();
        let (guest_addr, user_addr, size_of) = (memory.guest_addr(), memory.user_addr(), memory.size());
        let spec = RegionSpec { guest_addr, user_addr, size: size_of, mmap_offset: 0, fd };
        let map = Arc::new(GuestMemory::map(vec![spec]).unwrap());
        let features = DriverFeatures { packed, ..DriverFeatures::default() };
        let driver = DriverQueue::new(&memory, size, features);
        let own = (0..count).map(|_| memory.alloc(len.into(), 8)).collect();
        let features = FEATURES | more | if packed { F_RING_PACKED } else { 0 };
        let mut guest = Self {
            memory,
            map,
            driver,
            link: Link::vhost_user(),
            scratch: Scratch::default(),
            features,
            region: Inflight::create(2, size).unwrap(),
            given: BTreeMap::new(),
            own,
            len,
            empty: 0,
        };
        guest.start();
        guest.give(count);
        guest
    }

    /// Serves its ring by a link of this process, or of the next one.
    fn start(&mut self) {
        self.link = Link::vhost_user();
        let setup = VringSetup {
            size: self.driver.size(),
            desc: self.memory.to_user(self.driver.desc_addr()),
            avail: self.memory.to_user(self.driver.avail_addr()),
            used: self.memory.to_user(self.driver.used_addr()),
            base: self.driver.base(),
            log: None,
            kick: None,
            call: None,
            inflight: self.region.queue(0),
        };
        let mut control = self.link.vhost().unwrap();
        control.set_features(self.features);
        control.set_memory(&self.map).unwrap();
        control.start(0, setup, GUEST, 0, 0).unwrap();
        self.link.vhost().unwrap().enable(0, true, 0);
    }

    /// Gives up to `count` buffers to the device.
    fn give(&mut self, count: usize) {
        for _ in 0..count {
            let Some(addr) = self.own.pop() else { break };
            let Some(head) = self.driver.add(&[Buffer { addr, len: self.len, writable: true }]) else {
                self.own.push(addr);
                break;
            };
            assert_eq!(self.given.insert(head, addr), None);
        }
        let _ = self.driver.publish();
    }

    /// Takes what came, whole frames with their header.
    fn reap(&mut self) -> Vec<(VnetHdr, Vec<u8>)> {
        let mut frames = vec![];
        while let Some(used) = self.driver.reap() {
            let addr = self.given.remove(&used.head).expect("it came back once");
            self.own.insert(0, addr);
            if used.len == 0 {
                self.empty += 1;
                continue;
            }
            let mut bytes = self.memory.bytes(addr, used.len as usize);
            let header = VnetHdr::read(&bytes[..VnetHdr::LEN]).unwrap();
            let mut frame = bytes.split_off(VnetHdr::LEN);
            for _ in 1..header.num_buffers {
                let used = self.driver.reap().expect("a frame is shown whole");
                let addr = self.given.remove(&used.head).expect("it came back once");
                self.own.insert(0, addr);
                frame.extend(self.memory.bytes(addr, used.len as usize));
            }
            frames.push((header, frame));
        }
        frames
    }

    /// Lets the link post a frame.
    fn post(&mut self, frame: &crate::slots::Frame) -> Posted {
        let posted = self.link.rx.post(frame, Delivery::WHOLE, &mut self.scratch);
        self.link.rx.finish();
        posted
    }

    /// Ends a turn of the port's worker.
    fn flush(&mut self) {
        self.link.rx.flush();
    }

    /// Returns the landing's kept chains.
    fn chains_in_use(&self) -> u16 {
        self.link.rx.rings_ref().unwrap().rings[0].as_ref().unwrap().queue.in_flight()
    }
}

/// Both, and what the control plane has.
struct Landed {
    scene: Scene,
    guest: Guest,
    landing: Arc<Landing>,
}

/// Makes frames land.
fn land(mut scene: Scene, mut guest: Guest) -> Landed {
    let device = &scene.sides[1].setup.device;
    let region = |(start, len)| {
        // SAFETY: mapped while the owner lives.
        unsafe { Region::over(device, start, len, guest.map.clone(), Access::Write) }.unwrap()
    };
    let regions = guest.map.regions().map(region).collect();
    let regions = Arc::new(GuestRegions::new(GUEST, guest.map.clone(), regions));
    let pair = scene.tables[1].pair(GUEST).unwrap().clone();
    let number = pair.number();
    assert!(pair.may_land());
    let (landing, half) = PortHalf::new(&scene.sides[1].setup, Feed { pair, guest: regions }).unwrap();
    assert!(scene.b.tx.set_landing(&landing, number));
    assert!(!scene.b.tx.set_landing(&landing, number), "it has one");
    guest.link.vhost().unwrap().land(half).map_err(|_| ()).unwrap();
    Landed { scene, guest, landing }
}

/// What becomes of a frame that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Posted,
    Dropped,
}

impl Landed {
    fn setup(packed: bool, size: u16, buffers: (usize, u32)) -> Self {
        let mut landed = land(scene(), Guest::new(packed, size, buffers, NET_F_GUEST_CSUM));
        landed.drain_pool();
        landed
    }

    /// Sends frames until the region's buffers are used up, so that the guest's come first.
    fn drain_pool(&mut self) {
        let sent = plain(&Spec::udp4(100).build());
        for _ in 0..600 {
            assert_eq!(self.scene.a.send(&sent), Posted::Done);
            self.turn(|_| End::Dropped);
            self.guest.flush();
            if self.landing.posted() > 0 && self.zero_copied(&sent) {
                return;
            }
        }
    }

    /// Returns whether the next frame lands.
    fn zero_copied(&mut self, sent: &Sent) -> bool {
        assert_eq!(self.scene.a.send(sent), Posted::Done);
        let mut landed = false;
        self.turn(|frame| {
            landed = matches!(frame.get().owner, Owner::Landed { .. });
            End::Dropped
        });
        self.guest.flush();
        landed
    }

    /// Takes all frames that arrived, as the uplink's worker does. They go back by `give_back`.
    fn take(&mut self) -> Vec<FrameRef> {
        let tx = &mut self.scene.b.tx;
        (0..2).for_each(|queue| tx.readiness.note_readable(queue, 0, 0));
        let mut frames = vec![];
        while let Taken::New(pending, 1) = tx.take() {
            inspect(pending.frame);
            frames.push(pending.frame);
        }
        frames
    }

    /// Takes all that arrived, as the uplink's worker and the port's do; returns the reasons of drops.
    fn turn(&mut self, mut end: impl FnMut(FrameRef) -> End) -> Vec<DropReason> {
        let (tx, mut drops) = (&mut self.scene.b.tx, vec![]);
        (0..2).for_each(|queue| tx.readiness.note_readable(queue, 0, 0));
        loop {
            match tx.take() {
                Taken::New(pending, 1) => {
                    inspect(pending.frame);
                    if end(pending.frame) == End::Posted {
                        let posted = self.guest.post(pending.frame.get());
                        assert!(matches!(posted, Posted::Done | Posted::NoBuffers), "{posted:?}");
                    }
                    tx.give_back(pending.frame);
                }
                Taken::Dropped(reason, 1) => drops.push(reason),
                Taken::Nothing => break,
                other => panic!("{other:?}"),
            }
        }
        self.guest.flush();
        drops
    }

    /// Ends it, as the control plane does: nothing more is posted, the queue pair goes, the chains come back.
    fn close(&mut self) {
        let feed = self.guest.link.vhost().unwrap().close_landing();
        assert!(feed.is_some());
        drop(feed);
        assert!(self.guest.link.vhost().unwrap().end_landing().is_none(), "the device is not done");
        let members = self.scene.tables[1].members().cloned().collect();
        let tables = Arc::new(Tables::new(vec![], members));
        self.scene.b.tx.set_rdma(tables.clone());
        drop(self.scene.b.rx.set_rdma(tables.clone()));
        self.scene.tables[1] = tables;
    }

    /// The same to the end. All buffers are the driver's.
    fn end(mut self) -> Guest {
        self.close();
        assert!(self.landing.is_over());
        let number = self.landing.number;
        assert!(self.guest.link.vhost().unwrap().end_landing().is_some());
        assert!(self.scene.b.tx.forget_landing(number).is_some());
        self.guest.flush();
        assert_eq!(self.guest.chains_in_use(), 0);
        self.guest
    }

    fn counters(&self) -> &crate::link::rdma::Counters {
        &self.scene.sides[1].setup.counters
    }
}

/// Parses a frame, as the worker does.
fn inspect(reference: FrameRef) {
    let frame = reference.get_mut();
    let (len, head_len) = (frame.len as usize, usize::from(frame.head_len));
    assert_eq!(head_len, len.min(HEADER_MAX));
    frame.headers = parse(frame.head(), len).unwrap();
    frame.offload = check(&frame.vnet, &frame.headers, head_len, len).unwrap();
    frame.wire_bytes = wire_bytes(frame.offload, &frame.headers, len);
    frame.wire_frames = segments(frame.offload, &frame.headers, len);
}
