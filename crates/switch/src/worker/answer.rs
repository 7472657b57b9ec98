//! Answers requests for the MACs of vNICs of other hosts, so that these requests do not cross the network.
//!
//! ```text
//!  a vNIC's flood ─ request? ─ declared address? ─▶ reply, in the flood pool ─ after the port's visit ─▶ the vNIC's own egress
//!                      └──────────┴─ no ─▶ flooded
//! ```
//!
//! The request was allowed, and charged to its vNIC, like any other frame; the reply is charged to the vNIC's floods.

use super::Worker;
use crate::fdb::PortIndex;
use crate::frame::Offload;
use crate::frame::neighbour::request;
use crate::neighbours::Neighbours;
use crate::port::Port;
use crate::slots::{Frame, FrameRef};
use std::sync::Arc;
use tidegate_evidence::DropReason;

/// Most answers of one loop.
pub(super) const MOST: usize = 256;

impl Worker {
    /// Sets the addresses that are answered for; returns those before, for the caller to free.
    #[must_use = "a worker has no time to free memory"]
    pub fn set_neighbours(&mut self, neighbours: Arc<Neighbours>) -> Arc<Neighbours> {
        std::mem::replace(&mut self.neighbours, neighbours)
    }

    /// Answers a frame of a vNIC if it asks for a declared address; `false` if it is to be flooded.
    #[inline(never)]
    pub(super) fn answer(&mut self, port: &mut Port, frame: &Frame) -> bool {
        if port.contract.is_uplink
            || frame.len as usize > frame.head().len()
            || frame.offload != Offload::None
        {
            return false;
        }
        let Some(request) = request(frame.head(), &frame.headers) else { return false };
        let Some(mac) = self.neighbours.mac(frame.segment, request.target) else { return false };
        let reply = request.reply(mac);
        let bytes = reply.frame().len() as u64;
        let room = self.answers.len() < MOST && port.flood.conforms_at(self.now, bytes) <= self.now;
        match room.then(|| self.flood.reply(frame, &reply)).flatten() {
            Some(copy) => {
                port.flood.charge(self.now, bytes);
                self.answers.push((port.index, copy));
            }
            None => port.count_tx_drop(DropReason::FloodCap),
        }
        true
    }

    /// Hands answers to the ports that asked.
    pub(super) fn hand_out_answers(&mut self) {
        let mut answers = std::mem::take(&mut self.answers);
        for (port, frame) in answers.drain(..) {
            self.route(port, &[frame]);
        }
        self.answers = answers;
    }
}

/// Answers that are not handed out yet.
pub(super) type Answers = Vec<(PortIndex, FrameRef)>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fdb::SegmentIndex;
    use crate::frame::VnetHdr;
    use crate::worker::testing::{self, Far, add_tap, add_uplink, mac};
    use std::net::IpAddr;
    use std::os::fd::OwnedFd;

    const SEGMENT: SegmentIndex = SegmentIndex(0);
    const ASKER: PortIndex = 1;
    const OTHER: PortIndex = 2;
    const UPLINK: PortIndex = 10;
    const FAR: PortIndex = 20;

    struct Scene {
        worker: Worker,
        taps: [OwnedFd; 2],
        far: Far,
    }

    fn scene() -> Scene {
        let (mut worker, _) = testing::worker();
        let taps = [ASKER, OTHER].map(|index| add_tap(&mut worker, index));
        let far = add_uplink(&mut worker, UPLINK);
        worker.set_members(vec![vec![ASKER, OTHER, UPLINK]]);
        let known = [((SEGMENT, IpAddr::from([10, 9, 0, 2])), mac(FAR))];
        drop(worker.set_neighbours(Arc::new(known.into_iter().collect())));
        Scene { worker, taps, far }
    }

    fn asks(for_last: u8) -> Vec<u8> {
        let packet = [8, 6, 0, 1, 8, 0, 6, 4, 0, 1];
        let frame = [&[0xff; 6][..], &mac(ASKER).0, &packet, &mac(ASKER).0, &[10, 9, 0, 1], &[0; 6]].concat();
        [&[0; VnetHdr::LEN][..], &frame, &[10, 9, 0, for_last], &[0; 18]].concat()
    }

    fn received(tap: &OwnedFd) -> Option<Vec<u8>> {
        let mut buffer = [0; 2000];
        let len = rustix::io::read(tap, &mut buffer).ok()?;
        Some(buffer[VnetHdr::LEN..len].to_vec())
    }

    #[test]
    fn a_declared_address_is_answered_and_no_other_vnic_hears_the_request() {
        let mut scene = scene();
        let ask = |scene: &mut Scene, last| {
            rustix::io::write(&scene.taps[0], &asks(last)).unwrap();
            scene.worker.turn();
            while scene.worker.work() {}
            let heard = [received(&scene.taps[0]), received(&scene.taps[1])];
            (heard, scene.far.receive().is_some())
        };
        let ([Some(reply), None], false) = ask(&mut scene, 2) else { panic!("not answered, or flooded") };
        assert_eq!((&reply[..6], &reply[6..12]), (&mac(ASKER).0[..], &mac(FAR).0[..]));
        assert_eq!(reply[20..22], [0, 2], "a reply");
        assert!(matches!(ask(&mut scene, 3), ([None, Some(_)], true)), "an address that is not declared");
        assert_eq!(scene.worker.flood.in_flight(), 0);
    }

    #[test]
    fn answers_count_as_floods_of_the_asker() {
        let mut scene = scene();
        let port = scene.worker.ports[usize::from(ASKER)].as_mut().unwrap();
        port.flood.charge(scene.worker.now, 1 << 40);
        rustix::io::write(&scene.taps[0], &asks(2)).unwrap();
        scene.worker.turn();
        while scene.worker.work() {}
        assert_eq!(received(&scene.taps[0]), None);
        let port = scene.worker.ports[usize::from(ASKER)].as_ref().unwrap();
        assert_eq!(port.stats.tx.dropped[DropReason::FloodCap as usize].get(), 1);
    }
}
