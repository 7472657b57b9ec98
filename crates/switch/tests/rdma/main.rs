//! RDMA from guest to guest: two switches over a fabric in memory, and what a network, a device and a stranger do to them.
//!
//! ```text
//!  guest a ─ switch ─ queue pair ─── Fabric ─── queue pair ─ switch ─ guest b
//!                                      ▲ lose, forge, break, unplug
//! ```

mod contract;
mod guest_memory;
#[path = "../harness/mod.rs"]
mod harness;
mod landing;
mod lane;

use harness::fabric::{KEYS, Two, two};
use std::time::{Duration, Instant};
use tidegate_evidence::MemberStatus;
use tidegate_verbs::Status;
use tidegate_verbs::simulated::{Datagram, Fate};

/// Forged datagrams; more by the environment's `FORGERIES`.
const FORGERIES: u64 = 10_000;
/// For so long notices are lost (s); longer by the environment's `SILENCE`.
const SILENCE: u64 = 3;
/// The key by which a vNIC asks for zero copy.
const ZERO_COPY: &str = "zero-copy = true";

/// Returns lines of the contract of a vNIC with zero copy, and `lines`.
fn zero_copy(lines: &str) -> String {
    format!("transport = \"rdma\"\n{ZERO_COPY}\n{lines}")
}

#[test]
fn frames_go_by_rdma_both_ways() {
    let mut two = two();
    let all = 200;
    for from in [0, 1] {
        for n in 0..all {
            two.send(from, n);
        }
    }
    // The last one is counted when it is on its way.
    two.until("counts", || two.sides.iter().all(|side| side.counts().sent == 200));
    for side in &two.sides {
        let counts = side.counts();
        assert_eq!((counts.received, counts.lost, counts.unsent), (200, 0, 0));
        assert_eq!(side.device.counters().datagrams, 200);
        assert_eq!((counts.unknown_member, counts.spoofed, counts.malformed), (0, 0, 0));
    }
    assert_eq!(two.fabric.fates().of(Fate::Delivered), 400);
}

/// What a stranger on the network can send to a queue pair, and does not.
fn forgeries(two: &Two, good: &Datagram) -> Vec<(&'static str, Datagram, Fate)> {
    let spoofed = {
        let mut bytes = good.bytes.clone();
        bytes[32 + 6..32 + 12].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
        Datagram { bytes, ..good.clone() }
    };
    let cut = |len: usize| Datagram { bytes: good.bytes[..len].to_vec(), ..good.clone() };
    let not_ours = {
        let mut bytes = good.bytes.clone();
        bytes[0] ^= 0xff;
        Datagram { bytes, ..good.clone() }
    };
    let to_others = two.sides[1].device.queue_pairs().into_iter().max().unwrap() + 1;
    vec![
        (
            "another queue pair of the peer",
            Datagram { source: good.source + 1, ..good.clone() },
            Fate::Delivered,
        ),
        ("another host", Datagram { from: [192, 0, 2, 9].into(), ..good.clone() }, Fate::Delivered),
        ("the receiver itself", Datagram { from: two.sides[1].address, ..good.clone() }, Fate::Delivered),
        ("another vNIC's address", spoofed, Fate::Delivered),
        ("no header", cut(0), Fate::Delivered),
        ("a header without a frame", cut(32), Fate::Delivered),
        ("a frame without its type", cut(32 + 13), Fate::Delivered),
        ("another header", not_ours, Fate::Delivered),
        ("another segment's key", Datagram { q_key: good.q_key ^ 1, ..good.clone() }, Fate::WrongKey),
        (
            "a queue pair that is not there",
            Datagram { queue_pair: to_others, ..good.clone() },
            Fate::UnknownQueuePair,
        ),
    ]
}

