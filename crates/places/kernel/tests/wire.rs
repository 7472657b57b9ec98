//! What super-frames are charged, beside what they are: the kernel cuts each, and a device without offloads has the segments.
//!
//! ```text
//!  generator ─▶ tap ─▶ programs of `bpf/` at its ingress ─▶ bridge ─▶ a tap that takes no super-frames: segments, counted
//!                        └─ counters: what was charged
//! ```

mod netns;

use netns::super_frames::{Network, SuperFrame, Wire, hostile, ordinary};
use netns::tap::{Request, Tap};
use netns::*;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use std::cell::RefCell;
use std::time::{Duration, Instant};
use tidegate_place_kernel::ebpf::mark::Dropped;
use tidegate_place_kernel::ebpf::{Bucket, Classes, Marks, Policed};
use tidegate_place_kernel::tc::handle::Handle;
use tidegate_place_kernel::tc::network::{Counters, Rule};
use tidegate_place_kernel::tc::owner;
use tidegate_place_kernel::tc::{Kernel, Netdev, Shaping};
use tidegate_switch::frame::{HEADER_MAX, VnetHdr, offload, parse, wire_bytes};

/// Follows each frame, so that all segments of that one have left. Its Ethernet type is for experiments.
const LAST: [u8; 60] = {
    let mut frame = [0; 60];
    (frame[0], frame[5], frame[6], frame[12], frame[13]) = (2, 1, 2, 0x88, 0xb5);
    frame
};

/// A guest, and the device that its frames leave the host by.
struct Path {
    guest: Tap,
    outside: Tap,
}

impl Path {
    #[track_caller]
    fn new() -> Self {
        quiet();
        // Which sends by itself what it would snoop for.
        ip("link add br0 type bridge mcast_snooping 0");
        let (guest, outside) = (Tap::with_requests("vnet1"), Tap::plain("out0"));
        for device in ["vnet1", "out0"] {
            // Fragments are frames of their own on a bridge, and as long as a guest makes them.
            ip(&format!("link set {device} mtu 60000 txqueuelen 30000 master br0"));
        }
        ip("link set br0 up");
        let path = Self { guest, outside };
        // A port is silent at first.
        eventually("the bridge forwards", || {
            path.guest.send(&Request::default(), &LAST);
            path.outside.receive().is_some()
        });
        while path.outside.receive().is_some() {}
        path
    }

    /// Sends a frame; whether the kernel took it, and what left the host.
    #[track_caller]
    fn pass(&self, frame: &SuperFrame) -> (bool, Vec<Vec<u8>>) {
        let taken = self.guest.send(&frame.request, &frame.bytes());
        (taken, until_last(&self.outside, || assert!(self.guest.send(&Request::default(), &LAST))))
    }
}

/// What leaves before the last one.
#[track_caller]
fn until_last(outside: &Tap, send_last: impl FnOnce()) -> Vec<Vec<u8>> {
    send_last();
    let (mut seen, begin) = (Vec::new(), Instant::now());
    loop {
        match outside.receive() {
            Some(frame) if frame.ends_with(&LAST) => return seen,
            Some(frame) => seen.push(frame),
            None => assert!(begin.elapsed() < Duration::from_secs(5), "the last frame never came"),
        }
    }
}

fn wire(frames: &[Vec<u8>]) -> Wire {
    Wire { frames: frames.len() as u64, bytes: frames.iter().map(|frame| frame.len() as u64).sum() }
}

/// What this thread sends passes the kernel in order from now on: the kernel has a queue for each CPU, and the last
/// frame must not overtake those before it.
fn stay_on_one_cpu() {
    let mut here = CpuSet::new();
    here.set(sched_getcpu());
    sched_setaffinity(None, &here).unwrap();
}

/// For each of `PROPTEST_CASES` (256, unless that is set) so many.
fn try_all(
    cases: u32,
    frames: impl Strategy<Value = SuperFrame>,
    check: impl Fn(&SuperFrame) -> Result<(), TestCaseError>,
) {
    stay_on_one_cpu();
    let cases = cases * Config::default().cases;
    let config = Config { cases, failure_persistence: None, max_shrink_time: 20_000, ..Config::default() };
    TestRunner::new(config).run(&frames, |frame| check(&frame)).unwrap();
}

