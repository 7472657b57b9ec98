//! A port's thread: waits for a front end, serves it, waits for the next.
//!
//! ```text
//!            stop, attach ──eventfd──┐
//!  listening socket ──accept──▶ [ poll ] ──▶ one front end at a time, message by message
//!      (or streams dialled           │
//!       by the agent)                └──▶ entrance: another one waits, any other is closed, counted
//! ```
//!
//! The thread blocks only in that poll, so that stopping never waits for a front end, and an idle port
//! costs nothing. Work that may block is an [errand](super::errands); during a long one, and while the port
//! is in [quarantine](super::conduct), no front end is accepted.

use super::conduct::Conduct;
use super::config::PortConfig;
use super::connection::Connection;
use super::end::End;
use super::entrance::Entrance;
use super::errands::Errands;
use super::gate::Gate;
use super::heir::{Heir, InitialState};
use super::mailbox::{FROZEN, Mailbox, wait};
use super::notifier::{Notifier, Report};
use super::reply::Rejection;
use super::saved::{Descriptors, SavedConnection};
use super::service::{Service, Shared};
use super::session::Session;
use super::status::{ConnectionStatus, State};
use super::wire::DisconnectedStream;
use super::{NoStateStore, PortControl, StateStore};
use crate::moved::Outcome;
use crate::stats::ThrownOut;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidegate_evidence::Quarantine;

/// Longer errands are reported: a front end causes their length.
const ERRANDS_LONG: Duration = Duration::from_secs(1);

/// Origin of front ends.
#[derive(Debug)]
pub enum SocketEnd {
    /// We are the server: a bound, listening Unix socket.
    Listener(OwnedFd),
    /// We are the client: a Unix socket connected to the front end. When it
    /// ends, the state is [`State::Waiting`] until [`PortThread::attach`].
    Stream(OwnedFd),
    /// We are the client, without a front end before [`PortThread::attach`].
    NoFrontEnd,
    /// A front end that was served by a process that is gone.
    Restored(Box<Restored>),
}

/// A connection that continues in this process.
#[derive(Debug)]
pub struct Restored {
    /// In server mode.
    pub listener: Option<OwnedFd>,
    /// The front end's state.
    pub saved: SavedConnection,
    /// Its descriptors.
    pub descriptors: Descriptors,
    /// Holds its queues back; absent if they may start at once.
    pub gate: Option<Gate>,
}

/// A front end could not be attached.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// A front end is connected.
    #[error("port {0} has a front end already; wait until its state is `waiting`")]
    Taken(String),
    /// The port is in quarantine.
    #[error("port {port} takes no front end for {remaining_s} s: {reason}")]
    Quarantined {
        /// The port.
        port: String,
        /// Its rest (s).
        remaining_s: u64,
        /// Its reason.
        reason: String,
    },
}

/// The thread of one vhost-user port. Stopped on drop.
pub struct PortThread {
    name: String,
    mailbox: Arc<Mailbox>,
    status: Arc<ConnectionStatus>,
    errands: Errands,
    conduct: Arc<Conduct>,
    report: Report,
    shared: Arc<Mutex<Shared>>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for PortThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PortThread").field("name", &self.name).finish_non_exhaustive()
    }
}

impl PortThread {
    /// Starts serving `end` and drives `control`.
    ///
    /// # Errors
    /// No thread or descriptor available, or `queue_pairs` out of range.
    pub fn spawn(
        config: PortConfig,
        end: SocketEnd,
        control: Box<dyn PortControl + Send>,
        status: Arc<ConnectionStatus>,
    ) -> io::Result<Self> {
        Self::spawn_with_store(config, end, control, status, Box::new(NoStateStore))
    }

