//! Two threads of the port do work whose length a front end decides: closing its descriptors, unmapping its
//! memory, asking about its files. No other thread waits for them longer than it chose to.
//!
//! ```text
//!  port's thread ─ give up: descriptors, memory ─▶ [ closing ] ─▶ close(2), munmap(2)
//!       │        ─ ask: what is this file? ──────▶ [ asking ]  ─▶ answer, or none in time
//!       │
//!       └─ busy? then no other front end is taken: what one of them can keep busy is bounded
//! ```
//!
//! A front end chooses its descriptors, and so the process that the kernel waits for: close(2) of a socket
//! with data to send waits for its peer (SO_LINGER); close(2) of a file of FUSE, and each question about
//! it, waits for the process that serves it. No flag of the kernel prevents that.
//!
//! Each kind of work has one thread, which exists while there is work, and a second longer. If the system
//! has no thread, the work waits.

use std::collections::VecDeque;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How long a thread without work stays.
const IDLE: Duration = Duration::from_secs(1);

type Work = Box<dyn FnOnce() + Send>;

/// A port's errands.
#[derive(Clone, Debug)]
pub struct Errands {
    closing: Arc<Lane>,
    asking: Arc<Lane>,
}

/// Called after the last errand.
type Idle = Box<dyn Fn() + Send + Sync>;

impl Errands {
    /// Returns the errands of port `port`.
    pub fn new(port: &str) -> Self {
        let lane = |what: &str| Arc::new(Lane { name: format!("{what} {port}"), ..Lane::default() });
        Self { closing: lane("closing"), asking: lane("asking") }
    }

    /// Returns errands that the calling thread does at once: for fuzzing.
    #[cfg(feature = "fuzzing")]
    pub fn done_at_once() -> Self {
        let lane = || Arc::new(Lane { at_once: true, ..Lane::default() });
        Self { closing: lane(), asking: lane() }
    }

    /// Has `idle` called whenever one of the threads has finished its work. Once only.
    pub fn set_idle_callback(&self, idle: impl Fn() + Send + Sync + Clone + 'static) {
        for lane in [&self.closing, &self.asking] {
            let _ = lane.idle.set(Box::new(idle.clone()));
        }
    }

    /// Drops `thing` in the closing thread, after earlier ones.
    pub fn give_up(&self, thing: impl Send + 'static) {
        self.closing.add(Box::new(move || drop(thing)));
    }

    /// Lets the asking thread ask, and waits for the answer; `None` without one within `patience`, or
    /// without such a thread.
    pub fn ask<T: Send + 'static>(
        &self,
        patience: Duration,
        question: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (answer, answered) = sync_channel(1);
        self.asking.add(Box::new(move || drop(answer.send(question()))));
        answered.recv_timeout(patience).ok()
    }

    /// Returns how long the present work has taken; `None` without any.
    pub fn busy_for(&self) -> Option<Duration> {
        let since = [&self.closing, &self.asking].into_iter().filter_map(|lane| lane.busy_since());
        since.min().map(|since| since.elapsed())
    }

    /// Returns the number of things that wait to be closed, or are being closed.
    pub fn closing(&self) -> usize {
        self.closing.lock().unfinished()
    }
}

#[derive(Default)]
struct Lane {
    /// The thread's name.
    name: String,
    state: Mutex<State>,
    added: Condvar,
    idle: OnceLock<Idle>,
    #[cfg(feature = "fuzzing")]
    at_once: bool,
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane").field("name", &self.name).field("undone", &self.lock().unfinished()).finish()
    }
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Work>,
    /// Beginning of the present work.
    since: Option<Instant>,
    /// The thread works.
    working: bool,
    /// The thread exists.
    has_thread: bool,
}

impl State {
    fn unfinished(&self) -> usize {
        self.waiting.len() + usize::from(self.working)
    }
}

