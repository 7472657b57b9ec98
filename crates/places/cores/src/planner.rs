//! Plans, and the time that they take.

use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_cores::planner::Effort;
use tidegate_cores::problem::{Plan, Problem};

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
    let plan = tidegate_cores::planner::plan(&problem, Effort::default());
    Planned { problem, plan, took: begun.elapsed() }
}