    /// Like [`spawn`](Self::spawn), with a store for front ends' states.
    ///
    /// # Errors
    /// As there.
    pub fn spawn_with_store(
        config: PortConfig,
        end: SocketEnd,
        control: Box<dyn PortControl + Send>,
        status: Arc<ConnectionStatus>,
        state_store: Box<dyn StateStore>,
    ) -> io::Result<Self> {
        if !(1..=128).contains(&config.queue_pairs) {
            return Err(io::Error::new(
                ErrorKind::InvalidInput,
                format!("{} queue pairs, expected 1 to 128", config.queue_pairs),
            ));
        }
        let mailbox = Arc::new(Mailbox::new()?);
        let (listener, restored) = match end {
            SocketEnd::Listener(fd) => (Some(fd), None),
            SocketEnd::Stream(fd) => {
                mailbox.post(|inbox| inbox.stream = Some(fd));
                (None, None)
            }
            SocketEnd::NoFrontEnd => (None, None),
            SocketEnd::Restored(mut restored) => (restored.listener.take(), Some(restored)),
        };
        let listener = listener.map(UnixListener::from);
        if let Some(listener) = &listener {
            listener.set_nonblocking(true)?;
        }
        if restored.is_some() {
            // A reader of the status before the thread runs should not see the port as free.
            status.update(|now| now.state = State::Connected);
        }
        let name = config.name.clone();
        let service = Service::new(&config, &mailbox);
        let waiting = mailbox.clone();
        service.errands.set_idle_callback(move || waiting.post(|_| ()));
        let (errands, conduct) = (service.errands.clone(), service.conduct.clone());
        let (report, shared) = (service.report.clone(), service.shared.clone());
        let port = Port {
            notifier: Notifier::new(&name, report.clone()),
            entrance: Entrance::new(listener, Service::for_unserved(&config, &mailbox)),
            service,
            config,
            restored,
            control,
            state_store,
            status: status.clone(),
            mailbox: mailbox.clone(),
        };
        let thread = std::thread::Builder::new().name(format!("port {name}")).spawn(move || port.run())?;
        Ok(Self { name, mailbox, status, errands, conduct, report, shared, thread: Some(thread) })
    }

    /// Hands over the next connected stream, in client mode.
    ///
    /// # Errors
    /// A front end is still connected, or the port is in quarantine; `stream` is closed.
    pub fn attach(&self, stream: OwnedFd) -> Result<(), AttachError> {
        let mut stream = Some(stream);
        let refused = if let Some(Quarantine { reason, remaining: left, .. }) =
            self.conduct.quarantine(Instant::now())
        {
            AttachError::Quarantined { port: self.name.clone(), remaining_s: left, reason }
        } else {
            if self.status.snapshot().state == State::Waiting {
                self.mailbox.post(|inbox| {
                    if inbox.stream.is_none() {
                        inbox.stream = stream.take();
                    }
                });
            }
            AttachError::Taken(self.name.clone())
        };
        match stream {
            None => Ok(()),
            Some(stream) => {
                self.errands.give_up(DisconnectedStream(stream.into()));
                Err(refused)
            }
        }
    }

    /// Ends the connection, if any, for the front end's fault.
    pub fn throw_out(&self, kind: ThrownOut, reason: String) {
        self.mailbox.post(|inbox| inbox.throw_out = Some((kind, reason)));
    }

    /// Continues a quarantine of another process.
    pub fn quarantine(&self, quarantine: &Quarantine) {
        self.conduct.resume(quarantine, Instant::now());
        // A front end that came before the quarantine is disconnected.
        self.throw_out(ThrownOut::Held, quarantine.reason.clone());
    }

    /// Returns the record of its front ends' objects.
    pub fn conduct(&self) -> &Conduct {
        &self.conduct
    }

    /// Returns the receiver of events.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Whether pages of the front end's memory may be missing, and whether because it is on a disk.
    pub fn has_holes(&self) -> (bool, bool) {
        let shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        (shared.has_holes(), shared.disk)
    }

    /// Returns the threads for slow work.
    pub fn errands(&self) -> &Errands {
        &self.errands
    }

    /// Sends the front end's state to the store again: it is a new one, or asks for it.
    pub fn resend_state(&self) {
        self.mailbox.post(|inbox| inbox.resend_state = true);
    }

