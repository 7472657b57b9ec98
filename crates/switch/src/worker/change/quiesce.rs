//! Brings a port to rest, so that its memory can be taken away.
//!
//! Three steps, in this order, so that no worker follows a reference into memory that is gone:
//!
//! 1. the owner stops taking frames from it ([`Worker::pause`]); frames that wait by flow leave, or go back
//!    ([`Worker::drain`]);
//! 2. every worker drops its frames ([`Worker::drop_source`]);
//! 3. the owner has them all back ([`Worker::is_quiet`]).
//!
//! [`Worker::clear_egress`] drops frames to a receiver that goes.

use super::dropped_fate;
use crate::fdb::PortIndex;
use crate::port::{Egress, Port};
use crate::sched::{Queued, SourceId};
use crate::slots::NEVER;
use crate::worker::Worker;
use crate::worker::crossing::{MOST, Peer};
use crate::worker::outstanding::end_rest;
use tidegate_evidence::DropReason;

impl Worker {
    /// Stops taking frames from an own port, until as many [`resume`](Self::resume)s.
    pub fn pause(&mut self, index: PortIndex) {
        if let Some(port) = &mut self.ports[index as usize] {
            port.pauses += 1;
        }
    }

    /// Reverts one [`pause`](Self::pause).
    pub fn resume(&mut self, index: PortIndex) {
        let now = self.now;
        self.unpause(index);
        if let Some(port) = &mut self.ports[index as usize] {
            port.restart(now);
        }
    }

    /// Reverts one [`pause`](Self::pause): frames that came meanwhile count as waiting for this worker.
    pub(in crate::worker) fn unpause(&mut self, index: PortIndex) {
        if let Some(port) = &mut self.ports[index as usize] {
            port.pauses -= 1;
            port.draining = false;
        }
    }

    /// Puts a paused port's frames that wait by flow back into their rings. Those that later ones have
    /// overtaken leave as tokens come. Whether any remain.
    pub fn drain(&mut self, index: PortIndex) -> bool {
        let now = self.now;
        let Some(port) = &mut self.ports[index as usize] else { return false };
        if !port.draining {
            port.put_back_waiting(now);
        }
        port.draining = port.waits() && !port.broken;
        port.draining
    }

    /// Drops all frames of `source` that wait at own egresses. Frames that links hold come back within
    /// the link's [longest time](crate::link::Rx::longest).
    pub fn drop_source(&mut self, source: PortIndex) {
        self.all_crossings();
        let now = self.now;
        self.drop_set_aside(DropReason::SenderReset, |_, frame| frame.get().source == source);
        for own in &self.owned {
            let Some(port) = &mut self.ports[*own as usize] else { continue };
            let fates = &mut self.fates;
            let Egress { scheduler, outstanding, .. } = &mut port.egress;
            for id in [source.into(), SourceId::arrivals(source)] {
                scheduler.clear_source(id, |queued: Queued<_>| {
                    let fate = dropped_fate(*own, &queued, now, DropReason::SenderReset);
                    end_rest(fates, outstanding, queued.bytes, fate);
                });
            }
        }
        self.settle();
        self.ring_peers();
    }

    /// Whether all frames of a paused port came back; drops those that wait for tokens.
    pub fn is_quiet(&mut self, index: PortIndex) -> bool {
        self.fates_of_peers();
        self.settle();
        let Some(port) = &mut self.ports[index as usize] else { return true };
        port.put_back_waiting(self.now);
        port.drop_waiting(DropReason::SenderReset);
        drop_pending(port);
        port.link.flush();
        let quiet = port.link.tx.in_flight() == 0 && self.lending.take_back(port);
        if quiet {
            port.draining = false;
            port.set_throttled(false, self.now);
        }
        quiet
    }

    /// Drops all frames to an own port, those in its link included.
    pub fn clear_egress(&mut self, index: PortIndex) {
        let now = self.now;
        self.cancel_at(index, DropReason::ReceiverDown);
        self.drop_set_aside(DropReason::ReceiverDown, |egress, _| egress == index);
        let Some(port) = &mut self.ports[index as usize] else { return };
        let fates = &mut self.fates;
        port.egress.scheduler.clear(|queued: Queued<_>| {
            fates.push(dropped_fate(index, &queued, now, DropReason::ReceiverDown));
        });
        port.egress.blocked_since = NEVER;
    }

    /// Takes in frames that other workers sent before this call.
    pub(super) fn all_crossings(&mut self) {
        for id in 0..self.peers.len() {
            for receive in [Peer::receive_urgent, Peer::receive] {
                for _ in 0..MOST {
                    let Some(crossing) = self.peers[id].as_mut().and_then(|(peer, _)| receive(peer)) else {
                        break;
                    };
                    self.crossed(crossing);
                }
            }
        }
    }
}

/// Drops a port's frames that wait for tokens, one of each ring.
fn drop_pending(port: &mut Port) {
    while let Some(pending) = port.link.tx.take_pending() {
        port.count_tx_drop(DropReason::SenderReset);
        if pending.sent == 0 || pending.frame.get().release() {
            port.link.tx.give_back(pending.frame);
        }
    }
}
