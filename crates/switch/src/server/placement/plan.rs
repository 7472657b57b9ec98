//! Finds the next step towards a better worker for each vNIC, for given loads. Pure.
//!
//! The first of these steps that exists:
//!
//! 1. **Apart**: best-effort taps and real-time vNICs get [different workers](super::apart).
//! 2. **Deadlines**: a vNIC with a deadline leaves the worker with the longest worst-case loop, if that
//!    shortens the longest loop.
//! 3. **Together**: a vNIC moves to the worker of those that it talks with. Two vNICs swap if there is room
//!    for one only.
//! 4. **Balance**: vNICs leave the busiest worker for the idlest one: a group that talks with no other vNIC
//!    there, or one vNIC that talks as much with others elsewhere.
//!
//! The last three steps never bring best-effort taps and real-time vNICs together. The last two never
//! lengthen the longest loop, increase crossing traffic, or load the busiest worker above both its present
//! load and [`HALF`]. So a constant load comes to rest; see the tests.
//!
//! Crossing traffic is assumed to cost each of the two workers as much as it costs one worker that has both
//! vNICs: less than measured (two workers carry 3.7 million frames of 64 bytes a second between them, one
//! carries 12.4). So separating two vNICs that talk never gains.

use super::role::{Role, TAP_WRITE};
use crate::fdb::PortIndex;
use std::collections::{BTreeMap, BTreeSet};

/// All of a worker's time. Loads are in millionths of it.
pub const WHOLE: u64 = 1_000_000;
/// Workers up to this load always accept vNICs that talk with theirs.
pub const HALF: u64 = WHOLE / 2;
/// Least gain of a step.
pub const WORTH: u64 = WHOLE / 50;
/// Most vNICs in one step, except if real-time vNICs [make room](super::apart) for taps.
pub const MOST_MOVED: usize = 16;
/// Most candidates to evaluate.
pub(super) const CANDIDATES: usize = 64;

/// The state of one vNIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    /// Its worker.
    pub worker: usize,
    /// Its worst-case share of one loop, as cost; 0 for a vNIC without deadline.
    pub realtime: u64,
    /// How deadlines concern it.
    pub role: Role,
    /// It must not move.
    pub fixed: bool,
}

/// The state of all vNICs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Number of workers.
    pub workers: usize,
    /// All vNICs.
    pub vnics: BTreeMap<PortIndex, Placed>,
    /// Traffic of two vNICs, the lower index first: the time for it, in millionths of a worker's.
    pub talk: BTreeMap<(PortIndex, PortIndex), u64>,
}

/// The reason of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveReason {
    /// The agent directs so.
    Directed,
    /// Real-time frames need not wait for writes into best-effort taps.
    Apart,
    /// The worst-case loop becomes shorter.
    Deadlines,
    /// The vNICs talk with others at the new worker.
    Together,
    /// The new worker has more time.
    Balance,
}

/// vNICs that move together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Each vNIC and its new worker.
    pub moves: Vec<(PortIndex, usize)>,
    /// The reason.
    pub reason: MoveReason,
}

impl Placement {
    /// Returns the next step; `None` if none is worthwhile.
    pub fn next(&self) -> Option<Step> {
        if self.workers < 2 {
            return None;
        }
        self.separate_taps()
            .or_else(|| self.deadlines())
            .or_else(|| self.together())
            .or_else(|| self.balance())
    }

    /// Takes a step.
    pub fn take(&mut self, step: &Step) {
        for (port, worker) in &step.moves {
            if let Some(vnic) = self.vnics.get_mut(port) {
                vnic.worker = *worker;
            }
        }
    }

    /// Whether a step gains enough for its kind and does no harm, even if found at other loads.
    pub fn is_worthwhile(&self, step: &Step) -> bool {
        let goes = |(port, to): &(PortIndex, usize)| {
            self.vnics.get(port).is_some_and(|vnic| !vnic.fixed && vnic.worker != *to && *to < self.workers)
        };
        if !step.moves.iter().all(goes) || step.moves.is_empty() {
            return false;
        }
        let mut after = self.clone();
        after.take(step);
        let (loops, loops_after) = (self.worst_loops(), after.worst_loops());
        let is_no_longer = highest(&loops_after).1 <= highest(&loops).1;
        let (loads, loads_after) = (self.loads(), after.loads());
        let (first, to) = step.moves[0];
        let from = self.vnics[&first].worker;
        let (sharing, sharing_after) = (self.sharing(), after.sharing());
        match step.reason {
            MoveReason::Directed => true,
            MoveReason::Apart => {
                let longest = highest(&loops).1.max(TAP_WRITE);
                sharing_after < sharing && highest(&loops_after).1 <= longest && self.has_time(&after)
            }
            _ if sharing_after > sharing => false,
            MoveReason::Deadlines => loops_after[from].max(loops_after[to]) + loops[from] / 8 < loops[from],
            MoveReason::Together => {
                let is_room = highest(&loads_after).1 <= HALF.max(highest(&loads).1);
                after.crossing() + WORTH <= self.crossing() && is_room && is_no_longer
            }
            MoveReason::Balance => {
                let is_worth =
                    loads[from] > HALF && loads_after[from].max(loads_after[to]) + 2 * WORTH <= loads[from];
                is_worth && after.crossing() <= self.crossing() && is_no_longer
            }
        }
    }

