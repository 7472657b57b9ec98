//! Hosts with clocks of their own, whose notices pass over sockets of the loopback device.

use super::engine::{Clock, Engine, Moved};
use super::setup::{KeyedSegment, LinkSetup, Local, PeerSetup, Setup};
use super::socket;
use crate::fdb::{PeerIndex, SegmentIndex};
use crate::hosts::late::{self, Where};
use crate::hosts::{Clocks, Late};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tidegate_contract::{Mac, Segment};
use tidegate_evidence::{FarMiss, MissCause, PeerCounts, PeerStatus};
use tidegate_uplink::notice::{Body, Here, LEN_MAX, Notice, Way};
use tidegate_uplink::stamp::{Key, KeyNumber, Keys};

mod members;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

fn address(host: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(127, 0, 7, host))
}

fn segment() -> Segment {
    Segment::new(42).unwrap()
}

fn peer(host: u8) -> PeerIndex {
    PeerIndex::new(u16::from(host)).unwrap()
}

fn keyed(key: u8) -> KeyedSegment {
    let keys = Keys { even: Some(Key::new([key; 16])), odd: None };
    KeyedSegment { segment: segment(), index: Some(SegmentIndex(3)), keys, sends: KeyNumber::Even }
}

/// Time of the network, which hosts' clocks follow.
#[derive(Clone, Default)]
struct Time(Arc<AtomicU64>);

impl Time {
    fn pass(&self, ns: u64) {
        self.0.fetch_add(ns, Relaxed);
    }

    /// Returns a clock that is `ahead` ns and runs faster by `ppm`.
    fn clock(&self, ahead: u64, ppm: u64) -> Clock {
        let time = self.clone();
        Box::new(move || time.read(ahead, ppm))
    }

    fn read(&self, ahead: u64, ppm: u64) -> u64 {
        let now = self.0.load(Relaxed);
        now + now / 1_000_000 * ppm + ahead
    }
}

/// One host.
struct Host {
    engine: Engine,
    clocks: Arc<Clocks>,
    socket: Arc<OwnedFd>,
    port: u16,
    number: u8,
}

impl Host {
    fn new(number: u8, port: u16, clock: Clock) -> Self {
        let socket = UdpSocket::bind(SocketAddr::new(address(number), port)).unwrap();
        socket.set_nonblocking(true).unwrap();
        let port = socket.local_addr().unwrap().port();
        let clocks = Arc::<Clocks>::default();
        let engine = Engine::new(clock, clocks.clone());
        Self { engine, clocks, socket: Arc::new(socket.into()), port, number }
    }

    fn knows(&mut self, peers: &[u8], key: u8) {
        self.knows_of(peers, None, vec![keyed(key)]);
    }

    /// Sets the peers, which `reach` reaches, and the segments with keys.
    fn knows_of(&mut self, peers: &[u8], reach: Option<&[Segment]>, segments: Vec<KeyedSegment>) {
        let peers = peers.iter().map(|host| PeerSetup {
            index: peer(*host),
            name: format!("host{host}"),
            address: address(*host),
            stamps: true,
            segments: reach.map(<[_]>::to_vec),
        });
        let link = LinkSetup {
            index: 9,
            name: "net0".into(),
            local: address(self.number),
            port: self.port,
            socket: self.socket.clone(),
            peers: peers.collect(),
        };
        self.engine.set(Setup { links: vec![link], segments });
    }

    fn status(&self) -> PeerStatus {
        self.engine.status(9).0.remove(0)
    }

    fn counts(&self) -> PeerCounts {
        self.status().counts
    }

    fn refused(&self, why: &str) -> u64 {
        self.counts().refused.get(why).copied().unwrap_or_default()
    }

    /// Takes what has arrived, off the engine.
    fn capture(&self) -> Vec<Vec<u8>> {
        let mut buffer = [0; LEN_MAX];
        std::iter::from_fn(|| {
            let (len, _) = socket::receive(&self.socket, &mut buffer).ok()?;
            Some(buffer[..len].to_vec())
        })
        .collect()
    }

