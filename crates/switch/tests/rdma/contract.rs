//! The contracts of vNICs with zero copy: what leaves and what lands keeps them as copied frames do.
//!
//! ```text
//!  guest a ─▶ rules, tx.max ─▶ device ══ device ─▶ buffers of guest b ─▶ rules, deadlines, minima, weights, rx.max ─▶ its driver
//!  host of a                             host of b                        ▲ local senders, frames with stamps
//! ```

use super::harness::fabric::{KEYS, Two, two_with};
use super::harness::{Guest, PATIENCE, bytes_in, measured, pump, udp, vnic};
use super::landing::larger;
use super::{ZERO_COPY, zero_copy};
use std::time::{Duration, Instant};
use tidegate_contract::{Bytes, Envelope, Nanos, Rate};
use tidegate_evidence::RdmaCounts;
use tidegate_verbs::simulated::Fate;

/// The receiver's rate, and a sender's that is twice as much.
const SLOW: &str = "rx = { max = \"20mbit\", burst = \"4kB\" }";
const TWICE: &str = "tx = { max = \"40mbit\" }";
/// How long senders contend.
const WHILE: Duration = Duration::from_millis(1000);

/// Bytes that are copied of a frame that lands: its head.
const HEAD: u64 = 192;

/// Returns how many frames of `len` bytes landed, also those that were dropped then: of the others all bytes were copied.
fn landed(before: &RdmaCounts, after: &RdmaCounts, len: usize) -> u64 {
    let (bytes, copied) = (after.received_bytes - before.received_bytes, after.copied_in - before.copied_in);
    (bytes - copied) / (len as u64 - HEAD)
}

/// Returns two hosts with frames that land at the second guest, whose contract has these lines.
fn landing(lines: &str) -> Two {
    let mut two = two_with(ZERO_COPY, &larger());
    two.sides[1].host.change(&vnic("b", 2, &zero_copy(lines)));
    two.until_landing();
    two
}

/// Returns the lines of a sender with a deadline towards `b`.
fn voice() -> &'static str {
    "tx = { max = \"18mbit\", burst = \"20kB\" }\ndeadline = \"100ms\"\nto = [\"b\"]"
}

/// Frames with a deadline, and how many of them at once: together three quarters of the rate of `b`, so that a fair share is
/// not enough for them.
const URGENT: u32 = 600;
const AT_ONCE: u32 = 4;

/// What `b` saw of frames with a deadline amid a backlog of frames that land.
#[derive(Default)]
struct Seen {
    /// Frames of the backlog that came.
    bulk: u32,
    /// The same when each frame with a deadline had been sent.
    then: Vec<u32>,
    /// How many came between the sending of each frame with a deadline and its arrival.
    before: Vec<u32>,
    /// The number behind that of the last one that came.
    next: u32,
}

impl Seen {
    /// Looks at what came to `b`: frames of the backlog, and of `voice`, whose numbers begin with `first`.
    fn look(&mut self, b: &mut Guest, voice: [u8; 6], first: u32) {
        b.each(|frame| {
            if frame[6..12] != voice {
                self.bulk += 1;
                return;
            }
            let number = u32::from_be_bytes(frame[42..46].try_into().unwrap());
            let Some(number) = number.checked_sub(first) else { return };
            assert!(number >= self.next, "each once, in order");
            self.next = number + 1;
            self.before.push(self.bulk - self.then.get(number as usize).copied().unwrap_or(self.bulk));
        });
    }
}

/// Sends frames with a deadline, numbered from `first` on, while `bulk` sends twice what `b` may receive.
fn overtake(bulk: &mut Guest, voice: &mut Guest, b: &mut Guest, first: u32) -> Seen {
    let (to, bulk_mac, voice_mac) = (b.mac(), bulk.mac(), voice.mac());
    let filling = udp(to, bulk_mac, &[1; 1400]);
    let frame = |n: u32| udp(to, voice_mac, &[&n.to_be_bytes()[..], &[2; 1400]].concat());
    let mut seen = Seen::default();
    // The backlog comes first.
    let began = Instant::now();
    while began.elapsed() < WHILE / 4 {
        bulk.fill(&filling);
        seen.look(b, voice_mac, first);
        std::thread::sleep(Duration::from_millis(1));
    }
    for n in 0..URGENT {
        voice.send(&frame(first + n));
        if n % AT_ONCE == AT_ONCE - 1 {
            bulk.fill(&filling);
            seen.look(b, voice_mac, first);
            seen.then.resize(n as usize + 1, seen.bulk);
            std::thread::sleep(Duration::from_millis(3));
        }
    }
    let began = Instant::now();
    while seen.next < URGENT && began.elapsed() < PATIENCE / 10 {
        seen.look(b, voice_mac, first);
        std::thread::sleep(Duration::from_millis(1));
    }
    seen
}

