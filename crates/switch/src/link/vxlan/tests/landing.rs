//! Frames that land in a guest's buffers: two links over a fabric in memory, and a guest's receive ring at one of them.
//!
//! ```text
//!  a ─ frame ─▶ device ══ device ─▶ buffers of the guest │ b.tx: taken ─▶ Rx::post ─▶ completed ─▶ driver
//! ```

use super::by_rdma::{Scene, scene};
use super::*;
use crate::fdb::PortIndex;
use crate::frame::offload::{check, segments, wire_bytes};
use crate::frame::{HEADER_MAX, VnetHdr, parse};
use crate::link::rdma::landing::{LONGEST, SLOTS};
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
use tidegate_verbs::simulated::{Datagram, Fate};
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

#[test]
fn a_frame_that_lands_is_not_copied() {
    for packed in [false, true] {
        let mut landed = Landed::setup(packed, 256, (256, 1536));
        landed.guest.reap();
        let before = [&landed.counters().copied_in, &landed.counters().zero_copied_in_bytes].map(|c| c.get());
        // Over one buffer, over three, and within the head.
        for size in [1000, 3900, 40] {
            let sent = plain(&Spec::udp4(size).build());
            assert_eq!(landed.scene.a.send(&sent), Posted::Done);
            assert_eq!(
                landed.turn(|frame| {
                    assert!(matches!(frame.get().owner, Owner::Landed { .. }));
                    End::Posted
                }),
                []
            );
            let frames = landed.guest.reap();
            assert_eq!(frames.len(), 1);
            assert_eq!(frames[0].1, on_the_wire(&sent)[0], "{size} packed {packed}");
            let buffers = (frames[0].1.len() + VnetHdr::LEN).div_ceil(1536);
            assert_eq!(usize::from(frames[0].0.num_buffers), buffers);
        }
        let after = [&landed.counters().copied_in, &landed.counters().zero_copied_in_bytes].map(|c| c.get());
        let lens = [1000, 3900, 40].map(|size| Spec::udp4(size).build().len() as u64);
        let heads: u64 = lens.iter().map(|len| *len.min(&(HEADER_MAX as u64))).sum();
        assert_eq!(after[0] - before[0], heads);
        assert_eq!(after[1] - before[1], lens.iter().sum::<u64>() - heads);
        assert_eq!(landed.counters().zero_copied_in.get(), 3);
        let mut guest = landed.end();
        guest.reap();
        assert!(guest.empty > 0);
    }
}

#[test]
fn half_of_the_ring_is_left_to_local_senders() {
    let landed = Landed::setup(false, 256, (256, 1536));
    assert!(landed.guest.chains_in_use() <= 128);
    assert!(landed.landing.posted() >= 40, "{}", landed.landing.posted());
    let mut few = Landed::setup(true, 256, (24, 4096));
    assert!((8..=12).contains(&few.guest.chains_in_use()), "{}", few.guest.chains_in_use());
    // Local senders get theirs.
    let local = plain(&Spec::udp4(900).build());
    for _ in 0..100 {
        assert_eq!(few.guest.post(&local.frame), Posted::Done);
        few.guest.flush();
        assert_eq!(few.guest.reap().len(), 1);
        few.guest.give(24);
    }
    let many = Landed::setup(false, 1024, (1024, 4096));
    assert_eq!(many.landing.posted(), u32::from(SLOTS));
}

