//! Makes room in a sender's ring: half of it is in flight, and one of its waiting frames is dropped.
//!
//! ```text
//!  ring, half in flight ─▶ ask ─┬─▶ relief: this worker's egresses, this loop
//!                               └─▶ Crossing::Relieve: the egress is another worker's
//! ```

use super::Worker;
use super::crossing::Crossing;
use crate::fdb::PortIndex;
use crate::port::Port;
use crate::slots::{NEVER, NOWHERE};

/// Pause before another request (ns) if no frame came back: there was nothing to drop here, or another
/// worker may not have reached it.
const ASK_AGAIN: u64 = 200_000;
const ASK_PEER_AGAIN: u64 = 10_000_000;

impl Worker {
    /// Half the ring is in flight: asks the fullest egress to drop a frame.
    pub(super) fn ask_relief(&mut self, port: &mut Port) {
        self.request_drop(port, port.longest_egress(), false);
    }

    /// Half the ring is in flight, and the driver relies on order: if the oldest frame holds completed ones
    /// back, asks to drop it. Not if it has a deadline.
    #[cold]
    pub(super) fn relieve_oldest(&mut self, port: &mut Port, queue: usize) {
        if self.has_recent_request(port) || self.now < port.looked_back {
            return;
        }
        let Some(oldest) = port.link.tx.holds_back(queue) else { return };
        let frame = oldest.get();
        // A frame that waits to be sent, as a whole or in part, waits for no receiver. One sent in parts
        // waits for the receiver of the last.
        if ![NOWHERE, port.index].contains(&frame.egress) && !frame.is_realtime() {
            self.request_drop(port, frame.egress, true);
        } else {
            // Not in every loop: the look visits each slot.
            port.looked_back = self.now + ASK_AGAIN;
        }
    }

    /// Whether a request was made a moment ago.
    fn has_recent_request(&self, port: &Port) -> bool {
        port.relieving != NEVER && self.now < port.relieving
    }

    /// Asks the owner of `egress` to drop a frame: once until one comes back, or another worker would drop
    /// one for each of our loops.
    fn request_drop(&mut self, port: &mut Port, egress: PortIndex, oldest: bool) {
        if self.has_recent_request(port) {
            return;
        }
        let Some(info) = &self.infos[egress as usize] else { return };
        let worker = info.worker as usize;
        if worker == self.id as usize {
            self.relief.push((egress, port.index, oldest));
            port.relieving = self.now + ASK_AGAIN;
        } else if let Some((peer, _)) = &mut self.peers[worker]
            && peer.send(Crossing::Relieve { egress, source: port.index, oldest })
        {
            port.relieving = self.now + ASK_PEER_AGAIN;
            self.to_ring |= 1 << worker;
        }
    }
}
