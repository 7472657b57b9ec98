//! A port's thread: waits for a front end, serves it, waits for the next.
//!
//! ```text
//!            stop, attach ──eventfd──┐
//!  listening socket ──accept──▶ [ poll ] ──▶ one front end at a time, message by message
//!      (or streams dialled           │
//!       by the agent)                └──▶ any other front end: closed, counted
//! ```
//!
//! The thread blocks nowhere but in that poll, so that stopping never waits
//! for a front end, and an idle port costs nothing.

use super::connection::{Connection, NOT_SHARED};
use super::kept::{Descriptors, Kept, Numbered};
use super::replay;
use super::status::{ConnectionStatus, State};
use super::wire::{self, Glance, Header};
use super::{Keeper, NoKeeper, PortControl};
use crate::log_limit::LogLimit;
use crate::stats::ThrownOut;
use crate::virtio::sigbus;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidegate_contract::Mac;
use vhost::vhost_user::message::FrontendReq;
use vhost::vhost_user::{BackendReqHandler, Error};

/// How often a message that has begun is looked for again.
const PARTIAL_POLL: Duration = Duration::from_millis(5);

/// Pause after accept failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How often what could not be passed on to whoever keeps it is tried again.
const KEEP_AGAIN: Duration = Duration::from_secs(1);

/// Where front ends come from.
#[derive(Debug)]
pub enum SocketEnd {
    /// We are the server: a bound, listening Unix socket.
    Listener(OwnedFd),
    /// We are the client: a Unix socket connected to the front end. When it
    /// ends, the state is [`State::Waiting`] until [`PortThread::attach`].
    Stream(OwnedFd),
    /// A front end that has spoken to a process that is gone.
    Restored(Box<Restored>),
}

/// A connection that goes on in this process.
#[derive(Debug)]
pub struct Restored {
    /// Where we are the server.
    pub listener: Option<OwnedFd>,
    /// What the front end has said.
    pub kept: Kept,
    /// The descriptors of it.
    pub descriptors: Descriptors,
    /// Queues start when this is opened by a message, not when it hangs up; at once without. The message
    /// is dropped when they have started.
    pub gate: Option<Receiver<Starting>>,
}

/// Held by a connection whose queues are being started.
pub type Starting = Sender<()>;

/// What a port's thread needs to know about its port.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// The vNIC's name, for logs and the thread.
    pub name: String,
    /// Queue pairs offered, 1 to 128 (a kick message has 8 bits for the queue).
    pub queue_pairs: u16,
    /// How long a message may take from its first byte to its last.
    pub message_timeout: Duration,
}

impl PortConfig {
    /// A port with that name and queue pairs; a message may take 2 s.
    pub fn new(name: impl Into<String>, queue_pairs: u16) -> Self {
        Self { name: name.into(), queue_pairs, message_timeout: Duration::from_secs(2) }
    }
}

/// A front end could not be attached.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("port {0} has a front end already; wait until its state is `waiting`")]
pub struct AttachError(String);

/// What the owner tells the thread.
#[derive(Debug, Default)]
struct Inbox {
    stop: bool,
    /// Throw the front end out for this.
    throw_out: Option<String>,
    stream: Option<OwnedFd>,
    /// Somebody else keeps what the front end says.
    renew: bool,
    /// Read no message until this is taken back; answered when it is obeyed.
    frozen: Option<SyncSender<()>>,
}

/// The thread of one vhost-user port. Stopped on drop.
#[derive(Debug)]
pub struct PortThread {
    name: String,
    mailbox: Arc<Mailbox>,
    status: Arc<ConnectionStatus>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Mailbox {
    inbox: Mutex<Inbox>,
    wake: OwnedFd,
}

impl Mailbox {
    fn post(&self, change: impl FnOnce(&mut Inbox)) {
        change(&mut self.inbox.lock().unwrap_or_else(PoisonError::into_inner));
        // Fails only if the counter is full, and then the thread is awake anyway.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn take(&self) -> Inbox {
        let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        Inbox {
            stop: inbox.stop,
            throw_out: inbox.throw_out.take(),
            stream: inbox.stream.take(),
            renew: std::mem::take(&mut inbox.renew),
            frozen: inbox.frozen.clone(),
        }
    }