    /// Sends a message of this host as it is.
    fn send(&self, message: &[u8], to: &Host) {
        socket::send(&self.socket, message, SocketAddr::new(address(to.number), self.port)).unwrap();
    }

    /// Makes a notice of this host, as if its process had started at `started`.
    fn notice(&self, to: u8, key: u8, times: (u64, u32, u64), body: Body) -> Vec<u8> {
        self.notice_of(segment(), to, key, times, body)
    }

    /// The same, of another segment.
    fn notice_of(
        &self,
        segment: Segment,
        to: u8,
        key: u8,
        (started_ns, number, sent_ns): (u64, u32, u64),
        body: Body,
    ) -> Vec<u8> {
        let way = Way { from: address(self.number), to: address(to) };
        let notice = Notice { key: KeyNumber::Even, vni: segment.id(), started_ns, number, sent_ns, body };
        notice.write(&Key::new([key; 16]), way).as_bytes().to_vec()
    }
}

/// Two hosts that know each other, with one key; the second's clock differs.
fn pair(time: &Time, ahead: u64, ppm: u64) -> (Host, Host) {
    time.pass(SECOND);
    let mut a = Host::new(1, 0, time.clock(0, 0));
    let mut b = Host::new(2, a.port, time.clock(ahead, ppm));
    a.knows(&[2], 7);
    b.knows(&[1], 7);
    (a, b)
}

/// Lets the hosts talk for `turns` of 10 ms; each message is under way for `there` or `back` ns.
fn talk(time: &Time, a: &mut Host, b: &mut Host, turns: usize, (there, back): (u64, u64)) {
    for _ in 0..turns {
        a.engine.send();
        time.pass(there);
        b.engine.receive();
        b.engine.send();
        time.pass(back);
        a.engine.receive();
        time.pass(10 * MS - there - back);
    }
}

#[test]
fn the_offset_lies_within_its_error_whatever_the_ways_take() {
    for (there, back) in [(20_000, 20_000), (1_000, 300_000), (500_000, 10_000)] {
        let time = Time::default();
        let (mut a, mut b) = pair(&time, 77 * SECOND, 90);
        talk(&time, &mut a, &mut b, 100, (there, back));
        let (now, there_now) = (time.read(0, 0), time.read(77 * SECOND, 90));
        for (estimate, truth) in [
            (a.clocks.estimate(peer(2), now).unwrap(), there_now as i64 - now as i64),
            (b.clocks.estimate(peer(1), there_now).unwrap(), now as i64 - there_now as i64),
        ] {
            let off = estimate.offset_ns.abs_diff(truth);
            assert!(off <= estimate.error_ns, "{there} {back}: {off} of {estimate:?}");
        }
        let status = a.status();
        let (clock, round_trip) = (status.clock.unwrap(), status.round_trip.unwrap());
        assert_eq!((round_trip.least_ns, status.reachable), (there + back, true));
        // Half the round trip, and the drift since the exchange.
        assert!(clock.error_ns <= (there + back) / 2 + clock.age_ns / 5000 + 20_000, "{clock:?}");
        assert!(status.counts.exchanges >= 16, "{status:?}");
        assert_eq!((status.counts.missing, status.counts.refused.len()), (0, 0));
    }
}

#[test]
fn no_answer_without_the_key() {
    let time = Time::default();
    let (mut a, mut b) = pair(&time, 0, 0);
    b.knows(&[1], 8);
    talk(&time, &mut a, &mut b, 50, (0, 0));
    assert!(a.refused("forged") > 0 && b.refused("forged") > 0);
    assert_eq!((a.counts().exchanges, a.status().clock, a.status().reachable), (0, None, false));
    assert_eq!(a.clocks.estimate(peer(2), time.read(0, 0)), None);
    // The key arrives: no restart of anything is needed.
    b.knows(&[1], 7);
    talk(&time, &mut a, &mut b, 50, (0, 0));
    assert!(a.counts().exchanges > 0);
}

