//! One front end: its messages, one after the other.
//!
//! ```text
//!  stream ──▶ [ poll ] ─▶ a whole message ─▶ exchange ─▶ Connection      after each: StateStore
//!  mailbox ──▶    ├─▶ stop, throw out, freeze
//!  entrance ─▶    └─▶ the front end that waits: heard; in its place as soon as the guest has migrated to it
//! ```

use super::StateStore;
use super::config::PortConfig;
use super::connection::Connection;
use super::end::{End, PARTIAL_POLL};
use super::entrance::Entrance;
use super::exchange::exchange;
use super::gate::Gate;
use super::heir::InitialState;
use super::mailbox::{FROZEN, Mailbox, wait};
use super::reply::Rejection;
use super::saved::Numbered;
use super::service::Service;
use super::status::ConnectionStatus;
use super::wire::{self, Glance};
#[cfg(feature = "fuzzing")]
use super::{errands::Errands, notifier::Notifier};
use crate::stats::ThrownOut;
use rustix::event::PollFlags;
use std::io;
use std::os::unix::net::UnixStream;
#[cfg(feature = "fuzzing")]
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A front end with more objects that wait to be closed is not heard.
const CLOSING: usize = 64;

/// Pause before notes that the state store could not send are offered again.
const RESEND_PAUSE: Duration = Duration::from_secs(1);

/// One front end's messages, one after the other.
pub struct Session<'s, 'c> {
    stream: &'s UnixStream,
    connection: &'s mut Connection<'c>,
    state_store: &'s mut dyn StateStore,
    service: &'s Service,
    /// The stream, for the state store.
    duplicate: Numbered,
}

impl<'s, 'c> Session<'s, 'c> {
    /// Begins with a front end without state.
    ///
    /// # Errors
    /// No descriptors available.
    pub fn new(
        stream: &'s UnixStream,
        connection: &'s mut Connection<'c>,
        state_store: &'s mut dyn StateStore,
        service: &'s Service,
    ) -> io::Result<Self> {
        let duplicate = Numbered::free(stream.try_clone()?.into());
        Ok(Self { stream, connection, state_store, service, duplicate })
    }

    /// Continues where another process ended, or with the state of a front end that waited. `false` if the
    /// process before continues itself.
    ///
    /// # Errors
    /// The stored state is not valid.
    pub fn restore(&mut self, state: InitialState, gate: Option<Gate>) -> Result<bool, Rejection> {
        let InitialState { saved, descriptors, charged } = state;
        let restored = self.connection.restore_memory(&saved, &descriptors).and_then(|()| {
            let starting = gate.map(|Gate { mapping, opened }| {
                drop(mapping);
                opened.recv()
            });
            match starting {
                Some(Err(_)) => Ok(false),
                _ => self.connection.restore_queues(&saved, &descriptors).map(|()| true),
            }
        });
        self.service.errands.give_up((descriptors, charged));
        restored
    }

    /// Sends the front end's state to the state store.
    fn store_state(&mut self) {
        let (saved, descriptors) = self.connection.saved_state(&self.duplicate);
        self.state_store.store_state(saved, descriptors);
    }