    /// Returns the traffic between vNICs of different workers.
    pub fn crossing(&self) -> u64 {
        let crosses = |((a, b), _): &(&(PortIndex, PortIndex), &u64)| self.worker(*a) != self.worker(*b);
        self.talk.iter().filter(crosses).map(|(_, talk)| talk).sum()
    }

    /// Returns the load of each worker.
    pub fn loads(&self) -> Vec<u64> {
        let mut loads = vec![0; self.workers];
        for ((a, b), talk) in &self.talk {
            if let (Some(at_a), Some(at_b)) = (self.worker(*a), self.worker(*b)) {
                loads[at_a] += talk;
                if at_b != at_a {
                    loads[at_b] += talk;
                }
            }
        }
        loads
    }

    /// Returns the worst-case part of vNICs with deadlines in each worker's loop.
    pub fn worst_loops(&self) -> Vec<u64> {
        let mut loops = vec![0; self.workers];
        self.vnics.values().for_each(|vnic| loops[vnic.worker] += vnic.realtime);
        loops
    }

    /// Returns highest load, longest loop and number of sharing taps after some moves.
    fn outcome_after(&self, moves: &[(PortIndex, usize)]) -> (u64, u64, usize) {
        let mut after = self.clone();
        after.take(&Step { moves: moves.to_vec(), reason: MoveReason::Together });
        (highest(&after.loads()).1, highest(&after.worst_loops()).1, after.sharing())
    }

    pub(super) fn talk_by_vnic(&self) -> BTreeMap<PortIndex, u64> {
        let mut all = BTreeMap::new();
        for ((a, b), talk) in &self.talk {
            *all.entry(*a).or_default() += talk;
            *all.entry(*b).or_default() += talk;
        }
        all
    }

    fn worker(&self, port: PortIndex) -> Option<usize> {
        self.vnics.get(&port).map(|vnic| vnic.worker)
    }

    pub(super) fn movable(&self) -> impl Iterator<Item = (PortIndex, &Placed)> {
        self.vnics.iter().filter(|(_, vnic)| !vnic.fixed).map(|(port, vnic)| (*port, vnic))
    }

    /// Returns each vNIC's traffic with the vNICs of each worker.
    fn with_workers(&self) -> BTreeMap<PortIndex, Vec<u64>> {
        let mut with: BTreeMap<_, _> = self.vnics.keys().map(|port| (*port, vec![0; self.workers])).collect();
        for ((a, b), talk) in &self.talk {
            if let (Some(at_a), Some(at_b)) = (self.worker(*a), self.worker(*b)) {
                with.get_mut(a).expect("one of the vNICs")[at_b] += talk;
                with.get_mut(b).expect("one of the vNICs")[at_a] += talk;
            }
        }
        with
    }

    fn deadlines(&self) -> Option<Step> {
        let loops = self.worst_loops();
        let (from, longest) = highest(&loops);
        let (to, shortest) = lowest(&loops);
        let after = |vnic: &Placed| (longest - vnic.realtime).max(shortest + vnic.realtime);
        let mut here: Vec<_> =
            self.movable().filter(|(_, vnic)| vnic.worker == from && vnic.realtime > 0).collect();
        // A second worker with an equally long loop stays; a later step shortens its loop.
        here.sort_by_key(|(_, vnic)| after(vnic));
        let steps =
            here.into_iter().map(|(port, _)| Step { moves: vec![(port, to)], reason: MoveReason::Deadlines });
        steps.into_iter().take(CANDIDATES).find(|step| self.is_worthwhile(step))
    }