#[test]
fn a_peer_without_a_key_is_not_asked_and_says_why() {
    let time = Time::default();
    let (mut a, b) = pair(&time, 0, 0);
    let link = |stamps| {
        let (name, address) = ("host2".into(), address(2));
        let peer = PeerSetup { index: peer(2), name, address, stamps, segments: None };
        let (port, socket) = (a.port, a.socket.clone());
        LinkSetup { index: 9, name: "net0".into(), local: self::address(1), port, socket, peers: vec![peer] }
    };
    let setups = [(link(false), vec![keyed(7)], "stamps = false"), (link(true), vec![], "has a key")];
    for (link, segments, why) in setups {
        a.engine.set(Setup { links: vec![link], segments });
        a.engine.send();
        assert!(b.capture().is_empty());
        assert!(a.status().unasked.unwrap().contains(why));
    }
}

#[test]
fn reflected_redirected_and_foreign_messages_are_refused() {
    let time = Time::default();
    let (mut a, b) = pair(&time, 0, 0);
    a.engine.send();
    let request = b.capture().remove(0);
    b.send(&request, &a);
    a.engine.receive();
    assert_eq!(a.refused("forged"), 1, "its own request comes back");
    let redirected = b.notice(3, 7, (1, 1, 1), Body::ClockRequest);
    b.send(&redirected, &a);
    b.send(b"not a notice", &a);
    b.send(&[0; LEN_MAX + 50], &a);
    a.engine.receive();
    assert_eq!((a.refused("forged"), a.refused("malformed")), (2, 2));
    let c = Host::new(3, a.port, time.clock(0, 0));
    c.send(&b.notice(1, 7, (1, 1, 1), Body::ClockRequest), &a);
    a.engine.receive();
    assert_eq!((a.engine.unknown(9), a.refused("forged")), (1, 2), "no peer's address: no tag is computed");
    assert!(b.capture().is_empty(), "nothing of this is answered");
}

#[test]
fn an_answer_counts_once_and_only_for_its_request() {
    let time = Time::default();
    let (mut a, mut b) = pair(&time, 5, 0);
    a.engine.send();
    b.engine.receive();
    // B asks as well; the answer is the longer message.
    let answer = a.capture().into_iter().find(|message| message.len() > 40).unwrap();
    b.send(&answer, &a);
    b.send(&answer, &a);
    a.engine.receive();
    assert_eq!((a.counts().exchanges, a.refused("unasked")), (1, 1));
    let mut late = answer.clone();
    late[27] ^= 1;
    b.send(&late, &a);
    a.engine.receive();
    assert_eq!(a.refused("forged"), 1, "t3 cannot be changed");
}

#[test]
fn authentic_messages_are_taken_at_a_bounded_rate_and_no_other_ones_use_that_up() {
    let time = Time::default();
    let (mut a, mut b) = pair(&time, 0, 0);
    talk(&time, &mut a, &mut b, 3, (0, 0));
    let flood = |a: &mut Host, b: &Host, count: u32, key| {
        for n in 0..count {
            b.send(&b.notice(1, key, (1, n, 1), Body::ClockRequest), a);
            let _ = a.engine.receive();
        }
    };
    flood(&mut a, &b, 1000, 6);
    assert_eq!((a.refused("forged"), a.refused("too_many")), (1000, 0));
    b.engine.set_locals(vec![local(1)]);
    talk(&time, &mut a, &mut b, 3, (0, 0));
    assert_eq!(a.engine.take_moved().len(), 1, "the peer is heard");
    time.pass(SECOND);
    flood(&mut a, &b, 1000, 7);
    assert_eq!(a.refused("too_many"), 800);
    b.capture();
    b.engine.set_locals(vec![local(1), local(2)]);
    b.engine.send();
    a.engine.receive();
    assert!(!a.engine.take_moved().is_empty(), "nor do requests keep announcements away");
    time.pass(SECOND / 2);
    let before = a.refused("too_many");
    flood(&mut a, &b, 200, 7);
    assert_eq!(a.refused("too_many") - before, 100, "half a second later, half as many");
}

