//! Event counters that are slow to signal, or signalled without end.

use super::Target;
use crate::front_end::{FrontEnd, FrontEndError, Options};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Waiters of an attack.
pub const WAITERS: usize = 300_000;

/// Duplicates of the counter; each is one waiter per epoll.
const DUPLICATES: usize = 1000;
/// Transmit queue of a guest with one queue pair.
const TRANSMIT: usize = 1;
/// Pause between two frames, in which the switch finishes the first.
const FRAME_PAUSE: Duration = Duration::from_millis(1);

/// Waiters on a counter until they are dropped: the kernel treats them as waiting threads, and walks over
/// all at each signal.
#[derive(Debug)]
pub struct Waiters {
    _epolls: Vec<OwnedFd>,
    _duplicates: Vec<OwnedFd>,
}

impl Waiters {
    /// Makes `count` waiters on `event`, by epoll.
    ///
    /// # Errors
    /// Too few descriptors, or watches (`fs.epoll.max_user_watches`).
    pub fn on(event: impl AsFd, count: usize) -> io::Result<Self> {
        let duplicate = |_| event.as_fd().try_clone_to_owned();
        let duplicates = (0..DUPLICATES.min(count)).map(duplicate).collect::<io::Result<Vec<_>>>()?;
        let mut epolls = Vec::new();
        let mut remaining = count;
        while remaining > 0 {
            let epoll = epoll::create(CreateFlags::CLOEXEC)?;
            for duplicate in duplicates.iter().take(remaining) {
                epoll::add(&epoll, duplicate, EventData::new_u64(0), EventFlags::IN)?;
            }
            remaining -= remaining.min(duplicates.len());
            epolls.push(epoll);
        }
        Ok(Self { _epolls: epolls, _duplicates: duplicates })
    }
}

/// Sends frames to nowhere, and asks for a call at each completion.
pub(super) fn call_waiters(target: &Target<'_>, count: usize) -> io::Result<()> {
    let mut waiters = None;
    let mut failed = None;
    let mut guest: Option<FrontEnd> = None;
    target.repeat(|| {
        let front = match &mut guest {
            Some(guest) => {
                guest.attach(target.dial()?)?;
                guest
            }
            None => guest.insert(target.connect(Options::default())?),
        };
        if waiters.is_none() {
            // The switch has the counter by now.
            match Waiters::on(front.call(TRANSMIT), count) {
                Ok(made) => waiters = Some(made),
                Err(error) => failed = Some(error),
            }
        }
        while !target.is_over() && failed.is_none() {
            send_junk(front)?;
            target.step();
            std::thread::sleep(FRAME_PAUSE);
        }
        Ok(())
    });
    failed.map_or(Ok(()), Err)
}

fn send_junk(front: &mut FrontEnd) -> Result<(), FrontEndError> {
    front.in_flight(0);
    let _ = front.ring(TRANSMIT).enable_interrupts();
    front.send(0, &[0; 72]);
    front.is_connected().then_some(()).ok_or(FrontEndError::NotConnected)
}

/// Passes the counter repeatedly while its waiters are woken without end: a thread that starts to listen to
/// it waits.
pub(super) fn kick_waiters(target: &Target<'_>, count: usize) -> io::Result<()> {
    pass_kicks(target, count, |kick, over| flood(kick, || over.load(Ordering::Relaxed)))
}

/// As [`Attack::KickWaiters`](super::Attack), without signals: the kernel walks over the waiters when an
/// epoll with the counter is added to another.
///
/// # Errors
/// Too few descriptors, or watches (`fs.epoll.max_user_watches`).
pub fn silent_kick_waiters(target: &Target<'_>) -> io::Result<()> {
    pass_kicks(target, WAITERS, |_, _| ())
}

/// Passes a counter with `count` waiters until it is refused, while `beside` runs, whose flag then ends it.
fn pass_kicks(
    target: &Target<'_>,
    count: usize,
    beside: impl Fn(&OwnedFd, &AtomicBool) + Sync,
) -> io::Result<()> {
    let mut failed = None;
    let mut guest: Option<(FrontEnd, Waiters)> = None;
    target.repeat(|| {
        let front = match &mut guest {
            Some((front, _)) => {
                front.attach(target.dial()?)?;
                front
            }
            None => {
                let front = target.connect(Options::default())?;
                match Waiters::on(front.kick_event(TRANSMIT), count) {
                    Ok(waiters) => &mut guest.insert((front, waiters)).0,
                    Err(error) => {
                        failed = Some(error);
                        return Ok(());
                    }
                }
            }
        };
        let kick = front.kick_event(TRANSMIT).try_clone_to_owned()?;
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| beside(&kick, &over));
            let passed = loop {
                if target.is_over() {
                    break Ok(());
                }
                // Refused or not.
                target.step();
                if let Err(refused) = front.pass_kick(TRANSMIT) {
                    break Err(refused);
                }
            };
            over.store(true, Ordering::Relaxed);
            passed
        })
    });
    failed.map_or(Ok(()), Err)
}

pub(super) fn kick_flood(target: &Target<'_>) -> io::Result<()> {
    target.repeat(|| {
        let front = target.connect(Options::default())?;
        let kick = front.kick_event(TRANSMIT).try_clone_to_owned()?;
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    flood(&kick, || {
                        target.step();
                        target.is_over() || !front.is_connected()
                    });
                });
            }
        });
        Ok(())
    });
    Ok(())
}

/// Adds to a counter until `done`, and empties it when full.
fn flood(event: &OwnedFd, done: impl Fn() -> bool) {
    while !done() {
        if rustix::io::write(event, &1u64.to_ne_bytes()).is_err() {
            let _ = rustix::io::read(event, &mut [0u8; 8]);
        }
    }
}
