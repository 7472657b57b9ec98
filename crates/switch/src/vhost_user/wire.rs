//! Messages on a front end's socket: complete, of an allowed length, and never waited for.
//!
//! ```text
//!  socket: | code flags size | payload ... | next message ...
//!          └─── peeked ──────┘ └ counted ┘      all there? then it is taken
//!  reply:  | code flags size | payload |        sent at once: there is room before a message is taken
//! ```
//!
//! So a front end that stops in the middle of a message delays no thread of the switch, and an error can
//! name its message. An incomplete message stays in the socket, where another process can continue with it.
//!
//! A message is taken with all descriptors of its bytes. The kernel closes descriptors without room, in the
//! thread that reads: so the reader has room for as many as one piece of bytes can carry. Each byte can be
//! such a piece. So a message with too many descriptors is not read to its end: the others stay queued.

use super::request::{self, Form};
use super::saved::SharedFd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionread;
use rustix::net::{RecvFlags, SendFlags};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use tidegate_service::scm::{self, Received, SCM_MAX};
use vhost::vhost_user::message::FrontendReq;

/// Bytes of a message header: code, flags and payload size, 32 bits each, in
/// the host's byte order (vhost-user, "Header").
pub const HEADER_LEN: usize = 12;

const VERSION_MASK: u32 = 0x3;
const VERSION: u32 = 0x1;
const REPLY: u32 = 0x4;
const NEED_REPLY: u32 = 0x8;

/// The header of a supported message with an allowed length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The request.
    pub code: FrontendReq,
    /// Its form.
    pub form: Form,
    /// Bytes of payload, which [fit](Form::fits).
    pub size: usize,
    /// The sender waits for an acknowledgement (REPLY_ACK).
    pub need_reply: bool,
}

/// The contents of the socket.
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

/// A message that was taken.
#[derive(Debug, Default)]
pub struct Message {
    /// The bytes behind its header.
    pub payload: Vec<u8>,
    /// Descriptors of its header.
    pub descriptors: Vec<SharedFd>,
    /// Descriptors of its payload, for which it is refused: to be given up.
    pub unexpected_descriptors: Vec<SharedFd>,
}

/// Takes a message that a [glance](glance) found complete.
///
/// # Errors
/// Errors of the socket; descriptors with its payload, or too many of them. Together `descriptors` and
/// `unexpected_descriptors` are never more than 285.
pub fn take(stream: &UnixStream, header: Header) -> (Message, Result<(), String>) {
    let (mut head, mut payload) = ([0; HEADER_LEN], vec![0; header.size]);
    let (mut descriptors, mut unexpected_descriptors) = (Vec::new(), Vec::new());
    // At first only the header: descriptors of the payload are not its own.
    let taken = fill(stream, &mut head, &mut descriptors, header.form.most).and_then(|()| {
        fill(stream, &mut payload, &mut unexpected_descriptors, 0)
            .map_err(|why| format!("{why} with its payload"))
    });
    let passed = |descriptors: Vec<OwnedFd>| descriptors.into_iter().map(Arc::new).collect();
    let message = Message {
        payload,
        descriptors: passed(descriptors),
        unexpected_descriptors: passed(unexpected_descriptors),
    };
    (message, taken.map_err(|why| format!("{:?}: {why}", header.code)))
}

/// Reads available bytes with all their descriptors; stops after more than `most`.
fn fill(
    stream: &UnixStream,
    bytes: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
    most: usize,
) -> Result<(), String> {
    let mut got = 0;
    while got < bytes.len() {
        match scm::receive(stream, &mut bytes[got..], descriptors, SCM_MAX, RecvFlags::DONTWAIT) {
            Ok(Received { bytes: 0, .. }) => return Err("socket: closed in the middle of a message".into()),
            Ok(received) => got += received.bytes,
            Err(error) => return Err(format!("socket: {error}")),
        }
        if descriptors.len() > most {
            return Err(format!("{} file descriptors, expected at most {most}", descriptors.len()));
        }
    }
    Ok(())
}

/// Answers a taken message with its reply or an acknowledgement. Never waits.
///
/// # Errors
/// Errors of the socket.
pub fn reply(
    stream: &UnixStream,
    code: FrontendReq,
    payload: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let header = [u32::from(code), VERSION | REPLY, payload.len() as u32];
    let bytes = [&header.map(u32::to_ne_bytes).concat(), payload].concat();
    let sent = scm::send(stream, &bytes, descriptor.as_slice(), SendFlags::DONTWAIT)?;
    if sent < bytes.len() { Err(io::ErrorKind::WriteZero.into()) } else { Ok(()) }
}

