//! What other threads ask of a worker, between two of its loops.
//!
//! Taking memory away from a source takes three steps, in this order, so that
//! no worker ever follows a reference into memory that is gone:
//!
//! 1. the owner stops taking frames from it ([`Worker::pause`]);
//! 2. every worker drops its frames ([`Worker::drop_source`]);
//! 3. the owner has them all back ([`Worker::is_quiet`]).

use super::Worker;
use super::crossing::Peer;
use super::events::Event;
use super::turns::Party;
use crate::capture::CaptureTap;
use crate::fdb::{PortIndex, SegmentIndex};
use crate::link::vhost::{Control, Gone, Ring};
use crate::port::{NEVER, Port, PortContract, PortInfo};
use crate::sched::Queued;
use crate::stats::DropReason;
use crate::vhost_user::VringSetup;
use crate::vhost_user::conduct;
use crate::vhost_user::kick::Kick;
use crate::vhost_user::notifier::Call;
use crate::virtio::{DirtyLog, GuestMemory, sigbus};
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// What a worker finds wrong with a port.
#[derive(Debug)]
pub enum Trouble {
    /// Its link broke: why.
    Broken(String),
    /// An object of its front end held the worker up.
    Held {
        /// For how long.
        event: conduct::Event,
        /// Since when, ns: an event of before a port was made is of another port of its index.
        began: u64,
    },
    /// The worker was held up by some port's memory, whosever it is.
    HeldUp {
        /// By that of none of the ports that are watched.
        by_another: bool,
    },
}

/// From workers to the thread that takes care of ports.
pub type Troubles = Sender<(PortIndex, Trouble)>;

/// What a queue's driver tells us by, and what we tell it by.
pub type Notifications = (Option<Kick>, Option<Call>);

impl Worker {
    /// H: loops longer than this many nanoseconds are counted.
    pub fn set_host_latency(&mut self, ns: u64) {
        self.host_latency = ns;
    }

    /// Takes a port.
    pub fn add_port(&mut self, port: Box<Port>) {
        let index = port.index;
        self.put_in(port);
        self.restore_addresses(index);
    }

    /// Gives a quiet port up: what waits for it is dropped, and no worker sends to it any more.
    /// Returned, for the caller to free.
    #[must_use = "a worker has no time to free memory"]
    pub fn remove_port(&mut self, index: PortIndex) -> Option<Box<Port>> {
        // The next port of this index is not to get what was sent to this one.
        self.all_crossings();
        self.clear_egress(index);
        self.settle();
        let mut port = self.take_out(index)?;
        self.release_addresses(&mut port);
        self.watch.forget(index);
        Some(port)
    }

    /// A port is this worker's from now on, as it is.
    pub(super) fn put_in(&mut self, port: Box<Port>) {
        let (index, mut refused) = (port.index, None);
        for (queue, descriptor) in port.link.tx.descriptors().enumerate() {
            if let Err(error) = self.sleeper.add_descriptor(index, queue, descriptor) {
                refused = Some(error);
            }
        }
        if let Some(error) = refused {
            self.note(Event::TapNotPolled { port: index, error });
        }
        self.owned.push(index);
        if port.contract.cut_to.is_some() {
            self.polled.insert(self.realtime, index);
            self.realtime += 1;
        } else if !port.quiet {
            self.polled.push(index);
        }
        if port.egress.active {
            self.active.push(index);
        }
        self.ports[index as usize] = Some(port);
        self.divide_time();
    }

    /// A port is not this worker's any more.
    pub(super) fn take_out(&mut self, index: PortIndex) -> Option<Box<Port>> {
        let port = self.ports[index as usize].take()?;
        self.owned.retain(|own| *own != index);
        self.active.retain(|active| *active != index);
        if let Some(place) = self.polled.iter().position(|polled| *polled == index) {
            self.polled.remove(place);
            self.realtime -= usize::from(place < self.realtime);
        }
        self.touched.remove(index);
        self.divide_time();
        port.link.tx.descriptors().for_each(|descriptor| self.sleeper.remove_descriptor(descriptor));
        Some(port)
    }

    /// A new contract for an own port.
    pub fn set_contract(&mut self, index: PortIndex, contract: PortContract) {
        let now = self.now;
        let Some(port) = &mut self.ports[index as usize] else { return };
        port.set_contract(contract, now);
        for (source, info) in self.infos.iter().enumerate() {
            let source = source as PortIndex;
            if let Some(info) = info
                && port.egress.scheduler.knows(source)
            {
                port.egress.scheduler.set_source(
                    now,
                    source,
                    info.source_config(index, &port.contract.egress),
                );
            }
        }
        self.order_owned();
        self.review_addresses(index);
    }

