//! Flows that wait for a receiver's rate, from tap to tap.

use super::*;
use crate::frame::testing::{DST, Frame, SRC, dissect, sum};
use crate::frame::vnet_hdr::{GSO_TCPV4, GSO_TCPV6, NEEDS_CSUM};
use crate::frame::{VnetHdr, parse};
use crate::link::writer::Writer;
use crate::port::PortContract;
use crate::stats::layout::VnicSlot;
use crate::worker::testing::{self, add_tap_with};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use tidegate_contract::{Host, Vnic};

pub(super) const START: u64 = 1_000_000_000_000;
const US: u64 = 1_000;
pub(super) const MS: u64 = 1_000_000;
const STEP: u64 = 100 * US;
/// TCP payload of a segment, and its headers.
pub(super) const SIZE: usize = 1_000;
const HEADERS: usize = 54;
/// 2,500 bytes in a millisecond.
pub(super) const RATE: &str = "rx = { max = \"20mbit\", burst = \"3kB\" }";

/// One tap sends, the other receives.
struct Rig {
    worker: Worker,
    taps: [OwnedFd; 2],
    now: u64,
    got: Vec<Got>,
    /// Another thread writes best effort: its pause, in steps of the time.
    writer: Option<(Writer, u64)>,
}

/// A frame that was received, or segments of one.
#[derive(Clone, Debug)]
struct Got {
    at: u64,
    flow: u16,
    seq: u32,
    payload: usize,
    ecn: u8,
}

pub(super) fn contract(keys: &str) -> PortContract {
    let text =
        format!("[vnic.v1]\nattach = {{ tap = \"v1\" }}\nmac = \"52:54:00:00:00:01\"\nsegment = 7\n{keys}");
    let vnic: Vnic = tidegate_contract::parse(&text, "test").unwrap().vnics.remove(0).value;
    PortContract::new(&vnic, &Host::default())
}

/// Returns a TCP frame of the vNIC of port `from` as its tap gives it, a super-frame if its payload exceeds
/// a segment.
pub(super) fn sent(spec: &Frame, from: u8, to: [u8; 6]) -> Vec<u8> {
    let mut frame = spec.build();
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&[0x52, 0x54, 0, 0, 0, from]);
    let headers = parse(&frame[..frame.len().min(192)], frame.len()).unwrap();
    // The pseudo header's sum, as a sender leaves it that asks for the checksum.
    let (l3, l4) = (usize::from(headers.l3_offset), usize::from(headers.l4_offset));
    let mut pseudo = frame[if spec.v6 { l3 + 8..l3 + 40 } else { l3 + 12..l3 + 20 }].to_vec();
    pseudo.extend(((frame.len() - l4) as u32 + 6).to_be_bytes());
    frame[l4 + 16..l4 + 18].copy_from_slice(&sum(&pseudo).to_be_bytes());
    let is_super = spec.payload.len() > SIZE;
    let gso_type = match (is_super, spec.v6) {
        (false, _) => 0,
        (true, false) => GSO_TCPV4,
        (true, true) => GSO_TCPV6,
    };
    let vnet = VnetHdr {
        flags: NEEDS_CSUM,
        gso_type,
        gso_size: if is_super { SIZE as u16 } else { 0 },
        hdr_len: headers.len.into(),
        csum_start: headers.l4_offset.into(),
        csum_offset: 16,
        ..VnetHdr::default()
    };
    let mut bytes = vec![0; VnetHdr::LEN];
    vnet.write(bytes.first_chunk_mut().unwrap());
    bytes.extend(frame);
    bytes
}

impl Rig {
    fn new(keys: &str) -> Self {
        testing::set_time(START);
        let (mut worker, _handle) = testing::worker();
        let taps = ["", keys];
        let taps = [0, 1].map(|index| add_tap_with(&mut worker, index, taps[usize::from(index)]));
        Self { worker, taps, now: START, got: vec![], writer: None }
    }

    /// Lets a writer write, once in so many steps.
    fn writes_every(mut self, steps: u64) -> Self {
        let (writer, hand) = Writer::new();
        self.worker.set_tap_writer(hand(0, std::thread::current()));
        self.worker.set_hands_over(true);
        self.writer = Some((writer, steps));
        self
    }

