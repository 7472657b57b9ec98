//! Looking at a message before it is read, so that reading it never waits.
//!
//! ```text
//!  socket: | code flags size | payload ... | next message ...
//!          └─── peeked ──────┘ └ counted ┘      all there? then one read
//! ```
//!
//! A front end that stops in the middle of a message thus keeps nobody waiting,
//! and an error can name the message it is about.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionread;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, recvmsg};
use std::io::{self, IoSliceMut};
use std::os::unix::net::UnixStream;
use vhost::vhost_user::message::{FrontendReq, MAX_MSG_SIZE};

/// Bytes of a message header: code, flags and payload size, 32 bits each, in
/// the host's byte order (vhost-user, "Header").
pub const HEADER_LEN: usize = 12;

const VERSION_MASK: u32 = 0x3;
const VERSION: u32 = 0x1;
const REPLY: u32 = 0x4;
const NEED_REPLY: u32 = 0x8;

/// A message's header, and whether descriptors can have come with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What is asked.
    pub code: FrontendReq,
    /// Bytes of payload.
    pub size: usize,
    /// The sender waits for an acknowledgement (REPLY_ACK).
    pub need_reply: bool,
    /// File descriptors are attached to it, or to one that waits behind it: a look goes on, for descriptors,
    /// to where the next are (unix_stream_read_generic() with MSG_PEEK). A read does not: they arrive with
    /// the message that they were sent with.
    pub may_have_fds: bool,
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
    // Descriptors that found no room in the (empty) control buffer.
    let header = parse(bytes, peeked.flags.contains(ReturnFlags::CTRUNC))?;
    if queued < HEADER_LEN + header.size || !has_room(stream).map_err(socket)? {
        return Ok(Glance::Partial);
    }
    Ok(Glance::Whole(header))
}

fn parse(bytes: [u8; HEADER_LEN], may_have_fds: bool) -> Result<Header, String> {
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
    Ok(Header { code, size: size as usize, need_reply: flags & NEED_REPLY != 0, may_have_fds })
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
    use rustix::net::{RecvAncillaryMessage, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use std::io::{IoSlice, Read, Write};
    use std::mem::MaybeUninit;
    use std::os::fd::{AsFd, OwnedFd};

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
        let expected =
            Header { code: FrontendReq::SET_FEATURES, size: 8, need_reply: true, may_have_fds: false };
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
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        }
        sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap();
    }

    /// Of the messages that wait: whether a look says that it may have descriptors, and how many arrive
    /// when its header is read.
    fn descriptors(stream: &UnixStream, count: usize) -> Vec<(bool, usize)> {
        let mut seen = Vec::new();
        for _ in 0..count {
            let Ok(Glance::Whole(header)) = glance(stream) else { panic!("a whole message") };
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut bytes = [0; HEADER_LEN];
            let flags = RecvFlags::CMSG_CLOEXEC;
            recvmsg(stream, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags).unwrap();
            let rights = control.drain().filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(received) => Some(received.count()),
                _ => None,
            });
            seen.push((header.may_have_fds, rights.sum()));
            (&*stream).read_exact(&mut vec![0; header.size]).unwrap();
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
        let none = (false, 0);
        assert_eq!(descriptors(&theirs, 5), [(true, 0), (true, 1), (true, 0), (true, 1), none]);
        // Sent as one, they are the first one's: that is all the socket knows.
        send(&ours, &[owner.clone(), call.clone()].concat(), Some(&event));
        assert_eq!(descriptors(&theirs, 2), [(true, 1), none]);
        // In the middle of a message they are not its own.
        send(&ours, &call[..HEADER_LEN], None);
        send(&ours, &call[HEADER_LEN..], Some(&event));
        assert_eq!(descriptors(&theirs, 1), [(true, 0)]);
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
            let error = parse(bytes.try_into().unwrap(), false).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
