//! Whatever happens to two lanes, each buffer is the device's, waits in a queue, or is free; and no frame comes twice.
//!
//! ```text
//!  random events ─▶ Outgoing ─ Fabric ─ Incoming, both ways ─▶ end: all is delivered, queue pairs that failed are replaced
//!                                                               └▶ as many buffers as at the start
//! ```

use proptest::prelude::*;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use tidegate_contract::Mac;
use tidegate_switch::fdb::{PeerIndex, SegmentIndex};
use tidegate_switch::link::rdma::members::traffic_class;
use tidegate_switch::link::rdma::setup::RECEIVES;
use tidegate_switch::link::rdma::{Incoming, LocalPair, MemberEntry, Outgoing, Setup, Tables, longest_frame};
use tidegate_uplink::rdma::{Checksum, Header, header};
use tidegate_verbs::simulated::{self, Datagram, Fabric};
use tidegate_verbs::{Address, Device, Status};

const SEGMENT: SegmentIndex = SegmentIndex(3);
const VNI: u32 = 4242;
const MACS: [Mac; 2] = [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])];
const Q_KEY: u32 = 99;

#[derive(Clone, Copy, Debug)]
enum Event {
    Post { from: usize, len: usize, is_urgent: bool },
    Flush(usize),
    Take(usize),
    Forge { to: usize, is_member: bool, len: usize },
    Lose,
    Delay,
    Hold(bool),
    Release(usize),
    Pause(usize),
    Run(usize, usize),
    Resume(usize),
    FailNextSend(usize),
    Break(usize),
    Replace(usize),
}

fn event() -> impl Strategy<Value = Event> {
    let at = 0..2_usize;
    let post = (at.clone(), 16..4000_usize, any::<bool>());
    let forge = (at.clone(), any::<bool>(), 16..100_usize);
    prop_oneof![
        30 => post.prop_map(|(from, len, is_urgent)| Event::Post { from, len, is_urgent }),
        12 => at.clone().prop_map(Event::Flush),
        12 => at.clone().prop_map(Event::Take),
        4 => forge.prop_map(|(to, is_member, len)| Event::Forge { to, is_member, len }),
        2 => Just(Event::Lose),
        2 => Just(Event::Delay),
        2 => any::<bool>().prop_map(Event::Hold),
        2 => (1..9_usize).prop_map(Event::Release),
        2 => at.clone().prop_map(Event::Pause),
        4 => (at.clone(), 1..9_usize).prop_map(|(at, most)| Event::Run(at, most)),
        2 => at.clone().prop_map(Event::Resume),
        1 => at.clone().prop_map(Event::FailNextSend),
        1 => at.clone().prop_map(Event::Break),
        2 => at.prop_map(Event::Replace),
    ]
}

struct Side {
    device: simulated::Device,
    setup: Setup,
    address: IpAddr,
    pair: Arc<LocalPair>,
    out: Outgoing,
    incoming: Incoming,
}

struct Scene {
    fabric: Fabric,
    sides: [Side; 2],
    posted: [u32; 2],
    seen: [BTreeSet<u32>; 2],
}

impl Side {
    fn new(fabric: &Fabric, address: [u8; 4], n: usize) -> Self {
        let address = address.into();
        let device = simulated::Device::new(fabric, "sim0", &[address]);
        let open = Device::simulated(&device);
        let gid = open.gids().unwrap().into_iter().find(|gid| gid.is_roce_v2).unwrap();
        let setup = Setup::new(&open, gid.index).unwrap();
        let pair = setup.pair(0, (SEGMENT, VNI), MACS[n], Q_KEY).unwrap();
        let (out, incoming) = (Outgoing::new(&setup), Incoming::new(&setup));
        Self { device, setup, address, pair, out, incoming }
    }
}

impl Scene {
    fn new() -> Self {
        let fabric = Fabric::new();
        let sides = [0, 1].map(|n| Side::new(&fabric, [192, 0, 2, 1 + n as u8], n));
        let mut scene = Self { fabric, sides, posted: [0; 2], seen: Default::default() };
        (0..2).for_each(|n| scene.put_in_force(n));
        scene
    }

    /// Gives a side tables of both present queue pairs.
    fn put_in_force(&mut self, n: usize) {
        let (here, there) = (&self.sides[n], &self.sides[1 - n]);
        let handle = |at| Address::new(&here.setup.device, here.setup.gid, there.address, traffic_class(at));
        let member = MemberEntry {
            segment: SEGMENT,
            vni: VNI,
            mac: MACS[1 - n],
            peer: PeerIndex::new(5).unwrap(),
            address: there.address,
            queue_pair: there.pair.number(),
            q_key: Q_KEY,
            longest: longest_frame(there.setup.mtu, false),
            handles: Some(std::array::from_fn(|at| handle(at).unwrap())),
        };
        let tables = Arc::new(Tables::new(vec![here.pair.clone()], vec![member]));
        let side = &mut self.sides[n];
        let old = side.out.set_tables(tables.clone());
        side.incoming.set_tables(tables.clone());
        // As `Retiring` does, but on the worker's thread.
        for pair in old.pairs().iter().filter(|pair| pair.number() != tables.pairs()[0].number()) {
            pair.fail().unwrap();
        }
        let was_paused = side.setup.counters.replaced.get() > 0;
        if was_paused {
            side.device.resume();
        }
        side.out.flush();
        assert_eq!(side.setup.counters.replaced.get(), 0, "all that was sent by the former tables has ended");
        drop(old);
    }

