//! A guest above its own limit, with a flood and a flow that sends little: how long the second flow waits.
//!
//! FIFO and queueing by flow are measured in turns on the same machine; no test checks an absolute time.

mod harness;

use harness::rate::{Limit, keeps_rate};
use harness::*;
use std::time::{Duration, Instant};
use tidegate_frontend::front_end::{IN_ORDER, Options};

/// Payloads of the flood's frames and of the small flow's (bytes).
const LONG: usize = 1400;
const SHORT: usize = 64;

fn limit(mbit: u32, queueing: &str) -> String {
    vnic("a", 1, &format!("tx = {{ max = \"{mbit}mbit\", burst = \"20kB\" }}\nqueueing = \"{queueing}\""))
}

fn of_flow(from: &Guest, to: &Guest, flow: u8, number: u32, len: usize) -> Vec<u8> {
    let mut payload = vec![flow; len];
    payload[..4].copy_from_slice(&number.to_be_bytes());
    let mut frame = udp(to.mac(), from.mac(), &payload);
    frame[35] = flow;
    frame
}

struct Scene {
    host: TestSwitch,
    a: Guest,
    b: Guest,
    /// Most frames of the flood in the ring.
    most: usize,
    sent: u32,
    /// Last number received of each of the two flows.
    seen: [Option<u32>; 2],
}

impl Scene {
    fn new(contract: &str, options: Options) -> Self {
        let most = usize::from(options.queue_size) / 4;
        let host = TestSwitch::new(1);
        let a = host.guest_with(contract, options);
        let b = host.guest_with(&vnic("b", 2, ""), ring(1024));
        Self { host, a, b, most, sent: 0, seen: [None; 2] }
    }

    /// Keeps the flood in the ring, receives, and checks each flow's order. Returns when a frame of the
    /// small flow arrived.
    fn flood(&mut self) -> Option<Instant> {
        let header_len = self.a.front.header_len();
        while self.a.front.in_flight(0) < self.most {
            self.sent += 1;
            let frame = of_flow(&self.a, &self.b, 0, self.sent, LONG);
            assert!(self.a.front.push(0, &with_header(header_len, [0; 12], &frame)));
        }
        self.a.front.flush(0);
        let (seen, mut came) = (&mut self.seen, None);
        self.b.each(|frame| {
            let (flow, number) = (frame[35], u32::from_be_bytes(frame[42..46].try_into().unwrap()));
            let last = seen[usize::from(flow)].replace(number);
            assert!(last < Some(number), "flow {flow}: {number} after {last:?}");
            if flow == 1 {
                came = Some(Instant::now());
            }
        });
        came
    }

    fn flood_for(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.flood();
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Returns the median delay of 15 frames of the small flow.
    fn wait(&mut self) -> Duration {
        self.flood_for(Duration::from_millis(100));
        let mut all: Vec<_> = (0..15)
            .map(|_| {
                self.sent += 1;
                let start = Instant::now();
                let frame = of_flow(&self.a, &self.b, 1, self.sent, SHORT);
                self.a.send(&frame);
                loop {
                    if let Some(came) = self.flood() {
                        break came - start;
                    }
                    assert!(start.elapsed() < PATIENCE, "it never comes");
                }
            })
            .collect();
        all.sort_unstable();
        all[all.len() / 2]
    }
}

#[test]
fn a_flow_that_sends_little_goes_past_a_flood() {
    for (mbit, most) in [(5, 0.125), (20, 0.125), (200, 0.5)] {
        measured(&format!("by flow of in one queue, {mbit} Mbit/s"), 0.0..=most, || {
            let [fifo, flows] = ["fifo", "flows"].map(|queueing| {
                let mut scene = Scene::new(&limit(mbit, queueing), ring(256));
                scene.wait()
            });
            flows.as_secs_f64() / fifo.as_secs_f64()
        });
    }
}

#[test]
fn rings_of_all_sizes_have_flows() {
    for size in [64, 128, 512, 1024] {
        for features in [0, IN_ORDER] {
            let options = || Options { features: Options::default().features | features, ..ring(size) };
            measured(&format!("by flow of in one queue, {size} entries"), 0.0..=0.33, || {
                let [fifo, flows] = ["fifo", "flows"].map(|queueing| {
                    let mut scene = Scene::new(&limit(20, queueing), options());
                    scene.wait()
                });
                flows.as_secs_f64() / fifo.as_secs_f64()
            });
        }
    }
}

/// The flood does not react to losses: CoDel drops its frames, and the rate is used in full.
#[test]
fn a_limit_that_changes_under_a_flood_holds() {
    let mut scene = Scene::new(&limit(10, "flows"), ring(1024));
    let mut counted;
    for (mbit, queueing) in [(10, "flows"), (40, "flows"), (40, "fifo"), (5, "flows"), (80, "flows")] {
        scene.host.change(&limit(mbit, queueing));
        scene.flood();
        counted = scene.host.stats("b").rx.wire_bytes;
        let limit = Limit { rate: u64::from(mbit) * 1_000_000, burst: 20_000, frame: 1442 };
        keeps_rate(&format!("{mbit} Mbit/s, {queueing}"), limit, |arrivals| {
            let end = Instant::now() + Duration::from_millis(700);
            while Instant::now() < end {
                arrivals.look(|| {
                    scene.flood();
                    let before = std::mem::replace(&mut counted, scene.host.stats("b").rx.wire_bytes);
                    counted - before
                });
                std::thread::sleep(Duration::from_micros(300));
            }
        });
    }
    let dropped = scene.host.stats("a").tx.dropped;
    assert!(dropped.keys().all(|reason| reason == "codel"), "{dropped:?}");
    assert!(dropped.values().sum::<u64>() > 0);
}

/// Queues stop and start while frames wait, some of them overtaken by others.
#[test]
fn a_flood_goes_on_where_its_ring_stopped() {
    let mut scene = Scene::new(&limit(20, "flows"), ring(256));
    for _ in 0..20 {
        scene.flood_for(Duration::from_millis(20));
        let frame = of_flow(&scene.a, &scene.b, 1, scene.sent, SHORT);
        scene.sent += 1;
        scene.a.send_or_drop(&frame);
        scene.flood_for(Duration::from_millis(3));
        let base = scene.a.front.stop_queue(1).unwrap();
        assert_eq!(base, scene.a.front.ring(1).base(), "all that was taken came back before the reply");
        scene.a.front.start_queue(1).unwrap();
        scene.a.front.enable_queue(1, true).unwrap();
    }
    let (seen, start) = (scene.seen[0], Instant::now());
    while scene.seen[0] == seen {
        scene.flood();
        assert!(start.elapsed() < PATIENCE, "nothing comes any more");
    }
    scene.host.until(|| {
        scene.b.drain();
        scene.a.front.in_flight(0) == 0
    });
}
