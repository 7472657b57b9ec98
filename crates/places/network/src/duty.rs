//! What is to be asked of the controller next, and what an answer means.
//!
//! ```text
//!  State ─┬▶ next ──────▶ Register, at once on a change, else each third of the lease; Report, once a second;
//!         │               Keys, when their time has come; Rest until …
//!         └▶ next_path ─▶ Release, Request, as the book says; Rest until …
//!  an answer ─▶ registered, answered, … ─▶ State
//! ```
//!
//! Two threads ask: a path that takes long keeps no registration waiting. No answer to a registration: a pause that
//! doubles, and everything waits, but for a change, which is tried at once. No answer about a path: the registration
//! finds out whether there is a controller.

use crate::book::{Book, Due};
use crate::controller::Trouble;
use crate::news::News;
use crate::request::Hosts;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_contract::Segment;
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
/// Pause after keys that were not given.
const KEYS_AGAIN: Duration = Duration::from_secs(5);
/// Least and greatest lease that is believed.
const LEASES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(600));

/// All that is known of the controller.
#[derive(Debug, Default)]
pub struct State {
    /// Of this host, as the controller knows it.
    pub host: String,
    /// What is to be announced; `None` before the first plan.
    pub wanted: Option<Registration>,
    /// What was announced last, and when.
    pub registered: Option<(Registration, Instant)>,
    /// The newest View.
    pub view: Option<Arc<View>>,
    /// When the first of its term came.
    term_since: Option<Instant>,
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
    /// Answers of any kind.
    pub answers: u64,
    /// Segments whose keys the controller gives.
    pub key_segments: BTreeSet<Segment>,
    /// For which segments keys were asked last, and when to ask again.
    keys_asked: Option<(BTreeSet<Segment>, Instant)>,
    /// The end of the lease, by what is known here.
    lease_end: Option<Instant>,
    /// A path had no answer: is anyone there?
    in_doubt: bool,
    /// The contracts in force are known: what they do not want is to go.
    pub accepted: bool,
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
    /// Ask for keys of segments.
    Keys,
    /// Nothing, for that long.
    Rest(Duration),
}

impl State {
    /// Returns the state before anything is asked.
    pub fn of(book: Book) -> Self {
        Self { book, ..Self::default() }
    }

    /// Returns the state in which a link of `host` begins. With another controller nothing counts but what is wanted.
    pub fn for_link(self, host: &str, same_controller: bool, now: Instant) -> Self {
        let Self { mut book, accepted, failures, answers, lease_end, .. } = self;
        let lease_end = lease_end.filter(|_| same_controller);
        if same_controller {
            book.ask_all(now);
        } else {
            book.begin_anew(now);
        }
        Self { book, host: host.to_owned(), accepted, failures, answers, lease_end, ..Self::default() }
    }

    /// Returns what to do at `now` for the host as a whole.
    pub fn next(&mut self, now: Instant) -> Duty {
        let Some(wanted) = &self.wanted else { return Duty::Rest(REST) };
        if let Some(at) = self.retry_at.filter(|at| *at > now) {
            return Duty::Rest((at - now).min(REST));
        }
        let third = self.lease() / 3;
        let in_doubt = self.in_doubt;
        let is_current = |(there, at): &(Registration, Instant)| {
            there == wanted && now < *at + third && !(in_doubt && now >= *at + PAUSE)
        };
        if !self.registered.as_ref().is_some_and(is_current) {
            return Duty::Register(Box::new(wanted.clone()));
        }
        let new = |misses: &&PathMisses| self.reported.get(&misses.name) != Some(&misses.total);
        if self.reported_at.is_none_or(|at| now >= at + REPORT) {
            let paths: Vec<PathMisses> = self.totals.values().filter(new).take(REPORTED).cloned().collect();
            if !paths.is_empty() {
                return Duty::Report(Box::new(Misses { run: wanted.run.clone(), paths }));
            }
        }
        let is_known = |(of, again): &(BTreeSet<Segment>, Instant)| *of == self.key_segments && now < *again;
        if !self.key_segments.is_empty() && !self.keys_asked.as_ref().is_some_and(is_known) {
            return Duty::Keys;
        }
        let renewal = self.registered.as_ref().map(|(_, at)| *at + third);
        rest_until(renewal, now)
    }

    /// Returns what to do at `now` for the paths; `port` tells source ports.
    pub fn next_path(&mut self, port: impl Fn(&Pair) -> Option<u16>, now: Instant) -> Duty {
        // A controller may grant paths of what is announced alone.
        let is_announced = self.registered.as_ref().map(|(there, _)| there) == self.wanted.as_ref();
        if self.registered.is_none() || !is_announced || self.view.is_none() {
            return Duty::Rest(REST);
        }
        match self.book.due(&self.host, &self.hosts, port, now) {
            Some(Due::Request(request)) => Duty::Request(request),
            Some(Due::Release(name)) => Duty::Release(name),
            None => rest_until(self.book.next_at(), now),
        }
    }

