//! Orders of a port's owner to its thread.
//!
//! ```text
//!  owner ── post ─▶ inbox ── eventfd ─▶ [ wait ] ── take ─▶ thread
//! ```

use crate::moved::Outcome;
use crate::stats::ThrownOut;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::SyncSender;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tidegate_service::housekeeping;

/// Why a port cannot move now.
pub const FROZEN: &str = "another process is about to take the place of this one";

/// Orders to the thread.
#[derive(Debug, Default)]
pub struct Inbox {
    /// End the connection, and the thread.
    pub stop: bool,
    /// Disconnect the front end for this.
    pub throw_out: Option<(ThrownOut, String)>,
    /// The next front end, in client mode.
    pub stream: Option<OwnedFd>,
    /// Another state store needs the front end's state.
    pub resend_state: bool,
    /// Move the port to this worker, and send the result.
    pub move_to: Option<(usize, SyncSender<Outcome>)>,
    /// Read no message until this is reverted; answered when obeyed.
    pub frozen: Option<SyncSender<()>>,
}

/// The place of the orders; the thread polls `wake`.
#[derive(Debug)]
pub struct Mailbox {
    inbox: Mutex<Inbox>,
    wake: OwnedFd,
}

impl Mailbox {
    /// Returns an empty one.
    ///
    /// # Errors
    /// No descriptor available.
    pub fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { inbox: Mutex::default(), wake })
    }

    /// Leaves an order, and wakes the thread.
    pub fn post(&self, change: impl FnOnce(&mut Inbox)) {
        change(&mut self.inbox.lock().unwrap_or_else(PoisonError::into_inner));
        // Fails only if the counter is full, and then the thread is awake anyway.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Takes the orders; lasting ones stay.
    pub fn take(&self) -> Inbox {
        let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        Inbox {
            stop: inbox.stop,
            throw_out: inbox.throw_out.take(),
            stream: inbox.stream.take(),
            move_to: inbox.move_to.take(),
            resend_state: std::mem::take(&mut inbox.resend_state),
            frozen: inbox.frozen.clone(),
        }
    }

    /// Answers that this thread is frozen, and returns when it no longer is.
    pub fn freeze(&self, frozen: &SyncSender<()>) {
        let _ = frozen.try_send(());
        loop {
            let mut fds = [PollFd::new(&self.wake, PollFlags::IN)];
            let _ = poll(&mut fds, None);
            let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
            let inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
            match &inbox.frozen {
                Some(frozen) if !inbox.stop => drop(frozen.try_send(())),
                _ => {
                    // Orders that came meanwhile are still in the inbox.
                    let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
                    return;
                }
            }
        }
    }
}

/// Waits for mail, for the streams, for the listener, or for `pause` to pass. Returns for each stream
/// whether it has ended.
pub fn wait(
    mailbox: &Mailbox,
    streams: [Option<(&UnixStream, PollFlags)>; 2],
    listener: Option<&UnixListener>,
    pause: Option<Duration>,
) -> [bool; 2] {
    let mut fds = vec![PollFd::new(&mailbox.wake, PollFlags::IN)];
    fds.extend(streams.iter().flatten().map(|(stream, events)| PollFd::new(*stream, *events)));
    fds.extend(listener.map(|listener| PollFd::new(listener, PollFlags::IN)));
    let pause = pause.map(|pause| Timespec::try_from(pause).expect("a short time"));
    // An interrupted wait is a short wait.
    let _ = poll(&mut fds, pause.as_ref());
    housekeeping::follow();
    let mut polled = fds[1..].iter().map(|fd| fd.revents().contains(PollFlags::HUP));
    streams.map(|stream| stream.is_some() && polled.next().unwrap_or(false))
}
