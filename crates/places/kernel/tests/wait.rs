//! How long frames waited, as the eBPF programs measure it, against what tokens allow: a frame cannot leave sooner, and cannot
//! have waited longer than the whole took.

mod netns;

use netns::*;
use std::net::UdpSocket;
use std::time::{Duration, Instant};
use tidegate_contract::Bytes;
use tidegate_place_kernel::ebpf::{ArrivalSource, Meter, Queue, Waits};
use tidegate_place_kernel::tc::{Limit, Shaping};

const RATE: f64 = 1e6;
const BURST: u64 = 4_000;
const FRAME: u64 = 1_042;
const FRAMES: u64 = 60;

/// Of these, so many are measured at least: now and then the kernel calls no program for some frames in a row.
const MEASURED: u64 = 40;

/// 8 Mbit/s, with a burst of less than four frames.
fn slow() -> Limit {
    Limit::new("8mbit".parse().unwrap(), Bytes::new(BURST), None, 1518).unwrap()
}

/// What tokens allow: how long frame `n` of a burst waits at least, ns.
fn at_least(n: u64) -> f64 {
    // It goes when the frames before it left something.
    ((n * FRAME) as f64 - BURST as f64).max(0.0) / RATE * 1e9
}

fn check(waits: &Waits, sending: Duration, took: Duration) {
    let measured = waits.buckets.iter().sum::<u64>();
    assert!((MEASURED..=FRAMES).contains(&measured), "each frame once: {measured}");
    let (sending, took) = (sending.as_nanos() as f64, took.as_nanos() as f64);
    // Tokens come while frames are sent, for a sender that is owned up too. 2 %: from when the frame was
    // sent to when it was in the queue.
    let longest = 0.98 * at_least(measured - 1) - sending;
    assert!(waits.max as f64 >= longest && waits.max as f64 <= took, "{longest} {took} {}", waits.max);
    let throttled = waits.throttled_ns as f64;
    assert!(
        throttled >= longest && throttled <= took,
        "{longest} {took} {throttled} max {} sum {} {:?}",
        waits.max,
        waits.sum,
        waits
            .buckets
            .iter()
            .enumerate()
            .filter(|(_, n)| **n > 0)
            .map(|(i, n)| (lower(i as u64), *n))
            .collect::<Vec<_>>()
    );
    let sum: f64 = (0..measured).map(at_least).sum();
    assert!(waits.sum as f64 >= 0.98 * sum - measured as f64 * sending, "{sum} {}", waits.sum);
    // The buckets hold what they say: their ends enclose the sum.
    let ends = |upper: u64| -> u64 {
        waits.buckets.iter().enumerate().map(|(i, n)| n * (lower(i as u64 + upper) - upper)).sum()
    };
    assert!((ends(0)..=ends(1)).contains(&waits.sum), "{} {} {}", ends(0), waits.sum, ends(1));
}

/// The smallest value of a bucket.
fn lower(bucket: u64) -> u64 {
    if bucket < 64 { bucket } else { (32 + bucket % 32) << (bucket / 32 - 1) }
}

#[track_caller]
fn meter() -> Option<Meter> {
    tidegate_testkit::unless_skipped(Meter::load())
}

/// Sends all frames; how long that took.
fn send(from: &UdpSocket, to: &str) -> Duration {
    let begin = Instant::now();
    let payload = [0; FRAME as usize - 42];
    for _ in 0..FRAMES {
        from.send_to(&payload, (to, 9)).unwrap();
    }
    begin.elapsed()
}

#[test]
fn measured_waits_equal_the_waits_for_tokens() {
    in_namespace("measured_waits_equal_the_waits_for_tokens", || {
        let Some(meter) = meter() else { return };
        let guest = Guest::new("vnet0", 1);
        // IPv6 has frames of its own to send.
        let quiet = || run("sysctl", "-qw net.ipv6.conf.all.disable_ipv6=1");
        guest.within(|_| quiet());
        quiet();
        let limits =
            Shaping { netdev: "vnet0".into(), tx: Some(slow()), rx: Some(slow()), ..Shaping::default() };
        let network = settle(&[limits]);
        let index = network.by_name("vnet0").unwrap().0;
        let [tx, rx] = [true, false].map(|ingress| Queue { index, ingress });
        // Without them, each frame would be answered.
        let _receivers = [UdpSocket::bind("0.0.0.0:9"), guest.within(|_| UdpSocket::bind("0.0.0.0:9"))];
        // Addresses are known before anything is measured.
        run("ping", &format!("-c 1 -W 5 {}", guest.address(2)));
        assert_eq!(meter.read(tx).unwrap(), None);
        std::thread::sleep(Duration::from_millis(50));
        for queue in [tx, rx] {
            meter.watch(queue, ArrivalSource::Address).unwrap();
            assert_eq!(meter.read(queue).unwrap().unwrap().max, 0);
        }
        for (queue, other) in [(tx, rx), (rx, tx)] {
            let before = meter.read(other).unwrap();
            let begin = Instant::now();
            let sending = if queue == tx {
                guest.within(|_| send(&UdpSocket::bind("0.0.0.0:0").unwrap(), &guest.address(1)))
            } else {
                send(&UdpSocket::bind("0.0.0.0:0").unwrap(), &guest.address(2))
            };
            let count = || meter.read(queue).unwrap().unwrap().buckets.iter().sum::<u64>();
            std::thread::sleep(Duration::from_nanos(at_least(FRAMES) as u64));
            eventually("all frames left", || count() >= MEASURED);
            check(&meter.read(queue).unwrap().unwrap(), sending, begin.elapsed());
            assert_eq!(meter.read(other).unwrap(), before, "the other queue saw nothing");
        }
        let watched = meter.watched();
        assert!(watched.len() == 2 && watched.contains(&tx) && watched.contains(&rx), "{watched:?}");
        meter.watch(tx, ArrivalSource::Address).unwrap();
        let goes_on = meter.read(tx).unwrap().unwrap().buckets.iter().sum::<u64>();
        assert!(goes_on >= MEASURED, "it goes on: {goes_on}");
        meter.forget(tx).unwrap();
        assert_eq!(meter.read(tx).unwrap(), None);
        assert!(meter.forget(tx).is_err());
    });
}
