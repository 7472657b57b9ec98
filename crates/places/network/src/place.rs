//! The place, as the agent knows it.

use crate::action::{Faults, NetworkAction};
use crate::book::{Standing, WantedPath, pair_of};
use crate::controller::{self, Open};
use crate::duty::State;
use crate::link::Link;
use crate::misses::Misses;
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
    Capabilities, Installation, Observed, PairPorts, Place, PlaceError, Plan, Refusal, Site, Wanted,
};

/// Longest wait of a change for the controller, over all of its paths.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most announcements that do not count of which the host's problem tells.
const TOLD: usize = 4;

/// Paths through the network.
pub struct NetworkPlace {
    run: String,
    open: Arc<Mutex<Open>>,
    ports: PairPorts,
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
    let (place, damage) = NetworkPlace::new(site.state, site.pair_ports.clone(), Box::new(controller::open))?;
    Ok(Installation::new(place, "paths through the network", damage))
}

impl NetworkPlace {
    /// Makes the place; its record is in the folder `state`, and `open` opens controllers. The second value describes a
    /// damaged record.
    ///
    /// # Errors
    /// The record cannot be read, or a newer release wrote it.
    pub fn new(state: &Path, ports: PairPorts, open: Open) -> Result<(Self, Option<String>), DurableError> {
        let (record, damage) = Record::load(state)?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let rest = State::of(record.book(Instant::now()));
        let place = Self {
            run: format!("{}-{:x}", std::process::id(), since.as_nanos()),
            open: Arc::new(Mutex::new(open)),
            ports,
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
        let link = Link::start(controller, state, &self.open, &self.ports);
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
        self.link.as_ref()?.read(|state| {
            if let Some(why) = &state.trouble {
                return Some(format!("the network's controller does not answer: {why}"));
            }
            let refused = &state.view.as_ref()?.refused;
            let told: Vec<String> =
                refused.iter().take(TOLD).map(|item| format!("{}: {}", item.item, item.reason)).collect();
            let more = refused.len().saturating_sub(TOLD);
            let more = if more > 0 { format!("; and {more} more") } else { String::new() };
            (!told.is_empty())
                .then(|| format!("the network's controller does not count {}{more}", told.join("; ")))
        })
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
                let port = self.ports.port(&pair_of(terms));
                paths.entry(terms.vnic.clone()).or_default().push(entry.evidence(port));
            }
        });
        (paths, unpromised)
    }
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
