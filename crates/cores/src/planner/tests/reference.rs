//! The objective once more, written down as its definition says, without increments.

use crate::planner::model::{Model, NOWHERE, Role};
use crate::planner::score::{AWAY, OVERLOAD, Score};
use crate::planner::state::State;

/// Returns the score of a state from its places alone.
pub fn score(model: &Model, state: &State) -> Score {
    let all: Vec<usize> = (0..model.stages.len()).filter(|at| state.places[*at] != NOWHERE).collect();
    let worker = |at: usize| match model.stages[at].role {
        Role::Port => Some(state.places[at]),
        Role::Worker(worker) => Some(worker),
        Role::Plain => None,
    };
    let cpu = |at: usize| {
        let place = match model.stages[at].role {
            Role::Port => state.places[model.workers[usize::from(state.places[at])]],
            _ => state.places[at],
        };
        Some(usize::from(place)).filter(|cpu| *cpu < model.cpus.len())
    };
    let one_worker = |a: usize, b: usize| worker(a).is_some() && worker(a) == worker(b);
    let ports_of = |of: u16| {
        all.iter().copied().filter(move |at| model.stages[*at].role == Role::Port && state.places[*at] == of)
    };
    let realtime = |at: usize| match model.stages[at].role {
        Role::Port => false,
        Role::Worker(of) if model.ports_decide => ports_of(of).any(|port| model.stages[port].realtime),
        _ => model.stages[at].realtime,
    };
    let unit = |at: usize| model.stages[at].role != Role::Port && model.stages[at].counts;
    let mut score = Score::default();
    for at in all.iter().copied() {
        let item = &model.stages[at];
        score.moves +=
            i64::from(item.movable && item.in_force != NOWHERE && item.in_force != state.places[at]);
        if item.role == Role::Port && !item.realtime {
            score.deadlines[1] +=
                i64::from(ports_of(state.places[at]).any(|port| model.stages[port].realtime));
        }
        let Some(here) = cpu(at) else { continue };
        if realtime(at) {
            let shared = all.iter().any(|other| *other != at && unit(*other) && cpu(*other) == Some(here));
            let disturbed = shared || model.housekeeping[here] || model.intruded[here];
            score.deadlines[0] += i64::from(disturbed || !item.may_be_alone);
            score.cost += i64::from(item.may_be_alone && model.common[here]);
            let beside = all.iter().any(|other| {
                cpu(*other).is_some_and(|there| {
                    there != here && model.core[there] == model.core[here] && unit(*other)
                })
            });
            score.deadlines[2] += i64::from(beside && item.quiet);
        }
        if item.node.is_some_and(|node| node != model.node[here]) {
            score.cost += AWAY * item.load;
        }
        for other in all.iter().copied().filter(|other| *other > at && cpu(*other) == Some(here)) {
            if !one_worker(at, other) {
                let beside = &model.stages[other];
                score.cost += model.sharing[item.kind][beside.kind] * item.load.min(beside.load);
            }
        }
        for end in model.links[at].iter().filter(|end| end.other > at) {
            let Some(there) = Some(end.other).filter(|other| all.contains(other)).and_then(cpu) else {
                continue;
            };
            let kind = model.stages[end.other].kind;
            let workers = Model::of_workers(item.kind, kind) && worker(at) != worker(end.other);
            let distance = model.distance(here as u16, there as u16).max(usize::from(workers));
            score.cost += model.handover(item.kind, kind, end.frames, distance);
        }
    }
    let load = |at: u16| -> i64 {
        all.iter()
            .filter(|stage| cpu(**stage) == Some(usize::from(at)))
            .map(|stage| model.stages[*stage].load)
            .sum()
    };
    for core in &model.cores {
        for at in core {
            let siblings = core.iter().filter(|other| *other != at).map(|other| load(*other));
            let lost = model.sibling * load(*at).min(siblings.max().unwrap_or(0));
            let over = (load(*at) - model.capacity[usize::from(*at)]) * 1000 + lost;
            score.cost += lost + OVERLOAD * over.max(0);
        }
    }
    score
}
