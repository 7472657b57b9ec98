//! Judges frames of other hosts with a stamp: in time or late, by how much, and in which part of their way.
//!
//! ```text
//!  Ts ├── hold: sending host ──┤── network ──┤── here ──┤ Tr        Tr - Ts - Td > 0: late
//!     ├ Td - latency - budget ─┤── latency ──┤─ budget ─┤ Ts + Td   the part that exceeds its share most: the cause
//! ```
//!
//! Ts is a time of the sender's clock. Its offset is known to within an error: what is late by less is uncertain.

use super::crossing::Fate;
use super::missed::{Certainty, DelayOf, Miss, Waits};
use crate::clock::RawTime;
use crate::hosts::late::Where;
use crate::hosts::{Clocks, Late};
use crate::link::vxlan::pair_counts::place;
use crate::link::vxlan::pairs::{PairKey, TimeShares};
use crate::port::Port;
use crate::slots::Frame;
use rtrb::Producer;
use std::sync::Arc;
use tidegate_evidence::MissCause;
use tidegate_uplink::clock::{Verdict, judge};
use tidegate_uplink::stamp::Stamp;

/// What a worker knows of other hosts, and tells them.
pub struct Hosts {
    /// The offsets of their clocks.
    clocks: Arc<Clocks>,
    /// Frames of theirs that were late or dropped.
    late: Producer<Late>,
    time: RawTime,
}

impl Hosts {
    /// Returns a worker's ends.
    pub fn new(clocks: Arc<Clocks>, late: Producer<Late>) -> Self {
        Self { clocks, late, time: RawTime::default() }
    }
}

/// The parts of a frame's way (ns).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parts {
    hold: u64,
    network: u64,
    here: u64,
}

impl Parts {
    /// Returns the part that exceeds its share of `deadline` (ns) most; `here` is the cause of a delay in this host.
    fn cause(&self, deadline: u64, shares: TimeShares, here: MissCause) -> Where {
        let at_sender = deadline.saturating_sub(shares.latency + shares.arrival);
        let excess = |part: u64, share: u64| i128::from(part) - i128::from(share);
        let (sender, network, receiver) = (
            excess(self.hold, at_sender),
            excess(self.network, shares.latency),
            excess(self.here, shares.arrival),
        );
        if network >= sender && network >= receiver {
            Where::Network
        } else if sender >= receiver {
            Where::Sender
        } else {
            Where::Receiver(here)
        }
    }
}