    /// What is known of any port of the switch; `None` forgets it.
    pub fn set_info(&mut self, index: PortIndex, info: Option<PortInfo>) {
        let now = self.now;
        for own in &self.owned {
            let Some(port) = &mut self.ports[*own as usize] else { continue };
            if !port.egress.scheduler.knows(index) {
                continue;
            }
            match &info {
                Some(info) => {
                    let config = info.source_config(*own, &port.contract.egress);
                    port.egress.scheduler.set_source(now, index, config);
                }
                None => {
                    let fates = &mut self.fates;
                    port.egress.scheduler.remove_source(index, |queued| {
                        fates.push(gone(*own, &queued, now, DropReason::SenderReset));
                    });
                }
            }
        }
        if info.is_none() {
            self.watch.forget(index);
        }
        self.infos[index as usize] = info;
        self.settle();
    }

    /// Who is in which segment.
    pub fn set_members(&mut self, members: Vec<Vec<PortIndex>>) {
        self.members = members;
    }

    /// Moves a quiet port to another segment; what waits for it is dropped.
    pub fn set_segment(&mut self, index: PortIndex, segment: SegmentIndex) {
        self.clear_egress(index);
        self.settle();
        if let Some(mut port) = self.ports[index as usize].take() {
            self.release_addresses(&mut port);
            port.segment = segment;
            self.ports[index as usize] = Some(port);
        }
    }

    /// Whether somebody captures a port's frames.
    pub fn is_captured(&mut self, index: PortIndex) -> bool {
        self.ports[index as usize].as_ref().is_some_and(|port| port.capture.is_some())
    }

    /// Starts a capture.
    pub fn set_capture(&mut self, index: PortIndex, capture: CaptureTap) {
        if let Some(port) = &mut self.ports[index as usize] {
            port.capture = Some(capture);
        }
    }

    /// Ends a capture whose reader is gone; the index may be another port's by now.
    pub fn end_capture(&mut self, index: PortIndex) {
        if let Some(port) = &mut self.ports[index as usize] {
            port.capture.take_if(|capture| capture.is_over());
        }
    }

    /// Real-time ports are polled first.
    fn order_owned(&mut self) {
        let ports = &self.ports;
        let best_effort = |index: &PortIndex| {
            ports[*index as usize].as_ref().is_none_or(|port| port.contract.cut_to.is_none())
        };
        self.polled.clear();
        self.polled.extend(&self.owned);
        self.polled.sort_by_key(best_effort);
        self.realtime = self.polled.partition_point(|index| !best_effort(index));
        self.divide_time();
        for index in &self.owned {
            if let Some(port) = &mut self.ports[*index as usize]
                && std::mem::take(&mut port.quiet)
            {
                port.link.tx.suppress_kicks();
                port.link.tx.woke(self.looked);
            }
        }
    }

    /// Own ports share the worker's time.
    fn divide_time(&mut self) {
        let ports = &self.ports;
        let party = |index: &PortIndex| {
            let contract = &ports[usize::from(*index)].as_ref()?.contract;
            Some(Party { port: *index, weight: contract.weight, realtime: contract.cut_to.is_some() })
        };
        self.turns.divide(self.owned.iter().filter_map(party));
    }

    /// Polls the `first` of the best-effort ports first from now on.
    pub(super) fn rotate_polled(&mut self, first: usize) {
        let best_effort = &mut self.polled[self.realtime..];
        if first < best_effort.len() {
            best_effort.rotate_left(first);
        }
    }

    /// Stops taking frames from an own port, until as many [`resume`](Self::resume)s.
    pub fn pause(&mut self, index: PortIndex) {
        if let Some(port) = &mut self.ports[index as usize] {
            port.pauses += 1;
        }
    }

    /// Takes back one [`pause`](Self::pause).
    pub fn resume(&mut self, index: PortIndex) {
        let now = self.now;
        self.unpause(index);
        if let Some(port) = &mut self.ports[index as usize] {
            port.restart(now);
        }
    }

    /// Takes back one [`pause`](Self::pause): what waited meanwhile counts as waiting for this worker.
    pub(super) fn unpause(&mut self, index: PortIndex) {
        if let Some(port) = &mut self.ports[index as usize] {
            port.pauses -= 1;
        }
    }

    /// Takes in what other workers sent before this call.
    fn all_crossings(&mut self) {
        for id in 0..self.peers.len() {
            for receive in [Peer::receive_urgent, Peer::receive] {
                for _ in 0..super::crossing::MOST {
                    let Some(crossing) = self.peers[id].as_mut().and_then(|(peer, _)| receive(peer)) else {
                        break;
                    };
                    self.crossed(crossing);
                }
            }
        }
    }