/// What no member sent, or is for another guest, is in the guest's memory, but is not shown, and the buffers are posted again.
#[test]
fn what_is_refused_is_not_shown_and_its_buffers_are_posted_again() {
    let mut landed = Landed::setup(true, 256, (256, 1536));
    let frame = Spec::udp4(1000).build();
    let good = landed.scene.datagram(&frame);
    let other_mac = [0x52, 0x54, 0, 0, 0, 9];
    let with = |at: usize, mac: &[u8]| {
        let mut bytes = good.bytes.clone();
        bytes[32 + at..][..mac.len()].copy_from_slice(mac);
        Datagram { bytes, ..good.clone() }
    };
    let changed = |at: usize| {
        let mut bytes = good.bytes.clone();
        bytes[at] ^= 0x40;
        Datagram { bytes, ..good.clone() }
    };
    let cut = |len: usize| Datagram { bytes: good.bytes[..len].to_vec(), ..good.clone() };
    let cases = [
        (Datagram { source: good.source + 1, ..good.clone() }, DropReason::UnknownPeer),
        (Datagram { from: [127, 0, 0, 9].into(), ..good.clone() }, DropReason::UnknownPeer),
        (with(6, &other_mac), DropReason::SourceMac),
        // Its guest could have written that: it would speak in the member's name.
        (with(0, &other_mac), DropReason::Malformed),
        (with(0, &[0xff; 6]), DropReason::Malformed),
        (changed(0), DropReason::Malformed),
        (changed(31), DropReason::Malformed),
        (cut(0), DropReason::Malformed),
        (cut(31), DropReason::Malformed),
        (cut(32 + 13), DropReason::Malformed),
    ];
    let (posted, chains) = (landed.landing.posted(), landed.guest.chains_in_use());
    for n in 0..1000 {
        let (datagram, reason) = &cases[n % cases.len()];
        assert_eq!(landed.scene.fabric.forge(datagram.clone()), Fate::Delivered, "{n}");
        assert_eq!(landed.turn(|_| End::Posted), [*reason], "{n}");
    }
    assert_eq!(landed.guest.reap(), []);
    assert_eq!((landed.landing.posted(), landed.guest.chains_in_use()), (posted, chains));
    assert_eq!(landed.scene.fabric.forge(good), Fate::Delivered);
    assert_eq!(landed.turn(|_| End::Posted), []);
    assert_eq!(landed.guest.reap()[0].1, frame);
    landed.end();
}

/// A guest writes other addresses into a buffer, after the device has written and before the switch looks.
#[test]
fn a_guest_that_changes_what_landed_speaks_in_nobodys_name() {
    let mut landed = Landed::setup(false, 256, (256, 4096));
    let frame = Spec::udp4(1000).build();
    for (at, reason) in [(0, DropReason::Malformed), (6, DropReason::SourceMac)] {
        assert_eq!(landed.scene.a.send(&plain(&frame)), Posted::Done);
        for addr in landed.guest.given.values() {
            let place = addr + VnetHdr::LEN as u64;
            if landed.guest.memory.bytes(place, frame.len()) == frame {
                landed.guest.memory.write(place + at, &[0x52, 0x54, 0, 0, 0, 9]);
            }
        }
        assert_eq!(landed.turn(|_| End::Posted), [reason]);
    }
    // Behind the head it changes what it gets itself.
    assert_eq!(landed.scene.a.send(&plain(&frame)), Posted::Done);
    let (memory, given) = (landed.guest.memory.clone(), landed.guest.given.clone());
    landed.turn(|_| {
        for addr in given.values() {
            memory.write(addr + VnetHdr::LEN as u64 + 500, &[0xaa; 8]);
        }
        End::Posted
    });
    let got = &landed.guest.reap()[0].1;
    assert_eq!((got.len(), &got[..500], &got[500..508]), (frame.len(), &frame[..500], &[0xaa; 8][..]));
    landed.end();
}

#[test]
fn an_unfinished_checksum_is_finished_and_a_mark_is_written() {
    for csum in [0, NET_F_GUEST_CSUM] {
        let mut landed = land(scene(), Guest::new(false, 256, (256, 1536), csum));
        landed.drain_pool();
        let sent = asking(&Spec::tcp4(1000), None);
        assert_eq!(landed.scene.a.send(&sent), Posted::Done);
        landed.turn(|_| End::Posted);
        let (header, frame) = landed.guest.reap().remove(0);
        assert_eq!(header.needs_csum(), csum != 0);
        if csum == 0 {
            assert_eq!(frame, on_the_wire(&sent)[0]);
        }
        let marked = Datagram {
            traffic_class: 3,
            ..landed.scene.datagram(&Spec { ecn: 1, ..Spec::tcp4(400) }.build())
        };
        assert_eq!(landed.scene.fabric.forge(marked), Fate::Delivered);
        landed.turn(|_| End::Posted);
        assert_eq!(landed.guest.reap()[0].1, Spec { ecn: 3, ..Spec::tcp4(400) }.build());
        landed.end();
    }
}