/// Judges a frame with a stamp at its uplink's port, which `worker` owns. `true` if it was certainly late because of
/// this host.
#[inline(never)]
pub(super) fn account(
    port: &Port,
    frame: &Frame,
    stamp: &Stamp,
    fate: &Fate,
    hosts: Option<&mut Hosts>,
    worker: u16,
) -> bool {
    let (Some(pairs), Some(peer), Some(hosts)) = (port.link.tx.pairs(), frame.peer, hosts) else {
        return false;
    };
    let (src, dst) = (frame.headers.src, frame.headers.dst);
    // A pair that was removed meanwhile has no counters.
    let Some(pair) = pairs.find(PairKey::new(frame.segment, dst, src)) else { return false };
    let counts = &pair.counts;
    let now = hosts.time.now();
    let received = hosts.time.of(fate.at);
    let estimate = hosts.clocks.estimate(peer, now);
    let deadline = u64::from(stamp.deadline_us) * 1000;
    let waits = Waits::of(frame, fate);
    let verdict = estimate.map(|estimate| judge(stamp.sent_ns, stamp.deadline_us, received, estimate));
    let error = estimate.map_or(0, |estimate| estimate.error_ns);
    let total = estimate.map_or(0, |estimate| {
        let total = i128::from(received) + i128::from(estimate.offset_ns) - i128::from(stamp.sent_ns);
        u64::try_from(total.max(0)).unwrap_or(u64::MAX)
    });
    let here = fate.at.saturating_sub(frame.started);
    let hold = u64::from(stamp.hold_ns);
    let parts = Parts { hold, network: total.saturating_sub(hold).saturating_sub(here), here };
    let (late_ns, certainty) = match verdict {
        Some(Verdict::Missed(late)) => (late, Certainty::Certain),
        Some(Verdict::Uncertain(late)) if fate.dropped.is_none() => (late, Certainty::Possible),
        _ if fate.dropped.is_some() => (0, Certainty::Certain),
        Some(_) => {
            counts.met.add(1);
            return false;
        }
        None => {
            counts.unjudged.add(1);
            return false;
        }
    };
    let cause = match fate.dropped {
        Some(_) => Where::Receiver(waits.cause(fate)),
        None => parts.cause(deadline, pair.shares, waits.cause(fate)),
    };
    match (fate.dropped, certainty) {
        (Some(_), _) => counts.dropped.add(1),
        (None, Certainty::Certain) => {
            counts.late[place(cause)].add(1);
            counts.worst.raise(late_ns);
        }
        (None, _) => counts.uncertain[place(cause)].add(1),
    }
    let record = Late {
        peer,
        segment: frame.segment,
        src,
        dst,
        sequence: stamp.sequence,
        deadline_us: stamp.deadline_us,
        late_ns,
        error_ns: error,
        hold_ns: stamp.hold_ns,
        network_ns: parts.network,
        here_ns: here,
        cause,
        dropped: fate.dropped.is_some(),
    };
    // A full queue loses the newest.
    _ = hosts.late.push(record);
    let label = match cause {
        Where::Sender => MissCause::Sender,
        Where::Network => MissCause::Network,
        Where::Receiver(here) => here,
    };
    let whole = total.max(here);
    let delay = DelayOf {
        at: fate.at,
        started: fate.at.saturating_sub(whole),
        started_by: fate.at.saturating_sub(whole.saturating_sub(error)),
        slept: 0,
    };
    Miss::of_arrival(label, fate, delay, deadline, waits).record(port, certainty, worker);
    certainty == Certainty::Certain && matches!(cause, Where::Receiver(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fdb::{PeerIndex, PortIndex, SegmentIndex};
    use crate::frame::VnetHdr;
    use crate::frame::testing::Frame as Spec;
    use crate::link::vxlan::pair_counts::PairCounts;
    use crate::link::vxlan::pairs::{
        AddressKey, Envelope, Incoming, IncomingPairs, OutgoingPairs, Registered,
    };
    use crate::link::vxlan::{self, Peers};
    use crate::port::{PortInfo, PortSet};
    use crate::sched::SourceId;
    use crate::worker::testing::{self, Far, add_tap_with, add_uplink, mac, set_time, tap_frame};
    use crate::worker::{Worker, WorkerHandle};
    use proptest::prelude::*;
    use rtrb::Consumer;
    use std::os::fd::OwnedFd;
    use tidegate_contract::{Bytes, Rate};
    use tidegate_evidence::DropReason;
    use tidegate_uplink::clock::{Estimate, Outlook};
    use tidegate_uplink::stamp::{Key, KeyNumber, Keys};

    const LOCAL: PortIndex = 1;
    const UPLINK: PortIndex = 10;
    /// A vNIC of another host, and one there that is not registered.
    const FAR: PortIndex = 20;
    const STRANGER: PortIndex = 21;
    const SEGMENT: SegmentIndex = SegmentIndex(0);
    const KEY: Key = Key::new([8; 16]);
    const BEGIN: u64 = 1_000_000_000;
    const TD: u32 = 1000;
    const SHARES: TimeShares = TimeShares { latency: 300_000, arrival: 500_000 };

    /// A vNIC here, to which one of another host has a deadline.
    struct Scene {
        worker: Worker,
        _handle: WorkerHandle,
        tap: OwnedFd,
        far: Far,
        counts: Arc<PairCounts>,
        clocks: Arc<Clocks>,
        late: Consumer<Late>,
        next: u32,
    }

    impl Scene {
        fn new(keys: &str) -> Self {
            set_time(BEGIN);
            let (mut worker, handle) = testing::worker();
            let tap = add_tap_with(&mut worker, LOCAL, keys);
            let far = add_uplink(&mut worker, UPLINK);
            worker.set_members(vec![vec![LOCAL, UPLINK]]);
            let port = worker.ports[usize::from(UPLINK)].as_mut().unwrap();
            let of_before = port.link.peers().unwrap().get(peer()).unwrap();
            let peer_of = vxlan::Peer { takes_stamps: true, ..of_before.clone() };
            let peers = Peers::new(vec![peer_of], &[(SEGMENT, testing::VNI)]).unwrap();
            drop(port.link.set_peers(peers.into()));
            let counts = Arc::<PairCounts>::default();
            let address = AddressKey::new(SEGMENT, mac(FAR));
            let keys = Keys { even: Some(KEY), odd: None };
            let envelope = Some(Envelope::new(Rate::from_bits(8_000).unwrap(), Bytes::new(250)));
            let registered = Registered { address, peer: peer(), keys, envelope };
            let pair = PairKey::new(SEGMENT, mac(LOCAL), mac(FAR));
            let pairs = vec![Incoming::new(pair, peer(), SHARES, counts.clone())];
            let incoming = IncomingPairs::new(vec![registered], pairs, Arc::default());
            drop(worker.set_pairs(UPLINK, OutgoingPairs::default(), incoming));
            let mut to = PortSet::EMPTY;
            to.insert(LOCAL);
            let info = PortInfo {
                to: Box::new(to),
                arrivals: Some(SHARES.arrival),
                ..PortInfo::of_uplink(worker.id)
            };
            worker.set_info(UPLINK, Some(info));
            let (clocks, (late_in, late)) = (Arc::<Clocks>::default(), crate::hosts::late::queue());
            worker.set_hosts(Hosts::new(clocks.clone(), late_in));
            Self { worker, _handle: handle, tap, far, counts, clocks, late, next: 0 }
        }

        fn know_clock(&self, offset_ns: i64, error_ns: u64) {
            let now = Estimate { offset_ns, error_ns };
            self.clocks.set(peer(), Some(Outlook { at: self.worker.now, now, later: now }));
        }

        /// Sends a frame with a stamp from the other host.
        fn send(&mut self, frame: &[u8], sent_ns: u64, hold_ns: u32) {
            let stamp =
                Stamp { key: KeyNumber::Even, deadline_us: TD, sent_ns, hold_ns, sequence: self.next };
            self.next += 1;
            self.far.send(&[frame, &stamp.trailer(&KEY, frame, frame.len() as u32)].concat());
        }

        fn turns(&mut self) {
            // Frames wake the worker, if it sleeps.
            self.worker.turn();
            while self.worker.work() {}
        }

        /// Returns the next frame that the vNIC received.
        fn received(&self) -> Option<Vec<u8>> {
            let mut buffer = [0; 70_000];
            let len = rustix::io::read(&self.tap, &mut buffer).ok()?;
            Some(buffer[VnetHdr::LEN..len].to_vec())
        }
    }

    fn peer() -> PeerIndex {
        PeerIndex::new(UPLINK).unwrap()
    }

    fn frame(from: PortIndex) -> Vec<u8> {
        tap_frame(from, LOCAL)[VnetHdr::LEN..].to_vec()
    }

    #[test]
    fn an_arrival_is_not_judged_before_the_clock_is_known() {
        let mut scene = Scene::new("");
        scene.send(&frame(FAR), BEGIN - 5_000_000, 10);
        scene.turns();
        assert_eq!(scene.received(), Some(frame(FAR)));
        let counts = &scene.counts;
        assert_eq!((counts.arrived.get(), counts.unjudged.get(), counts.met.get()), (1, 1, 0));
        assert!(scene.late.pop().is_err());
    }

    /// Tr is the test's time: on the sender's clock it is ahead by the offset.
    #[test]
    fn a_late_arrival_is_told_by_how_much_and_where() {
        const AHEAD: u64 = 7_000_000_000;
        let mut scene = Scene::new("");
        scene.know_clock(AHEAD as i64, 2_000);
        let cases = [
            // By the network, by its sender, and by less than the error.
            (1_200_000, 100_000, Some((Where::Network, 200_000))),
            (1_200_000, 900_000, Some((Where::Sender, 200_000))),
            (1_001_999, 100_000, None),
            (999_000, 100_000, None),
        ];
        for (total, hold, expected) in cases {
            scene.send(&frame(FAR), BEGIN + AHEAD - total, hold);
            scene.turns();
            assert_eq!(scene.received(), Some(frame(FAR)));
            let late = scene.late.pop().ok();
            if total > 1_000_000 {
                let late = late.expect("it may be late");
                assert_eq!((late.src, late.dst, late.peer), (mac(FAR), mac(LOCAL), peer()));
                assert_eq!((late.late_ns, late.error_ns), (total - 1_000_000, 2_000));
                assert_eq!((late.hold_ns, late.network_ns), (hold, total - u64::from(hold)));
                assert_eq!(late.sequence, scene.next - 1);
                if let Some((cause, by)) = expected {
                    assert_eq!((late.cause, late.late_ns, late.dropped), (cause, by, false));
                }
            } else {
                assert_eq!(late, None);
            }
        }
        let counts = &scene.counts;
        let causes = |counters: &[crate::stats::layout::Counter; 3]| counters.each_ref().map(|n| n.get());
        assert_eq!((causes(&counts.late), causes(&counts.uncertain)), ([1, 1, 0], [0, 1, 0]));
        assert_eq!((counts.met.get(), counts.worst.get()), (1, 200_000));
        let stats = scene.worker.ports[usize::from(UPLINK)].as_ref().unwrap().stats;
        assert_eq!(stats.misses[MissCause::Network as usize].get(), 1);
        assert_eq!(stats.misses[MissCause::Sender as usize].get(), 1);
        assert_eq!(stats.misses_possible.get(), 1);
    }

    #[test]
    fn an_arrival_with_a_deadline_passes_those_without() {
        let mut scene = Scene::new("rx = { max = \"8mbit\", burst = \"2kB\" }");
        scene.know_clock(0, 100);
        let egress = |scene: &mut Scene| {
            let now = scene.worker.now;
            scene.worker.ports[usize::from(LOCAL)].as_mut().unwrap().egress.scheduler.charge(now, 4000);
        };
        egress(&mut scene);
        (0..5).for_each(|_| scene.far.send(&frame(STRANGER)));
        scene.turns();
        assert_eq!(scene.received(), None, "there are no tokens");
        scene.send(&frame(FAR), BEGIN, 10);
        scene.turns();
        assert_eq!(scene.received(), Some(frame(FAR)), "it needs none");
        let port = scene.worker.ports[usize::from(LOCAL)].as_ref().unwrap();
        assert!(port.egress.scheduler.knows(SourceId::arrivals(UPLINK)));
        // What waits of the uplink goes with it, of both kinds.
        scene.worker.drop_source(UPLINK);
        let port = scene.worker.ports[usize::from(LOCAL)].as_ref().unwrap();
        assert_eq!(port.egress.scheduler.backlog_total().frames, 0);
        scene.worker.set_info(UPLINK, None);
        let port = scene.worker.ports[usize::from(LOCAL)].as_ref().unwrap();
        assert!(!port.egress.scheduler.knows(SourceId::arrivals(UPLINK)));
    }

    /// The envelope has room for four frames.
    #[test]
    fn arrivals_beyond_their_envelope_are_best_effort() {
        let mut scene = Scene::new("rx = { max = \"8mbit\", burst = \"2kB\" }");
        let now = scene.worker.now;
        scene.worker.ports[usize::from(LOCAL)].as_mut().unwrap().egress.scheduler.charge(now, 4000);
        for number in 0..6 {
            scene.send(&frame(FAR), BEGIN + number, 10);
        }
        scene.turns();
        let received = std::iter::from_fn(|| scene.received()).count();
        assert_eq!((received, scene.counts.arrived.get(), scene.counts.excess.get()), (4, 6, 2));
        scene.worker.clear_egress(LOCAL);
        scene.worker.settle();
    }

    #[test]
    fn marks_of_arrivals_with_a_stamp_are_kept() {
        let mut scene = Scene::new("");
        let marked = |from: PortIndex, dscp| {
            let mut frame = Spec { dscp, ..Spec::udp4(30) }.build();
            frame[..6].copy_from_slice(&mac(LOCAL).0);
            frame[6..12].copy_from_slice(&mac(from).0);
            frame
        };
        scene.send(&marked(FAR, 46), BEGIN, 10);
        scene.turns();
        assert_eq!(scene.received(), Some(marked(FAR, 46)));
        for from in [FAR, STRANGER] {
            scene.far.send(&marked(from, 46));
            scene.turns();
            assert_eq!(scene.received(), Some(marked(from, 0)), "without a stamp");
        }
    }

    #[test]
    fn a_replay_is_dropped_and_counted_at_the_uplink() {
        let mut scene = Scene::new("");
        for _ in 0..2 {
            scene.next = 5;
            scene.send(&frame(FAR), BEGIN, 10);
            scene.turns();
        }
        assert_eq!((scene.received(), scene.received()), (Some(frame(FAR)), None));
        let stats = scene.worker.ports[usize::from(UPLINK)].as_ref().unwrap().stats;
        assert_eq!(stats.tx.dropped[DropReason::Replayed as usize].get(), 1);
        assert_eq!(scene.counts.replayed.get(), 1);
    }

    #[test]
    fn an_arrival_that_is_dropped_here_is_told() {
        let mut scene = Scene::new("");
        scene.worker.ports[usize::from(LOCAL)].as_mut().unwrap().contract.frame_max = 1518;
        let mut tagged = Spec { vlan: Some(5), ..Spec::udp4(30) }.build();
        tagged[..6].copy_from_slice(&mac(LOCAL).0);
        tagged[6..12].copy_from_slice(&mac(FAR).0);
        scene.send(&tagged, BEGIN, 10);
        scene.turns();
        assert_eq!(scene.received(), None);
        let late = scene.late.pop().expect("it is told");
        assert_eq!((late.dropped, late.late_ns), (true, 0));
        assert!(matches!(late.cause, Where::Receiver(MissCause::Dropped)));
        assert_eq!((scene.counts.dropped.get(), scene.counts.unjudged.get()), (1, 0));
    }

    proptest! {
        /// The cause of a frame that is late by one part alone is that part.
        #[test]
        fn the_part_that_is_too_long_is_the_cause(
            shares in prop::array::uniform3(1..1_000_000u64), used in prop::array::uniform3(0.0..=1.0f64), which in 0..3usize, beyond in 1..1_000_000u64,
        ) {
            let [sender, latency, arrival] = shares;
            let mut parts: [u64; 3] = std::array::from_fn(|n| (shares[n] as f64 * used[n]) as u64);
            parts[which] = shares[which] + beyond;
            let [hold, network, here] = parts;
            let cause = Parts { hold, network, here }
                .cause(sender + latency + arrival, TimeShares { latency, arrival }, MissCause::Queue);
            let expected = [Where::Sender, Where::Network, Where::Receiver(MissCause::Queue)][which];
            prop_assert_eq!(cause, expected);
        }
    }
}
