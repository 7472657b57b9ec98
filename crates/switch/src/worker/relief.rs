//! Room in a sender's ring: half of it is in flight, and a frame of it that waits is to be dropped.
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

/// After how long a frame is asked again to be dropped where none came back, ns: here, nothing was to be
/// dropped; another worker may not have come to it.
const ASK_AGAIN: u64 = 200_000;
const ASK_PEER_AGAIN: u64 = 10_000_000;

impl Worker {
    /// Half the ring is in flight: a frame at the fullest egress is to make room.
    pub(super) fn ask_relief(&mut self, port: &mut Port) {
        self.ask(port, port.longest_egress(), false);
    }

    /// Half the ring is in flight, and the driver relies on order: if its oldest frame holds back
    /// what is done, that frame is to make room. Not if it has a deadline.
    #[cold]
    pub(super) fn let_through(&mut self, port: &mut Port, queue: usize) {
        if self.was_asked(port) || self.now < port.looked_back {
            return;
        }
        let Some(oldest) = port.link.tx.holds_back(queue) else { return };
        let frame = oldest.get();
        // One that waits to be sent, or of which a part does, waits for no receiver. One that was sent in parts waits for the
        // receiver of the last.
        if ![NOWHERE, port.index].contains(&frame.egress) && !frame.is_realtime() {
            self.ask(port, frame.egress, true);
        } else {
            // Not looked for in every loop, whatever is settled meanwhile: that takes a look at each slot.
            port.looked_back = self.now + ASK_AGAIN;
        }
    }

    /// Whether a frame of it was to be dropped a moment ago.
    fn was_asked(&self, port: &Port) -> bool {
        port.relieving != NEVER && self.now < port.relieving
    }

    /// Asks the worker that owns `egress` to drop a frame: once until one comes back, or another
    /// worker would drop one for each of our loops.
    fn ask(&mut self, port: &mut Port, egress: PortIndex, oldest: bool) {
        if self.was_asked(port) {
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
