//! Super-frames to a receiver with few buffers, beside an exact model of what it receives and when the rest
//! is dropped.

use crate::fdb::SegmentIndex;
use crate::frame::HEADER_MAX;
use crate::frame::parse;
use crate::frame::testing::Frame;
use crate::link::Link;
use crate::port::{Port, PortContract, PortInfo, PortSet};
use crate::stats::Region;
use crate::stats::layout::VnicSlot;
use crate::worker::equivalence::guests::{
    Asks, Body, CSUM, Guest, Layout, MERGEABLE, OFFLOADS, RX_RING, Room, Sent, Source, To, V1, mac,
};
use crate::worker::{Worker, testing};
use proptest::prelude::*;
use std::collections::VecDeque;
use tidegate_contract::{Host, Vnic};
use tidegate_evidence::DropReason;

const START: u64 = 1_000_000_000_000;
const MS: u64 = 1_000_000;
/// L4 payload of a segment.
const SIZE: usize = 1000;
/// Headers of a segment: Ethernet, IPv4, TCP.
const HEADERS: usize = 54;
/// Loops after which no work remains at that time.
const LOOPS: usize = 12;
/// The receiver; the others send.
const TO: usize = 1;
const VOICE: &str = "tx = { max = \"1gbit\", burst = \"4kB\" }\ndeadline = \"5ms\"\nto = [\"v1\"]";

thread_local! {
    /// Regions are never unmapped, so cases share one.
    static REGION: Region = Region::create().unwrap();
}

/// Guest 0 sends, guest 1 receives, guest 2 sends with a deadline.
struct Rig {
    worker: Worker,
    guests: Vec<Guest>,
    stats: Vec<&'static VnicSlot>,
    now: u64,
    /// Received buffers: the frame's number, where its payload begins and ends; and whether the sender
    /// marked it as the last.
    got: Vec<Segment>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    frame: u8,
    from: usize,
    len: usize,
    push: bool,
}

impl Rig {
    fn new(receiver: u64) -> Self {
        testing::set_time(START);
        let (mut worker, _handle) = testing::worker();
        let (mut guests, mut all_stats) = (vec![], vec![]);
        for (index, keys) in ["", "", VOICE].into_iter().enumerate() {
            let guest = Guest::new(if index == TO { receiver } else { V1 | CSUM | OFFLOADS }, 1);
            let text = format!(
                "[vnic.v{index}]\nattach = {{ vhost-user = \"/tmp/v{index}\" }}\n\
                 mac = \"{}\"\nsegment = 7\n{keys}\n",
                mac(index)
            );
            let vnic: Vnic = tidegate_contract::parse(&text, "test").unwrap().vnics.remove(0).value;
            let stats = REGION.with(|region| region.claim(index, &format!("v{index}")));
            let (port, segment) = (index as u16, SegmentIndex(0));
            let compiled = PortContract::new(&vnic, &Host::default());
            worker.add_port(Box::new(Port::new(port, segment, compiled, stats, Link::vhost_user())));
            let mut to = PortSet::EMPTY;
            if !vnic.to.is_empty() {
                to.insert(TO as u16);
            }
            worker.set_info(port, Some(PortInfo::new(&vnic, 0, segment, to)));
            worker.fdb.pin(segment, vnic.mac, port).unwrap();
            worker.set_features(port, guest.features);
            worker.set_memory(port, &guest.map()).unwrap();
            for (queue, ring) in [(0, &guest.rx[0]), (1, &guest.tx)] {
                worker.start_queue(port, queue, guest.setup(ring)).unwrap();
                worker.enable_queue(port, queue, true);
            }
            guests.push(guest);
            all_stats.push(stats);
        }
        worker.set_members(vec![(0..3).collect()]);
        Self { worker, guests, stats: all_stats, now: START, got: vec![] }
    }

    /// Sends a frame with this many segments; a single one is no super-frame.
    fn send(&mut self, from: usize, number: u8, segments: usize) {
        let payload = segments * SIZE - usize::from(number) % SIZE;
        let seq = u32::from(number) << 20;
        let spec = Frame { payload: vec![number; payload], seq, flags: 0x18, ..Frame::tcp4(0) };
        let asks = if segments > 1 { Asks::Segments(SIZE as u16) } else { Asks::Checksum };
        let (to, layout) = (To::Guest(TO), Layout::Whole);
        let sent = Sent { body: Body::Good(spec), to, from: Source::Itself, asks, layout };
        let guest = &mut self.guests[from];
        let bytes = sent.bytes(from, guest.header_len());
        guest.send(&sent, &bytes);
        let _ = guest.tx.publish();
    }

    fn give(&mut self, buffers: u16, bytes: u32) {
        self.guests[TO].give(buffers, Room::Whole(bytes));
    }

