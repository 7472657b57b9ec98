//! Frames a second of CPU time through two links and the kernel's loopback, by one thread: both hosts' work. By
//! hand: `cargo test --release -p tidegate-switch --features measure --lib link::vxlan::tests::speed -- --nocapture`

use super::*;
use crate::link::reading::Reads;
use crate::vhost_user::notifier::cpu_time;

/// What is sent: name, payload, segment size of a super-frame, frames a flush.
const CASES: [(&str, usize, Option<u16>, usize); 5] = [
    ("64 B, 64 a flush", 22, None, 64),
    ("64 B, 8 a flush", 22, None, 8),
    ("64 B, 1 a flush", 22, None, 1),
    ("1500 B, 64 a flush", 1458, None, 64),
    ("64 KB super-frames", 65_160, Some(1448), 1),
];
/// CPU time of each case (ns).
const TIME: u64 = 1_000_000_000;

/// A stamp's share of both hosts' work: making it, and reading it.
#[test]
fn ns_a_stamp() {
    use crate::link::vxlan::pair_counts::PairCounts;
    use crate::link::vxlan::pairs::*;
    use tidegate_uplink::stamp::{Key, KeyNumber, Keys, LEN};
    const ROUNDS: u32 = 2_000_000;
    let (key, counts) = (Key::new([7; 16]), Arc::<PairCounts>::default());
    let pair = PairKey::new(SEGMENT.0, testing::SRC, testing::DST);
    let mut outgoing =
        OutgoingPairs::new(vec![Outgoing::new(pair, 500, (KeyNumber::Even, key), counts.clone())]);
    let address = AddressKey::new(SEGMENT.0, testing::SRC);
    let peer = PeerIndex::MIN;
    let registered =
        vec![Registered { address, peer, keys: Keys { even: Some(key), odd: None }, envelope: None }];
    let pair_back = PairKey::new(SEGMENT.0, testing::DST, testing::SRC);
    let pairs = vec![Incoming::new(pair_back, peer, TimeShares::default(), counts)];
    let mut incoming = IncomingPairs::new(registered, pairs, Arc::default());
    for payload in [22, 1458] {
        let mut frame = Spec::udp4(payload).build();
        frame.resize(frame.len() + LEN, 0);
        let (mut making, mut reading) = (0, 0);
        for _ in 0..20 {
            let began = cpu_time();
            for round in 0..ROUNDS / 20 {
                outgoing.find(pair).unwrap().stamp(&mut frame, u64::from(round), u64::from(round));
                std::hint::black_box(&mut frame);
            }
            making += cpu_time() - began;
            let began = cpu_time();
            for _ in 0..ROUNDS / 20 {
                _ = std::hint::black_box(incoming.open(
                    SEGMENT.0,
                    peer,
                    std::hint::black_box(&frame),
                    1,
                    || None,
                ));
            }
            reading += cpu_time() - began;
        }
        let each = |ns: u64| ns as f64 / f64::from(ROUNDS);
        println!(
            "stamp of {payload} B of payload: made in {:.0} ns, read in {:.0} ns, {:.0} ns in all",
            each(making),
            each(reading),
            each(making + reading)
        );
    }
}

#[test]
fn frames_a_second() {
    for (case, sending) in CASES.into_iter().flat_map(|case| [(case, 1), (case, 4)]) {
        let (name, payload, size, batch) = case;
        let (mut a, mut b) = pair(false, sending);
        let flow = |flow: u16| {
            let spec = if size.is_some() { Spec::tcp4(payload) } else { Spec::udp4(payload) };
            let spec = Spec { ports: [1000 + flow, 7], ..spec };
            if size.is_some() { asking(&spec, size) } else { plain(&spec.build()) }
        };
        let frames: Vec<_> = (0..16).map(flow).collect();
        let (began, mut received, mut at, mut taking) = (cpu_time(), 0u64, 0, 0);
        while cpu_time() - began < TIME {
            for _ in 0..batch {
                assert_eq!(a.rx.post(&frames[at % 16].frame), Posted::Done);
                at += 1;
            }
            a.rx.flush();
            let before = cpu_time();
            b.tx.poll(crate::clock::clock());
            b.tx.readiness.note_readable(0, 0, 0);
            while let Taken::New(pending, _) = b.tx.take() {
                received += 1;
                b.tx.store.give_back(pending.frame);
            }
            taking += cpu_time() - before;
        }
        let each = |ns: u64| ns as f64 / received as f64;
        println!(
            "{name:20} {sending} sockets: {:6.3} M frames/s, {:5.2} Gbit/s; lost {}; taking {:.0} ns a frame of {:.0}",
            1e3 / each(TIME),
            a.rx.counters().bytes as f64 * 8.0 / TIME as f64,
            a.rx.counters().frames - received,
            each(taking),
            each(TIME),
        );
    }
}

/// Frames a second of CPU time into a queue pair of a device in memory: the sending host's work, with the device's calls
/// and without what the device does afterwards.
#[test]
fn frames_a_second_by_rdma() {
    for (name, payload, size, batch) in CASES.into_iter().chain([("4000 B, 16 a flush", 3958, None, 16)]) {
        let mut scene = super::by_rdma::scene();
        let device = scene.sides[0].device.clone();
        let spec = if size.is_some() { Spec::tcp4(payload) } else { Spec::udp4(payload) };
        let sent = if size.is_some() { asking(&spec, size) } else { plain(&spec.build()) };
        let (mut frames, mut took) = (0u64, 0);
        while took < TIME / 2 {
            device.pause();
            let began = cpu_time();
            for _ in 0..batch {
                assert_eq!(scene.a.rx.post(&sent.frame), Posted::Done);
            }
            scene.a.rx.flush();
            took += cpu_time() - began;
            frames += batch as u64;
            device.resume();
            let began = cpu_time();
            scene.a.rx.flush();
            took += cpu_time() - began;
            while scene.b.tx.rdma.as_deref_mut().unwrap().look() {
                while scene.b.tx.rdma.as_deref_mut().unwrap().take_next().is_some() {}
            }
        }
        println!(
            "{name:20} by RDMA: {:6.3} M frames/s, {:.0} ns a frame",
            frames as f64 * 1e3 / took as f64,
            took as f64 / frames as f64
        );
    }
}
