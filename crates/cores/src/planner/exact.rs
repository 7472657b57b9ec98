//! Branch and bound: the best assignment of a small host, and the proof that it is.
//!
//! Stages are placed one by one, workers before ports. What is placed costs at least what it costs now, and each stage that is not yet
//! placed adds at least the least that it can add beside the ones that are: sharing, handover, locality and overload only grow while
//! further stages come (a sibling's loss may move from one CPU to the other, so it counts only once it is there). A branch whose bound
//! is not below the best score so far is cut.
//!
//! CPUs of empty cores that look the same are tried once.

#[cfg(test)]
use super::model::NOWHERE;
use super::model::{Index, Role};
use super::score::Score;
use super::state::State;
use std::collections::BTreeSet;

/// A search under way.
struct Search<'s, 'a> {
    state: &'s mut State<'a>,
    order: Vec<usize>,
    /// The least cost of links between stages that are not placed, by the number of placed ones.
    links: Vec<i64>,
    best: (Score, Option<Vec<Index>>),
    until: u64,
}

/// Searches for an assignment better than `known`, from a state with only fixed stages. Returns the best one, if better, and whether
/// the search ended before `until` steps: then no assignment is better.
pub fn best(state: &mut State, known: Score, until: u64) -> (Option<Vec<Index>>, bool) {
    let model = state.model;
    let mut order: Vec<usize> = (0..model.stages.len()).filter(|at| model.stages[*at].movable).collect();
    order.sort_by_key(|at| {
        let item = &model.stages[*at];
        let role = match item.role {
            Role::Worker(_) => 0,
            Role::Port => 1,
            Role::Plain => 2,
        };
        let frames: i64 = model.links[*at].iter().map(|end| end.frames).sum();
        (role, !item.realtime, std::cmp::Reverse(item.load + frames))
    });
    let mut at = vec![None; model.stages.len()];
    order.iter().enumerate().for_each(|(nth, stage)| at[*stage] = Some(nth));
    let mut links = vec![0; order.len() + 1];
    for (nth, stage) in order.iter().enumerate().rev() {
        let item = &model.stages[*stage];
        let later = model.links[*stage].iter().filter(|end| at[end.other].is_some_and(|other| other > nth));
        let least = later.map(|end| {
            let other = &model.stages[end.other];
            // Several links of one pair would count its sharing more than once.
            let once = model.links[*stage].iter().filter(|same| same.other == end.other).count() == 1;
            let sharing =
                if once { model.sharing[item.kind][other.kind] * item.load.min(other.load) } else { 0 };
            model.least_handover(item.kind, other.kind, end.frames, sharing)
        });
        links[nth] = links[nth + 1] + least.sum::<i64>();
    }
    let mut search = Search { state, order, links, best: (known, None), until };
    let done = search.branch(0);
    (search.best.1, done)
}

impl Search<'_, '_> {
    fn branch(&mut self, depth: usize) -> bool {
        if self.state.steps >= self.until {
            return false;
        }
        let Some(stage) = self.order.get(depth).copied() else {
            if self.state.score < self.best.0 {
                self.best = (self.state.score, Some(self.state.places.clone()));
            }
            return true;
        };
        if self.bound(depth) >= self.best.0 {
            return true;
        }
        let mut choices: Vec<(Score, Index)> = self
            .choices(stage)
            .into_iter()
            .map(|place| (self.state.insertion(stage, place), place))
            .collect();
        choices.sort_unstable();
        for (delta, place) in choices {
            if self.state.score + delta >= self.best.0 {
                continue;
            }
            self.state.insert_known(stage, place, delta);
            let done = self.branch(depth + 1);
            self.state.remove(stage);
            if !done {
                return false;
            }
        }
        true
    }

    /// What an assignment that continues this one costs at least.
    fn bound(&mut self, depth: usize) -> Score {
        let mut bound = self.state.score;
        bound.cost += self.links[depth];
        let model = self.state.model;
        for at in depth..self.order.len() {
            let stage = self.order[at];
            let places = model.places(stage);
            bound.cost +=
                places.iter().map(|place| self.state.insertion_at_least(stage, *place)).min().unwrap_or(0);
        }
        bound
    }

    /// The places to try: of CPUs of empty cores that look the same, one.
    fn choices(&self, stage: usize) -> Vec<Index> {
        let model = self.state.model;
        let places = model.places(stage);
        if model.stages[stage].role == Role::Port {
            return places.to_vec();
        }
        let mut seen = BTreeSet::new();
        let alike = |cpu: Index| {
            let core = &model.cores[model.core[usize::from(cpu)]];
            let empty = core.iter().all(|at| self.state.members[usize::from(*at)].is_empty());
            let named =
                |at: &Index| model.stages.iter().any(|item| item.role != Role::Port && item.in_force == *at);
            if !empty || core.iter().any(named) {
                return None;
            }
            let mut looks: Vec<_> = core
                .iter()
                .map(|at| {
                    let number = usize::from(*at);
                    let apart = (model.housekeeping[number], model.common[number]);
                    (apart, model.intruded[number], model.usable.contains(at))
                })
                .collect();
            let own = looks[core.iter().position(|at| *at == cpu).expect("a CPU is on its core")];
            looks.sort_unstable();
            Some((model.node[usize::from(cpu)], model.cache[usize::from(cpu)], own, looks))
        };
        places.iter().copied().filter(|cpu| alike(*cpu).is_none_or(|looks| seen.insert(looks))).collect()
    }
}

/// Returns the best score of all assignments: the reference for tests.
#[cfg(test)]
pub fn exhaustive(state: &mut State) -> Score {
    fn all(state: &mut State, order: &[usize]) -> Score {
        let Some((stage, rest)) = order.split_first() else { return state.score };
        let mut best = Score::WORST;
        for place in state.model.places(*stage).to_vec() {
            state.insert(*stage, place);
            best = best.min(all(state, rest));
            state.remove(*stage);
        }
        best
    }
    let model = state.model;
    let mut order: Vec<usize> = (0..model.stages.len()).filter(|at| model.stages[*at].movable).collect();
    order.sort_by_key(|at| model.stages[*at].role == Role::Port);
    debug_assert!(order.iter().all(|at| state.places[*at] == NOWHERE), "nothing is placed yet");
    all(state, &order)
}
