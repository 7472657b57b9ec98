//! The place, as the agent knows it.

use crate::action::{Faults, NetworkAction};
use crate::book::{Entry, Standing, WantedPath, pair_of};
use crate::controller::{self, Open};
use crate::duty::State;
use crate::keys::Keys;
use crate::link::{self, Link};
use crate::misses::Misses;
use crate::offering::{Offered, Offering};
use crate::plan::{self, Facts};
use crate::record::Record;
use crate::shown::Now;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tidegate_contract::{Attach, Controller, OnRefused, OnUnreachable, Vnic};
use tidegate_controller_api::View;
use tidegate_durable::DurableError;
use tidegate_evidence::NetworkPath;
use tidegate_place::{
    Capabilities, Installation, KeyRing, Observed, Offers, Pair, PairPorts, Place, PlaceError, Plan, Refusal,
    Site, Taken, Wanted,
};
use tidegate_visible::{beginning, visible};

/// Longest wait of a change for the controller, over all of its paths.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest text of one of them (bytes).
const LONGEST: usize = 1000;
/// After a wait in vain, later changes do not wait until the controller has answered, at most for that long: many files of
/// one round would each wait.
const IN_VAIN: Duration = Duration::from_secs(60);
/// Most announcements that do not count of which the host's problem tells.
const TOLD: usize = 4;

/// Paths through the network.
pub struct NetworkPlace {
    run: String,
    open: Arc<Open>,
    ports: PairPorts,
    keys: Keys,
    offers: Offers,
    offering: Offering,
    record: Record,
    link: Option<Link>,
    /// The controller of the last link.
    last: Option<Controller>,
    /// Registrations that end when the change under way is accepted.
    leaving: Vec<Controller>,
    /// Ends the last one.
    left: Option<JoinHandle<()>>,
    /// What the next link begins with.
    rest: State,
    faults: Faults,
    misses: Misses,
    /// Until when the change under way may wait; `None` outside of a change.
    change: Option<Instant>,
    /// The last wait in vain: when it ended, and how many answers there had been.
    in_vain: Option<(Instant, u64)>,
}

/// Installs the place.
///
/// # Errors
/// The record cannot be read, or a newer release wrote it.
pub fn install(site: &Site<'_>) -> Result<Installation, DurableError> {
    let (place, damage) = NetworkPlace::new(
        site.state,
        site.pair_ports.clone(),
        site.key_ring.clone(),
        site.offers.clone(),
        Box::new(controller::open),
    )?;
    Ok(Installation::new(place, "paths through the network", damage))
}

impl NetworkPlace {
    /// Makes the place; its record is in the folder `state`, and `open` opens controllers. The second value describes a
    /// damaged record.
    ///
    /// # Errors
    /// The record cannot be read, or a newer release wrote it.
    pub fn new(
        state: &Path,
        ports: PairPorts,
        keys: KeyRing,
        offers: Offers,
        open: Open,
    ) -> Result<(Self, Option<String>), DurableError> {
        let (record, damage) = Record::load(state)?;
        let keys = Keys::load(state, keys);
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let rest = State::of(record.book(Instant::now()));
        let place = Self {
            run: format!("{}-{:x}", std::process::id(), since.as_nanos()),
            open: Arc::new(open),
            ports,
            keys,
            offers,
            offering: Offering::default(),
            record,
            link: None,
            last: None,
            leaving: vec![],
            left: None,
            rest,
            faults: Faults::new(),
            misses: Misses::default(),
            change: None,
            in_vain: None,
        };
        place.govern();
        Ok((place, damage))
    }

    /// Returns the newest View of the controller; `None` before the first.
    pub fn view(&self) -> Option<Arc<View>> {
        self.link.as_ref()?.view()
    }

