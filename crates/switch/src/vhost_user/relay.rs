//! Messages that may be obeyed, on their way to the `vhost` crate's handler and its answers on their way back.
//!
//! ```text
//!  front end ─▶ session ─ looked at ─▶ [ a pair of sockets ] ─▶ BackendReqHandler ─▶ Connection
//!      ▲                                       │
//!      └────────────── answer ◀────────────────┘
//! ```
//!
//! The handler reads its socket itself, and closes what it does not want. So it gets a socket of ours, and on
//! it only what may come through the [door](super::door). A connection that began in another process says its
//! features here again: the handler has no other way to learn them.

use super::connection::Connection;
use super::kept::Kept;
use rustix::net::{RecvFlags, SendFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use tidegate_service::scm;
use vhost::vhost_user::message::{FrontendReq, MAX_ATTACHED_FD_ENTRIES, MAX_MSG_SIZE};
use vhost::vhost_user::{BackendReqHandler, Error};

/// Longest answer: a header and a payload.
const ANSWER: usize = super::wire::HEADER_LEN + MAX_MSG_SIZE;

/// What the handler answered.
#[derive(Debug, Default)]
pub struct Answer {
    bytes: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

/// A connection's handler, and our end of its socket.
pub struct Relay<'c> {
    ours: UnixStream,
    handler: BackendReqHandler<Mutex<Connection<'c>>>,
}

impl<'c> Relay<'c> {
    /// The handler of a connection that nothing was said on.
    ///
    /// # Errors
    /// No descriptors to be had.
    pub fn new(connection: Arc<Mutex<Connection<'c>>>) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        Ok(Self { ours, handler: BackendReqHandler::from_stream(theirs, connection) })
    }

    /// Obeys a whole message. Its answer, if there is one, comes also with an error.
    pub fn obey(&mut self, message: &[u8], descriptors: &[OwnedFd]) -> (Answer, Result<(), Error>) {
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        if let Err(error) = send(&self.ours, message, &descriptors) {
            return (Answer::default(), Err(Error::ReqHandlerError(error)));
        }
        let done = self.handler.handle_request();
        match receive(&self.ours) {
            Ok(answer) => (answer, done),
            Err(error) => (Answer::default(), done.and(Err(Error::ReqHandlerError(error)))),
        }
    }

    /// Says the features that were negotiated with a process before. They are checked and obeyed as if the front
    /// end had said them now.
    ///
    /// # Errors
    /// They do not hold.
    pub fn say_features(&mut self, kept: &Kept) -> Result<(), Error> {
        let mut say = |code: FrontendReq, value: Option<u64>| {
            let size = if value.is_some() { 8u32 } else { 0 };
            let header = [u32::from(code), 1, size].map(u32::to_ne_bytes).concat();
            let payload = value.map(|value| value.to_ne_bytes().to_vec()).unwrap_or_default();
            self.obey(&[header, payload].concat(), &[]).1
        };
        say(FrontendReq::GET_FEATURES, None)?;
        if kept.protocol_features != 0 {
            say(FrontendReq::SET_PROTOCOL_FEATURES, Some(kept.protocol_features))?;
        }
        kept.features.map_or(Ok(()), |features| say(FrontendReq::SET_FEATURES, Some(features)))
    }
}

impl Answer {
    /// Sends it to the front end.
    ///
    /// # Errors
    /// Those of its socket.
    pub fn send(&self, stream: &UnixStream) -> io::Result<()> {
        let descriptors: Vec<_> = self.descriptors.iter().map(AsFd::as_fd).collect();
        send(stream, &self.bytes, &descriptors)
    }
}

fn send(stream: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    if descriptors.len() > MAX_ATTACHED_FD_ENTRIES {
        return Err(io::Error::other(format!("more than {MAX_ATTACHED_FD_ENTRIES} descriptors")));
    }
    let mut sent = 0;
    while sent < bytes.len() {
        let with = if sent == 0 { descriptors } else { &[] };
        sent += scm::send(stream, &bytes[sent..], with, SendFlags::empty())?;
    }
    Ok(())
}

/// What was answered, at once: the handler is done.
fn receive(stream: &UnixStream) -> io::Result<Answer> {
    let mut bytes = vec![0; ANSWER];
    let mut answer = Answer::default();
    let mut got = 0;
    while got < bytes.len() {
        let part = &mut bytes[got..];
        match scm::receive(
            stream,
            part,
            &mut answer.descriptors,
            MAX_ATTACHED_FD_ENTRIES,
            RecvFlags::DONTWAIT,
        ) {
            Ok(received) if received.bytes == 0 => break,
            Ok(received) => got += received.bytes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(got);
    answer.bytes = bytes;
    Ok(answer)
}
