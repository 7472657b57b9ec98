//! Changes by other threads, between two loops of a worker: its ports, their contracts, and its knowledge
//! of others.
//!
//! - [`front_end`]: a front end's changes of its port
//! - [`quiesce`]: brings a port to rest, so that its memory can be taken away

pub mod front_end;
pub mod quiesce;

use super::Worker;
use super::crossing::Fate;
use super::events::Event;
use super::outstanding::end_rest;
use super::turns::Party;
use crate::fdb::{PortIndex, SegmentIndex};
use crate::port::capture_tap::CaptureTap;
use crate::port::{Egress, Port, PortContract, PortInfo};
use crate::sched::{Queued, SourceId};
use crate::slots::FrameRef;
use tidegate_evidence::DropReason;

impl Worker {
    /// H: loops longer than this many nanoseconds are counted, and turns take as long as it permits.
    pub fn set_host_latency(&mut self, ns: u64) {
        self.host_latency = ns;
        self.turns.set_host_latency(ns);
    }

    /// Adds a port.
    pub fn add_port(&mut self, port: Box<Port>) {
        let index = port.index;
        self.put_in(port);
        self.restore_addresses(index);
    }

    /// Removes a quiet port: frames to it are dropped, and no worker sends to it any more. Returned for the
    /// caller to free.
    #[must_use = "a worker has no time to free memory"]
    pub fn remove_port(&mut self, index: PortIndex) -> Option<Box<Port>> {
        // The next port of this index must not get earlier frames.
        self.all_crossings();
        self.clear_egress(index);
        self.settle();
        let mut port = self.take_out(index)?;
        self.release_addresses(&mut port);
        self.watch.forget(index);
        debug_assert!(port.egress.lendable.is_some(), "a quiet port has all of it");
        Some(port)
    }

    /// Takes over a port as it is.
    pub(in crate::worker) fn put_in(&mut self, port: Box<Port>) {
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
        if port.link.tx.collects() {
            self.collecting.push(index);
        }
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

    /// Gives up a port.
    pub(in crate::worker) fn take_out(&mut self, index: PortIndex) -> Option<Box<Port>> {
        let port = self.ports[index as usize].take()?;
        self.owned.retain(|own| *own != index);
        self.collecting.retain(|own| *own != index);
        self.active.retain(|active| *active != index);
        if let Some(place) = self.polled.iter().position(|polled| *polled == index) {
            self.polled.remove(place);
            self.realtime -= usize::from(place < self.realtime);
        }
        self.touched.remove(index);
        // A port that comes back did not wait meanwhile.
        self.lulls[index as usize].finish(self.now);
        self.divide_time();
        port.link.tx.descriptors().for_each(|descriptor| self.sleeper.remove_descriptor(descriptor));
        Some(port)
    }

    /// Sets an own port's new contract.
    pub fn set_contract(&mut self, index: PortIndex, contract: PortContract) {
        let now = self.now;
        let Some(port) = &mut self.ports[index as usize] else { return };
        port.set_contract(contract, now);
        for (source, info) in self.infos.iter().enumerate() {
            let source = source as PortIndex;
            let Some(info) = info else { continue };
            for id in info.sources(source) {
                if port.egress.scheduler.knows(id) {
                    let config = info.config_of(id, index, &port.contract.egress);
                    port.egress.scheduler.set_source(now, id, config);
                }
            }
        }
        self.order_owned();
        self.review_addresses(index);
    }

    /// Sets what is known of any port of the switch; `None` forgets it.
    pub fn set_info(&mut self, index: PortIndex, info: Option<PortInfo>) {
        let now = self.now;
        for own in &self.owned {
            let Some(port) = &mut self.ports[*own as usize] else { continue };
            for id in [index.into(), SourceId::arrivals(index)] {
                if !port.egress.scheduler.knows(id) {
                    continue;
                }
                match &info {
                    Some(info) => {
                        let config = info.config_of(id, *own, &port.contract.egress);
                        port.egress.scheduler.set_source(now, id, config);
                    }
                    None => {
                        let fates = &mut self.fates;
                        let Egress { scheduler, outstanding, .. } = &mut port.egress;
                        scheduler.remove_source(id, |queued| {
                            let fate = dropped_fate(*own, &queued, now, DropReason::SenderReset);
                            end_rest(fates, outstanding, queued.bytes, fate);
                        });
                    }
                }
            }
        }
        if info.is_none() {
            self.watch.forget(index);
        }
        self.infos[index as usize] = info;
        self.divide_time();
        self.note_promised();
        self.settle();
    }

    /// Sets the members of segments.
    pub fn set_members(&mut self, members: Vec<Vec<PortIndex>>) {
        self.members = members;
    }

    /// Moves a quiet port to another segment; drops frames to it.
    pub fn set_segment(&mut self, index: PortIndex, segment: SegmentIndex) {
        self.clear_egress(index);
        self.settle();
        if let Some(mut port) = self.ports[index as usize].take() {
            self.release_addresses(&mut port);
            port.segment = segment;
            self.ports[index as usize] = Some(port);
        }
    }

    /// Whether a port's frames are captured.
    pub fn is_captured(&mut self, index: PortIndex) -> bool {
        self.ports[index as usize].as_ref().is_some_and(|port| port.capture.is_some())
    }

    /// Starts a capture.
    pub fn set_capture(&mut self, index: PortIndex, capture: CaptureTap) {
        if let Some(port) = &mut self.ports[index as usize] {
            port.capture = Some(Box::new(capture));
        }
    }

    /// Ends a capture without a reader; the index may be another port's by now.
    pub fn end_capture(&mut self, index: PortIndex) {
        if let Some(port) = &mut self.ports[index as usize] {
            port.capture.take_if(|capture| capture.is_over());
        }
    }

    /// Orders the polled ports, real-time ones first.
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
        let (heard, woke) = (self.kicks_checked_at(), self.last_woke());
        for index in &self.owned {
            if let Some(port) = &mut self.ports[*index as usize]
                && std::mem::take(&mut port.quiet)
            {
                port.link.tx.suppress_kicks();
                port.link.tx.note_sleep(heard, woke);
            }
        }
    }

    /// Divides the worker's time among own ports.
    fn divide_time(&mut self) {
        let ports = &self.ports;
        let party = |index: &PortIndex| {
            let contract = &ports[usize::from(*index)].as_ref()?.contract;
            Some(Party { port: *index, weight: contract.weight, realtime: contract.cut_to.is_some() })
        };
        let own = self.owned.iter().filter_map(party);
        let elsewhere = self.infos.iter().flatten().map(|info| info.weight);
        let heaviest = own.clone().map(|party| party.weight).chain(elsewhere).max();
        self.turns.divide(own, heaviest.unwrap_or(1));
    }

    /// Polls the `first` of the best-effort ports first from now on.
    pub(in crate::worker) fn rotate_polled(&mut self, first: usize) {
        let best_effort = &mut self.polled[self.realtime..];
        if first < best_effort.len() {
            best_effort.rotate_left(first);
        }
    }
}

/// Returns the fate of a frame dropped by a change.
fn dropped_fate(egress: PortIndex, queued: &Queued<FrameRef>, at: u64, reason: DropReason) -> Fate {
    Fate {
        frame: queued.frame,
        egress,
        at,
        dropped: Some(reason),
        queued: queued.enqueued,
        buffers: 0,
        behind: None,
    }
}

#[cfg(test)]
mod tests {
    use crate::worker::testing;

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
}
