//! The agent's side of the control socket.
//!
//! ```text
//!  question ──▶ switch ──▶ answer, in time? as short as that question's may be? ──▶ checked ──▶ who asked
//! ```
//!
//! The switch is not trusted. Each answer is bounded and checked before a caller sees it; an invalid one ends
//! the conversation. Descriptors of an answer may take long to close, so a thread [receives](Client::with_answer_thread)
//! an agent's answers, and the caller waits only for the answer.

use super::answer::{self, Answer, Expected};
use super::message::{
    Hello, LinkKind, PortOrders, PortStatus, Reply, Request, Retired, UplinkStatus, WorkStatus,
};
use super::{channel, clip, notes};
use crate::stats::Reader;
use crate::vhost_user::saved::{Number, SavedConnection};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::net::{RecvFlags, recv};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tidegate_contract::{Host, Remote, SegmentKey, Uplink, Vnic};
use tidegate_cores::directions::Directions;
use tidegate_service::foreign::Foreign;

/// Longest wait for an answer, from the start of the question. The switch answers within milliseconds;
/// without the CPU for that long, it keeps no promise either.
pub const PATIENCE: Duration = Duration::from_secs(3);
/// Longest reason of a failure that is passed on (bytes); the words may be the switch's.
const REASON: usize = 1000;

const STOPPED: &str = "is its process stopped (SIGSTOP), in a debugger, or without a CPU?";

/// A connection to a running switch.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    path: PathBuf,
    patience: Duration,
    /// Start of the common time of all questions; `None`: each has its own time.
    began: Option<Instant>,
    /// The thread that receives answers.
    answer_thread: Option<answer::AnswerThread>,
}

