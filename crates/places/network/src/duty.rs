//! What is to be asked of the controller next, and what an answer means.
//!
//! ```text
//!  State ─▶ next ─▶ Register, at once on a change, else each third of the lease
//!                ├▶ Release, Request, as the book says
//!                ├▶ Report, once a second if there is something new
//!                └▶ Rest until …
//!  an answer ─▶ registered, answered, … ─▶ State
//! ```
//!
//! No answer: a pause that doubles, and everything waits, but for a change, which is tried at once.

use crate::book::{Book, Due};
use crate::controller::Trouble;
use crate::request::Hosts;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_controller_api::{Misses, Path, PathMisses, PathRequest, Registration, View};
use tidegate_place::Pair;

/// First pause after no answer.
const PAUSE: Duration = Duration::from_millis(500);
/// Longest pause: a controller that is back is found within it.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Between two reports of late frames.
const REPORT: Duration = Duration::from_secs(1);
/// Most paths of a report.
const REPORTED: usize = 4096;
/// Longest rest: ports of pairs are looked at again.
const REST: Duration = Duration::from_millis(500);
/// Least and greatest lease that is believed.
const LEASES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(600));

/// All that is known of the controller.
#[derive(Debug, Default)]
pub struct State {
    /// What is to be announced; `None` before the first plan.
    pub wanted: Option<Registration>,
    /// What was announced last, and when.
    pub registered: Option<(Registration, Instant)>,
    /// The newest View.
    pub view: Option<Arc<View>>,
    /// The hosts in it.
    hosts: Hosts,
    /// Wanted paths.
    pub book: Book,
    /// Totals of late frames.
    pub totals: BTreeMap<String, PathMisses>,
    /// Those that the controller has.
    reported: BTreeMap<String, u64>,
    reported_at: Option<Instant>,
    /// Why the controller does not answer; `None` if it does.
    pub trouble: Option<String>,
    pause: Duration,
    retry_at: Option<Instant>,
    /// Attempts that had no answer.
    pub failures: u64,
    /// Answers to requests.
    pub answers: u64,
}

/// The next thing to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Duty {
    /// Announce this.
    Register(Box<Registration>),
    /// Ask for this path.
    Request(Box<PathRequest>),
    /// End this path.
    Release(String),
    /// Report these.
    Report(Box<Misses>),
    /// Nothing, for that long.
    Rest(Duration),
}

impl State {
    /// Returns the state before anything is asked.
    pub fn of(book: Book) -> Self {
        Self { book, ..Self::default() }
    }

    /// Returns what to do at `now` as host `host`; `port` tells source ports.
    pub fn next(&mut self, host: &str, port: impl Fn(&Pair) -> Option<u16>, now: Instant) -> Duty {
        let Some(wanted) = &self.wanted else { return Duty::Rest(REST) };
        if let Some(at) = self.retry_at.filter(|at| *at > now) {
            return Duty::Rest((at - now).min(REST));
        }
        let third = self.lease() / 3;
        let is_current = |(there, at): &(Registration, Instant)| there == wanted && now < *at + third;
        if !self.registered.as_ref().is_some_and(is_current) {
            return Duty::Register(Box::new(wanted.clone()));
        }
        if self.view.is_none() {
            return Duty::Rest(REST);
        }
        match self.book.due(host, &self.hosts, port, now) {
            Some(Due::Request(request)) => return Duty::Request(request),
            Some(Due::Release(name)) => return Duty::Release(name),
            None => {}
        }
        let new = |misses: &&PathMisses| self.reported.get(&misses.name) != Some(&misses.total);
        if self.reported_at.is_none_or(|at| now >= at + REPORT) {
            let paths: Vec<PathMisses> = self.totals.values().filter(new).take(REPORTED).cloned().collect();
            if !paths.is_empty() {
                return Duty::Report(Box::new(Misses { run: wanted.run.clone(), paths }));
            }
        }
        let until = |at: Instant| at.saturating_duration_since(now);
        let renewal = self.registered.as_ref().map(|(_, at)| until(*at + third));
        let rest = renewal.into_iter().chain(self.book.next_at().map(until)).min().unwrap_or(REST);
        Duty::Rest(rest.clamp(Duration::from_millis(10), REST))
    }