/// A host with a peer's address sends what it has recorded: the peer's own requests are answered all the same.
#[test]
fn recorded_requests_keep_no_answer_from_the_peer() {
    let time = Time::default();
    let (mut a, mut b) = pair(&time, 5 * SECOND, 0);
    talk(&time, &mut a, &mut b, 20, (0, 0));
    time.pass(SECOND);
    b.engine.send();
    let recorded = a.capture();
    let former = b.notice(1, 7, (1, 1, 1), Body::ClockRequest);
    for (what, why) in [(&recorded[0], "replayed"), (&former, "too_many")] {
        let (exchanges, refused, unanswered) = (b.counts().exchanges, a.refused(why), b.counts().missing);
        for _ in 0..500 {
            // Five in 10 ms: more than the peer may send itself.
            (0..5).for_each(|_| b.send(what, &a));
            a.engine.receive();
            talk(&time, &mut a, &mut b, 1, (0, 0));
        }
        assert!(b.counts().exchanges >= exchanges + 19, "four a second, for 5 s: {:?}", b.counts());
        assert!(b.counts().missing <= unanswered + 1, "{:?}", b.counts());
        assert!(a.refused(why) > refused + 500, "{:?}", a.counts().refused);
    }
    assert!(b.status().reachable && b.status().clock.is_some());
}

/// A host that shares one segment with a peer has its key, and may send from the peer's address.
#[test]
fn a_notice_from_the_future_costs_no_other_segment() {
    let time = Time::default();
    let (mut a, mut b) = pair(&time, 5 * SECOND, 0);
    let other = Segment::new(43).unwrap();
    let both = || vec![keyed(7), KeyedSegment { segment: other, index: None, ..keyed(8) }];
    a.knows_of(&[2], None, both());
    b.knows_of(&[1], None, both());
    talk(&time, &mut a, &mut b, 20, (0, 0));
    let started = 6 * SECOND;
    b.send(&b.notice_of(other, 1, 8, (started, u32::MAX / 2, u64::MAX / 2), Body::ClockRequest), &a);
    a.engine.receive();
    // Its own segment is refused from now on.
    b.send(&b.notice_of(other, 1, 8, (started, 1000, 20 * SECOND), Body::ClockRequest), &a);
    a.engine.receive();
    assert_eq!(a.refused("replayed"), 1);
    b.engine.set_locals(vec![local(1)]);
    talk(&time, &mut a, &mut b, 20, (0, 0));
    assert_eq!(a.engine.take_moved().len(), 1, "{:?}", a.counts());
}

#[test]
fn a_turn_takes_a_bounded_number_of_messages() {
    let time = Time::default();
    let (mut a, b) = pair(&time, 0, 0);
    (0..100).for_each(|n| b.send(&b.notice(1, 6, (1, n, 1), Body::ClockRequest), &a));
    assert!(a.engine.receive(), "more may wait");
    assert_eq!(a.refused("forged"), 64);
    assert!(!a.engine.receive());
}

fn late_frame(src: u8, late_ns: u64) -> Late {
    Late {
        peer: peer(1),
        segment: SegmentIndex(3),
        src: Mac([2, 0, 0, 0, 0, src]),
        dst: Mac([2, 0, 0, 0, 1, 0]),
        sequence: 5,
        deadline_us: 500,
        late_ns,
        error_ns: 100,
        hold_ns: 10,
        network_ns: 20,
        here_ns: 30,
        cause: Where::Receiver(MissCause::Queue),
        dropped: false,
    }
}

fn local(mac: u8) -> Local {
    let mac = Mac([2, 0, 0, 0, 0, mac]);
    Local {
        name: format!("v{}", mac.0[5]),
        segment: segment(),
        mac,
        is_up: true,
        queue_pair: None,
        q_key: 0,
        longest: 0,
    }
}

fn far_misses(host: &Host) -> Vec<FarMiss> {
    host.engine.status(9).1
}