    /// Moves the port to another worker, between two messages. The receiver gets the result.
    pub fn move_to(&self, worker: usize) -> Receiver<Outcome> {
        let (done, outcome) = sync_channel(1);
        self.mailbox.post(|inbox| inbox.move_to = Some((worker, done)));
        outcome
    }

    /// Reverts [`move_to`](Self::move_to): if the thread has not begun, its receiver gets no result.
    pub fn cancel_move(&self) {
        self.mailbox.post(|inbox| inbox.move_to = None);
    }

    /// Reads no message after the receiver's answer until [`thaw`](Self::thaw).
    pub fn freeze(&self) -> Receiver<()> {
        let (frozen, obeyed) = sync_channel(1);
        self.mailbox.post(|inbox| inbox.frozen = Some(frozen));
        obeyed
    }

    /// Reads messages again.
    pub fn thaw(&self) {
        self.mailbox.post(|inbox| inbox.frozen = None);
    }

    /// Ends the connection, if any, and the thread.
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

/// How a connection to serve began.
enum Origin {
    /// Not yet.
    New,
    /// While another one was served.
    Waiting(InitialState),
    /// In another process.
    OtherProcess(InitialState, Option<Gate>),
}

/// The thread's half.
struct Port {
    config: PortConfig,
    service: Service,
    notifier: Notifier,
    entrance: Entrance,
    restored: Option<Box<Restored>>,
    control: Box<dyn PortControl + Send>,
    state_store: Box<dyn StateStore>,
    status: Arc<ConnectionStatus>,
    mailbox: Arc<Mailbox>,
}

impl Port {
    fn run(mut self) {
        self.serve_all();
        self.entrance.close();
    }

    fn serve_all(&mut self) {
        if let Some(mut restored) = self.restored.take() {
            match restored.descriptors.remove(&restored.saved.stream) {
                Some(stream) => {
                    let descriptors = restored.descriptors.into_iter();
                    let descriptors = descriptors.map(|(number, fd)| (number, Arc::new(fd))).collect();
                    let state = InitialState { saved: restored.saved, descriptors, charged: Vec::new() };
                    let origin = Origin::OtherProcess(state, restored.gate);
                    if let End::Stopped | End::PredecessorContinues = self.serve(stream.into(), origin) {
                        return;
                    }
                }
                None => self.status.update(|now| {
                    now.state = State::Waiting;
                    now.last_error = Some("a saved connection came without its socket".into());
                }),
            }
        }
        while let Some((stream, origin)) = self.next_front_end() {
            if let End::Stopped = self.serve(stream, origin) {
                break;
            }
        }
    }

    /// Waits for a front end: the one that has waited comes first. `None` to stop.
    fn next_front_end(&mut self) -> Option<(UnixStream, Origin)> {
        loop {
            let now = Instant::now();
            let quarantine = self.service.conduct.quarantine_remaining(now);
            let closing = self.service.errands.busy_for();
            self.log_closing(closing);
            // In quarantine front ends are closed; otherwise the thread waits for the errand, whose end is
            // mail.
            let busy = closing.map(|_| ERRANDS_LONG);
            // In quarantine all are refused, and closed one by one.
            let accepts_none = closing.is_some() || quarantine.is_some() && self.entrance.is_busy();
            let at_once = (self.entrance.has_heir() && !accepts_none).then_some(Duration::ZERO);
            let shut = self.entrance.shut_for(now).filter(|_| !accepts_none);
            let pause = [at_once, busy, quarantine, shut].into_iter().flatten().min();
            let listener = self.entrance.listener(now).filter(|_| !accepts_none);
            wait(&self.mailbox, [None; 2], listener, pause);
            let mail = self.mailbox.take();
            if mail.stop {
                return None;
            }
            if let Some(stream) = mail.stream {
                if self.service.conduct.quarantine_remaining(Instant::now()).is_none() {
                    return Some((stream.into(), Origin::New));
                }
                self.turn_away(stream.into());
            }
            if let Some((worker, done)) = mail.move_to {
                let outcome = match &mail.frozen {
                    Some(_) => Err(FROZEN.into()),
                    None => self.control.move_to(worker, Vec::new()),
                };
                let _ = done.try_send(outcome);
            }
            if let Some(frozen) = &mail.frozen {
                self.mailbox.freeze(frozen);
                continue;
            }
            // An errand's end is mail: checks again.
            if accepts_none {
                continue;
            }
            let heir = self.entrance.take_heir(&self.status).map(Heir::into_connection);
            let heir = heir.map(|(stream, state)| (stream, Origin::Waiting(state)));
            let now = Instant::now();
            let next = heir.or_else(|| self.entrance.accept(now).map(|stream| (stream, Origin::New)));
            match next {
                Some((stream, origin)) if self.service.conduct.quarantine_remaining(now).is_some() => {
                    self.service.errands.give_up(origin);
                    self.turn_away(stream);
                }
                Some(next) => return Some(next),
                None => {}
            }
        }
    }