/// A front end's socket on which the switch sends nothing more. Dropping it closes the descriptors queued
/// on it: other processes with the socket, such as the agent, need not wait for that.
#[derive(Debug)]
pub struct DisconnectedStream(pub UnixStream);

impl Drop for DisconnectedStream {
    fn drop(&mut self) {
        // Nothing more is queued after this.
        let _ = self.0.shutdown(std::net::Shutdown::Both);
        let mut bytes = [0; 4096];
        while let Ok(Received { bytes: 1.., .. }) =
            scm::receive(&self.0, &mut bytes, &mut Vec::new(), SCM_MAX, RecvFlags::DONTWAIT)
        {}
    }
}

/// Looks at the next message without taking it.
///
/// # Errors
/// Bytes that no vhost-user front end sends, and socket errors.
pub fn glance(stream: &UnixStream) -> Result<Glance, String> {
    let socket = |error: io::Error| format!("socket: {error}");
    let queued = ioctl_fionread(stream).map_err(|errno| socket(errno.into()))?;
    let mut bytes = [0; HEADER_LEN];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let peeked = match scm::receive(stream, &mut bytes, &mut Vec::new(), 0, flags) {
        Ok(Received { bytes: 0, .. }) => return Ok(Glance::Closed),
        Ok(_) if queued < HEADER_LEN as u64 => return Ok(Glance::Partial),
        Ok(received) => received.bytes,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Glance::Nothing),
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(Glance::Closed),
        Err(error) => return Err(socket(error)),
    };
    if peeked < HEADER_LEN {
        return Err("a message header came in pieces, with file descriptors between them".into());
    }
    let header = parse(bytes)?;
    if queued < (HEADER_LEN + header.size) as u64
        || !has_room(stream).map_err(|errno| socket(errno.into()))?
    {
        return Ok(Glance::Partial);
    }
    Ok(Glance::Whole(header))
}

fn parse(bytes: [u8; HEADER_LEN]) -> Result<Header, String> {
    let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    let (code, flags, size) = (word(0), word(4), word(8));
    let code = FrontendReq::try_from(code).map_err(|()| {
        format!(
            "message {code} is not part of the vhost-user protocol (is the sender a vhost-user front end?)"
        )
    })?;
    if flags & VERSION_MASK != VERSION || flags & !(VERSION_MASK | REPLY | NEED_REPLY) != 0 {
        return Err(format!("{code:?}: flags {flags:#x}, expected version 1"));
    }
    if flags & REPLY != 0 {
        return Err(format!("{code:?}: the front end sent a reply, but the switch asked nothing"));
    }
    let Some(form) = request::form(code) else {
        return Err(format!("{code:?}: not supported, nor offered"));
    };
    form.fits(size as usize).map_err(|why| format!("{code:?}: {why}"))?;
    Ok(Header { code, form, size: size as usize, need_reply: flags & NEED_REPLY != 0 })
}

