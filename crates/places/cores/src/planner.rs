//! Plans, and the time that they take.

use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_cores::planner::Effort;
use tidegate_cores::problem::{Plan, Problem};

/// Steps of a search for each stage and CPU.
const STEPS_OF_PAIR: u64 = 2000;
/// Steps of the shortest search.
const LEAST_STEPS: u64 = 50_000;
/// The part of the longest search that improves a plan in force: that one is where it starts.
const OF_PLAN_IN_FORCE: u64 = 10;

/// A plan, and its question.
#[derive(Debug)]
pub struct Planned {
    /// The question.
    pub problem: Arc<Problem>,
    /// The answer.
    pub plan: Plan,
    /// Time that it took.
    pub took: Duration,
}

/// Answers a question. Takes seconds on a large host.
pub fn plan(problem: Arc<Problem>) -> Planned {
    let begun = Instant::now();
    let plan = tidegate_cores::planner::plan(&problem, effort(&problem));
    Planned { problem, plan, took: begun.elapsed() }
}

/// Returns how long a search is worth: of a few stages on a few CPUs all assignments are soon known.
fn effort(problem: &Problem) -> Effort {
    let pairs = problem.stages.len().saturating_mul(problem.usable.len());
    let steps = u64::try_from(pairs).unwrap_or(u64::MAX).saturating_mul(STEPS_OF_PAIR);
    let longest = Effort::default().steps;
    let most = if problem.in_force.cpus.is_empty() { longest } else { longest / OF_PLAN_IN_FORCE };
    Effort { steps: steps.clamp(LEAST_STEPS, most) }
}
