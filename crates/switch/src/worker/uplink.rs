//! Frames from other hosts.
//!
//! ```text
//!  link: segment, peer ─▶ decide ─▶ source MAC: another place's by contract? ─▶ dropped
//!                                        └─ no ─▶ learned behind its peer ─▶ a vNIC of this host, never an uplink
//! ```

use super::decide::To;
use super::{Hosts, Worker};
use crate::fdb::{Destination, NotLearned, PortIndex};
use crate::link::rdma;
use crate::link::vxlan::Peers;
use crate::link::vxlan::pairs::{IncomingPairs, OutgoingPairs};
use crate::port::{Floods, Port};
use crate::slots::Frame;
use std::sync::Arc;
use tidegate_evidence::DropReason;

impl Worker {
    /// Learns that a frame's source address is behind the peer that sent the frame.
    ///
    /// # Errors
    /// A contract places the address elsewhere: at a vNIC of this host, or behind another peer.
    pub(super) fn learn_from_host(&self, port: &Port, frame: &Frame) -> Result<(), DropReason> {
        let Some(peer) = frame.peer else { return Err(DropReason::NoReceiver) };
        let from = Destination::Peer { link: port.uplink, peer };
        let seconds = (self.now / 1_000_000_000) as u32;
        match self.fdb.learn(frame.segment, frame.headers.src, from, seconds) {
            Err(NotLearned::Pinned) => Err(DropReason::SourceMac),
            Ok(()) | Err(NotLearned::Full) => Ok(()),
        }
    }

    /// Sets the peers of an own uplink, and returns what it had before, for the caller to free. The other
    /// workers have to learn of its [copies](Self::set_copies).
    #[must_use = "a worker has no time to free memory"]
    pub fn set_peers(&mut self, index: PortIndex, peers: Arc<Peers>) -> Option<(Arc<Peers>, Floods)> {
        let port = self.ports[usize::from(index)].as_mut()?;
        let floods = Floods::new(&peers, &port.floods, port.contract.flood);
        let copies = peers.copies().clone();
        let before = (port.link.set_peers(peers)?, std::mem::replace(&mut port.floods, floods));
        self.set_copies(index, copies);
        Some(before)
    }

    /// Sets the pairs of an own uplink whose frames have stamps, and returns those before, for the caller to free.
    #[must_use = "a worker has no time to free memory"]
    pub fn set_pairs(
        &mut self,
        index: PortIndex,
        outgoing: OutgoingPairs,
        incoming: IncomingPairs,
    ) -> Option<(OutgoingPairs, IncomingPairs)> {
        self.ports[usize::from(index)].as_mut()?.link.set_pairs(outgoing, incoming)
    }

    /// Sets the queue pairs of an own uplink, and returns those before, for the caller to [retire](rdma::Retiring); `None`
    /// without RDMA.
    #[must_use = "a worker has no time to free memory"]
    pub fn set_rdma(&mut self, index: PortIndex, tables: Arc<rdma::Tables>) -> Option<Arc<rdma::Tables>> {
        // Flushes look for the end of what was sent by those, whether or not other frames come.
        self.touched.insert(index);
        self.ports[usize::from(index)].as_mut()?.link.set_rdma(tables)
    }

    /// Lets frames that queue pair `number` of an own uplink receives land; `false` if it has no such queue pair now.
    pub fn set_landing(&mut self, index: PortIndex, landing: &Arc<rdma::Landing>, number: u32) -> bool {
        self.lane(index).is_some_and(|lane| lane.set_landing(landing, number))
    }

    /// Forgets a landing of an own uplink that [is over](rdma::Landing::is_over), and returns it for the caller to drop.
    #[must_use = "a worker has no time to free memory"]
    pub fn forget_landing(&mut self, index: PortIndex, number: u32) -> Option<Arc<rdma::Landing>> {
        self.lane(index)?.forget_landing(number)
    }

    fn lane(&mut self, index: PortIndex) -> Option<&mut crate::link::vxlan::Tx> {
        match &mut self.ports[usize::from(index)].as_mut()?.link.tx {
            crate::link::Tx::Vxlan(tx) => Some(tx),
            _ => None,
        }
    }

