//! NICs as a place: what SR-IOV functions may send, and as whom.
//!
//! ```text
//!  plan (pure) ──▶ NicPlace ── contracts ─▶ function ─▶ `device`: plan, steps ──▶ NIC
//!                    │   ▲                                                             │
//!                    │   ├──────────── observe: what differs, counters ◀───────────────┤
//!                    │   └── engine: a loop per NIC that needs one ─ limits, counters ─┘
//!                    └─▶ Record: what this place was told, and what functions were before, on disk
//! ```
//!
//! A function bypasses the host: what keeps its contract is the NIC alone. Limits stay in force without the agent; what a
//! NIC cannot keep by itself, such as minima, its loop keeps while the agent runs.
//!
//! - `abilities`: what a NIC takes, in words
//! - `action`: the changes at this place
//! - `change`: contracts that come, change and go
//! - `conversation`: what is asked and done
//! - `engine`: the loops
//! - `function`: from a contract to what a NIC is told
//! - `observe`: what is in force
//! - `plan`: from wanted and observed to actions
//! - `record`: what this place was told
//! - `seen`: a NIC as the last look showed it
//! - `shared_link`: the link that the functions of one NIC share
//! - `statistics`: what NICs count
//! - `terms`: what a loop is told

mod abilities;
mod action;
mod change;
mod conversation;
mod engine;
mod function;
mod observe;
mod plan;
mod record;
mod seen;
mod shared_link;
mod statistics;
mod terms;

use crate::device::{Abilities, Function, Mode, Pf};
use crate::probe::probe;
use action::NicAction;
use conversation::Conversation;
use engine::Engine;
use observe::Seen;
use record::Record;
use shared_link::SharedLinks;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};
use tidegate_contract::{Attach, Nic as Settings, Rate, Vnic};
use tidegate_durable::DurableError;
use tidegate_place::{
    Capabilities, ContractChange, Installation, Observed, Place, PlaceError, Plan, Refusal, Site, Wanted,
};

/// Pause before a NIC with unknown abilities is probed again.
const ASK_AGAIN: Duration = Duration::from_secs(10);

/// Age at which a look is out of date.
const FRESH: Duration = Duration::from_millis(500);

/// The NICs of the agent's network namespace.
pub struct NicPlace {
    conversation: Conversation,
    record: Record,
    /// The settings `[host.nic.NAME]` in force; `None` until the agent sends them: no loop runs before.
    settings: Option<BTreeMap<String, Settings>>,
    /// Abilities and speeds of each NIC.
    known: RefCell<BTreeMap<String, Known>>,
    /// Present settings of functions that get a contract by the last plan, by vNIC.
    coming: BTreeMap<String, Function>,
    /// The NICs as of the last look.
    seen: BTreeMap<String, Seen>,
    engine: Engine,
    /// Loops that cannot run, with the reason.
    refused_loops: BTreeMap<String, String>,
}

impl NicPlace {
    /// A place with its record in the folder `state`. The second value describes damage of the record.
    pub fn new(state: &Path) -> Result<(Self, Option<String>), DurableError> {
        let (record, damage) = Record::load(state)?;
        let place = Self {
            conversation: Conversation::default(),
            record,
            settings: None,
            known: RefCell::default(),
            coming: BTreeMap::new(),
            seen: BTreeMap::new(),
            engine: Engine::default(),
            refused_loops: BTreeMap::new(),
        };
        Ok((place, damage))
    }

    /// The contracts on record.
    fn contracts(&self) -> Vec<Vnic> {
        self.record.vnics().cloned().collect()
    }

    /// The abilities of a NIC, probed once and again while any is unknown, and the highest speed that its link had.
    fn known(&mut self, pf: &Pf) -> Result<(Abilities, Option<Rate>), PlaceError> {
        let before = self.known.borrow().get(&pf.name).filter(|known| known.is_of(pf)).cloned();
        let fastest = before.as_ref().and_then(|known| known.fastest).max(pf.top_speed).max(pf.speed);
        let still_good =
            |known: &Known| abilities::is_complete(&known.abilities) || known.asked.elapsed() < ASK_AGAIN;
        let known = match before.filter(still_good) {
            Some(known) => Known { fastest, ..known },
            None => {
                let abilities = self.conversation.ask(|nic| Ok(probe(nic, pf)))?;
                let identity = Known::identity(pf);
                Known { identity, asked: Instant::now(), abilities, fastest }
            }
        };
        let answer = (known.abilities.clone(), known.fastest);
        self.known.borrow_mut().insert(pf.name.clone(), known);
        Ok(answer)
    }

