//! Work in a thread of its own, for which the reconciler does not wait: plans of large hosts, looks at all processes.
//!
//! ```text
//!  ask: a question ─▶ Slot: the newest one ─▶ thread: answer ─▶ Slot: the last answer ─▶ last
//! ```

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Answers questions in the background.
pub struct Background<Q, A> {
    shared: Arc<Shared<Q, A>>,
    /// The thread's work, until it begins with the first question.
    coming: Arc<Mutex<Option<Work>>>,
    name: &'static str,
}

/// The work of a thread.
type Work = Box<dyn FnOnce() + Send>;

struct Shared<Q, A> {
    slot: Mutex<Slot<Q, A>>,
    changed: Condvar,
}

struct Slot<Q, A> {
    asked: Option<Q>,
    works: bool,
    ends: bool,
    last: Option<Arc<A>>,
}

impl<Q: Send + 'static, A: Send + Sync + 'static> Background<Q, A> {
    /// Makes it; `name` is the thread's.
    pub fn new(name: &'static str, answer: impl FnMut(Q) -> A + Send + 'static) -> Self {
        let slot = Slot { asked: None, works: false, ends: false, last: None };
        let shared = Arc::new(Shared { slot: Mutex::new(slot), changed: Condvar::new() });
        let in_thread = Arc::clone(&shared);
        let coming: Work = Box::new(move || in_thread.run(answer));
        Self { shared, coming: Arc::new(Mutex::new(Some(coming))), name }
    }

    /// Asks a question, in place of one that is not begun.
    pub fn ask(&mut self, question: Q) {
        let name = self.name;
        self.ask_by(question, |work| std::thread::Builder::new().name(name.into()).spawn(work).map(drop));
    }

    /// The same, where `spawn` starts the thread. Without a thread the question is dropped, and the next one tries again.
    fn ask_by(&mut self, question: Q, spawn: impl FnOnce(Work) -> io::Result<()>) {
        self.shared.slot().asked = Some(question);
        self.shared.changed.notify_all();
        if lock(&self.coming).is_none() {
            return;
        }
        let coming = Arc::clone(&self.coming);
        let begin = move || {
            let work = lock(&coming).take();
            work.into_iter().for_each(|work| work());
        };
        if let Err(e) = spawn(Box::new(begin)) {
            tracing::error!("no thread for {}: {e}", self.name);
            self.shared.slot().asked = None;
        }
    }

    /// Whether a question waits for its answer.
    pub fn is_busy(&self) -> bool {
        let slot = self.shared.slot();
        slot.works || slot.asked.is_some()
    }

    /// Returns the last answer.
    pub fn last(&self) -> Option<Arc<A>> {
        self.shared.slot().last.clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<Q, A> Shared<Q, A> {
    fn slot(&self) -> MutexGuard<'_, Slot<Q, A>> {
        lock(&self.slot)
    }

    /// Returns the next question; `None` at the end.
    fn next(&self) -> Option<Q> {
        let mut slot = self.slot();
        slot.works = false;
        while !slot.ends {
            if let Some(question) = slot.asked.take() {
                slot.works = true;
                return Some(question);
            }
            slot = self.changed.wait(slot).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    fn run(&self, mut answer: impl FnMut(Q) -> A) {
        // Other threads go first: nothing stands still without an answer.
        let _ = rustix::process::nice(19);
        while let Some(question) = self.next() {
            let answer = Arc::new(answer(question));
            let mut slot = self.slot();
            (slot.last, slot.works) = (Some(answer), false);
        }
    }
}

/// The thread ends after the question that it is at.
impl<Q, A> Drop for Background<Q, A> {
    fn drop(&mut self) {
        self.shared.slot().ends = true;
        self.shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn the_newest_question_is_answered_in_the_background() {
        let (told, answered) = mpsc::channel();
        let answer = move |question: u32| {
            told.send(()).unwrap();
            question * 2
        };
        let mut background = Background::new("a test", answer);
        assert!(background.last().is_none() && !background.is_busy());
        // There is no thread at first.
        background.ask_by(7, |_| Err(io::ErrorKind::OutOfMemory.into()));
        assert!(!background.is_busy());
        for question in 1..=3 {
            background.ask(question);
        }
        while background.last().is_none_or(|answer| *answer != 6) {
            let _ = answered.recv_timeout(Duration::from_millis(10));
        }
        assert!(!background.is_busy());
    }
}
