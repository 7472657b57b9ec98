//! Looking at a message before it is read, so that reading it never waits.
//!
//! ```text
//!  socket: | code flags size | payload ... | next message ...
//!          └─── peeked ──────┘ └ counted ┘      all there? then one read
//! ```
//!
//! So a front end that stops in the middle of a message keeps no thread of the switch waiting, and an error can name
//! the message it is about.
//!
//! A message is then taken with all descriptors that came with its bytes. Descriptors for which the reader leaves no room
//! are closed by the kernel, in the thread that reads: so the reader leaves room for as many as one piece of bytes can
//! carry. Each byte can be such a piece. So a message with more descriptors than any may have is not read on: the other
//! descriptors stay queued.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionread;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, recvmsg};
use std::io::{self, IoSliceMut};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use tidegate_service::scm::{self, SCM_MAX};
use vhost::vhost_user::message::{FrontendReq, MAX_ATTACHED_FD_ENTRIES, MAX_MSG_SIZE};

/// Bytes of a message header: code, flags and payload size, 32 bits each, in
/// the host's byte order (vhost-user, "Header").
pub const HEADER_LEN: usize = 12;

const VERSION_MASK: u32 = 0x3;
const VERSION: u32 = 0x1;
const REPLY: u32 = 0x4;
const NEED_REPLY: u32 = 0x8;

/// A message's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What is asked.
    pub code: FrontendReq,
    /// Bytes of payload.
    pub size: usize,
    /// The sender waits for an acknowledgement (REPLY_ACK).
    pub need_reply: bool,
}

/// What the socket holds.
#[derive(Debug, PartialEq, Eq)]
pub enum Glance {
    /// No byte of a message.
    Nothing,
    /// One whole message, and there is room for its reply.
    Whole(Header),
    /// Part of a message, or a whole one whose sender does not read replies.
    Partial,
    /// The other side closed.
    Closed,
}

/// A message, taken.
#[derive(Debug, Default)]
pub struct Message {
    /// Header and payload.
    pub bytes: Vec<u8>,
    /// What came with its header.
    pub descriptors: Vec<OwnedFd>,
    /// What came with its payload, for which it is refused: to be given up.
    pub strays: Vec<OwnedFd>,
}

/// Takes a message that a [glance](glance) found whole.
///
/// # Errors
/// Those of the socket; descriptors with its payload, or more than any message may have; in words. Together
/// `descriptors` and `strays` are never more than 285.
pub fn take(stream: &UnixStream, header: Header) -> (Message, Result<(), String>) {
    let mut message = Message { bytes: vec![0; HEADER_LEN + header.size], ..Message::default() };
    let mut got = 0;
    while got < message.bytes.len() {
        // Never more than the header at first: what comes with the payload is not its own.
        let end = if got < HEADER_LEN { HEADER_LEN } else { message.bytes.len() };
        let to = if got < HEADER_LEN { &mut message.descriptors } else { &mut message.strays };
        match take_some(stream, &mut message.bytes[got..end], to) {
            Ok(0) => return (message, Err("socket: closed in the middle of a message".into())),
            Ok(more) => got += more,
            Err(error) => return (message, Err(format!("socket: {error}"))),
        }
        if let Some(why) = has_too_many(&message, got) {
            return (message, Err(format!("{:?}: {why}", header.code)));
        }
    }
    (message, Ok(()))
}

/// Whether a message of which `got` bytes are read brought so many descriptors that it is not read on.
fn has_too_many(message: &Message, got: usize) -> Option<String> {
    let count = message.descriptors.len();
    if !message.strays.is_empty() {
        return Some("file descriptors came with its payload, expected with its header".into());
    }
    let is_whole = got == message.bytes.len();
    (count > MAX_ATTACHED_FD_ENTRIES && !is_whole)
        .then(|| format!("{count} file descriptors, expected at most {MAX_ATTACHED_FD_ENTRIES}"))
}

