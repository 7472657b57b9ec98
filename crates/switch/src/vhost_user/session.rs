//! One front end: its messages, one after the other.
//!
//! ```text
//!  stream ─▶ [ poll ] ─▶ a look at the message: whole? supported? ─▶ vhost's handler ─▶ Connection
//!  mailbox ─▶    │                                             └─ what it does not know: here
//!                └─▶ stop, throw out, freeze                     after each: whoever keeps it is told
//! ```

use super::connection::{Connection, NOT_SHARED};
use super::kept::Numbered;
use super::listener::{ACCEPT_PAUSE, Gate, PortConfig, Restored, lock, turn_away};
use super::mailbox::{Mailbox, wait};
use super::status::ConnectionStatus;
use super::wire::{self, Glance, Header};
use super::{Keeper, replay};
use crate::log_limit::LogLimit;
use crate::stats::ThrownOut;
use crate::virtio::sigbus;
use rustix::event::PollFlags;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tidegate_contract::Mac;
use vhost::vhost_user::message::FrontendReq;
use vhost::vhost_user::{BackendReqHandler, Error};

/// How often a message that has begun is looked for again.
const PARTIAL_POLL: Duration = Duration::from_millis(5);

/// How often what could not be passed on to whoever keeps it is tried again.
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
    handler: BackendReqHandler<Mutex<Connection<'c>>>,
    keeper: &'s mut dyn Keeper,
    /// The stream, for whoever keeps it.
    duplicate: Numbered,
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
    ) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        let handler = BackendReqHandler::from_stream(stream.try_clone()?, connection.clone());
        let duplicate = Numbered::new(stream.try_clone()?.into());
        Ok(Self { stream, connection, handler, keeper, duplicate })
    }

    /// Goes on where another process ended; `false` where that one goes on itself.
    ///
    /// # Errors
    /// In words: what was kept does not hold.
    pub fn restore(&mut self, restored: Restored) -> Result<bool, String> {
        let Restored { kept, mut descriptors, gate, .. } = restored;
        self.handler = replay::handler(self.stream, &self.connection, &kept)?;
        let words = |error: Error| match error {
            Error::ReqHandlerError(e) => e.to_string(),
            other => other.to_string(),
        };
        lock(&self.connection).restore_memory(&kept, &mut descriptors).map_err(words)?;
        let starting = gate.map(|Gate { mapping, opened }| {
            drop(mapping);
            opened.recv()
        });
        if let Some(Err(_)) = starting {
            return Ok(false);
        }
        lock(&self.connection).restore_queues(&kept, &mut descriptors).map_err(words)?;
        Ok(true)
    }

    /// Tells whoever keeps it what the front end has said by now.
    fn keep(&mut self) {
        let (kept, descriptors) = lock(&self.connection).kept(&self.duplicate);
        self.keeper.said(kept, descriptors);
    }

    /// Obeys it until the connection ends.
    pub fn run(
        mut self,
        config: &PortConfig,
        lines: &mut LogLimit,
        listener: Option<&UnixListener>,
        mailbox: &Mailbox,
        status: &ConnectionStatus,
    ) -> End {
        self.keep();
        // Since when the next message is only partly there.
        let mut partial: Option<Instant> = None;
        let mut deaf = false;
        loop {
            let events = match partial {
                None => PollFlags::IN,
                Some(_) => PollFlags::empty(),
            };
            let pause = match (partial, deaf) {
                (Some(_), _) => Some(PARTIAL_POLL),
                (None, true) => Some(ACCEPT_PAUSE),
                (None, false) => self.keeper.is_behind().then_some(KEEP_AGAIN),
            };
            let others = listener.filter(|_| !deaf);
            let hung_up = wait(mailbox, Some((self.stream, events)), others, pause);

            let mail = mailbox.take();
            if mail.stop {
                return End::Stopped;
            }
            if let Some(reason) = mail.throw_out {
                let kind = if reason == sigbus::REASON { ThrownOut::Memory } else { ThrownOut::Ring };
                return End::Wrong(kind, reason);
            }
            if mail.renew || self.keeper.is_behind() {
                self.keeper.renew();
            }
            if let Some(frozen) = &mail.frozen {
                mailbox.freeze(frozen);
                continue;
            }
            let (mut refused, failed) = listener.map_or((0, false), turn_away);
            refused += u64::from(mail.stream.is_some());
            deaf = failed;
            if refused > 0 {
                if let Some(suppressed) = lines.line(Instant::now()) {
                    let port = &config.name;
                    tracing::warn!(port, suppressed, "{refused} front ends refused: one is connected");
                }
                status.update(|now| now.refused += refused);
            }

            match wire::glance(self.stream) {
                Ok(Glance::Nothing) => partial = None,
                Ok(Glance::Closed) => return End::Closed,
                Ok(Glance::Whole(header)) => {
                    partial = None;
                    self.keeper.listening();
                    if let Err(reason) = self.handle(header) {
                        return End::Wrong(ThrownOut::Message, reason);
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

    /// Reads and obeys one message that is there in full.
    fn handle(&mut self, header: Header) -> Result<(), String> {
        let code = header.code;
        if !is_supported(code) {
            return Err(format!("{code:?}: not supported, nor offered"));
        }
        if matches!(code, FrontendReq::SET_MEM_TABLE | FrontendReq::ADD_MEM_REG) && !header.may_have_fds {
            return Err(format!("{code:?} without file descriptors: {NOT_SHARED}"));
        }
        if code == FrontendReq::SEND_RARP {
            return self.announce(header);
        }
        if code == FrontendReq::SET_VRING_ENABLE && !lock(&self.connection).has_features() {
            return self.enable_early(header);
        }
        self.handler.handle_request().map_err(|error| explain(code, error))
    }

    /// QEMU enables queues before SET_FEATURES; the `vhost` crate takes that for
    /// a missing feature.
    fn enable_early(&mut self, header: Header) -> Result<(), String> {
        let payload = self.payload(header)?;
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
    fn announce(&mut self, header: Header) -> Result<(), String> {
        let [a, b, c, d, e, f, ..] = self.payload(header)?;
        let mut connection = lock(&self.connection);
        connection.announce(Mac([a, b, c, d, e, f])).map_err(|error| explain(header.code, error))?;
        let wanted = header.need_reply && connection.acknowledges();
        drop(connection);
        self.acknowledge(header, wanted)
    }

    /// Takes a message of 8 bytes. Descriptors that come with it are closed; whether some did is not
    /// known for sure: a look at one message also sees those of the next.
    fn payload(&mut self, header: Header) -> Result<[u8; 8], String> {
        let mut message = [0; wire::HEADER_LEN + 8];
        if header.size != 8 {
            return Err(explain(header.code, Error::InvalidMessage));
        }
        self.stream.read_exact(&mut message).map_err(|e| format!("socket: {e}"))?;
        Ok(message[wire::HEADER_LEN..].try_into().expect("8 bytes"))
    }

    fn acknowledge(&mut self, header: Header, wanted: bool) -> Result<(), String> {
        if wanted {
            self.stream.write_all(&wire::success(header.code)).map_err(|e| format!("socket: {e}"))?;
        }
        Ok(())
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
    let connection = Arc::new(Mutex::new(Connection::new(control, status, queue_pairs)));
    let mut keeper = super::NoKeeper;
    let Ok(mut session) = Session::new(stream, connection.clone(), &mut keeper) else { return };
    let mut wrong = None;
    while wrong.is_none() && more() {
        wrong = loop {
            match wire::glance(stream) {
                Ok(Glance::Whole(header)) => {
                    if let Err(reason) = session.handle(header) {
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
fn explain(code: FrontendReq, error: Error) -> String {
    match (code, error) {
        // Our own handler's words name the message already.
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
    }
}