    /// Obeys it until the connection ends.
    pub fn run(
        mut self,
        config: &PortConfig,
        entrance: &mut Entrance,
        mailbox: &Mailbox,
        status: &ConnectionStatus,
    ) -> End {
        self.store_state();
        // Beginning of an incomplete message.
        let mut partial: Option<Instant> = None;
        loop {
            if entrance.heir_wants_port() && self.connection.has_migrated() {
                return End::Migrated;
            }
            let overloaded = self.service.errands.closing() > CLOSING;
            let events = match partial {
                None if !overloaded => PollFlags::IN,
                _ => PollFlags::empty(),
            };
            let now = Instant::now();
            let pause = match partial.is_some() || overloaded {
                true => Some(PARTIAL_POLL),
                false => self.state_store.is_behind().then_some(RESEND_PAUSE),
            };
            let is_busy = entrance.is_busy();
            let pause = pause.into_iter().chain(entrance.pause(now).filter(|_| !is_busy)).min();
            let others = entrance.listener(now).filter(|_| !is_busy);
            let streams = [Some((self.stream, events)), entrance.poll_target(is_busy)];
            let [hung_up, heir_hung_up] = wait(mailbox, streams, others, pause);

            let mail = mailbox.take();
            if mail.stop {
                return End::Stopped;
            }
            if let Some((kind, reason)) = mail.throw_out {
                return End::ThrownOut(Rejection { kind, reason });
            }
            if mail.resend_state || self.state_store.is_behind() {
                self.state_store.resend();
            }
            if let Some((worker, done)) = mail.move_to {
                let outcome = match &mail.frozen {
                    Some(_) => Err(FROZEN.into()),
                    None => self.connection.move_to(worker),
                };
                let _ = done.try_send(outcome);
            }
            if let Some(frozen) = &mail.frozen {
                mailbox.freeze(frozen);
                continue;
            }
            entrance.serve_waiting(config, status, heir_hung_up);
            if overloaded {
                // A front end that hung up ends here, read to the end or not: otherwise the poll would
                // return at once each time.
                if hung_up {
                    return End::Closed;
                }
                continue;
            }
            if let Some(stream) = mail.stream {
                entrance.turn_away(stream.into(), "another front end is connected", status, now);
            }

            match wire::glance(self.stream) {
                Ok(Glance::Nothing) => partial = None,
                Ok(Glance::Closed) => return End::Closed,
                Ok(Glance::Whole(header)) => {
                    partial = None;
                    self.state_store.listening();
                    if let Err(refused) = exchange(self.stream, self.service, header, self.connection) {
                        return End::ThrownOut(refused);
                    }
                    self.store_state();
                }
                Ok(Glance::Partial) if hung_up => {
                    return End::ThrownOut("closed in the middle of a message".into());
                }
                Ok(Glance::Partial) => {
                    if partial.get_or_insert_with(Instant::now).elapsed() > config.message_timeout {
                        let reason = format!(
                            "stalled in the middle of a message, or of reading its reply, for {:?}",
                            config.message_timeout
                        );
                        return End::ThrownOut(Rejection { kind: ThrownOut::Stalled, reason });
                    }
                }
                Err(reason) => return End::ThrownOut(reason.into()),
            }
        }
    }
}

/// Obeys messages on `stream`, without a thread and without waiting: for fuzzing. `more` sends the next
/// bytes; its `false` ends the connection.
#[cfg(feature = "fuzzing")]
pub fn handle_stream(
    stream: &UnixStream,
    control: &mut (dyn super::PortControl + Send),
    status: &ConnectionStatus,
    queue_pairs: u16,
    mut more: impl FnMut() -> bool,
) {
    let config = PortConfig { errands: Errands::done_at_once(), ..PortConfig::new("fuzzed", queue_pairs) };
    crate::eventfd::prepare();
    let Ok(mailbox) = Mailbox::new() else { return };
    let service = Service::new(&config, &Arc::new(mailbox));
    let notifier = Notifier::new("fuzzed", service.report.clone());
    let mut connection = Connection::new(control, status, &service, &notifier, queue_pairs);
    let mut state_store = super::NoStateStore;
    let mut wrong = None;
    if let Ok(session) = Session::new(stream, &mut connection, &mut state_store, &service) {
        while wrong.is_none() && more() {
            wrong = loop {
                match wire::glance(stream) {
                    Ok(Glance::Whole(header)) => {
                        if let Err(refused) = exchange(stream, &service, header, session.connection) {
                            break Some(refused.reason);
                        }
                    }
                    Ok(_) => break None,
                    Err(reason) => break Some(reason),
                }
            };
        }
    }
    connection.close(wrong.as_deref().unwrap_or_default(), wrong.is_some());
}
