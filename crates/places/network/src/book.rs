//! The paths that are wanted, how each stands, and when it is asked for again.
//!
//! ```text
//!  ask ─▶ Entry: Asked ─┬─ granted ─▶ Granted ─ other request, or gone from the View ─▶ asked again
//!                       ├─ refused ─▶ Refused ─ later ───────────────────────────────▶ asked again
//!                       └─ waiting, away ─ soon ─────────────────────────────────────▶ asked again
//!  release ─▶ leaving ─ done ─▶ nothing
//! ```

use crate::controller::Trouble;
use crate::request::{Hosts, Unready, request};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tidegate_contract::network_paths::PathTerms;
use tidegate_contract::{OnRefused, OnUnreachable};
use tidegate_controller_api::{Path, PathRequest, PathState, View};
use tidegate_evidence::NetworkPath;
use tidegate_place::Pair;

/// First pause before a refused path is asked for again; it doubles.
const PAUSE: Duration = Duration::from_secs(2);
/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Pause while the far host decides.
const WAITING: Duration = Duration::from_millis(500);

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

/// How a path stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nothing is known yet.
    Asked,
    /// Another part is to come first.
    Waiting(Vec<String>),
    /// The controller says no, or nothing can be asked for.
    Refused(Vec<String>),
    /// No controller answers.
    Away(String),
    /// There is one.
    Granted(Box<Path>),
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
    pause: Duration,
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
            pause: PAUSE,
            retry_at: now,
            again: true,
        });
        // What was granted on other terms says nothing about these.
        if entry.wanted.terms != wanted.terms {
            entry.standing = Standing::Asked;
        }
        (entry.wanted, entry.pause, entry.retry_at, entry.again) = (wanted, PAUSE, now, true);
    }

    /// Wants a path no more.
    pub fn release(&mut self, name: &str, now: Instant) {
        self.entries.remove(name);
        self.leaving.insert(name.to_owned(), now);
    }

    /// Asks for all anew: the controller may have forgotten them.
    pub fn ask_all(&mut self, now: Instant) {
        for entry in self.entries.values_mut() {
            (entry.again, entry.retry_at) = (true, now);
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
                    if is_new || is_due {
                        return Some(Due::Request(Box::new(request)));
                    }
                }
            }
        }
        None
    }

    /// Returns when the next one is due without another change.
    pub fn next_at(&self) -> Option<Instant> {
        let is_asked = |entry: &&Entry| entry.again && entry.asked.is_some();
        let entries = self.entries.values().filter(is_asked).map(|entry| entry.retry_at);
        entries.chain(self.leaving.values().copied()).min()
    }

    /// Takes in the answer to a request.
    pub fn answered(&mut self, request: PathRequest, answer: Result<Path, Trouble>, now: Instant) {
        // It may be wanted no more.
        let Some(entry) = self.entries.get_mut(&request.name()) else { return };
        entry.asked = Some(request);
        let (standing, pause) = match answer {
            Ok(path) => {
                (entry.standing, entry.again, entry.pause) =
                    (Standing::Granted(Box::new(path)), false, PAUSE);
                return;
            }
            Err(Trouble::Refused(why)) => {
                let pause = entry.pause;
                entry.pause = (pause * 2).min(LONGEST_PAUSE);
                (Standing::Refused(why), pause)
            }
            Err(Trouble::Waiting(why)) => (Standing::Waiting(why), WAITING),
            Err(Trouble::Busy(pause)) => {
                (Standing::Waiting(vec!["the controller has too much to do".into()]), pause)
            }
            Err(Trouble::Away(why) | Trouble::NotFound(why)) => (Standing::Away(why), PAUSE),
        };
        (entry.standing, entry.again, entry.retry_at) = (standing, true, now + pause);
    }

    /// Takes in the answer to a release.
    pub fn released(&mut self, name: &str, answer: &Result<(), Trouble>, now: Instant) {
        match answer {
            Ok(()) | Err(Trouble::NotFound(_) | Trouble::Refused(_)) => drop(self.leaving.remove(name)),
            Err(_) => drop(self.leaving.insert(name.to_owned(), now + PAUSE)),
        }
    }

    /// Takes in what the controller says of all paths of this host.
    pub fn viewed(&mut self, view: &View, now: Instant) {
        for (name, entry) in &mut self.entries {
            let there = view.paths.iter().find(|path| path.name == *name);
            match (&mut entry.standing, there) {
                (Standing::Granted(path), Some(there)) if path.generation <= there.generation => {
                    **path = there.clone();
                }
                (Standing::Granted(_), None) => (entry.again, entry.retry_at) = (true, now),
                // Something has changed: it may fit now.
                (Standing::Waiting(_), _) if entry.again => entry.retry_at = now,
                _ => {}
            }
        }
    }

    /// No controller answers: what is not granted says so.
    pub fn away(&mut self, why: &str) {
        for entry in self.entries.values_mut() {
            if !matches!(entry.standing, Standing::Granted(_) | Standing::Refused(_)) {
                entry.standing = Standing::Away(why.to_owned());
            }
        }
    }
}

