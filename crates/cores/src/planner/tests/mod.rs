//! Properties of the planner on random small hosts, against exhaustive search and the definition of the objective.

mod findings;
mod hosts;
mod reference;
mod scenes;

use super::model::{Model, NOWHERE, Role, intrudes};
use super::random::Random;
use super::score::Score;
use super::state::State;
use super::{Effort, bound, exact, greedy, housekeeping, hysteresis, plan, search};
use crate::problem::{Plan, Problem};
use crate::stage::Handle;
use hosts::host;
use proptest::prelude::*;

const EFFORT: Effort = Effort { steps: 200_000 };

fn model(problem: &Problem) -> Model {
    Model::new(problem, &housekeeping(problem))
}

/// The score of a plan's assignment.
fn score_of(problem: &Problem, plan: &Plan) -> Score {
    let mut problem = problem.clone();
    problem.in_force.cpus = plan.assignment.cpus.clone();
    // Pinned ports stay with their workers.
    problem.in_force.workers.extend(plan.assignment.workers.clone());
    let model = model(&problem);
    super::at(&model, |stage| if stage.pinned { stage.present } else { stage.in_force }).score
}

fn can_plan(model: &Model) -> bool {
    model.cpus.len() > 1 && !model.usable.is_empty()
}

proptest! {
    /// Whatever is placed, shifted, and taken away: the score is the one of the definition.
    #[test]
    fn increments_add_up_to_the_definition(problem in host(9), seed in any::<u64>(), changes in 1_usize..60) {
        let model = model(&problem);
        let mut state = State::new(&model);
        let mut random = Random(seed);
        prop_assert_eq!(state.score, reference::score(&model, &state));
        for _ in 0..changes {
            let at = random.below(model.stages.len());
            let ready = |state: &State| model.workers.iter().all(|w| state.places[*w] != NOWHERE || !model.stages[*w].movable);
            let item = &model.stages[at];
            if !item.movable || (item.role == Role::Port && !ready(&state)) {
                continue;
            }
            let place = random.pick(model.places(at)).unwrap();
            let worker = matches!(item.role, Role::Worker(_));
            let before = state.score;
            let delta = if state.places[at] != NOWHERE && !worker && random.below(3) == 0 {
                let removed = state.remove(at);
                Score::default() - removed
            } else {
                state.shift(at, place)
            };
            prop_assert_eq!(state.score, before + delta);
            prop_assert_eq!(state.score, reference::score(&model, &state));
        }
    }

    /// Branch and bound finds the best assignment, and the lower bound is not above it.
    #[test]
    fn branch_and_bound_finds_what_exhaustive_search_finds(problem in host(7)) {
        let model = model(&problem);
        prop_assume!(can_plan(&model));
        let best = exact::exhaustive(&mut State::new(&model));
        let (found, done) = exact::best(&mut State::new(&model), Score::WORST, u64::MAX);
        prop_assert!(done);
        let mut state = State::new(&model);
        super::greedy::complete(&mut state, &greedy::groups(&model, &problem.stages), 1);
        search::restore(&mut state, &found.unwrap());
        prop_assert_eq!(state.score, best);
        let plan = plan(&problem, EFFORT);
        let is = score_of(&problem, &plan);
        prop_assert_eq!((is.deadlines, is.cost), (best.deadlines, best.cost));
        prop_assert!(plan.exact);
        prop_assert_eq!((plan.cost, plan.lower_bound), (best.cost as u64, best.cost as u64));
        let bound = bound::lower(&model, best.deadlines);
        prop_assert!(bound <= best.cost as u64, "bound {bound}, best {}", best.cost);
    }

    /// A plan with something in force is never worse, and stays where a new one is not worth its moves.
    #[test]
    fn nothing_moves_for_loads_that_are_a_little_different(problem in host(7), seed in any::<u64>()) {
        let first = plan(&problem, EFFORT);
        let mut again = problem.clone();
        again.in_force = first.assignment.clone();
        let mut random = Random(seed);
        let mut rough = |value: u32| (u64::from(value) * (980 + random.below(41) as u64) / 1000) as u32;
        again.stages.iter_mut().for_each(|stage| stage.load = rough(stage.load));
        again.links.iter_mut().for_each(|link| link.frames = rough(link.frames));
        // A load decides whether a pinned stage is in the way of a deadline.
        prop_assume!(again.stages.iter().zip(&problem.stages).all(|(now, was)| intrudes(now) == intrudes(was)));
        let second = plan(&again, EFFORT);
        prop_assert_eq!(&second.assignment, &first.assignment);
    }

    /// From any assignment in force, a plan is at least as good.
    #[test]
    fn a_plan_is_no_worse_than_what_is_in_force(problem in host(7), seed in any::<u64>()) {
        let mut problem = problem;
        let mut random = Random(seed);
        let places = model(&problem);
        let workers: Vec<usize> = problem.stages.iter().filter_map(|s| if let Handle::Worker(w) = s.handle { Some(w) } else { None }).collect();
        for stage in &problem.stages {
            match (&stage.handle, random.pick(&workers)) {
                (Handle::Port(vnic), Some(worker)) => _ = problem.in_force.workers.insert(vnic.clone(), worker),
                _ => if let Some(cpu) = random.pick(&places.usable) {
                    problem.in_force.cpus.insert(stage.handle.clone(), places.cpus[usize::from(cpu)]);
                },
            }
        }
        let model = model(&problem);
        prop_assume!(can_plan(&model));
        let before = super::at(&model, |stage| if stage.pinned { stage.present } else { stage.in_force }).score;
        let plan = plan(&problem, EFFORT);
        let after = score_of(&problem, &plan);
        prop_assert!((after.deadlines, after.cost) <= (before.deadlines, before.cost));
        prop_assert_eq!(after.cost as u64, plan.cost);
        prop_assert!(plan.lower_bound <= plan.cost);
    }

    /// Pinned stages stay out of the assignment, others are in it, on usable CPUs; ports are with their workers; own CPUs are alone.
    #[test]
    fn a_plan_keeps_its_limits(problem in host(9)) {
        let plan = plan(&problem, EFFORT);
        let cpus = &plan.assignment.cpus;
        prop_assert!(plan.reasons.len() == problem.stages.len());
        for (handle, cpu) in cpus {
            let stage = problem.stages.iter().find(|stage| stage.handle == *handle).unwrap();
            prop_assert!(stage.pinned_by.is_none() || problem.adopt);
            if let Handle::Port(vnic) = handle {
                let worker = Handle::Worker(plan.assignment.workers[vnic]);
                prop_assert!(cpus.get(&worker).is_none_or(|of| of == cpu));
            } else {
                prop_assert!(problem.usable.contains(cpu));
            }
        }
        let usable = model(&problem).usable.len();
        prop_assert!(plan.own.len() <= (usable / 2).max(1));
        for own in &plan.own {
            let there = cpus.iter().filter(|(handle, cpu)| *cpu == own && !matches!(handle, Handle::Port(_))).count();
            prop_assert!(there <= 1 && !plan.housekeeping.contains(own));
        }
    }

    /// Swaps, exchanges and random shifts leave a score that is the definition's, and no worse than at first.
    #[test]
    fn annealing_never_makes_it_worse(problem in host(9), seed in any::<u64>()) {
        let model = model(&problem);
        prop_assume!(can_plan(&model));
        let mut state = greedy::first(&model, &greedy::groups(&model, &problem.stages));
        prop_assert!(state.complete());
        let before = state.score;
        search::anneal(&mut state, &mut Random(seed), 1.0, 5_000);
        prop_assert!(state.score <= before);
        prop_assert_eq!(state.score, reference::score(&model, &state));
        prop_assert!(!hysteresis::worth(&state, &state.clone()));
    }
}

