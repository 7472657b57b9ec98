//! Duplicates of everything the running switch has, for the switch after it.
//!
//! ```text
//!  switch ── notes, descriptors ──▶ thread ─▶ Table: vNIC ─▶ connection, listener, tap
//!                                     └─ the end: the switch is gone ─▶ Watch
//! ```
//!
//! What front ends wrote to their doorbells meanwhile is in the event counters, and
//! their connections are open: they do not notice.

use super::watch::Watch;
use rustix::net::{Shutdown, shutdown};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use tidegate_service::foreign::{self, Budget, Foreign};
use tidegate_switch::control::handover::{Connected, Handover};
use tidegate_switch::control::notes::{Note, Notes};
use tidegate_switch::control::{Client, SwitchError};
use tidegate_switch::stats::Reader;

/// How long the notes of a switch that is gone take to be read at most.
const PATIENCE: Duration = Duration::from_secs(1);
/// Notes that are read as they come: all ports may speak at once.
const AT_ONCE: u32 = 50_000;
/// After those, one in this time.
const PAUSE: Duration = Duration::from_micros(200);
/// How often it is looked whether descriptors were closed, where there are too many.
const LOOK: Duration = Duration::from_millis(100);

/// What one switch has told.
#[derive(Debug, Default)]
struct Table {
    told: Handover,
    /// The thread has ended, and the switch with it.
    over: bool,
    /// The agent does not want it any more.
    abandoned: bool,
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
    /// Ends with this, whether the switch has ended or not.
    _conversation: Conversation,
}

/// What the switch tells, as long as it is wanted.
struct Conversation(Option<OwnedFd>);

impl Drop for Conversation {
    fn drop(&mut self) {
        if let Some(socket) = self.0.take() {
            let _ = shutdown(&socket, Shutdown::Both);
            // The descriptors in its queue may take long to close.
            foreign::close(socket);
        }
    }
}

impl FdStore {
    /// Begins to keep what the switch of `client` has, as many descriptors as `budget` allows; when it is gone the next
    /// one is looked for.
    pub fn start(client: &mut Client, watch: &Arc<Watch>, budget: &Arc<Budget>) -> Result<Self, SwitchError> {
        let (_, reader, statistics) = client.hello()?;
        let notes = client.keep()?;
        let shared = Arc::new(Shared::default());
        let conversation = Conversation(notes.socket().ok());
        let (watch, budget) = (Arc::downgrade(watch), Arc::clone(budget));
        let thread = Thread { shared: shared.clone(), notes, watch, budget, is_short: false };
        if let Err(error) = std::thread::Builder::new().name("fdstore".into()).spawn(move || thread.run()) {
            tracing::error!(%error, "no thread to keep connections: a crash of the switch will cost them");
            shared.lock().over = true;
        }
        Ok(Self { shared, statistics: (reader, statistics), _conversation: conversation })
    }

    /// Whether the switch is gone.
    pub fn is_over(&self) -> bool {
        self.shared.lock().over
    }

    /// Whether the switch said anything of a vNIC's connection.
    pub fn knows(&self, vnic: &str) -> bool {
        self.shared.lock().told.connections.contains_key(vnic)
    }

    /// A tap or a listening socket of a vNIC, given away.
    pub fn take_link(&self, vnic: &str) -> Option<Vec<Foreign>> {
        self.shared.lock().told.links.remove(vnic)
    }

