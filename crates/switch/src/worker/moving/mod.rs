//! Moving a port to another worker while it runs.
//!
//! ```text
//!  old worker           new worker            every other worker       old worker            new worker
//!  leave: takes nothing  expect: its frames   told: its frames go      hand over: the port,   arrive: it goes on
//!  from it, until the ─▶ wait here from ────▶ to the new worker, ────▶ and what is under ───▶
//!  others have what it   now on               from now on              way to it
//!  sent them
//! ```
//!
//! Each arrow is a call from worker to worker that precedes all others, so no other thread delays it. Two
//! workers skip the third step. Frames keep their order, none is lost, and no worker waits for another one:
//!
//! - *From the port*: the old worker takes nothing from it until the others have taken its earlier frames.
//!   Fates are settled at the port: a worker that gets a fate later sends it to the port's new worker
//!   ([`settle`](super::settle)).
//! - *To the port*: the new worker knows first, so frames of workers that know later wait there. Earlier
//!   frames are in the old worker's rings at the hand-over, and go along, in front of the waiting ones.
//! - The new worker takes all of them in within the budget of a loop, like other workers' frames.
//!
//! The model tries every order of these steps.

mod leaving;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use super::WorkerHandle;
use super::crossing::{Crossing, Fate};
use super::under_way::UnderWay;
use super::{Worker, budget};
use crate::clock::clock;
use crate::fdb::PortIndex;
pub use crate::moved::{Moved, Outcome};
use crate::port::Port;
use crate::slots::FrameRef;
use crate::vhost_user::kick::Kick;
pub use leaving::{Arrival, Leaving};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use tidegate_evidence::DropReason;

/// One move, as the workers pass it on.
type Move = leaving::Move<Worker>;

impl Move {
    /// All workers know its new worker: the old worker hands it over.
    fn start_hand_over(self: &Arc<Self>) {
        let port_move = self.clone();
        self.workers[self.from].call_first(move |worker| worker.hand_over(&port_move));
    }
}

/// Begins to move a port from worker `from` to worker `to`; its drivers kick the new worker by `kicks`. The
/// port stays if the other workers do not take its earlier frames within `patience` ns.
///
/// The caller keeps other threads from changing the port or its place meanwhile, and other ports from
/// moving. All workers have [settled](Worker::is_settled) before.
pub fn begin(
    workers: &Arc<[WorkerHandle]>,
    port: PortIndex,
    (from, to): (usize, usize),
    kicks: Vec<(u16, Kick)>,
    patience: u64,
) -> Receiver<Outcome> {
    let (done, outcome) = sync_channel(1);
    let port_move = Arc::new(Move {
        port,
        from,
        to,
        workers: workers.clone(),
        unaware_workers: AtomicUsize::new(workers.len() - 2),
        stopped_at: AtomicU64::new(0),
        expected_at: AtomicU64::new(0),
        done,
    });
    workers[from].call_first(move |worker| worker.begin_leaving(port_move, kicks, patience));
    outcome
}

impl Worker {
    /// Whether the last move is complete at this worker.
    pub fn is_settled(&self) -> bool {
        let has_waiting = |(peer, _): &(super::crossing::Peer, _)| peer.has_waiting();
        self.leaving.is_none() && self.arrival.is_none() && !self.peers.iter().flatten().any(has_waiting)
    }

    fn begin_leaving(&mut self, port_move: Arc<Move>, kicks: Vec<(u16, Kick)>, patience: u64) {
        let now = clock();
        port_move.stopped_at.store(now, Ordering::Relaxed);
        self.pause(port_move.port);
        let sent = self.peers.iter().map(|peer| peer.as_ref().map(|(peer, _)| peer.sent())).collect();
        self.leaving =
            Some(Box::new(Leaving { port_move, kicks, sent, until: Some(now.saturating_add(patience)) }));
    }

    /// Continues once the others have taken the port's earlier frames. `true` while it waits for them.
    #[cold]
    pub(super) fn try_to_leave(&mut self) -> bool {
        let Some(leaving) = &mut self.leaving else { return false };
        let Some(until) = leaving.until else { return false };
        let mut ends = self.peers.iter().zip(&leaving.sent);
        let is_taken = ends.all(|(peer, sent)| match (peer, sent) {
            (Some((peer, _)), Some(sent)) => peer.has_taken(*sent),
            _ => true,
        });
        let port_move = leaving.port_move.clone();
        let is_back = is_taken && self.take_back(port_move.port);
        let Some(leaving) = &mut self.leaving else { return false };
        if is_back {
            leaving.until = None;
            let workers = port_move.workers.clone();
            workers[port_move.to].call_first(move |worker| worker.expect_port(&port_move));
        } else if clock() >= until {
            self.leaving = None;
            self.unpause(port_move.port);
            let waited = (until - port_move.stopped_at.load(Ordering::Relaxed)) / 1000;
            let _ = port_move
                .done
                .send(Err(format!("other workers did not take the port's frames within {waited} us")));
        }
        true
    }

    fn expect_port(&mut self, port_move: &Arc<Move>) {
        port_move.expected_at.store(clock(), Ordering::Relaxed);
        self.set_port_worker(port_move);
        let frames = UnderWay::default();
        self.arrival =
            Some(Box::new(Arrival { port: port_move.port, is_here: false, frames, fates: Vec::new() }));
        let others = port_move.workers.iter().enumerate();
        let others = others.filter(|(number, _)| *number != port_move.from && *number != port_move.to);
        for (_, other) in others {
            let port_move = port_move.clone();
            other.call_first(move |worker| worker.learn_move(&port_move));
        }
        if port_move.workers.len() == 2 {
            port_move.start_hand_over();
        }
    }

