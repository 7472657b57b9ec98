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
//! Each arrow is a call from worker to worker that goes before all others, so no thread but workers delays it. With two
//! workers the third step is left out. Frames keep their order, none is lost, and no worker has to wait for another one:
//!
//! - *From the port*: nothing is taken from it until the others have taken what it sent them by the old worker. What
//!   comes back is settled where the port is: a worker that gets a fate of its frames later sends it to the port's new
//!   worker ([`settle`](super::settle)).
//! - *To the port*: the new worker learns it first, so frames of workers that learn it later wait there. What
//!   was sent to the old worker before is in its rings when it hands the port over, and goes along, in front of what
//!   waits.
//! - All of that is taken in within the budget of a loop, as what comes from other workers is.
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
    /// All know where it goes: the old worker gives it away.
    fn all_told(self: &Arc<Self>) {
        let course = self.clone();
        self.workers[self.from].call_first(move |worker| worker.hand_over(&course));
    }
}

/// Begins to move a port from worker `from` to worker `to`; `kicks` are what the queues' drivers kick the new worker by.
/// It stays where the other workers have not taken within `patience` ns what it sent them.
///
/// The caller lets no other thread change the port or its place meanwhile, and no other port move. Before, all workers have
/// [settled](Worker::is_settled).
pub fn begin(
    workers: &Arc<[WorkerHandle]>,
    port: PortIndex,
    (from, to): (usize, usize),
    kicks: Vec<(u16, Kick)>,
    patience: u64,
) -> Receiver<Outcome> {
    let (done, outcome) = sync_channel(1);
    let course = Arc::new(Move {
        port,
        from,
        to,
        workers: workers.clone(),
        untold: AtomicUsize::new(workers.len() - 2),
        left: AtomicU64::new(0),
        expected: AtomicU64::new(0),
        done,
    });
    workers[from].call_first(move |worker| worker.leave(course, kicks, patience));
    outcome
}

impl Worker {
    /// Whether everything is over that began with the last move of a port.
    pub fn is_settled(&self) -> bool {
        let kept = |(peer, _): &(super::crossing::Peer, _)| peer.keeps_any();
        self.leaving.is_none() && self.arrival.is_none() && !self.peers.iter().flatten().any(kept)
    }

    fn leave(&mut self, course: Arc<Move>, kicks: Vec<(u16, Kick)>, patience: u64) {
        let now = clock();
        course.left.store(now, Ordering::Relaxed);
        self.pause(course.port);
        let sent = self.peers.iter().map(|peer| peer.as_ref().map(|(peer, _)| peer.sent())).collect();
        self.leaving =
            Some(Box::new(Leaving { course, kicks, sent, until: Some(now.saturating_add(patience)) }));
    }

    /// Goes on as soon as the others have taken what the port sent them. `true` while that is waited for.
    #[cold]
    pub(super) fn try_to_leave(&mut self) -> bool {
        let Some(leaving) = &mut self.leaving else { return false };
        let Some(until) = leaving.until else { return false };
        let mut ends = self.peers.iter().zip(&leaving.sent);
        let is_taken = ends.all(|(peer, sent)| match (peer, sent) {
            (Some((peer, _)), Some(sent)) => peer.has_taken(*sent),
            _ => true,
        });
        let course = leaving.course.clone();
        let is_back = is_taken && self.take_back(course.port);
        let Some(leaving) = &mut self.leaving else { return false };
        if is_back {
            leaving.until = None;
            let workers = course.workers.clone();
            workers[course.to].call_first(move |worker| worker.expect(&course));
        } else if clock() >= until {
            self.leaving = None;
            self.unpause(course.port);
            let waited = (until - course.left.load(Ordering::Relaxed)) / 1000;
            let _ =
                course.done.send(Err(format!("other workers did not take its frames within {waited} us")));
        }
        true
    }

    fn expect(&mut self, course: &Arc<Move>) {
        course.expected.store(clock(), Ordering::Relaxed);
        self.is_now_at(course);
        let frames = UnderWay::default();
        self.arrival =
            Some(Box::new(Arrival { port: course.port, is_here: false, frames, fates: Vec::new() }));
        let others = course.workers.iter().enumerate();
        let others = others.filter(|(number, _)| *number != course.from && *number != course.to);
        for (_, other) in others {
            let course = course.clone();
            other.call_first(move |worker| worker.told(&course));
        }
        if course.workers.len() == 2 {
            course.all_told();
        }
    }

    fn told(&mut self, course: &Arc<Move>) {
        self.is_now_at(course);
        if course.untold.fetch_sub(1, Ordering::AcqRel) == 1 {
            course.all_told();
        }
    }

    fn is_now_at(&mut self, course: &Move) {
        if let Some(info) = &mut self.infos[course.port as usize] {
            info.worker = course.to as u16;
        }
    }

    fn hand_over(&mut self, course: &Arc<Move>) {
        debug_assert!(self.arrival.is_none(), "the move before is settled");
        let mut under_way = UnderWay::default();
        for (peer, _) in self.peers.iter_mut().flatten() {
            peer.part(course.port, &mut under_way);
        }
        self.settle();
        self.is_now_at(course);
        let kicks = self.leaving.take().map_or_else(Vec::new, |leaving| leaving.kicks);
        let Some(port) = self.take_out(course.port) else {
            debug_assert!(false, "it was here when it was left alone");
            return;
        };
        let course = course.clone();
        let workers = course.workers.clone();
        workers[course.to].call_first(move |worker| worker.arrive(&course, port, kicks, under_way));
    }

    fn arrive(&mut self, course: &Move, mut port: Box<Port>, kicks: Vec<(u16, Kick)>, under_way: UnderWay) {
        let index = course.port;
        let left = course.left.load(Ordering::Relaxed);
        port.pauses -= 1;
        self.put_in(port);
        // What it sent while no worker looked arrived after it was left.
        self.wake_port(index, left, left);
        // No worker saw whether its memory was lost on the way.
        self.memory_lost();
        for (queue, kick) in kicks {
            // What it had before is held by its thread still.
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
        let moved = Moved { sending: since(left), receiving: since(course.expected.load(Ordering::Relaxed)) };
        let _ = course.done.send(Ok(moved));
    }

    /// Takes in, while `budget` lasts, frames that were under way to a port when it came. `true` where there were any.
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

    /// Keeps a frame to a port that is about to arrive, or behind others that came before it.
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

    /// Whether frames to a port that came before are not queued yet.
    #[inline]
    pub(super) fn is_arriving(&self, egress: PortIndex) -> bool {
        self.arrival.as_ref().is_some_and(|arrival| arrival.port == egress)
    }

    /// Keeps the fate of a frame whose source is about to arrive; `false` where it is not.
    #[cold]
    pub(super) fn keep_fate(&mut self, fate: Fate) -> bool {
        let source = fate.frame.get().source;
        let arrival = self.arrival.as_mut().filter(|arrival| arrival.port == source && !arrival.is_here);
        arrival.map(|arrival| arrival.fates.push(fate)).is_some()
    }

    /// Drops frames that were set aside: those that `which` says, of an egress and a frame.
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

    /// Passes a request on to the worker that the egress is at now.
    pub(super) fn pass_on(&mut self, egress: PortIndex, crossing: Crossing) {
        let Some(info) = &self.infos[egress as usize] else { return };
        let worker = usize::from(info.worker);
        let Some(Some((peer, _))) = self.peers.get_mut(worker) else { return };
        // One that finds no room is made again.
        peer.send(crossing);
        self.to_ring |= 1 << worker;
    }
}
