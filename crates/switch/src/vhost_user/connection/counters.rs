//! The queues' event counters: checked, tried, and the last signal to those of errors.

use super::super::conduct::{Event, LONG, Object};
use super::super::door;
use super::super::kick::Kick;
use super::super::notifier::{self, Call, Report};
use super::super::reply::{Rejection, Result, refuse};
use super::super::saved::{Numbered, SharedFd};
use super::Connection;
use super::vrings::Vring;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::io;
use std::time::Duration;

/// Longest trial of an event counter.
const TRIAL: Duration = Duration::from_millis(500);

/// The queues of an ended connection. Dropping it signals their error descriptors, up to the first slow
/// one.
pub struct EndedQueues {
    pub vrings: Vec<Vring>,
    pub blame: bool,
    pub report: Report,
}

impl Drop for EndedQueues {
    fn drop(&mut self) {
        for err in self.vrings.iter().filter(|_| self.blame).filter_map(|vring| vring.err.as_ref()) {
            if let Some(took) = notifier::slow(err) {
                if took >= LONG {
                    (self.report)(Event { object: Object::Error, took });
                }
                return;
            }
        }
    }
}

impl Connection<'_> {
    /// Checks a descriptor that a worker polls or signals: an event counter, made non-blocking.
    pub(super) fn event(
        &self,
        message: &str,
        index: u16,
        event: Option<SharedFd>,
    ) -> Result<Option<Numbered>> {
        let Some(event) = event else { return Ok(None) };
        // Checked where it came in, too; a descriptor of another process did not come in there.
        door::counter(message, index, &event)?;
        fcntl_getfl(&event)
            .and_then(|flags| fcntl_setfl(&event, flags | OFlags::NONBLOCK))
            .map_err(system(message))?;
        self.numbered(message, event).map(Some)
    }

    /// Tries an event counter in the port's errands: `trial` returns its CPU time (ns). Too much is an
    /// event, also if the message is refused before the time is known. No answer in time is no event: the
    /// host may be busy.
    fn try_out(
        &self,
        message: &str,
        object: Object,
        trial: impl FnOnce() -> io::Result<u64> + Send + 'static,
    ) -> Result<()> {
        let report = self.service.report.clone();
        let measured = move || {
            let event = Event { object, took: trial()? };
            let is_long = event.took >= LONG;
            if is_long {
                report(event);
            }
            io::Result::Ok(is_long.then_some(event))
        };
        match self.service.errands.ask(TRIAL, measured) {
            Some(Ok(None)) => Ok(()),
            Some(Ok(Some(event))) => {
                refuse(format!("{message}: in a test of the eventfd, the thread {event}"))
            }
            Some(Err(error)) => refuse(format!("{message}: cannot test the eventfd: {error}")),
            None => refuse(format!(
                "{message}: the test of the eventfd took longer than {} ms: this host is too busy, or many \
                 threads or epolls wait for the eventfd",
                TRIAL.as_millis()
            )),
        }
    }

    /// Sets how the driver of queue `index` is called.
    pub(super) fn call(&self, index: u16, event: Option<SharedFd>) -> Result<Option<Call>> {
        const MESSAGE: &str = "SET_VRING_CALL";
        let Some(event) = self.event(MESSAGE, index, event)? else { return Ok(None) };
        let tried = event.clone();
        self.try_out(MESSAGE, Object::Call, move || Ok(notifier::slow(tried).unwrap_or(0)))?;
        Ok(Some(self.notifier.call(index as u8, event).map_err(system(MESSAGE))?))
    }

    /// Sets how queue `index` is kicked.
    pub(super) fn kick(&mut self, index: u16, event: Option<SharedFd>) -> Result<Option<Kick>> {
        const MESSAGE: &str = "SET_VRING_KICK";
        let Some(event) = self.event(MESSAGE, index, event)? else { return Ok(None) };
        let kick = Kick::new(event).map_err(system(MESSAGE))?;
        match self.listen_to_kick(MESSAGE, index, &kick) {
            Ok(()) => Ok(Some(kick)),
            Err(error) => {
                self.forget(kick);
                Err(error)
            }
        }
    }

    /// The worker first listens to an empty epoll, which is then filled: the slow part is not the worker's.
    fn listen_to_kick(&mut self, message: &str, index: u16, kick: &Kick) -> Result<()> {
        self.control.listen(kick).map_err(|why| format!("{message}: queue {index}: {why}"))?;
        self.try_kick(message, kick.clone())
    }

    /// Lets a kick hear its driver, which may take long.
    pub(super) fn try_kick(&self, message: &str, kick: Kick) -> Result<()> {
        self.try_out(message, Object::Kick, move || kick.listen_to_driver())
    }

    /// Ends listening to a kick that no queue has any more. Closing its epoll takes long.
    pub(super) fn forget(&mut self, kick: Kick) {
        self.control.forget(&kick);
        self.service.errands.give_up(kick);
    }
}

/// Returns the rejection for a refusal of the system.
fn system<E: std::fmt::Display>(message: &str) -> impl Fn(E) -> Rejection {
    move |error| format!("{message}: {error}").into()
}