/// Lets frames with a deadline overtake until nine of ten come, and nine of ten of these behind a burst of the backlog at most. A host that
/// takes a worker's CPU for a while delays them, and costs frames at the device.
#[track_caller]
fn until_they_overtake(two: &mut Two, mut overtake: impl FnMut(&mut Two, u32) -> Seen) {
    let mut all = vec![];
    for attempt in 0..5 {
        let before = two.sides[1].counts();
        let mut seen = overtake(two, attempt * URGENT);
        let after = two.sides[1].counts();
        let (landed, received) =
            (after.zero_copied_in - before.zero_copied_in, after.received - before.received);
        assert!(landed > 20, "{landed} landed, {} came", seen.bulk);
        let waited = received > u64::from(seen.bulk + URGENT) + 100;
        assert!(waited, "{received} received, {} came: none waited", seen.bulk);
        seen.before.sort_unstable();
        let heard = seen.before.len();
        if heard >= URGENT as usize * 9 / 10 && seen.before[heard * 9 / 10] <= 8 {
            return;
        }
        all.push((heard, seen.before.get(heard * 9 / 10).copied()));
    }
    panic!("of {URGENT} came, and nine of ten behind at most: {all:?}");
}

#[test]
fn a_local_frame_with_a_deadline_is_shown_before_frames_that_landed() {
    let mut two = landing(SLOW);
    two.sides[0].host.change(&vnic("a", 1, &zero_copy(TWICE)));
    two.until_landing();
    let mut voice = two.sides[1].host.guest(&vnic("voice", 9, voice()));
    until_they_overtake(&mut two, |two, first| {
        let [a, b] = &mut two.sides;
        overtake(&mut a.guest, &mut voice, &mut b.guest, first)
    });
    assert!(two.sides[1].host.stats("voice").realtime_delivered >= u64::from(URGENT));
}

/// Its frames have stamps, so they are copied at arrival, and never land.
#[test]
fn a_frame_with_a_deadline_of_another_host_is_shown_before_frames_that_landed() {
    let mut two = landing(SLOW);
    let envelope = Envelope { max: Rate::from_bits(18_000_000), burst: Some(Bytes::new(20_000)) };
    let far = &mut two.sides[1];
    (far.remote.tx, far.remote.deadline) = (envelope, Some(Nanos::new(100_000_000)));
    far.remote.to = vec!["b".into()];
    far.set(&[KEYS[0]], None);
    two.sides[0].host.change(&vnic("a", 1, &format!("transport = \"rdma\"\n{}", voice())));
    let mut bulk = two.sides[0].host.guest_with(&vnic("bulk", 3, &zero_copy(TWICE)), larger());
    two.until("a third member", || two.sides[1].status().members.len() == 2);
    let frame = udp(two.sides[1].guest.mac(), bulk.mac(), &[7; 1000]);
    let lands = two.sides[1].counts().zero_copied_in;
    two.until("it lands", || {
        bulk.send_or_drop(&frame);
        two.sides[1].counts().zero_copied_in > lands
    });
    two.sides[1].guest.drain();
    until_they_overtake(&mut two, |two, first| {
        let [a, b] = &mut two.sides;
        overtake(&mut bulk, &mut a.guest, &mut b.guest, first)
    });
    let pairs = two.sides[1].host.switch.uplinks().remove(0).pairs;
    let stamped: u64 = pairs.iter().map(|pair| pair.arrived).sum();
    assert!(stamped >= u64::from(URGENT) * 9 / 10, "{pairs:?}");
}

/// Lets `a`, whose frames land at `b`, and a local `c` contend for the rate of `b`, until their bytes are in `range`.
#[track_caller]
fn contend(
    of_c: &str,
    what: &str,
    range: std::ops::RangeInclusive<f64>,
    value: impl Fn(&[u64], Duration) -> f64,
) {
    let mut two = landing(SLOW);
    two.sides[0].host.change(&vnic("a", 1, &zero_copy(TWICE)));
    let mut c = two.sides[1].host.guest(&vnic("c", 9, of_c));
    two.until_landing();
    let to = two.sides[1].guest.mac();
    let [landing, local] = [two.sides[0].guest.mac(), c.mac()].map(|from| udp(to, from, &[1; 1000]));
    let before = two.sides[1].counts();
    measured(what, range, || {
        let [a, b] = &mut two.sides;
        let mut senders = [(&mut a.guest, landing.clone()), (&mut c, local.clone())];
        let (got, time) = pump(WHILE, &mut senders, &mut b.guest);
        value(&got, time)
    });
    let landed = landed(&before, &two.sides[1].counts(), landing.len());
    assert!(landed > 50, "{landed} landed");
}