    /// The settings `[host.nic.NAME]` of a NIC.
    fn settings_of(&self, name: &str) -> Settings {
        self.settings.as_ref().and_then(|all| all.get(name)).cloned().unwrap_or_default()
    }
}

/// Facts about a NIC that a look does not repeat.
#[derive(Clone, Debug)]
struct Known {
    /// Device, driver, interface and mode: others have other abilities.
    identity: (String, String, u32, Mode),
    asked: Instant,
    abilities: Abilities,
    /// The highest speed that its link had.
    fastest: Option<Rate>,
}

impl Known {
    fn identity(pf: &Pf) -> (String, String, u32, Mode) {
        (pf.address.clone(), pf.driver.clone(), pf.index, pf.mode)
    }

    fn is_of(&self, pf: &Pf) -> bool {
        self.identity == Self::identity(pf)
    }
}

/// Installs the place.
///
/// # Errors
/// Its record cannot be read, or a newer release wrote it.
pub fn install(site: &Site<'_>) -> Result<Installation, DurableError> {
    let (place, damage) = NicPlace::new(site.state)?;
    Ok(Installation::new(place, "nic state", damage))
}

impl Place for NicPlace {
    type Action = NicAction;
    type Facts = SharedLinks;

    fn name(&self) -> &'static str {
        "nic"
    }

    fn unit(&self) -> &'static str {
        tidegate_place::AGENT
    }

    fn capabilities(&self, attach: &Attach) -> Option<Capabilities> {
        let Attach::Vf { pf, .. } = attach else { return None };
        let known = self.known.borrow().get(pf).map(|known| abilities::describe(&known.abilities));
        let notes = known.unwrap_or_default().into_iter().map(|line| format!("{pf} {line}")).collect();
        Some(Capabilities { deadline: false, min: true, uplink: true, notes })
    }

    fn notes(&self, vnic: &Vnic) -> Vec<String> {
        let Some(of_all) = self.capabilities(&vnic.attach) else { return vec![] };
        of_all.notes.into_iter().chain(function::excess_note(vnic)).collect()
    }

    fn plan(
        &self,
        wanted: &Wanted<'_>,
        observed: &Observed,
        links: &SharedLinks,
    ) -> Result<Plan<NicAction>, Vec<Refusal>> {
        plan::plan(wanted, observed, links).map(Plan::from)
    }

    fn prepare(&mut self, actions: &[&NicAction]) -> Result<(), PlaceError> {
        let coming = actions.iter().filter_map(|action| match action {
            NicAction::Contract(ContractChange::Create(vnic)) => {
                Some((&vnic.attach, self.coming.get(&vnic.name)?.clone()))
            }
            _ => None,
        });
        let coming: Vec<_> = coming.collect();
        self.record.reserve(coming.into_iter()).map_err(|e| PlaceError::Failed(e.to_string()))
    }

    fn apply(&mut self, action: &NicAction) -> Result<(), PlaceError> {
        match action {
            NicAction::SetHost { to, .. } => {
                let before = self.settings.replace(to.nic.clone());
                self.settle_all().inspect_err(|_| self.settings = before)
            }
            NicAction::Contract(ContractChange::Create(vnic)) => self.apply_contract(None, vnic),
            NicAction::Contract(ContractChange::Change { from, to }) => self.apply_contract(Some(from), to),
            NicAction::Contract(ContractChange::Remove(vnic)) => self.forget(vnic),
        }
    }

    fn accept(&mut self, _contracts: &[Vnic]) {
        // A limit that a loop sets meanwhile would be overwritten.
        let shared = self.engine.shared();
        let _loops = shared.lock();
        self.seen.clear();
        self.restore_functions();
        self.seen.clear();
    }

    fn observe(&mut self, coming: &[Vnic]) -> Result<(Observed, SharedLinks), PlaceError> {
        self.look(coming)
    }

    fn recorded(&self) -> Vec<Vnic> {
        self.contracts()
    }
}

impl std::fmt::Debug for NicPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NicPlace").field("record", &self.record).finish_non_exhaustive()
    }
}
