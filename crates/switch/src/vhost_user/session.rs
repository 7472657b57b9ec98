//! One front end: its messages, one after the other.
//!
//! ```text
//!  stream ─▶ [ poll ] ─▶ a look at the message: whole? supported? ─▶ taken ─▶ door ─▶ relay ─▶ Connection
//!  mailbox ─▶    │                                             └─ what the vhost crate does not know: here
//!                └─▶ stop, throw out, freeze                     after each: the keeper is told
//! ```

use super::Keeper;
use super::connection::{Connection, NOT_SHARED};
use super::door;
use super::kept::Numbered;
use super::listener::{ACCEPT_PAUSE, Gate, PortConfig, Restored, lock, turn_away};
use super::mailbox::{Mailbox, wait};
use super::relay::Relay;
use super::service::Service;
use super::status::ConnectionStatus;
use super::wire::{self, Glance, Header, Message};
#[cfg(feature = "fuzzing")]
use super::{errands::Errands, notifier::Notifier};
use crate::stats::ThrownOut;
use rustix::event::PollFlags;
use std::io::{self, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tidegate_contract::Mac;
use vhost::vhost_user::Error;
use vhost::vhost_user::message::FrontendReq;

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
    Wrong(ThrownOut, String),
    /// The process that served it before goes on.
    NotOurs,
}

/// One front end's messages, one after the other.
pub struct Session<'s, 'c> {
    stream: &'s UnixStream,
    connection: Arc<Mutex<Connection<'c>>>,
    relay: Relay<'c>,
    keeper: &'s mut dyn Keeper,
    service: &'s Service,
    /// The stream, for the keeper.
    duplicate: Numbered,
}

/// What is wrong with a message, and as what it is counted.
type Refused = (ThrownOut, String);

fn wrong(reason: impl Into<String>) -> Refused {
    (ThrownOut::Message, reason.into())
}

impl<'s, 'c> Session<'s, 'c> {
    /// A front end that has said nothing yet.
    ///
    /// # Errors
    /// No descriptors to be had.
    pub fn new(
        stream: &'s UnixStream,
        connection: Arc<Mutex<Connection<'c>>>,
        keeper: &'s mut dyn Keeper,
        service: &'s Service,
    ) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        let relay = Relay::new(connection.clone())?;
        let duplicate = Numbered::free(stream.try_clone()?.into());
        Ok(Self { stream, connection, relay, keeper, service, duplicate })
    }

    /// Goes on where another process ended; `false` where that one goes on itself.
    ///
    /// # Errors
    /// In words: what was kept does not hold.
    pub fn restore(&mut self, restored: Restored) -> Result<bool, String> {
        let Restored { kept, mut descriptors, gate, .. } = restored;
        let words = |error: Error| match error {
            Error::ReqHandlerError(e) => e.to_string(),
            other => other.to_string(),
        };
        self.relay.say_features(&kept).map_err(words)?;
        let restored = lock(&self.connection).restore_memory(&kept, &mut descriptors);
        if let Err(error) = restored {
            self.service.errands.give_up(descriptors);
            return Err(words(error));
        }
        let starting = gate.map(|Gate { mapping, opened }| {
            drop(mapping);
            opened.recv()
        });
        if let Some(Err(_)) = starting {
            return Ok(false);
        }
        let restored = lock(&self.connection).restore_queues(&kept, &mut descriptors);
        self.service.errands.give_up(descriptors);
        restored.map_err(words).map(|()| true)
    }

    /// Tells the keeper what the front end has said by now.
    fn keep(&mut self) {
        let (kept, descriptors) = lock(&self.connection).kept(&self.duplicate);
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
                return End::Wrong(kind, reason);
            }
            if mail.renew || self.keeper.is_behind() {
                self.keeper.renew();
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
                    if let Err((kind, reason)) = self.handle(header) {
                        return End::Wrong(kind, reason);
                    }
                    self.keep();
                }
                Ok(Glance::Partial) if hung_up => {
                    return End::Wrong(ThrownOut::Message, "closed in the middle of a message".into());
                }
                Ok(Glance::Partial) => {
                    if partial.get_or_insert_with(Instant::now).elapsed() > config.message_timeout {
                        let reason = format!(
                            "stalled in the middle of a message, or of reading its reply, for {:?}",
                            config.message_timeout
                        );
                        return End::Wrong(ThrownOut::Stalled, reason);
                    }
                }
                Err(reason) => return End::Wrong(ThrownOut::Message, reason),
            }
        }
    }

    /// Takes and obeys one message that is there in full.
    fn handle(&mut self, header: Header) -> Result<(), Refused> {
        let (message, taken) = wire::take(self.stream, header);
        let obeyed = taken.map_err(wrong).and_then(|()| self.obey(header, &message));
        let Message { descriptors, strays, .. } = message;
        // Each by itself: so they are counted by what waits to be closed. Until then there are fewer for others.
        for descriptor in descriptors.into_iter().chain(strays) {
            let charge = self.service.account.received(1);
            self.service.errands.give_up((descriptor, charge));
        }
        obeyed
    }

    fn obey(&mut self, header: Header, message: &Message) -> Result<(), Refused> {
        let code = header.code;
        if !is_supported(code) {
            return Err(wrong(format!("{code:?}: not supported, nor offered")));
        }
        if matches!(code, FrontendReq::SET_MEM_TABLE | FrontendReq::ADD_MEM_REG)
            && message.descriptors.is_empty()
        {
            return Err(wrong(format!("{code:?} without file descriptors: {NOT_SHARED}")));
        }
        door::look(code, message, &self.service.errands).map_err(wrong)?;
        if code == FrontendReq::SEND_RARP {
            return self.announce(header, message);
        }
        if code == FrontendReq::SET_VRING_ENABLE && !lock(&self.connection).has_features() {
            return self.enable_early(header, message);
        }
        let (answer, obeyed) = self.relay.obey(&message.bytes, door::needed(code, message));
        // A refusal is answered, too.
        let answered = answer.send(self.stream).map_err(|e| wrong(format!("socket: {e}")));
        obeyed.map_err(|error| explain(code, error)).and(answered)
    }

    /// QEMU enables queues before SET_FEATURES; the `vhost` crate takes that for
    /// a missing feature.
    fn enable_early(&mut self, header: Header, message: &Message) -> Result<(), Refused> {
        let payload = payload(header, message)?;
        let word = |at: usize| u32::from_ne_bytes(payload[at..at + 4].try_into().expect("4 bytes"));
        let (index, enable) = (word(0), word(4));
        if enable > 1 {
            return Err(explain(header.code, Error::InvalidParam));
        }
        let mut connection = lock(&self.connection);
        connection.enable(index, enable == 1).map_err(|error| explain(header.code, error))?;
        let wanted = header.need_reply && connection.acknowledges();
        drop(connection);
        self.acknowledge(header, wanted)
    }

    /// SEND_RARP, which the `vhost` crate does not know. The address is the first 6 bytes.
    fn announce(&mut self, header: Header, message: &Message) -> Result<(), Refused> {
        let [a, b, c, d, e, f, ..] = payload(header, message)?;
        let mut connection = lock(&self.connection);
        connection.announce(Mac([a, b, c, d, e, f])).map_err(|error| explain(header.code, error))?;
        let wanted = header.need_reply && connection.acknowledges();
        drop(connection);
        self.acknowledge(header, wanted)
    }

    fn acknowledge(&mut self, header: Header, wanted: bool) -> Result<(), Refused> {
        if wanted {
            let mut stream = self.stream;
            stream.write_all(&wire::success(header.code)).map_err(|e| wrong(format!("socket: {e}")))?;
        }
        Ok(())
    }
}

