//! The paths that are wanted, and when each is asked for again.
//!
//! ```text
//!  ask ─▶ Entry: Asked ─┬─ granted ─▶ Granted ─ other request, or other than that in the View ─▶ asked again
//!                       ├─ refused ─▶ Refused ─ later ───────────────────────────────────────▶ asked again
//!                       └─ waiting, busy, away, not as asked ─ soon, then later ─────────────▶ asked again
//!  release, or there and not wanted ─▶ leaving ─ done ─▶ nothing
//! ```
//!
//! A path that was granted counts only if it is as it was asked for, within the budget.

use crate::controller::Trouble;
use crate::news::News;
use crate::request::{Hosts, Unready, key, request};
pub use crate::standing::Standing;
use crate::standing::unlike;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tidegate_contract::network_paths::PathTerms;
use tidegate_contract::{OnRefused, OnUnreachable};
use tidegate_controller_api::{Path, PathRequest};
use tidegate_place::Pair;

/// First and longest pause before a path is asked for again that was refused.
const REFUSED: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));
/// The same while the far host decides, the controller is busy, or has another path: the next answer may be another one.
const WAITING: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(4));
/// The same after no answer.
const AWAY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(8));

/// What a contract says about a path that is not granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// By the controller.
    pub on_refused: OnRefused,
    /// Because it does not answer.
    pub on_unreachable: OnUnreachable,
}

/// A wanted path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WantedPath {
    /// What is asked for.
    pub terms: PathTerms,
    /// Of its contract.
    pub policy: Policy,
}

/// One wanted path.
#[derive(Clone, Debug)]
pub struct Entry {
    /// What is wanted.
    pub wanted: WantedPath,
    /// How it stands.
    pub standing: Standing,
    /// What was asked last.
    asked: Option<PathRequest>,
    /// What is being asked; `None`: an answer that comes now is about other terms.
    asking: Option<PathRequest>,
    /// When the last answer came.
    since: Instant,
    /// What the network is known to have for it, also from a process before this one.
    granted: Option<PathRequest>,
    /// The last pause; none after a grant.
    pause: Option<Duration>,
    retry_at: Instant,
    /// It is to be asked for although nothing changed.
    again: bool,
}

/// All of them, by name.
#[derive(Clone, Debug, Default)]
pub struct Book {
    entries: BTreeMap<String, Entry>,
    /// Paths to be released, and when to try.
    leaving: BTreeMap<String, Instant>,
}

/// What is to be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Due {
    /// A path.
    Request(Box<PathRequest>),
    /// The end of one.
    Release(String),
}

impl Book {
    /// Returns the wanted paths.
    pub fn entries(&self) -> &BTreeMap<String, Entry> {
        &self.entries
    }

    /// Returns the names of paths that are to be released.
    pub fn leaving(&self) -> impl Iterator<Item = &String> {
        self.leaving.keys()
    }

    /// Wants a path, or other terms of one.
    pub fn ask(&mut self, wanted: WantedPath, now: Instant) {
        let name = wanted.terms.name();
        self.leaving.remove(&name);
        let entry = self.entries.entry(name).or_insert_with(|| Entry {
            wanted: wanted.clone(),
            standing: Standing::Asked,
            asked: None,
            asking: None,
            since: now,
            granted: None,
            pause: None,
            retry_at: now,
            again: true,
        });
        // What was granted on other terms says nothing about these.
        if entry.wanted.terms != wanted.terms {
            entry.asking = None;
        }
        if entry.wanted.terms != wanted.terms || !matches!(entry.standing, Standing::Granted(_)) {
            entry.standing = Standing::Asked;
        }
        (entry.wanted, entry.pause, entry.retry_at, entry.again) = (wanted, None, now, true);
    }

    /// Notes what the network had for a wanted path when a process before this one ended.
    pub fn had(&mut self, name: &str, granted: PathRequest) {
        if let Some(entry) = self.entries.get_mut(name) {
            entry.granted = Some(granted);
        }
    }

