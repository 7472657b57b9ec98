//! One message: a 4-byte little-endian length, that many bytes of JSON, and
//! the descriptors attached to the first byte.

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde::{Serialize, de::DeserializeOwned};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Most descriptors of one message: a tap with 64 queue pairs.
pub const MAX_DESCRIPTORS: usize = 64;
/// Longest message, bytes.
pub const MAX_MESSAGE: usize = 16 << 20;

/// Sends one message.
pub fn send(stream: &UnixStream, message: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let body = serde_json::to_vec(message)?;
    let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(&body);

    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other(format!(
            "{} descriptors in one message, at most {MAX_DESCRIPTORS}",
            descriptors.len()
        )));
    }
    let sent = loop {
        match rustix::net::sendmsg(stream, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    let mut rest: &UnixStream = stream;
    rest.write_all(&bytes[sent..])
}

/// Receives one message; `None` where the other end closed between messages.
pub fn receive<T: DeserializeOwned>(stream: &UnixStream) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut length = [0u8; 4];
    let mut descriptors = Vec::new();
    let got = receive_first(stream, &mut length, &mut descriptors)?;
    if got == 0 {
        return Ok(None);
    }
    let mut rest: &UnixStream = stream;
    rest.read_exact(&mut length[got..])?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_MESSAGE {
        return Err(io::Error::other(format!("a message of {length} bytes, at most {MAX_MESSAGE}")));
    }
    let mut body = vec![0; length];
    rest.read_exact(&mut body)?;
    Ok(Some((serde_json::from_slice(&body)?, descriptors)))
}

fn receive_first(
    stream: &UnixStream,
    buffer: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match rustix::net::recvmsg(
            stream,
            &mut [IoSliceMut::new(buffer)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        ) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(io::Error::other(
            "descriptors of a message were lost: more than expected, or none left to this process (RLIMIT_NOFILE)",
        ));
    }
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    Ok(received.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn messages_and_descriptors_arrive_in_order() {
        let (a, b) = UnixStream::pair().unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        send(&a, &"first", &[writer.as_fd()]).unwrap();
        send(&a, &"second", &[]).unwrap();
        drop((a, writer));
        let (text, descriptors) = receive::<String>(&b).unwrap().unwrap();
        assert_eq!((text.as_str(), descriptors.len()), ("first", 1));
        let (text, none) = receive::<String>(&b).unwrap().unwrap();
        assert_eq!((text.as_str(), none.len()), ("second", 0));
        assert!(receive::<String>(&b).unwrap().is_none());
        rustix::io::write(&descriptors[0], b"x").unwrap();
        drop(descriptors);
        assert_eq!(std::io::read_to_string(reader).unwrap(), "x");
    }

    #[test]
    fn a_wild_length_is_an_error() {
        let (a, b) = UnixStream::pair().unwrap();
        (&a).write_all(&u32::MAX.to_le_bytes()).unwrap();
        assert!(receive::<String>(&b).is_err());
    }
}