/// Buffers that are too few or too small: the switch's own are used.
#[test]
fn without_fitting_buffers_frames_are_copied() {
    for (count, len) in [(256, 100), (256, 12), (2, 4096), (256, 500)] {
        let mut landed = land(scene(), Guest::new(false, 256, (count, len), 0));
        let sent = plain(&Spec::udp4(60).build());
        for n in 0..700 {
            assert_eq!(landed.scene.a.send(&sent), Posted::Done);
            landed.turn(|frame| {
                assert!(matches!(frame.get().owner, Owner::Pool { .. }), "{n}: {count} of {len}");
                End::Posted
            });
            if len > 12 {
                assert_eq!(landed.guest.reap().len(), 1, "{n}: {count} of {len}");
            }
            landed.guest.give(256);
        }
        assert_eq!((landed.landing.posted(), landed.guest.empty), (0, 0));
        landed.end();
    }
}

/// More than there are buffers: the others are lost, and counted; then all goes on.
#[test]
fn a_burst_beyond_the_posted_buffers_is_counted() {
    let mut landed = Landed::setup(false, 256, (256, 1536));
    let sent = plain(&Spec::udp4(1000).build());
    let before = landed.counters().gaps.get();
    let mut got = 0;
    for _ in 0..3 {
        for _ in 0..200 {
            assert_eq!(landed.scene.a.send(&sent), Posted::Done);
        }
        landed.turn(|_| {
            got += 1;
            End::Posted
        });
        landed.guest.reap();
        landed.guest.give(256);
        landed.guest.flush();
    }
    assert_eq!(landed.scene.a.send(&sent), Posted::Done);
    landed.turn(|_| End::Posted);
    assert!(got > 100 && got < 600, "{got}");
    assert_eq!(landed.counters().gaps.get() - before, 600 - got);
    landed.end();
}

/// A frame that is under way while its guest's memory goes: the chains wait for it.
#[test]
fn the_end_waits_for_frames_that_are_under_way() {
    let mut landed = Landed::setup(true, 256, (256, 1536));
    let sent = plain(&Spec::udp4(3000).build());
    (0..3).for_each(|_| assert_eq!(landed.scene.a.send(&sent), Posted::Done));
    let mut under_way = vec![];
    (0..2).for_each(|queue| landed.scene.b.tx.readiness.note_readable(queue, 0, 0));
    while let Taken::New(pending, 1) = landed.scene.b.tx.take() {
        inspect(pending.frame);
        under_way.push(pending.frame);
    }
    assert_eq!(under_way.len(), 3);
    landed.close();
    assert!(!landed.landing.is_over());
    let control = |landed: &mut Landed| landed.guest.link.vhost().unwrap().end_landing().is_some();
    assert!(!control(&mut landed));
    // One is still delivered, one dropped, one copied: all the same.
    assert_eq!(landed.guest.post(under_way[0].get()), Posted::Done);
    landed.guest.flush();
    assert_eq!(landed.guest.reap()[0].1, on_the_wire(&sent)[0]);
    for (n, frame) in under_way.into_iter().enumerate() {
        assert!(!landed.landing.is_over(), "{n}");
        landed.scene.b.tx.give_back(frame);
    }
    assert!(landed.landing.is_over() && control(&mut landed));
    landed.guest.flush();
    landed.guest.reap();
    assert_eq!(landed.guest.given.len() as u16, landed.guest.driver.size() - landed.guest.driver.free());
    assert_eq!(landed.guest.chains_in_use(), 0);
    let number = landed.landing.number;
    assert!(landed.scene.b.tx.forget_landing(number).is_some());
}