    /// Drops everything that `source` sent and that waits at own egresses. What their links hold comes back by itself,
    /// within [`LONGEST`](crate::port::outstanding::LONGEST).
    pub fn drop_source(&mut self, source: PortIndex) {
        self.all_crossings();
        let now = self.now;
        self.drop_set_aside(DropReason::SenderReset, |_, frame| frame.get().source == source);
        for own in &self.owned {
            let Some(port) = &mut self.ports[*own as usize] else { continue };
            let fates = &mut self.fates;
            port.egress.scheduler.clear_source(source, |queued: Queued<_>| {
                fates.push(gone(*own, &queued, now, DropReason::SenderReset));
            });
        }
        self.settle();
        self.ring_peers();
    }

    /// Whether all frames of a paused port came back; those that wait for tokens are dropped.
    pub fn is_quiet(&mut self, index: PortIndex) -> bool {
        self.fates_of_peers();
        self.settle();
        let Some(port) = &mut self.ports[index as usize] else { return true };
        drop_pending(port);
        port.link.flush();
        let quiet = port.link.tx.in_flight() == 0;
        if quiet {
            port.set_throttled(false, self.now);
        }
        quiet
    }

    /// Drops everything that waits for an own port, and what its link holds.
    pub fn clear_egress(&mut self, index: PortIndex) {
        let now = self.now;
        self.cancel_at(index, DropReason::ReceiverDown);
        self.drop_set_aside(DropReason::ReceiverDown, |egress, _| egress == index);
        let Some(port) = &mut self.ports[index as usize] else { return };
        let fates = &mut self.fates;
        port.egress.scheduler.clear(|queued: Queued<_>| {
            fates.push(gone(index, &queued, now, DropReason::ReceiverDown));
        });
        port.egress.blocked_since = NEVER;
    }

    /// Negotiated virtio features.
    pub fn set_features(&mut self, index: PortIndex, features: u64) {
        if let Some(mut vhost) = self.vhost(index) {
            vhost.set_features(features);
        }
    }

    /// A new memory table for a quiet port; its rings go on in it. The old one is returned: to
    /// unmap it takes long.
    pub fn set_memory(
        &mut self,
        index: PortIndex,
        memory: &Arc<GuestMemory>,
    ) -> Result<Option<Arc<GuestMemory>>, String> {
        self.vhost(index).map_or(Ok(None), |mut vhost| vhost.set_memory(memory))
    }

    /// Begins or ends noting which pages of a guest are written. The log before is returned: to
    /// unmap it takes long.
    pub fn set_log(&mut self, index: PortIndex, log: Option<DirtyLog>) -> Option<DirtyLog> {
        self.vhost(index)?.set_log(log)
    }

    /// Where else a queue's used ring is in the log.
    pub fn set_used_log(&mut self, index: PortIndex, queue: u16, log: Option<u64>) {
        if let Some(ring) = self.ring(index, queue) {
            ring.written.used_log = log;
        }
    }

    /// Puts a queue into service.
    pub fn start_queue(&mut self, index: PortIndex, queue: u16, setup: VringSetup) -> Result<(), String> {
        let (id, now) = (self.id, self.now);
        let Some(mut vhost) = self.vhost(index) else { return Ok(()) };
        let lost = vhost.start(queue, setup, index, id, now).map_err(|error| error.to_string())?;
        if lost > 0 {
            self.note(Event::FramesLost { port: index, queue, frames: lost });
        }
        Ok(())
    }

    /// Takes a queue of a quiet port out of service; returns where it stopped, and its notifications, for the
    /// caller to give up.
    pub fn stop_queue(&mut self, index: PortIndex, queue: u16) -> Option<(u32, Notifications)> {
        let Ring { queue, kick, call, .. } = self.vhost(index)?.stop(queue)?;
        Some((queue.retire(), (kick, call)))
    }

    /// SET_VRING_ENABLE.
    pub fn enable_queue(&mut self, index: PortIndex, queue: u16, enabled: bool) {
        let now = self.now;
        let Some(mut vhost) = self.vhost(index) else { return };
        if !vhost.enable(queue, enabled, now) {
            self.clear_egress(index);
            self.settle();
        }
    }

    /// Replaces what tells a queue's driver. What did before is returned, for the caller to give up.
    pub fn set_call(&mut self, index: PortIndex, queue: u16, call: Option<Call>) -> Option<Call> {
        std::mem::replace(&mut self.ring(index, queue)?.call, call)
    }

    /// Replaces what a queue's driver tells us by. What it did before is returned, for the caller to give up.
    pub fn set_kick(&mut self, index: PortIndex, queue: u16, kick: Option<Kick>) -> Option<Kick> {
        std::mem::replace(&mut self.ring(index, queue)?.kick, kick)
    }

    /// The front end went away: a quiet port gives up rings and memory. Returned, for the caller to listen to
    /// its kicks no more, and to unmap: that takes tens of milliseconds for each gigabyte.
    #[must_use = "a worker has no time to unmap memory"]
    pub fn disconnect(&mut self, index: PortIndex) -> Option<Gone> {
        self.clear_egress(index);
        self.settle();
        let gone = self.vhost(index)?.disconnect();
        if let Some(port) = &mut self.ports[index as usize] {
            port.broken = false;
        }
        Some(gone)
    }

