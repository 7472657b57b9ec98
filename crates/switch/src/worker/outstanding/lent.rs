//! Super-frames in a guest's memory that a device reads while their fates are decided.

use super::super::send::unqueued_fate;
use super::super::{budget, testing};
use super::end_rest;
use crate::fdb::{PortIndex, SegmentIndex};
use crate::frame::testing::Frame as Spec;
use crate::link::rdma::testing::Guest;
use crate::link::rdma::{Retired, Retiring, Tables};
use crate::link::vxlan::tests::by_rdma::Devices;
use crate::link::vxlan::tests::scene::{PORT, Sent, asking};
use crate::link::vxlan::tests::zero_copy::{BEGIN, Zero, zero};
use crate::link::{Link, Rx, Tx};
use crate::port::{Egress, Port, PortContract, PortInfo};
use crate::sched::Queued;
use crate::slots::{FrameRef, Slots};
use crate::stats::Region;
use crate::stats::layout::VnicSlot;
use crate::worker::{Worker, WorkerHandle};
use proptest::prelude::*;
use std::sync::Arc;
use tidegate_contract::{Host, Rate};
use tidegate_evidence::DropReason;
use tidegate_verbs::Status;

/// Port of the guest whose frames leave.
const GUEST: PortIndex = 0;
/// Frames that it has.
const FRAMES: usize = 8;
/// Length of a loop (ns).
const LOOP: u64 = 20_000;
/// What a guest's frame has in it, and what the guest writes there once it has the frame back.
const OURS: u8 = 7;
const THEIRS: u8 = 0xee;
/// Ethernet, IPv4, TCP.
const HEADERS: usize = 54;

struct Rig {
    worker: Worker,
    _handle: WorkerHandle,
    far: crate::link::vxlan::tests::scene::Host,
    scene: Devices,
    guest: Guest,
    /// Former tables.
    retiring: Option<Retiring>,
    slots: Slots,
    /// The guest's frames, and which of them it has.
    frames: Vec<Sent>,
    free: Vec<usize>,
    sent: Vec<(FrameRef, usize)>,
    stats: &'static VnicSlot,
    now: u64,
    fates: usize,
    dropped: usize,
}

impl Rig {
    /// Returns an uplink whose super-frames leave in parts.
    fn new() -> Self {
        let mut zero: Zero = zero();
        let spec = Spec { payload: vec![OURS; 30_000], ..Spec::tcp4(0) };
        let frames: Vec<_> = (0..FRAMES).map(|_| zero.moved(asking(&spec, Some(1000)), &[])).collect();
        let Zero { scene, guest } = zero;
        let (scene, link, far) = scene.apart();
        let (mut worker, _handle) = testing::worker();
        worker.now = BEGIN;
        testing::add_port(&mut worker, GUEST);
        let link = Link { tx: Tx::Vxlan(Box::new(link.tx)), rx: Rx::Vxlan(Box::new(link.rx)) };
        let rate = Rate::from_bits(2_000_000_000).unwrap();
        let contract = PortContract::of_uplink(rate, 1518, 50, 1568, &Host::default());
        let stats = &Region::create().unwrap().layout().vnics[usize::from(PORT)];
        worker.add_port(Box::new(Port::new(PORT, SegmentIndex::OF_EACH_FRAME, contract, stats, link)));
        worker.set_info(PORT, Some(PortInfo::of_uplink(0)));
        let free = (0..FRAMES).collect();
        let (slots, sent) = (Slots::new(FRAMES as u16, GUEST, 0), vec![]);
        let (now, fates, dropped) = (BEGIN, 0, 0);
        Self {
            worker,
            _handle,
            far,
            scene,
            guest,
            retiring: None,
            slots,
            frames,
            free,
            sent,
            stats,
            now,
            fates,
            dropped,
        }
    }

    /// Writes all of the memory of a frame's payload behind its head.
    fn fill(&self, which: usize, byte: u8) {
        for span in self.frames[which].frame.payload() {
            // SAFETY: the guest's memory, which the tables keep mapped.
            unsafe { std::slice::from_raw_parts_mut(span.ptr, span.len as usize) }.fill(byte);
        }
    }