/// The connection of a port.
#[derive(Debug)]
pub enum Attachment<'a> {
    /// The present connection.
    Unchanged,
    /// A listening vhost-user socket.
    Listener(BorrowedFd<'a>),
    /// A connected vhost-user socket.
    Stream(BorrowedFd<'a>),
    /// A tap, one descriptor per queue pair.
    Tap(&'a [OwnedFd]),
    /// The connection of a switch that has ended.
    Restored {
        /// The listening socket, if the switch is the server.
        listener: Option<BorrowedFd<'a>>,
        /// State of the connection.
        saved: &'a SavedConnection,
        /// Descriptors of the connection.
        descriptors: &'a HashMap<Number, Foreign>,
    },
}

/// The sockets of an uplink.
#[derive(Clone, Copy, Debug)]
pub struct UplinkSockets<'a> {
    /// Bound to its port.
    pub receive: &'a [OwnedFd],
    /// Each with a source port of its own.
    pub send: &'a [OwnedFd],
    /// The same, each for one pair of vNICs.
    pub pairs: &'a [OwnedFd],
    /// Sends and receives notices.
    pub notices: Option<&'a OwnedFd>,
}

/// The reason why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum SwitchError {
    /// The switch refused; nothing has changed.
    #[error("the switch refused: {0}")]
    Refused(String),
    /// The switch cannot be reached.
    #[error("no switch at {path}: {source} (is `tidegate switch` running?)")]
    Unreachable {
        /// The control socket.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The conversation broke off.
    #[error("the switch at {path} stopped answering: {reason}")]
    Broken {
        /// The control socket.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
}

impl Client {
    /// Connects to the control socket at `path`. Neither this nor any question waits longer than [`PATIENCE`].
    pub fn connect(path: &Path) -> Result<Self, SwitchError> {
        let connected = || -> io::Result<UnixStream> {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            connect(&socket, &SocketAddrUnix::new(path)?)?;
            Ok(UnixStream::from(socket))
        };
        match connected() {
            Ok(stream) => Ok(Self::over(stream, path)),
            Err(source) if source.kind() == io::ErrorKind::WouldBlock => Err(SwitchError::Broken {
                path: path.to_owned(),
                reason: format!("the switch accepts no more connections; {STOPPED}"),
            }),
            Err(source) => Err(SwitchError::Unreachable { path: path.to_owned(), source }),
        }
    }

    /// Returns a client over a stream; `path` is for messages.
    pub fn over(stream: UnixStream, path: &Path) -> Self {
        Self { stream, path: path.to_owned(), patience: PATIENCE, began: None, answer_thread: None }
    }

    /// Receives answers in a separate thread from now on: the caller does not wait until their descriptors are closed.
    ///
    /// # Errors
    /// No thread or descriptor is available; or too many such threads have not returned.
    pub fn with_answer_thread(mut self) -> Result<Self, SwitchError> {
        let apart = self.stream.try_clone().and_then(answer::AnswerThread::start);
        self.answer_thread = Some(apart.map_err(|e| self.broken(e.to_string()))?);
        Ok(self)
    }

    /// Ends all questions from now on at `patience` after `began`. Before the first call, each has its own [`PATIENCE`].
    pub fn share_patience(&mut self, began: Instant, patience: Duration) {
        (self.began, self.patience) = (Some(began), patience);
    }

    /// Whether the switch has closed the connection, is gone, or has sent an unexpected message.
    pub fn is_closed(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match recv(&self.stream, &mut [0u8; 1], flags) {
            Ok(_) => true,
            Err(error) => error != Errno::AGAIN && error != Errno::INTR,
        }
    }

    /// Returns the identity of the switch, and its statistics as a reader and as a descriptor.
    pub fn hello(&mut self) -> Result<(Hello, Reader, OwnedFd), SwitchError> {
        match self.ask(&Request::Hello, &[], Expected::Hello)? {
            Answer { reply: Reply::Hello(hello), statistics: Some((reader, file)), .. } => {
                Ok((hello, reader, file))
            }
            other => Err(self.unexpected(&other)),
        }
    }

    /// Sets host-wide settings.
    pub fn set_host(&mut self, host: &Host) -> Result<(), SwitchError> {
        self.expect_done(&Request::SetHost(host.clone()), &[])
    }

    /// Creates or changes a port.
    pub fn set_port(&mut self, vnic: &Vnic, link: Attachment<'_>) -> Result<(), SwitchError> {
        let (kind, descriptors): (_, Vec<BorrowedFd<'_>>) = match &link {
            Attachment::Unchanged => (LinkKind::Unchanged, vec![]),
            Attachment::Listener(fd) => (LinkKind::Listener, vec![*fd]),
            Attachment::Stream(fd) => (LinkKind::Stream, vec![*fd]),
            Attachment::Tap(queues) => (LinkKind::Tap, queues.iter().map(AsFd::as_fd).collect()),
            Attachment::Restored { listener, saved, descriptors } => {
                let kind = LinkKind::Restored {
                    listener: listener.is_some(),
                    saved: Box::new((*saved).clone()),
                    numbers: descriptors.keys().copied().collect(),
                };
                (kind, listener.iter().copied().chain(descriptors.values().map(AsFd::as_fd)).collect())
            }
        };
        self.expect_done(&Request::SetPort { vnic: Box::new(vnic.clone()), link: kind }, &descriptors)
    }

    /// Removes a port.
    pub fn remove_port(&mut self, name: &str) -> Result<(), SwitchError> {
        self.expect_done(&Request::RemovePort { name: name.into() }, &[])
    }

    /// Creates or changes an uplink; without `sockets` it keeps those that it has.
    pub fn set_uplink(
        &mut self,
        uplink: &Uplink,
        remotes: &[Remote],
        keys: &[SegmentKey],
        orders: PortOrders,
        sockets: Option<UplinkSockets<'_>>,
    ) -> Result<(), SwitchError> {
        let ports = sockets.as_ref().map_or_else(Vec::new, |sockets| ports(sockets.pairs));
        let of = |UplinkSockets { receive, send, pairs, notices }| {
            let all = receive.iter().chain(send).chain(pairs).chain(notices);
            (receive.len(), pairs.len(), all.map(AsFd::as_fd).collect::<Vec<_>>())
        };
        let notices = sockets.as_ref().is_some_and(|sockets| sockets.notices.is_some());
        let (receive, pairs, descriptors) = sockets.map(of).unwrap_or_default();
        let (uplink, remotes, keys) = (Box::new(uplink.clone()), remotes.to_vec(), keys.to_vec());
        let request = Request::SetUplink { uplink, remotes, keys, receive, pairs, ports, notices, orders };
        self.expect_done(&request, &descriptors)
    }

    /// Removes an uplink.
    pub fn remove_uplink(&mut self, name: &str) -> Result<(), SwitchError> {
        self.expect_done(&Request::RemoveUplink { name: name.into() }, &[])
    }

    /// Returns all uplinks.
    pub fn uplinks(&mut self) -> Result<Vec<UplinkStatus>, SwitchError> {
        match self.ask(&Request::Uplinks, &[], Expected::Uplinks)? {
            Answer { reply: Reply::Uplinks(uplinks), .. } => Ok(uplinks),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Directs CPUs of workers and workers of vNICs; the switch must be [`directable`](Hello::directable).
    pub fn direct(&mut self, directions: &Directions) -> Result<(), SwitchError> {
        self.expect_done(&Request::Direct(directions.clone()), &[])
    }

    /// Returns the directions in force and their outcome; the switch must be [`directable`](Hello::directable).
    pub fn work(&mut self) -> Result<WorkStatus, SwitchError> {
        match self.ask(&Request::Work, &[], Expected::Work)? {
            Answer { reply: Reply::Work(work), .. } => Ok(*work),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Returns all ports with their contracts in force.
    pub fn ports(&mut self) -> Result<Vec<PortStatus>, SwitchError> {
        match self.ask(&Request::Ports, &[], Expected::Ports)? {
            Answer { reply: Reply::Ports(ports), .. } => Ok(ports),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Returns a socket with the state that another process needs to continue, from now until the switch ends.
    pub fn subscribe(&mut self) -> Result<notes::Notes, SwitchError> {
        let (notes, switch_end) =
            notes::pair().map_err(|e| self.broken(format!("cannot make a socket: {e}")))?;
        self.expect_done(&Request::Subscribe, &[switch_end.as_fd()])?;
        Ok(notes)
    }

    /// Continues the counters of a switch that has ended.
    pub fn inherit(&mut self, statistics: BorrowedFd<'_>) -> Result<(), SwitchError> {
        self.expect_done(&Request::Inherit, &[statistics])
    }

    /// Ends the switch's traffic; returns its final state and control socket. The switch goes on when this
    /// client is dropped, unless it is [released](Self::release).
    pub fn retire(&mut self) -> Result<(Retired, OwnedFd), SwitchError> {
        match self.ask(&Request::Retire, &[], Expected::Retired)? {
            Answer { reply: Reply::Retired(retired), socket: Some(socket), .. } => Ok((*retired, socket)),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Ends a switch that has [retired](Self::retire). After this, it touches nothing any more.
    pub fn release(&mut self) -> Result<(), SwitchError> {
        self.expect_done(&Request::Release, &[])
    }

    /// Streams a vNIC's frames as pcapng into `into` until its other end closes.
    pub fn capture(&mut self, name: &str, snaplen: u32, into: BorrowedFd<'_>) -> Result<(), SwitchError> {
        self.expect_done(&Request::Capture { name: name.into(), snaplen }, &[into])
    }

    fn expect_done(&mut self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> Result<(), SwitchError> {
        match self.ask(request, descriptors, Expected::Done)? {
            Answer { reply: Reply::Done, .. } => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    fn ask(
        &mut self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
        expected: Expected,
    ) -> Result<Answer, SwitchError> {
        let end = self.began.unwrap_or_else(Instant::now) + self.patience;
        let answer = channel::send_until(&self.stream, request, descriptors, Some(end)).and_then(|()| {
            match &self.answer_thread {
                Some(apart) => apart.answer(expected, end),
                None => answer::receive(&self.stream, expected, end),
            }
        });
        let answer = answer.map_err(|e| {
            // A late answer must not pass for the answer to another question.
            let _ = self.stream.shutdown(std::net::Shutdown::Both);
            self.broken(self.reason(&e))
        });
        match answer? {
            Some(Answer { reply: Reply::Refused(why), .. }) => Err(SwitchError::Refused(why)),
            Some(answer) => Ok(answer),
            None => Err(self.broken("the switch closed the connection".into())),
        }
    }

    fn unexpected(&self, answer: &Answer) -> SwitchError {
        self.broken(format!("the switch sent an answer to another question: {}", answer.reply.kind()))
    }

    fn reason(&self, error: &io::Error) -> String {
        match error.kind() {
            io::ErrorKind::TimedOut => format!("no answer for {} s; {STOPPED}", self.patience.as_secs_f32()),
            _ => error.to_string(),
        }
    }

    fn broken(&self, reason: String) -> SwitchError {
        SwitchError::Broken { path: self.path.clone(), reason: clip(reason, REASON) }
    }
}

/// Returns the port that each socket is bound to.
fn ports(sockets: &[OwnedFd]) -> Vec<u16> {
    let port = |socket: &OwnedFd| {
        let address = rustix::net::getsockname(socket).ok().and_then(|any| SocketAddr::try_from(any).ok());
        address.map_or(0, |address| address.port())
    };
    sockets.iter().map(port).collect()
}

impl Drop for Client {
    fn drop(&mut self) {
        // The receiving thread has a duplicate.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_client_does_not_wait_for_ever_for_a_silent_switch() {
        let path = std::env::temp_dir().join(format!("tidegate-silent-{}.sock", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let _listener = UnixListener::bind(&path).unwrap();
        let error = Client::connect(&path).unwrap().hello().err().unwrap().to_string();
        assert!(error.contains("no answer for 3 s") && error.contains("SIGSTOP"), "{error}");
        // No thread accepts: after some connections, the kernel queues no more.
        let waiting: Vec<_> =
            (0..100_000).map(|_| Client::connect(&path)).take_while(Result::is_ok).collect();
        let error = Client::connect(&path).unwrap_err().to_string();
        assert!(error.contains("no more connections"), "after {}: {error}", waiting.len());
        std::fs::remove_file(&path).unwrap();
    }
}
