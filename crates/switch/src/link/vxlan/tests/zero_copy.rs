//! Frames that leave out of a guest's memory, over a fabric in memory.

use super::by_rdma::{Scene, scene};
use super::*;
use crate::clock::test_clock::set_time;
use crate::frame::HEADER_MAX;
use crate::link::rdma::outgoing::{GIVE_UP, STALL};
use crate::link::rdma::testing::Guest;
use crate::link::rdma::{Counters, Retired, Retiring, Tables};
use crate::link::{Completed, Delivery};
use crate::virtio::Span;
use tidegate_uplink::rdma::header;
use tidegate_verbs::Status;

/// Most bytes of a datagram that are copied.
const COPIED: u64 = (HEADER_MAX + header::LEN) as u64;

/// The time at which the tests begin (ns).
pub const BEGIN: u64 = 1_000_000;

/// Two links, of which the first one's guest has zero copy.
pub struct Zero {
    pub scene: Scene,
    pub guest: Guest,
}

pub fn zero() -> Zero {
    set_time(BEGIN);
    let (mut scene, guest) = (scene(), Guest::new());
    let tables = Tables::new(scene.tables[0].pairs().to_vec(), scene.tables[0].members().cloned().collect());
    scene.tables[0] = Arc::new(tables.with_guests(vec![guest.regions(&scene.sides[0], 0)]));
    scene.a.rx.set_rdma(scene.tables[0].clone());
    Zero { scene, guest }
}

impl Zero {
    /// Moves the bytes behind a frame's head into the guest's memory, cut at these places, each piece behind a gap or in
    /// another region.
    pub fn moved(&mut self, mut sent: Sent, cuts: &[(prop::sample::Index, usize, bool)]) -> Sent {
        let body = bytes(&[], sent.frame.payload());
        let mut ends: Vec<_> = cuts.iter().map(|(at, ..)| at.index(body.len() + 1)).collect();
        ends.sort_unstable();
        ends.push(body.len());
        let (mut from, mut spans) = (0, vec![]);
        for (n, end) in ends.into_iter().enumerate() {
            let (gap, in_other) = cuts.get(n).map_or((0, false), |(_, gap, in_other)| (*gap, *in_other));
            if end > from {
                spans.push(self.guest.put(&body[from..end], gap, in_other));
            }
            from = end;
        }
        sent.frame.spans[..spans.len()].copy_from_slice(&spans);
        sent.frame.span_count = spans.len() as u16;
        sent
    }

    /// Returns a frame of so many bytes of payload, in one piece.
    fn frame(&mut self, payload: usize) -> Sent {
        self.moved(asking(&Spec::udp4(payload), None), &[])
    }

    fn counters(&self) -> &Counters {
        &self.scene.sides[0].setup.counters
    }

    /// Posts the parts of a super-frame of at most so many bytes each, or a frame at once; returns how many are held.
    fn post(&mut self, sent: &Sent, most: Option<u32>) -> usize {
        let (mut left, mut held) = (sent.frame.wire_bytes, 0);
        while left > 0 {
            let (what, bytes) = Delivery::next(&sent.frame, left, most.unwrap_or(u32::MAX));
            let part = what.cut(&sent.frame).unwrap();
            match self.scene.a.rx.post(&part) {
                Posted::Done => {}
                Posted::Later => held += 1,
                other => panic!("{other:?}"),
            }
            left -= bytes;
        }
        held
    }

    /// Returns the frames that ended, the oldest first.
    fn completed(&mut self) -> Vec<Completed> {
        std::iter::from_fn(|| self.scene.a.rx.completed()).collect()
    }
}