#[test]
fn a_minimum_is_kept_beside_frames_that_land() {
    let promised = "tx = { max = \"40mbit\", min = \"15mbit\" }\nto = [\"b\"]";
    contend(promised, "rate to minimum", 0.8..=1.2, |got, time| got[1] as f64 / bytes_in(15_000_000, time));
}

#[test]
fn the_remaining_rate_is_shared_by_weight_with_frames_that_land() {
    let three = format!("{TWICE}\nweight = 3");
    contend(&three, "shares of weight 3 and 1", 2.4..=3.6, |got, _| got[1] as f64 / got[0] as f64);
}

/// A flow that sends little passes one that waits, though frames of both land.
#[test]
fn a_sparse_flow_that_lands_passes_a_long_one() {
    let mut two = landing(SLOW);
    two.sides[0].host.change(&vnic("a", 1, &zero_copy(TWICE)));
    two.until_landing();
    let (to, from) = (two.sides[1].guest.mac(), two.sides[0].guest.mac());
    let filling = udp(to, from, &[1; 1400]);
    let sparse = |n: u32| {
        let mut frame = udp(to, from, &[&n.to_be_bytes()[..], &[0; 400]].concat());
        // Another destination port.
        frame[36] ^= 1;
        frame
    };
    let before = two.sides[1].counts();
    let (mut bulk, mut waits, mut then) = (0u32, vec![], vec![]);
    let [sender, receiver] = &mut two.sides;
    for n in 0..400u32 {
        let room = sender.guest.ring_size() - sender.guest.front.in_flight(0);
        (0..room.min(8)).for_each(|_| sender.guest.send(&filling));
        if n >= 100 && n % 4 == 0 {
            sender.guest.send_or_drop(&sparse(n));
        }
        receiver.guest.each(|frame| match frame.len() == filling.len() {
            true => bulk += 1,
            false => {
                let number = u32::from_be_bytes(frame[42..46].try_into().unwrap());
                waits.push(bulk - then.get(number as usize).copied().unwrap_or(bulk));
            }
        });
        then.push(bulk);
        std::thread::sleep(Duration::from_millis(2));
    }
    let after = two.sides[1].counts();
    assert!(after.zero_copied_in > before.zero_copied_in + 100, "{after:?}");
    waits.sort_unstable();
    assert!(waits.len() > 40, "{} of 75 came", waits.len());
    // A backlog has tens of frames.
    let middle = waits[waits.len() / 2];
    assert!(middle <= 8, "{middle} frames of the long flow went before, {waits:?}");
}

/// What waits beyond `rx.queue` is dropped, and its buffers land other frames.
#[test]
fn a_full_queue_drops_what_landed_and_keeps_no_buffer() {
    for (discipline, reason) in [("contract", "flow_cap"), ("fifo", "queue_full")] {
        let lines = format!(
            "rx = {{ max = \"1mbit\", burst = \"2kB\", queue = \"20kB\", discipline = \"{discipline}\" }}"
        );
        let mut two = landing(&lines);
        let frame = two.frame(0, 1000);
        let before = two.sides[1].counts();
        two.sides[1].guest.drain();
        let began = Instant::now();
        while arrived_and_dropped(&two, reason) < 100 {
            assert!(began.elapsed() < PATIENCE, "{discipline}: {:?}", two.sides[1].host.stats("b").rx);
            // More than the receiver's rate, on the busiest machine.
            (0..8).for_each(|_| two.sides[0].guest.send_or_drop(&frame));
            two.sides[1].guest.drain();
            std::thread::sleep(Duration::from_micros(200));
        }
        let landed = landed(&before, &two.sides[1].counts(), frame.len());
        assert!(landed > 20, "{discipline}: {landed} landed");
        two.sides[1].host.change(&vnic("b", 2, &zero_copy("")));
        two.until_landing();
        two.all_arrive(300);
    }
}

/// Returns how many frames of other hosts were dropped at the second host for this reason.
fn arrived_and_dropped(two: &Two, reason: &str) -> u64 {
    two.sides[1].host.stats("net0").tx.dropped.get(reason).copied().unwrap_or(0)
}

/// Returns the frame with a VLAN tag.
fn tagged(frame: &[u8], vid: u16) -> Vec<u8> {
    [&frame[..12], &[0x81, 0], &vid.to_be_bytes(), &frame[12..]].concat()
}

