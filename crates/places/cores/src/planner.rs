//! Plans in a thread of its own: a large host takes seconds, and the reconciler waits for none of them.
//!
//! ```text
//!  ask: a problem ─▶ Slot: the newest one ─▶ thread: plan ─▶ Slot: the last plan ─▶ last
//!                                                └─▶ wake: the reconciler looks
//! ```

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
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

/// Plans in the background.
pub struct Planner {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    slot: Mutex<Slot>,
    changed: Condvar,
    /// Answers a question.
    solve: fn(&Problem) -> Plan,
    wake: Arc<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct Slot {
    asked: Option<Arc<Problem>>,
    plans: bool,
    ends: bool,
    last: Option<Arc<Planned>>,
}

impl Planner {
    /// Makes it; `wake` is called after each plan. Its thread begins with the first question.
    pub fn new(solve: fn(&Problem) -> Plan, wake: Arc<dyn Fn() + Send + Sync>) -> Self {
        let shared = Shared { slot: Mutex::default(), changed: Condvar::new(), solve, wake };
        Self { shared: Arc::new(shared), thread: None }
    }

    /// Asks a question, in place of one that is not begun.
    pub fn ask(&mut self, problem: Arc<Problem>) {
        self.shared.slot().asked = Some(problem);
        self.shared.changed.notify_all();
        if self.thread.is_none() {
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new().name("plan of CPUs".into()).spawn(move || shared.run());
            match thread {
                Ok(thread) => self.thread = Some(thread),
                Err(e) => tracing::error!("no thread for the plan of CPUs: {e}"),
            }
        }
    }

    /// Whether a question waits for its answer.
    pub fn is_busy(&self) -> bool {
        let slot = self.shared.slot();
        slot.plans || slot.asked.is_some()
    }

    /// Returns the last plan.
    pub fn last(&self) -> Option<Arc<Planned>> {
        self.shared.slot().last.clone()
    }
}

impl Shared {
    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        // Others go first; without a plan nothing stands still.
        let _ = rustix::process::nice(19);
        loop {
            let problem = {
                let mut slot = self.slot();
                loop {
                    if slot.ends {
                        return;
                    }
                    if let Some(problem) = slot.asked.take() {
                        slot.plans = true;
                        break problem;
                    }
                    slot = self.changed.wait(slot).unwrap_or_else(PoisonError::into_inner);
                }
            };
            let begun = Instant::now();
            let plan = (self.solve)(&problem);
            let planned = Planned { problem, plan, took: begun.elapsed() };
            {
                let mut slot = self.slot();
                slot.plans = false;
                slot.last = Some(Arc::new(planned));
            }
            (self.wake)();
        }
    }
}

/// The thread ends after the plan that it is at.
impl Drop for Planner {
    fn drop(&mut self) {
        self.shared.slot().ends = true;
        self.shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use tidegate_cores::costs::{Costs, Source};

    fn problem(usable: usize) -> Arc<Problem> {
        Arc::new(Problem {
            machine: Default::default(),
            stages: vec![],
            links: vec![],
            costs: Costs { pairs: vec![], sibling: 0, source: Source::Priors },
            usable: [usable].into(),
            housekeeping: Default::default(),
            adopt: false,
            in_force: Default::default(),
        })
    }

    #[test]
    fn the_newest_question_is_answered_in_the_background() {
        let (wake, woken) = mpsc::channel();
        let wake = Arc::new(move || wake.send(()).unwrap());
        let solve = |problem: &Problem| Plan { own: problem.usable.clone(), ..Plan::default() };
        let mut planner = Planner::new(solve, wake);
        assert!(planner.last().is_none() && !planner.is_busy());
        for usable in 1..=3 {
            planner.ask(problem(usable));
        }
        while planner.last().is_none_or(|planned| planned.plan.own != [3].into()) {
            woken.recv_timeout(Duration::from_secs(60)).unwrap();
        }
        assert!(!planner.is_busy());
        assert_eq!(planner.last().unwrap().problem, problem(3));
    }
}
