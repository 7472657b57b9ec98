//! Real-time vNICs and best-effort taps on different workers. Pure.
//!
//! ```text
//!  worker 0: voice, sink, web, backup     ─ taps leave ─▶   worker 0: voice, sink
//!  worker 1: -                                              worker 1: web, backup
//! ```
//!
//! A write into a tap runs the tenant's network stack on the worker, up to the frames that the stack sends: a
//! super-frame of 64 kB takes [as long as copying a megabyte](super::role::TAP_WRITE). A real-time frame that arrives meanwhile
//! waits. A receiver of real-time frames counts as a real-time vNIC, because such frames wait in its queue.
//!
//! Each step reduces [the number of taps](Placement::sharing) that share a worker with real-time vNICs:
//!
//! 1. Best-effort taps move to a worker without real-time vNICs that has [time](FULL) for them.
//! 2. If each worker has real-time vNICs, those of one worker move to another.
//!
//! With one worker, or with only real-time vNICs, there is nothing to do.

use super::plan::{CANDIDATES, MOST_MOVED, MoveReason, Placement, Step, WHOLE};
use super::role::Role;
use crate::fdb::PortIndex;
use std::cmp::Reverse;

/// Taps do not move to a worker whose load would exceed this, unless the busiest worker's load does already.
pub const FULL: u64 = WHOLE / 8 * 7;
impl Placement {
    /// Returns how many best-effort taps share a worker with real-time vNICs.
    pub fn sharing(&self) -> usize {
        self.shared().iter().sum()
    }

    /// The same number, for each worker.
    fn shared(&self) -> Vec<usize> {
        let taps = self.count(Role::BestEffortTap);
        let realtime = self.count(Role::RealTime);
        taps.into_iter().zip(realtime).map(|(taps, realtime)| if realtime > 0 { taps } else { 0 }).collect()
    }

    fn count(&self, role: Role) -> Vec<usize> {
        let mut counts = vec![0; self.workers];
        self.vnics.values().filter(|vnic| vnic.role == role).for_each(|vnic| counts[vnic.worker] += 1);
        counts
    }

    pub(super) fn separate_taps(&self) -> Option<Step> {
        if self.sharing() == 0 {
            return None;
        }
        self.move_taps().or_else(|| self.gather_realtime())
    }

    /// Whether the busiest worker after a step has time for its load.
    pub(super) fn has_time(&self, after: &Self) -> bool {
        let busiest = |placement: &Self| placement.loads().into_iter().max().unwrap_or(0);
        busiest(after) <= busiest(self).max(FULL)
    }

    /// Moves taps to the idlest worker without real-time vNICs, those with most traffic first.
    fn move_taps(&self) -> Option<Step> {
        let (shared, realtime, loads) = (self.shared(), self.count(Role::RealTime), self.loads());
        let to =
            (0..self.workers).filter(|worker| realtime[*worker] == 0).min_by_key(|to| (loads[*to], *to))?;
        let talk = self.talk_by_vnic();
        let mut taps = self.movable_of(Role::BestEffortTap, |worker| shared[worker] > 0);
        taps.sort_by_key(|port| (Reverse(talk.get(port).copied().unwrap_or(0)), *port));
        let (mut moves, mut after) = (Vec::new(), self.clone());
        for port in taps.into_iter().take(CANDIDATES) {
            let step = Step { moves: vec![(port, to)], reason: MoveReason::Apart };
            let mut tried = after.clone();
            tried.take(&step);
            if self.has_time(&tried) {
                after = tried;
                moves.extend(step.moves);
            }
            if moves.len() == MOST_MOVED {
                break;
            }
        }
        (!moves.is_empty()).then_some(Step { moves, reason: MoveReason::Apart })
    }

    /// Moves all real-time vNICs of one worker to another worker that has some; a part of them would make no
    /// room. Prefers the shortest resulting loop, then the fewest moves.
    fn gather_realtime(&self) -> Option<Step> {
        let (shared, realtime) = (self.shared(), self.count(Role::RealTime));
        let loops = self.worst_loops();
        let pairs = (0..self.workers).flat_map(|from| (0..self.workers).map(move |to| (from, to)));
        let mut pairs: Vec<_> =
            pairs.filter(|(from, to)| from != to && shared[*from] > 0 && realtime[*to] > 0).collect();
        pairs.sort_by_key(|(from, to)| (loops[*from] + loops[*to], realtime[*from], *from, *to));
        let steps = pairs.into_iter().take(CANDIDATES).map(|(from, to)| {
            let ports = self.movable_of(Role::RealTime, |worker| worker == from);
            Step { moves: ports.into_iter().map(|port| (port, to)).collect(), reason: MoveReason::Apart }
        });
        steps.into_iter().find(|step| self.is_worthwhile(step))
    }

    fn movable_of(&self, role: Role, at: impl Fn(usize) -> bool) -> Vec<PortIndex> {
        let goes = |(_, vnic): &(PortIndex, &super::plan::Placed)| vnic.role == role && at(vnic.worker);
        self.movable().filter(goes).map(|(port, _)| port).collect()
    }
}
