//! Makes the wanted contracts be in force, and keeps them so.
//!
//! ```text
//!  API ── Command ──▶ ┌───────────────┐ ── check ─▶ plan ─▶ apply ──▶ places ─▶ save
//!  files, each second │  one thread   │      └─ anything fails: roll back, the old state stays in force
//!  places, half second└───────┬───────┘ ◀─ observe: drift is reported and repaired
//!                             └──▶ Published ──▶ Board: API reads, metrics
//! ```
//!
//! One thread, so that a place that hangs delays changes and never a reader.
//!
//! - `change`: changes that the API asks for
//! - `offer`: tables that a place learnt elsewhere
//! - `fitting`: as many items as fit, in few tries
//! - `check`: whether contracts can be in force, before anything is touched
//! - `between`: which promises between hosts cannot be kept
//! - `keys`: reads the keys of segments
//! - `plans`: the plans of all places, and whether they agree
//! - `transaction`: all or nothing
//! - `repair`: the work of each half second
//! - `failure`: when a contract that failed is tried again
//! - `files`: contract files
//! - `refused_file`: a file whose present contents are not in force
//! - `publish`: the state that readers see
//! - `diff`: the changes between two contracts, key by key
//! - `rates`: rates over the last second
//! - `rdma`: which way frames of a vNIC go
//! - `soft`: soft limits that guests ask for
//! - `uplinks`: uplinks, as readers see them
//! - `view`: parts of the published state

mod between;
mod change;
mod check;
mod diff;
mod failure;
mod files;
mod fitting;
mod keys;
mod offer;
mod plans;
mod publish;
mod rates;
mod rdma;
mod refused_file;
mod repair;
mod soft;
mod transaction;
mod uplinks;
pub mod view;

use self::check::Checked;
use self::keys::{KnownKeys, Reading};
use crate::board::growth::Growth;
use crate::board::{Board, Published};
use crate::commands::Command;
use crate::guest::limits::SoftLimits;
use crate::store::Contracts;
use crate::store::files::Files;
use crate::windows::Windows;
use files::RefusedFile;
use rates::Rates;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use tidegate_contract::{Admission, Located, SegmentKeys, Vnic};
use tidegate_durable::{DurableError, StateFile};
use tidegate_paths::Roots;
use tidegate_place::host::Claim;
use tidegate_place::installed::Look;
use tidegate_place::{Installed, KeyRing};

/// How often places are observed and front ends dialled.
const TICK: Duration = Duration::from_millis(500);
/// How often the configuration folder is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How often a file that was refused is tried again: what stood in its way may be gone.
const RETRY_FILES: Duration = Duration::from_secs(10);

/// The last look at a place, or why it does not answer.
type Seen = Result<Look, String>;

pub struct Reconciler {
    places: Vec<Box<dyn Installed>>,
    /// Folders below which contracts may name guests' sockets.
    guests: Roots,
    /// The wanted contracts: in force, or to be.
    contracts: Contracts,
    /// No usable contracts were saved.
    nothing_saved: bool,
    state: StateFile,
    /// Guests' soft limits in force.
    soft: SoftLimits,
    soft_file: StateFile,
    /// The soft limits in that file.
    saved_soft: SoftLimits,
    files: Files,
    refused_files: BTreeMap<PathBuf, RefusedFile>,
    seen: Vec<Seen>,
    admission: Admission,
    /// The keys of segments in force.
    keys: KnownKeys,
    failures: BTreeMap<String, repair::Failure>,
    problems: BTreeMap<&'static str, String>,
    /// Claims on the host by the last repair, each with the index of its place.
    claims: Vec<(usize, Claim)>,
    /// In the order of the places.
    rates: Vec<Rates>,
    windows: Windows,
    reconcile_errors: u64,
    drift_repaired: u64,
    drift: Growth,
    /// In the order of the places.
    loops_over_budget: Vec<Growth>,
    board: Board,
}

