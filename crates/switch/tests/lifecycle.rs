//! Ports, queues and memory come and go under load: their own frames may be lost, others never.

mod harness;

use harness::*;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use tidegate_evidence::Connection;
use tidegate_frontend::front_end::{FrontEnd, Options};

const LIMIT: &str = "tx = { max = \"30mbit\" }";

struct Scene {
    host: TestSwitch,
    /// The sender that the test changes.
    a: Guest,
    b: Guest,
    c: Guest,
    stream: Stream,
}

impl Scene {
    fn new(workers: usize) -> Self {
        let host = TestSwitch::new(workers);
        let a = host.guest_with(&vnic("a", 1, LIMIT), ring(256));
        let b = host.guest_with(&vnic("b", 2, &format!("{LIMIT}\nqueueing = \"fifo\"")), ring(256));
        let c = host.guest_with(&vnic("c", 3, ""), ring(1024));
        let stream = Stream::new(&b, &c);
        Self { host, a, b, c, stream }
    }

    /// Lets both send for a while. Returns how many frames of `a` arrived.
    fn load(&mut self) -> usize {
        let frame = udp(self.c.mac(), self.a.mac(), &[1; 600]);
        let mut heard = 0;
        for _ in 0..8 {
            self.a.fill(&frame);
            self.stream.send(&mut self.b);
            heard += self.receive();
            std::thread::sleep(Duration::from_micros(500));
        }
        heard
    }

    /// Lets both send until frames of `a` arrive, since the worker may be without a CPU for long.
    fn goes_on(&mut self) {
        let start = Instant::now();
        while self.load() == 0 {
            assert!(start.elapsed() < Duration::from_secs(20), "no frame of a arrives any more");
        }
    }

    fn receive(&mut self) -> usize {
        let mut heard = 0;
        self.c.each(|frame| {
            self.stream.check(frame);
            heard += usize::from(frame[11] == 1);
        });
        heard
    }

    fn finish(mut self) {
        while !self.stream.is_complete() || self.a.front.in_flight(0) > 0 {
            self.receive();
            self.host.until(|| true);
            std::thread::sleep(Duration::from_micros(200));
        }
        let stats = self.host.stats("b");
        assert!(stats.tx.dropped.is_empty(), "{:?}", stats.tx.dropped);
    }

    fn used(&mut self, queue: usize) -> u32 {
        self.a.front.ring(queue).base()
    }
}

#[test]
fn a_stopped_queue_has_nothing_in_flight_when_the_reply_comes() {
    for workers in [1, 2] {
        let mut scene = Scene::new(workers);
        for _ in 0..20 {
            scene.goes_on();
            let base = scene.a.front.stop_queue(1).unwrap();
            assert_eq!(base, scene.used(1), "all that was taken came back before the reply");
            std::thread::sleep(Duration::from_millis(2));
            assert_eq!(base, scene.used(1), "and nothing is touched after it");
            scene.a.front.start_queue(1).unwrap();
            scene.a.front.enable_queue(1, true).unwrap();
        }
        scene.finish();
    }
}

#[test]
fn a_disabled_queue_is_not_read() {
    for workers in [1, 2] {
        let mut scene = Scene::new(workers);
        for _ in 0..20 {
            scene.load();
            scene.a.front.enable_queue(1, false).unwrap();
            let used = scene.used(1);
            scene.receive();
            scene.load();
            assert_eq!(used, scene.used(1));
            scene.a.front.enable_queue(1, true).unwrap();
        }
        scene.finish();
    }
}