    fn replace(&mut self, n: usize) {
        let side = &mut self.sides[n];
        side.pair = side.setup.pair(0, (SEGMENT, VNI), MACS[n], Q_KEY).unwrap();
        (0..2).for_each(|n| self.put_in_force(n));
    }

    fn frame(from: usize, number: u32, out: &mut [u8]) {
        out.fill(0);
        out[..6].copy_from_slice(&MACS[1 - from].0);
        out[6..12].copy_from_slice(&MACS[from].0);
        *out.last_chunk_mut().unwrap() = number.to_be_bytes();
    }

    /// Returns whether a frame found room.
    fn post(&mut self, from: usize, len: usize, is_urgent: bool) -> bool {
        let number = self.posted[from];
        let out = &mut self.sides[from].out;
        let Some(way) = out.way(0, SEGMENT, MACS[from], MACS[1 - from]) else { return false };
        let (mut destined, next) = out.destined(0, way, 0, is_urgent);
        let Some(room) = destined.room(header::LEN + len) else { return false };
        let (before, frame) = room.split_at_mut(header::LEN);
        before.copy_from_slice(&Header { sequence: *next, checksum: Checksum::Complete }.write());
        *next = next.wrapping_add(1);
        Self::frame(from, number, frame);
        self.posted[from] += 1;
        true
    }

    fn take(&mut self, at: usize) -> Result<(), TestCaseError> {
        let incoming = &mut self.sides[at].incoming;
        while incoming.look() {
            while let Some(arrived) = incoming.take_next() {
                let Ok(arrived) = arrived else { continue };
                let number = u32::from_be_bytes(*arrived.bytes.last_chunk().unwrap());
                prop_assert!(number < self.posted[1 - at] || number == u32::MAX, "{number} was never sent");
                prop_assert!(self.seen[at].insert(number) || number == u32::MAX, "{number} came twice");
            }
        }
        Ok(())
    }

    fn apply(&mut self, event: Event) -> Result<(), TestCaseError> {
        match event {
            Event::Post { from, len, is_urgent } => drop(self.post(from, len, is_urgent)),
            Event::Flush(at) => self.sides[at].out.flush(),
            Event::Take(at) => self.take(at)?,
            Event::Forge { to, is_member, len } => {
                let mut frame = vec![0; len];
                Self::frame(1 - to, u32::MAX, &mut frame);
                let header = Header { sequence: 7, checksum: Checksum::Complete }.write();
                let source = self.sides[1 - to].pair.number() + u32::from(!is_member);
                self.fabric.forge(Datagram {
                    from: self.sides[1 - to].address,
                    source,
                    to: self.sides[to].address,
                    queue_pair: self.sides[to].pair.number(),
                    q_key: Q_KEY,
                    traffic_class: 0,
                    bytes: [&header[..], &frame].concat(),
                });
            }
            Event::Lose => self.fabric.lose(0),
            Event::Delay => self.fabric.delay(0),
            Event::Hold(holds) => self.fabric.hold(holds),
            Event::Release(most) => drop(self.fabric.release(most)),
            Event::Pause(at) => self.sides[at].device.pause(),
            Event::Run(at, most) => _ = self.sides[at].device.run(most),
            Event::Resume(at) => self.sides[at].device.resume(),
            Event::FailNextSend(at) => {
                self.sides[at].device.fail_next_send(self.sides[at].pair.number(), Status::Failed(12));
            }
            Event::Break(at) => {
                self.sides[at].device.break_queue_pair(self.sides[at].pair.number());
            }
            Event::Replace(at) => self.replace(at),
        }
        Ok(())
    }

    /// Lets all that is under way arrive.
    fn settle(&mut self) -> Result<(), TestCaseError> {
        self.fabric.hold(false);
        for _ in 0..2 {
            for at in 0..2 {
                self.sides[at].device.resume();
                (0..2).for_each(|_| self.sides[at].out.flush());
            }
            self.fabric.release(usize::MAX);
            (0..2).try_for_each(|at| self.take(at))?;
        }
        Ok(())
    }

    /// Returns how many of the longest frames find room while the device is paused.
    fn room(&mut self, at: usize) -> usize {
        self.sides[at].device.pause();
        (0..).take_while(|_| self.post(at, 4000, true)).count()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn buffers_are_accounted_for(events in prop::collection::vec(event(), 1..200)) {
        let expected = Scene::new().room(0);
        let mut scene = Scene::new();
        for event in events {
            scene.apply(event)?;
        }
        scene.settle()?;
        for at in 0..2 {
            if scene.sides[at].pair.is_failed() {
                scene.replace(at);
            }
        }
        for at in 0..2 {
            let (side, number) = (&scene.sides[at], scene.sides[at].pair.number());
            prop_assert_eq!(side.device.posted(number), Some((0, RECEIVES as usize)));
            prop_assert_eq!(side.device.queue_pairs(), vec![number], "those that were replaced are gone");
            prop_assert!(!side.out.has_unsent() && !side.pair.is_failed());
            // No completion named a buffer that the device did not have.
            prop_assert_eq!((side.setup.counters.malformed.get(), side.setup.counters.broken.get()), (0, 0));
            prop_assert_eq!(scene.room(at), expected);
        }
    }
}