/// More than what passes in a test.
fn policing(netdev: &str) -> Shaping {
    let bucket = Bucket { rate: 10_000_000_000, burst: 1 << 40 };
    Shaping { netdev: netdev.into(), tx_police: Some(bucket), ..Shaping::default() }
}

/// What a filter at the ingress of a netdev says.
#[track_caller]
fn filter<T>(netdev: &str, read: impl Fn(&Rule) -> Option<T>) -> T {
    let network = observe();
    let link: &Netdev = network.by_name(netdev).unwrap().1;
    link.filters.iter().find_map(|filter| read(&filter.rule)).expect("such a filter")
}

/// Number of the map of its policer.
#[track_caller]
fn policer(netdev: &str) -> u32 {
    filter(netdev, |rule| match rule {
        Rule::Police { program, .. } => Some(program.map),
        _ => None,
    })
}

/// What `work` is charged, without the last frame; and super-frames that were dropped since their headers cannot be followed.
fn charged<T>(map: u32, work: impl FnOnce() -> T) -> (Wire, u64, T) {
    let before = Policed::read(map).unwrap();
    let done = work();
    let after = Policed::read(map).unwrap();
    let wire = Wire {
        frames: after.frames - before.frames - 1,
        bytes: after.bytes - before.bytes - LAST.len() as u64,
    };
    (wire, after.unknown_headers - before.unknown_headers, done)
}

/// Kernels before 6.2 know no super-frames of datagrams.
fn is_known(frame: &SuperFrame, taken: bool) -> bool {
    taken || frame.request.gso_type != Request::UDP_L4
}

#[test]
fn a_policer_charges_the_wire_bytes_of_an_ordinary_super_frame() {
    in_namespace("a_policer_charges_the_wire_bytes_of_an_ordinary_super_frame", || {
        let path = Path::new();
        settle(&[policing("vnet1")]);
        let map = policer("vnet1");
        try_all(4, ordinary(), |frame| {
            let (charged, _, (taken, seen)) = charged(map, || path.pass(frame));
            if is_known(frame, taken) {
                prop_assert_eq!(wire(&seen), frame.wire(), "what left the host");
                prop_assert_eq!(charged, frame.wire(), "what was charged");
            }
            Ok(())
        });
    });
}

#[test]
fn a_policer_never_charges_less_than_the_bytes_that_leave() {
    in_namespace("a_policer_never_charges_less_than_the_bytes_that_leave", || {
        let path = Path::new();
        settle(&[policing("vnet1")]);
        let map = policer("vnet1");
        try_all(8, hostile(), |frame| {
            let (charged, unknown, (_, seen)) = charged(map, || path.pass(frame));
            let seen = wire(&seen);
            prop_assert!(
                charged.bytes >= seen.bytes && charged.frames >= seen.frames,
                "{charged:?} {seen:?}"
            );
            prop_assert!(unknown == 0 || seen.frames == 0, "{seen:?}");
            Ok(())
        });
    });
}

#[test]
fn a_rate_holds_for_any_headers() {
    in_namespace("a_rate_holds_for_any_headers", || {
        const RATE: u64 = 1_250_000;
        const BURST: u64 = 65_536;
        let path = Path::new();
        let bucket = Bucket { rate: RATE, burst: BURST };
        settle(&[Shaping { tx_police: Some(bucket), ..policing("vnet1") }]);
        let mut runner = TestRunner::new(Config::default());
        let frames = prop_oneof![ordinary(), hostile()];
        let (mut total, mut longest, mut offered, begin) = (0, 0, 0, Instant::now());
        while begin.elapsed() < Duration::from_secs(2) {
            let frame = frames.new_tree(&mut runner).unwrap().current();
            offered += u64::from(path.guest.send(&frame.request, &frame.bytes()));
            // All of one frame leaves before its sender goes on.
            let seen = std::iter::from_fn(|| path.outside.receive()).map(|frame| frame.len() as u64).sum();
            total += seen;
            longest = longest.max(seen);
        }
        let most = BURST + longest + (RATE as f64 * begin.elapsed().as_secs_f64()) as u64;
        assert!(total <= most, "{total} bytes passed, where {most} may");
        assert!(total > RATE / 2, "{total} bytes of {offered} super-frames passed, where {most} may");
    });
}