    /// Wants a path no more.
    pub fn release(&mut self, name: &str, now: Instant) {
        self.entries.remove(name);
        self.leaving.insert(name.to_owned(), now);
    }

    /// Asks for all anew: the controller may have forgotten them. What it has just refused keeps its pause.
    pub fn ask_all(&mut self, now: Instant) {
        for entry in self.entries.values_mut() {
            if entry.pause.is_none() {
                entry.retry_at = now;
            }
            entry.again = true;
        }
    }

    /// Asks another controller, of which nothing is known.
    pub fn begin_anew(&mut self, now: Instant) {
        for entry in self.entries.values_mut() {
            (entry.standing, entry.asked, entry.asking) = (Standing::Asked, None, None);
            (entry.pause, entry.retry_at, entry.again) = (None, now, true);
        }
    }

    /// Returns what is to be asked now by host `source`; notes what cannot be asked yet.
    pub fn due(
        &mut self,
        source: &str,
        hosts: &Hosts,
        port: impl Fn(&Pair) -> Option<u16>,
        now: Instant,
    ) -> Option<Due> {
        if let Some(name) = self.leaving.iter().find(|(_, at)| **at <= now).map(|(name, _)| name.clone()) {
            return Some(Due::Release(name));
        }
        // The one that waits longest: none that is asked often keeps another one from its turn.
        let mut first: Option<(Instant, PathRequest)> = None;
        for entry in self.entries.values_mut() {
            let terms = &entry.wanted.terms;
            match request(source, terms, hosts, port(&pair_of(terms))) {
                // As soon as it can be asked for, it is: it may be what was granted before.
                Err(Unready::Waiting(why)) => {
                    (entry.standing, entry.asked) = (Standing::Waiting(vec![why]), None);
                }
                Err(Unready::Impossible(why)) => {
                    (entry.standing, entry.asked) = (Standing::Refused(vec![why]), None);
                }
                Ok(request) => {
                    let is_new = entry.asked.as_ref() != Some(&request);
                    let is_due = entry.again && entry.retry_at <= now;
                    let is_first = first.as_ref().is_none_or(|(at, _)| entry.retry_at < *at);
                    if (is_new || is_due) && is_first {
                        first = Some((entry.retry_at, request));
                    }
                }
            }
        }
        let (_, request) = first?;
        self.entries.get_mut(&request.name())?.asking = Some(request.clone());
        Some(Due::Request(Box::new(request)))
    }

    /// Returns when the next one is due without another change.
    pub fn next_at(&self) -> Option<Instant> {
        let is_asked = |entry: &&Entry| entry.again && entry.asked.is_some();
        let entries = self.entries.values().filter(is_asked).map(|entry| entry.retry_at);
        entries.chain(self.leaving.values().copied()).min()
    }

    /// Takes in the answer to a request.
    pub fn answered(&mut self, request: PathRequest, answer: Result<Path, Trouble>, now: Instant) {
        // It may be wanted no more, or on other terms: then it is still to be asked for.
        let Some(entry) = self.entries.get_mut(&request.name()) else { return };
        if entry.asking.take().as_ref() != Some(&request) {
            return;
        }
        entry.since = now;
        if let Ok(path) = &answer
            && path.request.name() == request.name()
        {
            entry.granted = Some(path.request.clone());
        }
        let (standing, pause) = match answer {
            Ok(path) => match unlike(&path, &request) {
                None => {
                    entry.standing = Standing::Granted(Box::new(path));
                    (entry.asked, entry.again, entry.pause) = (Some(request), false, None);
                    entry.retry_at = now;
                    return;
                }
                Some(why) => (Standing::Unlike(why), entry.longer(REFUSED)),
            },
            Err(Trouble::Refused(why)) => (Standing::Refused(why), entry.longer(REFUSED)),
            Err(Trouble::Waiting(why)) => (Standing::Waiting(why), entry.longer(WAITING)),
            Err(Trouble::Busy(pause)) => (Standing::Busy, entry.longer(WAITING).max(pause.min(REFUSED.1))),
            Err(Trouble::Away(why) | Trouble::NotFound(why)) => (Standing::Away(why), entry.longer(AWAY)),
        };
        (entry.asked, entry.standing, entry.pause) = (Some(request), standing, Some(pause));
        (entry.again, entry.retry_at) = (true, now + pause);
    }