    fn read<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        match &self.link {
            Some(link) => link.read(read),
            None => read(&self.rest),
        }
    }

    fn configure(&mut self, to: Option<&Controller>) -> Result<(), PlaceError> {
        self.offering.forget();
        if let Some(link) = self.link.take() {
            let before = link.controller.clone();
            self.rest = link.stop();
            if to.is_none_or(|to| to.host != before.host) {
                self.leaving.push(before.clone());
            }
            self.last = Some(before);
        }
        let Some(to) = to else { return Ok(()) };
        let is_same =
            |last: &Controller| last.host == to.host && last.urls.iter().any(|url| to.urls.contains(url));
        let is_same = self.last.as_ref().is_some_and(is_same);
        let state = std::mem::take(&mut self.rest).for_link(&to.host, is_same, Instant::now());
        match Link::start(to, state, &self.open, &self.ports, &self.keys, self.left.take()) {
            Ok(link) => {
                // What was not reported yet.
                link.report(self.misses.totals().clone());
                self.link = Some(link);
                Ok(())
            }
            Err((error, state)) => {
                self.rest = *state;
                Err(PlaceError::Failed(format!("no thread for the controller: {error}")))
            }
        }
    }

    /// Ends the registrations of hosts' names that this host has no more.
    fn leave(&mut self) {
        let host = self.link.as_ref().map(|link| link.controller.host.clone());
        for controller in std::mem::take(&mut self.leaving) {
            // A change that was taken back leaves nothing.
            if Some(&controller.host) == host.as_ref() {
                continue;
            }
            self.last = self.last.take().filter(|last| last.host != controller.host);
            match link::leave(controller, self.open.clone(), self.left.take()) {
                Ok(thread) => self.left = Some(thread),
                Err(error) => {
                    tracing::warn!(%error, "no thread to leave the network's controller: its lease ends by itself")
                }
            }
        }
    }

    /// Waits for the decision on a path, unless the last wait was in vain and nothing was heard since.
    fn decision(&mut self, name: &str, end: Instant) -> Standing {
        let Some(link) = &self.link else { return Standing::Asked };
        let (answers, trouble) = link.read(|state| (state.answers, state.trouble.clone()));
        let is_in_vain = |(at, before): (Instant, u64)| before == answers && at.elapsed() < IN_VAIN;
        if self.in_vain.is_some_and(is_in_vain) {
            let why = trouble.unwrap_or_else(|| "no answer in time".into());
            link.away(&why);
            return Standing::Away(why);
        }
        let standing = link.wait(name, end);
        if matches!(standing, Standing::Away(_)) {
            self.in_vain = Some((Instant::now(), link.read(|state| state.answers)));
        }
        standing
    }

    /// Wants a path. In a change, waits for the decision, and refuses if the contract says so.
    fn ask(&mut self, from: Option<&WantedPath>, to: &WantedPath, back: bool) -> Result<(), PlaceError> {
        let now = Instant::now();
        let Some(link) = &self.link else {
            self.rest.book.ask(to.clone(), now);
            return Ok(());
        };
        link.ask(to.clone());
        let Some(end) = self.change.filter(|_| !back) else { return Ok(()) };
        let refused = match self.decision(&to.terms.name(), end) {
            Standing::Refused(why) if to.policy.on_refused == OnRefused::Fail => format!(
                "the network's controller refuses its path to {}: {}; ask for less, or write on-refused = \"best-effort\"",
                to.terms.remote,
                why.join("; ")
            ),
            Standing::Unlike(why) if to.policy.on_refused == OnRefused::Fail => format!(
                "its path to {} is not as it was asked for: {why}; see `tidegate path show` and the controller's log, or write \
                 on-refused = \"best-effort\"",
                to.terms.remote
            ),
            Standing::Away(why) if to.policy.on_unreachable == OnUnreachable::Wait => format!(
                "its path to {} has to be granted first (on-unreachable = \"wait\"), and the network's controller does not \
                 answer: {why}",
                to.terms.remote
            ),
            _ => return Ok(()),
        };
        match (&self.link, from) {
            (Some(link), Some(from)) => link.ask(from.clone()),
            (Some(link), None) => link.release(&to.terms.name()),
            (None, _) => {}
        }
        Err(PlaceError::Refused(refused))
    }

    /// Returns what a person should know of the controller as a whole.
    fn problem(&self) -> Option<String> {
        let (trouble, refused) = self.link.as_ref()?.read(|state| {
            let refused = state.view.as_ref().map(|view| view.refused.clone()).unwrap_or_default();
            (state.trouble.clone(), refused)
        });
        if let Some(why) = trouble {
            return Some(format!("the network's controller does not answer: {why}"));
        }
        let Offered { newest, taken: Taken { declined, differences }, .. } = self.offering.offered();
        let left_out = newest.map(|offer| offer.left_out).unwrap_or_default();
        let what = |(what, why): (&String, &String)| format!("{what}: {why}");
        let not_counted = refused.iter().map(|item| format!("{}: {}", item.item, item.reason));
        let all: BTreeMap<String, String> = declined.into_iter().chain(left_out).collect();
        let parts = [
            told("the network's controller does not count", not_counted),
            told("not in force as the network's controller tells it", all.iter().map(what)),
            told(
                "tables of this host count, and the network's controller tells others",
                differences.iter().cloned(),
            ),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }

    /// Tells which pairs may use their source ports: those whose contracts are within what the network has for them. Not
    /// in a change, which may have just taken one away.
    fn govern(&self) {
        let controlled = self.link.as_ref().map(|link| link.controller.uplinks.clone()).unwrap_or_default();
        let (uplinks, granted) = self.read(|state| {
            let entries = || state.book.entries().values();
            // Before the first contract is known, those on record have one.
            let of_record = entries().map(|entry| entry.wanted.terms.uplink.clone());
            let uplinks: BTreeSet<String> = controlled.into_iter().chain(of_record).collect();
            let covered = |entry: &&Entry| {
                let terms = &entry.wanted.terms;
                entry.covers(terms, self.ports.port(&pair_of(terms)))
            };
            let granted: Vec<Pair> =
                entries().filter(covered).map(|entry| pair_of(&entry.wanted.terms)).collect();
            (uplinks, granted)
        });
        self.ports.govern(uplinks.iter().map(String::as_str), granted);
    }

    fn paths(&self) -> (BTreeMap<String, Vec<NetworkPath>>, BTreeMap<String, String>) {
        let mut paths = BTreeMap::<String, Vec<NetworkPath>>::new();
        let mut unpromised = BTreeMap::new();
        for (vnic, reasons) in &self.faults {
            unpromised.insert(vnic.clone(), reasons.join("; "));
        }
        let has_link = self.link.is_some();
        self.read(|state| {
            for entry in state.book.entries().values().filter(|_| has_link) {
                let terms = &entry.wanted.terms;
                let now =
                    Now { port: self.ports.port(&pair_of(terms)), leased: state.is_leased(Instant::now()) };
                if let Some(why) = entry.unpromised(now) {
                    unpromised.entry(terms.vnic.clone()).or_insert(why);
                }
                paths.entry(terms.vnic.clone()).or_default().push(entry.evidence(now));
            }
        });
        (paths, unpromised)
    }
}