    fn together(&self) -> Option<Step> {
        let with = self.with_workers();
        let (busiest, longest, sharing) = self.outcome_after(&[]);
        let gain = |port: PortIndex, from: usize, to: usize| {
            i128::from(with[&port][to]) - i128::from(with[&port][from])
        };
        let mut wishes = Vec::new();
        for (port, vnic) in self.movable() {
            let all: u64 = with[&port].iter().sum();
            for to in (0..self.workers).filter(|to| *to != vnic.worker) {
                let gain = gain(port, vnic.worker, to);
                if gain >= i128::from(WORTH.max(all / 4)) {
                    wishes.push((gain, vec![(port, to)]));
                }
            }
        }
        // Of two vNICs that want to be together, the one moves that ends on the less busy worker.
        let loads = self.loads();
        wishes.sort_by_key(|(gain, moves)| (std::cmp::Reverse(*gain), loads[moves[0].1], moves[0]));
        wishes.truncate(CANDIDATES);
        let fits = |moves: &[(PortIndex, usize)]| {
            let after = self.outcome_after(moves);
            after.0 <= HALF.max(busiest) && after.1 <= longest && after.2 <= sharing
        };
        let mut exchanges = Vec::new();
        for (first, moves) in wishes {
            if fits(&moves) {
                return Some(Step { moves, reason: MoveReason::Together });
            }
            let (port, to) = moves[0];
            let from = self.vnics[&port].worker;
            for (other, _) in self.movable().filter(|(_, other)| other.worker == to) {
                // The traffic between the two crosses before and after.
                let between = self.talk.get(&(port.min(other), port.max(other))).copied().unwrap_or(0);
                let all = first + gain(other, to, from) - 2 * i128::from(between);
                if all >= i128::from(WORTH) {
                    exchanges.push((all, vec![(port, to), (other, from)]));
                }
            }
        }
        exchanges.sort_by_key(|(gain, moves)| (std::cmp::Reverse(*gain), moves[0], moves[1]));
        let (_, moves) = exchanges.into_iter().take(CANDIDATES).find(|(_, moves)| fits(moves))?;
        Some(Step { moves, reason: MoveReason::Together })
    }

    fn balance(&self) -> Option<Step> {
        let loads = self.loads();
        let (from, most) = highest(&loads);
        let (to, _) = lowest(&loads);
        if most <= HALF {
            return None;
        }
        let mut groups = self.groups(from);
        // A single vNIC leaves, too, if it talks as much with others elsewhere.
        groups.extend(groups.concat().into_iter().map(|port| vec![port]));
        groups.retain(|group| group.len() <= MOST_MOVED && !group.iter().any(|port| self.vnics[port].fixed));
        let with = self.with_workers();
        let talk = |group: &Vec<PortIndex>| group.iter().flat_map(|port| &with[port]).sum::<u64>();
        groups.sort_by_cached_key(|group| std::cmp::Reverse(talk(group)));
        let changes = groups.into_iter().take(CANDIDATES).filter_map(|group| {
            let moves = group.into_iter().map(|port| (port, to)).collect();
            let step = Step { moves, reason: MoveReason::Balance };
            let mut after = self.clone();
            after.take(&step);
            let both = after.loads()[from].max(after.loads()[to]);
            self.is_worthwhile(&step).then_some((both, step.moves))
        });
        let (_, moves) = changes.min()?;
        Some(Step { moves, reason: MoveReason::Balance })
    }

    /// Returns a worker's vNICs in groups that talk, directly or through others there.
    fn groups(&self, worker: usize) -> Vec<Vec<PortIndex>> {
        let here = |port: &PortIndex| self.worker(*port) == Some(worker);
        let mut friends: BTreeMap<PortIndex, Vec<PortIndex>> = BTreeMap::new();
        for ((a, b), _) in self.talk.iter().filter(|((a, b), talk)| **talk > 0 && here(a) && here(b)) {
            friends.entry(*a).or_default().push(*b);
            friends.entry(*b).or_default().push(*a);
        }
        let mut left: BTreeSet<PortIndex> = self.vnics.keys().copied().filter(here).collect();
        let mut groups = Vec::new();
        while let Some(first) = left.pop_first() {
            let mut group = vec![first];
            let mut next = 0;
            while let Some(port) = group.get(next) {
                let found: Vec<_> =
                    friends.get(port).into_iter().flatten().filter(|port| left.remove(port)).collect();
                group.extend(found);
                next += 1;
            }
            groups.push(group);
        }
        groups
    }
}

/// Returns the first highest value, with its place.
fn highest(values: &[u64]) -> (usize, u64) {
    let order = |(place, value): &(usize, u64)| (*value, std::cmp::Reverse(*place));
    values.iter().copied().enumerate().max_by_key(order).unwrap_or((0, 0))
}

/// Returns the first lowest value, with its place.
fn lowest(values: &[u64]) -> (usize, u64) {
    values.iter().copied().enumerate().min_by_key(|(place, value)| (*value, *place)).unwrap_or((0, 0))
}