    /// Passes time, and lets the worker do all its work.
    fn work(&mut self, after: u64) {
        self.now += after;
        testing::set_time(self.now);
        for _ in 0..LOOPS {
            self.worker.work();
            self.guests.iter_mut().for_each(Guest::reap);
        }
        let header = self.guests[TO].header_len();
        let mut received = self.guests[TO].received.drain(..).peekable();
        while let Some(first) = received.next() {
            let buffers = u16::from_le_bytes([first.bytes[10], first.bytes[11]]);
            let mut frame = first.bytes[header..first.len as usize].to_vec();
            for _ in 1..buffers {
                let more = received.next().expect("a frame is shown whole");
                frame.extend(&more.bytes[..more.len as usize]);
            }
            let headers = parse(&frame[..frame.len().min(HEADER_MAX)], frame.len()).unwrap();
            assert_eq!(headers.end as usize, frame.len(), "the IP length is that of the frame");
            let seq = u32::from_be_bytes(frame[38..42].try_into().unwrap());
            let segment = Segment {
                frame: (seq >> 20) as u8,
                from: seq as usize & 0xf_ffff,
                len: frame.len() - HEADERS,
                push: frame[47] & 8 != 0,
            };
            assert!(frame[HEADERS..].iter().all(|byte| *byte == segment.frame));
            self.got.push(segment);
        }
    }

    /// Returns the receiver's counters: frames, frames on the wire, bytes on the wire, and dropped frames
    /// by reason.
    fn counted(&self, reason: DropReason) -> [u64; 4] {
        let rx = &self.stats[TO].rx;
        let dropped = rx.dropped[reason as usize].get();
        let all: u64 = rx.dropped.iter().map(|count| count.get()).sum();
        assert_eq!(dropped, all, "dropped for another reason");
        [rx.frames.get(), rx.wire_frames.get(), rx.wire_bytes.get(), dropped]
    }

    /// Returns a frame's received payload, from its beginning on.
    fn bytes_of(&self, number: u8) -> usize {
        self.got.iter().filter(|segment| segment.frame == number).fold(0, |at, segment| {
            assert_eq!(segment.from, at, "in order, nothing twice: {:?}", self.got);
            at + segment.len
        })
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        (0..3).for_each(|source| self.worker.drop_source(source));
    }
}

/// A receiver's expected frames of one sender.
#[derive(Default)]
struct Model {
    /// Number, segments, those that left, and the beginning of the wait.
    queue: VecDeque<(u8, usize, usize, u64)>,
    buffers: usize,
    /// When a part left (ns).
    part_at: u64,
    got: Vec<Segment>,
    counted: [u64; 4],
}