#[test]
fn a_burst_holds_for_any_headers() {
    in_namespace("a_burst_holds_for_any_headers", || {
        const BURST: u64 = 40_000;
        let path = Path::new();
        settle(&[Shaping { marks: Some(Marks::from_burst(BURST)), ..shaping("vnet1", "-", "-") }]);
        let map = filter("vnet1", |rule| match rule {
            Rule::Mark { program, .. } => Some(program.map),
            _ => None,
        });
        let dropped = || Dropped::read(map).unwrap();
        try_all(4, ordinary(), |frame| {
            let before = dropped().over_burst;
            let (taken, seen) = path.pass(frame);
            if is_known(frame, taken) {
                let fits = frame.wire().bytes <= BURST;
                prop_assert_eq!(wire(&seen), if fits { frame.wire() } else { Wire::default() });
                prop_assert_eq!(dropped().over_burst - before, u64::from(!fits));
            }
            Ok(())
        });
        try_all(4, hostile(), |frame| {
            let before = dropped();
            let seen = wire(&path.pass(frame).1);
            let after = dropped();
            prop_assert!(seen.bytes <= BURST, "{seen:?}");
            prop_assert!(seen.frames == 0 || after == before, "{seen:?} {after:?}");
            Ok(())
        });
    });
}

#[test]
fn a_waiting_super_frame_leaves_whole_or_is_counted() {
    in_namespace("a_waiting_super_frame_leaves_whole_or_is_counted", || {
        let path = Path::new();
        settle(&[shaping("vnet1", "100gbit", "-")]);
        let kernel = RefCell::new(Kernel::open().unwrap());
        let leaf = Handle::new(owner::MAJOR, owner::FIRST_LEAF);
        let look = || -> (u64, u64) {
            let network = kernel.borrow_mut().observe().unwrap();
            let index = network.by_name("vnet1").unwrap().0;
            let ifb = network.ifb().unwrap().1;
            let Counters { bytes, .. } = ifb.class(leaf).unwrap().counters;
            let classes = Classes::open(ifb.classifier_map().unwrap()).unwrap();
            (bytes, classes.double_tagged(index).unwrap())
        };
        try_all(2, ordinary(), |frame| {
            let before = look();
            let (taken, seen) = path.pass(frame);
            let after = look();
            if !is_known(frame, taken) {
                return Ok(());
            }
            let carried = frame.headers.tags.len() < 2;
            let expected = if carried { frame.wire() } else { Wire::default() };
            prop_assert_eq!(wire(&seen), expected);
            prop_assert_eq!(after.1 - before.1, u64::from(!carried));
            let addresses = &frame.bytes()[..12];
            prop_assert!(seen.iter().all(|segment| segment.starts_with(addresses)), "{seen:x?}");
            // HTB does not count a tag that the kernel has taken out of the frame, nor headers that fragments get.
            if carried && frame.request.gso_type != Request::UDP {
                let tags = expected.frames * 4 * frame.headers.tags.len() as u64;
                prop_assert_eq!(after.0 - before.0, expected.bytes - tags + LAST.len() as u64);
            }
            Ok(())
        });
    });
}

/// Tunnels that a guest's kernel may make; one that this kernel lacks is skipped.
const TUNNELS: [&str; 3] = [
    "type vxlan id 7 remote 10.9.3.1 dstport 4789 local 10.9.3.2",
    "type geneve id 7 remote 10.9.3.1",
    "type gretap remote 10.9.3.1 local 10.9.3.2",
];

