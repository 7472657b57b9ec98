//! One front end: its messages, one after the other.
//!
//! ```text
//!  stream ──▶ [ poll ] ─▶ a whole message ─▶ exchange ─▶ Connection      after each: the keeper is told
//!  mailbox ──▶    ├─▶ stop, throw out, freeze
//!  entrance ─▶    └─▶ the front end that waits: heard; in its place as soon as the guest has migrated to it
//! ```

use super::Keeper;
use super::connection::{Connection, Rejection};
pub use super::end::{End, PARTIAL_POLL};
use super::entrance::Entrance;
use super::exchange::exchange;
use super::heir::Beginning;
use super::listener::{Gate, PortConfig};
use super::mailbox::{FROZEN, Mailbox, wait};
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

/// Pause before notes that the keeper could not take are offered again.
const KEEP_AGAIN: Duration = Duration::from_secs(1);

/// One front end's messages, one after the other.
pub struct Session<'s, 'c> {
    stream: &'s UnixStream,
    connection: &'s mut Connection<'c>,
    keeper: &'s mut dyn Keeper,
    service: &'s Service,
    /// The stream, for the keeper.
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
        keeper: &'s mut dyn Keeper,
        service: &'s Service,
    ) -> io::Result<Self> {
        let duplicate = Numbered::free(stream.try_clone()?.into());
        Ok(Self { stream, connection, keeper, service, duplicate })
    }

    /// Continues where another process ended, or with the state of a front end that waited. `false` if the
    /// process before continues itself.
    ///
    /// # Errors
    /// The stored state is not valid.
    pub fn restore(&mut self, beginning: Beginning, gate: Option<Gate>) -> Result<bool, Rejection> {
        let Beginning { kept, descriptors, charged } = beginning;
        let restored = self.connection.restore_memory(&kept, &descriptors).and_then(|()| {
            let starting = gate.map(|Gate { mapping, opened }| {
                drop(mapping);
                opened.recv()
            });
            match starting {
                Some(Err(_)) => Ok(false),
                _ => self.connection.restore_queues(&kept, &descriptors).map(|()| true),
            }
        });
        self.service.errands.give_up((descriptors, charged));
        restored
    }

    /// Sends the front end's state to the keeper.
    fn keep(&mut self) {
        let (kept, descriptors) = self.connection.kept(&self.duplicate);
        self.keeper.said(kept, descriptors);
    }

    /// Obeys it until the connection ends.
    pub fn run(
        mut self,
        config: &PortConfig,
        entrance: &mut Entrance,
        mailbox: &Mailbox,
        status: &ConnectionStatus,
    ) -> End {
        self.keep();
        // Beginning of an incomplete message.
        let mut partial: Option<Instant> = None;
        loop {
            if entrance.heir_wants() && self.connection.has_migrated() {
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
                false => self.keeper.is_behind().then_some(KEEP_AGAIN),
            };
            let is_busy = entrance.is_busy();
            let pause = pause.into_iter().chain(entrance.pause(now).filter(|_| !is_busy)).min();
            let others = entrance.listener(now).filter(|_| !is_busy);
            let streams = [Some((self.stream, events)), entrance.watched(is_busy)];
            let [hung_up, heir_hung_up] = wait(mailbox, streams, others, pause);

            let mail = mailbox.take();
            if mail.stop {
                return End::Stopped;
            }
            if let Some((kind, reason)) = mail.throw_out {
                return End::Wrong(Rejection { kind, reason });
            }
            if mail.renew || self.keeper.is_behind() {
                self.keeper.renew();
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
            entrance.attend(config, status, heir_hung_up);
            if overloaded {
                // A front end that hung up ends here, read to the end or not: otherwise the poll would
                // return at once each time.
                if hung_up {
                    return End::Closed;
                }
                continue;
            }
            if let Some(stream) = mail.stream {
                entrance.turn_away(stream.into(), "one is connected", status, now);
            }

            match wire::glance(self.stream) {
                Ok(Glance::Nothing) => partial = None,
                Ok(Glance::Closed) => return End::Closed,
                Ok(Glance::Whole(header)) => {
                    partial = None;
                    self.keeper.listening();
                    if let Err(refused) = exchange(self.stream, self.service, header, self.connection) {
                        return End::Wrong(refused);
                    }
                    self.keep();
                }
                Ok(Glance::Partial) if hung_up => {
                    return End::Wrong("closed in the middle of a message".into());
                }
                Ok(Glance::Partial) => {
                    if partial.get_or_insert_with(Instant::now).elapsed() > config.message_timeout {
                        let reason = format!(
                            "stalled in the middle of a message, or of reading its reply, for {:?}",
                            config.message_timeout
                        );
                        return End::Wrong(Rejection { kind: ThrownOut::Stalled, reason });
                    }
                }
                Err(reason) => return End::Wrong(reason.into()),
            }
        }
    }
}

/// Obeys messages on `stream`, without a thread and without waiting: for fuzzing. `more` sends the next
/// bytes; its `false` ends the connection.
#[cfg(feature = "fuzzing")]
pub fn obey(
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
    let mut keeper = super::NoKeeper;
    let mut wrong = None;
    if let Ok(session) = Session::new(stream, &mut connection, &mut keeper, &service) {
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