/// Where a frame's bytes are cut, and how they lie.
fn cuts() -> impl Strategy<Value = Vec<(prop::sample::Index, usize, bool)>> {
    let gap = prop_oneof![Just(0), 1..100usize];
    prop::collection::vec((any::<prop::sample::Index>(), gap, prop::bool::weighted(0.2)), 0..10)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The device gathers what would have been copied, for any frames and super-frames, cut to parts or not, wherever
    /// their bytes lie; of a datagram that it gathers no more than the head is copied.
    #[test]
    fn gathered_frames_are_those_that_would_be_copied(
        specs in prop::collection::vec(
            (testing::frame_up_to(5000), prop::option::of(60..4000u16), cuts(), prop::option::of(500..9000u32)), 1..8),
    ) {
        let (mut zero, mut copying) = (zero(), scene());
        let mut held = 0;
        for (spec, size, cuts, most) in specs {
            let size = size.filter(|size| spec.payload.len() > usize::from(*size));
            let sent = zero.moved(asking(&spec, size), &cuts);
            held += zero.post(&sent, most);
            prop_assert_eq!(copying.a.rx.post(&sent.frame), Posted::Done);
        }
        zero.scene.a.rx.flush();
        copying.a.rx.flush();
        let frames = |scene: &mut Scene| {
            let (frames, drops) = scene.b.receive();
            assert_eq!(drops, vec![]);
            let mut flows = by_flow(frames.into_iter().map(|(_, bytes)| bytes).collect());
            // By two lanes, frames of a flow overtake, or are overtaken.
            flows.values_mut().for_each(|frames| frames.sort());
            flows
        };
        prop_assert_eq!(frames(&mut zero.scene), frames(&mut copying));
        prop_assert_eq!(zero.scene.by_rdma(), copying.by_rdma());
        let ends = zero.completed();
        prop_assert!(ends.len() == held && ends.iter().all(|end| *end == Completed::Done));
        let (zero, all) = (zero.counters(), copying.sides[0].setup.counters.copied_out.get());
        prop_assert_eq!(zero.copied_out.get() + zero.zero_copied_out_bytes.get(), all);
        if zero.too_many_pieces.get() == 0 && zero.no_region.get() == 0 {
            prop_assert!(zero.copied_out.get() <= COPIED * zero.sent.get());
        }
    }
}

/// What was checked is what leaves; the rest is the guest's own affair.
#[test]
fn the_head_leaves_as_it_was_checked_and_the_rest_as_the_device_reads_it() {
    let mut zero = zero();
    zero.scene.sides[0].device.pause();
    let sent = zero.frame(1000);
    assert_eq!(zero.scene.a.send(&sent), Posted::Later);
    for span in sent.frame.payload() {
        // SAFETY: the guest's memory, which is mapped.
        unsafe { std::slice::from_raw_parts_mut(span.ptr, span.len as usize) }.fill(0xab);
    }
    zero.scene.sides[0].device.resume();
    let (frames, head) = (zero.scene.b.frames(), sent.frame.head());
    assert_eq!(frames[0].len(), sent.frame.len as usize);
    // The receiver finishes the checksum of what arrived.
    assert_eq!(frames[0][..40], head[..40]);
    assert_eq!(frames[0][42..head.len()], head[42..]);
    assert!(frames[0][head.len()..].iter().all(|byte| *byte == 0xab));
    assert_eq!(zero.completed(), [Completed::Done]);
    let counters = zero.counters();
    assert_eq!((counters.copied_out.get(), counters.zero_copied_out.get()), (COPIED, 1));
    assert_eq!(counters.zero_copied_out_bytes.get(), u64::from(sent.frame.len) - HEADER_MAX as u64);
}

