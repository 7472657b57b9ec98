//! Frames a second through two links and the kernel's loopback, by one thread; by hand:
//! `cargo test --release -p tidegate-switch --lib link::vxlan::tests::speed -- --ignored --nocapture`

use super::*;
use std::time::{Duration, Instant};

#[test]
#[ignore = "prints figures, for a person"]
fn frames_a_second() {
    for (name, payload, size, batch) in [
        ("64 B", 22, None, 64),
        ("64 B, 8 a flush", 22, None, 8),
        ("64 B, 1 a flush", 22, None, 1),
        ("1500 B", 1458, None, 64),
        ("64 KB TCP super-frames", 65_160, Some(1448), 1),
    ] {
        for sending in [1, 4] {
            let (mut a, mut b) = pair(false, sending);
            let spec = if size.is_some() { Spec::tcp4(payload) } else { Spec::udp4(payload) };
            let frames: Vec<_> = (0..16u16)
                .map(|flow| {
                    let spec = Spec { ports: [1000 + flow, 7], ..spec.clone() };
                    let mut sent = if size.is_some() { asking(&spec, size) } else { plain(&spec.build()) };
                    sent.frame.peer = None;
                    sent
                })
                .collect();
            let (began, mut received, mut at, mut taking) = (Instant::now(), 0u64, 0, Duration::ZERO);
            while began.elapsed() < Duration::from_secs(1) {
                for _ in 0..batch {
                    assert_eq!(a.rx.post(&frames[at % 16].frame), Posted::Done);
                    at += 1;
                }
                a.rx.flush();
                let before = Instant::now();
                b.tx.poll(crate::clock::clock());
                b.tx.readiness.is_readable(0, 0, 0);
                while let Taken::New(pending, _) = b.tx.take() {
                    received += 1;
                    b.tx.store.give_back(pending.frame);
                }
                taking += before.elapsed();
            }
            let seconds = began.elapsed().as_secs_f64();
            let bytes = a.rx.counters().bytes as f64 * 8.0 / seconds / 1e9;
            println!(
                "{name:24} {sending} sockets: {:6.3} M frames/s, {bytes:5.2} Gbit/s; lost {}; taking {:.0} ns a frame of {:.0}",
                received as f64 / seconds / 1e6,
                a.rx.counters().frames - received,
                taking.as_nanos() as f64 / received as f64,
                seconds * 1e9 / received as f64,
            );
        }
    }
}
