//! Queue pairs that hosts announce.

use super::*;
use crate::hosts::notices::Heard;
use tidegate_uplink::notice::Member;
use tidegate_uplink::rdma::q_key;

/// Returns the Q_Key under a key.
fn of_key(key: u8) -> u32 {
    q_key(&Key::new([key; 16]), 42)
}

/// A vNIC with a queue pair.
fn with(mac: u8, queue_pair: u32) -> Local {
    Local { queue_pair: Some(queue_pair), q_key: of_key(7), longest: 4064, ..local(mac) }
}

/// What is heard of it at the second host.
fn heard(mac: u8, queue_pair: u32, key: u8) -> Heard {
    Heard {
        segment: segment(),
        mac: local(mac).mac,
        peer: peer(2),
        address: address(2),
        queue_pair,
        q_key: of_key(key),
        longest: 4064,
        is_fresh: true,
    }
}

/// Lets the hosts talk for some turns of 10 ms; returns what the first one tells each time.
fn tells(time: &Time, a: &mut Host, b: &mut Host, turns: usize) -> Vec<Vec<Heard>> {
    let mut all = Vec::new();
    for _ in 0..turns {
        talk(time, a, b, 1, (0, 0));
        all.extend(a.engine.take_members());
    }
    all
}

#[test]
fn a_member_is_heard_changes_and_leaves() {
    let time = Time::default();
    let (mut a, mut b) = pair(&time, 77 * SECOND, 90);
    assert_eq!(tells(&time, &mut a, &mut b, 20), [[]; 0]);
    b.engine.set_locals(vec![with(1, 17), local(2)]);
    assert_eq!(tells(&time, &mut a, &mut b, 20), [[heard(1, 17, 7)]]);
    // Told again and again: no change.
    assert_eq!(tells(&time, &mut a, &mut b, 4000), [[]; 0]);
    b.engine.set_locals(vec![with(1, 19), with(2, 18)]);
    let all = tells(&time, &mut a, &mut b, 20);
    assert_eq!(all.last().unwrap(), &[heard(1, 19, 7), heard(2, 18, 7)]);
    b.engine.set_locals(vec![Local { is_up: false, ..with(1, 19) }, with(2, 18)]);
    assert_eq!(tells(&time, &mut a, &mut b, 20), [[heard(2, 18, 7)]], "its guest has left");
    b.engine.set_locals(vec![]);
    assert_eq!(tells(&time, &mut a, &mut b, 20), [[]; 1]);
    assert!(a.counts().refused.is_empty(), "{:?}", a.counts());
    assert!(a.counts().members_received >= 8 && b.counts().members_sent >= a.counts().members_received);
}

#[test]
fn members_of_a_silent_peer_are_sent_to_for_35_seconds_and_forgotten_after_80() {
    let time = Time::default();
    let (mut a, mut b) = pair(&time, 0, 0);
    b.engine.set_locals(vec![with(1, 17)]);
    assert_eq!(tells(&time, &mut a, &mut b, 20).len(), 1);
    let began = time.read(0, 0);
    let mut tells = || loop {
        let now = time.read(0, 0);
        let due = a.engine.due(now).unwrap();
        assert!(due <= now + SECOND, "the thread looks each second");
        time.pass(100 * MS);
        a.engine.send();
        b.capture();
        if let Some(told) = a.engine.take_members() {
            break (told, (time.read(0, 0) - began) / SECOND);
        }
    };
    let (told, after) = tells();
    assert_eq!(told, [Heard { is_fresh: false, ..heard(1, 17, 7) }]);
    assert!((34..37).contains(&after), "{after}");
    let (told, after) = tells();
    assert!(told.is_empty() && (79..82).contains(&after), "{told:?} {after}");
}

/// One way is lost: the peer forgets this host's vNICs, and would drop their frames.
#[test]
fn a_peer_that_does_not_hear_this_host_is_sent_to_no_more_until_it_was_told_anew() {
    let time = Time::default();
    let (mut a, mut b) = pair(&time, 3 * SECOND, 20);
    a.engine.set_locals(vec![with(3, 21)]);
    b.engine.set_locals(vec![with(1, 17)]);
    assert_eq!(tells(&time, &mut a, &mut b, 200), [[heard(1, 17, 7)]]);
    assert_eq!(b.engine.take_members().unwrap()[0].queue_pair, 21);
    let began = time.read(0, 0);
    let mut changes = Vec::new();
    while time.read(0, 0) - began < 120 * SECOND {
        a.engine.send();
        b.capture();
        b.engine.send();
        a.engine.receive();
        time.pass(100 * MS);
        let after = (time.read(0, 0) - began) / SECOND;
        changes.extend(a.engine.take_members().map(|told| ("here", told, after)));
        let seen_there = b.engine.take_members().filter(|told| told.is_empty());
        changes.extend(seen_there.map(|told| ("forgotten there", told, after)));
    }
    let stale = Heard { is_fresh: false, ..heard(1, 17, 7) };
    let [("here", told, after), ("forgotten there", _, forgotten)] = &changes[..] else {
        panic!("{changes:?}");
    };
    assert_eq!(*told, [stale]);
    assert!((34..37).contains(after) && *forgotten > 65, "{changes:?}");
    // Both ways again.
    assert_eq!(tells(&time, &mut a, &mut b, 100), [[]; 0], "not before it was told anew");
    assert_eq!(b.engine.take_members().unwrap()[0].queue_pair, 21, "which it was at once");
    assert_eq!(tells(&time, &mut a, &mut b, 1300), [[]; 0]);
    assert_eq!(tells(&time, &mut a, &mut b, 300), [[heard(1, 17, 7)]]);
}