#[test]
fn forged_datagrams_change_no_member_and_reach_no_ring() {
    let mut two = two();
    let members = |two: &Two| -> Vec<MemberStatus> { two.sides[1].status().members };
    let (before, pairs) = (members(&two), two.sides[1].status().pairs);
    let frame = two.frame(0, 100);
    let good = two.datagram(0, &frame);
    let forgeries = forgeries(&two, &good);
    let all = std::env::var("FORGERIES").map_or(FORGERIES, |text| text.parse().unwrap());
    let mut delivered = 0;
    for n in 0..all {
        let (what, forged, expected) = &forgeries[n as usize % forgeries.len()];
        let began = Instant::now();
        loop {
            let fate = two.fabric.forge(forged.clone());
            if fate == *expected {
                delivered += u64::from(fate == Fate::Delivered);
                break;
            }
            // The switch reads them meanwhile.
            assert_eq!(fate, Fate::NoBuffer, "{what}");
            assert!(began.elapsed() < harness::PATIENCE, "{what}: the switch posts no buffers any more");
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    two.until("all are refused", || {
        let counts = two.sides[1].counts();
        counts.unknown_member + counts.spoofed + counts.malformed == delivered
    });
    let side = &mut two.sides[1];
    assert_eq!((side.counts().received, side.counts().lost), (0, 0));
    assert_eq!(side.guest.try_receive(), None);
    assert_eq!(side.host.stats(&side.guest.vnic.name).rx.frames, 0);
    assert_eq!((side.status().members, side.status().pairs), (before, pairs));
    two.frames_go_by_rdma();
}

#[test]
fn lost_datagrams_are_counted() {
    let mut two = two();
    two.send(0, 10);
    [2, 3, 7].into_iter().for_each(|n| two.fabric.lose(n));
    let frames: Vec<_> = (0..10).map(|n| two.frame(0, n)).collect();
    for frame in &frames {
        two.sides[0].guest.send(frame);
    }
    for (n, frame) in frames.iter().enumerate().filter(|(n, _)| ![2, 3, 7].contains(n)) {
        assert_eq!(two.sides[1].guest.receive(), *frame, "frame {n}");
    }
    assert_eq!((two.sides[1].counts().lost, two.sides[1].counts().received), (3, 8));
    // One that was only late is no loss.
    two.fabric.delay(0);
    let late = two.frame(0, 1);
    two.sides[0].guest.send(&late);
    two.until("it is under way", || two.fabric.held() == 1);
    two.send(0, 2);
    assert_eq!(two.sides[1].counts().lost, 4);
    two.fabric.release(1);
    assert_eq!(two.sides[1].guest.receive(), late);
    assert_eq!(two.sides[1].counts().lost, 3);
}

#[test]
fn a_queue_pair_that_fails_is_replaced() {
    let mut two = two();
    two.frames_go_by_rdma();
    for n in [0, 1] {
        for is_send in [true, false] {
            let number = two.sides[n].queue_pair().unwrap();
            if is_send {
                assert!(two.sides[n].device.fail_next_send(number, Status::Failed(12)));
                let frame = two.frame(n, 10);
                two.sides[n].guest.send(&frame);
            } else {
                assert!(two.sides[n].device.break_queue_pair(number));
            }
            two.until("another one", || two.sides[n].queue_pair().is_some_and(|new| new != number));
            two.until_members();
            two.frames_go_by_rdma();
        }
        assert_eq!(two.sides[n].status().pairs[0].failures, 2);
    }
}

#[test]
fn a_datagram_longer_than_its_buffer_is_refused_and_costs_nothing() {
    let mut two = two();
    let number = two.sides[1].queue_pair();
    let frame = two.frame(0, 1);
    let mut forged = two.datagram(0, &frame);
    forged.bytes.resize(9000, 0);
    assert_eq!(two.fabric.forge(forged), Fate::Delivered);
    two.until("it is refused", || two.sides[1].counts().malformed == 1);
    two.frames_go_by_rdma();
    assert_eq!((two.sides[1].queue_pair(), two.sides[1].status().pairs[0].failures), (number, 0));
    assert_eq!(two.sides[1].guest.try_receive(), None);
}

#[test]
fn while_a_port_is_down_frames_go_by_vxlan() {
    let mut two = two();
    two.frames_go_by_rdma();
    two.sides[0].device.set_active(false);
    two.until("a reason", || two.sides[0].status().error.is_some());
    let why = two.sides[0].status().error.unwrap();
    assert!(why.contains("not active"), "{why}");
    two.until("no queue pair", || two.sides[0].queue_pair().is_none() && two.sides[1].member().is_none());
    let before = two.sides.each_ref().map(|side| side.counts().sent);
    for from in [0, 1] {
        two.send(from, 100);
    }
    assert_eq!(two.sides.each_ref().map(|side| side.counts().sent), before);
    two.sides[0].device.set_active(true);
    two.until_members();
    two.frames_go_by_rdma();
}

#[test]
fn a_device_that_is_taken_out_leaves_vxlan() {
    let mut two = two();
    two.frames_go_by_rdma();
    two.sides[1].device.unplug();
    two.until("a reason", || two.sides[1].status().error.is_some() && two.sides[0].member().is_none());
    for from in [0, 1] {
        two.send(from, 100);
    }
}

#[test]
fn another_key_of_the_segment_is_another_q_key() {
    let mut two = two();
    let q_keys =
        |two: &Two| two.sides.each_ref().map(|side| side.device.q_key(side.queue_pair().unwrap()).unwrap());
    let old = q_keys(&two);
    assert_eq!(old[0], old[1]);
    // Both keys are valid everywhere, before one is no more.
    for keys in [&[KEYS[0], KEYS[1]][..], &[KEYS[1], KEYS[0]], &[KEYS[1]]] {
        two.sides.iter().for_each(|side| side.set(keys, None));
        two.until_members();
    }
    two.until("other keys", || q_keys(&two).iter().all(|new| *new != old[0]));
    (0..2).for_each(|from| two.until_accepted(from));
    two.frames_go_by_rdma();
}

#[test]
fn a_vnic_that_leaves_is_no_member_any_more() {
    let mut two = two();
    let name = two.sides[1].guest.vnic.name.clone();
    two.sides[1].host.switch.remove_port(&name).unwrap();
    two.until("no member", || two.sides[0].member().is_none());
    assert!(two.sides[1].device.queue_pairs().is_empty());
    let counts = two.sides[0].counts();
    let frame = two.frame(0, 1);
    two.sides[0].guest.send(&frame);
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(50) {
        assert_eq!(two.sides[0].counts().sent, counts.sent);
    }
}

/// It would lose what it sends by RDMA: its queue pairs are forgotten there after 80 s.
#[test]
fn a_host_that_is_not_heard_sends_by_vxlan_until_it_is() {
    let silence = std::env::var("SILENCE").map_or(SILENCE, |text| text.parse().unwrap());
    let silence = Duration::from_secs(silence);
    let mut two = two();
    two.frames_go_by_rdma();
    two.sides[1].lose_notices(true);
    let (began, mut by_vxlan) = (Instant::now(), None);
    while began.elapsed() < silence {
        two.send(0, 100);
        if by_vxlan.is_none() && two.sides[0].member().is_none() {
            let why = two.sides[0].status().members[0].error.clone().unwrap();
            assert!(why.contains("not answered this host, for 35 s"), "{why}");
            by_vxlan = Some(two.sides[0].counts().sent);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    if silence < Duration::from_secs(30) {
        assert_eq!(by_vxlan, None, "answers may be lost for a while");
    } else if silence >= Duration::from_secs(90) {
        assert!(two.sides[1].status().members.is_empty(), "forgotten");
        assert_eq!(by_vxlan, Some(two.sides[0].counts().sent));
    }
    two.sides[1].lose_notices(false);
    two.until_members();
    two.frames_go_by_rdma();
    assert_eq!(two.sides[1].counts().unknown_member, 0);
}
