//! A vNIC that floods its own limit, or its receiver's: how long another flow of the same vNIC waits.
//!
//! ```text
//!  a ─ flood, probe ─ tx.max ─┬─ rx.max ─ b
//! ```
//!
//! FIFO and queueing by flow are measured in turns on the same machine. `neighbours.rs` tests the effect on
//! other vNICs.

mod harness;

use harness::floods::Flood;
use harness::rate::{Limit, keeps_rate};
use harness::*;
use std::time::{Duration, Instant};

/// DSCP that marks a probe.
const PROBE: u8 = 10;
const PROBES: usize = 5;
/// A probe that takes longer is lost, and another one is sent.
const LOST: Duration = Duration::from_millis(500);
const AT_A_TIME: usize = 64;

fn probe(to: [u8; 6], from: [u8; 6]) -> Vec<u8> {
    let mut frame = udp_dscp(to, from, &[9; 64], PROBE);
    frame[34..36].copy_from_slice(&[0xff; 2]);
    frame
}

struct Scene {
    host: TestSwitch,
    flood: Flood,
    a: Guest,
    b: Guest,
    /// Most frames of the flood in the ring.
    most: usize,
    sent: u32,
    lost: usize,
}

impl Scene {
    fn new(flood: Flood, size: u16, tx: &str, rx: &str) -> Self {
        let host = TestSwitch::new(1);
        let a = host.guest_with(&vnic("a", 1, tx), flood.options(size));
        let b = host.guest_with(&vnic("b", 2, rx), ring(1024));
        let most = usize::from(size) / if flood == Flood::SuperFrames { 16 } else { 4 };
        Self { host, flood, a, b, most, sent: 0, lost: 0 }
    }

    /// Keeps the flood going and receives. Returns whether a probe arrived.
    fn turn(&mut self) -> bool {
        let header_len = self.a.front.header_len();
        let room = self.most.saturating_sub(self.a.front.in_flight(0));
        for _ in 0..room.min(AT_A_TIME) {
            self.sent += 1;
            let (header, frame) = self.flood.frame(self.sent, self.b.mac(), self.a.mac());
            assert!(self.a.front.push(0, &with_header(header_len, header, &frame)));
        }
        self.a.front.flush(0);
        let (flood, mut came) = (self.flood, false);
        self.b.each(|frame| match frame[15] >> 2 == PROBE {
            true => came = true,
            false => flood.check(frame),
        });
        came
    }

    fn flood_for(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.turn();
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Returns the lower quartile of the probes' delays, since a busy machine only adds delay.
    fn wait(&mut self) -> Duration {
        self.flood_for(Duration::from_millis(100));
        let mut all: Vec<_> = (0..PROBES)
            .map(|_| {
                let (start, mut last) = (Instant::now(), None::<Instant>);
                while !self.turn() {
                    if last.is_none_or(|last| last.elapsed() > LOST) {
                        self.lost += usize::from(last.replace(Instant::now()).is_some());
                        self.a.send(&probe(self.b.mac(), self.a.mac()));
                    }
                    assert!(start.elapsed() < PATIENCE, "it never comes");
                    std::thread::sleep(Duration::from_micros(100));
                }
                start.elapsed()
            })
            .collect();
        all.sort_unstable();
        all[all.len() / 4]
    }

    fn finish(mut self) {
        self.most = 0;
        let start = Instant::now();
        while self.a.front.in_flight(0) > 0 {
            self.turn();
            assert!(start.elapsed() < PATIENCE, "{} are not given back", self.a.front.in_flight(0));
        }
        let base = self.a.front.stop_queue(1).unwrap();
        assert_eq!(base, self.a.front.ring(1).base());
        // No other guest sends: each frame is counted once, as sent or as dropped.
        let tx = self.host.stats("a").tx;
        let dropped: u64 = tx.dropped.values().sum();
        assert!(tx.frames + dropped >= u64::from(self.sent), "{tx:?} of {}", self.sent);
    }
}

/// Returns the largest allowed ratio of the waits. A probe overtakes the flood, unless the flood consists
/// of flows of one small frame each.
fn most(flood: Flood) -> f64 {
    if flood == Flood::ManyFlows { 1.5 } else { 0.5 }
}

fn compared(flood: Flood, size: u16, limits: impl Fn(&str) -> [String; 2]) {
    measured(&format!("{flood:?}, {size} entries: by flow of in one queue"), 0.0..=most(flood), || {
        let [fifo, flows] = ["fifo", "flows"].map(|queueing| {
            let [tx, rx] = limits(queueing);
            let mut scene = Scene::new(flood, size, &tx, &rx);
            let wait = scene.wait();
            if queueing == "flows" {
                assert_eq!(scene.lost, 0, "probes");
            }
            println!("{flood:?}, {size}, {queueing}: {wait:?}, {} probes lost", scene.lost);
            scene.finish();
            wait
        });
        flows.as_secs_f64() / fifo.as_secs_f64()
    });
}

fn limit(way: &str, flood: Flood, queueing: &str) -> String {
    let mbit = match flood {
        Flood::ManyFlows => 3,
        Flood::SuperFrames => 100,
        _ => 20,
    };
    format!("{way} = {{ max = \"{mbit}mbit\", burst = \"20kB\" }}\nqueueing = \"{queueing}\"")
}

#[test]
fn floods_have_a_limit_of_their_own() {
    for flood in Flood::ALL {
        for size in [64, 1024] {
            compared(flood, size, |queueing| [limit("tx", flood, queueing), String::new()]);
        }
    }
}

#[test]
fn floods_of_a_receivers_limit() {
    for flood in Flood::ALL {
        compared(flood, 256, |queueing| [String::new(), limit("rx", flood, queueing)]);
    }
}

#[test]
fn a_receivers_limit_that_changes_under_a_flood_holds() {
    let limit = |mbit: u64, queueing: &str| {
        vnic("b", 2, &format!("rx = {{ max = \"{mbit}mbit\", burst = \"20kB\" }}\nqueueing = \"{queueing}\""))
    };
    let mut scene = Scene::new(Flood::OneFlow, 256, "", "");
    for (mbit, queueing) in [(20, "flows"), (60, "flows"), (60, "fifo"), (10, "flows"), (40, "fifo")] {
        scene.host.change(&limit(mbit, queueing));
        scene.turn();
        let mut counted = scene.host.stats("b").rx.wire_bytes;
        let limit = Limit { rate: mbit * 1_000_000, burst: 20_000, frame: 1442 };
        keeps_rate(&format!("{mbit} Mbit/s, {queueing}"), limit, |arrivals| {
            let end = Instant::now() + Duration::from_millis(400);
            while Instant::now() < end {
                arrivals.look(|| {
                    scene.turn();
                    let before = std::mem::replace(&mut counted, scene.host.stats("b").rx.wire_bytes);
                    counted - before
                });
                std::thread::sleep(Duration::from_micros(300));
            }
        });
    }
    scene.finish();
}