/// Reads some bytes, and all descriptors that come with them, without waiting.
fn take_some(stream: &UnixStream, bytes: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> io::Result<usize> {
    Ok(scm::receive(stream, bytes, descriptors, SCM_MAX, RecvFlags::DONTWAIT)?.bytes)
}

/// A front end's socket on which the switch speaks no more. When it is dropped, the descriptors queued on it are closed
/// here: other processes that have the socket, such as the agent, do not have to wait for that.
#[derive(Debug)]
pub struct Parted(pub UnixStream);

impl Drop for Parted {
    fn drop(&mut self) {
        // Nothing more is queued from here on.
        let _ = self.0.shutdown(std::net::Shutdown::Both);
        let mut bytes = [0; HEADER_LEN + MAX_MSG_SIZE];
        while let Ok(1..) = take_some(&self.0, &mut bytes, &mut Vec::new()) {}
    }
}

/// Looks at the next message without taking it.
///
/// # Errors
/// What no vhost-user front end sends, and socket errors, in words.
pub fn glance(stream: &UnixStream) -> Result<Glance, String> {
    let socket = |e: rustix::io::Errno| format!("socket: {}", io::Error::from(e));
    let queued = usize::try_from(ioctl_fionread(stream).map_err(socket)?).unwrap_or(usize::MAX);
    let mut bytes = [0; HEADER_LEN];
    let mut control = RecvAncillaryBuffer::default();
    let peeked = match recvmsg(
        stream,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut control,
        RecvFlags::PEEK | RecvFlags::DONTWAIT,
    ) {
        Ok(peeked) => peeked,
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(Glance::Nothing),
        Err(rustix::io::Errno::CONNRESET) => return Ok(Glance::Closed),
        Err(e) => return Err(socket(e)),
    };
    if peeked.bytes == 0 {
        return Ok(Glance::Closed);
    }
    if queued < HEADER_LEN {
        return Ok(Glance::Partial);
    }
    if peeked.bytes < HEADER_LEN {
        return Err("a message header came in pieces, with file descriptors between them".into());
    }
    let header = parse(bytes)?;
    if queued < HEADER_LEN + header.size || !has_room(stream).map_err(socket)? {
        return Ok(Glance::Partial);
    }
    Ok(Glance::Whole(header))
}

fn parse(bytes: [u8; HEADER_LEN]) -> Result<Header, String> {
    let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    let (code, flags, size) = (word(0), word(4), word(8));
    let code = FrontendReq::try_from(code).map_err(|()| {
        format!("message {code} is not of the vhost-user protocol (is it a vhost-user front end?)")
    })?;
    if flags & VERSION_MASK != VERSION || flags & !(VERSION_MASK | REPLY | NEED_REPLY) != 0 {
        return Err(format!("{code:?}: flags {flags:#x}, expected version 1"));
    }
    if flags & REPLY != 0 {
        return Err(format!("{code:?}: a reply to nothing that was asked"));
    }
    if size as usize > MAX_MSG_SIZE {
        return Err(format!("{code:?}: {size} bytes of payload, expected at most {MAX_MSG_SIZE}"));
    }
    Ok(Header { code, size: size as usize, need_reply: flags & NEED_REPLY != 0 })
}

fn has_room(stream: &UnixStream) -> rustix::io::Result<bool> {
    let mut fds = [PollFd::new(stream, PollFlags::OUT)];
    poll(&mut fds, Some(&Timespec::default()))?;
    Ok(fds[0].revents().contains(PollFlags::OUT))
}

/// The acknowledgement of `code` (REPLY_ACK): success.
pub fn success(code: FrontendReq) -> [u8; HEADER_LEN + 8] {
    let mut bytes = [0; HEADER_LEN + 8];
    bytes[0..4].copy_from_slice(&u32::from(code).to_ne_bytes());
    bytes[4..8].copy_from_slice(&(VERSION | REPLY).to_ne_bytes());
    bytes[8..12].copy_from_slice(&8u32.to_ne_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::SendFlags;
    use std::io::{Read, Write};
    use std::os::fd::{AsFd, BorrowedFd};

    fn message(code: u32, flags: u32, size: u32) -> Vec<u8> {
        [code, flags, size].iter().flat_map(|w| w.to_ne_bytes()).collect()
    }

    #[test]
    fn whole_only_when_the_last_byte_is_there() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        assert_eq!(glance(&theirs), Ok(Glance::Nothing));
        let mut bytes = message(2, 0x9, 8);
        bytes.extend([0; 8]);
        for byte in &bytes[..19] {
            ours.write_all(&[*byte]).unwrap();
            assert_eq!(glance(&theirs), Ok(Glance::Partial));
        }
        ours.write_all(&bytes[19..]).unwrap();
        let expected = Header { code: FrontendReq::SET_FEATURES, size: 8, need_reply: true };
        assert_eq!(glance(&theirs), Ok(Glance::Whole(expected)));
        let mut read = [0; 20];
        (&theirs).read_exact(&mut read).unwrap();
        assert_eq!(read[..], bytes);
        drop(ours);
        assert_eq!(glance(&theirs), Ok(Glance::Closed));
    }

    #[test]
    fn waits_while_replies_are_not_read() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (&ours).write_all(&message(1, 1, 0)).unwrap();
        assert!(matches!(glance(&theirs), Ok(Glance::Whole(_))));
        theirs.set_nonblocking(true).unwrap();
        while (&theirs).write(&[0; 4096]).is_ok() {}
        assert_eq!(glance(&theirs), Ok(Glance::Partial));
    }

    fn send(stream: &UnixStream, bytes: &[u8], fd: Option<&OwnedFd>) {
        let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
        send_all(stream, bytes, &fds);
    }

    fn send_all(stream: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        scm::send(stream, bytes, fds, SendFlags::empty()).unwrap();
    }

    /// Takes so many messages: how many descriptors came with each, and how many strayed.
    fn descriptors(stream: &UnixStream, count: usize) -> Vec<(usize, usize)> {
        let mut seen = Vec::new();
        for _ in 0..count {
            let Ok(Glance::Whole(header)) = glance(stream) else { panic!("a whole message") };
            let (message, taken) = take(stream, header);
            assert_eq!((taken, message.bytes.len()), (Ok(()), HEADER_LEN + header.size));
            seen.push((message.descriptors.len(), message.strays.len()));
        }
        assert_eq!(glance(stream), Ok(Glance::Nothing));
        seen
    }

    #[test]
    fn descriptors_belong_to_the_message_they_came_with() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
        let (owner, features) = (message(3, 1, 0), [message(2, 1, 8), vec![0; 8]].concat());
        let call = [message(13, 1, 8), vec![0; 8]].concat();
        // All are there before the first is looked at.
        for (bytes, fds) in
            [(&owner, false), (&call, true), (&features, false), (&call, true), (&owner, false)]
        {
            send(&ours, bytes, fds.then_some(&event));
        }
        assert_eq!(descriptors(&theirs, 5), [(0, 0), (1, 0), (0, 0), (1, 0), (0, 0)]);
        // Sent as one, they are the first one's: that is all the socket knows.
        send(&ours, &[owner.clone(), call.clone()].concat(), Some(&event));
        assert_eq!(descriptors(&theirs, 2), [(1, 0), (0, 0)]);
        // As many as there can be.
        let many = vec![event.as_fd(); SCM_MAX];
        send_all(&ours, &owner, &many);
        assert_eq!(descriptors(&theirs, 1), [(SCM_MAX, 0)]);
    }

    /// One message of 20 bytes could bring 9 times 253 of them.
    #[test]
    fn no_message_brings_more_than_it_may() {
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
        let call = [message(13, 1, 8), vec![0; 8]].concat();
        for (with_header, expected, why) in
            [(0, 0, "with its payload"), (1, 1, "with its payload"), (33, 33, "33 file descriptors")]
        {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let refused = if with_header > 32 { 0 } else { SCM_MAX };
            send_all(&ours, &call[..HEADER_LEN], &vec![event.as_fd(); with_header]);
            for byte in &call[HEADER_LEN..] {
                send_all(&ours, &[*byte], &[event.as_fd(); SCM_MAX]);
            }
            let Ok(Glance::Whole(header)) = glance(&theirs) else { panic!("a whole message") };
            let (message, taken) = take(&theirs, header);
            assert!(taken.as_ref().is_err_and(|error| error.contains(why)), "{taken:?}");
            assert_eq!((message.descriptors.len(), message.strays.len()), (expected, refused));
        }
    }

    #[test]
    fn says_what_is_wrong_with_a_header() {
        for (bytes, part) in [
            (message(0x2054_4547, 0x2f20_7274, 0x2048), "is not of the vhost-user protocol"),
            (message(0, 1, 0), "message 0 is not"),
            (message(1, 2, 0), "expected version 1"),
            (message(1, 0x11, 0), "expected version 1"),
            (message(1, 0x5, 0), "a reply to nothing"),
            (message(5, 1, 4097), "4097 bytes of payload, expected at most 4096"),
        ] {
            let error = parse(bytes.try_into().unwrap()).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