    /// Takes in the answer to a release.
    pub fn released(&mut self, name: &str, answer: &Result<(), Trouble>, now: Instant) {
        match answer {
            Ok(()) | Err(Trouble::NotFound(_) | Trouble::Refused(_)) => drop(self.leaving.remove(name)),
            Err(_) => drop(self.leaving.insert(name.to_owned(), now + REFUSED.0)),
        }
    }

    /// Takes in a View that was asked for at `sent`. `before` has the hosts of the View before it.
    pub fn viewed(&mut self, news: &News, before: &Hosts, sent: Instant, now: Instant) {
        for (name, entry) in &mut self.entries {
            let there = news.path(name);
            // It may have been made before the last answer.
            let is_newer = sent >= entry.since && entry.asking.is_none();
            if let Some(there) = there.filter(|_| is_newer) {
                entry.granted = Some(there.request.clone());
            }
            match (&mut entry.standing, there) {
                (Standing::Granted(path), there) => {
                    let why = match there {
                        None => Some("the controller has it no more".to_owned()),
                        Some(there) => unlike(there, &path.request),
                    };
                    match (why, there) {
                        (Some(why), _) => {
                            (entry.again, entry.retry_at) = (true, now);
                            if is_newer {
                                entry.standing = Standing::Unlike(why);
                            }
                        }
                        (None, Some(there)) if is_newer || path.generation <= there.generation => {
                            **path = there.clone();
                        }
                        (None, _) => {}
                    }
                }
                // Its far host is another one: it may fit now.
                (Standing::Waiting(_), _) if !before.has_same(&news.hosts, &entry.wanted.terms) => {
                    (entry.retry_at, entry.pause) = (now, None);
                }
                _ => {}
            }
        }
    }

    /// Releases the paths of host `source` that a View has and this host does not want, such as those that a process before
    /// this one did not live to record. An operator's stay.
    pub fn release_unwanted(&mut self, source: &str, news: &News, now: Instant) {
        for path in &news.view.paths {
            let is_ours = path.request.source == source && !path.lasting;
            if is_ours && !self.entries.contains_key(&path.name) {
                self.leaving.entry(path.name.clone()).or_insert(now);
            }
        }
    }

    /// No controller answers: what is not granted says so.
    pub fn away(&mut self, why: &str) {
        for entry in self.entries.values_mut() {
            if !matches!(entry.standing, Standing::Granted(_) | Standing::Refused(_)) {
                (entry.standing, entry.pause) = (Standing::Away(why.to_owned()), None);
            }
        }
    }
}

impl Entry {
    /// Returns what the network is known to have for it.
    pub fn granted(&self) -> Option<&PathRequest> {
        self.granted.as_ref()
    }

    /// Returns whether what the network has suffices for `terms`, from the source port `port`. Whether it is there still
    /// does not count: without a path, the network's edge clears the mark of frames.
    pub fn covers(&self, terms: &PathTerms, port: Option<u16>) -> bool {
        self.granted.as_ref().is_some_and(|granted| {
            // Without a port it is not known which one the pair will have.
            let port = port.or(granted.key.udp().map(|key| key.source_port));
            key(&terms.seen, port).as_ref() == Some(&granted.key)
                && granted.dscp == terms.dscp
                && granted.rate >= terms.rate.bits()
                && granted.burst >= terms.burst.get()
                && granted.largest_frame >= terms.largest_frame.get()
                && granted.smallest_frame <= terms.smallest_frame.get()
        })
    }

    /// Returns the next pause: twice the last one, within these two.
    fn longer(&self, (least, longest): (Duration, Duration)) -> Duration {
        self.pause.map_or(least, |pause| (pause * 2).clamp(least, longest))
    }
}

/// Returns the pair of these terms.
pub fn pair_of(terms: &PathTerms) -> Pair {
    Pair::new(&terms.uplink, &terms.vnic, &terms.remote)
}
