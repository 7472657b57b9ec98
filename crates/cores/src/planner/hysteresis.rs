//! Whether a change is worth its moves, although loads are only known roughly.
//!
//! Measured loads are never the same twice. So a change is made only if it would gain although each load and each rate of frames were
//! wrong against it: the terms of the cost that it removes count 5 % less, those that it adds 5 % more, and each moved stage costs
//! 1 ms a second. Terms that stay the same count on neither side.
//!
//! With this an assignment that no change in reach improves stays, if loads then change by 2 %: for all loads l' with
//! 0.95 l' ≤ l ≤ 1.05 l', what a change gains at l' by this rule is at most what it gains at l, which is nothing.

use super::model::Index;
use super::state::{State, core_cost};
use std::collections::{BTreeMap, BTreeSet};

/// What a moved stage costs, ns a second.
const MOVE: i64 = 1_000_000;
/// By how much loads may be wrong, percent.
const ROUGH: i64 = 5;

/// A term of the cost that concerns a stage that moves, or a core between which stages move.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Term {
    Pair(usize, usize),
    Link(usize, usize, i64),
    Locality(usize),
    Core(usize),
}

/// A term's value at loads as they are, the least and the most that it may be.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Value {
    now: i64,
    least: i64,
    most: i64,
}

impl Value {
    fn of(now: i64) -> Self {
        Self { now, least: now * (100 - ROUGH) / 100, most: now * (100 + ROUGH) / 100 }
    }
}

/// The terms of some stages and cores in one assignment.
pub struct Terms(BTreeMap<Term, (Value, Vec<u32>)>);

impl Terms {
    /// Collects the terms of the stages that move, ports of workers that move among them, and of the CPUs that they leave or enter.
    pub fn of(state: &State, moved: &BTreeSet<usize>, cpus: &BTreeSet<Index>) -> Self {
        let model = state.model;
        let mut terms = BTreeMap::new();
        let mut add = |term, now| _ = terms.insert(term, (Value::of(now), vec![]));
        for stage in moved.iter().copied() {
            let Some(members) = state.members.get(usize::from(state.cpus[stage])) else { continue };
            let (item, cpu, worker) = (&model.stages[stage], state.cpus[stage], state.worker[stage]);
            for other in members.iter().map(|other| *other as usize).filter(|other| *other != stage) {
                let beside = &model.stages[other];
                let one_worker = worker != super::model::NOWHERE && state.worker[other] == worker;
                let cost = model.sharing[item.kind][beside.kind] * item.load.min(beside.load);
                add(Term::Pair(stage.min(other), stage.max(other)), if one_worker { 0 } else { cost });
            }
            for (nth, end) in (0..).zip(&model.links[stage]) {
                let other = end.other;
                if let Some(to) = Some(state.cpus[other]).filter(|to| *to != super::model::NOWHERE) {
                    let kind = model.stages[other].kind;
                    let distance = state.distance(cpu, to, item.kind, kind, worker == state.worker[other]);
                    let cost = model.handover(item.kind, kind, end.frames, distance);
                    // Of two stages that both move, the first has the link.
                    if !moved.contains(&other) || stage < other {
                        add(Term::Link(stage, other, nth), cost);
                    }
                }
            }
            add(Term::Locality(stage), state.locality(stage, cpu));
        }
        for core in cpus.iter().map(|cpu| model.core[usize::from(*cpu)]) {
            let members = &model.cores[core];
            let load = |at: Index| state.load[usize::from(at)];
            let cost = |percent: i64| core_cost(model, members, |at| load(at) * percent / 100);
            let value = Value { now: cost(100), least: cost(100 - ROUGH), most: cost(100 + ROUGH) };
            let mut who: Vec<u32> = vec![];
            for cpu in members {
                let mut here = state.members[usize::from(*cpu)].clone();
                here.sort_unstable();
                who.push(u32::MAX);
                who.extend(here);
            }
            terms.insert(Term::Core(core), (value, who));
        }
        Self(terms)
    }

    /// Returns whether the change from these terms to others gains, however rough the loads are known.
    pub fn worse_than(&self, after: &Self, moves: i64) -> bool {
        let nothing = (Value::default(), vec![]);
        let mut gain = -MOVE * moves;
        for term in self.0.keys().chain(after.0.keys().filter(|term| !self.0.contains_key(term))) {
            let before = self.0.get(term).unwrap_or(&nothing);
            let then = after.0.get(term).unwrap_or(&nothing);
            if before.1 != then.1 || before.0.now != then.0.now {
                gain += before.0.least - then.0.most;
            }
        }
        gain > 0
    }
}

/// Returns whether one assignment is worth the change from another.
pub fn worth(from: &State, to: &State) -> bool {
    let (was, is) = (from.score, to.score);
    if was.deadlines != is.deadlines {
        return is.deadlines < was.deadlines;
    }
    let moved: BTreeSet<usize> = (0..from.places.len())
        .filter(|at| from.cpus[*at] != to.cpus[*at] || from.worker[*at] != to.worker[*at])
        .collect();
    let cpus: BTreeSet<Index> = moved
        .iter()
        .flat_map(|at| [from.cpus[*at], to.cpus[*at]])
        .filter(|cpu| *cpu != super::model::NOWHERE)
        .collect();
    let moves = (0..from.places.len()).filter(|at| from.places[*at] != to.places[*at]).count() as i64;
    Terms::of(from, &moved, &cpus).worse_than(&Terms::of(to, &moved, &cpus), moves)
}