    fn stats(&self, index: usize) -> &'static VnicSlot {
        self.worker.ports[index].as_ref().unwrap().stats
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        self.stats(1).rx.dropped[reason as usize].get()
    }

    fn waits(&self) -> u32 {
        self.worker.ports[1].as_ref().unwrap().egress.scheduler.backlog_total().frames
    }

    /// Sends a frame of a flow with `payload` bytes, in segments if necessary.
    fn send(&mut self, flow: u16, seq: u32, payload: usize, spec: &Frame) {
        let spec = Frame { ports: [flow, 80], seq, payload: vec![7; payload], ..spec.clone() };
        rustix::io::write(&self.taps[0], &sent(&spec, 0, [0x52, 0x54, 0, 0, 0, 1])).unwrap();
        self.worker.check_kicks();
    }

    /// Passes `time` in steps, and notes received frames.
    fn work(&mut self, time: u64) {
        let end = self.now + time;
        while self.now < end {
            self.now = (self.now + STEP).min(end);
            testing::set_time(self.now);
            for _ in 0..6 {
                self.worker.work();
                match &mut self.writer {
                    Some((writer, steps)) if (self.now / STEP).is_multiple_of(*steps) => {
                        while writer.write_one() {}
                    }
                    _ => {}
                }
            }
            self.receive();
        }
    }

    fn receive(&mut self) {
        let mut bytes = vec![0; 70_000];
        loop {
            let len = match rustix::io::read(&self.taps[1], &mut bytes) {
                Ok(len) => len,
                Err(Errno::AGAIN) => return,
                Err(error) => panic!("{error}"),
            };
            let frame = &bytes[VnetHdr::LEN..len];
            assert_eq!(
                (&frame[..6], &frame[6..12]),
                (&[0x52, 0x54, 0, 0, 0, 1][..], &[0x52, 0x54, 0, 0, 0, 0][..])
            );
            let mut whole = frame.to_vec();
            whole[..6].copy_from_slice(&DST.0);
            whole[6..12].copy_from_slice(&SRC.0);
            // All lengths and checksums are right after cutting and marking.
            let parts = dissect(&whole, bytes[0] & NEEDS_CSUM != 0);
            let headers = parse(&frame[..frame.len().min(192)], frame.len()).unwrap();
            let (l3, l4) = (usize::from(headers.l3_offset), usize::from(headers.l4_offset));
            let ecn = if whole[l3] >> 4 == 6 { whole[l3 + 1] >> 4 & 3 } else { whole[l3 + 1] & 3 };
            let flow = u16::from_be_bytes([frame[l4], frame[l4 + 1]]);
            self.got.push(Got { at: self.now, flow, seq: parts.seq, payload: parts.payload.len(), ecn });
        }
    }

    /// Joins a flow's received bytes: each once and in order.
    fn stream(&self, flow: u16, from: u32) -> usize {
        let mut next = from;
        for got in self.got.iter().filter(|got| got.flow == flow) {
            assert_eq!(got.seq, next, "flow {flow}");
            next += got.payload as u32;
        }
        (next - from) as usize
    }
}

#[test]
fn a_sparse_flow_does_not_wait_behind_super_frames() {
    let mut rig = Rig::new(RATE);
    for n in 0..2 {
        rig.send(1, n * 30 * SIZE as u32, 30 * SIZE, &Frame::tcp4(0));
        rig.send(2, n * 30 * SIZE as u32, 30 * SIZE, &Frame::tcp6(0));
    }
    rig.work(5 * MS);
    for n in 0..5u32 {
        let sent = rig.now;
        rig.send(3, n, 1, &Frame::tcp4(0));
        rig.work(8 * MS);
        let at = rig.got.iter().find(|got| got.flow == 3 && got.seq == n).map(|got| got.at - sent);
        // The part that was leaving: three flows' parts are a segment each, 0.42 ms.
        assert!(at.is_some_and(|wait| wait <= 2 * MS), "{at:?}");
    }
    rig.work(80 * MS);
    assert_eq!((rig.stream(1, 0), rig.stream(2, 0), rig.stream(3, 0)), (60 * SIZE, 60 * SIZE, 5));
    // Those, and the first super-frame of each stream.
    let told = rig.stats(1).sparse_rx.read();
    assert!(told.count() == 7 && told.max() <= 2 * MS, "{told:?}");
    assert!(rig.stats(1).tokens_rx.read().max() > 20 * MS);
    let rx = &rig.stats(1).rx;
    assert_eq!((rx.frames.get(), rx.wire_frames.get()), (9, 125));
    assert_eq!(rx.wire_bytes.get() as usize, 60 * (SIZE + HEADERS) + 60 * (SIZE + HEADERS + 20) + 5 * 55);
    assert_eq!((rx.flows_now.get(), rx.flows_most.get()), (0, 3));
    // Both streams take equal time.
    let upto = |flow| {
        rig.got
            .iter()
            .filter(|got| got.flow == flow && got.at < START + 40 * MS)
            .map(|got| got.payload)
            .sum::<usize>()
    };
    assert!(upto(1).abs_diff(upto(2)) <= 3 * SIZE && upto(1) > 25 * SIZE, "{} {}", upto(1), upto(2));
    assert!(rig.got.iter().all(|got| got.payload <= 2 * SIZE), "parts of a millisecond");
}

