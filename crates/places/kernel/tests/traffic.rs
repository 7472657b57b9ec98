//! Limits under traffic, in namespaces: TCP in super-frames and UDP, both directions.
//!
//! What a class sent is compared with its rate over intervals in which it always had something to send: those that its queue would have
//! outlasted. So a busy machine, whose sender stands still for a while, makes a test longer and not fail. That it sent no more than rate,
//! burst and a frame holds in every interval, busy or not. That the kernel's counters are wire bytes is a test of its own. Exact figures are
//! `bench/run --scene kernel_rates`.

mod netns;

use netns::load::{TCP, Traffic, under};
use netns::*;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};
use tidegate_contract::testing::envelope::Envelope;
use tidegate_place_kernel::tc::handle::Handle;
use tidegate_place_kernel::tc::network::Counters;
use tidegate_place_kernel::tc::owner;
use tidegate_place_kernel::tc::{Kernel, Network};

/// How long a class has to have been busy, and how long that may take.
const BUSY: Duration = Duration::from_millis(1500);
const PATIENCE: Duration = Duration::from_secs(40);

/// Processor time that the host of this machine takes at a stroke, ticks of 10 ms: what would have come into the bucket
/// meanwhile and does not fit is lost, and no fault of the limit.
const TAKEN: u64 = 2;

/// The longest frame: 64 KiB in segments, on the wire.
const SUPER_FRAME: f64 = tidegate_contract::frame::SUPER_FRAME_ON_WIRE as f64;

/// A look at the counters that took longer than this says too little of when.
const SHARP: Duration = Duration::from_millis(1);

fn counters(network: &Network, device: &str, class: Handle) -> Counters {
    network.by_name(device).unwrap().1.class(class).unwrap().counters
}

/// Processor time that was taken away since the machine started, ticks.
fn stolen() -> u64 {
    let all = std::fs::read_to_string("/proc/stat").unwrap();
    all.split_whitespace().nth(8).unwrap().parse().unwrap()
}

/// What a class of a device sends while it is busy, as a share of its limit, `rate`. In no interval that is more than the limit
/// lets through.
#[track_caller]
fn busy_share(device: &str, class: Handle, rate: &str) -> f64 {
    let limit = limit(rate);
    let set = limit.rate as f64 * 8.0;
    let most_beyond = limit.burst_time() as f64 * limit.rate as f64 / 1e9 + SUPER_FRAME;
    let mut envelope = Envelope::new(limit.rate * 8);
    let mut kernel = Kernel::open().unwrap();
    let mut look = || {
        let before = Instant::now();
        let seen = counters(&kernel.observe().unwrap(), device, class);
        (before.elapsed() < SHARP * 4).then_some((before, seen, stolen()))
    };
    let (begin, mut last) = (Instant::now(), None::<(Instant, Counters, u64)>);
    let (mut bytes, mut time, mut was_busy) = (0, Duration::ZERO, false);
    // When the look before began, and what it saw.
    let mut before = None::<(Instant, u64)>;
    let nanos = |at: Instant| at.duration_since(begin).as_nanos() as u64;
    while time < BUSY {
        assert!(begin.elapsed() < PATIENCE, "busy for {time:?} only: its sender got no processor");
        std::thread::sleep(Duration::from_millis(5));
        let now = look();
        if let Some((at, seen, _)) = &now {
            if let Some((before, sent)) = before.replace((*at, seen.bytes)) {
                envelope.observe(nanos(before), nanos(*at + SHARP * 4), seen.bytes - sent);
            }
            let (_, beyond) = envelope.excess();
            assert!(beyond <= most_beyond, "{beyond:.0} bytes beyond {rate}, {most_beyond:.0} allowed");
        }
        let mut is_busy = false;
        if let (Some((t0, before, taken)), Some((t1, after, taken_now))) = (last, now) {
            let whole = taken_now - taken < TAKEN;
            is_busy = whole && before.backlog as f64 * 8.0 >= set * (t1 - t0).as_secs_f64();
            // The first second is the burst's; and so is the first interval after a pause, in which its bucket filled.
            if is_busy && was_busy && begin.elapsed() > Duration::from_secs(1) {
                bytes += after.bytes - before.bytes;
                time += t1 - t0;
            }
        }
        was_busy = is_busy;
        last = now;
    }
    bytes as f64 * 8.0 / time.as_secs_f64() / set
}

/// That its limit holds is looked at all the time. A share of more than 1 is no fault: after a pause what the bucket saved up
/// goes in busy intervals, and the pause, in which it did, is none.
#[track_caller]
fn kept(what: &str, share: f64) {
    assert!(share >= 0.9, "{what}: {share} of its rate");
}