#[test]
fn a_frame_is_held_until_the_device_has_read_it() {
    let mut zero = zero();
    zero.scene.sides[0].device.pause();
    let frames: Vec<_> = (0..20).map(|n| zero.frame(300 + n)).collect();
    for (n, sent) in frames.iter().enumerate() {
        assert_eq!(zero.scene.a.send(sent), Posted::Later, "{n}");
    }
    assert_eq!(zero.completed(), []);
    // A short frame, and one with a deadline, are copied, and leave behind those.
    let mut urgent = zero.frame(400);
    (urgent.frame.deadline, urgent.frame.started) = (2 * BEGIN, BEGIN);
    let short = zero.frame(100);
    assert_eq!(zero.scene.a.send(&urgent), Posted::Done);
    assert_eq!(zero.scene.a.send(&short), Posted::Done);
    assert_eq!(zero.counters().zero_copied_out.get(), 20);
    for n in 0..20 {
        assert_eq!(zero.scene.sides[0].device.run(1), 1);
        assert_eq!(zero.completed(), [Completed::Done], "{n}");
    }
    zero.scene.sides[0].device.resume();
    assert_eq!((zero.completed(), zero.scene.b.frames().len()), (vec![], 22));
}

#[test]
fn bytes_in_too_many_places_or_elsewhere_are_copied_and_counted() {
    let mut zero = zero();
    let cuts = |count: usize| -> Vec<_> {
        let whole = any::<prop::sample::Index>();
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let index = |_| whole.new_tree(&mut runner).unwrap().current();
        (0..count).map(index).map(|at| (at, 5, false)).collect()
    };
    use proptest::strategy::ValueTree;
    let scattered = zero.moved(asking(&Spec::udp4(3000), None), &cuts(12));
    assert!(scattered.frame.span_count > 8);
    assert_eq!(zero.scene.a.send(&scattered), Posted::Done);
    let elsewhere = asking(&Spec::udp4(1000), None);
    assert_eq!(zero.scene.a.send(&elsewhere), Posted::Done);
    let mut partly = zero.frame(1000);
    let mut other = [7; 100];
    partly.frame.spans[1] = Span { ptr: other.as_mut_ptr(), len: 100 };
    (partly.frame.span_count, partly.frame.len) = (2, partly.frame.len + 100);
    assert_eq!(zero.scene.a.send(&partly), Posted::Done);
    let counters = zero.counters();
    assert_eq!((counters.too_many_pieces.get(), counters.no_region.get()), (1, 2));
    assert_eq!(counters.zero_copied_out.get(), 0);
    assert_eq!(zero.scene.b.frames().len(), 3);
}

/// The pool has no room in the middle of a super-frame: what left is held, and so is the rest.
#[test]
fn a_part_of_a_super_frame_is_held() {
    let mut zero = zero();
    zero.scene.sides[0].device.pause();
    let whole = zero.moved(asking(&Spec::tcp4(64_000), Some(1000)), &[]);
    let mut parts = vec![];
    let mut posted = 0;
    while parts.is_empty() {
        match zero.scene.a.send(&whole) {
            Posted::Later => posted += 1,
            Posted::LaterPart(payload) => parts.push(payload),
            other => panic!("{other:?}"),
        }
        assert!(posted < 10);
    }
    assert_eq!(parts[0] % 1000, 0);
    let what = Delivery { from: parts[0], ..Delivery::WHOLE };
    let rest = what.cut(&whole.frame).unwrap();
    zero.scene.sides[0].device.run(200);
    zero.scene.a.rx.flush();
    assert_eq!(zero.scene.a.rx.post(&rest), Posted::Later);
    zero.scene.a.rx.flush();
    zero.scene.sides[0].device.resume();
    assert_eq!(zero.completed().len(), posted + 2);
    let expected: Vec<_> = (0..=posted).flat_map(|_| on_the_wire(&whole)).collect();
    let mut frames = vec![];
    while frames.len() < expected.len() {
        let some = zero.scene.b.frames();
        assert!(!some.is_empty(), "{} of {}", frames.len(), expected.len());
        frames.extend(some);
    }
    assert_eq!(frames, expected);
}