#[test]
fn a_restart_of_a_peer_forgets_its_members_at_once() {
    let time = Time::default();
    let (mut a, mut b) = pair(&time, 3 * SECOND, 0);
    b.engine.set_locals(vec![with(1, 17)]);
    assert_eq!(tells(&time, &mut a, &mut b, 20), [[heard(1, 17, 7)]]);
    let port = a.port;
    drop(b);
    let mut b = Host::new(2, port, time.clock(0, 0));
    b.knows(&[1], 7);
    assert_eq!(tells(&time, &mut a, &mut b, 40), [[]; 1], "the former process's queue pair is gone");
    b.engine.set_locals(vec![with(1, 9)]);
    assert_eq!(tells(&time, &mut a, &mut b, 20), [[heard(1, 9, 7)]]);
    // The peer leaves the contract.
    a.knows(&[3], 7);
    assert_eq!(a.engine.take_members(), Some(vec![]));
}

#[test]
fn another_key_has_members_announced_anew_with_its_q_key() {
    let time = Time::default();
    let (mut a, mut b) = pair(&time, 0, 0);
    b.engine.set_locals(vec![with(1, 17)]);
    assert_eq!(tells(&time, &mut a, &mut b, 20), [[heard(1, 17, 7)]]);
    let keys = Keys { even: Some(Key::new([7; 16])), odd: Some(Key::new([8; 16])) };
    let both = |sends| vec![KeyedSegment { keys, sends, ..keyed(7) }];
    a.knows_of(&[2], None, both(KeyNumber::Even));
    assert_eq!(tells(&time, &mut a, &mut b, 20), [[]; 0]);
    let stale = Heard { is_fresh: false, ..heard(1, 17, 7) };
    b.knows_of(&[1], None, both(KeyNumber::Odd));
    assert_eq!(
        tells(&time, &mut a, &mut b, 4000),
        [[stale]],
        "never with a Q_Key that the queue pair does not have"
    );
    b.engine.set_locals(vec![Local { q_key: of_key(8), ..with(1, 17) }]);
    assert_eq!(tells(&time, &mut a, &mut b, 20), [[heard(1, 17, 8)]], "the new key is sent with");
    let keys = Keys { even: None, ..keys };
    a.knows_of(&[2], None, vec![KeyedSegment { keys, sends: KeyNumber::Odd, ..keyed(7) }]);
    assert_eq!(tells(&time, &mut a, &mut b, 20), [[]; 0], "the former key ends");
    a.knows(&[2], 7);
    assert_eq!(tells(&time, &mut a, &mut b, 20), [[]; 1], "its key is not valid here any more");
}

#[test]
fn of_two_hosts_the_one_that_has_the_vnic_later_is_heard() {
    let time = Time::default();
    let (mut a, mut b) = pair(&time, 500 * SECOND, 0);
    let mut c = Host::new(3, a.port, time.clock(2 * SECOND, 0));
    a.knows(&[2, 3], 7);
    c.knows(&[1], 7);
    let tells = |a: &mut Host, b: &mut Host, c: &mut Host, turns| {
        let mut last = None;
        for _ in 0..turns {
            for host in [&mut *a, b, c] {
                host.engine.receive();
                host.engine.send();
            }
            last = a.engine.take_members().or(last);
            time.pass(10 * MS);
        }
        last
    };
    tells(&mut a, &mut b, &mut c, 40);
    b.engine.set_locals(vec![with(1, 17)]);
    assert_eq!(tells(&mut a, &mut b, &mut c, 40), Some(vec![heard(1, 17, 7)]));
    c.engine.set_locals(vec![with(1, 17)]);
    let at_c = Heard { peer: peer(3), address: address(3), ..heard(1, 17, 7) };
    assert_eq!(tells(&mut a, &mut b, &mut c, 40), Some(vec![at_c]));
    assert_eq!(tells(&mut a, &mut b, &mut c, 2500), None, "host 2 has not let go yet, and says so again");
    b.engine.set_locals(vec![]);
    assert_eq!(tells(&mut a, &mut b, &mut c, 40), None);
    c.engine.set_locals(vec![]);
    assert_eq!(tells(&mut a, &mut b, &mut c, 40), Some(vec![]));
}

#[test]
fn a_vnic_of_this_host_is_no_member_elsewhere() {
    let time = Time::default();
    let (mut a, mut b) = pair(&time, 0, 0);
    a.engine.set_locals(vec![Local { is_up: false, ..local(1) }]);
    b.engine.set_locals(vec![with(1, 17), with(2, 18)]);
    assert_eq!(tells(&time, &mut a, &mut b, 30).last(), Some(&vec![heard(2, 18, 7)]));
    a.engine.set_locals(vec![]);
    assert_eq!(tells(&time, &mut a, &mut b, 30).last(), Some(&vec![heard(1, 17, 7), heard(2, 18, 7)]));
}

