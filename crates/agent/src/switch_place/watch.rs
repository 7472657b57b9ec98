//! Finds the switch that comes after one that is gone.
//!
//! ```text
//!  notes end, a question is not answered ──▶ look ─▶ thread: hello? every ms ──answered──▶ wake
//! ```
//!
//! A connection says nothing: a process that is being killed takes them until its last
//! descriptor is closed. Only an answer does.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tidegate_switch::control::Client;

/// How often it is looked for, at first.
const LOOK_SOON: Duration = Duration::from_millis(1);
/// How often it is looked for when it has not come for [`SOON`].
const LOOK_LATER: Duration = Duration::from_millis(50);
/// And when not for [`LATER`]: one that cannot be understood, of another release, is not asked all the time.
const LOOK_SELDOM: Duration = Duration::from_millis(500);
/// A service manager starts it again within this time.
const SOON: Duration = Duration::from_secs(3);
/// An administrator may.
const LATER: Duration = Duration::from_secs(60);
/// Least time between two that were found: one that answers this question and breaks off at the next is not
/// to be asked all the time.
const FOUND_AGAIN: Duration = Duration::from_millis(20);

/// Called when a switch answers where another one ended.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// Looks for the switch at one path.
pub struct Watch {
    path: PathBuf,
    wake: Wake,
    looking: AtomicBool,
    found: Mutex<Option<Instant>>,
}

impl Watch {
    /// Looks for nothing yet.
    pub fn new(path: &Path, wake: Wake) -> Arc<Self> {
        Arc::new(Self { path: path.into(), wake, looking: AtomicBool::new(false), found: Mutex::new(None) })
    }

    /// Calls [`Wake`] once, as soon as a switch answers; until whoever holds this is gone.
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
            tracing::error!(%error, "no thread to look for the switch: it is found later");
            self.looking.store(false, Ordering::SeqCst);
        }
    }

    fn has_come(&self) -> bool {
        let found = *self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if found.is_some_and(|found| found.elapsed() < FOUND_AGAIN) {
            return false;
        }
        Client::connect(&self.path).is_ok_and(|mut client| client.hello().is_ok())
    }

    fn found(&self) {
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        // Before the call: whoever is woken and finds it gone again asks for another look.
        self.looking.store(false, Ordering::SeqCst);
        (self.wake)();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixListener;
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use tidegate_switch::control::channel::{receive, send};
    use tidegate_switch::control::message::{Hello, PROTOCOL, Reply, Request};
    use tidegate_switch::stats::Region;

    fn answer(listener: &UnixListener) {
        let (stream, _) = listener.accept().unwrap();
        let (request, _) = receive::<Request>(&stream).unwrap().unwrap();
        assert_eq!(request, Request::Hello);
        let hello = Hello { protocol: PROTOCOL, version: "1".into(), pid: 1, started: 1, workers: 1 };
        let region = Region::create().unwrap();
        send(&stream, &Reply::Hello(hello), &[region.file().as_fd()]).unwrap();
    }

    #[test]
    fn who_takes_a_connection_and_does_not_answer_is_not_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("switch.sock");
        let (woken, wakes) = channel();
        let woken = Mutex::new(woken);
        let watch = Watch::new(&path, Arc::new(move || woken.lock().unwrap().send(()).unwrap()));
        // One that is being killed: it listens, and closes what it has accepted.
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
        // Once for each time it was asked for.
        watch.look();
        answer(&listener);
        wakes.recv_timeout(Duration::from_secs(20)).unwrap();
        assert!(wakes.try_recv().is_err());
        // Nobody wants to know any more: the thread ends, and lets go of what it would have called.
        drop(listener);
        watch.look();
        drop(watch);
        assert_eq!(wakes.recv_timeout(Duration::from_secs(20)), Err(RecvTimeoutError::Disconnected));
    }
}