    /// Says that the thread is frozen, to whoever asks, and returns when it is not any more.
    fn freeze(&self, frozen: &SyncSender<()>) {
        let _ = frozen.try_send(());
        loop {
            let mut fds = [PollFd::new(&self.wake, PollFlags::IN)];
            let _ = poll(&mut fds, None);
            let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
            let inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
            match &inbox.frozen {
                Some(frozen) if !inbox.stop => drop(frozen.try_send(())),
                _ => {
                    // What came meanwhile is still there.
                    let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
                    return;
                }
            }
        }
    }
}

impl PortThread {
    /// Starts serving `end` and drives `control`.
    ///
    /// # Errors
    /// No thread or descriptor to be had, or `queue_pairs` out of range.
    pub fn spawn(
        config: PortConfig,
        end: SocketEnd,
        control: Box<dyn PortControl + Send>,
        status: Arc<ConnectionStatus>,
    ) -> io::Result<Self> {
        Self::spawn_kept(config, end, control, status, Box::new(NoKeeper))
    }

    /// As [`spawn`](Self::spawn), with somebody who keeps what front ends say.
    ///
    /// # Errors
    /// As there.
    pub fn spawn_kept(
        config: PortConfig,
        end: SocketEnd,
        control: Box<dyn PortControl + Send>,
        status: Arc<ConnectionStatus>,
        keeper: Box<dyn Keeper>,
    ) -> io::Result<Self> {
        if !(1..=128).contains(&config.queue_pairs) {
            return Err(io::Error::new(
                ErrorKind::InvalidInput,
                format!("{} queue pairs, expected 1 to 128", config.queue_pairs),
            ));
        }
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let mailbox = Arc::new(Mailbox { inbox: Mutex::default(), wake });
        let (listener, restored) = match end {
            SocketEnd::Listener(fd) => (Some(fd), None),
            SocketEnd::Stream(fd) => {
                mailbox.post(|inbox| inbox.stream = Some(fd));
                (None, None)
            }
            SocketEnd::Restored(mut restored) => (restored.listener.take(), Some(restored)),
        };
        let listener = listener.map(UnixListener::from);
        if let Some(listener) = &listener {
            listener.set_nonblocking(true)?;
        }
        if restored.is_some() {
            // Whoever asks before the thread runs is not to take the port for a free one.
            status.update(|now| now.state = State::Connected);
        }
        let name = config.name.clone();
        let lines = LogLimit::new(Instant::now());
        let port = Port {
            config,
            listener,
            restored,
            control,
            keeper,
            status: status.clone(),
            mailbox: mailbox.clone(),
            lines,
        };
        let thread = std::thread::Builder::new().name(format!("port {name}")).spawn(move || port.run())?;
        Ok(Self { name, mailbox, status, thread: Some(thread) })
    }

    /// Hands over the next connected stream, in client mode.
    ///
    /// # Errors
    /// A front end is still connected; `stream` is closed.
    pub fn attach(&self, stream: OwnedFd) -> Result<(), AttachError> {
        let refused = || AttachError(self.name.clone());
        if self.status.snapshot().state != State::Waiting {
            return Err(refused());
        }
        let mut taken = false;
        self.mailbox.post(|inbox| {
            taken = inbox.stream.is_some();
            inbox.stream.get_or_insert(stream);
        });
        if taken { Err(refused()) } else { Ok(()) }
    }

    /// Ends the connection, if there is one, for what the front end's rings did.
    pub fn throw_out(&self, reason: String) {
        self.mailbox.post(|inbox| inbox.throw_out = Some(reason));
    }

