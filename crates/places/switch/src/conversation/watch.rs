//! Finds the next switch after one is gone.
//!
//! ```text
//!  notes end, a question is not answered ──▶ look ─▶ thread: hello? every ms ──answered──▶ wake
//!  conversations that break off ──▶ Backoff ── too soon ──┘
//! ```
//!
//! A connection proves nothing: a process that is being killed accepts them until its last descriptor is
//! closed. Only an answer does.

use super::backoff::Backoff;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tidegate_switch::control::{Client, SwitchError};

/// Pause between looks at first.
const LOOK_SOON: Duration = Duration::from_millis(1);
/// Pause between looks after [`SOON`].
const LOOK_LATER: Duration = Duration::from_millis(50);
/// Pause between looks after [`LATER`].
const LOOK_SELDOM: Duration = Duration::from_millis(500);
/// A service manager restarts it within this time.
const SOON: Duration = Duration::from_secs(3);
/// An administrator may restart it within this time.
const LATER: Duration = Duration::from_secs(60);
/// Least time between two found switches: each makes the reconciler look at all places.
const FOUND_AGAIN: Duration = Duration::from_millis(20);

/// Called when a new switch answers.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// Looks for the switch at one path.
pub struct Watch {
    path: PathBuf,
    wake: Wake,
    looking: AtomicBool,
    found: Mutex<Option<Instant>>,
    /// It was found, and has answered no question since.
    unproven: AtomicBool,
    backoff: Mutex<Backoff>,
}

impl Watch {
    /// Returns an idle watch.
    pub fn new(path: &Path, wake: Wake) -> Arc<Self> {
        Arc::new(Self {
            path: path.into(),
            wake,
            looking: AtomicBool::new(false),
            found: Mutex::new(None),
            unproven: AtomicBool::new(false),
            backoff: Mutex::default(),
        })
    }

    /// Whether it is too soon to reconnect to a switch that broke off.
    pub fn is_too_soon(&self) -> bool {
        self.backoff().is_too_soon(Instant::now())
    }

    /// Notes that a conversation broke off; `had_answered`: the switch had answered a whole question in it.
    pub fn broke(&self, had_answered: bool) {
        self.backoff().broke(Instant::now(), had_answered);
    }

    /// Notes an answered question.
    pub fn answered(&self) {
        self.unproven.store(false, Ordering::Relaxed);
    }

    /// Notes that a question found no switch. A switch found a moment ago has thus broken off; one that is
    /// away for long has not.
    pub fn unreachable(&self) {
        if self.unproven.swap(false, Ordering::Relaxed) {
            self.broke(false);
        }
    }

    fn backoff(&self) -> MutexGuard<'_, Backoff> {
        self.backoff.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls [`Wake`] once, as soon as a switch answers. The looking thread ends with the last owner of
    /// this.
    pub fn look(self: &Arc<Self>) {
        if self.looking.swap(true, Ordering::SeqCst) {
            return;
        }
        let watch = Arc::downgrade(self);
        let look = move || {
            let began = Instant::now();
            while let Some(watch) = watch.upgrade() {
                if watch.has_come() {
                    return watch.found();
                }
                drop(watch);
                std::thread::sleep(match began.elapsed() {
                    waited if waited < SOON => LOOK_SOON,
                    waited if waited < LATER => LOOK_LATER,
                    _ => LOOK_SELDOM,
                });
            }
        };
        if let Err(error) = std::thread::Builder::new().name("watch".into()).spawn(look) {
            tracing::error!(%error, "cannot start the thread that looks for the switch: the agent finds the switch \
                later");
            self.looking.store(false, Ordering::SeqCst);
        }
    }

    fn has_come(&self) -> bool {
        let found = *self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if found.is_some_and(|found| found.elapsed() < FOUND_AGAIN) || self.is_too_soon() {
            return false;
        }
        // Separately: closing a descriptor of the answer may take long.
        let hello = Client::connect(&self.path)
            .and_then(Client::with_answer_thread)
            .and_then(|mut client| client.hello());
        if let Err(SwitchError::Broken { .. }) = hello {
            self.broke(false);
        }
        hello.is_ok()
    }