    /// Ends with the switch: what it told last becomes part of `predecessor`. Waits for its last notes until `end` at most.
    pub fn pass_on(self, predecessor: &mut PredecessorState, end: Instant) {
        let end = end.min(Instant::now() + PATIENCE);
        let mut table = self.shared.lock();
        while !table.over {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                // Two processes on the same rings would be worse than front ends that connect again.
                tracing::error!("the switch before this one has not ended: its connections are left to it");
                // Its thread may be long in ending, and what it has told would count until then.
                (table.told, table.abandoned) = (Handover::default(), true);
                predecessor.connections.clear();
                predecessor.statistics = None;
                return;
            }
            table = self.shared.ended.wait_timeout(table, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let (reader, statistics) = self.statistics;
        for (vnic, connection) in std::mem::take(&mut table.told.connections) {
            match connection {
                Some(connection) => drop(predecessor.connections.insert(vnic, connection)),
                None => drop(predecessor.connections.remove(&vnic)),
            }
        }
        predecessor.links.append(&mut table.told.links);
        // A switch that was killed before it had a port knows nothing of that port: what the switch before it had holds.
        predecessor.connections.retain(|vnic, connection| {
            let true_now = reader.messages(vnic).is_none_or(|messages| messages == connection.messages);
            if !true_now {
                tracing::warn!(
                    vnic,
                    "its front end was being answered, or could not be kept: it has to connect again"
                );
            }
            true_now
        });
        predecessor.statistics = Some(statistics);
    }
}

/// The descriptors of switches that are gone.
#[derive(Debug, Default)]
pub struct PredecessorState {
    /// Connections by vNIC.
    pub connections: BTreeMap<String, Connected>,
    /// Listening sockets and taps by vNIC.
    pub links: BTreeMap<String, Vec<Foreign>>,
    /// The statistics region.
    pub statistics: Option<OwnedFd>,
}

struct Thread {
    shared: Arc<Shared>,
    notes: Notes,
    watch: Weak<Watch>,
    budget: Arc<Budget>,
    /// More descriptors than may be held came, at the last look.
    is_short: bool,
}

impl Thread {
    fn run(mut self) {
        let mut pace = Pace::new(Instant::now());
        loop {
            std::thread::sleep(pace.wait(Instant::now()));
            let next = self.next();
            let mut table = self.shared.lock();
            if table.abandoned {
                break;
            }
            match next {
                Ok(Some((note, Some(descriptors)))) => {
                    if let Err(nonsense) = table.told.note(note, descriptors) {
                        tracing::error!(%nonsense, "what the switch tells makes no sense");
                    }
                }
                // That it lacks them was said.
                Ok(Some((note, None))) => drop(table.told.note_alone(note)),
                Ok(None) => break,
                Err(error) => {
                    tracing::error!(%error, "what the switch tells cannot be read: its connections are not kept");
                    table.told.connections.clear();
                    break;
                }
            }
        }
        // Closes what is in its queue, which may take long.
        drop(self.notes);
        let mut table = self.shared.lock();
        table.over = true;
        let is_wanted = !table.abandoned;
        drop(table);
        self.shared.ended.notify_all();
        if let Some(watch) = self.watch.upgrade().filter(|_| is_wanted) {
            watch.look();
        }
    }

    /// The next note and its descriptors. While there are too many it is read without them: only such notes, and the end,
    /// say that some are not in use any more.
    fn next(&mut self) -> io::Result<Option<(Note, Option<Vec<Foreign>>)>> {
        while self.budget.is_over() {
            if !std::mem::replace(&mut self.is_short, true) {
                tracing::error!(
                    held = self.budget.held(),
                    "the switch has more descriptors than are kept (LimitNOFILE= of tidegate-agent.service): front ends \
                     whose descriptors are missing have to connect again when it crashes"
                );
            }
            match self.notes.try_next_alone() {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(LOOK),
                next => return Ok(next?.map(|note| (note, None))),
            }
        }
        self.is_short = false;
        let Some((note, descriptors)) = self.notes.next()? else { return Ok(None) };
        let descriptors = descriptors.into_iter().map(|fd| Foreign::new(fd, &self.budget)).collect();
        Ok(Some((note, Some(descriptors))))
    }
}

/// How fast notes are read.
struct Pace {
    /// Most of the notes that may be read at once, and those that were not, each worth a [`PAUSE`].
    saved: Duration,
    at: Instant,
}

impl Pace {
    fn new(now: Instant) -> Self {
        Self { saved: PAUSE * AT_ONCE, at: now }
    }

    /// How long to wait before the next one is read.
    fn wait(&mut self, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.at);
        self.saved = (self.saved + passed).min(PAUSE * AT_ONCE);
        self.at = now;
        match self.saved.checked_sub(PAUSE) {
            Some(rest) => {
                self.saved = rest;
                Duration::ZERO
            }
            None => LOOK,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_without_end_are_read_at_a_pace() {
        let start = Instant::now();
        let (mut pace, mut now, mut read) = (Pace::new(start), start, 0u32);
        while now < start + Duration::from_secs(10) {
            // Each takes 10 us.
            match pace.wait(now) {
                Duration::ZERO => (read, now) = (read + 1, now + Duration::from_micros(10)),
                wait => now += wait,
            }
        }
        assert!((90_000..=101_000).contains(&read), "{read}");
    }
}
