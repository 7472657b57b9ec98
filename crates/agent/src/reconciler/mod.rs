//! Makes what is wanted be in force, and keeps it so.
//!
//! ```text
//!  API ── Command ──▶ ┌───────────────┐ ── check ─▶ plan ─▶ apply ──▶ places ─▶ save
//!  files, each second │  one thread   │      └─ anything fails: roll back, old state in force
//!  places, half second└───────┬───────┘ ◀─ observe: drift is reported and repaired
//!                             └──▶ Published ──▶ API reads, metrics
//! ```
//!
//! One thread, so that a switch that hangs delays changes and never a reader.
//!
//! - `command`: what the API asks for
//! - `change`: what it changes
//! - [`check`]: whether contracts can be had, before anything is touched
//! - [`transaction`]: all or nothing
//! - [`repair`]: what happens twice a second
//! - [`files`]: contract files
//! - [`publish`]: what readers see
//! - [`status`]: what of it needs a person
//! - [`diff`]: what changes, key by key
//! - [`rates`]: rates over the last second
//! - [`growth`]: how much a counter has grown of late
//! - [`soft`]: what guests ask for
//! - [`view`]: what the API shows
//! - [`why`]: why frames of a vNIC were late

mod change;
mod check;
mod command;
#[cfg(test)]
mod cuts;
mod diff;
mod files;
mod growth;
mod publish;
mod rates;
mod repair;
mod soft;
mod status;
mod transaction;
pub mod view;
pub mod why;

use crate::api::status::StatusView;
use crate::api::types::{HostView, VnicView};
use crate::api::written::Written;
use crate::durable::{Durable, DurableError};
use crate::guest::limits::SoftLimits;
use crate::paths::Roots;
use crate::place::{Observed, Place};
use crate::store::Contracts;
use crate::store::files::Files;
use crate::windows::Windows;
pub use command::{ApplyError, Command, Looks, Reply};
use files::RefusedFile;
use growth::Growth;
#[cfg(test)]
pub use publish::empty_board;
use publish::nothing;
use rates::Rates;
pub use soft::Unmet;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};
use tidegate_contract::{Admission, Located, Vnic};
use tidegate_evidence::Miss;

/// How often places are observed and front ends dialled.
const TICK: Duration = Duration::from_millis(500);
/// How often the configuration folder is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How often a file that was refused is tried again: what stood in its way may be gone.
const RETRY_FILES: Duration = Duration::from_secs(10);

/// What readers see.
#[derive(Clone, Debug)]
pub struct Published {
    /// The host.
    pub host: HostView,
    /// What of it needs a person.
    pub status: StatusView,
    /// The vNICs.
    pub vnics: BTreeMap<String, VnicView>,
    /// The latest misses.
    pub misses: BTreeMap<String, Vec<Miss>>,
    /// Why what keeps the switch's workers from their CPUs is not observed, where it is not.
    pub unobserved: Option<String>,
    /// The vNICs of each guest, by its socket.
    pub guests: BTreeMap<PathBuf, Vec<String>>,
    /// What was written of it so far.
    pub written: Written,
}

/// Where readers look.
pub type Board = Arc<RwLock<Arc<Published>>>;

/// The latest published state.
pub fn read(board: &Board) -> Arc<Published> {
    Arc::clone(&board.read().unwrap_or_else(std::sync::PoisonError::into_inner))
}

/// A place that answers, or why it does not.
type Seen = Result<Observed, String>;

/// The reconciler.
pub struct Reconciler {
    places: Vec<Box<dyn Place>>,
    /// Below which folders contracts may name the sockets of guests.
    guests: Roots,
    /// Wanted: in force, or to be.
    contracts: Contracts,
    /// Nothing usable was saved.
    lost: bool,
    state: Durable,
    /// What guests ask for.
    soft: SoftLimits,
    soft_file: Durable,
    /// What that file says.
    saved_soft: SoftLimits,
    files: Files,
    refused_files: BTreeMap<PathBuf, RefusedFile>,
    seen: Vec<Seen>,
    admission: Admission,
    failures: BTreeMap<String, repair::Failure>,
    problems: BTreeMap<&'static str, String>,
    /// Of each place, in their order.
    rates: Vec<Rates>,
    windows: Windows,
    reconcile_errors: u64,
    drift_repaired: u64,
    drift: Growth,
    loops_over_budget: Growth,
    board: Board,
}

impl Reconciler {
    /// Loads the contracts last in force; those that come may name guests' sockets below `guests`. Nothing is touched
    /// before [`Reconciler::start`].
    ///
    /// # Errors
    /// The state cannot be read, or a newer release wrote it. Damaged state is not an error: it is kept aside
    /// and reported.
    pub fn new(
        config: &Path,
        state: &Path,
        guests: Roots,
        places: Vec<Box<dyn Place>>,
    ) -> Result<Self, DurableError> {
        let durable = Durable::new(state.join("contracts.json"));
        let loaded = durable.load::<Contracts>()?;
        let lost = loaded.value.is_none();
        let contracts = loaded.value.unwrap_or_default();
        let soft_file = Durable::new(state.join("soft-limits.json"));
        let soft = soft_file.load::<SoftLimits>()?;
        let saved_soft = soft.value.unwrap_or_default();
        let seen = places.iter().map(|_| Err("not asked yet".into())).collect();
        let rates = places.iter().map(|_| Rates::default()).collect();
        let mut reconciler = Self {
            files: Files::new(config, contracts.files.keys().cloned()),
            guests,
            places,
            soft: saved_soft.under(&contracts),
            soft_file,
            saved_soft,
            contracts,
            lost,
            state: durable,
            refused_files: BTreeMap::new(),
            seen,
            admission: Admission::default(),
            failures: BTreeMap::new(),
            problems: BTreeMap::new(),
            rates,
            windows: Windows::default(),
            reconcile_errors: 0,
            drift_repaired: 0,
            drift: Growth::default(),
            loops_over_budget: Growth::default(),
            board: Arc::new(RwLock::new(Arc::new(nothing()))),
        };
        if let Some(damage) = loaded.damage {
            reconciler.problem("state", Some(damage));
        }
        reconciler.problem("soft limits", soft.damage);
        if !config.is_dir() {
            tracing::warn!(folder = %config.display(), "no such folder: contracts come from the API only");
        }
        Ok(reconciler)
    }

