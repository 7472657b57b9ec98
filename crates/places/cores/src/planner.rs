//! Plans, and the time that they take.

use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_cores::planner::Effort;
use tidegate_cores::problem::{Plan, Problem};

/// Steps of a search for each stage and CPU.
const STEPS_OF_PAIR: u64 = 2000;
/// Steps of the shortest search.
const LEAST_STEPS: u64 = 50_000;

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
    Effort { steps: steps.clamp(LEAST_STEPS, Effort::default().steps) }
}
