//! A first assignment: stage by stage, each to the place where the score grows least.

use super::model::{Index, Model, NOWHERE, Role};
use super::score::Score;
use super::state::State;
use crate::stage::Stage;
use std::collections::BTreeMap;

/// Returns the place where the score grows least for a stage that is not placed, and by how much; `None` if it has no place.
pub fn best_place(
    state: &mut State,
    stage: usize,
    allowed: impl Fn(Index) -> bool,
) -> Option<(Score, Index)> {
    let model = state.model;
    let places = model.places(stage).iter().copied().filter(|place| allowed(*place));
    places.map(|place| (state.insertion(stage, place), place)).min()
}

/// Returns the place to which a shift of a worker, with its ports, from `from` gains most, and the score's difference.
pub fn best_for_worker(state: &mut State, worker: usize, from: Index) -> Option<(Score, Index)> {
    let model = state.model;
    let mut best = None;
    for to in model.places(worker).iter().copied().filter(|to| *to != from) {
        let delta = state.shift(worker, to);
        state.shift(worker, from);
        best = best.into_iter().chain([(delta, to)]).min();
    }
    best
}

/// Returns the movable stages in groups that are placed together: the stages of one vNIC, the busiest vNIC first.
pub fn groups(model: &Model, stages: &[Stage]) -> Vec<Vec<usize>> {
    let mut by_vnic = BTreeMap::<(&str, usize), Vec<usize>>::new();
    for (at, stage) in stages.iter().enumerate() {
        if model.stages[at].movable && model.stages[at].role == Role::Plain {
            let key = stage.vnics.first().map_or(("", at), |vnic| (vnic.as_str(), usize::MAX));
            by_vnic.entry(key).or_default().push(at);
        }
    }
    let mut groups: Vec<_> = by_vnic.into_values().collect();
    let load = |at: &usize| model.stages[*at].load;
    for group in &mut groups {
        group.sort_by_key(|at| std::cmp::Reverse(load(at)));
    }
    groups.sort_by_cached_key(|group| std::cmp::Reverse(group.iter().map(load).sum::<i64>()));
    groups
}

/// Places all movable stages that `state` lacks; of real-time ports, only on the first `realtime_workers` workers.
pub fn complete(state: &mut State, groups: &[Vec<usize>], realtime_workers: usize) {
    let model = state.model;
    let all = 0..model.stages.len();
    let missing = |state: &State, at: usize| model.stages[at].movable && state.places[at] == NOWHERE;
    let place = |state: &mut State, at: usize, allowed: &dyn Fn(Index) -> bool| {
        if missing(state, at) {
            let best = best_place(state, at, allowed).or_else(|| best_place(state, at, |_| true));
            if let Some((delta, place)) = best {
                state.insert_known(at, place, delta);
            }
        }
    };
    let is = |at: usize, role: fn(Role) -> bool, realtime: bool| {
        role(model.stages[at].role) && model.stages[at].realtime == realtime
    };
    let plain = |role| role == Role::Plain;
    let port = |role| role == Role::Port;
    all.clone().filter(|at| is(*at, plain, true)).for_each(|at| place(state, at, &|_| true));
    let workers: Vec<usize> = model.workers.iter().copied().filter(|at| missing(state, *at)).collect();
    workers.iter().for_each(|at| place(state, *at, &|_| true));
    let first = |worker: Index| usize::from(worker) < realtime_workers;
    all.clone().filter(|at| is(*at, port, true)).for_each(|at| place(state, at, &first));
    // Only now it is known which of them are real-time, and there is room yet.
    for worker in workers {
        let from = state.places[worker];
        if state.is_realtime(worker)
            && let Some((delta, to)) = best_for_worker(state, worker, from)
            && delta < Score::default()
        {
            state.shift(worker, to);
        }
    }
    all.clone().filter(|at| is(*at, port, false)).for_each(|at| place(state, at, &|_| true));
    groups.iter().flatten().for_each(|at| place(state, *at, &|_| true));
}

/// Returns the best of several first assignments, with real-time ports on one worker, on half of them, and on all.
pub fn first<'a>(model: &'a Model, groups: &[Vec<usize>]) -> State<'a> {
    let workers = model.workers.len();
    let mut counts = vec![1, workers / 2, workers];
    counts.retain(|count| *count > 0);
    counts.dedup();
    if counts.is_empty() {
        counts.push(0);
    }
    let states = counts.into_iter().map(|count| {
        let mut state = State::new(model);
        complete(&mut state, groups, count);
        state
    });
    states.min_by_key(|state| state.score).expect("at least one count")
}