/// What its contract does not let a vNIC be sent lands, is dropped and counted, and its driver is shown nothing.
#[test]
fn tags_that_a_receiver_may_not_be_sent_are_dropped_after_they_landed() {
    let mut two = landing("");
    two.sides[0].host.change(&vnic("a", 1, &zero_copy("allowed = { vlans = [10, 20] }")));
    two.until_landing();
    for (keys, passes) in [("", [false, false]), ("allowed = { vlans = [20] }", [false, true])] {
        two.sides[1].host.change(&vnic("b", 2, &zero_copy(keys)));
        two.until_landing();
        for (vid, passes) in [10, 20].into_iter().zip(passes) {
            let frame = tagged(&two.frame(0, 900), vid);
            let (before, at) = (two.sides[1].counts(), arrived_and_dropped(&two, "vlan"));
            for sent in 1..=200 {
                two.sides[0].guest.send(&frame);
                if passes {
                    assert_eq!(two.sides[1].guest.receive(), frame);
                } else if sent % 8 == 0 {
                    // Fewer at a time than there are receive buffers, however busy the machine is.
                    two.until("they are dropped", || arrived_and_dropped(&two, "vlan") == at + sent);
                }
            }
            assert_eq!(arrived_and_dropped(&two, "vlan"), if passes { at } else { at + 200 });
            let landed = landed(&before, &two.sides[1].counts(), frame.len());
            assert!(landed > 50, "{vid}: {landed} landed");
            // The next one is none of those, and their buffers are posted again.
            two.send(0, 500);
            two.until_landing();
        }
    }
}

/// A member that sends in the name of a vNIC of this host is refused.
#[test]
fn a_frame_in_a_local_vnics_name_is_refused() {
    let mut two = landing("");
    let c = two.sides[1].host.guest(&vnic("c", 9, ""));
    let frame = udp(two.sides[1].guest.mac(), c.mac(), &[3; 900]);
    let before = two.sides[1].counts();
    for _ in 0..200 {
        assert_eq!(two.fabric.forge(two.datagram(0, &frame)), Fate::Delivered);
        two.send(0, 500);
    }
    let after = two.sides[1].counts();
    assert_eq!(after.spoofed - before.spoofed, 200);
    two.until_landing();
}

/// Rules read the head that leaves: what a contract forbids does not reach the device.
#[test]
fn what_a_contract_forbids_does_not_leave_by_zero_copy() {
    let mut two = landing("");
    let (to, own) = (two.sides[1].guest.mac(), two.sides[0].guest.mac());
    let good = udp(to, own, &[5; 1000]);
    let from_other = udp(to, [0x52, 0x54, 0, 0, 0, 77], &[5; 1000]);
    let own_prefix = "allowed = { prefixes = [\"10.0.0.1/32\"] }";
    let elsewhere = "allowed = { prefixes = [\"10.9.0.0/16\"] }";
    let cases = [
        ("", from_other, "source_mac"),
        ("", tagged(&good, 10), "vlan"),
        (elsewhere, good.clone(), "source_prefix"),
        ("mtu = 600", good.clone(), "too_long"),
        ("", udp([1, 0x80, 0xc2, 0, 0, 1], own, &[5; 1000]), "control"),
    ];
    for (keys, bad, reason) in cases {
        two.sides[0].host.change(&vnic("a", 1, &zero_copy(keys)));
        let dropped = |two: &Two| two.sides[0].host.stats("a").tx.dropped.get(reason).copied().unwrap_or(0);
        let before = (two.sides[0].device.counters().datagrams, dropped(&two));
        for _ in 0..50 {
            two.sides[0].guest.send(&bad);
        }
        two.until("all are dropped", || dropped(&two) == before.1 + 50);
        assert_eq!(two.sides[0].device.counters().datagrams, before.0, "{keys}");
        assert_eq!(two.sides[1].guest.try_receive(), None, "{keys}");
    }
    two.sides[0].host.change(&vnic("a", 1, &zero_copy(own_prefix)));
    let before = two.sides[0].counts();
    let began = Instant::now();
    while two.sides[0].counts().zero_copied_out == before.zero_copied_out {
        assert!(began.elapsed() < PATIENCE, "{:?}", two.sides[0].counts());
        two.sides[0].guest.send_or_drop(&good);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn the_senders_rate_holds_for_frames_that_leave_without_a_copy() {
    let mut two = landing("");
    two.sides[0].host.change(&vnic("a", 1, &zero_copy("tx = { max = \"20mbit\" }")));
    two.until_landing();
    let before = two.sides[0].counts();
    measured("part of the rate", 0.5..=1.1, || {
        let frame = two.frame(0, 1000);
        let [sender, receiver] = &mut two.sides;
        let (bytes, took) = pump(WHILE, &mut [(&mut sender.guest, frame)], &mut receiver.guest);
        bytes[0] as f64 / bytes_in(20_000_000, took)
    });
    let after = two.sides[0].counts();
    assert!(after.zero_copied_out > before.zero_copied_out + 100, "{after:?}");
}