/// A flow sends twice the rate for two seconds, another a frame each 20 ms.
fn overloaded(mut rig: Rig, spec: &Frame) -> Rig {
    for tick in 0..500u32 {
        rig.send(1, tick * 20 * SIZE as u32, 20 * SIZE, spec);
        if tick % 5 == 0 {
            rig.send(2, tick / 5, 1, spec);
        }
        rig.work(4 * MS);
    }
    rig.work(100 * MS);
    assert_eq!(rig.waits(), 0);
    rig
}

#[test]
fn a_flow_that_understands_marks_is_marked() {
    for spec in [Frame { ecn: 2, ..Frame::tcp4(0) }, Frame { ecn: 1, ..Frame::tcp6(0) }] {
        let rig = overloaded(Rig::new(RATE), &spec);
        let marked = rig.got.iter().filter(|got| got.ecn == 3).count() as u64;
        assert!(marked > 10, "{marked}");
        assert_eq!(rig.stats(1).rx.marked.get(), marked);
        assert_eq!(rig.dropped(DropReason::Codel), 0);
        assert!(rig.got.iter().all(|got| got.flow == 1 || got.ecn == spec.ecn), "the other flow is not told");
        assert!(rig.dropped(DropReason::FlowCap) > 0, "and it did not react");
        assert_eq!(rig.stream(2, 0), 100, "none of the other is lost");
    }
}

#[test]
fn a_flow_that_does_not_is_dropped_by_the_segment() {
    let rig = overloaded(Rig::new(RATE), &Frame::tcp4(0));
    assert!(rig.got.iter().all(|got| got.ecn == 0));
    assert_eq!(rig.stats(1).rx.marked.get(), 0);
    assert!(rig.dropped(DropReason::Codel) > 10);
    assert_eq!(rig.stream(2, 0), 100);
    // The rate was used: single segments were dropped, no whole super-frames.
    let bytes = rig.stats(1).rx.wire_bytes.get();
    assert!(bytes > 4_850_000 && bytes < 2_500 * 2_100 + 3_000, "{bytes}");
}

#[test]
fn a_change_with_waiting_frames_loses_none_and_keeps_each_flows_order() {
    let fifo = "queueing = \"fifo\"\n";
    let changes = [
        format!("{fifo}{RATE}"),
        RATE.to_string(),
        "rx = { max = \"40mbit\", burst = \"3kB\" }".to_string(),
        format!("{fifo}rx = {{ max = \"10mbit\", burst = \"3kB\" }}"),
        "queueing = { target = \"1ms\", per-host = true }\nrx = { max = \"30mbit\", burst = \"3kB\" }"
            .to_string(),
        String::new(),
    ];
    let mut rig = Rig::new(RATE);
    for flow in 1..5 {
        rig.send(flow, 0, 24 * SIZE, &Frame::tcp4(0));
        rig.send(flow, 24 * SIZE as u32, 700, &Frame::tcp4(0));
    }
    for (n, keys) in changes.iter().enumerate() {
        rig.work(4 * MS);
        assert!(rig.waits() > 0, "change {n} comes while frames wait");
        rig.worker.set_contract(1, contract(keys));
    }
    rig.work(10 * MS);
    for flow in 1..5 {
        assert_eq!(rig.stream(flow, 0), 24 * SIZE + 700);
    }
    assert_eq!(rig.stats(1).rx.frames.get(), 8);
    assert_eq!(rig.stats(1).rx.wire_frames.get(), 4 * 25);
}

#[test]
fn a_frame_that_a_receiver_can_never_take_is_dropped_once() {
    // A broadcast of a vNIC with a deadline is best effort, and waits in its one queue.
    for deadline in [None, Some(MS)] {
        let mut rig = Rig::new(RATE);
        let mut info = rig.worker.infos[0].clone().unwrap();
        info.deadline = deadline;
        info.to.insert(1);
        rig.worker.set_info(0, Some(info));
        rig.worker.set_members(vec![vec![0, 1]]);
        rustix::net::shutdown(&rig.taps[1], rustix::net::Shutdown::Both).unwrap();
        for _ in 0..3 {
            let mut frame = testing::tap_frame(0, 1);
            frame[VnetHdr::LEN..VnetHdr::LEN + 6].fill(0xff);
            rustix::io::write(&rig.taps[0], &frame).unwrap();
        }
        rig.worker.check_kicks();
        for _ in 0..10 {
            rig.worker.work();
        }
        assert_eq!((rig.dropped(DropReason::TapRefused), rig.waits()), (3, 0), "{deadline:?}");
        assert_eq!(rig.worker.ports[0].as_ref().unwrap().link.tx.in_flight(), 0);
    }
}