impl Entry {
    /// Returns why the deadline is not promised over the network; `None` if it is.
    pub fn unpromised(&self) -> Option<String> {
        let to = &self.wanted.terms.remote;
        let text = match &self.standing {
            Standing::Granted(path) => match path.state {
                PathState::Active | PathState::Moving => return None,
                PathState::Installing => format!("switches do not have its path to {to} yet"),
                PathState::Broken => format!("its path to {to} is broken{}", listed(&path.reasons)),
                PathState::Violated => format!(
                    "frames to {to} are late in the network, and nothing helps{}",
                    listed(&path.reasons)
                ),
            },
            Standing::Asked => format!("its path to {to} is asked for"),
            Standing::Waiting(why) => format!("its path to {to} waits{}", listed(why)),
            Standing::Refused(why) => {
                format!("the network's controller refuses its path to {to}{}", listed(why))
            }
            Standing::Away(why) => {
                format!("the network's controller does not answer for its path to {to}: {why}")
            }
        };
        Some(text)
    }

    /// Returns the entry as evidence; `port` is its source port.
    pub fn evidence(&self, port: Option<u16>) -> NetworkPath {
        let terms = &self.wanted.terms;
        let granted = match &self.standing {
            Standing::Granted(path) => Some(&**path),
            _ => None,
        };
        let (state, reasons) = match &self.standing {
            Standing::Asked => ("asked", vec![]),
            Standing::Waiting(why) => ("waiting", why.clone()),
            Standing::Refused(why) => ("refused", why.clone()),
            Standing::Away(why) => ("unreachable", vec![why.clone()]),
            Standing::Granted(path) => (state_name(path.state), path.reasons.clone()),
        };
        NetworkPath {
            name: terms.name(),
            vnic: terms.vnic.clone(),
            remote: terms.remote.clone(),
            state: state.into(),
            promised: self.unpromised().is_none(),
            reasons,
            budget_ns: terms.budget.get(),
            bound_ns: granted.map(|path| path.bound),
            level: granted.map(|path| path.level),
            links: granted.map(|path| path.links.clone()).unwrap_or_default(),
            port,
            misses: granted.map_or(0, |path| path.misses),
        }
    }
}

/// Returns the pair of these terms.
pub fn pair_of(terms: &PathTerms) -> Pair {
    Pair::new(&terms.uplink, &terms.vnic, &terms.remote)
}

fn state_name(state: PathState) -> &'static str {
    match state {
        PathState::Installing => "installing",
        PathState::Active => "active",
        PathState::Moving => "moving",
        PathState::Broken => "broken",
        PathState::Violated => "violated",
    }
}

fn listed(reasons: &[String]) -> String {
    if reasons.is_empty() { String::new() } else { format!(": {}", reasons.join("; ")) }
}