/// Each dropped frame is its sender's, and not one that the link dropped after its end.
#[test]
fn frames_of_a_queue_pair_that_fails_are_dropped_once() {
    let mut zero = zero();
    let number = zero.scene.tables[0].pairs()[0].number();
    assert!(zero.scene.sides[0].device.fail_next_send(number, Status::Failed(2)));
    let frames: Vec<_> = (0..40).map(|_| zero.frame(1000)).collect();
    for sent in &frames {
        assert_eq!(zero.scene.a.rx.post(&sent.frame), Posted::Later);
    }
    zero.scene.a.rx.flush();
    let ends = zero.completed();
    assert_eq!(ends.len(), 40);
    assert!(ends.iter().all(|end| *end == Completed::Dropped(DropReason::UplinkRefused)), "{ends:?}");
    assert_eq!(zero.scene.a.rx.take_dropped().collect::<Vec<_>>(), []);
    assert_eq!(zero.counters().unsent.get(), 40);
    // By VXLAN until it is replaced.
    assert_eq!(zero.scene.a.send(&frames[0]), Posted::Done);
    // Some are posted after it has failed.
    let mut zero = self::zero();
    let sent = zero.frame(1000);
    assert_eq!(zero.scene.a.rx.post(&sent.frame), Posted::Later);
    assert!(zero.scene.sides[0].device.break_queue_pair(zero.scene.tables[0].pairs()[0].number()));
    zero.scene.a.rx.flush();
    assert_eq!(zero.completed(), [Completed::Dropped(DropReason::UplinkRefused)]);
    assert_eq!(zero.scene.a.rx.take_dropped().collect::<Vec<_>>(), []);
}

/// First it is no way, then its queue pair counts as failed, which the control plane ends: by that, frames come back.
#[test]
fn a_device_that_stalls_has_its_queue_pair_ended_and_its_frames_come_back() {
    let mut zero = zero();
    zero.scene.sides[0].device.pause();
    let sent = zero.frame(1000);
    assert_eq!(zero.scene.a.send(&sent), Posted::Later);
    assert_eq!(zero.completed(), []);
    set_time(BEGIN + STALL + 1);
    assert_eq!(zero.completed(), []);
    assert_eq!(zero.scene.a.send(&sent), Posted::Done, "by VXLAN");
    assert_eq!(zero.scene.b.frames().len(), 1);
    let pair = zero.scene.tables[0].pairs()[0].clone();
    assert!(!pair.is_failed());
    set_time(BEGIN + GIVE_UP + 1);
    assert_eq!(zero.completed(), []);
    assert!(pair.is_failed());
    pair.fail().unwrap();
    assert_eq!(zero.completed(), [Completed::Dropped(DropReason::UplinkRefused)]);
    assert_eq!(zero.counters().broken.get(), 0);
}

/// What ends without the device is no sign of one that stalls, however long ago that was.
#[test]
fn frames_that_were_never_posted_do_not_count_against_the_device() {
    let mut zero = zero();
    let former = zero.scene.tables[0].pairs()[0].clone();
    zero.scene.sides[0].device.pause();
    assert!(zero.scene.sides[0].device.fail_next_send(former.number(), Status::Failed(2)));
    let (first, second) = (zero.frame(1000), zero.frame(1001));
    assert_eq!(zero.scene.a.send(&first), Posted::Later);
    // This one waits here when its queue pair fails.
    assert_eq!(zero.scene.a.rx.post(&second.frame), Posted::Later);
    assert_eq!(zero.scene.sides[0].device.run(1), 1);
    let lost = Completed::Dropped(DropReason::UplinkRefused);
    assert_eq!(zero.completed().as_slice(), std::slice::from_ref(&lost));
    zero.scene.a.rx.flush();
    assert_eq!(zero.completed(), [lost]);

    let pair = zero.scene.sides[0].pair(0, (former.segment, former.vni), former.mac);
    let tables = Tables::new(vec![pair.clone()], zero.scene.tables[0].members().cloned().collect());
    let tables = Arc::new(tables.with_guests(vec![zero.guest.regions(&zero.scene.sides[0], 0)]));
    zero.scene.a.rx.set_rdma(tables);
    zero.scene.sides[0].device.resume();
    set_time(BEGIN + GIVE_UP + 1);
    assert_eq!(zero.scene.a.rx.post(&first.frame), Posted::Later);
    assert_eq!((zero.completed(), pair.is_failed()), (vec![], false));
    zero.scene.a.rx.flush();
    assert_eq!(zero.completed(), [Completed::Done]);
    assert_eq!(zero.scene.a.send(&second), Posted::Later, "by RDMA");
}