#[test]
fn a_policer_charges_the_headers_of_a_tunnel() {
    in_namespace("a_policer_charges_the_headers_of_a_tunnel", || {
        quiet();
        let guest = Guest::new("vnet3", 3);
        let outside = Tap::plain("out0");
        ip("link set out0 txqueuelen 30000");
        ip("link set vnet3 mtu 62000");
        settle(&[policing("vnet3")]);
        tc(
            "filter add dev vnet3 ingress pref 7 protocol all u32 match u32 0 0 action mirred egress redirect dev out0",
        );
        let map = policer("vnet3");
        let shown = run("ip", "-br link show vnet3");
        let mac = shown.split_whitespace().nth(2).unwrap();
        let inside = guest.within(|_| {
            quiet();
            // No host answers there.
            ip(&format!("neigh add 10.9.3.1 lladdr {mac} dev eth0"));
            ip("link add br0 type bridge mcast_snooping 0");
            let inside = Tap::with_requests("tap0");
            ip("link set tap0 mtu 60000 master br0");
            ip("link set br0 up");
            ip("link set eth0 mtu 62000");
            inside
        });
        let mut tried = 0;
        for tunnel in TUNNELS {
            let made = guest.within(|_| {
                try_run("ip", &format!("link add tun0 {tunnel}")).is_ok_and(|_| {
                    ip("link set tun0 mtu 60000 master br0 up");
                    true
                })
            });
            if !made {
                continue;
            }
            tried += 1;
            let last = || assert!(inside.send(&Request::default(), &LAST));
            eventually("the bridge forwards", || {
                last();
                outside.receive().is_some()
            });
            until_last(&outside, last);
            while outside.receive().is_some() {}
            let overhead = charged(map, || until_last(&outside, last)).0.bytes;
            for (hostile_too, frames) in [(false, ordinary().boxed()), (true, hostile().boxed())] {
                try_all(2, frames, |frame| {
                    let (mut charged, unknown, (taken, seen)) = charged(map, || {
                        let taken = inside.send(&frame.request, &frame.bytes());
                        (taken, until_last(&outside, last))
                    });
                    charged.bytes -= overhead;
                    let seen = wire(&seen);
                    // Fragments of a datagram are not super-frames any more when they come to the tunnel.
                    if hostile_too {
                        prop_assert!(
                            charged.bytes >= seen.bytes && charged.frames >= seen.frames,
                            "{tunnel}: {charged:?} {seen:?}"
                        );
                    } else if is_known(frame, taken) {
                        prop_assert_eq!((charged, unknown), (seen, 0), "{}", tunnel);
                        prop_assert!(seen.bytes > frame.wire().bytes, "{tunnel}: {seen:?}");
                    }
                    Ok(())
                });
            }
            guest.within(|_| ip("link del tun0"));
        }
        assert!(tried > 0, "no tunnel to be had");
    });
}

#[test]
fn the_switch_charges_the_same() {
    try_all(10, ordinary(), |frame| {
        let bytes = frame.bytes();
        let Request { flags, gso_type, gso_size, csum_start, csum_offset, .. } = frame.request;
        let request = VnetHdr { flags, gso_type, gso_size, csum_start, csum_offset, ..VnetHdr::default() };
        let head = bytes.len().min(HEADER_MAX);
        // It carries no second tag, no fragments, and no more headers than it copies.
        let Ok(headers) = parse(&bytes[..head], bytes.len()) else { return Ok(()) };
        let one = frame.headers.tags.len() < 2 && !frame.headers.tags.contains(&0x88a8);
        let short = matches!(&frame.headers.network[..], [Network::V4 { .. }]);
        match offload::check(&request, &headers, head, bytes.len()) {
            Ok(offload) => {
                prop_assert_eq!(u64::from(wire_bytes(offload, &headers, bytes.len())), frame.wire().bytes);
            }
            Err(why) => prop_assert!(!one || !short || gso_type == Request::UDP, "{why}"),
        }
        Ok(())
    });
}
