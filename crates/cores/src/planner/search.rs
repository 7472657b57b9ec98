//! Local search: changes of an assignment, as long as they improve it.
//!
//! - *shift*: one stage to the best place; a worker with its ports
//! - *regroup*: all stages of one vNIC anew, one after the other, each to its best place
//! - *swap*: two stages change CPUs; *exchange*: two CPUs change all their stages (in [`anneal`] only)

use super::greedy::{best_for_worker, best_place};
use super::hysteresis::Terms;
use super::model::{Index, Model, NOWHERE, Role};
use super::random::Random;
use super::score::Score;
use super::state::State;
use std::cmp::Ordering;
use std::collections::BTreeSet;

/// Whether a change has to gain although loads are known roughly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// No: any gain.
    None,
    /// Yes: the assignment is in force.
    InForce,
}

/// Shifts and regroups while that improves the assignment, until nothing does or `until` steps are taken. Returns whether nothing does.
pub fn descend(state: &mut State, groups: &[Vec<usize>], guard: Guard, until: u64) -> bool {
    let movable: Vec<usize> = (0..state.places.len()).filter(|at| state.model.stages[*at].movable).collect();
    loop {
        let mut improved = false;
        for stage in &movable {
            improved |= shift_to_best(state, *stage, guard);
            if state.steps >= until {
                return false;
            }
        }
        for group in groups.iter().filter(|group| group.len() > 1) {
            improved |= regroup(state, group, guard);
            if state.steps >= until {
                return false;
            }
        }
        if !improved {
            return true;
        }
    }
}

fn shift_to_best(state: &mut State, stage: usize, guard: Guard) -> bool {
    let from = state.places[stage];
    if from == NOWHERE {
        return false;
    }
    let best = if let Role::Worker(_) = state.model.stages[stage].role {
        best_for_worker(state, stage, from)
    } else {
        let removed = state.remove(stage);
        let best = best_place(state, stage, |place| place != from);
        state.insert_known(stage, from, removed);
        best.map(|(inserted, place)| (inserted - removed, place))
    };
    best.is_some_and(|(delta, to)| delta < Score::default() && change(state, &[(stage, to)], guard))
}

fn regroup(state: &mut State, group: &[usize], guard: Guard) -> bool {
    let before = state.score;
    let from: Vec<Index> = group.iter().map(|at| state.places[*at]).collect();
    group.iter().for_each(|at| _ = state.remove(*at));
    for at in group {
        let (delta, place) = best_place(state, *at, |_| true).expect("a movable stage has a place");
        state.insert_known(*at, place, delta);
    }
    if state.score < before && guard == Guard::None {
        return true;
    }
    let found: Vec<_> = group.iter().map(|at| (*at, state.places[*at])).collect();
    let improved = state.score < before;
    group.iter().for_each(|at| _ = state.remove(*at));
    group.iter().zip(from).for_each(|(at, place)| state.insert(*at, place));
    improved && change(state, &found, guard)
}

/// Makes a change that improves the score, if the guard lets it; returns whether it did.
fn change(state: &mut State, to: &[(usize, Index)], guard: Guard) -> bool {
    if guard == Guard::None {
        to.iter().for_each(|(stage, place)| _ = state.shift(*stage, *place));
        return true;
    }
    let from: Vec<_> = to.iter().map(|(stage, _)| (*stage, state.places[*stage])).collect();
    let moves = to.iter().zip(&from).filter(|(a, b)| a != b).count() as i64;
    let mut moved = BTreeSet::new();
    let mut cpus = BTreeSet::new();
    for (stage, place) in to {
        moved.insert(*stage);
        moved.extend(state.ports_of(*stage));
        cpus.extend([state.cpus[*stage], state.cpu_at(*stage, *place)]);
    }
    cpus.remove(&NOWHERE);
    let (was, before) = (state.score, Terms::of(state, &moved, &cpus));
    to.iter().for_each(|(stage, place)| _ = state.shift(*stage, *place));
    let fine = state.score.deadlines < was.deadlines
        || state.score.deadlines == was.deadlines
            && before.worse_than(&Terms::of(state, &moved, &cpus), moves);
    if !fine {
        from.iter().for_each(|(stage, place)| _ = state.shift(*stage, *place));
    }
    fine
}

