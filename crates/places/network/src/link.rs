//! The threads that ask the controller.
//!
//! ```text
//!  place ── Link ──▶ State (locked) ◀── link: registration, requests, releases, misses ──▶ controller
//!                        ▲
//!                        └───────────── view: long poll for the newest View ◀───────────── controller
//! ```
//!
//! No lock is held while a controller is asked. The place's methods wait for nothing but [`Link::wait`], for a bounded time.

use crate::book::{Standing, WantedPath};
use crate::controller::{Asks, Open};
use crate::duty::{Duty, State};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidegate_contract::Controller;
use tidegate_controller_api::{PathMisses, Registration, View};
use tidegate_place::PairPorts;

/// Longest wait for news of the View.
const NEWS: Duration = Duration::from_secs(10);
/// Pause after a View that did not come.
const PAUSE: Duration = Duration::from_secs(1);
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
    end: Mutex<Option<End>>,
    /// The client; files of the identity are read anew with another one.
    asks: Mutex<Option<Arc<dyn Asks>>>,
}

/// How a link ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Registration and paths stay, for the link that follows.
    Quietly,
    /// They end.
    Leaving,
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

    fn end(&self) -> Option<End> {
        *self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something changes, at most for that long.
    fn rest<'a>(&self, state: MutexGuard<'a, State>, time: Duration) -> MutexGuard<'a, State> {
        self.news.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Link {
    /// Starts the threads for a controller, with the paths that are wanted already.
    pub(crate) fn start(
        controller: &Controller,
        state: State,
        open: &Arc<Mutex<Open>>,
        ports: &PairPorts,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            news: Condvar::new(),
            end: Mutex::new(None),
            asks: Mutex::new(None),
        });
        let link = Self { shared: shared.clone(), controller: controller.clone() };
        let (controller, open, ports) = (controller.clone(), open.clone(), ports.clone());
        let work = move || {
            let Some(asks) = opened(&shared, &controller, &open) else { return };
            shared.use_client(asks);
            let (watched, host) = (shared.clone(), controller.host.clone());
            let spawned =
                std::thread::Builder::new().name("view".into()).spawn(move || watch(&watched, &host));
            if let Err(error) = spawned {
                tracing::error!(%error, "no thread for news of the network's controller: it is asked as the lease is renewed");
            }
            ask(&shared, &controller, &open, &ports);
        };
        std::thread::Builder::new().name("link".into()).spawn(work)?;
        Ok(link)
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
                Standing::Granted(_) | Standing::Refused(_) => true,
                Standing::Waiting(_) => now >= far_host,
                Standing::Away(_) => state.failures > failures,
                Standing::Asked => false,
            };
            if is_final || now >= end {
                return match (standing, &state.trouble) {
                    (Standing::Asked, Some(why)) => Standing::Away(why.clone()),
                    (Standing::Asked, None) => Standing::Away("no answer in time".into()),
                    (standing, _) => standing,
                };
            }
            state = self.shared.rest(state, (end - now).min(Duration::from_millis(100)));
        }
    }

    /// Ends the link with what it knows; `leaving` ends registration and paths, too.
    pub(crate) fn stop(self, leaving: bool) -> State {
        let end = if leaving { End::Leaving } else { End::Quietly };
        *self.shared.end.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
        std::mem::take(&mut *self.shared.lock())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.shared.end.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(End::Quietly);
        self.shared.news.notify_all();
    }
}

/// Opens the client as soon as its files can be used; `None` if the link ends before.
fn opened(shared: &Shared, controller: &Controller, open: &Mutex<Open>) -> Option<Arc<dyn Asks>> {
    loop {
        let opened = open.lock().unwrap_or_else(PoisonError::into_inner)(controller);
        if shared.end().is_some() {
            return None;
        }
        match opened {
            Ok(asks) => return Some(asks.into()),
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

/// Does what is to be done until the link ends.
fn ask(shared: &Shared, controller: &Controller, open: &Mutex<Open>, ports: &PairPorts) {
    let host = controller.host.as_str();
    let mut opened = Instant::now();
    let mut state = shared.lock();
    loop {
        let age = if state.trouble.is_some() { STALE } else { OLD };
        if opened.elapsed() >= age {
            drop(state);
            opened = Instant::now();
            // Files that cannot be used now may be half written: the client stays as it is.
            if let Ok(asks) = open.lock().unwrap_or_else(PoisonError::into_inner)(controller) {
                shared.use_client(asks.into());
            }
            state = shared.lock();
        }
        let Some(asks) = shared.client() else { return };
        match shared.end() {
            None => {}
            Some(End::Quietly) => return,
            Some(End::Leaving) => {
                drop(state);
                if let Err(trouble) = asks.leave(host) {
                    tracing::warn!(
                        ?trouble,
                        "this host could not leave the network's controller: its lease ends by itself"
                    );
                }
                return;
            }
        }
        let now = Instant::now();
        let duty = state.next(host, |pair| ports.port(pair), now);
        let had_trouble = state.trouble.is_some();
        if let Duty::Rest(time) = duty {
            state = shared.rest(state, time);
            continue;
        }
        drop(state);
        state = match duty {
            Duty::Register(registration) => {
                let answer = asks.register(host, &registration);
                let mut state = shared.lock();
                state.registered(*registration, answer, Instant::now());
                state
            }
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
            Duty::Report(misses) => {
                let answer = asks.misses(host, &misses);
                let mut state = shared.lock();
                state.reported(&misses, answer, Instant::now());
                state
            }
            Duty::Rest(_) => shared.lock(),
        };
        match (had_trouble, &state.trouble) {
            (false, Some(why)) => tracing::warn!("the network's controller does not answer: {why}"),
            (true, None) => tracing::info!("the network's controller answers"),
            _ => {}
        }
        shared.news.notify_all();
    }
}

/// Waits for news until the link ends.
fn watch(shared: &Shared, host: &str) {
    let mut state = shared.lock();
    while shared.end().is_none() {
        let version = state.view.as_ref().filter(|_| state.registered.is_some()).map(|view| view.version);
        let Some(version) = version else {
            state = shared.rest(state, PAUSE);
            continue;
        };
        drop(state);
        let Some(asks) = shared.client() else { return };
        let answer = asks.view(host, version, NEWS);
        let failed = answer.is_err();
        state = shared.lock();
        state.viewed(answer, Instant::now());
        shared.news.notify_all();
        if failed {
            let until = Instant::now() + PAUSE;
            while shared.end().is_none() && Instant::now() < until {
                state = shared.rest(state, until.saturating_duration_since(Instant::now()));
            }
        }
    }
}