    /// Sets what it knows of other hosts' clocks, and how it tells of their late frames.
    pub fn set_hosts(&mut self, hosts: Hosts) {
        self.hosts = Some(hosts);
    }

    /// Sets how many copies a flood to an uplink makes, by segment: its [peers'](Peers::copies).
    pub fn set_copies(&mut self, index: PortIndex, copies: Arc<[u16]>) {
        if let Some(info) = &mut self.infos[usize::from(index)] {
            info.copies = copies;
        }
    }

    /// Whether a frame of an uplink may go there: between other hosts no frame passes through this one, so
    /// that no loop of hosts multiplies frames.
    pub(super) fn may_come_in(&self, to: To) -> bool {
        match to {
            To::Port(egress) => !self.is_uplink(egress),
            // Each receiver is looked at.
            To::Flood(_) => true,
        }
    }

    /// Whether a port's link leads to other hosts.
    pub(super) fn is_uplink(&self, port: PortIndex) -> bool {
        self.infos[usize::from(port)].as_ref().is_some_and(|info| info.is_uplink)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fdb::{PeerIndex, SegmentIndex};
    use crate::frame::VnetHdr;
    use crate::frame::parse;
    use crate::frame::testing::Frame as Spec;
    use crate::link::{Pending, Taken};
    use crate::slots::{Owner, Slots};
    use crate::worker::budget;
    use crate::worker::testing::{self, Far, add_port, add_tap, add_tap_with, add_uplink, mac, tap_frame};
    use std::os::fd::OwnedFd;
    use tidegate_contract::Rate;

    const SEGMENT: SegmentIndex = SegmentIndex(0);
    const NONE: [PortIndex; 0] = [];
    const LOCAL: PortIndex = 1;
    const ALSO_LOCAL: PortIndex = 2;
    const UPLINK: PortIndex = 10;
    const OTHER_UPLINK: PortIndex = 11;
    /// A vNIC of another host.
    const FAR: PortIndex = 20;

    /// A port's other end.
    enum End {
        Tap(OwnedFd),
        Far(Far),
    }

    /// Two vNICs and two uplinks, each to the peer of its port's number.
    struct Scene {
        worker: Worker,
        ends: [End; 4],
    }

    const PORTS: [PortIndex; 4] = [LOCAL, ALSO_LOCAL, UPLINK, OTHER_UPLINK];

    impl Scene {
        fn new() -> Self {
            let (mut worker, _) = testing::worker();
            let ends = PORTS.map(|index| match index {
                UPLINK | OTHER_UPLINK => End::Far(add_uplink(&mut worker, index)),
                _ => End::Tap(add_tap(&mut worker, index)),
            });
            worker.set_members(vec![PORTS.to_vec()]);
            Self { worker, ends }
        }

        /// Sends a frame into a port, and returns the ports that it reached.
        fn send(&mut self, into: PortIndex, frame: &[u8]) -> Vec<PortIndex> {
            match &self.ends[PORTS.iter().position(|port| *port == into).unwrap()] {
                End::Tap(tap) => _ = rustix::io::write(tap, frame).unwrap(),
                End::Far(far) => far.send(&frame[VnetHdr::LEN..]),
            }
            // The frame wakes the worker, if it sleeps.
            self.worker.turn();
            while self.worker.work() {}
            let frame = &frame[VnetHdr::LEN..];
            let reached = |end: &End| match end {
                End::Tap(tap) => {
                    let mut buffer = [0; 70_000];
                    rustix::io::read(tap, &mut buffer)
                        .map(|len| assert_eq!(&buffer[VnetHdr::LEN..len], frame))
                        .is_ok()
                }
                End::Far(far) => far.receive().map(|got| assert_eq!(got, frame)).is_some(),
            };
            PORTS.into_iter().zip(&self.ends).filter(|(_, end)| reached(end)).map(|(port, _)| port).collect()
        }

        fn dropped(&self, port: PortIndex, reason: DropReason) -> u64 {
            let port = self.worker.ports[usize::from(port)].as_ref().unwrap();
            port.stats.tx.dropped[reason as usize].get()
        }
    }

    fn peer(link: PortIndex) -> Destination {
        Destination::Peer { link, peer: PeerIndex::new(link).unwrap() }
    }

    fn to_all(from: PortIndex) -> Vec<u8> {
        let mut frame = tap_frame(from, 0);
        frame[VnetHdr::LEN..VnetHdr::LEN + 6].fill(0xff);
        frame
    }

    #[test]
    fn a_frame_of_another_host_reaches_vnics_and_no_uplink() {
        let mut scene = Scene::new();
        assert_eq!(scene.send(UPLINK, &tap_frame(FAR, LOCAL)), [LOCAL]);
        assert_eq!(scene.worker.fdb.destination(SEGMENT, mac(FAR)), Some(peer(UPLINK)), "learned");
        assert_eq!(scene.send(UPLINK, &to_all(FAR)), [LOCAL, ALSO_LOCAL]);
        assert_eq!(
            scene.send(UPLINK, &tap_frame(FAR, 99)),
            NONE,
            "unknown: no vNIC here has others behind it"
        );
        scene.worker.fdb.pin(SEGMENT, mac(30), peer(OTHER_UPLINK)).unwrap();
        assert_eq!(scene.send(UPLINK, &tap_frame(FAR, 30)), NONE, "from one uplink to another");
        assert_eq!(scene.dropped(UPLINK, DropReason::NoReceiver), 2);
    }

    /// What landed in a guest's buffers may be changed by it: no other port gets a copy, even if its address is at no port any more.
    #[test]
    fn a_frame_that_landed_is_not_flooded() {
        for (owner, reached) in [(None, 1), (Some(Owner::Landed { landing: 1, slot: 2 }), 0)] {
            let mut scene = Scene::new();
            let Some(info) = &mut scene.worker.infos[usize::from(LOCAL)] else { panic!("it is there") };
            info.learns = true;
            let End::Far(far) = &scene.ends[2] else { panic!("an uplink") };
            far.send(&tap_frame(FAR, 99)[VnetHdr::LEN..]);
            let mut port = scene.worker.ports[usize::from(UPLINK)].take().unwrap();
            port.link.tx.note_readable(0, 0, 0);
            let taken = port.link.tx.take(0, &mut crate::link::Scratch::default(), false);
            let Taken::New(Pending { frame, arrival, .. }, _) = taken else { panic!("{taken:?}") };
            let kept = frame.get_mut();
            kept.headers = parse(kept.head(), kept.len as usize).unwrap();
            (kept.wire_bytes, kept.wire_frames) = (kept.len, 1);
            kept.owner = owner.unwrap_or(kept.owner);
            assert_eq!(scene.worker.dispatch(&mut port, frame, arrival, crate::clock::clock()), None);
            assert_eq!(scene.worker.flood.in_flight(), reached, "{owner:?}");
            assert_eq!(port.link.tx.in_flight(), 0);
            let dropped = port.stats.tx.dropped[DropReason::NoReceiver as usize].get();
            assert_eq!(dropped, 1 - reached as u64);
            scene.worker.ports[usize::from(UPLINK)] = Some(port);
            scene.worker.clear_egress(LOCAL);
            scene.worker.settle();
        }
    }

    #[test]
    fn frames_of_vnics_reach_the_uplink_of_their_receiver_or_all() {
        let mut scene = Scene::new();
        assert_eq!(scene.send(LOCAL, &tap_frame(LOCAL, FAR)), [UPLINK, OTHER_UPLINK], "unknown");
        scene.send(UPLINK, &tap_frame(FAR, LOCAL));
        assert_eq!(scene.send(LOCAL, &tap_frame(LOCAL, FAR)), [UPLINK]);
        assert_eq!(scene.send(LOCAL, &to_all(LOCAL)), [ALSO_LOCAL, UPLINK, OTHER_UPLINK]);
    }

    #[test]
    fn an_address_of_a_contract_is_not_taken_from_the_wire() {
        let mut scene = Scene::new();
        assert_eq!(scene.send(UPLINK, &tap_frame(ALSO_LOCAL, LOCAL)), NONE);
        assert_eq!(scene.worker.fdb.destination(SEGMENT, mac(ALSO_LOCAL)), Some(ALSO_LOCAL.into()));
        // A remote vNIC's address is behind the other uplink, by contract.
        scene.worker.fdb.pin(SEGMENT, mac(FAR), peer(OTHER_UPLINK)).unwrap();
        assert_eq!(scene.send(UPLINK, &tap_frame(FAR, LOCAL)), NONE);
        assert_eq!(scene.dropped(UPLINK, DropReason::SourceMac), 2);
        assert_eq!(scene.send(OTHER_UPLINK, &tap_frame(FAR, LOCAL)), [LOCAL]);
    }

    /// The uplink itself is another worker's.
    #[test]
    fn an_arm_learns_behind_its_uplink() {
        let mut scene = Scene::new();
        scene.worker.ports[usize::from(OTHER_UPLINK)].as_mut().unwrap().uplink = UPLINK;
        assert_eq!(scene.send(OTHER_UPLINK, &tap_frame(FAR, LOCAL)), [LOCAL]);
        let behind = Destination::Peer { link: UPLINK, peer: PeerIndex::new(OTHER_UPLINK).unwrap() };
        assert_eq!(scene.worker.fdb.destination(SEGMENT, mac(FAR)), Some(behind));
        assert_eq!(scene.send(OTHER_UPLINK, &tap_frame(30, FAR)), NONE, "not back to the uplink");
        assert_eq!(scene.dropped(OTHER_UPLINK, DropReason::NoReceiver), 1);
    }

    #[test]
    fn a_group_address_is_no_source() {
        let mut scene = Scene::new();
        let mut frame = tap_frame(FAR, LOCAL);
        frame[VnetHdr::LEN + 6] |= 1;
        assert_eq!(scene.send(UPLINK, &frame), NONE);
        assert_eq!(scene.dropped(UPLINK, DropReason::SourceMac), 1);
    }

    #[test]
    fn a_tagged_frame_is_delivered_within_the_receivers_contract() {
        let mut scene = Scene::new();
        for (vlan, reached) in [(None, vec![LOCAL]), (Some(5), vec![])] {
            let mut frame = Spec { vlan, ..Spec::udp4(100) }.build();
            frame[..6].copy_from_slice(&mac(LOCAL).0);
            frame[6..12].copy_from_slice(&mac(FAR).0);
            assert_eq!(scene.send(UPLINK, &[&[0; VnetHdr::LEN][..], &frame].concat()), reached, "{vlan:?}");
        }
    }

    /// The test's time of 1 s.
    const BEGIN: u64 = 1_000_000_000;

    #[test]
    fn a_receiver_that_takes_nothing_leaves_the_store_to_others() {
        testing::set_time(BEGIN);
        let (mut worker, _handle) = testing::worker();
        let _slow = add_tap_with(&mut worker, LOCAL, "rx = { max = \"8kbit\", burst = \"2kB\" }");
        let begin = worker.now;
        worker.ports[usize::from(LOCAL)].as_mut().unwrap().egress.scheduler.charge(begin, 1 << 30);
        let tap = add_tap(&mut worker, ALSO_LOCAL);
        let far = add_uplink(&mut worker, UPLINK);
        worker.set_members(vec![vec![LOCAL, ALSO_LOCAL, UPLINK]]);
        let send = |worker: &mut Worker, to, frames| {
            (0..frames).for_each(|_| far.send(&tap_frame(FAR, to)[VnetHdr::LEN..]));
            // They wake the worker, if it sleeps.
            worker.turn();
            (0..20).for_each(|_| _ = worker.work());
        };
        (0..6).for_each(|_| send(&mut worker, LOCAL, 50));
        let counts = |worker: &Worker| {
            let port = worker.ports[usize::from(UPLINK)].as_ref().unwrap();
            let dropped = port.stats.tx.dropped[DropReason::RingShare as usize].get();
            (port.link.tx.in_flight(), dropped)
        };
        assert_eq!(counts(&worker), (128, 172), "a sixteenth of the store");
        send(&mut worker, ALSO_LOCAL, 1);
        assert!(rustix::io::read(&tap, &mut [0; 2000]).is_ok());
        worker.clear_egress(LOCAL);
        worker.settle();
        assert_eq!(counts(&worker), (0, 172));
        send(&mut worker, LOCAL, 1);
        assert_eq!(counts(&worker), (1, 172), "there is room again");
        worker.clear_egress(LOCAL);
        worker.settle();
    }

    /// Returns a frame of 60 bytes from a vNIC here to one of another host.
    fn short_frame(slots: &mut Slots) -> crate::slots::FrameRef {
        let reference = slots.take().unwrap();
        let (frame, bytes) = (reference.get_mut(), &tap_frame(LOCAL, FAR)[VnetHdr::LEN..]);
        frame.bytes[..bytes.len()].copy_from_slice(bytes);
        frame.headers = parse(bytes, bytes.len()).unwrap();
        (frame.len, frame.head_len) = (bytes.len() as u32, bytes.len() as u16);
        (frame.wire_bytes, frame.wire_frames, frame.segment) = (frame.len, 1, SEGMENT);
        reference
    }

    #[test]
    fn the_rate_of_an_uplink_counts_outer_bytes() {
        /// A step (ns), bytes a microsecond, and a frame's bytes on the wire.
        const STEP: u64 = 10_000;
        const RATE: u64 = 2;
        const OUTER: u64 = 60 + 50;
        testing::set_time(BEGIN);
        let (mut worker, _handle) = testing::worker();
        add_port(&mut worker, LOCAL);
        let far = testing::add_uplink_of(&mut worker, UPLINK, Rate::from_bits(RATE * 8_000_000).unwrap());
        worker.fdb.pin(SEGMENT, mac(FAR), peer(UPLINK)).unwrap();
        let burst = worker.ports[usize::from(UPLINK)].as_ref().unwrap().contract.egress.burst.get();
        let mut slots = Slots::new(64, LOCAL, 0);
        let mut sent = vec![];
        for step in 0..2000 {
            worker.now = BEGIN + step * STEP;
            testing::set_time(worker.now);
            let waiting = |worker: &Worker| {
                worker.ports[usize::from(UPLINK)].as_ref().unwrap().egress.scheduler.backlog_total().frames
            };
            while waiting(&worker) < 20 {
                let frame = short_frame(&mut slots);
                worker.enqueue(UPLINK, &[frame]);
            }
            worker.egress(budget::QUANTUM);
            worker.flush(false);
            worker.fates.drain().for_each(|fate| slots.give(fate.frame));
            sent.push(std::iter::from_fn(|| far.receive()).count() as u64 * OUTER);
        }
        for from in 0..sent.len() {
            let mut all = 0;
            for (steps, bytes) in (0..).zip(&sent[from..]) {
                all += bytes;
                assert!(
                    all <= RATE * steps * STEP / 1000 + burst + OUTER,
                    "{all} in {steps} steps from {from}"
                );
            }
        }
        let all: u64 = sent.iter().sum();
        assert!(all + OUTER >= RATE * 1999 * STEP / 1000, "the rate is used: {all}");
        worker.clear_egress(UPLINK);
        worker.fates.drain().for_each(|fate| slots.give(fate.frame));
    }

    /// The kernel refuses frames after they were posted.
    #[test]
    fn frames_that_the_kernel_refuses_are_counted_at_the_uplink() {
        let mut scene = Scene::new();
        scene.worker.fdb.pin(SEGMENT, mac(FAR), peer(UPLINK)).unwrap();
        let port = scene.worker.ports[usize::from(UPLINK)].as_mut().unwrap();
        // No route leads from loopback to there.
        let peer = crate::link::vxlan::Peer {
            index: PeerIndex::new(UPLINK).unwrap(),
            address: ([192, 0, 2, 1], 4789).into(),
            segments: vec![SEGMENT],
            takes_stamps: false,
        };
        let peers = Peers::new(vec![peer], &[(SEGMENT, testing::VNI)]).unwrap();
        drop(port.link.set_peers(peers.into()));
        assert_eq!(scene.send(LOCAL, &tap_frame(LOCAL, FAR)), NONE);
        let port = scene.worker.ports[usize::from(UPLINK)].as_ref().unwrap();
        assert_eq!(port.stats.rx.dropped.iter().map(|dropped| dropped.get()).sum::<u64>(), 1);
    }
}
