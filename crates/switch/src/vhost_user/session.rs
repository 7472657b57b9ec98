//! One front end: its messages, one after the other.
//!
//! ```text
//!  stream ─▶ [ poll ] ─▶ a whole message ─▶ taken ─▶ door ─▶ negotiated? ─▶ Request ─▶ Connection ─▶ reply
//!  mailbox ─▶    │                            └─ what came with it is given up when it is done
//!                └─▶ stop, throw out, freeze      after each: the keeper is told
//! ```

use super::Keeper;
use super::accept::{ACCEPT_PAUSE, turn_away};
use super::connection::{Connection, Refused, Reply};
use super::kept::{Number, Numbered, Passed};
use super::listener::{Gate, PortConfig, Restored};
use super::mailbox::{FROZEN, Mailbox, wait};
use super::service::Service;
use super::status::ConnectionStatus;
use super::wire::{self, Glance, Header, Message};
use super::{door, request};
#[cfg(feature = "fuzzing")]
use super::{errands::Errands, notifier::Notifier};
use crate::stats::ThrownOut;
use rustix::event::PollFlags;
use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a message that has begun is looked for again.
const PARTIAL_POLL: Duration = Duration::from_millis(5);

/// A front end of which more than so many descriptors, memory tables and the like wait to be closed is not listened to.
const CLOSING: usize = 64;

/// How long until what the keeper could not take is offered to it again.
const KEEP_AGAIN: Duration = Duration::from_secs(1);

/// Why a connection ended.
pub enum End {
    /// The owner wants no more.
    Stopped,
    /// The front end left, as it may.
    Closed,
    /// The front end is thrown out for this.
    Wrong(Refused),
    /// The process that served it before goes on.
    NotOurs,
}

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
    /// A front end that has said nothing yet.
    ///
    /// # Errors
    /// No descriptors to be had.
    pub fn new(
        stream: &'s UnixStream,
        connection: &'s mut Connection<'c>,
        keeper: &'s mut dyn Keeper,
        service: &'s Service,
    ) -> io::Result<Self> {
        let duplicate = Numbered::free(stream.try_clone()?.into());
        Ok(Self { stream, connection, keeper, service, duplicate })
    }

    /// Goes on where another process ended; `false` where that one goes on itself.
    ///
    /// # Errors
    /// What was kept does not hold.
    pub fn restore(&mut self, restored: Restored) -> Result<bool, Refused> {
        let Restored { kept, descriptors, gate, .. } = restored;
        let descriptors = descriptors.into_iter().map(|(number, fd)| (number, Arc::new(fd)));
        let descriptors: HashMap<Number, Passed> = descriptors.collect();
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
        self.service.errands.give_up(descriptors);
        restored
    }

    /// Tells the keeper what the front end has said by now.
    fn keep(&mut self) {
        let (kept, descriptors) = self.connection.kept(&self.duplicate);
        self.keeper.said(kept, descriptors);
    }

    /// Obeys it until the connection ends.
    pub fn run(
        mut self,
        config: &PortConfig,
        listener: Option<&UnixListener>,
        mailbox: &Mailbox,
        status: &ConnectionStatus,
    ) -> End {
        self.keep();
        // Since when the next message is only partly there.
        let mut partial: Option<Instant> = None;
        let mut deaf = false;
        loop {
            let overloaded = self.service.errands.closing() > CLOSING;
            let events = match partial {
                None if !overloaded => PollFlags::IN,
                _ => PollFlags::empty(),
            };
            let pause = match (partial, deaf) {
                (Some(_), _) => Some(PARTIAL_POLL),
                _ if overloaded => Some(PARTIAL_POLL),
                (None, true) => Some(ACCEPT_PAUSE),
                (None, false) => self.keeper.is_behind().then_some(KEEP_AGAIN),
            };
            let others = listener.filter(|_| !deaf && !overloaded);
            let hung_up = wait(mailbox, Some((self.stream, events)), others, pause);

            let mail = mailbox.take();
            if mail.stop {
                return End::Stopped;
            }
            if let Some((kind, reason)) = mail.throw_out {
                return End::Wrong(Refused { kind, reason });
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
            if overloaded {
                // One that hung up ends here, heard to the end or not: the poll would return at once each time.
                if hung_up {
                    return End::Closed;
                }
                continue;
            }
            let (mut refused, failed) =
                listener.map_or((0, false), |others| turn_away(others, &self.service.errands));
            if let Some(stream) = mail.stream {
                refused += 1;
                self.service.errands.give_up(wire::Parted(stream.into()));
            }
            deaf = failed;
            if refused > 0 {
                let port = &config.name;
                tracing::warn!(port, "{refused} front ends refused: one is connected");
                status.update(|now| now.refused += refused);
            }

            match wire::glance(self.stream) {
                Ok(Glance::Nothing) => partial = None,
                Ok(Glance::Closed) => return End::Closed,
                Ok(Glance::Whole(header)) => {
                    partial = None;
                    self.keeper.listening();
                    if let Err(refused) = self.handle(header) {
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
                        return End::Wrong(Refused { kind: ThrownOut::Stalled, reason });
                    }
                }
                Err(reason) => return End::Wrong(reason.into()),
            }
        }
    }

    /// Takes and obeys one message that is there in full.
    fn handle(&mut self, header: Header) -> Result<(), Refused> {
        let (message, taken) = wire::take(self.stream, header);
        let done = taken.map_err(Refused::from).and_then(|()| self.answer(header, &message));
        let Message { descriptors, strays, .. } = message;
        // Each by itself: so they are counted by what waits to be closed. Until then there are fewer for others.
        for descriptor in descriptors.into_iter().chain(strays) {
            let charge = self.service.account.received(1);
            self.service.errands.give_up((descriptor, charge));
        }
        done
    }

    /// Obeys a message and replies; to one that is refused, too, where the front end asked for it (REPLY_ACK).
    fn answer(&mut self, header: Header, message: &Message) -> Result<(), Refused> {
        let obeyed = self.obey(header, message);
        let is_acknowledged = header.need_reply && !header.form.is_answered && self.connection.acknowledges();
        let replied = match &obeyed {
            Ok(Some(Reply { payload, descriptor })) => {
                let descriptor = descriptor.as_ref().map(AsFd::as_fd);
                wire::reply(self.stream, header.code, payload, descriptor)
            }
            _ if is_acknowledged => {
                // Zero for success (vhost-user, "VHOST_USER_PROTOCOL_F_REPLY_ACK").
                let failed = u64::from(obeyed.is_err()).to_ne_bytes();
                wire::reply(self.stream, header.code, &failed, None)
            }
            _ => Ok(()),
        };
        obeyed?;
        Ok(replied.map_err(|why| format!("socket: {why}"))?)
    }

    fn obey(&mut self, header: Header, message: &Message) -> Result<Option<Reply>, Refused> {
        door::look(header, message, &self.service.errands)?;
        self.connection.allows(&header)?;
        self.connection.obey(request::decode(header.code, &message.payload, &message.descriptors)?)
    }
}

/// Obeys what comes on `stream`, without a thread and without waiting: for fuzzing. `more` sends
/// what comes next; `false` from it ends the connection.
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
    if let Ok(mut session) = Session::new(stream, &mut connection, &mut keeper, &service) {
        while wrong.is_none() && more() {
            wrong = loop {
                match wire::glance(stream) {
                    Ok(Glance::Whole(header)) => {
                        if let Err(refused) = session.handle(header) {
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