/// Sets 40 Mbit/s for what the VM sends and 20 for what it receives, and looks at one of them.
fn one_way(traffic: Traffic) {
    let guest = Guest::new("vnet3", 1);
    settle(&[shaping("vnet3", "40mbit", "20mbit")]);
    let (device, class, rate) = match traffic {
        Traffic::TcpOut | Traffic::UdpOut => {
            (owner::IFB, Handle::new(owner::MAJOR, owner::FIRST_LEAF), "40mbit")
        }
        Traffic::TcpIn | Traffic::UdpIn => ("vnet3", owner::ROOT_CLASS, "20mbit"),
    };
    kept(&format!("{traffic:?}"), under(traffic, &guest, || busy_share(device, class, rate)));
}

#[test]
fn tcp_from_the_vm_keeps_its_rate() {
    in_namespace("tcp_from_the_vm_keeps_its_rate", || one_way(Traffic::TcpOut));
}

#[test]
fn tcp_to_the_vm_keeps_its_rate() {
    in_namespace("tcp_to_the_vm_keeps_its_rate", || one_way(Traffic::TcpIn));
}

#[test]
fn udp_from_the_vm_keeps_its_rate() {
    in_namespace("udp_from_the_vm_keeps_its_rate", || one_way(Traffic::UdpOut));
}

#[test]
fn udp_to_the_vm_keeps_its_rate() {
    in_namespace("udp_to_the_vm_keeps_its_rate", || one_way(Traffic::UdpIn));
}

#[test]
fn a_netdev_on_a_bridge_keeps_its_rates() {
    in_namespace("a_netdev_on_a_bridge_keeps_its_rates", || {
        let guest = Guest::new("vnet3", 1);
        let host = guest.address(1);
        ip("link add br0 type bridge");
        ip(&format!("addr del {host}/24 dev vnet3"));
        ip("link set vnet3 master br0");
        ip(&format!("addr add {host}/24 dev br0"));
        ip("link set br0 up");
        settle(&[shaping("vnet3", "40mbit", "20mbit")]);
        let leaf = Handle::new(owner::MAJOR, owner::FIRST_LEAF);
        let out = under(Traffic::TcpOut, &guest, || busy_share(owner::IFB, leaf, "40mbit"));
        kept("TCP from the VM", out);
        let in_ = under(Traffic::TcpIn, &guest, || busy_share("vnet3", owner::ROOT_CLASS, "20mbit"));
        kept("TCP to the VM", in_);
    });
}

#[test]
fn super_frames_are_counted_by_their_segments() {
    in_namespace("super_frames_are_counted_by_their_segments", || {
        let guest = Guest::new("vnet3", 1);
        settle(&[shaping("vnet3", "1gbit", "-")]);
        let of = || counters(&observe(), owner::IFB, Handle::new(owner::MAJOR, owner::FIRST_LEAF));
        let before = of();
        let listener = TcpListener::bind("0.0.0.0:5001").unwrap();
        let host = guest.address(1);
        const SENT: u64 = 20_000_000;
        let received = std::thread::scope(|scope| {
            scope.spawn(|| {
                guest.within(|_| {
                    let mut stream = TcpStream::connect((host.as_str(), 5001)).unwrap();
                    stream.write_all(&vec![0; SENT as usize]).unwrap();
                });
            });
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_to_end(&mut Vec::new()).unwrap() as u64
        });
        assert_eq!(received, SENT);
        let after = of();
        let (bytes, packets) = (after.bytes - before.bytes, after.packets - before.packets);
        let ratio = bytes as f64 / (SENT as f64 * TCP);
        assert!((0.999..1.02).contains(&ratio), "{bytes} wire bytes for {SENT} of payload");
        let per_segment = SENT as f64 / packets as f64;
        assert!((1300.0..=1448.0).contains(&per_segment), "{per_segment} bytes of payload per segment");
    });
}

#[test]
fn two_netdevs_have_independent_rates() {
    in_namespace("two_netdevs_have_independent_rates", || {
        let (slow, fast) = (Guest::new("vnet3", 1), Guest::new("vnet4", 2));
        settle(&[shaping("vnet3", "10mbit", "-"), shaping("vnet4", "30mbit", "-")]);
        let leaf = |n| Handle::new(owner::MAJOR, owner::FIRST_LEAF + n);
        under(Traffic::UdpOut, &slow, || {
            under(Traffic::UdpOut, &fast, || {
                kept("the slower", busy_share(owner::IFB, leaf(0), "10mbit"));
                kept("the faster", busy_share(owner::IFB, leaf(1), "30mbit"));
            });
        });
    });
}