    /// Somebody else keeps what the front end says, or again.
    pub fn renew(&self) {
        self.mailbox.post(|inbox| inbox.renew = true);
    }

    /// No message is read from when the receiver gets its answer until [`thaw`](Self::thaw).
    pub fn freeze(&self) -> Receiver<()> {
        let (frozen, obeyed) = sync_channel(1);
        self.mailbox.post(|inbox| inbox.frozen = Some(frozen));
        obeyed
    }

    /// Messages are read again.
    pub fn thaw(&self) {
        self.mailbox.post(|inbox| inbox.frozen = None);
    }

    /// Ends the connection, if there is one, and the thread.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.mailbox.post(|inbox| inbox.stop = true);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!(port = self.name, "the port's thread panicked");
        }
    }
}

impl Drop for PortThread {
    fn drop(&mut self) {
        self.end();
    }
}

/// Why a connection ended.
enum End {
    /// The owner wants no more.
    Stopped,
    /// The front end left, as it may.
    Closed,
    /// The front end is thrown out for this.
    Wrong(ThrownOut, String),
    /// The process that served it before goes on.
    NotOurs,
}

/// The thread's own half.
struct Port {
    config: PortConfig,
    listener: Option<UnixListener>,
    restored: Option<Box<Restored>>,
    control: Box<dyn PortControl + Send>,
    keeper: Box<dyn Keeper>,
    status: Arc<ConnectionStatus>,
    mailbox: Arc<Mailbox>,
    lines: LogLimit,
}

impl Port {
    fn run(mut self) {
        if let Some(mut restored) = self.restored.take() {
            match restored.descriptors.remove(&restored.kept.stream) {
                Some(stream) => {
                    if let End::Stopped | End::NotOurs = self.serve(&stream.into(), Some(*restored)) {
                        return;
                    }
                }
                None => self.status.update(|now| {
                    now.state = State::Waiting;
                    now.last_error = Some("a kept connection came without its socket".into());
                }),
            }
        }
        while let Some(stream) = self.next_front_end() {
            if let End::Stopped = self.serve(&stream, None) {
                break;
            }
        }
    }

    /// Waits for a front end; `None` to stop.
    fn next_front_end(&self) -> Option<UnixStream> {
        let mut pause = None;
        loop {
            let listener = self.listener.as_ref().filter(|_| pause.is_none());
            wait(&self.mailbox, None, listener, pause.take());
            let mail = self.mailbox.take();
            if mail.stop {
                return None;
            }
            if let Some(stream) = mail.stream {
                return Some(stream.into());
            }
            if let Some(frozen) = &mail.frozen {
                self.mailbox.freeze(frozen);
                continue;
            }
            match self.listener.as_ref().map(UnixListener::accept) {
                Some(Ok((stream, _))) => return Some(stream),
                Some(Err(e)) if !is_transient(&e) => {
                    tracing::warn!(port = self.config.name, "accept: {e}");
                    pause = Some(ACCEPT_PAUSE);
                }
                Some(Err(_)) | None => {}
            }
        }
    }