/// Whether a reply can be sent without waiting.
fn has_room(stream: &UnixStream) -> rustix::io::Result<bool> {
    let mut fds = [PollFd::new(stream, PollFlags::OUT)];
    poll(&mut fds, Some(&Timespec::default()))?;
    Ok(fds[0].revents().contains(PollFlags::OUT))
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
    fn a_message_is_whole_only_with_its_last_byte() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        assert_eq!(glance(&theirs), Ok(Glance::Nothing));
        let mut bytes = message(2, 0x9, 8);
        bytes.extend([0; 8]);
        for byte in &bytes[..19] {
            ours.write_all(&[*byte]).unwrap();
            assert_eq!(glance(&theirs), Ok(Glance::Partial));
        }
        ours.write_all(&bytes[19..]).unwrap();
        let code = FrontendReq::SET_FEATURES;
        let form = request::form(code).unwrap();
        let expected = Header { code, form, size: 8, need_reply: true };
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

    /// Takes so many messages: the descriptors of each, and its strays.
    fn descriptors(stream: &UnixStream, count: usize) -> Vec<(usize, usize)> {
        let mut seen = Vec::new();
        for _ in 0..count {
            let Ok(Glance::Whole(header)) = glance(stream) else { panic!("a whole message") };
            let (message, taken) = take(stream, header);
            assert_eq!((taken, message.payload.len()), (Ok(()), header.size));
            seen.push((message.descriptors.len(), message.unexpected_descriptors.len()));
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
        // All are there before the first look.
        for (bytes, fds) in
            [(&owner, false), (&call, true), (&features, false), (&call, true), (&owner, false)]
        {
            send(&ours, bytes, fds.then_some(&event));
        }
        assert_eq!(descriptors(&theirs, 5), [(0, 0), (1, 0), (0, 0), (1, 0), (0, 0)]);
        // Sent as one, they are the first one's: the socket knows no more.
        send(&ours, &[call.clone(), call.clone()].concat(), Some(&event));
        assert_eq!(descriptors(&theirs, 2), [(1, 0), (0, 0)]);
        // The largest number.
        let table = [message(5, 1, 8), vec![0; 8]].concat();
        send_all(&ours, &table, &[event.as_fd(); 32]);
        assert_eq!(descriptors(&theirs, 1), [(32, 0)]);
    }

    /// One message of 20 bytes could bring 9 times 253 of them.
    #[test]
    fn no_message_brings_more_than_it_may() {
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
        let call = [message(13, 1, 8), vec![0; 8]].concat();
        let (payload, header) = ("at most 0 with its payload", "2 file descriptors, expected at most 1");
        for (with_header, why) in [(0, payload), (1, payload), (2, header)] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let refused = if with_header > 1 { 0 } else { SCM_MAX };
            send_all(&ours, &call[..HEADER_LEN], &vec![event.as_fd(); with_header]);
            for byte in &call[HEADER_LEN..] {
                send_all(&ours, &[*byte], &[event.as_fd(); SCM_MAX]);
            }
            let Ok(Glance::Whole(header)) = glance(&theirs) else { panic!("a whole message") };
            let (message, taken) = take(&theirs, header);
            assert!(taken.as_ref().is_err_and(|error| error.contains(why)), "{taken:?}");
            assert_eq!(
                (message.descriptors.len(), message.unexpected_descriptors.len()),
                (with_header, refused)
            );
        }
    }

    #[test]
    fn a_message_without_descriptors_brings_none() {
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
        for (code, size, count) in
            [(3, 0, 1), (1, 0, SCM_MAX), (8, 8, 1), (31, 24, 1), (19, 8, 1), (5, 8, 33)]
        {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let bytes = [message(code, 1, size), vec![0; size as usize]].concat();
            send_all(&ours, &bytes, &vec![event.as_fd(); count]);
            let Ok(Glance::Whole(header)) = glance(&theirs) else { panic!("a whole message") };
            let (message, taken) = take(&theirs, header);
            let why = format!("{:?}: {count} file descriptors, expected at most", header.code);
            assert!(taken.as_ref().is_err_and(|error| error.starts_with(&why)), "{taken:?}");
            assert_eq!(message.descriptors.len(), count);
        }
    }

    #[test]
    fn a_reply_is_sent_at_once_or_not_at_all() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
        reply(&theirs, FrontendReq::GET_QUEUE_NUM, &[7; 8], Some(event.as_fd())).unwrap();
        let mut descriptors = Vec::new();
        let mut bytes = [0; 32];
        let got = scm::receive(&ours, &mut bytes, &mut descriptors, 2, RecvFlags::empty()).unwrap().bytes;
        assert_eq!(bytes[..got], [message(17, 5, 8), vec![7; 8]].concat());
        assert_eq!(descriptors.len(), 1);
        while reply(&theirs, FrontendReq::GET_QUEUE_NUM, &[7; 8], None).is_ok() {}
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        let mut all = Vec::new();
        ours.read_to_end(&mut all).unwrap();
        assert!(all.len().is_multiple_of(20), "no part of one");
    }

    #[test]
    fn a_refusal_names_the_fault_of_a_header() {
        for (bytes, part) in [
            (message(0x2054_4547, 0x2f20_7274, 0x2048), "is not part of the vhost-user protocol"),
            (message(0, 1, 0), "message 0 is not"),
            (message(1, 2, 0), "expected version 1"),
            (message(1, 0x11, 0), "expected version 1"),
            (message(1, 0x5, 0), "sent a reply, but the switch asked nothing"),
            (message(45, 1, 0), "message 45 is not"),
            (message(20, 1, 8), "NET_SET_MTU: not supported, nor offered"),
            (message(2, 1, 7), "SET_FEATURES: wrong size: 7 bytes of payload, expected 8"),
            (message(5, 1, 7), "expected 8 and 32 for each region, at most 1032"),
            (message(5, 1, 39), "expected 8 and 32 for each region, at most 1032"),
            (message(5, 1, 1064), "1064 bytes of payload"),
        ] {
            let error = parse(bytes.try_into().unwrap()).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