#[test]
fn a_receive_queue_stops_and_starts_again() {
    for workers in [1, 2] {
        let mut scene = Scene::new(workers);
        let back = udp(scene.a.mac(), scene.b.mac(), &[3; 300]);
        for _ in 0..20 {
            scene.load();
            let before = scene.a.drain();
            let base = scene.a.front.stop_queue(0).unwrap();
            assert_eq!(base, scene.used(0), "{before}");
            scene.b.send_or_drop(&back);
            scene.a.front.start_queue(0).unwrap();
            scene.a.front.enable_queue(0, true).unwrap();
        }
        let Scene { host, a, b, c, stream } = &mut scene;
        host.until(|| {
            c.each(|frame| stream.check(frame));
            b.send_or_drop(&back);
            a.drain() > 0
        });
    }
}

#[test]
fn memory_is_replaced_under_load() {
    for workers in [1, 2] {
        let mut scene = Scene::new(workers);
        for _ in 0..20 {
            scene.goes_on();
            scene.a.front.share_memory().unwrap();
        }
        scene.finish();
    }
}

#[test]
fn a_guest_disconnects_and_comes_back() {
    for workers in [1, 2] {
        let mut scene = Scene::new(workers);
        for _ in 0..20 {
            scene.goes_on();
            scene.a.front.disconnect();
            scene.receive();
            let host = &scene.host;
            host.until(|| host.port("a").connection == Connection::Waiting);
            scene.a.front.reconnect().unwrap();
        }
        scene.finish();
    }
}

#[test]
fn a_second_front_end_waits_and_a_third_is_refused() {
    let mut scene = Scene::new(1);
    let second = UnixStream::connect(scene.host.socket("a")).unwrap();
    let host = &scene.host;
    host.until(|| host.port("a").heir);
    let third = FrontEnd::connect(scene.host.socket("a"), Options::default());
    assert!(third.is_err());
    host.until(|| host.port("a").refused_connections == 1);
    assert_eq!(host.port("a").connection, Connection::Up);
    drop(second);
    host.until(|| !host.port("a").heir);
    scene.receive();
    scene.goes_on();
    scene.finish();
}

#[test]
fn ports_are_removed_and_made_under_load() {
    for workers in [1, 2] {
        let mut scene = Scene::new(workers);
        let mut d = scene.host.guest(&vnic("d", 4, LIMIT));
        let to_a = udp(scene.a.mac(), d.mac(), &[9; 700]);
        for _ in 0..10 {
            scene.load();
            d.fill(&to_a);
            scene.host.switch.remove_port("a").unwrap();
            assert!(scene.host.stats.vnic("a").is_none());
            d.fill(&to_a);
            scene.receive();
            scene.a = scene.host.guest_with(&vnic("a", 1, LIMIT), ring(256));
        }
        let Scene { host, c, stream, .. } = &mut scene;
        host.until(|| {
            c.each(|frame| stream.check(frame));
            d.front.in_flight(0) == 0
        });
        scene.finish();
    }
}

#[test]
fn hundreds_of_ports_come_and_go() {
    let mut scene = Scene::new(2);
    let name = |n: u32| format!("p{n}");
    for n in 0..200u32 {
        let toml = vnic(&name(n), 0, LIMIT).replace(":00:00:00", &format!(":01:00:{n:02x}"));
        scene.host.add(&contract(&toml));
        if n % 10 == 0 {
            scene.load();
        }
        if n % 3 == 0 {
            scene.host.switch.remove_port(&name(n)).unwrap();
        }
    }
    assert_eq!(scene.host.switch.ports().len(), 3 + 133);
    for n in (0..200).filter(|n| n % 3 != 0) {
        scene.host.switch.remove_port(&name(n)).unwrap();
        scene.receive();
    }
    assert_eq!(scene.host.switch.ports().len(), 3);
    scene.finish();
}

