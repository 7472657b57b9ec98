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

mod check;
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

use crate::api::status::StatusView;
use crate::api::types::{Adopt, HostView, PlanView, VnicChange, VnicView};
use crate::api::written::Written;
use crate::durable::{Durable, DurableError};
use crate::guest::limits::SoftLimits;
use crate::paths::Roots;
use crate::place::{Observed, Place};
use crate::store::files::Files;
use crate::store::{Contracts, Owned, Owner};
use files::RefusedFile;
use growth::Growth;
#[cfg(test)]
pub use publish::empty_board;
use publish::nothing;
use rates::Rates;
pub use soft::Unmet;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tidegate_contract::{Admission, Errors, Located, Mac, Rate, Vnic, parse, set_key};
use tidegate_switch::stats::Miss;
use tokio::sync::oneshot;

/// How often places are observed and front ends dialled.
const TICK: Duration = Duration::from_millis(500);
/// How often the configuration folder is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How often a file that was refused is tried again: what stood in its way may be gone.
const RETRY_FILES: Duration = Duration::from_secs(10);

/// What the API asks for.
#[derive(Debug)]
pub enum Command {
    /// Plan or apply a text.
    Apply {
        /// TOML.
        text: String,
        /// Its file name, for messages.
        origin: String,
        /// Whose contracts it has.
        owner: Owner,
        /// Remove the owner's other vNICs.
        prune: bool,
        /// Whether what others made in the way is taken over.
        adopt: Adopt,
        /// Change nothing.
        dry_run: bool,
        /// The answer.
        reply: Reply<PlanView>,
    },
    /// Change single keys.
    Set {
        /// The vNIC.
        name: String,
        /// Keys and values.
        keys: Vec<(String, String)>,
        /// The answer.
        reply: Reply<VnicChange>,
    },
    /// Remove a vNIC.
    Remove {
        /// The vNIC.
        name: String,
        /// The answer.
        reply: Reply<VnicChange>,
    },
    /// A guest asks for another soft limit.
    Soft {
        /// The socket of its port.
        guest: PathBuf,
        /// Of which of its vNICs; all where absent.
        mac: Option<Mac>,
        /// The limit; none of its own where absent.
        asked: Option<Rate>,
        /// The answer.
        reply: oneshot::Sender<Result<(), Unmet>>,
    },
    /// Look at the places now: a client that reads counters wants them as they are.
    Look(Looks),
    /// A place is there again: put right now what differs.
    Repair,
    /// Read the configuration folder now.
    Reload,
    /// End, with what came before finished.
    Stop,
}

impl Command {
    /// Whether its client is gone, and waits for no answer: while a place did not answer, these pile up.
    fn is_abandoned(&self) -> bool {
        match self {
            Self::Apply { reply, .. } => reply.is_closed(),
            Self::Set { reply, .. } | Self::Remove { reply, .. } => reply.is_closed(),
            Self::Soft { reply, .. } => reply.is_closed(),
            // A later client may wait for this look, too.
            Self::Look(_) | Self::Repair | Self::Reload | Self::Stop => false,
        }
    }
}

/// The clients that wait for a look at the places. The queue has one look for all of them.
#[derive(Clone, Debug, Default)]
pub struct Looks(Arc<Mutex<Vec<oneshot::Sender<()>>>>);

impl Looks {
    /// One more waits: it is told when the board shows what was so after this call. True where no client waited before, and
    /// the look has to be asked for.
    pub fn join(&self) -> (oneshot::Receiver<()>, bool) {
        let (reply, seen) = oneshot::channel();
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push(reply);
        (seen, waiting.len() == 1)
    }

    /// Those whom the look that begins now is for, but for those who gave up.
    fn begin(&self) -> Vec<oneshot::Sender<()>> {
        let waiting = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        waiting.into_iter().filter(|reply| !reply.is_closed()).collect()
    }
}

/// Where an answer goes.
pub type Reply<T> = oneshot::Sender<Result<T, ApplyError>>;