/// It ends none of its sends, not even with a failed queue pair.
#[test]
fn frames_that_a_device_keeps_are_given_up_and_the_device_is_broken() {
    let mut zero = zero();
    zero.scene.sides[0].device.pause();
    let (first, second) = (zero.frame(1000), zero.frame(1001));
    assert_eq!(zero.scene.a.send(&first), Posted::Later);
    assert_eq!(zero.completed(), []);
    set_time(BEGIN + GIVE_UP + 1);
    // This one waits here.
    assert_eq!(zero.scene.a.rx.post(&second.frame), Posted::Later);
    zero.scene.a.rx.cancel();
    assert_eq!((zero.completed(), zero.counters().broken.get()), (vec![], 1));
    zero.scene.a.rx.flush();
    zero.scene.sides[0].device.resume();
    zero.scene.a.rx.flush();
    assert_eq!(zero.scene.by_rdma(), 1, "what waited is not sent");
    assert_eq!(zero.completed(), []);
    assert_eq!(zero.scene.a.send(&first), Posted::Done, "by VXLAN");
}

/// A front end goes, or has other memory: the tables lose the guest while the device still reads from it.
#[test]
fn memory_stays_registered_until_the_device_is_done_with_it() {
    let mut zero = zero();
    zero.scene.sides[0].device.pause();
    let sent = zero.frame(1000);
    assert_eq!(zero.scene.a.send(&sent), Posted::Later);
    let tables = &zero.scene.tables[0];
    let without = Arc::new(Tables::new(tables.pairs().to_vec(), tables.members().cloned().collect()));
    let former = zero.scene.a.rx.set_rdma(without.clone()).unwrap();
    zero.scene.tables[0] = without.clone();
    let memory = Arc::downgrade(&zero.guest.memory);
    let counters = zero.scene.sides[0].setup.counters.clone();
    let mut retiring = Retiring::begin(former, &without, &counters, 0);
    assert_eq!(retiring.look(1), Retired::NotYet);
    // The next frame is copied, from any memory.
    assert_eq!(zero.scene.a.send(&sent), Posted::Done);
    zero.guest = Guest::new();
    assert!(memory.upgrade().is_some());
    zero.scene.sides[0].device.resume();
    assert_eq!(zero.completed(), [Completed::Done]);
    zero.scene.a.rx.flush();
    assert_eq!((retiring.look(2), memory.upgrade().is_none()), (Retired::Yes, true));
    assert_eq!(zero.scene.b.frames().len(), 2);
}

/// As long as frames come faster than the device sends, each write to it has 16 of them.
#[test]
fn at_saturation_a_write_has_many_gathered_frames() {
    let mut zero = zero();
    zero.scene.sides[0].device.pause();
    let mut sent = 0;
    for payload in [300, 1400, 4000] {
        let frame = zero.frame(payload);
        let (before, began) = (zero.scene.sides[0].device.counters().doorbells, sent);
        for _ in 0..1000 {
            while zero.scene.a.rx.post(&frame.frame) == Posted::Later {
                sent += 1;
            }
            zero.scene.a.rx.flush();
            zero.scene.sides[0].device.run(3);
            zero.completed();
        }
        let writes = zero.scene.sides[0].device.counters().doorbells - before;
        assert!(sent - began >= 16 * writes, "{} frames by {writes} writes", sent - began);
    }
    zero.scene.sides[0].device.resume();
    zero.completed();
    assert_eq!((zero.counters().zero_copied_out.get(), zero.scene.by_rdma()), (sent, sent));
    assert!(zero.counters().copied_out.get() <= COPIED * sent);
}