#[test]
fn a_late_frame_is_told_to_its_senders_host() {
    let time = Time::default();
    let (mut a, mut b) = pair(&time, 3 * SECOND, 0);
    a.engine.set_locals(vec![local(1)]);
    let (mut worker, queue) = late::queue();
    b.engine.attach(queue);
    talk(&time, &mut a, &mut b, 5, (0, 0));
    for late_ns in [700, 90_000, 50] {
        worker.push(late_frame(1, late_ns)).unwrap();
    }
    worker.push(late_frame(77, 1)).unwrap();
    talk(&time, &mut a, &mut b, 10, (0, 0));
    let [miss] = far_misses(&a).try_into().unwrap();
    assert_eq!((miss.vnic.as_str(), miss.peer.as_str(), miss.cause.as_str()), ("v1", "host2", "queue"));
    assert_eq!((miss.late_ns, miss.others, miss.deadline_ns), (90_000, 2, 500_000));
    assert_eq!((miss.hold_ns, miss.network_ns, miss.there_ns, miss.error_ns), (10, 20, 30, 100));
    assert!(miss.is_certain());
    let counts = a.counts();
    assert_eq!((counts.reports_received, counts.late_frames, a.refused("unknown_vnic")), (1, 3, 1));
    assert_eq!(b.counts().reports_sent, 2);
}

#[test]
fn reports_are_taken_once_and_only_of_the_process_that_answers() {
    let time = Time::default();
    let (mut a, mut b) = pair(&time, 3 * SECOND, 0);
    a.engine.set_locals(vec![local(1)]);
    let (mut worker, queue) = late::queue();
    b.engine.attach(queue);
    talk(&time, &mut a, &mut b, 20, (0, 0));
    worker.push(late_frame(1, 700)).unwrap();
    time.pass(100 * MS);
    b.engine.send();
    let all = a.capture();
    let report = all.iter().find(|message| message.len() == LEN_MAX).unwrap().clone();
    for _ in 0..3 {
        b.send(&report, &a);
    }
    a.engine.receive();
    assert_eq!((far_misses(&a).len(), a.refused("replayed")), (1, 2));
    // Host 2 starts again: its clock counts from 0, and what its former process sent is worth nothing.
    let port = a.port;
    drop(b);
    let mut b = Host::new(2, port, time.clock(0, 0));
    b.knows(&[1], 7);
    talk(&time, &mut a, &mut b, 40, (0, 0));
    b.send(&report, &a);
    a.engine.receive();
    assert_eq!((far_misses(&a).len(), a.refused("other_process")), (1, 1));
    let clock = a.status().clock.unwrap();
    assert!(clock.offset_ns.unsigned_abs() <= clock.error_ns, "the former clock is forgotten: {clock:?}");
    assert_eq!(a.counts().restarts, 1);
}

#[test]
fn the_clock_of_a_silent_peer_is_withdrawn_and_comes_back() {
    let time = Time::default();
    let (mut a, mut b) = pair(&time, 0, 0);
    talk(&time, &mut a, &mut b, 20, (0, 0));
    let known = |a: &Host| a.clocks.estimate(peer(2), time.read(0, 0)).is_some();
    assert!(known(&a));
    for _ in 0..40 {
        time.pass(100 * MS);
        a.engine.send();
        b.capture();
    }
    assert!(known(&a) && a.status().reachable, "4 s: its error has grown");
    for _ in 0..30 {
        time.pass(100 * MS);
        a.engine.send();
        b.capture();
    }
    assert!(!known(&a) && a.status().clock.is_none() && !a.status().reachable);
    assert_eq!(a.counts().withdrawn, 1);
    assert!(a.counts().missing > 0);
    talk(&time, &mut a, &mut b, 60, (0, 0));
    assert!(known(&a) && a.status().reachable);
}

