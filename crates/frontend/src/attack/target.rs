//! The target of an attack.

use crate::front_end::{FrontEnd, FrontEndError, Options};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Longest wait for an answer of the switch.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Pause after the switch has refused a connection.
pub(super) const REFUSED_PAUSE: Duration = Duration::from_millis(5);

/// An attack's target and end.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The port's socket.
    pub socket: &'a Path,
    /// Whether the attack must end.
    pub stop: &'a AtomicBool,
    /// Steps so far.
    pub steps: &'a AtomicU64,
}

impl Target<'_> {
    pub(super) fn dial(&self) -> io::Result<UnixStream> {
        dial(self.socket)
    }

    pub(super) fn connect(&self, options: Options) -> Result<FrontEnd, FrontEndError> {
        FrontEnd::from_stream(self.dial()?, options)
    }

    pub(super) fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(super) fn step(&self) {
        self.steps.fetch_add(1, Ordering::Relaxed);
    }

    /// Calls `once` until the attack ends, with a pause after each refusal.
    pub(super) fn repeat(&self, mut once: impl FnMut() -> Result<(), FrontEndError>) {
        while !self.is_over() {
            if once().is_err() {
                std::thread::sleep(REFUSED_PAUSE);
            }
        }
    }
}

/// Connects to a port's socket. Waits long neither to be accepted nor for answers.
///
/// # Errors
/// No process listens, or its backlog is full.
pub fn dial(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}