impl Model {
    fn work(&mut self, now: u64) {
        while let Some((number, segments, went, enqueued)) = self.queue.front_mut() {
            let payload = *segments * SIZE - usize::from(*number) % SIZE;
            let (last, had_begun) = (*segments - 1, *went > 0);
            let before = *went;
            while self.buffers > 0 && *went < *segments {
                let from = *went * SIZE;
                let len = SIZE.min(payload - from);
                self.got.push(Segment { frame: *number, from, len, push: *went == last });
                self.counted[1] += 1;
                self.counted[2] += (len + HEADERS) as u64;
                self.buffers -= 1;
                *went += 1;
            }
            if *went > before && (had_begun || *went < *segments) {
                self.part_at = now;
            }
            if *went == *segments {
                self.counted[0] += 1;
            } else {
                let most = if now - self.part_at < 10 * MS { 40 * MS } else { 10 * MS };
                if now - *enqueued < most {
                    return;
                }
                self.counted[3] += 1;
            }
            self.queue.pop_front();
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Send(usize),
    Give(u16),
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (1usize..28).prop_map(Step::Send),
        4 => (1u16..30).prop_map(Step::Give),
        2 => (0..3 * MS).prop_map(Step::Wait),
        1 => (0..15 * MS).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 1..36)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whenever buffers come: which segments are received, in order, when the rest is dropped, and the
    /// counters.
    #[test]
    fn segments_are_delivered_as_buffers_come(steps in steps(), merges: bool) {
        let mut rig = Rig::new(V1 | CSUM | if merges { MERGEABLE } else { 0 });
        let mut model = Model::default();
        let mut number = 0;
        // At the end every frame has left or was dropped.
        for step in steps.into_iter().chain([Step::Wait(11 * MS), Step::Wait(40 * MS)]) {
            let mut after = 1000;
            match step {
                Step::Send(segments) => {
                    rig.send(0, number, segments);
                    model.queue.push_back((number, segments, 0, rig.now + after));
                    number += 1;
                }
                Step::Give(buffers) => {
                    rig.give(buffers, 2048);
                    model.buffers = (model.buffers + usize::from(buffers)).min(RX_RING.into());
                }
                Step::Wait(ns) => after = ns,
            }
            rig.work(after);
            model.work(rig.now);
            let alike = rig.got.iter().zip(&model.got).take_while(|(got, expected)| got == expected).count();
            prop_assert_eq!(rig.got.get(alike), model.got.get(alike), "segment {}", alike);
            prop_assert_eq!(rig.counted(DropReason::HeldTooLong), model.counted);
            prop_assert_eq!(rig.guests[0].completed, usize::from(number) - model.queue.len());
        }
        prop_assert!(model.queue.is_empty());
        let tx = &rig.stats[0].tx;
        let dropped = tx.dropped[DropReason::HeldTooLong as usize].get();
        prop_assert_eq!([tx.frames.get(), dropped], [number.into(), model.counted[3]], "each has one fate");
        let delays: u64 = rig.stats[0].delay.read().occupied().map(|(_, count)| count).sum();
        prop_assert_eq!(delays, model.counted[0]);
    }

    /// A receiver of super-frames gets smaller ones, whatever its buffers are.
    #[test]
    fn a_receiver_of_super_frames_gets_smaller_ones(
        sizes in prop::collection::vec((1u16..12, 70u32..4000), 1..60),
        segments in 2usize..60,
    ) {
        let mut rig = Rig::new(V1 | CSUM | OFFLOADS | MERGEABLE);
        rig.send(0, 1, segments);
        rig.work(1000);
        let mut room = 0;
        for (count, bytes) in sizes {
            rig.give(count, bytes);
            rig.work(MS / 2);
            room += usize::from(count) * bytes as usize;
        }
        let whole = segments * SIZE - 1;
        let got = rig.bytes_of(1);
        prop_assert!(got == whole || got.is_multiple_of(SIZE), "whole segments");
        prop_assert!(got <= room);
        rig.give(128, 4096);
        rig.work(0);
        if rig.counted(DropReason::HeldTooLong)[3] == 0 {
            prop_assert_eq!(rig.bytes_of(1), whole);
            let [frames, segments_counted, bytes, _] = rig.counted(DropReason::HeldTooLong);
            prop_assert_eq!((frames, segments_counted), (1, segments as u64));
            prop_assert_eq!(bytes as usize, whole + segments * HEADERS);
        }
    }
}

#[test]
fn real_time_frames_pass_between_segments() {
    let mut rig = Rig::new(V1 | CSUM);
    rig.give(3, 2048);
    rig.send(0, 1, 10);
    rig.work(1000);
    assert_eq!(rig.bytes_of(1), 3 * SIZE);
    rig.send(2, 2, 1);
    rig.work(1000);
    rig.give(2, 2048);
    rig.work(1000);
    let frames: Vec<u8> = rig.got.iter().map(|segment| segment.frame).collect();
    assert_eq!(frames, [1, 1, 1, 2, 1]);
    rig.give(16, 2048);
    rig.work(1000);
    assert_eq!(rig.bytes_of(1), 10 * SIZE - 1);
    assert_eq!(rig.counted(DropReason::Late), [2, 11, (10 * SIZE - 1 + SIZE - 2 + 11 * HEADERS) as u64, 0]);
}

/// Checks the fate of a frame's rest, of which three segments left, after this change to its ports.
fn dropped_by(what: impl FnOnce(&mut Worker), reason: DropReason) {
    let mut rig = Rig::new(V1 | CSUM);
    rig.give(3, 2048);
    rig.send(0, 1, 10);
    rig.work(1000);
    what(&mut rig.worker);
    rig.work(1000);
    rig.give(10, 2048);
    rig.work(1000);
    assert_eq!(rig.bytes_of(1), 3 * SIZE);
    let tx = &rig.stats[0].tx;
    assert_eq!((tx.frames.get(), tx.dropped[reason as usize].get()), (1, 1));
    assert_eq!((rig.stats[TO].rx.frames.get(), rig.stats[TO].rx.wire_frames.get()), (0, 3));
    assert_eq!(rig.guests[0].completed, 1, "its sender has its buffer back, once");
    // The next frame is delivered from its beginning.
    rig.give(1, 2048);
    rig.send(0, 2, 1);
    rig.work(1000);
    assert_eq!(rig.bytes_of(2), SIZE - 2);
}

#[test]
fn the_rest_goes_where_its_frame_would_go() {
    dropped_by(|worker| worker.drop_source(0), DropReason::SenderReset);
    dropped_by(|worker| worker.clear_egress(TO as u16), DropReason::ReceiverDown);
    for oldest in [false, true] {
        let relieve = |worker: &mut Worker| {
            worker.relief.push((TO as u16, 0, oldest));
            worker.relieve();
        };
        dropped_by(relieve, DropReason::RingShare);
    }
}
