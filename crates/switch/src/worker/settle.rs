//! Settles frames at the worker of their source: the descriptor returns to the guest, the delay is
//! recorded, a miss gets its cause.

use super::arrived::{self, Hosts};
use super::crossing::Fate;
use super::fates::{Group, Home};
use super::{Worker, missed};
use crate::port::Port;
use crate::slots::buffers::BufferIndex;
use crate::slots::{Frame, FrameRef, NEVER, Owner};
use tidegate_evidence::DropReason;

impl Worker {
    /// Settles all frames that ended in this loop; `true` if there were any.
    pub(super) fn settle(&mut self) -> bool {
        let mut fates = std::mem::take(&mut self.fates);
        for group in fates.groups() {
            if self.settle_group(&group) {
                continue;
            }
            for mut fate in group.fates() {
                if let Some(worker) = self.settle_here(&mut fate)
                    && let Some((peer, _)) = &mut self.peers[worker]
                {
                    peer.settle(fate);
                    self.to_ring |= 1 << worker;
                }
            }
        }
        let worked = fates.len() > 0;
        // Keeps the memory, so that settling allocates nothing.
        fates.clear();
        self.fates = fates;
        worked
    }

    /// Settles frames that are given back together; `false` if that is impossible, or their source is
    /// elsewhere.
    fn settle_group(&mut self, group: &Group) -> bool {
        let Some(Home { source, .. }) = group.home else { return false };
        let Some(port) = self.ports[source as usize].as_mut() else { return false };
        for (fate, frames) in group.runs() {
            let in_flight = &mut port.in_flight_to[fate.egress as usize];
            *in_flight = in_flight.saturating_sub(frames.len() as u32);
            let together = |a: &FrameRef, b: &FrameRef| {
                let (a, b) = (a.get(), b.get());
                (a.started, a.started_by) == (b.started, b.started_by) && !b.is_realtime()
            };
            for alike in frames.chunk_by(together) {
                let hosts = self.hosts.as_mut();
                if account(port, alike[0].get(), fate, alike.len() as u64, hosts, self.id) {
                    self.loops.late(alike[0].get().started);
                }
            }
        }
        port.relieving = NEVER;
        self.touched.insert(source);
        let began = self.watch.begin(source);
        port.link.tx.give_back_all(group.frames.iter().copied());
        self.watch.end(source, began);
        true
    }

    /// Settles a frame whose source is here, or returns the worker that does. A source may have moved: its
    /// old worker passes the fate on.
    fn settle_here(&mut self, fate: &mut Fate) -> Option<usize> {
        let frame = fate.frame.get();
        if let Owner::Buffer { buffer } = frame.owner {
            return self.settle_copy(fate, buffer);
        }
        let Some(port) = self.ports[frame.source as usize].as_mut() else {
            return self.settle_elsewhere(fate);
        };
        let in_flight = &mut port.in_flight_to[fate.egress as usize];
        *in_flight = in_flight.saturating_sub(1);
        port.relieving = NEVER;
        self.touched.insert(frame.source);
        if account(port, frame, fate, 1, self.hosts.as_mut(), self.id) {
            self.loops.late(frame.started);
        }
        let (source, began) = (frame.source, self.watch.begin(frame.source));
        port.link.tx.give_back(fate.frame);
        self.watch.end(source, began);
        None
    }

    /// Settles a flooded copy: counted at its source, then given back to the pool of the worker that made
    /// it. The copy may outlive the source's port.
    fn settle_copy(&mut self, fate: &mut Fate, buffer: BufferIndex) -> Option<usize> {
        let frame = fate.frame.get();
        // A port outside the VLAN is no addressee: nothing is lost if it gets no copy.
        let dropped = fate.dropped.take().filter(|why| *why != DropReason::Vlan);
        if let Some(reason) = dropped {
            if let Some(port) = &self.ports[frame.source as usize] {
                port.count_tx_drop(reason);
            } else if self.infos[frame.source as usize].is_some() {
                fate.dropped = dropped;
                return self.settle_elsewhere(fate);
            }
        }
        if frame.worker != self.id {
            return Some(usize::from(frame.worker));
        }
        self.flood.settle(fate.frame, buffer);
        None
    }

    /// Returns the worker of a frame's source, which is elsewhere.
    #[inline(never)]
    fn settle_elsewhere(&mut self, fate: &Fate) -> Option<usize> {
        let frame = fate.frame.get();
        let worker = self.infos[frame.source as usize].as_ref().map_or(frame.worker, |info| info.worker);
        if worker != self.id {
            return Some(usize::from(worker));
        }
        let stored = self.store_fate(*fate);
        debug_assert!(stored, "a frame outlived its port");
        None
    }
}

/// Accounts for `frames` that started together, or one with a deadline; returns whether it missed that.
/// `worker` owns their port.
#[inline]
#[must_use]
fn account(
    port: &Port,
    frame: &Frame,
    fate: &Fate,
    frames: u64,
    hosts: Option<&mut Hosts>,
    worker: u16,
) -> bool {
    if let Some(reason) = fate.dropped {
        port.count_tx_drops(reason, frames);
    } else {
        port.stats.note_delay(frame.started, frame.started_by, fate.at, frames);
        if frame.is_realtime() {
            let most = fate.at.saturating_sub(frame.started);
            port.stats.note_realtime(most, fate.at.saturating_sub(frame.started_by), frames);
        }
    }
    if let Some(stamped) = &frame.stamp {
        // Beyond its sender's envelope nothing was promised; it is counted as that.
        return stamped.conforms && arrived::account(port, frame, &stamped.stamp, fate, hosts, worker);
    }
    frame.is_realtime() && missed::note(port, frame, fate, worker)
}
