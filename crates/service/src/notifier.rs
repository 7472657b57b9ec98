//! Telling the service manager how the service is, and which process it is.
//!
//! ```text
//!  systemctl start ──▶ service ── READY=1 ──▶ systemd: what waits for the service goes on
//!                         └────── WATCHDOG=1, again and again: it is left alone
//!
//!  systemctl reload ─▶ tidegate switch --replace ── MAINPID=, BARRIER= ──▶ systemd
//!                          │                             closes its end of the barrier: it knows
//!                          └▶ Release: the process it knew ends, and is not started anew
//! ```

use crate::scm;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::pipe::{PipeFlags, pipe_with};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

/// How long the service manager may take to read it.
const PATIENCE: Duration = Duration::from_secs(5);

/// A connection to the service manager. Opened before the process gives its rights up: to use it takes none.
#[derive(Debug)]
pub struct Notifier {
    socket: OwnedFd,
    /// It was told of another main process already.
    knows_another: bool,
}

impl Notifier {
    /// To the service manager, which listens at `NOTIFY_SOCKET`; `None` where the service manager is not to be told.
    ///
    /// # Errors
    /// The socket cannot be reached.
    pub fn from_environment() -> io::Result<Option<Self>> {
        std::env::var_os("NOTIFY_SOCKET").map(|path| Self::open(&path)).transpose()
    }

    fn open(path: &OsStr) -> io::Result<Self> {
        // A path, or a name with @ for its first byte, which is 0.
        let address = match path.as_bytes() {
            [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name)?,
            path => SocketAddrUnix::new(path)?,
        };
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        connect(&socket, &address)?;
        Ok(Self { socket, knows_another: false })
    }

    /// The service does what it is there for: what waits for its start goes on (`Type=notify`).
    ///
    /// # Errors
    /// The service manager was not told.
    pub fn ready(&self) -> io::Result<()> {
        send(&self.socket, "READY=1", SendFlags::empty(), None)
    }

    /// The service is alive; to be said more often than [`watchdog`](crate::watchdog) asks for. Does not wait for a
    /// service manager that does not read.
    ///
    /// # Errors
    /// The service manager was not told.
    pub fn alive(&self) -> io::Result<()> {
        send(&self.socket, "WATCHDOG=1", SendFlags::DONTWAIT, None)
    }

    /// The process `pid` is the service. The first time it returns when the service manager knows: the process before
    /// may end then. Later, when the right to open a pipe may be gone, it does not wait.
    ///
    /// # Errors
    /// The service manager was not told, or there is no descriptor for a pipe.
    pub fn main_process(&mut self, pid: u32) -> io::Result<()> {
        send(&self.socket, &format!("MAINPID={pid}\n"), SendFlags::empty(), None)?;
        if std::mem::replace(&mut self.knows_another, true) {
            return Ok(());
        }
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        let timeout = Timespec::try_from(PATIENCE).expect("a short time");
        let passed = send(&self.socket, "BARRIER=1", SendFlags::empty(), Some(writer)).and_then(|()| {
            // No process writes to it: the end is all that can come.
            let mut end = [PollFd::new(&reader, PollFlags::IN)];
            Ok(rustix::io::retry_on_intr(|| poll(&mut end, Some(&timeout)))? > 0)
        });
        if !passed.as_ref().is_ok_and(|passed| *passed) {
            // It will read it before it looks for processes that ended.
            tracing::warn!(?passed, "the service manager is slow to learn who its main process is");
        }
        Ok(())
    }
}

fn send(socket: &OwnedFd, text: &str, flags: SendFlags, descriptor: Option<OwnedFd>) -> io::Result<()> {
    let descriptors: Vec<_> = descriptor.iter().map(AsFd::as_fd).collect();
    scm::send(socket, text.as_bytes(), &descriptors, flags).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::RecvFlags;
    use std::os::unix::net::UnixDatagram;

    /// What the next message says, and the descriptors that came with it.
    fn receive(socket: &UnixDatagram) -> (String, Vec<OwnedFd>) {
        let (mut bytes, mut descriptors) = ([0; 64], Vec::new());
        let got = scm::receive(socket, &mut bytes, &mut descriptors, 4, RecvFlags::empty()).unwrap();
        (String::from_utf8(bytes[..got.bytes].to_vec()).unwrap(), descriptors)
    }

    #[test]
    fn main_process_waits_until_the_service_manager_closes_the_barrier() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let mut notifier = Notifier::open(path.as_os_str()).unwrap();
        let (finished, done) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            notifier.main_process(4711).unwrap();
            finished.send(()).unwrap();
            // Taken back, should the old one go on after all.
            notifier.main_process(4710).unwrap();
        });
        assert_eq!(receive(&manager).0, "MAINPID=4711\n");
        let (text, barrier) = receive(&manager);
        assert_eq!((text.as_str(), barrier.len()), ("BARRIER=1", 1));
        // The notifier does not return before systemd has it.
        assert!(done.recv_timeout(Duration::from_millis(20)).is_err());
        drop(barrier);
        done.recv_timeout(Duration::from_secs(20)).unwrap();
        thread.join().unwrap();
        assert_eq!(receive(&manager).0, "MAINPID=4710\n");
    }

    #[test]
    fn notifying_does_not_wait_for_a_manager_that_does_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let notifier = Notifier::open(path.as_os_str()).unwrap();
        notifier.ready().unwrap();
        // As many as the kernel keeps for it, then an error.
        let accepted = (0..100_000).take_while(|_| notifier.alive().is_ok()).count();
        assert!(accepted < 100_000);
        assert_eq!(receive(&manager).0, "READY=1");
        assert_eq!(receive(&manager).0, "WATCHDOG=1");
        notifier.alive().unwrap();
    }

    #[test]
    fn a_missing_notify_socket_is_an_error() {
        assert!(Notifier::open(OsStr::new("/nonexistent/notify")).is_err());
        assert!(Notifier::open(OsStr::new("@tidegate-nobody-listens-here")).is_err());
    }
}