/// Why a change was not made. The old state is in force.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The text or a rule between contracts is broken.
    #[error("{0}")]
    Invalid(Errors),
    /// Others name the vNIC that is to go.
    #[error("{0}")]
    Needed(String),
    /// No such vNIC.
    #[error("there is no vNIC {0:?}")]
    NoVnic(String),
    /// Somebody else owns it.
    #[error(transparent)]
    Owned(#[from] Owned),
    /// A place cannot keep it, or it does not fit.
    #[error("{}", .0.join("\n"))]
    Refused(Vec<String>),
    /// A place cannot be reached.
    #[error("{0}")]
    Unreachable(String),
    /// An action failed.
    #[error("{}", .0.join("\n"))]
    Failed(Vec<String>),
    /// It cannot be put on disk.
    #[error("nothing was changed, because it cannot be saved: {0}")]
    NotRecorded(String),
    /// It could not be saved.
    #[error("the change was taken back because it could not be saved: {0}")]
    NotSaved(DurableError),
}

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

    fn apply(
        &mut self,
        text: &str,
        origin: &str,
        owner: &Owner,
        prune: bool,
        adopt: Adopt,
        dry_run: bool,
    ) -> Result<PlanView, ApplyError> {
        let document = parse(text, origin).map_err(ApplyError::Invalid)?;
        // What so many would change is not looked at.
        match check::within("vNICs", document.vnics.len(), check::MOST_VNICS) {
            Some(why) if dry_run => return Ok(PlanView { refusals: vec![why], ..PlanView::default() }),
            Some(why) => return Err(ApplyError::Refused(vec![why])),
            None => {}
        }
        let named: BTreeSet<String> = document.vnics.iter().map(|v| v.value.name.clone()).collect();
        let mut wanted = self.contracts.clone();
        let file = Path::new(origin);
        let merged = if dry_run && *owner == Owner::Api && self.files.reads(file) {
            // Planned is what the file would do: its vNICs are its own.
            wanted.set_file(file, Some(document));
            Ok(())
        } else {
            wanted.merge(owner, document, prune).map_err(ApplyError::from)
        };
        let mut vnics = diff::vnics(&self.contracts, &wanted, &named);
        let host = diff::host(&self.contracts, &wanted);
        let mut hints = Vec::new();
        let outcome = merged.and_then(|()| {
            if dry_run { self.dry_run(&wanted, adopt, &mut hints) } else { self.enact(wanted, adopt) }
        });
        // What is promised and in force is told as it is after the change.
        if !dry_run && outcome.is_ok() {
            self.changed();
        }
        let (admission, refusals) = match outcome {
            Ok(checked) => {
                for (vnic, notes) in checked.notes.iter().filter(|(name, _)| named.contains(*name)) {
                    hints.extend(notes.iter().map(|n| format!("{vnic}: {n}")));
                }
                (self.admission_view(&checked.admission), vec![])
            }
            Err(e) if !dry_run => return Err(e),
            Err(ApplyError::Refused(why) | ApplyError::Failed(why)) => (Default::default(), why),
            Err(ApplyError::Invalid(Errors(errors))) => {
                (Default::default(), errors.iter().map(ToString::to_string).collect())
            }
            Err(e) => (Default::default(), vec![e.to_string()]),
        };
        self.add_what_is_not_in_force(&mut vnics, dry_run);
        Ok(PlanView {
            applied: !dry_run,
            admissible: refusals.is_empty(),
            refusals,
            vnics,
            host,
            admission,
            notes: hints,
        })
    }

    fn set(&mut self, name: &str, keys: &[(String, String)]) -> Result<VnicChange, ApplyError> {
        let old = self.contracts.vnic(name).ok_or_else(|| self.none_of(name))?;
        let new = set_key(old, keys).map_err(ApplyError::Invalid)?;
        self.change(name, |wanted| wanted.set(&Owner::Api, Located::without_line(new, "API")))
    }

    fn remove(&mut self, name: &str) -> Result<VnicChange, ApplyError> {
        self.contracts.vnic(name).ok_or_else(|| self.none_of(name))?;
        let needed = self.needed(name);
        let removed = self.change(name, |wanted| wanted.remove_api(name).map(drop));
        removed.map_err(|error| match (error, needed) {
            // The rule that it breaks says where, and not what to do.
            (ApplyError::Invalid(_), Some(needed)) => ApplyError::Needed(needed),
            (error, _) => error,
        })
    }

    /// The vNICs that name `name` in their `to`, and what to do before it can go; `None` where none does.
    fn needed(&self, name: &str) -> Option<String> {
        let naming = self.contracts.vnics().filter(|(_, v)| v.value.to.iter().any(|to| to == name));
        let mut others: Vec<String> = naming
            .filter(|(_, v)| v.value.name != name)
            .map(|(owner, v)| match owner {
                Owner::File(_) => format!("{} ({})", v.value.name, v.place()),
                _ => v.value.name.clone(),
            })
            .collect();
        others.sort();
        match &others[..] {
            [] => None,
            [one] => Some(format!(
                "{one} names {name} in its \"to\": remove {one} first, or take {name} out of it"
            )),
            several => Some(format!(
                "{} name {name} in their \"to\": remove them first, or take {name} out of it",
                several.join(", ")
            )),
        }
    }

    /// There is no contract of that name; a refused file may name it.
    fn none_of(&self, name: &str) -> ApplyError {
        match self.refused_vnics().remove(name) {
            Some((by, _)) => {
                Owned { what: format!("vNIC {name}"), owner: Owner::File(by.file.into()) }.into()
            }
            None => ApplyError::NoVnic(name.into()),
        }
    }

    fn change(
        &mut self,
        name: &str,
        change: impl FnOnce(&mut Contracts) -> Result<(), Owned>,
    ) -> Result<VnicChange, ApplyError> {
        let mut wanted = self.contracts.clone();
        change(&mut wanted)?;
        let mut changes = diff::vnics(&self.contracts, &wanted, &[name.to_owned()].into());
        self.enact(wanted, Adopt::No)?;
        self.changed();
        self.add_what_is_not_in_force(&mut changes, false);
        changes.into_iter().next().ok_or_else(|| ApplyError::NoVnic(name.into()))
    }

    /// After a change: a file that was refused may fit now, and readers see the change at once.
    fn changed(&mut self) {
        self.problem("state", None);
        self.retry_files();
        self.observe();
        self.publish();
    }
}