#[test]
fn a_peer_announces_in_no_segment_that_does_not_reach_it() {
    let time = Time::default();
    let (mut a, mut b) = pair(&time, 0, 0);
    let other = KeyedSegment { segment: Segment::new(43).unwrap(), index: None, ..keyed(7) };
    a.knows_of(&[2], Some(&[other.segment]), vec![keyed(7), other]);
    b.knows_of(&[1], None, vec![keyed(7), other]);
    b.engine.set_locals(vec![with(1, 17)]);
    assert_eq!(tells(&time, &mut a, &mut b, 1000), [[]; 0]);
    assert!(a.counts().exchanges > 0 && a.refused("no_key") > 0);
    // The contract lets the segment reach it: the next announcement is heard.
    a.knows_of(&[2], None, vec![keyed(7), other]);
    assert_eq!(tells(&time, &mut a, &mut b, 1100), [[heard(1, 17, 7)]]);
    a.knows_of(&[2], Some(&[other.segment]), vec![keyed(7), other]);
    assert_eq!(tells(&time, &mut a, &mut b, 20), [[]; 1], "and no more");
}

/// A host without a key of the segment, in the place of a peer: another key, other ways, replays, other processes,
/// changed bits, segments without a key. A host with the key says what no vNIC can have. `TIDEGATE_FORGERIES`: how many,
/// instead of 10,000.
#[test]
fn forged_announcements_change_nothing() {
    let forgeries = std::env::var("TIDEGATE_FORGERIES").map_or(10_000, |count| count.parse().unwrap());
    let time = Time::default();
    let (mut a, mut b) = pair(&time, 3 * SECOND, 20);
    b.engine.set_locals(vec![with(1, 17)]);
    talk(&time, &mut a, &mut b, 3, (0, 0));
    // Recorded: what the peer said of its queue pair before.
    b.engine.set_locals(vec![with(1, 18)]);
    b.engine.send();
    let is_member = |message: &Vec<u8>| message[3] == 5;
    let recorded = a.capture().into_iter().find(is_member).unwrap();
    b.send(&recorded, &a);
    b.engine.set_locals(vec![with(1, 19)]);
    assert_eq!(tells(&time, &mut a, &mut b, 30).last(), Some(&vec![heard(1, 19, 7)]));
    let before = a.counts();
    let started = 4 * SECOND;
    for n in 0..forgeries {
        let mac = [2, 0, 0, 0, 0, 1 + (n % 3) as u8];
        let body = Body::Member(Member { mac, since_ns: u64::MAX, queue_pair: 100 + n, longest: 9000 });
        let sent = (started, u32::MAX / 2 - n, u64::MAX);
        let forged = match n % 7 {
            0 => b.notice(1, 6, sent, body),
            1 => b.notice(3, 7, sent, body),
            2 => recorded.clone(),
            3 => b.notice(1, 7, (started - 1, n, u64::MAX), body),
            4 => {
                let mut changed = recorded.clone();
                let bit = n as usize / 7 % (changed.len() * 8);
                changed[bit / 8] ^= 1 << (bit % 8);
                changed
            }
            5 => {
                let mut other = b.notice(1, 7, sent, body);
                other[7] = 43;
                other
            }
            _ => b.notice(1, 7, sent, Body::Member(Member { mac, since_ns: 1, queue_pair: 0, longest: 60 })),
        };
        b.send(&forged, &a);
        a.engine.receive();
        assert_eq!(a.engine.take_members(), None, "{n}: {:?}", a.counts());
        time.pass(10 * MS);
        if n % 25 == 0 {
            assert_eq!(tells(&time, &mut a, &mut b, 1), [[]; 0], "{n}");
        }
    }
    let counts = a.counts();
    let refused = |why: &str| a.refused(why) - before.refused.get(why).copied().unwrap_or_default();
    let all = ["malformed", "version", "no_key", "forged", "other_process", "replayed"].map(refused);
    assert!(all.iter().all(|count| *count > 0), "{:?}", counts.refused);
    assert_eq!(
        (all.iter().sum::<u64>(), refused("too_many")),
        (u64::from(forgeries), 0),
        "{:?}",
        counts.refused
    );
    assert!(counts.members_received > before.members_received, "the peer itself is heard all the time");
    b.engine.set_locals(vec![with(1, 20)]);
    assert_eq!(tells(&time, &mut a, &mut b, 30), [[heard(1, 20, 7)]]);
}

#[test]
fn a_group_address_is_no_member() {
    let time = Time::default();
    let (mut a, mut b) = pair(&time, 0, 0);
    b.engine.set_locals(vec![Local { mac: Mac([3, 0, 0, 0, 0, 1]), ..with(1, 17) }]);
    assert_eq!(tells(&time, &mut a, &mut b, 30), [[]; 0]);
    assert!(a.refused("malformed") > 0);
}
