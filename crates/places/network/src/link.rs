//! The threads that ask the controller.
//!
//! ```text
//!  place ── Link ──▶ State (locked) ◀┬── link: registration, misses ──▶ controller
//!                                    ├── paths: requests, releases ───▶
//!                                    └── view: long poll for the newest View ◀──
//! ```
//!
//! No lock is held while a controller is asked. The place's methods wait for nothing but [`Link::wait`], for a bounded time.
//! A path that takes long holds up other paths, and no renewal of the lease.

use crate::book::{Standing, WantedPath};
use crate::controller::{Asks, Open};
use crate::duty::{Duty, State};
use crate::keys::Keys;
use crate::news::News;
use crate::shown::BUSY;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidegate_contract::Controller;
use tidegate_controller_api::{PathMisses, Registration, View};
use tidegate_place::PairPorts;

/// Longest wait for news of the View.
const NEWS: Duration = Duration::from_secs(10);
/// Pause after a View that did not come.
const PAUSE: Duration = Duration::from_secs(1);
/// Least time between two Views that were waited for.
const FLOOR: Duration = Duration::from_millis(100);
/// Pause before files that cannot be used are read again.
const REOPEN: Duration = Duration::from_secs(2);
/// Age of a client without answers, and of one with, after which files of the identity are read again: certificates are
/// renewed.
const STALE: Duration = Duration::from_secs(10);
const OLD: Duration = Duration::from_secs(600);
/// How long a change waits for the far host.
const FAR_HOST: Duration = Duration::from_secs(2);

/// The connection to a controller. Dropped, its threads end by themselves.
pub struct Link {
    shared: Arc<Shared>,
    /// The table that it was made for.
    pub(crate) controller: Controller,
}

struct Shared {
    state: Mutex<State>,
    /// Something changed.
    news: Condvar,
    /// The threads are to end. Registration and paths stay.
    ended: AtomicBool,
    /// The client; files of the identity are read anew with another one.
    asks: Mutex<Option<Arc<dyn Asks>>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn use_client(&self, asks: Arc<dyn Asks>) {
        *self.asks.lock().unwrap_or_else(PoisonError::into_inner) = Some(asks);
    }

    fn client(&self) -> Option<Arc<dyn Asks>> {
        self.asks.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn is_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.news.notify_all();
    }