    /// Whether the link of an own port is broken now.
    pub fn is_broken(&self, index: PortIndex) -> bool {
        self.ports[index as usize].as_ref().is_some_and(|port| port.broken)
    }

    /// The link of a port is broken: nothing is taken from it until it is made anew.
    pub(super) fn fault(&mut self, port: &mut Port, mut reason: &str) {
        if std::mem::replace(&mut port.broken, true) {
            return;
        }
        port.link.rx.shut();
        if port.link.is_lost() {
            // What a ring says that is zeros now is no lie of the driver.
            reason = sigbus::REASON;
        }
        let _ = self.troubles.send((port.index, Trouble::Broken(reason.to_owned())));
    }

    /// Guest memory was lost: the own ports it belongs to are broken. `true` where there is one.
    #[cold]
    pub(super) fn memory_lost(&mut self) -> bool {
        self.lost = sigbus::lost();
        let mut broke = false;
        for index in self.owned.clone() {
            let Some(mut port) = self.ports[index as usize].take() else { continue };
            if port.link.is_lost() {
                self.fault(&mut port, sigbus::REASON);
                broke = true;
            }
            self.ports[index as usize] = Some(port);
        }
        broke
    }

    /// The link of a port that is to be changed, and therefore polled again.
    fn vhost(&mut self, index: PortIndex) -> Option<Control<'_>> {
        self.wake_port(index, self.now);
        self.ports[index as usize].as_mut()?.link.vhost()
    }

    /// One of its rings.
    fn ring(&mut self, index: PortIndex, queue: u16) -> Option<&mut Ring> {
        self.vhost(index)?.ring(queue)
    }
}

/// The fate of a frame dropped by a change.
fn gone(
    egress: PortIndex,
    queued: &Queued<crate::port::FrameRef>,
    at: u64,
    reason: DropReason,
) -> super::crossing::Fate {
    super::crossing::Fate {
        frame: queued.frame,
        egress,
        at,
        dropped: Some(reason),
        queued: queued.enqueued,
        buffers: 0,
        behind: None,
    }
}

/// Drops the frames of a port that wait for tokens.
fn drop_pending(port: &mut Port) {
    while let Some(pending) = port.link.tx.take_pending() {
        port.count_tx_drop(DropReason::SenderReset);
        if pending.sent == 0 || pending.frame.get().release() {
            port.link.tx.give_back(pending.frame);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::virtio::memory::RegionSpec;
    use crate::worker::testing;
    use tidegate_frontend::memory::SharedMemory;

    fn memory() -> Arc<GuestMemory> {
        let shared = SharedMemory::new(0, 1 << 16).unwrap();
        let fd = shared.fd().try_clone_to_owned().unwrap();
        let (user_addr, size) = (shared.user_addr(), shared.size());
        Arc::new(
            GuestMemory::map(vec![RegionSpec { guest_addr: 0, user_addr, size, mmap_offset: 0, fd }])
                .unwrap(),
        )
    }

    #[test]
    fn the_next_port_of_an_index_owes_nothing() {
        let (mut worker, _handle) = testing::worker();
        for index in [0, 1] {
            testing::add_port(&mut worker, index);
            worker.watch.owe(index, 1_000_000);
        }
        // A worker that does not own the port has an account of it, too.
        worker.set_info(0, None);
        assert_eq!((worker.watch.owed(0), worker.watch.covers(0)), (0, false));
        assert_eq!((worker.watch.owed(1), worker.watch.covers(1)), (1_000_000, true));
        drop(worker.remove_port(1));
        assert_eq!((worker.watch.owed(1), worker.watch.covers(1)), (0, false));
    }

    #[test]
    fn a_worker_leaves_it_to_others_to_unmap_memory() {
        let (mut worker, _handle) = testing::worker();
        testing::add_port(&mut worker, 0);
        let maps = [memory(), memory(), memory()];
        let watch = maps.each_ref().map(Arc::downgrade);
        let there = || watch.each_ref().map(|memory| memory.strong_count() > 0);
        let mut kept = Vec::new();
        for memory in maps {
            kept.push(worker.set_memory(0, &memory).unwrap());
        }
        assert_eq!(there(), [true; 3]);
        kept.clear();
        assert_eq!(there(), [false, false, true]);
        let gone = worker.disconnect(0);
        assert!(there()[2] && worker.set_memory(0, &memory()).unwrap().is_none());
        drop(gone);
        assert!(!there()[2]);
        drop(worker.set_memory(0, &memory()).unwrap());
        let mut port = worker.remove_port(0).unwrap();
        assert!(port.link.vhost().unwrap().has_memory());
    }
}
