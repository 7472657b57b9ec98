//! Frames from other hosts.
//!
//! ```text
//!  link: segment, peer ─▶ decide ─▶ source MAC: another place's by contract? ─▶ dropped
//!                                        └─ no ─▶ learned behind its peer ─▶ a vNIC of this host, never an uplink
//! ```

use super::Worker;
use super::decide::To;
use crate::fdb::{Destination, NotLearned, PortIndex};
use crate::link::vxlan::Peers;
use crate::port::Port;
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
        let from = Destination::Peer { link: port.index, peer };
        let seconds = (self.now / 1_000_000_000) as u32;
        match self.fdb.learn(frame.segment, frame.headers.src, from, seconds) {
            Err(NotLearned::Pinned) => Err(DropReason::SourceMac),
            Ok(()) | Err(NotLearned::Full) => Ok(()),
        }
    }

    /// Sets the peers of an uplink, and returns those before, for the caller to free.
    #[must_use = "a worker has no time to free memory"]
    pub fn set_peers(&mut self, index: PortIndex, peers: Arc<Peers>) -> Option<Arc<Peers>> {
        self.ports[usize::from(index)].as_mut()?.link.set_peers(peers)
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
    use crate::frame::testing::Frame as Spec;
    use crate::worker::testing::{self, Far, add_tap, add_uplink, mac, tap_frame};
    use std::os::fd::OwnedFd;

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
}
