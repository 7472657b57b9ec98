//! Accepts front ends of a port in server mode: one is served, one may wait, others are refused.
//!
//! ```text
//!  listening socket ─▶ accept ─┬─ none is served ───▶ session
//!                              ├─ none waits ───────▶ heir ─ the one before is gone ─▶ session
//!                              └─ else ─────────────▶ closed, counted
//! ```
//!
//! A front end that was refused, disconnected or left may reconnect at once, as often as it is let in. So
//! after each one the entrance stays shut for a while: others wait in the socket's backlog, which is short.
//! One that stays longer and reconnects finds it open, unless it was disconnected.

use super::config::PortConfig;
use super::end::End;
use super::heir::Heir;
use super::service::Service;
use super::status::ConnectionStatus;
use super::wire::DisconnectedStream;
use rustix::event::PollFlags;
use std::io::{self, ErrorKind};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

/// Pause after the last accept, disconnection or refusal: at most 40 in a second.
const BETWEEN: Duration = Duration::from_millis(25);
/// Pause after accept failed for lack of descriptors or memory.
const FAILED: Duration = Duration::from_millis(100);

/// The listening socket of a port, if any, and the front end that waits.
pub struct Entrance {
    /// Of front ends that are not served.
    service: Service,
    listener: Option<UnixListener>,
    heir: Option<Heir>,
    /// No accept before this.
    shut_until: Option<Instant>,
}

impl Entrance {
    /// Returns an entrance before any front end.
    pub fn new(listener: Option<UnixListener>, service: Service) -> Self {
        Self { service, listener, heir: None, shut_until: None }
    }

    /// Whether descriptors of unserved front ends are still being closed. Until then none of these is
    /// accepted or heard, which bounds the backlog. Its end arrives as mail.
    pub fn is_busy(&self) -> bool {
        self.service.errands.busy_for().is_some()
    }

    /// Returns the socket to poll for others; `None` while the entrance is shut.
    pub fn listener(&self, now: Instant) -> Option<&UnixListener> {
        self.listener.as_ref().filter(|_| self.shut_until.is_none_or(|until| until <= now))
    }

    /// Returns what to poll of the waiting front end; its messages too unless this `is_busy`.
    pub fn poll_target(&self, is_busy: bool) -> Option<(&UnixStream, PollFlags)> {
        self.heir.as_ref().map(Heir::poll_target).map(|(stream, events)| match is_busy {
            true => (stream, PollFlags::empty()),
            false => (stream, events),
        })
    }

    /// Returns the time until the entrance has to act, if no front end connects, sends or closes before.
    pub fn pause(&self, now: Instant) -> Option<Duration> {
        let heir = self.heir.as_ref().and_then(|heir| heir.pause(now));
        heir.into_iter().chain(self.shut_for(now)).min()
    }

    /// Returns the time until an accept is allowed, if not now.
    pub fn shut_for(&self, now: Instant) -> Option<Duration> {
        let until = self.shut_until.filter(|until| *until > now && self.listener.is_some())?;
        Some(until - now)
    }

    /// Shuts the entrance for a while.
    pub fn shut(&mut self, now: Instant) {
        self.shut_until = Some(now + BETWEEN);
    }

    /// Accepts a waiting connection.
    pub fn accept(&mut self, now: Instant) -> Option<UnixStream> {
        match self.listener(now)?.accept() {
            Ok((stream, _)) => {
                self.shut(now);
                return Some(stream);
            }
            Err(e) if is_transient(&e) => {}
            Err(e) => {
                tracing::warn!(port = self.service.name, "accept: {e}");
                self.shut_until = Some(now + FAILED);
            }
        }
        None
    }

    /// Does the work beside the served front end: hears the waiting one, which may have `hung_up`, and
    /// accepts another.
    pub fn serve_waiting(&mut self, config: &PortConfig, status: &ConnectionStatus, hung_up: bool) {
        let now = Instant::now();
        if self.is_busy() {
            if hung_up {
                self.heir_ends(&End::Closed, status);
            }
            return;
        }
        // Accepts first: a front end that comes when the heir has gone finds its place free.
        let another = self.accept(now);
        if let Some(heir) = &mut self.heir
            && let Err(end) = heir.read_message(&self.service, status.excludes_in_order(), hung_up, now)
        {
            self.heir_ends(&end, status);
        }
        if let Some(stream) = another {
            if self.heir.is_none() {
                tracing::info!(port = config.name, "another front end waits until the connected one leaves");
                self.heir = Some(Heir::new(stream, config, now));
                status.update(|now| now.heir = true);
            } else {
                self.turn_away(stream, "one front end is connected, and another one waits", status, now);
            }
        }
    }

    /// Whether a waiting front end asks for the port.
    pub fn heir_wants_port(&self) -> bool {
        self.heir.as_ref().is_some_and(Heir::wants_port)
    }

    /// Ends the waiting front end.
    fn heir_ends(&mut self, end: &End, status: &ConnectionStatus) {
        let Some(heir) = self.heir.take() else { return };
        heir.disconnect(&self.service);
        let port = &self.service.name;
        match end {
            End::ThrownOut(refused) => {
                tracing::warn!(port, "the waiting front end was refused: {}", refused.reason);
            }
            _ => tracing::info!(port, "the waiting front end closed the connection"),
        }
        let refused = u64::from(matches!(end, End::ThrownOut(_)));
        status.update(|now| (now.heir, now.refused) = (false, now.refused + refused));
    }

    /// Refuses a front end, and shuts the entrance for a while.
    pub fn turn_away(&mut self, stream: UnixStream, why: &str, status: &ConnectionStatus, now: Instant) {
        self.service.errands.give_up(DisconnectedStream(stream));
        status.update(|now| now.refused += 1);
        tracing::warn!(port = self.service.name, "front end refused: {why}");
        self.shut(now);
    }

    /// Whether a front end waits.
    pub fn has_heir(&self) -> bool {
        self.heir.is_some()
    }

    /// Takes the waiting front end, to be served.
    pub fn take_heir(&mut self, status: &ConnectionStatus) -> Option<Heir> {
        let heir = self.heir.take()?;
        status.update(|now| now.heir = false);
        Some(heir)
    }

    /// Shuts the entrance for good.
    pub fn close(&mut self) {
        if let Some(heir) = self.heir.take() {
            heir.disconnect(&self.service);
        }
        // A front end in the backlog may have passed descriptors already.
        if let Some(listener) = self.listener.take() {
            self.service.errands.give_up(listener);
        }
    }
}

/// Whether a failed accept may succeed at once.
fn is_transient(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted)
}
