//! Descriptors that go with bytes over a Unix socket (SCM_RIGHTS, unix(7)).
//!
//! ```text
//!  send:     bytes + at most 253 descriptors ──▶ sendmsg(2) ──▶ the other process
//!  receive:  bytes + at most `most` descriptors ◀── recvmsg(2) ◀── the other process
//!                     └ more than that: closed, and `lost` says so
//! ```
//!
//! One call here is one system call, repeated where a signal interrupts it. How a message is put together of several,
//! how long one may wait, and how many descriptors a sender may have, is the caller's.

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Most descriptors of one SCM_RIGHTS: SCM_MAX_FD of the kernel.
pub const SCM_MAX: usize = 253;

/// Bytes of control data with so many descriptors.
const ROOM: usize = rustix::cmsg_space!(ScmRights(SCM_MAX));

/// Sends bytes, and descriptors with the first of them; how many bytes were taken. A peer that is gone is an error,
/// never a SIGPIPE.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] for more than [`SCM_MAX`] descriptors; nothing is sent then. Those of sendmsg(2),
/// such as [`io::ErrorKind::WouldBlock`] with [`SendFlags::DONTWAIT`], and ETOOMANYREFS: see [`too_many_in_flight`].
pub fn send(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<usize> {
    let count = descriptors.len();
    if count > SCM_MAX {
        let why = format!("{count} descriptors with one piece of bytes, at most {SCM_MAX}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let mut space = [MaybeUninit::uninit(); ROOM];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if count > 0 {
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)), "there is room for {SCM_MAX}");
    }
    let (bytes, flags) = ([IoSlice::new(bytes)], flags | SendFlags::NOSIGNAL);
    Ok(rustix::io::retry_on_intr(|| sendmsg(&socket, &bytes, &mut control, flags))?)
}

/// Whether `error` is ETOOMANYREFS (unix(7)): processes of this user have sent more descriptors that no process has
/// received yet than this one may have open (RLIMIT_NOFILE). It passes when they are received. A process with
/// CAP_SYS_RESOURCE or CAP_SYS_ADMIN never meets it.
pub fn too_many_in_flight(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::TOOMANYREFS.raw_os_error())
}

/// What came with one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// How many bytes; 0 where the other end closed.
    pub bytes: usize,
    /// Of a packet or datagram the rest found no room in the buffer, and is gone.
    pub cut: bool,
    /// More descriptors came than were wanted, or than this process may have (RLIMIT_NOFILE). The rest are closed.
    pub lost: bool,
}

/// Receives bytes, and appends the descriptors that came with them to `descriptors`: at most `most`, and never more
/// than [`SCM_MAX`]. All are close-on-exec. The thread that receives closes the others, which takes long for some kinds of file: a
/// thread that must not wait for that asks for [`SCM_MAX`], and passes what it does not want on.
///
/// # Errors
/// Those of recvmsg(2), such as [`io::ErrorKind::WouldBlock`] with [`RecvFlags::DONTWAIT`].
pub fn receive(
    socket: impl AsFd,
    bytes: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
    most: usize,
    flags: RecvFlags,
) -> io::Result<Received> {
    let mut space = [MaybeUninit::uninit(); ROOM];
    let room = match most.min(SCM_MAX) {
        0 => 0,
        count => rustix::cmsg_space!(ScmRights(count)),
    };
    let mut control = RecvAncillaryBuffer::new(&mut space[..room]);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let received = rustix::io::retry_on_intr(|| {
        recvmsg(&socket, &mut [IoSliceMut::new(&mut *bytes)], &mut control, flags)
    })?;
    let before = descriptors.len();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    let mut lost = received.flags.contains(ReturnFlags::CTRUNC);
    // Alignment makes room for one more than was wanted.
    if descriptors.len() - before > most {
        descriptors.truncate(before + most);
        lost = true;
    }
    Ok(Received { bytes: received.bytes, cut: received.flags.contains(ReturnFlags::TRUNC), lost })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::{FdFlags, fcntl_getfd};
    use std::fs::File;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    fn null() -> File {
        File::open("/dev/null").unwrap()
    }

    /// What comes of `sent` descriptors where `most` are wanted.
    fn passed(sent: usize, most: usize) -> (Received, Vec<OwnedFd>) {
        let (a, b) = UnixStream::pair().unwrap();
        let null = null();
        assert_eq!(send(&a, b"x", &vec![null.as_fd(); sent], SendFlags::empty()).unwrap(), 1);
        let (mut bytes, mut descriptors) = ([0; 4], Vec::new());
        let received = receive(&b, &mut bytes, &mut descriptors, most, RecvFlags::empty()).unwrap();
        assert_eq!(&bytes[..received.bytes], b"x");
        (received, descriptors)
    }

    #[test]
    fn receive_returns_at_most_the_wanted_descriptors() {
        for most in [0, 1, 2, 3, 252, SCM_MAX, SCM_MAX + 1, usize::MAX] {
            for sent in [0, 1, 2, 3, 252, SCM_MAX] {
                let (received, descriptors) = passed(sent, most);
                assert_eq!(
                    (descriptors.len(), received.lost),
                    (sent.min(most), sent > most),
                    "{sent}, {most}"
                );
            }
        }
    }

    #[test]
    fn received_descriptors_are_appended_and_close_on_exec() {
        let (a, b) = UnixStream::pair().unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        send(&a, b"x", &[writer.as_fd()], SendFlags::empty()).unwrap();
        drop(writer);
        let mut descriptors = vec![OwnedFd::from(null())];
        receive(&b, &mut [0], &mut descriptors, 1, RecvFlags::empty()).unwrap();
        assert_eq!(descriptors.len(), 2);
        assert!(fcntl_getfd(&descriptors[1]).unwrap().contains(FdFlags::CLOEXEC));
        rustix::io::write(&descriptors[1], b"y").unwrap();
        drop(descriptors);
        assert_eq!(std::io::read_to_string(reader).unwrap(), "y");
    }

    #[test]
    fn too_many_descriptors_are_not_sent() {
        let (a, b) = UnixStream::pair().unwrap();
        let null = null();
        for count in [SCM_MAX + 1, SCM_MAX + 2, 1000] {
            let error = send(&a, b"x", &vec![null.as_fd(); count], SendFlags::empty()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
        }
        let nothing = receive(&b, &mut [0], &mut Vec::new(), 1, RecvFlags::DONTWAIT);
        assert_eq!(nothing.unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_closed_peer_is_an_error_for_send_and_the_end_for_receive() {
        let (a, b) = UnixStream::pair().unwrap();
        drop(b);
        assert_eq!(send(&a, b"x", &[], SendFlags::empty()).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        let end = receive(&a, &mut [0], &mut Vec::new(), 0, RecvFlags::empty()).unwrap();
        assert_eq!(end, Received { bytes: 0, cut: false, lost: false });
    }

    #[test]
    fn a_longer_datagram_is_cut() {
        let (a, b) = UnixDatagram::pair().unwrap();
        send(&a, b"long", &[], SendFlags::empty()).unwrap();
        let received = receive(&b, &mut [0; 3], &mut Vec::new(), 0, RecvFlags::empty()).unwrap();
        assert_eq!(received, Received { bytes: 3, cut: true, lost: false });
    }
}