/// Prints a table of HOSTS small hosts, or of two:
/// `HOSTS=300 cargo test --release -p tidegate-cores --lib -- --nocapture small_hosts`.
#[test]
fn small_hosts() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    use std::time::Instant;
    let wanted = std::env::var("HOSTS").ok().and_then(|text| text.parse().ok());
    let wanted: u32 = wanted.filter(|hosts| *hosts > 0).unwrap_or(2);
    println!(
        "stages  assignments (most)  exhaustive us  bound us  steps  equal  search alone: equal, worst %  bound: median gap %"
    );
    for most in 3..=8 {
        let mut runner = TestRunner::deterministic();
        let (mut largest, mut slow, mut quick, mut steps, mut equal, mut alone) = (0, 0, 0, 0, 0, 0);
        let mut gaps = vec![];
        let mut worst = 0.0_f64;
        let mut hosts = 0;
        while hosts < wanted {
            let problem = host(most).new_tree(&mut runner).unwrap().current();
            let model = model(&problem);
            let movable = (0..model.stages.len()).filter(|at| model.stages[*at].movable);
            let assignments: usize = movable.clone().map(|at| model.places(at).len()).product();
            if !can_plan(&model) || movable.count() < most - 1 {
                continue;
            }
            hosts += 1;
            largest = largest.max(assignments);
            let started = Instant::now();
            let best = exact::exhaustive(&mut State::new(&model));
            slow += started.elapsed().as_micros();
            let started = Instant::now();
            let mut state = State::new(&model);
            let (found, _) = exact::best(&mut state, Score::WORST, u64::MAX);
            quick += started.elapsed().as_micros();
            steps += state.steps;
            let groups = greedy::groups(&model, &problem.stages);
            let mut state = greedy::first(&model, &groups);
            search::descend(&mut state, &groups, search::Guard::None, 5_000);
            search::anneal(&mut state, &mut Random(1), 1.0, 8_000);
            search::anneal(&mut state, &mut Random(2), 0.1, 10_000);
            search::descend(&mut state, &groups, search::Guard::None, u64::MAX);
            let cost = |score: Score| score.cost.max(1) as f64;
            alone += u32::from(state.score == best);
            if state.score.deadlines == best.deadlines {
                worst = worst.max((cost(state.score) / cost(best) - 1.0) * 100.0);
            }
            let bound = bound::lower(&model, best.deadlines);
            gaps.push(if best.cost == 0 { 0.0 } else { (1.0 - bound as f64 / best.cost as f64) * 100.0 });
            search::restore(&mut state, &found.unwrap());
            equal += u32::from(state.score == best);
        }
        assert_eq!(equal, wanted, "{most} stages");
        gaps.sort_by(f64::total_cmp);
        let each = u128::from(wanted);
        println!(
            "{most:6}  {largest:18}  {:13}  {:8}  {:5}  {equal:5}  {alone:12} of {wanted}, {worst:5.1}  {:20.1}",
            slow / each,
            quick / each,
            steps / u64::from(wanted),
            gaps[gaps.len() / 2]
        );
    }
}