    fn serve(&mut self, stream: &UnixStream, restored: Option<Restored>) -> End {
        let port = self.config.name.clone();
        if let Some(suppressed) = self.lines.line(Instant::now()) {
            tracing::info!(port, suppressed, restored = restored.is_some(), "front end connected");
        }
        self.status.update(|now| {
            now.connects += 1;
            now.state = State::Connected;
        });
        let connection = Connection::new(&mut *self.control, &self.status, self.config.queue_pairs);
        let connection = Arc::new(Mutex::new(connection));
        let listener = self.listener.as_ref();
        let end = match Session::new(stream, connection.clone(), &mut *self.keeper) {
            Ok(mut session) => match restored.map_or(Ok(true), |restored| session.restore(restored)) {
                Ok(true) => session.run(&self.config, &mut self.lines, listener, &self.mailbox, &self.status),
                Ok(false) => End::NotOurs,
                Err(reason) => End::Wrong(
                    ThrownOut::Message,
                    format!("its connection could not go on in this process: {reason}"),
                ),
            },
            Err(e) => End::Wrong(ThrownOut::Message, format!("socket: {e}")),
        };
        if !matches!(end, End::NotOurs) {
            // Whoever keeps it has a duplicate, which must not keep it open.
            let _ = stream.shutdown(std::net::Shutdown::Both);
            self.keeper.gone();
        }
        let (reason, blame) = match &end {
            End::Stopped => ("the port was stopped", None),
            End::Closed => ("the front end closed the connection", None),
            End::NotOurs => ("the process that served it before goes on", None),
            End::Wrong(kind, reason) => (reason.as_str(), Some(*kind)),
        };
        match self.lines.line(Instant::now()) {
            Some(suppressed) if blame.is_some() => {
                tracing::warn!(port, suppressed, "front end thrown out: {reason}");
            }
            Some(suppressed) => tracing::info!(port, suppressed, "{reason}"),
            None => {}
        }
        lock(&connection).close(reason, blame.is_some());
        self.status.update(|now| {
            now.state = State::Waiting;
            now.features = 0;
            now.protocol_features = 0;
            now.queue_pairs = 0;
            now.memory_preallocated = None;
            if let Some(kind) = blame {
                now.protocol_errors += 1;
                now.thrown_out[kind as usize] += 1;
                now.last_error = Some(reason.to_string());
            }
        });
        end
    }
}

/// One front end's messages, one after the other.
struct Session<'s, 'c> {
    stream: &'s UnixStream,
    connection: Arc<Mutex<Connection<'c>>>,
    handler: BackendReqHandler<Mutex<Connection<'c>>>,
    keeper: &'s mut dyn Keeper,
    /// The stream, for whoever keeps it.
    duplicate: Numbered,
}

impl<'s, 'c> Session<'s, 'c> {
    fn new(
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
    fn restore(&mut self, restored: Restored) -> Result<bool, String> {
        let Restored { kept, mut descriptors, gate, .. } = restored;
        self.handler = replay::handler(self.stream, &self.connection, &kept)?;
        let words = |error: Error| match error {
            Error::ReqHandlerError(e) => e.to_string(),
            other => other.to_string(),
        };
        lock(&self.connection).restore_memory(&kept, &mut descriptors).map_err(words)?;
        let starting = gate.map(|gate| gate.recv());
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

    fn run(
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
    control: &mut (dyn PortControl + Send),
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

fn lock<'m, 'c>(connection: &'m Mutex<Connection<'c>>) -> std::sync::MutexGuard<'m, Connection<'c>> {
    connection.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for mail, for the stream, for the listener, or for `pause` to pass.
/// Returns whether no more bytes will come from the stream.
fn wait(
    mailbox: &Mailbox,
    stream: Option<(&UnixStream, PollFlags)>,
    listener: Option<&UnixListener>,
    pause: Option<Duration>,
) -> bool {
    let mut fds = vec![PollFd::new(&mailbox.wake, PollFlags::IN)];
    fds.extend(stream.map(|(stream, events)| PollFd::new(stream, events)));
    fds.extend(listener.map(|listener| PollFd::new(listener, PollFlags::IN)));
    let pause = pause.map(|pause| Timespec::try_from(pause).expect("a short time"));
    // An interrupted wait is a short wait.
    let _ = poll(&mut fds, pause.as_ref());
    stream.is_some() && fds[1].revents().contains(PollFlags::HUP)
}

/// Accepts and closes whoever waits; how many, and whether accept failed.
fn turn_away(listener: &UnixListener) -> (u64, bool) {
    let mut refused = 0;
    loop {
        match listener.accept() {
            Ok(_) => refused += 1,
            Err(e) => return (refused, !is_transient(&e)),
        }
    }
}

fn is_transient(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted)
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
