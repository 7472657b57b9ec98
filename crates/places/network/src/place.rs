//! The place, as the agent knows it.

use crate::action::{Faults, NetworkAction};
use crate::book::{Standing, WantedPath};
use crate::controller::{self, Open};
use crate::duty::State;
use crate::keys::Keys;
use crate::link::Link;
use crate::misses::Misses;
use crate::offering::{Offered, Offering};
use crate::plan::{self, Facts};
use crate::record::Record;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tidegate_contract::{Attach, Controller, OnRefused, OnUnreachable, Vnic};
use tidegate_controller_api::View;
use tidegate_durable::DurableError;
use tidegate_evidence::NetworkPath;
use tidegate_place::{
    Capabilities, Installation, KeyRing, Observed, Offers, PairPorts, Place, PlaceError, Plan, Refusal, Site,
    Taken, Wanted,
};
use tidegate_visible::{beginning, visible};

/// Longest wait of a change for the controller, over all of its paths.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest text of one of them (bytes).
const LONGEST: usize = 1000;
/// Most announcements that do not count of which the host's problem tells.
const TOLD: usize = 4;

/// Paths through the network.
pub struct NetworkPlace {
    run: String,
    open: Arc<Mutex<Open>>,
    ports: PairPorts,
    keys: Keys,
    offers: Offers,
    offering: Offering,
    record: Record,
    link: Option<Link>,
    /// What the next link begins with.
    rest: State,
    faults: Faults,
    misses: Misses,
    /// Until when the change under way may wait; `None` outside of a change.
    change: Option<Instant>,
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
            open: Arc::new(Mutex::new(open)),
            ports,
            keys,
            offers,
            offering: Offering::default(),
            record,
            link: None,
            rest,
            faults: Faults::new(),
            misses: Misses::default(),
            change: None,
        };
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
            let leaving = to.is_none_or(|to| (&to.host, &to.urls) != (&before.host, &before.urls));
            let state = link.stop(leaving);
            // With another controller, nothing but what is wanted counts.
            self.rest = State::of(state.book);
        }
        let Some(controller) = to else { return Ok(()) };
        let mut state = std::mem::take(&mut self.rest);
        state.book.ask_all(Instant::now());
        let link = Link::start(controller, state, &self.open, &self.ports, &self.keys);
        self.link =
            Some(link.map_err(|error| PlaceError::Failed(format!("no thread for the controller: {error}")))?);
        Ok(())
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
        let refused = match link.wait(&to.terms.name(), end) {
            Standing::Refused(why) if to.policy.on_refused == OnRefused::Fail => format!(
                "the network's controller refuses its path to {}: {}; ask for less, or write on-refused = \"best-effort\"",
                to.terms.remote,
                why.join("; ")
            ),
            Standing::Away(why) if to.policy.on_unreachable == OnUnreachable::Wait => format!(
                "its path to {} has to be granted first (on-unreachable = \"wait\"), and the network's controller does not \
                 answer: {why}",
                to.terms.remote
            ),
            _ => return Ok(()),
        };
        match from {
            Some(from) => link.ask(from.clone()),
            None => link.release(&to.terms.name()),
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
                if let Some(why) = entry.unpromised() {
                    unpromised.entry(terms.vnic.clone()).or_insert(why);
                }
                let port = self.ports.port(&terms.vnic, &terms.remote);
                paths.entry(terms.vnic.clone()).or_default().push(entry.evidence(port));
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
    fn prepare(&mut self, _: &[&NetworkAction]) -> Result<(), PlaceError> {
        self.change = Some(Instant::now() + PATIENCE);
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
        let book = self.read(|state| state.book.clone());
        if let Err(error) = self.record.keep(&book) {
            tracing::error!(%error, "the paths through the network cannot be recorded; trying again soon");
        }
    }

    fn observe(&mut self, _: &[Vnic]) -> Result<(Observed, Facts), PlaceError> {
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
            seen: self.misses.last().cloned(),
        });
        Ok((observed, facts))
    }

    fn recorded(&self) -> Vec<Vnic> {
        vec![]
    }
}

#[cfg(test)]
mod tests;