/// Makes random changes, worse ones ever more seldom (simulated annealing: Kirkpatrick, Gelatt, Vecchi, 1983), until `until` steps are
/// taken; leaves the best assignment that it saw. The first heat is `hot` times what a random shift costs. Never worsens
/// deadlines.
pub fn anneal(state: &mut State, random: &mut Random, hot: f64, until: u64) {
    let model = state.model;
    let plain: Vec<usize> = (0..state.places.len()).filter(|at| model.stages[*at].movable).collect();
    if plain.is_empty() || until <= state.steps {
        return;
    }
    let (start, first) = (state.steps, hot * shift_cost(state, random, &plain));
    if until <= start || first <= 0.0 {
        return;
    }
    let mut best = (state.score, state.places.clone());
    let mut heat = first;
    let mut turn = 0_u64;
    while state.steps < until {
        turn += 1;
        // A change without effect is a step, too: there may be no other.
        state.steps += 1;
        if turn.is_multiple_of(256) {
            let passed = (state.steps - start) as f64 / (until - start) as f64;
            heat = first * COOLING.powf(passed);
        }
        // Of many stages, places are not copied at each step.
        if state.score < best.0 && (turn.is_multiple_of(256) || state.places.len() < 256) {
            best = (state.score, state.places.clone());
        }
        let accept = |delta: Score, random: &mut Random| match delta.deadlines.cmp(&[0; 3]) {
            Ordering::Less => true,
            Ordering::Greater => false,
            Ordering::Equal => delta.cost <= 0 || (-(delta.cost as f64) / heat).exp() > random.unit(),
        };
        let stage = plain[random.below(plain.len())];
        let Some(to) = target(state, random, stage) else { continue };
        let from = state.places[stage];
        if to == from {
            continue;
        }
        match model.stages[stage].role {
            Role::Worker(_) => {
                let delta = exchange(state, from, to);
                if !accept(delta, random) {
                    exchange(state, from, to);
                }
            }
            Role::Plain if random.below(plain.len().clamp(10, EXCHANGES)) == 0 => {
                let delta = exchange(state, from, to);
                if !accept(delta, random) {
                    exchange(state, from, to);
                }
            }
            Role::Plain if random.below(3) == 0 => {
                let Some(other) = random.pick(&state.members[usize::from(to)]).map(|other| other as usize)
                else {
                    continue;
                };
                if model.stages[other].role != Role::Plain || !model.stages[other].movable {
                    continue;
                }
                swap(state, stage, other, |delta| accept(delta, random));
            }
            Role::Plain | Role::Port => {
                let removed = state.remove(stage);
                let inserted = state.insertion(stage, to);
                let (place, delta) =
                    if accept(inserted - removed, random) { (to, inserted) } else { (from, removed) };
                state.insert_known(stage, place, delta);
            }
        }
    }
    if best.0 < state.score {
        restore(state, &best.1);
    }
}

/// The last heat in parts of the first.
const COOLING: f64 = 0.02;
/// One in so many changes exchanges two CPUs; more often if there are fewer stages.
const EXCHANGES: usize = 400;

/// Returns what random shifts cost on average, of those that cost anything.
fn shift_cost(state: &mut State, random: &mut Random, stages: &[usize]) -> f64 {
    let mut sum = 0.0;
    let mut count = 0.0;
    for _ in 0..200 {
        let Some(stage) = random.pick(stages).filter(|at| state.model.stages[*at].role == Role::Plain) else {
            continue;
        };
        let Some(to) = target(state, random, stage) else { continue };
        let from = state.places[stage];
        let removed = state.remove(stage);
        let delta = state.insertion(stage, to) - removed;
        state.insert_known(stage, from, removed);
        if delta.deadlines == [0; 3] && delta.cost > 0 {
            sum += delta.cost as f64;
            count += 1.0;
        }
    }
    if count > 0.0 { sum / count } else { 1.0e6 }
}

/// Chooses a place to try: near a stage with which this one exchanges frames, or any.
fn target(state: &State, random: &mut Random, stage: usize) -> Option<Index> {
    let model = state.model;
    let places = model.places(stage);
    if model.stages[stage].role == Role::Plain && random.below(2) == 0 && !model.links[stage].is_empty() {
        let other = model.links[stage][random.below(model.links[stage].len())].other;
        let near = state.cpus[other];
        if near != NOWHERE {
            let core = &model.cores[model.core[usize::from(near)]];
            let cpu = core[random.below(core.len())];
            return Some(cpu).filter(|cpu| model.usable.contains(cpu));
        }
    }
    random.pick(places)
}

fn swap(state: &mut State, one: usize, other: usize, accept: impl FnOnce(Score) -> bool) {
    let (a, b) = (state.places[one], state.places[other]);
    let before = state.score;
    let removed_one = state.remove(one);
    let removed_other = state.remove(other);
    state.insert(one, b);
    let last = state.insertion(other, a);
    if accept(state.score + last - before) {
        state.insert_known(other, a, last);
    } else {
        state.remove(one);
        state.insert_known(other, b, removed_other);
        state.insert_known(one, a, removed_one);
    }
}

/// Exchanges all movable stages of two CPUs, workers with their ports; returns the score's difference.
fn exchange(state: &mut State, one: Index, other: Index) -> Score {
    let before = state.score;
    let on = |state: &State, cpu: Index| -> Vec<usize> {
        let members = state.members[usize::from(cpu)].iter().map(|at| *at as usize);
        members
            .filter(|at| state.model.stages[*at].movable && state.model.stages[*at].role != Role::Port)
            .collect()
    };
    let (here, there) = (on(state, one), on(state, other));
    here.iter().for_each(|at| _ = state.shift(*at, other));
    there.iter().for_each(|at| _ = state.shift(*at, one));
    state.score - before
}

/// Returns to earlier places.
pub fn restore(state: &mut State, places: &[Index]) {
    let model: &Model = state.model;
    for at in (0..places.len()).filter(|at| model.stages[*at].role != Role::Port) {
        if state.places[at] != places[at] {
            state.shift(at, places[at]);
        }
    }
    for at in (0..places.len()).filter(|at| model.stages[*at].role == Role::Port) {
        if state.places[at] != places[at] {
            state.shift(at, places[at]);
        }
    }
}