/// Returns the first few of `all` after `what`; `None` if there are none.
fn told(what: &str, all: impl ExactSizeIterator<Item = String>) -> Option<String> {
    let more = all.len().saturating_sub(TOLD);
    let first: Vec<String> =
        all.take(TOLD).map(|one| visible(beginning(&one, LONGEST)).into_owned()).collect();
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    (!first.is_empty()).then(|| format!("{what} {}{more}", first.join("; ")))
}

impl Place for NetworkPlace {
    type Action = NetworkAction;
    type Facts = Facts;

    fn name(&self) -> &'static str {
        "network"
    }

    fn unit(&self) -> &'static str {
        tidegate_place::AGENT
    }

    /// None: no vNIC is attached here.
    fn capabilities(&self, _: &Attach) -> Option<Capabilities> {
        None
    }

    fn notes(&self, _: &Vnic) -> Vec<String> {
        vec![]
    }

    fn plan(
        &self,
        wanted: &Wanted<'_>,
        _: &Observed,
        facts: &Facts,
    ) -> Result<Plan<NetworkAction>, Vec<Refusal>> {
        plan::plan(wanted, facts).map(Plan::from)
    }

    /// Begins a change: what is on disk is as before until it is accepted.
    fn prepare(&mut self, actions: &[&NetworkAction]) -> Result<(), PlaceError> {
        self.change = Some(Instant::now() + PATIENCE);
        // A pair that may send more than it has been granted must not do so as soon as the host switch has its contract.
        for action in actions {
            let NetworkAction::Ask { to, .. } = action else { continue };
            let pair = pair_of(&to.terms);
            let port = self.ports.port(&pair);
            let covers = |state: &State| {
                state.book.entries().get(&to.terms.name()).is_some_and(|entry| entry.covers(&to.terms, port))
            };
            if !self.read(covers) {
                self.ports.revoke(&pair);
            }
        }
        Ok(())
    }

    fn apply(&mut self, action: &NetworkAction) -> Result<(), PlaceError> {
        match action {
            NetworkAction::Configure { to, .. } => self.configure(to.as_deref()),
            NetworkAction::Announce { to, .. } => {
                if let Some(link) = &self.link {
                    link.announce((**to).clone());
                }
                Ok(())
            }
            NetworkAction::Offer { to, .. } => {
                self.offering.give((**to).clone(), &self.offers).map_err(|error| {
                    PlaceError::Failed(format!("no thread for what the controller tells: {error}"))
                })
            }
            NetworkAction::Ask { from, to, back } => self.ask(from.as_deref(), to, *back),
            NetworkAction::Release { from } => {
                match &self.link {
                    Some(link) => link.release(&from.terms.name()),
                    None => self.rest.book.release(&from.terms.name(), Instant::now()),
                }
                Ok(())
            }
            NetworkAction::Note(faults) => {
                self.faults.clone_from(faults);
                Ok(())
            }
            NetworkAction::Count(seen) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                self.misses.count(seen.clone(), now.as_secs_f64());
                if let Some(link) = &self.link {
                    link.report(self.misses.totals().clone());
                }
                Ok(())
            }
        }
    }

    fn accept(&mut self, _: &[Vnic]) {
        self.change = None;
        self.leave();
        match &self.link {
            Some(link) => link.accepted(),
            None => self.rest.accepted = true,
        }
        let book = self.read(|state| state.book.clone());
        if let Err(error) = self.record.keep(&book) {
            tracing::error!(%error, "the paths through the network cannot be recorded; trying again soon");
        }
        self.govern();
    }

    fn observe(&mut self, _: &[Vnic]) -> Result<(Observed, Facts), PlaceError> {
        // A change that was given up before its first action.
        self.change = None;
        self.govern();
        let (paths, unpromised) = self.paths();
        let mut observed =
            Observed { unpromised, problem: self.problem(), ..Observed::nothing("the network's controller") };
        observed.evidence.paths = paths;
        let facts = self.read(|state| Facts {
            run: self.run.clone(),
            controller: self.link.as_ref().map(|link| link.controller.clone()),
            announced: state.wanted.clone(),
            view: state.view.clone(),
            is_settled: state.is_settled(Instant::now()),
            offered: self.offering.offered(),
            wanted: state
                .book
                .entries()
                .iter()
                .map(|(name, entry)| (name.clone(), entry.wanted.clone()))
                .collect(),
            faults: self.faults.clone(),
            seen: self.misses.last().clone(),
        });
        Ok((observed, facts))
    }

    fn recorded(&self) -> Vec<Vnic> {
        vec![]
    }
}

#[cfg(test)]
mod tests;
