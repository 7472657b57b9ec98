//! The planner: a CPU for each stage, and a worker for each vNIC of the host switch.
//!
//! ```text
//!  Problem ─▶ housekeeping ─▶ model ─▶ in force ─▶ descend, with hysteresis ──────────┐
//!                               │                                                     ├─▶ worth its moves? ─▶ Plan
//!                               ├────▶ greedy ───▶ descend, anneal, descend ─┐        │      ▲
//!                               ├────▶ small: branch and bound ──────────────┴─ best ─┘      │
//!                               └────▶ lower bound, reasons, what is impossible ─────────────┘
//! ```
//!
//! The planner has no clock: it counts *steps*, each the evaluation of one stage on one CPU beside up to 16 others, so equal questions get
//! equal answers.
//!
//! - [`score`]: the objective
//! - [`model`]: the problem's numbers
//! - [`state`]: an assignment, and its score with each change
//! - [`greedy`]: a first assignment
//! - [`search`]: better ones
//! - [`random`]: numbers for the search
//! - [`exact`]: the best one of a small host
//! - [`hysteresis`]: whether a better one is worth its moves
//! - [`bound`]: what any assignment costs at least
//! - [`crowding`]: the part of it that is due to shared CPUs
//! - [`reasons`]: the answer in words
//!
//! `docs/decisions/cpu-plan.md` has the reasons for this search, and figures.

mod bound;
mod crowding;
mod exact;
mod greedy;
mod hysteresis;
mod model;
mod random;
mod reasons;
mod score;
mod search;
mod state;
#[cfg(test)]
mod tests;

use crate::cpus::Cpus;
use crate::problem::{Plan, Problem};
use model::{Model, NOWHERE, Role};
use random::Random;
use score::Score;
use search::Guard;
use state::State;

/// How long the planner may search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Evaluations of a stage on a CPU. A processor does some millions a second; all parts of the search together take at most three times
    /// as many.
    pub steps: u64,
}

impl Default for Effort {
    /// Some seconds at most.
    fn default() -> Self {
        Self { steps: 10_000_000 }
    }
}

/// With more stages than these, a proof that an assignment is the best takes too long, and is not tried.
const MOST_EXACT: usize = 40;
/// With more stages than these, a hot search finds nothing within its steps.
const MOST_HOT: usize = 300;

/// Plans. The plan is never worse than the assignment in force, and leaves it unless the gain is worth the moves.
///
/// A machine of one CPU, and one without usable CPUs, gets an empty assignment with the reason for each stage.
pub fn plan(problem: &Problem, effort: Effort) -> Plan {
    let housekeeping = housekeeping(problem);
    let model = Model::new(problem, &housekeeping);
    if model.cpus.len() < 2 || model.usable.is_empty() {
        return reasons::nothing(problem, housekeeping);
    }
    let groups = greedy::groups(&model, &problem.stages);
    let steps = effort.steps.max(1);
    let kept = kept(&model, &groups, steps / 4);
    let small = model.stages.iter().filter(|stage| stage.movable).count() <= MOST_EXACT;
    // The proof finds what the search misses.
    let mut best = searched(&model, &groups, if small { steps / 16 } else { steps });
    if let Some(kept) = &kept {
        let mut further = kept.clone();
        let until = further.steps + steps / 4;
        search::descend(&mut further, &groups, Guard::None, until);
        if further.score < best.score {
            best = further;
        }
    }
    let mut proven = None;
    if small {
        let mut state = State::new(&model);
        let (found, done) = exact::best(&mut state, best.score, steps);
        if let Some(places) = found {
            search::restore(&mut best, &places);
        }
        proven = done.then_some(best.score);
    }
    let chosen = match kept {
        Some(kept) if !hysteresis::worth(&kept, &best) => kept,
        _ => best,
    };
    let lower_bound = match proven {
        Some(score) if score.deadlines == chosen.score.deadlines => score.cost as u64,
        _ => bound::lower(&model, chosen.score.deadlines).min(chosen.score.cost as u64),
    };
    let own = model.cpus.iter().enumerate().filter(|(at, _)| chosen.alone(*at as u16)).map(|(_, cpu)| *cpu);
    Plan {
        assignment: model.assignment(&problem.stages, &chosen.places, &chosen.cpus),
        own: own.collect(),
        reasons: reasons::reasons(problem, &chosen),
        cost: chosen.score.cost as u64,
        present_cost: present(&model).cost as u64,
        lower_bound,
        exact: proven.is_some_and(|best: Score| {
            (best.deadlines, best.cost) == (chosen.score.deadlines, chosen.score.cost)
        }),
        impossible: reasons::impossible(problem, &chosen),
        housekeeping,
    }
}

/// A new assignment; takes at most twice as many steps beside those of the first one.
fn searched<'a>(model: &'a Model, groups: &[Vec<usize>], steps: u64) -> State<'a> {
    let mut best = greedy::first(model, groups);
    let mut random = Random(1);
    let movable = model.stages.iter().filter(|stage| stage.movable).count();
    search::descend(&mut best, groups, Guard::None, steps / 4);
    // Hot for few stages; of many, a hot search undoes what the greedy start found.
    if movable <= MOST_HOT {
        search::anneal(&mut best, &mut random, 1.0, steps * 3 / 8);
    }
    search::anneal(&mut best, &mut random, 0.1, steps * 7 / 8);
    let until = best.steps + steps;
    search::descend(&mut best, groups, Guard::None, until);
    best
}

/// The assignment in force, with places for stages that came since, improved where that is worth the moves. `None` if nothing is in force.
fn kept<'a>(model: &'a Model, groups: &[Vec<usize>], steps: u64) -> Option<State<'a>> {
    let mut state = at(model, |stage| stage.in_force);
    let any = model.stages.iter().any(|stage| stage.movable && stage.in_force != NOWHERE);
    if !any {
        return None;
    }
    greedy::complete(&mut state, groups, usize::MAX);
    let until = state.steps + steps;
    search::descend(&mut state, groups, Guard::InForce, until);
    Some(state)
}

/// The score of the present placement.
fn present(model: &Model) -> Score {
    at(model, |stage| stage.present).score
}

/// Each movable stage at a place of its own, if that is a place it may have or has.
fn at<'a>(model: &'a Model, place: impl Fn(&model::Item) -> u16) -> State<'a> {
    let mut state = State::new(model);
    for ports in [false, true] {
        for (number, stage) in model.stages.iter().enumerate() {
            if stage.movable && (stage.role == Role::Port) == ports && place(stage) != NOWHERE {
                state.insert(number, place(stage));
            }
        }
    }
    state
}

/// CPUs for other work: the given ones; else CPU 0, if a stage may not have it or there are others; else the first that is not set apart.
fn housekeeping(problem: &Problem) -> Cpus {
    if !problem.housekeeping.is_empty() {
        return problem.housekeeping.clone();
    }
    let cpus = &problem.machine.cpus;
    let general = |cpu: &usize| cpus.get(cpu).is_some_and(|at| !at.isolated);
    let zero =
        Some(0).filter(|cpu| general(cpu) && (!problem.usable.contains(cpu) || problem.usable.len() > 1));
    let usable =
        || problem.usable.iter().copied().find(|cpu| general(cpu)).filter(|_| problem.usable.len() > 1);
    let any = || cpus.keys().copied().find(|cpu| general(cpu) && !problem.usable.contains(cpu));
    let last = || cpus.keys().next().copied();
    zero.or_else(usable).or_else(any).or_else(last).into_iter().collect()
}