#[test]
fn a_clock_that_steps_is_followed() {
    // CLOCK_MONOTONIC_RAW does not step while a machine runs; a machine that was frozen and moved may.
    let (time, step) = (Time::default(), Arc::new(AtomicU64::new(0)));
    time.pass(SECOND);
    let mut a = Host::new(1, 0, time.clock(0, 0));
    let (its, ahead) = (time.clone(), step.clone());
    let mut b = Host::new(2, a.port, Box::new(move || its.read(ahead.load(Relaxed), 0)));
    a.knows(&[2], 7);
    b.knows(&[1], 7);
    talk(&time, &mut a, &mut b, 100, (1000, 1000));
    step.store(9 * SECOND, Relaxed);
    talk(&time, &mut a, &mut b, 100, (1000, 1000));
    let clock = a.status().clock.unwrap();
    assert!(clock.offset_ns.abs_diff(9 * SECOND as i64) <= clock.error_ns, "{clock:?}");
}

/// A vNIC moves from host 2 to host 3: whichever announcement comes last, the later one counts.
#[test]
fn announcements_tell_since_when_a_vnic_is_there_by_the_receivers_clock() {
    let time = Time::default();
    let (mut a, mut b) = pair(&time, 500 * SECOND, 0);
    let mut c = Host::new(3, a.port, time.clock(2 * SECOND, 0));
    a.knows(&[2, 3], 7);
    c.knows(&[1], 7);
    let moves = |a: &mut Host, b: &mut Host, c: &mut Host, turns| -> Vec<Moved> {
        let mut all = Vec::new();
        for _ in 0..turns {
            for host in [&mut *a, b, c] {
                host.engine.receive();
                host.engine.send();
            }
            all.extend(a.engine.take_moved());
            time.pass(10 * MS);
        }
        all
    };
    moves(&mut a, &mut b, &mut c, 20);
    b.engine.set_locals(vec![local(1)]);
    let came_to_b = i128::from(time.read(0, 0));
    let at_b = moves(&mut a, &mut b, &mut c, 20);
    assert!(
        at_b.iter().all(|moved| (moved.peer, moved.segment, moved.mac) == (peer(2), segment(), local(1).mac))
    );
    // Here a round trip takes 20 ms.
    assert!(at_b[0].since.abs_diff(came_to_b) <= 10_000_000, "{at_b:?} at {came_to_b}");
    c.engine.set_locals(vec![local(1)]);
    let at_c = moves(&mut a, &mut b, &mut c, 20);
    assert_eq!((at_c.len(), at_c[0].peer), (1, peer(3)));
    assert!(at_c[0].since > at_b[0].since);
    // Each is told again, also by host 2, whose vNIC has not left yet.
    let again = moves(&mut a, &mut b, &mut c, 1200);
    for moved in &again {
        let first = if moved.peer == peer(2) { at_b[0].since } else { at_c[0].since };
        assert!(moved.since.abs_diff(first) <= 20_000_000, "{moved:?}");
    }
    assert_eq!(again.len(), 4, "after 1 s and 10 s");
    assert_eq!(a.counts().announcements_received, 3);
}

#[test]
fn an_announcement_means_nothing_without_a_clock() {
    let time = Time::default();
    let (mut a, b) = pair(&time, 0, 0);
    let here = Body::Here(Here { mac: [2; 6], since_ns: 1 });
    b.send(&b.notice(1, 7, (1, 1, 1), here), &a);
    a.engine.receive();
    assert_eq!((a.refused("other_process"), a.engine.take_moved().len()), (1, 0));
}

#[test]
fn peers_that_leave_are_forgotten_and_numbers_are_not_mixed_up() {
    let time = Time::default();
    let (mut a, mut b) = pair(&time, 0, 0);
    talk(&time, &mut a, &mut b, 20, (0, 0));
    a.knows(&[2], 7);
    assert!(a.counts().exchanges > 0, "nothing has changed");
    a.knows(&[3], 7);
    assert_eq!(a.clocks.estimate(peer(2), time.read(0, 0)), None);
    assert_eq!(a.counts(), PeerCounts::default());
    a.engine.set(Setup::default());
    assert!(!a.engine.has_peers() && a.engine.due(0).is_none());
}
