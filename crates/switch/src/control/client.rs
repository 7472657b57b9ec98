//! The agent's side of the control socket.

use super::channel;
use super::message::{Hello, LinkKind, PROTOCOL, PortStatus, Reply, Request};
use crate::stats::Reader;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use tidegate_contract::{Host, Vnic};

/// A connection to a running switch.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    path: PathBuf,
}

/// What a port is connected with.
#[derive(Debug)]
pub enum Link<'a> {
    /// What it has already.
    Keep,
    /// A listening vhost-user socket.
    Listener(BorrowedFd<'a>),
    /// A connected vhost-user socket.
    Stream(BorrowedFd<'a>),
    /// A tap, one descriptor per queue pair.
    Tap(&'a [OwnedFd]),
}

/// Why the switch did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum SwitchError {
    /// The switch refused; nothing was changed.
    #[error("the switch refused: {0}")]
    Refused(String),
    /// It cannot be reached.
    #[error("no switch at {path}: {source} (is `tidegate switch` running?)")]
    Unreachable {
        /// The control socket.
        path: PathBuf,
        /// What happened.
        source: io::Error,
    },
    /// The conversation broke off.
    #[error("the switch at {path} stopped answering: {reason}")]
    Broken {
        /// The control socket.
        path: PathBuf,
        /// What happened.
        reason: String,
    },
}

impl Client {
    /// Connects to the control socket at `path`.
    pub fn connect(path: &Path) -> Result<Self, SwitchError> {
        match UnixStream::connect(path) {
            Ok(stream) => Ok(Self { stream, path: path.to_owned() }),
            Err(source) => Err(SwitchError::Unreachable { path: path.to_owned(), source }),
        }
    }

    /// Who it is, and its statistics.
    pub fn hello(&mut self) -> Result<(Hello, Reader), SwitchError> {
        let (reply, descriptors) = self.ask(&Request::Hello, &[])?;
        let Reply::Hello(hello) = reply else { return Err(self.unexpected(&reply)) };
        if hello.protocol != PROTOCOL {
            return Err(self.broken(format!(
                "it speaks control protocol {}, this program {PROTOCOL}: install one release of both",
                hello.protocol
            )));
        }
        let file = descriptors.first().ok_or_else(|| self.broken("no statistics descriptor".into()))?;
        let reader = Reader::open(file).map_err(|e| self.broken(e.to_string()))?;
        Ok((hello, reader))
    }

    /// Host-wide settings.
    pub fn set_host(&mut self, host: &Host) -> Result<(), SwitchError> {
        self.done(&Request::SetHost(host.clone()), &[])
    }

    /// Makes or changes a port.
    pub fn set_port(&mut self, vnic: &Vnic, link: Link<'_>) -> Result<(), SwitchError> {
        let (kind, descriptors): (_, Vec<BorrowedFd<'_>>) = match &link {
            Link::Keep => (LinkKind::Keep, vec![]),
            Link::Listener(fd) => (LinkKind::Listener, vec![*fd]),
            Link::Stream(fd) => (LinkKind::Stream, vec![*fd]),
            Link::Tap(queues) => (LinkKind::Tap, queues.iter().map(AsFd::as_fd).collect()),
        };
        self.done(&Request::SetPort { vnic: Box::new(vnic.clone()), link: kind }, &descriptors)
    }

    /// Removes a port.
    pub fn remove_port(&mut self, name: &str) -> Result<(), SwitchError> {
        self.done(&Request::RemovePort { name: name.into() }, &[])
    }

    /// All ports with their contracts in force.
    pub fn ports(&mut self) -> Result<Vec<PortStatus>, SwitchError> {
        match self.ask(&Request::Ports, &[])? {
            (Reply::Ports(ports), _) => Ok(ports),
            (other, _) => Err(self.unexpected(&other)),
        }
    }

    /// Streams a vNIC's frames as pcapng into `into` until its other end closes.
    pub fn capture(&mut self, name: &str, snaplen: u32, into: BorrowedFd<'_>) -> Result<(), SwitchError> {
        self.done(&Request::Capture { name: name.into(), snaplen }, &[into])
    }

    fn done(&mut self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> Result<(), SwitchError> {
        match self.ask(request, descriptors)? {
            (Reply::Done, _) => Ok(()),
            (other, _) => Err(self.unexpected(&other)),
        }
    }

    fn ask(
        &mut self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Vec<OwnedFd>), SwitchError> {
        channel::send(&self.stream, request, descriptors).map_err(|e| self.broken(e.to_string()))?;
        match channel::receive(&self.stream).map_err(|e| self.broken(e.to_string()))? {
            Some((Reply::Refused(why), _)) => Err(SwitchError::Refused(why)),
            Some(answer) => Ok(answer),
            None => Err(self.broken("it closed the connection".into())),
        }
    }

    fn unexpected(&self, reply: &Reply) -> SwitchError {
        self.broken(format!("an answer to another question: {reply:?}"))
    }

    fn broken(&self, reason: String) -> SwitchError {
        SwitchError::Broken { path: self.path.clone(), reason }
    }
}