    fn lease(&self) -> Duration {
        let lease = self.view.as_ref().map_or(LEASES.0, |view| Duration::from_nanos(view.lease));
        lease.clamp(LEASES.0, LEASES.1)
    }

    /// A change is to be tried at once.
    pub fn hurry(&mut self) {
        self.retry_at = None;
    }

    /// Takes in the answer to a registration.
    pub fn registered(&mut self, announced: Registration, answer: Result<View, Trouble>, now: Instant) {
        match answer {
            Ok(view) => {
                // A controller that lost it may have lost its paths, too.
                if self.registered.is_none() {
                    self.book.ask_all(now);
                    self.reported.clear();
                }
                self.registered = Some((announced, now));
                self.take(view, now);
            }
            Err(trouble) => {
                self.registered = None;
                self.failed(trouble, now);
            }
        }
    }

    /// Takes in a View that was waited for.
    pub fn viewed(&mut self, answer: Result<View, Trouble>, now: Instant) {
        match answer {
            Ok(view) => self.take(view, now),
            // The registration finds out what else is wrong.
            Err(Trouble::NotFound(_)) => self.registered = None,
            Err(_) => {}
        }
    }

    fn take(&mut self, view: View, now: Instant) {
        self.answered_at_all();
        // Of one that led before.
        if self.view.as_ref().is_some_and(|there| there.term > view.term) {
            return;
        }
        // Another controller leads: what it has of this host came from there.
        if self.view.as_ref().is_some_and(|there| there.term != view.term) {
            self.reported.clear();
        }
        self.book.viewed(&view, now);
        self.hosts = Hosts::of(&view);
        self.view = Some(Arc::new(view));
    }

    /// Takes in the answer to a request.
    pub fn answered(&mut self, request: PathRequest, answer: Result<Path, Trouble>, now: Instant) {
        self.answers += 1;
        let trouble = match &answer {
            Err(trouble @ (Trouble::Away(_) | Trouble::NotFound(_))) => Some(trouble.clone()),
            _ => None,
        };
        self.book.answered(request, answer, now);
        self.note(trouble, now);
    }

    /// Takes in the answer to a release.
    pub fn released(&mut self, name: &str, answer: Result<(), Trouble>, now: Instant) {
        self.book.released(name, &answer, now);
        self.note(answer.err().filter(|trouble| matches!(trouble, Trouble::Away(_))), now);
    }

    /// Takes in the answer to a report.
    pub fn reported(&mut self, misses: &Misses, answer: Result<(), Trouble>, now: Instant) {
        self.reported_at = Some(now);
        if answer.is_ok() {
            self.reported.extend(misses.paths.iter().map(|path| (path.name.clone(), path.total)));
        }
        self.note(
            answer.err().filter(|trouble| matches!(trouble, Trouble::Away(_) | Trouble::NotFound(_))),
            now,
        );
    }

    fn note(&mut self, trouble: Option<Trouble>, now: Instant) {
        match trouble {
            None => self.answered_at_all(),
            Some(Trouble::NotFound(_)) => self.registered = None,
            Some(trouble) => self.failed(trouble, now),
        }
    }

    fn answered_at_all(&mut self) {
        (self.trouble, self.pause, self.retry_at) = (None, Duration::ZERO, None);
    }

    fn failed(&mut self, trouble: Trouble, now: Instant) {
        self.failures += 1;
        let pause = (self.pause * 2).clamp(PAUSE, LONGEST_PAUSE);
        let (why, pause) = match trouble {
            Trouble::Away(why) | Trouble::NotFound(why) => (why, pause),
            Trouble::Refused(why) => {
                (format!("it refuses this host's registration: {}", why.join("; ")), pause)
            }
            Trouble::Waiting(why) => (why.join("; "), pause),
            Trouble::Busy(time) => ("it has too much to do".into(), time.clamp(PAUSE, LONGEST_PAUSE)),
        };
        self.book.away(&why);
        (self.trouble, self.pause, self.retry_at) = (Some(why), pause, Some(now + pause));
    }
}

#[cfg(test)]
mod tests;