impl Lane {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(self: &Arc<Self>, work: Work) {
        #[cfg(feature = "fuzzing")]
        if self.at_once {
            return work();
        }
        let mut state = self.lock();
        state.waiting.push_back(work);
        state.since.get_or_insert_with(Instant::now);
        self.ensure_thread(&mut state);
        drop(state);
        self.added.notify_one();
    }

    /// Starts a thread if there is none and the system has one.
    fn ensure_thread(self: &Arc<Self>, state: &mut State) {
        if state.has_thread {
            return;
        }
        let lane = self.clone();
        match std::thread::Builder::new().name(self.name.clone()).spawn(move || lane.work()) {
            Ok(_) => state.has_thread = true,
            Err(error) => {
                tracing::error!(errand = self.name, %error, "cannot start a thread for slow work of this port; the next such work tries again")
            }
        }
    }

    fn busy_since(self: &Arc<Self>) -> Option<Instant> {
        let mut state = self.lock();
        if !state.waiting.is_empty() {
            self.ensure_thread(&mut state);
        }
        state.since
    }

    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some(work) = state.waiting.pop_front() {
                state.working = true;
                drop(state);
                tidegate_service::housekeeping::follow();
                work();
                state = self.lock();
                state.working = false;
                // Each piece of work has its own time.
                state.since = (!state.waiting.is_empty()).then(Instant::now);
                if state.since.is_none()
                    && let Some(idle) = self.idle.get()
                {
                    drop(state);
                    idle();
                    state = self.lock();
                }
                continue;
            }
            let (after, waited) =
                self.added.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = after;
            if waited.timed_out() && state.waiting.is_empty() {
                state.has_thread = false;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    const PATIENCE: Duration = Duration::from_secs(20);

    /// Waits for its sender when dropped.
    struct Slow(std::sync::mpsc::Receiver<()>);

    impl Drop for Slow {
        fn drop(&mut self) {
            let _ = self.0.recv();
        }
    }

    fn until(done: impl Fn() -> bool) {
        let start = Instant::now();
        while !done() {
            assert!(start.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn no_thread_waits_for_things_that_are_given_up() {
        let errands = Errands::new("a");
        assert_eq!((errands.busy_for(), errands.closing()), (None, 0));
        let (done, slow) = channel();
        let dropped = Arc::new(());
        errands.give_up(Slow(slow));
        errands.give_up(dropped.clone());
        assert_eq!(errands.closing(), 2);
        assert!(errands.busy_for().is_some());
        // The other thread is free.
        assert_eq!(errands.ask(PATIENCE, || 7), Some(7));
        assert_eq!(Arc::strong_count(&dropped), 2);
        drop(done);
        until(|| errands.busy_for().is_none());
        assert_eq!((errands.closing(), Arc::strong_count(&dropped)), (0, 1));
    }

    #[test]
    fn a_question_without_an_answer_is_given_up_and_keeps_the_port_busy() {
        let errands = Errands::new("a");
        let (done, slow) = channel::<()>();
        assert_eq!(errands.ask(Duration::from_millis(10), move || slow.recv()), None);
        assert!(errands.busy_for().unwrap() >= Duration::from_millis(10));
        assert_eq!(errands.ask(Duration::from_millis(10), || 7), None, "one at a time");
        drop(done);
        until(|| errands.busy_for().is_none());
    }

    #[test]
    fn a_waiter_for_the_end_is_notified() {
        let errands = Errands::new("a");
        let (told, idle) = channel();
        errands.set_idle_callback(move || {
            let _ = told.send(());
        });
        errands.give_up(7);
        idle.recv_timeout(PATIENCE).unwrap();
        assert_eq!(errands.busy_for(), None);
        assert_eq!(errands.ask(PATIENCE, || 7), Some(7));
        idle.recv_timeout(PATIENCE).unwrap();
    }

    #[test]
    fn an_ended_thread_is_started_again() {
        let errands = Errands::new("a");
        assert_eq!(errands.ask(PATIENCE, || 1), Some(1));
        until(|| !errands.asking.lock().has_thread);
        assert_eq!(errands.ask(PATIENCE, || 2), Some(2));
    }
}