    fn found(&self) {
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        self.unproven.store(true, Ordering::Relaxed);
        // Before the call: the woken reconciler may find the switch gone, and ask for another look.
        self.looking.store(false, Ordering::SeqCst);
        (self.wake)();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{self, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use tidegate_switch::control::channel::{receive, send};
    use tidegate_switch::control::message::{Hello, PROTOCOL, Reply, Request};
    use tidegate_switch::stats::Region;

    fn answer(listener: &UnixListener) {
        respond(&listener.accept().unwrap().0).unwrap();
    }

    fn respond(stream: &UnixStream) -> io::Result<()> {
        let request = receive::<Request>(stream)?.map(|(request, _)| request);
        assert_eq!(request, Some(Request::Hello));
        let hello = Hello {
            protocol: PROTOCOL,
            version: "1".into(),
            pid: 1,
            started: 1,
            workers: 1,
            directable: false,
            shares_queues: false,
            knows_rdma: false,
            knows_zero_copy: false,
            rdma: vec![],
        };
        let region = Region::create()?;
        send(stream, &Reply::Hello(hello), &[region.file().as_fd()])
    }

    /// Returns a TCP socket that takes a minute to close, and its peer.
    fn lingering() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let peer = listener.accept().unwrap().0;
        socket.set_nonblocking(true).unwrap();
        while socket.write(&[0; 1 << 16]).is_ok() {}
        socket.set_nonblocking(false).unwrap();
        rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::from_secs(60))).unwrap();
        (socket, peer)
    }

    #[test]
    fn a_descriptor_that_takes_long_to_close_delays_no_look() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("switch.sock");
        let (woken, wakes) = channel();
        let woken = Mutex::new(woken);
        let watch = Watch::new(&path, Arc::new(move || woken.lock().unwrap().send(()).unwrap()));
        let listener = UnixListener::bind(&path).unwrap();
        let (socket, _peer) = lingering();
        watch.look();
        let (stream, _) = listener.accept().unwrap();
        receive::<Request>(&stream).unwrap().unwrap();
        // In place of statistics; only the watch has it then.
        let hello = Hello {
            protocol: PROTOCOL,
            version: "1".into(),
            pid: 1,
            started: 1,
            workers: 1,
            directable: false,
            shares_queues: false,
            knows_rdma: false,
            knows_zero_copy: false,
            rdma: vec![],
        };
        send(&stream, &Reply::Hello(hello), &[socket.as_fd()]).unwrap();
        drop(socket);
        listener.set_nonblocking(true).unwrap();
        let end = Instant::now() + Duration::from_secs(30);
        while wakes.try_recv().is_err() {
            assert!(Instant::now() < end, "it does not look again");
            match listener.accept() {
                // A busy machine may have delayed this thread: then the next look is answered.
                Ok((stream, _)) => drop(respond(&stream)),
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    #[test]
    fn a_switch_that_takes_a_connection_and_does_not_answer_is_not_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("switch.sock");
        let (woken, wakes) = channel();
        let woken = Mutex::new(woken);
        let watch = Watch::new(&path, Arc::new(move || woken.lock().unwrap().send(()).unwrap()));
        // A switch that is being killed listens, and closes accepted connections.
        let listener = UnixListener::bind(&path).unwrap();
        watch.look();
        watch.look();
        for _ in 0..3 {
            drop(listener.accept().unwrap());
        }
        drop(listener);
        std::fs::remove_file(&path).unwrap();
        assert!(wakes.try_recv().is_err());
        let listener = UnixListener::bind(&path).unwrap();
        answer(&listener);
        wakes.recv_timeout(Duration::from_secs(20)).unwrap();
        // Once for each request.
        watch.look();
        answer(&listener);
        wakes.recv_timeout(Duration::from_secs(20)).unwrap();
        assert!(wakes.try_recv().is_err());
        // Without an owner the thread ends, and releases its callback.
        drop(listener);
        watch.look();
        drop(watch);
        assert_eq!(wakes.recv_timeout(Duration::from_secs(20)), Err(RecvTimeoutError::Disconnected));
    }
}