#[test]
fn a_port_moves_to_another_segment_and_back() {
    for workers in [1, 2] {
        let mut scene = Scene::new(workers);
        let elsewhere = |name, n| vnic(name, n, LIMIT).replace("segment = 7", "segment = 8");
        let mut x = scene.host.guest(&elsewhere("x", 5));
        let to_x = udp(x.mac(), scene.a.mac(), b"only in segment 8");
        for _ in 0..10 {
            scene.load();
            scene.host.change(&elsewhere("a", 1));
            scene.receive();
            for _ in 0..3 {
                assert_eq!(scene.load(), 0, "c is not in segment 8");
            }
            let Scene { host, a, .. } = &mut scene;
            host.until(|| a.front.in_flight(0) == 0);
            a.send(&to_x);
            assert_eq!(x.receive(), to_x);
            host.change(&vnic("a", 1, LIMIT));
            a.send(&to_x);
            host.until(|| a.front.in_flight(0) == 0);
            assert_eq!(x.drain(), 0, "x is not in segment 7");
        }
        scene.finish();
    }
}

#[test]
fn a_frame_that_waits_does_not_reach_its_receivers_successor() {
    let deadline = "deadline = \"9s\"\nto = [\"b\"]";
    for (segment, more) in [(8, ""), (7, ""), (8, deadline), (7, deadline)] {
        let host = TestSwitch::new(1);
        let slow = format!("tx = {{ max = \"100kbit\", burst = \"2kB\" }}\n{more}");
        let mut a = host.guest(&vnic("a", 1, &slow));
        let mut b = host.guest(&vnic("b", 2, ""));
        let frame = udp(b.mac(), a.mac(), &[1; 1400]);
        a.send(&frame);
        a.send(&frame);
        b.receive();
        host.until(|| host.stats("a").throttled);
        let index = host.port("b").index;
        host.switch.remove_port("b").unwrap();
        let successor = vnic("other", 3, "").replace("segment = 7", &format!("segment = {segment}"));
        let mut other = host.guest(&successor);
        assert_eq!(host.port("other").index, index);
        host.until(|| a.front.in_flight(0) == 0);
        assert_eq!(other.drain(), 0, "a frame to b reached its successor in segment {segment}");
        assert_eq!(host.stats("a").tx.dropped.get("no_receiver"), Some(&1), "segment {segment}");
    }
}

#[test]
fn flows_are_spread_over_queues_and_each_stays_in_order() {
    let host = TestSwitch::new(1);
    let pairs = Options { queue_pairs: 2, ..ring(1024) };
    let mut a = host.guest_with(&vnic("a", 1, "queues = 2"), pairs.clone());
    let mut b = host.guest_with(&vnic("b", 2, "queues = 2"), pairs);
    let mut queue_of = [None; 64];
    let mut next = [0u8; 64];
    for round in 0..20u8 {
        for flow in 0..64u8 {
            let mut frame = udp(b.mac(), a.mac(), &[flow, round]);
            frame[34..36].copy_from_slice(&(20_000 + u16::from(flow)).to_be_bytes());
            let bytes = with_header(12, [0; 12], &frame);
            assert!(a.front.send(usize::from(flow % 2), &bytes));
        }
        let mut got = 0;
        host.until(|| {
            for pair in 0..2 {
                while let Some(bytes) = b.front.receive(pair) {
                    let [flow, number] = [bytes[12 + 42], bytes[12 + 43]];
                    assert_eq!(*queue_of[usize::from(flow)].get_or_insert(pair), pair, "flow {flow}");
                    assert_eq!(next[usize::from(flow)], number, "flow {flow} out of order");
                    next[usize::from(flow)] += 1;
                    got += 1;
                }
            }
            got == 64
        });
    }
    let first = queue_of.iter().filter(|queue| **queue == Some(0)).count();
    assert!((16..=48).contains(&first), "{first} of 64 flows on queue 0");

    b.front.enable_queue(0, false).unwrap();
    for flow in 0..64u8 {
        let mut frame = udp(b.mac(), a.mac(), &[flow]);
        frame[34..36].copy_from_slice(&(20_000 + u16::from(flow)).to_be_bytes());
        a.send(&frame);
    }
    let mut got = 0;
    host.until(|| {
        got += std::iter::from_fn(|| b.front.receive(1)).count();
        got == 64
    });
}