    /// Returns whether this host's registration is known to hold at `now`.
    pub fn is_leased(&self, now: Instant) -> bool {
        self.lease_end.is_some_and(|end| now < end)
    }

    /// Returns whether all hosts had the time to register since this host first saw the controller of the newest View:
    /// then a host that is missing there is gone.
    pub fn is_settled(&self, now: Instant) -> bool {
        self.term_since.is_some_and(|since| now >= since + self.lease())
    }

    fn lease(&self) -> Duration {
        let lease = self.view.as_ref().map_or(LEASES.0, |view| Duration::from_nanos(view.lease));
        lease.clamp(LEASES.0, LEASES.1)
    }

    /// A change is to be tried at once.
    pub fn hurry(&mut self) {
        self.retry_at = None;
    }

    /// Takes in the answer to a registration that was sent at `sent`.
    pub fn registered(
        &mut self,
        announced: Registration,
        answer: Result<News, Trouble>,
        sent: Instant,
        now: Instant,
    ) {
        self.in_doubt = false;
        match answer {
            Ok(news) => {
                // A controller that lost it may have lost its paths, too.
                if self.registered.is_none() {
                    self.book.ask_all(now);
                    self.reported.clear();
                }
                self.registered = Some((announced, now));
                let lease = Duration::from_nanos(news.view.lease).min(LEASES.1);
                self.lease_end = Some(sent + lease);
                self.take(news, sent, now);
            }
            Err(trouble) => {
                self.registered = None;
                self.failed(trouble, now);
            }
        }
    }

    /// Takes in a View that was waited for since `sent`; returns whether it is another one.
    pub fn viewed(&mut self, answer: Result<News, Trouble>, sent: Instant, now: Instant) -> bool {
        match answer {
            Ok(news) => {
                let there = self.view.as_ref().map(|there| (there.term, there.version));
                // Of one that led before. The next answer to the registration counts in any case: a term may go back when
                // a controller's state is made anew.
                if there.is_some_and(|(term, _)| term > news.view.term) {
                    return false;
                }
                let is_other = there != Some((news.view.term, news.view.version));
                self.take(news, sent, now);
                is_other
            }
            // The registration finds out what else is wrong.
            Err(Trouble::NotFound(_)) => {
                self.registered = None;
                false
            }
            Err(_) => false,
        }
    }

    fn take(&mut self, news: News, sent: Instant, now: Instant) {
        self.answered_at_all();
        // Another controller leads: what it has of this host came from there.
        if self.view.as_ref().is_some_and(|there| there.term != news.view.term) {
            self.reported.clear();
        }
        if self.view.as_ref().is_none_or(|there| there.term != news.view.term) {
            self.term_since = Some(now);
        }
        self.book.viewed(&news, &self.hosts, sent, now);
        if self.accepted {
            self.book.release_unwanted(&self.host, &news, now);
        }
        (self.hosts, self.view) = (news.hosts, Some(news.view));
    }

    /// Takes in the answer to a request.
    pub fn answered(&mut self, request: PathRequest, answer: Result<Path, Trouble>, now: Instant) {
        let trouble = answer.as_ref().err().cloned();
        self.book.answered(request, answer, now);
        self.note_path(trouble);
    }

    /// Takes in the answer to a release.
    pub fn released(&mut self, name: &str, answer: Result<(), Trouble>, now: Instant) {
        self.book.released(name, &answer, now);
        // That no such path is there says nothing of the registration.
        self.note_path(answer.err().filter(|trouble| !matches!(trouble, Trouble::NotFound(_))));
    }

    fn note_path(&mut self, trouble: Option<Trouble>) {
        match trouble {
            Some(Trouble::NotFound(_)) => self.registered = None,
            Some(Trouble::Away(_)) => (self.in_doubt, self.failures) = (true, self.failures + 1),
            _ => self.answers += 1,
        }
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

    /// Takes in when to ask for keys again; `None`: they were not given.
    pub fn keys_given(&mut self, again: Option<Duration>, now: Instant) {
        self.keys_asked = Some((self.key_segments.clone(), now + again.unwrap_or(KEYS_AGAIN)));
    }

    fn note(&mut self, trouble: Option<Trouble>, now: Instant) {
        match trouble {
            None => self.answered_at_all(),
            Some(Trouble::NotFound(_)) => self.registered = None,
            Some(trouble) => self.failed(trouble, now),
        }
    }

    fn answered_at_all(&mut self) {
        self.answers += 1;
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

/// Returns the rest until `at`, within its bounds.
fn rest_until(at: Option<Instant>, now: Instant) -> Duty {
    let rest = at.map_or(REST, |at| at.saturating_duration_since(now));
    Duty::Rest(rest.clamp(Duration::from_millis(10), REST))
}

#[cfg(test)]
mod tests;