    fn learn_move(&mut self, port_move: &Arc<Move>) {
        self.set_port_worker(port_move);
        if port_move.unaware_workers.fetch_sub(1, Ordering::AcqRel) == 1 {
            port_move.start_hand_over();
        }
    }

    fn set_port_worker(&mut self, port_move: &Move) {
        if let Some(info) = &mut self.infos[port_move.port as usize] {
            info.worker = port_move.to as u16;
        }
    }

    fn hand_over(&mut self, port_move: &Arc<Move>) {
        debug_assert!(self.arrival.is_none(), "the move before is settled");
        let mut under_way = UnderWay::default();
        for (peer, _) in self.peers.iter_mut().flatten() {
            peer.extract_frames(port_move.port, &mut under_way);
        }
        self.settle();
        self.set_port_worker(port_move);
        let kicks = self.leaving.take().map_or_else(Vec::new, |leaving| leaving.kicks);
        let Some(port) = self.take_out(port_move.port) else {
            debug_assert!(false, "it was here when it was left alone");
            return;
        };
        let port_move = port_move.clone();
        let workers = port_move.workers.clone();
        workers[port_move.to].call_first(move |worker| worker.arrive(&port_move, port, kicks, under_way));
    }

    fn arrive(
        &mut self,
        port_move: &Move,
        mut port: Box<Port>,
        kicks: Vec<(u16, Kick)>,
        under_way: UnderWay,
    ) {
        let index = port_move.port;
        let stopped_at = port_move.stopped_at.load(Ordering::Relaxed);
        port.pauses -= 1;
        self.put_in(port);
        // Frames that the VM sent while no worker looked arrived after `stopped_at`.
        self.wake_port(index, stopped_at, stopped_at);
        // No worker checked its memory on the way.
        self.break_lost_ports();
        for (queue, kick) in kicks {
            // Its thread still holds the old kick.
            drop(self.set_kick(index, queue, Some(kick)));
        }
        self.touched.insert(index);
        let mut fates = Vec::new();
        if let Some(arrival) = &mut self.arrival {
            arrival.is_here = true;
            let UnderWay { urgent, others } = std::mem::replace(&mut arrival.frames, under_way);
            arrival.frames.urgent.extend(urgent);
            arrival.frames.others.extend(others);
            fates = std::mem::take(&mut arrival.fates);
            let urgent = std::mem::take(&mut arrival.frames.urgent);
            urgent.into_iter().for_each(|frame| self.enqueue(index, &[frame]));
        }
        fates.into_iter().for_each(|fate| self.fates.push(fate));
        self.settle();
        self.ring_peers();
        let now = clock();
        let since = |at: u64| now.saturating_sub(at);
        let moved = Moved {
            sending: since(stopped_at),
            receiving: since(port_move.expected_at.load(Ordering::Relaxed)),
        };
        let _ = port_move.done.send(Ok(moved));
    }

    /// Takes in, within `budget`, frames that were under way when the port came. `true` if there were any.
    #[cold]
    pub(super) fn take_in_arrived(&mut self, budget: &mut i64) -> bool {
        let Some(mut arrival) = self.arrival.take_if(|arrival| arrival.is_here) else { return false };
        while *budget > 0
            && let Some(frame) = arrival.frames.others.pop_front()
        {
            *budget -= budget::queued(frame.get().wire_bytes);
            self.enqueue(arrival.port, &[frame]);
        }
        if !arrival.frames.others.is_empty() {
            self.arrival = Some(arrival);
        }
        true
    }

    /// Sets a frame aside for a port that is about to arrive, or behind others that came before it.
    #[cold]
    pub(super) fn set_aside(&mut self, egress: PortIndex, frame: FrameRef) -> bool {
        let Some(arrival) = &mut self.arrival else { return false };
        if arrival.port != egress {
            return false;
        }
        match (frame.get().is_realtime(), arrival.is_here) {
            (true, true) => return false,
            (true, false) => arrival.frames.urgent.push_back(frame),
            (false, _) => arrival.frames.others.push_back(frame),
        }
        true
    }

    /// Whether frames that preceded a port are not queued yet.
    #[inline]
    pub(super) fn is_arriving(&self, egress: PortIndex) -> bool {
        self.arrival.as_ref().is_some_and(|arrival| arrival.port == egress)
    }

    /// Keeps the fate of a frame whose source is about to arrive; `false` for other sources.
    #[cold]
    pub(super) fn store_fate(&mut self, fate: Fate) -> bool {
        let source = fate.frame.get().source;
        let arrival = self.arrival.as_mut().filter(|arrival| arrival.port == source && !arrival.is_here);
        arrival.map(|arrival| arrival.fates.push(fate)).is_some()
    }

    /// Drops the set-aside frames (egress, frame) that `which` selects.
    pub(super) fn drop_set_aside(
        &mut self,
        reason: DropReason,
        which: impl Fn(PortIndex, &FrameRef) -> bool,
    ) {
        let Some(mut arrival) = self.arrival.take() else { return };
        let UnderWay { urgent, others } = &mut arrival.frames;
        for frames in [urgent, others] {
            frames.retain(|frame| {
                let goes = which(arrival.port, frame);
                if goes {
                    self.drop_frame(*frame, arrival.port, reason);
                }
                !goes
            });
        }
        self.arrival = Some(arrival);
    }

    /// Passes a request on to the egress's present worker.
    pub(super) fn pass_on(&mut self, egress: PortIndex, crossing: Crossing) {
        let Some(info) = &self.infos[egress as usize] else { return };
        let worker = usize::from(info.worker);
        let Some(Some((peer, _))) = self.peers.get_mut(worker) else { return };
        // A request that finds no room is repeated.
        peer.send(crossing);
        self.to_ring |= 1 << worker;
    }
}
