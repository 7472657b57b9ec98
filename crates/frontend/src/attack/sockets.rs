//! Descriptors that are slow to close, and endless connections.

use super::Target;
use crate::front_end::{FrontEndError, Options};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg, sockopt};
use std::io::{self, IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use vhost::vhost_user::message::FrontendReq;

/// Length of a message's header (bytes).
const HEADER: usize = 12;

/// A TCP socket with more to send than its peer takes: closing its last descriptor waits for the linger
/// time.
#[derive(Debug)]
pub struct Lingering {
    socket: Option<OwnedFd>,
    /// Reads only in `read_all`.
    peer: TcpStream,
}

impl Lingering {
    /// Makes a socket that lingers for `time`.
    ///
    /// # Errors
    /// There is no loopback interface.
    pub fn new(time: Duration) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut socket = TcpStream::connect(listener.local_addr()?)?;
        let peer = listener.accept()?.0;
        sockopt::set_socket_linger(&socket, Some(time))?;
        socket.set_nonblocking(true)?;
        while socket.write(&[0; 1 << 16]).is_ok() {}
        // On a non-blocking socket close(2) would not wait.
        socket.set_nonblocking(false)?;
        Ok(Self { socket: Some(socket.into()), peer })
    }

    /// Returns the socket.
    ///
    /// # Panics
    /// The socket was [passed](Self::pass).
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_ref().expect("not passed yet").as_fd()
    }

    /// Closes the own descriptor while another is on its way.
    pub fn close_own(&mut self) {
        self.socket = None;
    }

    /// Reads the pending data, so that close(2) no longer waits.
    pub fn read_all(&mut self) {
        let _ = self.peer.set_read_timeout(Some(Duration::from_secs(1)));
        let _ = std::io::copy(&mut self.peer, &mut std::io::sink());
    }

    /// Sends a message with this descriptor, and leaves the last one to the receiver.
    ///
    /// # Errors
    /// Those of `stream`.
    pub fn pass(&mut self, stream: &UnixStream, code: FrontendReq, payload: &[u8]) -> io::Result<()> {
        let message = message(code, payload);
        let (header, rest) = message.split_at(HEADER);
        send_with(stream, header, &[self.fd()])?;
        // The last descriptor is on its way, in an incomplete message.
        self.socket = None;
        let mut stream = stream;
        stream.write_all(rest)
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        if let Some(socket) = &self.socket {
            let _ = sockopt::set_socket_linger(socket, None);
        }
    }
}

/// Returns the bytes of a message.
pub fn message(code: FrontendReq, payload: &[u8]) -> Vec<u8> {
    let header = [u32::from(code), 1, payload.len() as u32].map(u32::to_ne_bytes).concat();
    [&header, payload].concat()
}

/// Returns the payload of a SET_MEM_TABLE with one page.
pub fn one_page() -> Vec<u8> {
    [1u64, 0, 4096, 0, 0].map(u64::to_ne_bytes).concat()
}

/// Sends bytes with descriptors.
///
/// # Errors
/// Those of the socket, or more than 253 descriptors.
pub fn send_with(stream: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("more than 253 descriptors"));
    }
    sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Passes lingering sockets as memory, and leaves their last descriptors to the switch.
pub(super) fn lingering(target: &Target<'_>) -> io::Result<()> {
    let mut sockets = Vec::new();
    target.repeat(|| {
        let stream = target.dial()?;
        let mut socket = Lingering::new(Duration::from_secs(3600))?;
        socket.pass(&stream, FrontendReq::SET_MEM_TABLE, &one_page())?;
        target.step();
        sockets.push(socket);
        // Dropping a socket's peer ends the linger.
        sockets.truncate(256);
        Ok(())
    });
    Ok(())
}

/// Connects, negotiates, shares memory, starts rings, leaves.
pub(super) fn storm(target: &Target<'_>) -> io::Result<()> {
    target.repeat(|| {
        drop(target.connect(Options::default())?);
        target.step();
        Ok::<(), FrontEndError>(())
    });
    Ok(())
}