    fn send(&mut self) {
        let Some(which) = self.free.pop() else { return };
        self.fill(which, OURS);
        let reference = self.slots.take().unwrap();
        let frame = reference.get_mut();
        let (slot, worker) = (frame.slot, frame.worker);
        *frame = self.frames[which].frame.clone();
        (frame.slot, frame.worker, frame.source) = (slot, worker, GUEST);
        self.sent.push((reference, which));
        self.worker.enqueue(PORT, &[reference]);
        self.settle();
    }

    /// Drops what waits at the uplink, as when the guest goes.
    fn drop_source(&mut self) {
        let (fates, now) = (&mut self.worker.fates, self.now);
        let Egress { scheduler, outstanding, .. } =
            &mut self.worker.ports[usize::from(PORT)].as_mut().unwrap().egress;
        scheduler.clear_source(GUEST, |queued: Queued<FrameRef>| {
            let fate = unqueued_fate(queued.frame, PORT, DropReason::SenderReset, now);
            end_rest(fates, outstanding, queued.bytes, fate);
        });
    }

    /// Gives the guest what has a fate; it uses the memory for other things.
    fn settle(&mut self) {
        let fates: Vec<_> = self.worker.fates.drain().collect();
        for fate in fates {
            let at = self.sent.iter().position(|(frame, _)| *frame == fate.frame).expect("one fate each");
            let (frame, which) = self.sent.remove(at);
            self.fill(which, THEIRS);
            self.free.push(which);
            self.slots.give(frame);
            self.fates += 1;
            self.dropped += usize::from(fate.dropped.is_some());
        }
    }

    /// Puts other tables in force, with the guest's memory or without, and another queue pair if the present one failed.
    fn change(&mut self, lends: bool) {
        if self.retiring.is_some() {
            return;
        }
        let [here, there] = &self.scene.sides;
        let former = self.scene.tables[0].pairs()[0].clone();
        let pair = match former.is_failed() {
            true => here.pair(GUEST, (former.segment, former.vni), former.mac),
            false => former,
        };
        let member = there.member(here, &pair, self.scene.tables[1].members().next().unwrap().peer);
        let of_there = Arc::new(Tables::new(self.scene.tables[1].pairs().to_vec(), vec![member]));
        self.far.tx.set_rdma(of_there.clone());
        drop(self.far.rx.set_rdma(of_there.clone()));
        let tables = Tables::new(vec![pair], self.scene.tables[0].members().cloned().collect());
        let guests = if lends { vec![self.guest.regions(here, GUEST)] } else { vec![] };
        let tables = Arc::new(tables.with_guests(guests));
        let former = self.worker.set_rdma(PORT, tables.clone()).unwrap();
        self.retiring = Some(Retiring::begin(former, &tables, &here.setup.counters, self.now));
        self.scene.tables = [tables, of_there];
    }

    /// Runs turns until the device is done with former tables.
    fn until_settled(&mut self) {
        (0..1000)
            .take_while(|_| {
                self.turn();
                self.retiring.is_some()
            })
            .for_each(drop);
        assert!(self.retiring.is_none());
    }

    /// Runs the egress's turn, then looks at what arrived.
    fn turn(&mut self) {
        self.now += LOOP;
        testing::set_time(self.now);
        self.worker.now = self.now;
        self.worker.egress(64 * budget::QUANTUM);
        self.worker.flush(false);
        self.settle();
        for frame in self.far.frames() {
            assert!(frame[HEADERS..].iter().all(|byte| *byte == OURS), "it left after its fate");
        }
        if self.retiring.as_mut().is_some_and(|retiring| retiring.look(self.now) == Retired::Yes) {
            self.retiring = None;
        }
        // As the control plane ends what failed.
        self.scene.tables[0]
            .pairs()
            .iter()
            .filter(|pair| pair.is_failed())
            .for_each(|pair| pair.fail().unwrap());
    }
}