    /// Refuses a front end while the port is in quarantine.
    fn turn_away(&mut self, stream: UnixStream) {
        self.entrance.turn_away(stream, "the port is in quarantine", &self.status, Instant::now());
    }

    /// Logs that errands keep the port from accepting a front end, or no longer do.
    fn log_closing(&mut self, closing: Option<Duration>) {
        let long = closing.filter(|time| *time >= ERRANDS_LONG);
        let was = self.status.snapshot().closing;
        if long.is_some() != was {
            self.status.update(|now| now.closing = long.is_some());
            if !was {
                tracing::warn!(
                    port = self.config.name,
                    "closing the memory and descriptors of the last front end takes long: the port accepts \
                     no other front end until then"
                );
            }
        }
    }

    fn serve(&mut self, stream: UnixStream, origin: Origin) -> End {
        let port = self.config.name.clone();
        match origin {
            Origin::New => tracing::info!(port, "front end connected"),
            Origin::Waiting(_) => tracing::info!(port, "the waiting front end has the port now"),
            Origin::OtherProcess(..) => {
                tracing::info!(port, "the front end's connection continues in this process")
            }
        }
        self.status.update(|now| {
            now.connects += 1;
            now.state = State::Connected;
        });
        let pairs = self.config.queue_pairs;
        let mut connection =
            Connection::new(&mut *self.control, &self.status, &self.service, &self.notifier, pairs);
        let (entrance, service) = (&mut self.entrance, &self.service);
        let end = match Session::new(&stream, &mut connection, &mut *self.state_store, service) {
            Ok(mut session) => {
                let restored = match origin {
                    Origin::New => Ok(true),
                    Origin::Waiting(beginning) => session.restore(beginning, None),
                    Origin::OtherProcess(beginning, gate) => {
                        session.restore(beginning, gate).map_err(|Rejection { reason, .. }| {
                            format!("the front end's connection could not continue in this process: {reason}")
                                .into()
                        })
                    }
                };
                match restored {
                    Ok(true) => session.run(&self.config, entrance, &self.mailbox, &self.status),
                    Ok(false) => End::PredecessorContinues,
                    Err(refused) => End::ThrownOut(refused),
                }
            }
            Err(e) => End::ThrownOut(format!("socket: {e}").into()),
        };
        let ours = !matches!(end, End::PredecessorContinues);
        if ours {
            // The agent has a duplicate for a restart, which must not keep the connection open.
            let _ = stream.shutdown(std::net::Shutdown::Both);
            self.state_store.end_connection();
        }
        let (reason, blame) = match &end {
            End::Stopped => ("the port was stopped", None),
            End::Closed => ("the front end closed the connection", None),
            End::Migrated => ("the guest continues at the waiting front end", None),
            End::PredecessorContinues => ("the previous process continues to serve the front end", None),
            End::ThrownOut(Rejection { kind, reason }) => (reason.as_str(), Some(*kind)),
        };
        match blame {
            Some(_) => {
                tracing::warn!(port, "front end thrown out: {reason}");
                self.entrance.shut(Instant::now());
            }
            None => tracing::info!(port, "{reason}"),
        }
        connection.close(reason, blame.is_some());
        if ours {
            self.service.errands.give_up(DisconnectedStream(stream));
        }
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