    /// Waits until something changes, at most for that long.
    fn rest<'a>(&self, state: MutexGuard<'a, State>, time: Duration) -> MutexGuard<'a, State> {
        self.news.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Link {
    /// Starts the threads for a controller, with the paths that are wanted already; before anything else they wait for the
    /// end of `before`. A failure gives the state back.
    pub(crate) fn start(
        controller: &Controller,
        state: State,
        open: &Arc<Open>,
        ports: &PairPorts,
        keys: &Keys,
        before: Option<JoinHandle<()>>,
    ) -> Result<Self, (std::io::Error, Box<State>)> {
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            news: Condvar::new(),
            ended: AtomicBool::new(false),
            asks: Mutex::new(None),
        });
        // Dropped, it ends the threads that have begun.
        let link = Self { shared: shared.clone(), controller: controller.clone() };
        let thread = |name: &str| std::thread::Builder::new().name(name.into());
        let (watched, host) = (shared.clone(), controller.host.clone());
        let (of_paths, ports) = (shared.clone(), ports.clone());
        let (controller, open, keys) = (controller.clone(), open.clone(), keys.clone());
        let work = move || {
            if let Some(before) = before {
                let _ = before.join();
            }
            ask(&shared, &controller, &open, &keys);
        };
        let started = thread("view")
            .spawn(move || watch(&watched, &host))
            .and_then(|_| thread("paths").spawn(move || ask_paths(&of_paths, &ports)))
            .and_then(|_| thread("link").spawn(work));
        match started {
            Ok(_) => Ok(link),
            Err(error) => Err((error, Box::new(link.stop()))),
        }
    }

    /// Returns the newest View; `None` before the first.
    pub fn view(&self) -> Option<Arc<View>> {
        self.shared.lock().view.clone()
    }

    /// Reads what is known.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        read(&self.shared.lock())
    }

    /// Announces another registration, at once.
    pub(crate) fn announce(&self, registration: Registration) {
        self.change(|state| state.wanted = Some(registration));
    }

    /// Wants a path, or other terms of one.
    pub(crate) fn ask(&self, wanted: WantedPath) {
        self.change(|state| state.book.ask(wanted, Instant::now()));
    }

    /// Wants a path no more.
    pub(crate) fn release(&self, name: &str) {
        self.change(|state| state.book.release(name, Instant::now()));
    }

    /// No controller answers in time.
    pub(crate) fn away(&self, why: &str) {
        self.shared.lock().book.away(why);
    }

    /// The contracts in force are known.
    pub(crate) fn accepted(&self) {
        self.shared.lock().accepted = true;
    }

    /// Sets the totals of late frames.
    pub(crate) fn report(&self, totals: impl IntoIterator<Item = (String, PathMisses)>) {
        self.shared.lock().totals = totals.into_iter().collect();
        self.shared.news.notify_all();
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.shared.lock();
        change(&mut state);
        state.hurry();
        drop(state);
        self.shared.news.notify_all();
    }

    /// Waits until the controller has decided on a path that was just asked for, no longer than until `end`.
    pub(crate) fn wait(&self, name: &str, end: Instant) -> Standing {
        let far_host = Instant::now() + FAR_HOST;
        let mut state = self.shared.lock();
        let failures = state.failures;
        loop {
            let now = Instant::now();
            let Some(entry) = state.book.entries().get(name) else { return Standing::Asked };
            let standing = entry.standing.clone();
            let is_final = match &standing {
                Standing::Granted(_) | Standing::Refused(_) | Standing::Unlike(_) => true,
                Standing::Waiting(_) => now >= far_host,
                Standing::Away(_) => state.failures > failures,
                // The change may still have its path before its end.
                Standing::Asked | Standing::Busy => false,
            };
            if is_final || now >= end {
                return match (standing, &state.trouble) {
                    (Standing::Asked, Some(why)) => Standing::Away(why.clone()),
                    (Standing::Asked, None) => Standing::Away("no answer in time".into()),
                    (Standing::Busy, _) => Standing::Away(BUSY.into()),
                    (standing, _) => standing,
                };
            }
            state = self.shared.rest(state, (end - now).min(Duration::from_millis(100)));
        }
    }

    /// Ends the link with what it knows.
    pub(crate) fn stop(self) -> State {
        self.shared.end();
        std::mem::take(&mut *self.shared.lock())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.shared.end();
    }
}

/// Ends the registration of a host, with its paths, on a thread of its own, after the thread `before`.
///
/// # Errors
/// There is no thread for it.
pub(crate) fn leave(
    controller: Controller,
    open: Arc<Open>,
    before: Option<JoinHandle<()>>,
) -> std::io::Result<JoinHandle<()>> {
    let leave = move || {
        if let Some(before) = before {
            let _ = before.join();
        }
        let host = &controller.host;
        let failed = |why: String| {
            tracing::warn!("{host} could not leave the network's controller, its lease ends by itself: {why}")
        };
        match open(&controller) {
            Ok(asks) => drop(asks.leave(host).map_err(|trouble| failed(format!("{trouble:?}")))),
            Err(why) => failed(why),
        }
    };
    std::thread::Builder::new().name("leave".into()).spawn(leave)
}

/// Opens the client as soon as its files can be used; `false` if the link ends before.
fn opened(shared: &Shared, controller: &Controller, open: &Open) -> bool {
    loop {
        if shared.is_ended() {
            return false;
        }
        match open(controller) {
            Ok(asks) => {
                shared.use_client(asks.into());
                return true;
            }
            Err(why) => {
                let mut state = shared.lock();
                if state.trouble.as_ref() != Some(&why) {
                    tracing::warn!("the network's controller cannot be asked: {why}");
                }
                state.book.away(&why);
                (state.trouble, state.failures) = (Some(why), state.failures + 1);
                shared.news.notify_all();
                drop(shared.rest(state, REOPEN));
            }
        }
    }
}

