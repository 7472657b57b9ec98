//! Duplicates of the running switch's descriptors, for the next switch.
//!
//! ```text
//!  switch ── notes, descriptors ──▶ thread ─▶ Table: vNIC ─▶ connection, listener, tap
//!                                     └─ the end: the switch is gone ─▶ Watch
//! ```
//!
//! Kicks of front ends stay in the event counters, and connections stay open: front ends do not notice.

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

/// Longest time to read the notes of a gone switch.
const PATIENCE: Duration = Duration::from_secs(1);
/// Notes read without a pause: all ports may send at once.
const AT_ONCE: u32 = 50_000;
/// Pause per note after those.
const PAUSE: Duration = Duration::from_micros(200);
/// Pause between looks at closed descriptors while there are too many.
const LOOK: Duration = Duration::from_millis(100);

/// One switch's notes.
#[derive(Debug, Default)]
struct Table {
    handover: Handover,
    /// The thread and the switch have ended.
    ended: bool,
    /// The agent no longer wants it.
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

/// Stores one switch's notes.
pub struct FdStore {
    shared: Arc<Shared>,
    statistics: (Reader, OwnedFd),
    /// Dropping it ends the conversation, whether the switch has ended or not.
    _conversation: Conversation,
}

/// The switch's notes, while they are wanted.
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
    /// Begins to store the descriptors of the switch of `client`, up to `budget`; when it is gone, the
    /// watch looks for the next one.
    pub fn start(client: &mut Client, watch: &Arc<Watch>, budget: &Arc<Budget>) -> Result<Self, SwitchError> {
        let (_, reader, statistics) = client.hello()?;
        let notes = client.subscribe()?;
        let shared = Arc::new(Shared::default());
        let conversation = Conversation(notes.socket().ok());
        let (watch, budget) = (Arc::downgrade(watch), Arc::clone(budget));
        let thread = Thread { shared: shared.clone(), notes, watch, budget, is_short: false };
        if let Err(error) = std::thread::Builder::new().name("fdstore".into()).spawn(move || thread.run()) {
            tracing::error!(%error, "cannot start the thread that stores connections: a crash of the switch will end \
                them");
            shared.lock().ended = true;
        }
        Ok(Self { shared, statistics: (reader, statistics), _conversation: conversation })
    }

    /// Whether the switch is gone.
    pub fn is_over(&self) -> bool {
        self.shared.lock().ended
    }

    /// Whether the switch sent notes about a vNIC's connection.
    pub fn knows(&self, vnic: &str) -> bool {
        self.shared.lock().handover.connections.contains_key(vnic)
    }

    /// Takes a tap or a listening socket of a vNIC.
    pub fn take_link(&self, vnic: &str) -> Option<Vec<Foreign>> {
        self.shared.lock().handover.links.remove(vnic)
    }

    /// Ends with the switch: its last notes become part of `predecessor`. Waits for them until `end` at
    /// most.
    pub fn pass_on(self, predecessor: &mut PredecessorState, end: Instant) {
        let end = end.min(Instant::now() + PATIENCE);
        let mut table = self.shared.lock();
        while !table.ended {
            let remaining = end.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                // Two processes on the same rings would be worse than reconnecting front ends.
                tracing::error!("the previous switch has not ended: its connections stay with it");
                // Its thread may end late, and its notes would count until then.
                (table.handover, table.abandoned) = (Handover::default(), true);
                predecessor.connections.clear();
                predecessor.statistics = None;
                return;
            }
            table =
                self.shared.ended.wait_timeout(table, remaining).unwrap_or_else(PoisonError::into_inner).0;
        }
        let (reader, statistics) = self.statistics;
        for (vnic, connection) in std::mem::take(&mut table.handover.connections) {
            match connection {
                Some(connection) => drop(predecessor.connections.insert(vnic, connection)),
                None => drop(predecessor.connections.remove(&vnic)),
            }
        }
        predecessor.links.append(&mut table.handover.links);
        // A switch killed before it had a port does not know the port: the older switch's notes hold.
        predecessor.connections.retain(|vnic, connection| {
            let true_now = reader.messages(vnic).is_none_or(|messages| messages == connection.messages);
            if !true_now {
                tracing::warn!(
                    vnic,
                    "the previous switch was answering its front end, or its connection could not be stored: the \
                     front end has to connect again"
                );
            }
            true_now
        });
        predecessor.statistics = Some(statistics);
    }
}

/// The descriptors of gone switches.
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
    /// The last look found more descriptors than may be held.
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
                    if let Err(nonsense) = table.handover.note(note, descriptors) {
                        tracing::error!(%nonsense, "the switch sent a note that makes no sense");
                    }
                }
                // The lack was logged.
                Ok(Some((note, None))) => drop(table.handover.note_without_descriptors(note)),
                Ok(None) => break,
                Err(error) => {
                    tracing::error!(%error, "notes of the switch cannot be read: its connections are not stored");
                    table.handover.connections.clear();
                    break;
                }
            }
        }
        // Closing its queue may take long.
        drop(self.notes);
        let mut table = self.shared.lock();
        table.ended = true;
        let is_wanted = !table.abandoned;
        drop(table);
        self.shared.ended.notify_all();
        if let Some(watch) = self.watch.upgrade().filter(|_| is_wanted) {
            watch.look();
        }
    }

    /// Returns the next note and its descriptors. While there are too many it is read without them: only
    /// such notes, and the end, tell that some are unused.
    fn next(&mut self) -> io::Result<Option<(Note, Option<Vec<Foreign>>)>> {
        while self.budget.is_over() {
            if !std::mem::replace(&mut self.is_short, true) {
                tracing::error!(
                    held = self.budget.in_use(),
                    "the switch has more descriptors than the agent stores (LimitNOFILE= of tidegate-agent.service): \
                     front ends whose descriptors are missing have to connect again when it crashes"
                );
            }
            match self.notes.try_next_without_descriptors() {
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

/// The pace of reading notes.
struct Pace {
    /// Saved pauses, one [`PAUSE`] per unread note, up to those of the notes that may be read at once.
    saved: Duration,
    at: Instant,
}

impl Pace {
    fn new(now: Instant) -> Self {
        Self { saved: PAUSE * AT_ONCE, at: now }
    }

    /// Returns how long to wait before the next one is read.
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
    fn endless_messages_are_read_at_a_limited_pace() {
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