#[derive(Clone, Debug)]
enum Step {
    Send(usize),
    Turns(usize),
    Wait(u64),
    Pause,
    /// A paused device comes to so many datagrams.
    Run(usize),
    Resume,
    Relieve(bool),
    DropSource,
    /// Other tables, with the guest's memory or without.
    Change(bool),
    /// The next datagram costs the queue pair.
    Fail,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..4usize).prop_map(Step::Send),
        6 => (1..6usize).prop_map(Step::Turns),
        2 => prop_oneof![0..400_000u64, Just(12_000_000), Just(50_000_000), Just(210_000_000)].prop_map(Step::Wait),
        2 => Just(Step::Pause),
        4 => (1..40usize).prop_map(Step::Run),
        2 => Just(Step::Resume),
        1 => any::<bool>().prop_map(Step::Relieve),
        1 => Just(Step::DropSource),
        3 => any::<bool>().prop_map(Step::Change),
        1 => Just(Step::Fail),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever happens to the rest of a frame, its guest has it back once, and the device reads none of it afterwards.
    #[test]
    fn a_guest_has_a_frame_back_when_no_part_of_it_is_read(steps in prop::collection::vec(step(), 1..60)) {
        let mut rig = Rig::new();
        let device = rig.scene.sides[0].device.clone();
        for step in steps {
            match step {
                Step::Send(count) => (0..count).for_each(|_| rig.send()),
                Step::Turns(count) => (0..count).for_each(|_| rig.turn()),
                Step::Wait(ns) => rig.now += ns,
                Step::Pause => device.pause(),
                Step::Run(most) => _ = device.run(most),
                Step::Resume => device.resume(),
                Step::Relieve(oldest) => {
                    rig.worker.relief.push((PORT, GUEST, oldest));
                    rig.worker.relieve();
                    rig.settle();
                }
                Step::Change(lends) => rig.change(lends),
                Step::Fail => {
                    let number = rig.scene.tables[0].pairs()[0].number();
                    device.fail_next_send(number, Status::Failed(2));
                }
                Step::DropSource => {
                    rig.drop_source();
                    rig.settle();
                }
            }
        }
        device.resume();
        (0..2000).take_while(|_| {
            rig.turn();
            !rig.sent.is_empty()
        }).for_each(drop);
        prop_assert!(rig.sent.is_empty() && rig.slots.in_flight() == 0, "{} never end", rig.sent.len());
        let port = rig.worker.ports[usize::from(PORT)].as_ref().unwrap();
        prop_assert!(port.egress.outstanding.is_empty());
        // All orders to fail are obeyed. Then the device has nothing of a guest that is not lent, and frames go by RDMA.
        for _ in 0..4 {
            rig.send();
            (0..100).for_each(|_| rig.turn());
            rig.until_settled();
            rig.change(false);
        }
        rig.until_settled();
        prop_assert_eq!(device.foreign(), 0);
        let before = device.counters().datagrams;
        rig.send();
        (0..100).for_each(|_| rig.turn());
        prop_assert_eq!(device.counters().datagrams, before + 30, "by the good queue pair");
        prop_assert!(rig.stats.rx.frames.get() as usize <= rig.fates - rig.dropped);
    }
}

#[test]
fn all_parts_of_a_super_frame_leave_out_of_the_guests_memory() {
    let mut rig = Rig::new();
    rig.scene.sides[0].device.pause();
    rig.send();
    (0..20).for_each(|_| rig.turn());
    let port = rig.worker.ports[usize::from(PORT)].as_ref().unwrap();
    assert_eq!(
        (port.egress.scheduler.backlog_total().frames, port.egress.outstanding.is_empty()),
        (0, false)
    );
    assert_eq!(rig.fates, 0);
    rig.scene.sides[0].device.resume();
    (0..2).for_each(|_| rig.turn());
    let counters = &rig.scene.sides[0].setup.counters;
    assert_eq!((rig.fates, rig.dropped, counters.zero_copied_out.get()), (1, 0, 30));
    assert_eq!(rig.stats.rx.wire_frames.get(), 30);
    assert!(rig.stats.rx.dropped.iter().all(|dropped| dropped.get() == 0));
}