    /// Where readers look.
    pub fn board(&self) -> Board {
        Arc::clone(&self.board)
    }

    /// Figures of windows.
    pub fn windows(&self) -> Windows {
        self.windows.clone()
    }

    /// Notes what is wrong on the host as a whole; logs it once.
    pub fn problem(&mut self, about: &'static str, what: Option<String>) {
        match what {
            None => drop(self.problems.remove(about)),
            Some(what) if self.problems.get(about) == Some(&what) => {}
            Some(what) => {
                tracing::error!(about, "{what}");
                self.problems.insert(about, what);
            }
        }
    }

    /// Brings what is saved and what the files say into force, at the places that answer.
    pub fn start(&mut self) {
        match check::check(&self.contracts, &self.soft, &self.places) {
            Ok(checked) => self.admission = checked.admission,
            Err(e) => self.problem("saved contracts", Some(format!("the saved contracts do not hold: {e}"))),
        }
        self.look_at_files(true);
        // After the files: a repair by an older observation would make their ports twice.
        self.observe();
        self.repair();
        self.publish();
    }

    /// Until told to stop.
    pub fn run(mut self, commands: &Receiver<Command>) {
        let (mut next_tick, mut next_look, mut next_retry) =
            (Instant::now() + TICK, Instant::now() + LOOK, Instant::now() + RETRY_FILES);
        loop {
            match commands.recv_timeout(next_tick.saturating_duration_since(Instant::now())) {
                Ok(Command::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(command) => self.command(command),
                Err(RecvTimeoutError::Timeout) => {}
            }
            let now = Instant::now();
            if now < next_tick {
                continue;
            }
            if now >= next_look {
                next_look = now + LOOK;
                self.look_at_files(false);
                self.keep_saved();
                self.keep_soft();
            }
            if now >= next_retry {
                next_retry = now + RETRY_FILES;
                self.retry_files();
            }
            self.observe();
            self.repair();
            self.publish();
            // After a place that was waited for in vain, clients that wait for us come first.
            next_tick = Instant::now() + TICK;
        }
    }

    /// What is in force is on disk again where somebody removed it.
    fn keep_saved(&mut self) {
        // What was damaged stays as the last start found it, until something is accepted.
        if self.state.exists()
            || self.contracts == Contracts::default()
            || self.problems.contains_key("state")
        {
            return self.problem("contracts on disk", None);
        }
        let failed = self.state.save(&self.contracts).err();
        if failed.is_none() {
            tracing::error!("the saved contracts were gone from the state folder; saved them again");
        }
        self.problem("contracts on disk", failed.map(|e| format!("the saved contracts are gone: {e}")));
    }

    /// Where the contracts are lost, with no good copy: what the places were last given is wanted still. A file
    /// that names one of them takes it over.
    pub fn recover(&mut self, made: Vec<Vnic>) {
        let Some(damage) = self.problems.get("state").filter(|_| self.lost) else { return };
        let damage = format!("{damage}; the {} vNICs last in force are kept, as the API's", made.len());
        self.problem("state", Some(damage));
        self.contracts.api.vnics =
            made.into_iter().map(|v| Located::without_line(v, "last in force")).collect();
    }

    /// Does one thing, without a thread.
    #[cfg(feature = "fuzzing")]
    pub fn obey(&mut self, command: Command) {
        self.command(command);
    }

    fn command(&mut self, command: Command) {
        // Who no longer waits was told that it did not happen, or does not want to know.
        if command.is_abandoned() {
            return;
        }
        match command {
            Command::Apply { text, origin, owner, prune, adopt, dry_run, reply } => {
                let answer = self.apply(&text, &origin, &owner, prune, adopt, dry_run);
                let _ = reply.send(answer);
            }
            Command::Set { name, keys, reply } => {
                let answer = self.set(&name, &keys);
                let _ = reply.send(answer);
            }
            Command::Remove { name, reply } => {
                let answer = self.remove(&name);
                let _ = reply.send(answer);
            }
            Command::Soft { guest, mac, asked, reply } => {
                let answer = self.set_soft(&guest, mac, asked);
                let _ = reply.send(answer);
            }
            Command::Stop => {}
            Command::Look(looks) => {
                let waiting = looks.begin();
                if waiting.is_empty() {
                    return;
                }
                self.observe();
                self.publish();
                for reply in waiting {
                    let _ = reply.send(());
                }
            }
            Command::Repair => {
                self.failures.values_mut().for_each(repair::Failure::try_at_once);
                self.observe();
                self.repair();
                self.publish();
            }
            Command::Reload => {
                self.look_at_files(true);
                self.retry_files();
                self.publish();
            }
        }
    }
}
