//! A second switch continues while frames wait for a sender's or a receiver's limit, by flow, some
//! overtaken by others, super-frames sent in part.
//!
//! ```text
//!  a ─ flood, a small flow ─ tx.max │ rx.max ─▶ b      each segment once, in its flow's order; each frame counted once
//!  c ─ numbered frames ──────────────────────▶ d      none lost
//! ```

mod harness;

use harness::frames::{Kind, SENDER};
use harness::handover::{control, restore, until, upgrade};
use harness::*;
use std::time::{Duration, Instant};
use tidegate_evidence::Connection;
use tidegate_frontend::front_end::Options;
use tidegate_switch::server::Switch;
use tidegate_switch::stats::Reader;

const TCP: Kind = Kind { v6: false, tcp: true };
const SEGMENT: usize = 1400;
const BULK: u8 = 0;
const SPARSE: u8 = 1;

struct Scene {
    a: Guest,
    b: Guest,
    c: Guest,
    d: Guest,
    /// Segments of a flood frame, and the most of these frames in the ring.
    segments: usize,
    most: usize,
    /// Frames and segments sent.
    sent: (u32, usize),
    received: usize,
    /// Whether a flood frame arrived after a small frame that was sent later.
    is_overtaken: bool,
    /// Number and segment of the last frame received, of each flow.
    last: [(u32, u32); 2],
    neighbour: Stream,
}

impl Scene {
    fn send(&mut self, flow: u8, segments: usize) {
        self.sent = (self.sent.0 + 1, self.sent.1 + segments);
        let number = self.sent.0;
        let segment = |n: usize| {
            let mut bytes = vec![7; SEGMENT];
            bytes[..4].copy_from_slice(&number.to_be_bytes());
            bytes[4..8].copy_from_slice(&(n as u32).to_be_bytes());
            bytes
        };
        let mut payload: Vec<u8> = (0..segments).flat_map(segment).collect();
        if flow == SPARSE {
            payload.truncate(64);
        }
        let (header, mut frame) = TCP.frame(self.b.mac(), self.a.mac(), &payload, SEGMENT as u16);
        frame[35] = flow;
        let bytes = with_header(self.a.front.header_len(), header.bytes(TCP.headers() as u16), &frame);
        assert!(self.a.front.push(0, &bytes));
    }

    fn receive(&mut self) {
        let (last, received, is_overtaken) = (&mut self.last, &mut self.received, &mut self.is_overtaken);
        self.b.each(|frame| {
            let (_, payload) = TCP.complete(frame);
            let word = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().unwrap());
            let now = (word(0), word(4));
            let before = std::mem::replace(&mut last[usize::from(frame[35])], now);
            assert!(before < now, "flow {}: {now:?} after {before:?}", frame[35]);
            *received += 1;
            *is_overtaken |= now.0 < last[usize::from(SPARSE)].0;
        });
        let neighbour = &mut self.neighbour;
        self.d.each(|frame| neighbour.check(frame));
    }

    fn turn(&mut self) {
        while self.a.front.in_flight(0) < self.most {
            self.send(BULK, self.segments);
        }
        self.a.front.flush(0);
        self.neighbour.send(&mut self.c);
        self.receive();
        std::thread::sleep(Duration::from_micros(200));
    }

    fn flood_for(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.turn();
        }
    }

    fn finish(&mut self) {
        let end = Instant::now() + PATIENCE;
        while self.a.front.in_flight(0) > 0 || !self.neighbour.is_complete() {
            self.receive();
            assert!(Instant::now() < end, "{} are not given back", self.a.front.in_flight(0));
        }
        self.receive();
    }
}

fn goes_on(limits: [&str; 2], segments: usize, replaced: bool) {
    let what = format!("{limits:?}, {segments} segments, replaced {replaced}");
    let host = TestSwitch::new(1);
    let path = control(&host);
    let contracts = [("a", 1, limits[0]), ("b", 2, limits[1]), ("c", 3, ""), ("d", 4, "")]
        .map(|(name, n, keys)| vnic(name, n, keys));
    let sender =
        Options { features: Options::default().features | SENDER, buffer_size: 1 << 16, ..ring(256) };
    let [a, b, c, d] = [sender, ring(1024), ring(256), ring(1024)];
    let [a, b, c, d] =
        [(0, a), (1, b), (2, c), (3, d)].map(|(n, options)| host.guest_with(&contracts[n], options));
    let neighbour = Stream::new(&c, &d);
    let most = 100 / segments.min(4);
    let mut scene = Scene {
        a,
        b,
        c,
        d,
        segments,
        most,
        sent: (0, 0),
        received: 0,
        is_overtaken: false,
        last: [(0, 0); 2],
        neighbour,
    };
    // Floods until the burst is used up.
    scene.flood_for(Duration::from_millis(60));
    // A receiver's limit holds one or two super-frames, and drops the others before they are overtaken.
    let few = limits[0].is_empty() && segments > 1;
    for _ in 0..if few { 5 } else { 50 } {
        if !scene.is_overtaken {
            scene.send(SPARSE, 1);
            scene.flood_for(Duration::from_millis(10));
        }
    }
    assert!(scene.is_overtaken || few, "{what}: nothing waits");

    let next = Switch::start(1, &[], None).unwrap();
    let stats = Reader::open(next.region.file()).unwrap();
    if replaced {
        upgrade(&next, &path);
    } else {
        restore(&next, &path, &contracts);
    }
    until(|| next.ports().iter().all(|port| port.connection == Connection::Up));
    let received = scene.received;
    scene.flood_for(Duration::from_millis(60));
    assert!(scene.received > received, "{what}: it does not go on");
    scene.finish();

    let (tx, rx) = (stats.vnic("a").unwrap().tx, stats.vnic("b").unwrap().rx);
    let dropped: u64 = tx.dropped.values().sum();
    until(|| {
        scene.receive();
        scene.received as u64 >= rx.wire_frames
    });
    println!("{what}: {:?} sent, {} received, tx {tx:?}, rx {rx:?}", scene.sent, scene.received);
    assert_eq!(rx.wire_frames, scene.received as u64, "{what}: segments");
    // A frame that was sent in part may count as sent, and its rest as dropped.
    let (lost, told) = (scene.sent.1 - scene.received, dropped as usize);
    if segments == 1 {
        assert_eq!(lost, told, "{what}: each that was lost is counted once");
    } else {
        assert!(told.min(lost) > 0 && lost <= told * segments, "{what}: {lost} lost, {told} counted");
    }
    assert!(tx.frames <= u64::from(scene.sent.0), "{what}: counted twice");
    let base = scene.a.front.stop_queue(1).unwrap();
    assert_eq!(base, scene.a.front.ring(1).base(), "{what}");
}

#[test]
fn frames_that_wait_for_a_rate_are_sent_or_counted_once() {
    let tx = ["tx = { max = \"50mbit\", burst = \"4kB\" }", ""];
    let rx = ["", "rx = { max = \"50mbit\", burst = \"4kB\" }"];
    for limits in [tx, rx] {
        for segments in [1, 40] {
            for replaced in [false, true] {
                goes_on(limits, segments, replaced);
            }
        }
    }
}
