//! Duplicates of everything the running switch has, for the switch after it.
//!
//! ```text
//!  switch ── notes, descriptors ──▶ thread ─▶ Table: vNIC ─▶ connection, listener, tap
//!                                     └─ the end: the switch is gone ─▶ Watch
//! ```
//!
//! What front ends wrote to their doorbells meanwhile is in the event counters, and
//! their connections are open: nobody but us notices.

use super::watch::Watch;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use tidegate_switch::control::keep::{Note, Notes, What};
use tidegate_switch::control::{Client, SwitchError};
use tidegate_switch::stats::Reader;
use tidegate_switch::vhost_user::kept::{Descriptors, Kept};

/// How long the notes of a switch that is gone take to be read at most.
const PATIENCE: Duration = Duration::from_secs(1);

/// A front end's connection.
#[derive(Debug)]
pub struct Connected {
    /// What it has said.
    pub kept: Kept,
    /// All descriptors of it.
    pub descriptors: Descriptors,
    /// For how many messages that holds.
    messages: u64,
}

/// What one switch has told.
#[derive(Debug, Default)]
struct Table {
    connections: BTreeMap<String, Option<Connected>>,
    /// Descriptors of connections, before the note that says what they are.
    coming: BTreeMap<String, Descriptors>,
    /// Listening sockets and taps.
    links: BTreeMap<String, Vec<OwnedFd>>,
    over: bool,
}

#[derive(Debug, Default)]
struct Shared {
    table: Mutex<Table>,
    ended: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps what one switch tells.
pub struct FdStore {
    shared: Arc<Shared>,
    statistics: (Reader, OwnedFd),
}

impl FdStore {
    /// Begins to keep what the switch of `client` has; when it is gone the next one is looked for.
    pub fn start(client: &mut Client, watch: &Arc<Watch>) -> Result<Self, SwitchError> {
        let (_, reader, statistics) = client.hello()?;
        let notes = client.keep()?;
        let shared = Arc::new(Shared::default());
        let thread = Thread { shared: shared.clone(), notes, watch: Arc::downgrade(watch) };
        if let Err(error) = std::thread::Builder::new().name("fdstore".into()).spawn(move || thread.run()) {
            tracing::error!(%error, "no thread to keep connections: a crash of the switch will cost them");
            shared.lock().over = true;
        }
        Ok(Self { shared, statistics: (reader, statistics) })
    }

    /// Whether the switch is gone.
    pub fn is_over(&self) -> bool {
        self.shared.lock().over
    }

    /// Whether the switch said anything of a vNIC's connection.
    pub fn knows(&self, vnic: &str) -> bool {
        self.shared.lock().connections.contains_key(vnic)
    }

    /// A tap or a listening socket of a vNIC, given away.
    pub fn take_link(&self, vnic: &str) -> Option<Vec<OwnedFd>> {
        self.shared.lock().links.remove(vnic)
    }

    /// Ends with the switch: what it told last becomes part of `estate`.
    pub fn bequeath(self, estate: &mut Estate) {
        let end = Instant::now() + PATIENCE;
        let mut table = self.shared.lock();
        while !table.over {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                // Two processes on the same rings would be worse than front ends that connect again.
                tracing::error!("the switch before this one has not ended: its connections are left to it");
                estate.connections.clear();
                estate.statistics = None;
                return;
            }
            table = self.shared.ended.wait_timeout(table, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let (reader, statistics) = self.statistics;
        for (vnic, connection) in std::mem::take(&mut table.connections) {
            match connection {
                Some(connection) => drop(estate.connections.insert(vnic, connection)),
                None => drop(estate.connections.remove(&vnic)),
            }
        }
        estate.links.append(&mut table.links);
        // One that was killed before it had a port knows nothing of it: what was said to the one before holds.
        estate.connections.retain(|vnic, connection| {
            let true_now = reader.messages(vnic).is_none_or(|messages| messages == connection.messages);
            if !true_now {
                tracing::warn!(
                    vnic,
                    "its front end was being answered, or could not be kept: it has to connect again"
                );
            }
            true_now
        });
        estate.statistics = Some(statistics);
    }
}

/// What switches that are gone have left.
#[derive(Debug, Default)]
pub struct Estate {
    /// Connections by vNIC.
    pub connections: BTreeMap<String, Connected>,
    /// Listening sockets and taps by vNIC.
    pub links: BTreeMap<String, Vec<OwnedFd>>,
    /// The statistics region.
    pub statistics: Option<OwnedFd>,
}

struct Thread {
    shared: Arc<Shared>,
    notes: Notes,
    watch: Weak<Watch>,
}

impl Thread {
    fn run(mut self) {
        loop {
            match self.notes.next() {
                Ok(Some((note, descriptors))) => self.shared.lock().note(note, descriptors),
                Ok(None) => break,
                Err(error) => {
                    tracing::error!(%error, "what the switch tells cannot be read: its connections are not kept");
                    let mut table = self.shared.lock();
                    table.connections.clear();
                    break;
                }
            }
        }
        drop(self.notes);
        self.shared.lock().over = true;
        self.shared.ended.notify_all();
        if let Some(watch) = self.watch.upgrade() {
            watch.look();
        }
    }
}

impl Table {
    fn note(&mut self, note: Note, descriptors: Vec<OwnedFd>) {
        let vnic = note.vnic;
        match note.what {
            What::Descriptors(numbers) => {
                self.coming.entry(vnic).or_default().extend(numbers.into_iter().zip(descriptors));
            }
            What::Said { messages, kept } => {
                let mut known = self.coming.remove(&vnic).unwrap_or_default();
                if let Some(before) = self.connections.remove(&vnic).flatten() {
                    known.extend(before.descriptors);
                }
                let mut needed = Descriptors::new();
                for number in kept.numbers() {
                    match known.remove(&number) {
                        Some(fd) => drop(needed.insert(number, fd)),
                        None if needed.contains_key(&number) => {}
                        None => {
                            tracing::error!(
                                vnic,
                                number,
                                "a descriptor is missing: its connection is not kept"
                            );
                            self.connections.insert(vnic, None);
                            return;
                        }
                    }
                }
                let connected = Connected { kept: *kept, descriptors: needed, messages };
                self.connections.insert(vnic, Some(connected));
            }
            What::Gone => {
                self.coming.remove(&vnic);
                self.connections.insert(vnic, None);
            }
            What::Listener | What::Tap => drop(self.links.insert(vnic, descriptors)),
        }
    }
}
