//! One message: a 4-byte little-endian length, that many bytes of JSON, and
//! the descriptors attached to its first bytes, as many to each as one
//! SCM_RIGHTS may carry.

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde::{Serialize, de::DeserializeOwned};
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Most descriptors of one message: what a front end with 128 queue pairs has sent, and more.
pub const MAX_DESCRIPTORS: usize = 1024;
/// Most descriptors of one SCM_RIGHTS (unix(7)).
pub const SCM_MAX: usize = 253;
/// Longest message, bytes.
pub const MAX_MESSAGE: usize = 16 << 20;

/// Sends one message.
pub fn send(stream: &UnixStream, message: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    if descriptors.len() > MAX_DESCRIPTORS {
        let count = descriptors.len();
        return Err(io::Error::other(format!(
            "{count} descriptors in one message, at most {MAX_DESCRIPTORS}"
        )));
    }
    let body = serde_json::to_vec(message)?;
    let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(&body);

    let mut sent = 0;
    let mut parts = descriptors.chunks(SCM_MAX).peekable();
    while let Some(part) = parts.next() {
        let end = if parts.peek().is_some() { sent + 1 } else { bytes.len() };
        sent += send_with(stream, &bytes[sent..end], part)?;
    }
    let mut rest: &UnixStream = stream;
    rest.write_all(&bytes[sent..])
}

fn send_with(stream: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other(format!("more than {SCM_MAX} descriptors")));
    }
    let flags = SendFlags::NOSIGNAL;
    Ok(rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(stream, &[IoSlice::new(bytes)], &mut ancillary, flags)
    })?)
}

/// Receives one message; `None` where the other end closed between messages.
pub fn receive<T: DeserializeOwned>(stream: &UnixStream) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut length = [0u8; 4];
    let mut descriptors = Vec::new();
    if !fill(stream, &mut length, &mut descriptors)? {
        return Ok(None);
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_MESSAGE {
        return Err(io::Error::other(format!("a message of {length} bytes, at most {MAX_MESSAGE}")));
    }
    let mut body = vec![0; length];
    if !fill(stream, &mut body, &mut descriptors)? {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some((serde_json::from_slice(&body)?, descriptors)))
}

/// Fills the buffer; `false` where the other end closed before its first byte.
fn fill(stream: &UnixStream, buffer: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> io::Result<bool> {
    let mut got = 0;
    while got < buffer.len() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let part = &mut [IoSliceMut::new(&mut buffer[got..])];
        let received = match rustix::net::recvmsg(stream, part, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => continue,
            other => other?,
        };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                descriptors.extend(received);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(io::Error::other(
                "descriptors of a message were lost: more than expected, or none left to this process \
                 (RLIMIT_NOFILE)",
            ));
        }
        if descriptors.len() > MAX_DESCRIPTORS {
            return Err(io::Error::other(format!("more than {MAX_DESCRIPTORS} descriptors in one message")));
        }
        match received.bytes {
            0 if got == 0 => return Ok(false),
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            bytes => got += bytes,
        }
    }
    Ok(true)
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
    fn more_descriptors_than_one_scm_rights_takes() {
        for count in [1, SCM_MAX, SCM_MAX + 1, 3 * SCM_MAX + 7] {
            let (a, b) = UnixStream::pair().unwrap();
            let files: Vec<std::fs::File> = (0..count).map(|_| tempfile::tempfile().unwrap()).collect();
            let inode = |file: &std::fs::File| rustix::fs::fstat(file).unwrap().st_ino;
            let borrowed: Vec<_> = files.iter().map(AsFd::as_fd).collect();
            let sender = std::thread::scope(|scope| {
                let sending = scope.spawn(|| send(&a, &count, &borrowed));
                let (told, got) = receive::<usize>(&b).unwrap().unwrap();
                assert_eq!((told, got.len()), (count, count));
                assert!(
                    got.into_iter().map(std::fs::File::from).map(|f| inode(&f)).eq(files.iter().map(inode))
                );
                sending.join().unwrap()
            });
            sender.unwrap();
            send(&a, &"next", &[]).unwrap();
            assert!(receive::<String>(&b).unwrap().unwrap().1.is_empty());
        }
        let file = tempfile::tempfile().unwrap();
        let (a, _b) = UnixStream::pair().unwrap();
        assert!(send(&a, &0, &vec![file.as_fd(); MAX_DESCRIPTORS + 1]).is_err());
    }

    #[test]
    fn a_wild_length_is_an_error() {
        let (a, b) = UnixStream::pair().unwrap();
        (&a).write_all(&u32::MAX.to_le_bytes()).unwrap();
        assert!(receive::<String>(&b).is_err());
    }
}