/// Keeps the registration, reports, and asks for keys, until the link ends.
fn ask(shared: &Shared, controller: &Controller, open: &Open, keys: &Keys) {
    if !opened(shared, controller, open) {
        return;
    }
    let host = controller.host.as_str();
    let mut opened = Instant::now();
    let mut state = shared.lock();
    while !shared.is_ended() {
        let age = if state.trouble.is_some() { STALE } else { OLD };
        if opened.elapsed() >= age {
            drop(state);
            opened = Instant::now();
            // Files that cannot be used now may be half written: the client stays as it is.
            if let Ok(asks) = open(controller) {
                shared.use_client(asks.into());
            }
            state = shared.lock();
        }
        let Some(asks) = shared.client() else { return };
        let sent = Instant::now();
        state.key_segments = keys.wanted();
        let duty = state.next(sent);
        let had_trouble = state.trouble.is_some();
        if let Duty::Rest(time) = duty {
            state = shared.rest(state, time);
            continue;
        }
        drop(state);
        state = match duty {
            Duty::Register(registration) => {
                let answer = asks.register(host, &registration).map(News::of);
                let mut state = shared.lock();
                state.registered(*registration, answer, sent, Instant::now());
                state
            }
            Duty::Report(misses) => {
                let answer = asks.misses(host, &misses);
                let mut state = shared.lock();
                state.reported(&misses, answer, Instant::now());
                state
            }
            Duty::Keys => {
                let again = match asks.keys(host) {
                    Ok(given) => Some(keys.take(&given)),
                    Err(trouble) => {
                        tracing::warn!(
                            "the network's controller gives no keys of segments: {}",
                            trouble.why()
                        );
                        None
                    }
                };
                let mut state = shared.lock();
                state.keys_given(again, Instant::now());
                state
            }
            Duty::Request(_) | Duty::Release(_) | Duty::Rest(_) => shared.lock(),
        };
        match (had_trouble, &state.trouble) {
            (false, Some(why)) => tracing::warn!("the network's controller does not answer: {why}"),
            (true, None) => tracing::info!("the network's controller answers"),
            _ => {}
        }
        shared.news.notify_all();
    }
}

/// Asks for paths, and releases them, until the link ends.
fn ask_paths(shared: &Shared, ports: &PairPorts) {
    let mut state = shared.lock();
    while !shared.is_ended() {
        let Some(asks) = shared.client() else {
            state = shared.rest(state, PAUSE);
            continue;
        };
        let duty = state.next_path(|pair| ports.port(pair), Instant::now());
        if let Duty::Rest(time) = duty {
            state = shared.rest(state, time);
            continue;
        }
        drop(state);
        state = match duty {
            Duty::Request(request) => {
                let answer = asks.request(&request);
                let mut state = shared.lock();
                state.answered(*request, answer, Instant::now());
                state
            }
            Duty::Release(name) => {
                let answer = asks.release(&name);
                let mut state = shared.lock();
                state.released(&name, answer, Instant::now());
                state
            }
            Duty::Register(_) | Duty::Report(_) | Duty::Keys | Duty::Rest(_) => shared.lock(),
        };
        shared.news.notify_all();
    }
}

/// Waits for news until the link ends.
fn watch(shared: &Shared, host: &str) {
    let mut state = shared.lock();
    while !shared.is_ended() {
        let version = state.view.as_ref().filter(|_| state.registered.is_some()).map(|view| view.version);
        let (Some(version), Some(asks)) = (version, shared.client()) else {
            state = shared.rest(state, PAUSE);
            continue;
        };
        drop(state);
        let sent = Instant::now();
        let answer = asks.view(host, version, NEWS).map(News::of);
        state = shared.lock();
        let is_other = state.viewed(answer, sent, Instant::now());
        shared.news.notify_all();
        // A View that comes too soon, and says nothing new, is no reason to ask at once again.
        let until = if is_other { Instant::now() + FLOOR } else { sent + PAUSE };
        while !shared.is_ended() && Instant::now() < until {
            state = shared.rest(state, until.saturating_duration_since(Instant::now()));
        }
    }
}