/// A ring that stops before the device is done loses its buffers, and nothing else: frames are copied from what is still mapped.
#[test]
fn a_ring_that_is_stopped_too_early_harms_nothing() {
    for packed in [false, true] {
        let mut landed = Landed::setup(packed, 256, (256, 1536));
        let sent = plain(&Spec::udp4(3000).build());
        assert_eq!(landed.scene.a.send(&sent), Posted::Done);
        (0..2).for_each(|queue| landed.scene.b.tx.readiness.note_readable(queue, 0, 0));
        let Taken::New(pending, 1) = landed.scene.b.tx.take() else { panic!("one arrived") };
        inspect(pending.frame);
        let base = landed.guest.link.vhost().unwrap().stop(0).unwrap().queue.retire();
        assert!(base > 0);
        // The next ring of the same port.
        let other = Guest::new(packed, 256, (256, 1536), 0);
        let mut guest = std::mem::replace(&mut landed.guest, other);
        drop(guest.link.vhost().unwrap().close_landing());
        assert_eq!(landed.guest.post(pending.frame.get()), Posted::Done);
        landed.guest.flush();
        assert_eq!(landed.guest.reap()[0].1, on_the_wire(&sent)[0]);
        landed.scene.b.tx.give_back(pending.frame);
        let tables = Arc::new(Tables::default());
        landed.scene.b.tx.set_rdma(tables.clone());
        drop(landed.scene.b.rx.set_rdma(tables.clone()));
        landed.scene.tables[1] = tables;
        assert!(guest.link.vhost().unwrap().end_landing().is_some());
    }
}

/// A switch that is killed: the kernel destroys the queue pair, and the next process gives the chains back.
#[test]
fn after_a_kill_the_next_process_gives_the_buffers_back() {
    for packed in [false, true] {
        let Landed { scene, mut guest, .. } = {
            let mut landed = Landed::setup(packed, 256, (256, 1536));
            let sent = plain(&Spec::udp4(2000).build());
            for n in 0..50 {
                assert_eq!(landed.scene.a.send(&sent), Posted::Done);
                landed.turn(|_| if n % 3 == 0 { End::Dropped } else { End::Posted });
                landed.guest.reap();
                landed.guest.give(if n % 2 == 0 { 256 } else { 3 });
            }
            landed
        };
        assert!(guest.chains_in_use() > 50);
        drop(scene);
        guest.start();
        guest.flush();
        assert_eq!(guest.chains_in_use(), 0);
        guest.empty = 0;
        guest.reap();
        assert!(guest.empty > 50, "{}", guest.empty);
        // All buffers are the driver's, or wait in its ring: each is of use once.
        guest.give(256);
        let local = plain(&Spec::udp4(900).build());
        let mut posted = 0;
        while guest.post(&local.frame) == Posted::Done {
            posted += 1;
        }
        guest.flush();
        assert_eq!((posted, guest.reap().len(), guest.given.len()), (256, 256, 0));
    }
}