/// A payload of 8 bytes.
fn payload(header: Header, message: &Message) -> Result<[u8; 8], Refused> {
    let payload = message.bytes[wire::HEADER_LEN..].try_into();
    payload.map_err(|_| explain(header.code, Error::InvalidMessage))
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
    let connection = Connection::new(control, status, &service, &notifier, queue_pairs);
    let connection = Arc::new(Mutex::new(connection));
    let mut keeper = super::NoKeeper;
    let Ok(mut session) = Session::new(stream, connection.clone(), &mut keeper, &service) else {
        return;
    };
    let mut wrong = None;
    while wrong.is_none() && more() {
        wrong = loop {
            match wire::glance(stream) {
                Ok(Glance::Whole(header)) => {
                    if let Err((_, reason)) = session.handle(header) {
                        break Some(reason);
                    }
                }
                Ok(_) => break None,
                Err(reason) => break Some(reason),
            }
        };
    }
    lock(&connection).close(wrong.as_deref().unwrap_or_default(), wrong.is_some());
}

/// The messages that our features allow; the `vhost` crate answers some others too.
fn is_supported(code: FrontendReq) -> bool {
    use FrontendReq as Req;
    matches!(
        code,
        Req::GET_FEATURES
            | Req::SET_FEATURES
            | Req::SET_OWNER
            | Req::RESET_OWNER
            | Req::SET_MEM_TABLE
            | Req::SET_VRING_NUM
            | Req::SET_VRING_ADDR
            | Req::SET_VRING_BASE
            | Req::GET_VRING_BASE
            | Req::SET_VRING_KICK
            | Req::SET_VRING_CALL
            | Req::SET_VRING_ERR
            | Req::GET_PROTOCOL_FEATURES
            | Req::SET_PROTOCOL_FEATURES
            | Req::GET_QUEUE_NUM
            | Req::SET_VRING_ENABLE
            | Req::GET_MAX_MEM_SLOTS
            | Req::ADD_MEM_REG
            | Req::REM_MEM_REG
            | Req::GET_INFLIGHT_FD
            | Req::SET_INFLIGHT_FD
            | Req::SET_LOG_BASE
            | Req::SEND_RARP
    )
}

/// The reason in words: what was sent, what is wrong with it.
fn explain(code: FrontendReq, error: Error) -> Refused {
    let reason = match (code, error) {
        // Our own handler's words name the message already.
        (_, Error::ReqHandlerError(e)) if e.kind() == io::ErrorKind::QuotaExceeded => {
            return (ThrownOut::Quota, e.to_string());
        }
        (_, Error::ReqHandlerError(e)) => e.to_string(),
        (FrontendReq::SET_MEM_TABLE, Error::InvalidMessage) => format!(
            "SET_MEM_TABLE: no regions, or not one file descriptor for each. If there are none: {NOT_SHARED}"
        ),
        (FrontendReq::ADD_MEM_REG, Error::InvalidMessage | Error::InvalidParam) => {
            format!("ADD_MEM_REG: malformed, or not one file descriptor. If there is none: {NOT_SHARED}")
        }
        (FrontendReq::SET_VRING_ADDR, Error::InvalidMessage) => {
            "SET_VRING_ADDR: malformed, or a ring that is not aligned (descriptor table 16, \
             available ring 2, used ring 4 bytes)"
                .into()
        }
        (code, Error::InvalidMessage) => {
            format!("{code:?}: wrong size, values or file descriptors")
        }
        (code, Error::InactiveFeature(_)) => {
            format!("{code:?}: PROTOCOL_FEATURES was not negotiated")
        }
        (code, Error::InactiveOperation(feature)) => {
            format!("{code:?}: protocol feature {feature:?} was not negotiated")
        }
        (code, error) => format!("{code:?}: {error}"),
    };
    wrong(reason)
}