#[test]
fn parts_that_another_thread_writes_are_the_segments_in_order_and_counted_once() {
    for steps in [1, 7, 20] {
        let mut rig = Rig::new(RATE).writes_every(steps);
        for flow in 1..5 {
            rig.send(flow, 0, 24 * SIZE, &Frame::tcp4(0));
            rig.send(flow, 24 * SIZE as u32, 700, &Frame::tcp4(0));
        }
        rig.work(100 * MS);
        for flow in 1..5 {
            assert_eq!(rig.stream(flow, 0), 24 * SIZE + 700);
        }
        let rx = &rig.stats(1).rx;
        assert_eq!((rx.frames.get(), rx.wire_frames.get()), (8, 4 * 25));
        assert_eq!(rx.wire_bytes.get() as usize, 4 * (25 * HEADERS + 24 * SIZE + 700));
        assert!(rig.got.iter().all(|got| got.payload <= 2 * SIZE), "parts of a millisecond");
        assert_eq!(rig.worker.ports[0].as_ref().unwrap().link.tx.in_flight(), 0, "each has its fate");
    }
}

#[test]
fn another_thread_writes_marks_too() {
    for spec in [Frame { ecn: 2, ..Frame::tcp4(0) }, Frame { ecn: 1, ..Frame::tcp6(0) }] {
        let rig = overloaded(Rig::new(RATE).writes_every(3), &spec);
        let marked = rig.got.iter().filter(|got| got.ecn == 3).count() as u64;
        assert!(marked > 10, "{marked}");
        assert_eq!(rig.stats(1).rx.marked.get(), marked);
        assert!(rig.got.iter().all(|got| got.flow == 1 || got.ecn == spec.ecn), "the other flow is not told");
        assert_eq!(rig.stream(2, 0), 100, "none of the other is lost");
    }
}

/// The writer does not reach it for longer than a link may hold a frame.
#[test]
fn parts_that_another_thread_does_not_write_are_dropped_once() {
    let mut rig = Rig::new(RATE).writes_every(u64::MAX);
    for flow in 1..5 {
        rig.send(flow, 0, 24 * SIZE, &Frame::tcp4(0));
        rig.send(flow, 24 * SIZE as u32, 700, &Frame::tcp4(0));
    }
    rig.work(100 * MS);
    for flow in 1..5 {
        let numbers: Vec<_> = rig.got.iter().filter(|got| got.flow == flow).map(|got| got.seq).collect();
        assert!(numbers.is_sorted_by(|a, b| a < b), "once, and in order: {numbers:?}");
    }
    // The worker writes the others itself.
    let (rx, got, late) = (&rig.stats(1).rx, rig.got.len() as u64, rig.dropped(DropReason::HeldTooLong));
    assert_eq!((rx.wire_frames.get(), got + late), (got, 4 * 25), "{late} of a segment each");
    assert!((4..=8).contains(&late), "{late}: a part of each flow, and no more than the writer may have");
    assert_eq!(rig.worker.ports[0].as_ref().unwrap().link.tx.in_flight(), 0, "each has its fate");
}

#[test]
fn a_frame_that_came_with_a_deadline_is_delivered_once() {
    let mut rig = Rig::new(RATE);
    let without = rig.worker.infos[0].clone().unwrap();
    let mut with = without.clone();
    with.deadline = Some(MS);
    with.to.insert(1);
    rig.worker.set_info(0, Some(with));
    rig.now = START;
    for n in 0..6 {
        rig.send(1, n * SIZE as u32, SIZE, &Frame::tcp4(0));
    }
    rig.worker.ingress(&mut i64::from(1 << 20));
    assert!(rig.waits() > 0, "frames wait for the receiver's rate");
    // Their sender loses its deadline while they wait: they wait by flow from now on.
    rig.worker.set_info(0, Some(without));
    rig.work(20 * MS);
    assert_eq!((rig.stream(1, 0), rig.waits()), (6 * SIZE, 0));
    assert_eq!(rig.stats(1).rx.frames.get(), 6);
    assert_eq!(rig.worker.ports[0].as_ref().unwrap().link.tx.in_flight(), 0);
}