/// What happens next.
#[derive(Clone, Debug)]
enum Step {
    /// A member sends frames of these lengths.
    Send(Vec<usize>),
    /// A stranger sends one.
    Forge,
    /// A vNIC of this host sends one.
    Local(usize),
    /// What arrived is posted, but one of so many, which is dropped.
    Turn(usize),
    /// The driver takes what came.
    Reap,
    /// The driver gives so many buffers.
    Give(usize),
    /// The guest writes nonsense to all its buffers.
    Scribble,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => prop::collection::vec(20..3900usize, 1..20).prop_map(Step::Send),
        1 => Just(Step::Forge),
        2 => (20..3900usize).prop_map(Step::Local),
        4 => (2..10usize).prop_map(Step::Turn),
        3 => Just(Step::Reap),
        3 => (0..300usize).prop_map(Step::Give),
        1 => Just(Step::Scribble),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever both sides and the guest do: what is posted is shown once, in order and whole, and each buffer comes back once.
    #[test]
    fn frames_are_shown_once_and_each_buffer_comes_back_once(
        packed: bool,
        (size, count) in prop_oneof![Just((256u16, 256usize)), Just((64, 64)), Just((512, 100))],
        len in prop_oneof![Just(1536u32), Just(4096), Just(700), Just(300)],
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut landed = land(scene(), Guest::new(packed, size, (count, len), NET_F_GUEST_CSUM));
        let (mut expected, mut number, mut tainted): (Vec<Vec<u8>>, u64, bool) = (vec![], 0, false);
        let frame_of = |size: usize, number: &mut u64| {
            let mut frame = Spec::udp4(size.max(20)).build();
            *number += 1;
            let end = frame.len();
            frame[end - 8..].copy_from_slice(&number.to_be_bytes());
            frame
        };
        for step in steps {
            match step {
                Step::Send(sizes) => for size in sizes {
                    let frame = frame_of(size, &mut number);
                    prop_assert_eq!(landed.scene.a.send(&plain(&frame)), Posted::Done);
                },
                Step::Forge => {
                    let frame = frame_of(1000, &mut number);
                    let datagram = landed.scene.datagram(&frame);
                    landed.scene.fabric.forge(Datagram { source: datagram.source + 1, ..datagram });
                }
                Step::Local(size) => {
                    let frame = frame_of(size, &mut number);
                    let posted = landed.guest.post(&plain(&frame).frame);
                    prop_assert!(matches!(posted, Posted::Done | Posted::NoBuffers));
                    if posted == Posted::Done {
                        expected.push(frame);
                    }
                    landed.guest.flush();
                }
                Step::Turn(drops) => {
                    let (tx, guest) = (&mut landed.scene.b.tx, &mut landed.guest);
                    (0..2).for_each(|queue| tx.readiness.note_readable(queue, 0, 0));
                    for n in 1.. {
                        match tx.take() {
                            Taken::New(pending, 1) => {
                                inspect(pending.frame);
                                let frame = pending.frame.get();
                                let bytes = scene::bytes(frame.head(), frame.payload());
                                if n % drops != 0 && guest.post(frame) == Posted::Done {
                                    expected.push(bytes);
                                }
                                tx.give_back(pending.frame);
                            }
                            Taken::Dropped(..) => {}
                            Taken::Nothing => break,
                            other => panic!("{other:?}"),
                        }
                    }
                    guest.flush();
                }
                Step::Reap => {
                    let frames: Vec<_> = landed.guest.reap().into_iter().map(|(_, frame)| frame).collect();
                    if !tainted {
                        prop_assert_eq!(&frames, &expected);
                    }
                    prop_assert_eq!(frames.len(), expected.len());
                    expected.clear();
                    tainted = false;
                }
                Step::Give(count) => landed.guest.give(count),
                Step::Scribble => {
                    for addr in landed.guest.given.values() {
                        landed.guest.memory.write(*addr + VnetHdr::LEN as u64, &[0x55; 280]);
                    }
                    tainted = true;
                }
            }
            prop_assert!(landed.guest.chains_in_use() <= size / 2);
        }
        let mut guest = landed.end();
        let frames = guest.reap();
        prop_assert_eq!(frames.len(), expected.len());
        prop_assert_eq!(guest.chains_in_use(), 0);
        // Of what the driver still gives, each is of use.
        let left = guest.given.len();
        prop_assert_eq!(left, usize::from(guest.driver.size() - guest.driver.free()));
        let local = plain(&Spec::udp4(20).build());
        let mut used = 0;
        while guest.post(&local.frame) == Posted::Done {
            used += 1;
        }
        guest.flush();
        guest.reap();
        prop_assert_eq!((used, guest.given.len()), (left, 0));
    }
}

#[test]
fn the_longest_datagram_finds_room() {
    let mut landed = Landed::setup(false, 256, (256, 1536));
    let frame = Spec::udp4(LONGEST - 42).build();
    assert_eq!(frame.len(), LONGEST);
    assert_eq!(landed.scene.fabric.forge(landed.scene.datagram(&frame)), Fate::Delivered);
    landed.turn(|_| End::Posted);
    assert_eq!(landed.guest.reap()[0].1, frame);
    // Of one that is longer, no byte beyond the frame's room reaches the guest: the rest goes where the switch's own buffers have it.
    let longer = [&frame[..], &[0]].concat();
    landed.scene.fabric.forge(landed.scene.datagram(&longer));
    assert_eq!(landed.turn(|_| End::Posted), [DropReason::Malformed]);
    assert!(!landed.scene.tables[1].pairs()[0].is_failed());
    assert_eq!(landed.guest.reap(), []);
    assert_eq!(landed.scene.fabric.forge(landed.scene.datagram(&frame)), Fate::Delivered);
    landed.turn(|_| End::Posted);
    assert_eq!(landed.guest.reap()[0].1, frame);
    landed.end();
}