impl Reconciler {
    /// Loads the contracts last in force, and touches nothing before [`Reconciler::start`]. New contracts may name
    /// guests' sockets below `guests`.
    ///
    /// # Errors
    /// The state cannot be read, or a newer release wrote it. Damaged state is put aside and reported instead.
    pub fn new(
        config: &Path,
        state: &Path,
        guests: Roots,
        places: Vec<Box<dyn Installed>>,
    ) -> Result<Self, DurableError> {
        let durable = StateFile::new(state.join("contracts.json"));
        let loaded = durable.load::<Contracts>()?;
        let nothing_saved = loaded.value.is_none();
        let contracts = loaded.value.unwrap_or_default();
        let soft_file = StateFile::new(state.join("soft-limits.json"));
        let soft = soft_file.load::<SoftLimits>()?;
        let saved_soft = soft.value.unwrap_or_default();
        let seen = places.iter().map(|_| Err("not asked yet".into())).collect();
        let rates = places.iter().map(|_| Rates::default()).collect();
        let loops_over_budget = places.iter().map(|_| Growth::default()).collect();
        let mut reconciler = Self {
            files: Files::new(config, contracts.files.keys().cloned()),
            guests,
            places,
            soft: saved_soft.of_contracts(&contracts),
            soft_file,
            saved_soft,
            contracts,
            nothing_saved,
            state: durable,
            refused_files: BTreeMap::new(),
            seen,
            admission: Admission::default(),
            keys: KnownKeys::default(),
            failures: BTreeMap::new(),
            problems: BTreeMap::new(),
            claims: vec![],
            rates,
            windows: Windows::default(),
            reconcile_errors: 0,
            drift_repaired: 0,
            drift: Growth::default(),
            loops_over_budget,
            board: Board::new(Published::starting()),
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

    pub fn board(&self) -> Board {
        self.board.clone()
    }

    pub fn windows(&self) -> Windows {
        self.windows.clone()
    }

    /// Sets, or with `None` clears, a problem of the host as a whole; logs each problem once.
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

    /// Looks keys of the network's controller up in `ring`.
    pub fn use_ring(&mut self, ring: KeyRing) {
        self.keys.ring = ring;
    }

    /// Keeps the keys that were read, and reports files that cannot be read.
    fn keep_keys(&mut self, checked: &Checked) {
        self.keys = checked.keys.clone();
        let tables = self.contracts.all::<SegmentKeys>().map(|(_, located)| &located.value);
        self.keys.ring.want(tables.filter(|keys| keys.key_file.is_none()).map(|keys| keys.segment).collect());
        let unread = &checked.unread_keys;
        self.problem("keys of segments", (!unread.is_empty()).then(|| unread.join("; ")));
    }

    /// Brings saved contracts and contract files into force, at the places that answer.
    pub fn start(&mut self) {
        match check::check(&self.contracts, &self.soft, &self.places, (&self.keys, Reading::Unknown)) {
            Ok(checked) => {
                self.keep_keys(&checked);
                self.admission = checked.admission;
            }
            Err(e) => {
                self.problem("saved contracts", Some(format!("the saved contracts cannot be kept: {e}")))
            }
        }
        self.accept_at_places();
        self.look_at_files(true);
        // After the files: a repair from an older observation would make their ports twice.
        self.observe();
        self.repair();
        self.publish();
    }

    /// Carries out commands and the periodic work until `Command::Stop`.
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
                self.restore_saved_file();
                self.save_soft();
            }
            if now >= next_retry {
                next_retry = now + RETRY_FILES;
                self.retry_files();
            }
            self.accept_at_places();
            self.observe();
            self.repair();
            self.publish();
            // Counted from now: after a wait for a place in vain, waiting clients come first.
            next_tick = Instant::now() + TICK;
        }
    }

    /// Saves the contracts in force if their file was removed.
    fn restore_saved_file(&mut self) {
        // A damaged file stays as the last start found it, until a change is accepted.
        if self.state.exists()
            || self.contracts == Contracts::default()
            || self.problems.contains_key("state")
        {
            return self.problem("contracts on disk", None);
        }
        let failed = self.state.save(&self.contracts).err();
        if failed.is_none() {
            tracing::error!(
                "the saved contracts were missing in the state folder; the agent saved them again"
            );
        }
        self.problem(
            "contracts on disk",
            failed.map(|e| {
                format!(
                    "the saved contracts are missing, and cannot be \
                     saved again: {e}"
                )
            }),
        );
    }

    /// Takes the contracts of the places' records, as the API's, if the saved ones are lost without a good copy. A
    /// file that names one of them takes it over.
    pub fn recover(&mut self) {
        let Some(damage) = self.problems.get("state").filter(|_| self.nothing_saved) else { return };
        let recorded: Vec<Vnic> = self.places.iter().flat_map(|place| place.recorded()).collect();
        let damage = format!(
            "{damage}; the {} vNICs last in force stay in force, as contracts of the API",
            recorded.len()
        );
        self.problem("state", Some(damage));
        self.contracts.api.vnics =
            recorded.into_iter().map(|v| Located::without_line(v, "last in force")).collect();
    }

    /// Carries out one command, without a thread.
    #[cfg(feature = "fuzzing")]
    pub fn carry_out(&mut self, command: Command) {
        self.command(command);
    }

    /// Does the work of each half second, without a thread.
    #[cfg(feature = "testing")]
    pub fn tick(&mut self) {
        self.accept_at_places();
        self.observe();
        self.repair();
    }

    /// Looks at the places; returns the actions of the next repair, as text.
    #[cfg(feature = "testing")]
    pub fn planned(&mut self) -> Vec<String> {
        use tidegate_place::Adopt;
        self.accept_at_places();
        self.observe();
        let checked = check::check(&self.contracts, &self.soft, &self.places, (&self.keys, Reading::Unknown))
            .expect("the contracts hold");
        let looks = self.seen.iter().map(|seen| seen.as_ref().expect("the place answers")).enumerate();
        let plans = plans::plans(&self.places, &checked, looks, Adopt::No);
        assert!(plans.by_place.iter().all(|plan| plan.refusals.is_empty()), "nothing is refused");
        plans.by_place.iter().flat_map(|plan| &plan.steps).map(|step| format!("{step:?}")).collect()
    }

    #[cfg(feature = "testing")]
    pub fn has_failures(&self) -> bool {
        !self.failures.is_empty()
    }

    #[cfg(feature = "testing")]
    pub fn has_problem(&self, about: &str) -> bool {
        self.problems.contains_key(about)
    }

    #[cfg(feature = "testing")]
    pub fn contracts(&self) -> &Contracts {
        &self.contracts
    }

    fn command(&mut self, command: Command) {
        // The client was told that the change did not happen, or is gone.
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
            Command::Soft { guest, mac, rate, reply } => {
                let answer = self.set_soft(&guest, mac, rate);
                let _ = reply.send(answer);
            }
            Command::Offer { offer, reply } => {
                let answer = self.offer(*offer);
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
                self.accept_at_places();
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
