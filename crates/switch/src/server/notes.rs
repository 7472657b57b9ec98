//! Sends subscribers the state that another process needs to continue in this one's place.
//!
//! ```text
//!  port thread: a message comes ─ messages + 1 (odd) ─▶ handled, answered
//!                                                           │
//!  statistics region ◀─ messages + 1 (even) ◀─ notes ─▶ every subscriber
//! ```
//!
//! The port's thread waits [`PATIENCE`] for a subscriber that does not keep up, and not at all the next time.
//! Workers never wait.

use crate::control::notes::{self, Change, Note};
use crate::stats::layout::VnicSlot;
use crate::vhost_user::StateStore;
use crate::vhost_user::saved::{Number, Numbered, SavedConnection};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tidegate_service::scm::{SCM_MAX, too_many_in_flight};

/// Longest wait for a subscriber.
const PATIENCE: Duration = Duration::from_millis(100);

/// The receivers of notes.
#[derive(Default)]
pub struct Subscribers(Mutex<List>);

#[derive(Default)]
struct List {
    all: Vec<Subscriber>,
    last: u64,
}

struct Subscriber {
    number: u64,
    socket: OwnedFd,
    /// The last wait for it timed out.
    slow: bool,
}

impl Subscribers {
    /// Adds a subscriber.
    pub fn add(&self, socket: OwnedFd) {
        let mut list = self.lock();
        list.last += 1;
        let number = list.last;
        list.all.push(Subscriber { number, socket, slow: false });
    }

    /// Sends a note to the newest subscriber.
    pub fn send_to_newest(&self, note: &Note, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.lock().all.last_mut().map_or(Ok(()), |newest| newest.send(note, descriptors))
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscriber {
    fn send(&mut self, note: &Note, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        loop {
            match notes::send(&self.socket, note, descriptors) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && !self.slow => {
                    let timeout = Timespec::try_from(PATIENCE).expect("a short time");
                    let ready = poll(&mut [PollFd::new(&self.socket, PollFlags::OUT)], Some(&timeout));
                    self.slow = ready == Ok(0);
                }
                other => {
                    self.slow &= other.is_err();
                    return other;
                }
            }
        }
    }
}

/// Sends the state of one port's connection to all subscribers.
pub struct PortStateSender {
    vnic: String,
    slot: &'static VnicSlot,
    subscribers: Arc<Subscribers>,
    /// The latest state of the connection.
    last: Option<(SavedConnection, Vec<Numbered>)>,
    /// The descriptors that each subscriber already has.
    sent: HashMap<u64, HashSet<Number>>,
    behind: bool,
}

impl PortStateSender {
    /// Returns the sender for a port that counts in `slot`.
    pub fn new(vnic: &str, slot: &'static VnicSlot, subscribers: Arc<Subscribers>) -> Self {
        // A message that an earlier process did not answer stays unanswered.
        slot.messages.set(slot.messages.get().next_multiple_of(2));
        Self { vnic: vnic.into(), slot, subscribers, last: None, sent: HashMap::new(), behind: false }
    }

    /// Sends all subscribers the state after `messages` messages.
    fn send_to_all(&mut self, messages: u64) {
        self.behind = false;
        let mut list = self.subscribers.lock();
        list.all.retain_mut(|subscriber| {
            let sent = self.sent.entry(subscriber.number).or_default();
            match send_state(subscriber, sent, &self.vnic, self.last.as_ref(), messages) {
                Ok(()) => true,
                // Both pass: the agent reads its socket, or other processes receive their descriptors.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock || too_many_in_flight(&e) => {
                    if !std::mem::replace(&mut self.behind, true) {
                        let obstacle = if too_many_in_flight(&e) {
                            "too many descriptors are in flight to send the agent"
                        } else {
                            "the agent is slow to receive"
                        };
                        tracing::warn!(
                            vnic = self.vnic,
                            "{obstacle} the state of this connection, which a restart of the switch needs"
                        );
                    }
                    true
                }
                Err(e) => {
                    // Gone, as an agent may be. Any other error is our fault, and drops the subscriber, too.
                    if e.kind() != io::ErrorKind::BrokenPipe && e.kind() != io::ErrorKind::ConnectionReset {
                        tracing::error!(vnic = self.vnic, "cannot send the agent the state of this connection, which a restart of the switch \
                         needs: {e}");
                    }
                    false
                }
            }
        });
        self.sent.retain(|number, _| list.all.iter().any(|s| s.number == *number));
    }
}

fn send_state(
    subscriber: &mut Subscriber,
    sent: &mut HashSet<Number>,
    vnic: &str,
    last: Option<&(SavedConnection, Vec<Numbered>)>,
    messages: u64,
) -> io::Result<()> {
    let note = |change| Note { vnic: vnic.into(), change };
    let Some((saved, descriptors)) = last else {
        sent.clear();
        return subscriber.send(&note(Change::Closed), &[]);
    };
    let new: Vec<&Numbered> = descriptors.iter().filter(|d| !sent.contains(&d.number())).collect();
    for part in new.chunks(SCM_MAX) {
        let numbers = part.iter().map(|d| d.number());
        let borrowed: Vec<_> = part.iter().map(|d| d.as_fd()).collect();
        subscriber.send(&note(Change::Descriptors(numbers.clone().collect())), &borrowed)?;
        sent.extend(numbers);
    }
    sent.retain(|number| descriptors.iter().any(|d| d.number() == *number));
    subscriber.send(&note(Change::State { messages, saved: Box::new(saved.clone()) }), &[])
}

impl StateStore for PortStateSender {
    fn listening(&mut self) {
        self.slot.messages.set(self.slot.messages.get() | 1);
    }

    fn store_state(&mut self, saved: SavedConnection, descriptors: Vec<Numbered>) {
        self.last = Some((saved, descriptors));
        let messages = self.slot.messages.get().next_multiple_of(2);
        self.send_to_all(messages);
        self.slot.messages.set(messages);
    }

    fn resend(&mut self) {
        self.send_to_all(self.slot.messages.get());
    }

    fn is_behind(&self) -> bool {
        self.behind
    }

    fn end_connection(&mut self) {
        self.last = None;
        // Makes the stored state invalid, whether the note arrives or not.
        self.slot.messages.set(self.slot.messages.get().next_multiple_of(2) + 2);
        self.send_to_all(self.slot.messages.get());
    }
}
