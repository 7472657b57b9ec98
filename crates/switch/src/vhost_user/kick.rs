//! Listens to a driver's kicks without touching its counter.
//!
//! ```text
//!  driver ─▶ eventfd ─▶ an epoll of its own ─▶ the worker's epoll ─▶ worker
//!            └ the front end's ┘└──────────── ours ─────────────┘
//!                 locked to listen and to stop: by errands     locked by the worker
//!                       second: the eventfd goes in            first: the empty epoll goes in
//! ```
//!
//! When an eventfd is added to an epoll or removed, the kernel holds the epoll's lock while it waits for
//! the lock of the eventfd's list of waiters. A thread that signals an eventfd with 300,000 waiters holds
//! the latter for 228 ms, and a front end may signal repeatedly. A worker must wait for neither. So an
//! epoll lies between the eventfd and the worker's epoll: it is made and closed together with the kick, and
//! no front end can wait for it.
//!
//! When a file is added to an epoll that is in another one, the kernel also walks over all epolls of the
//! file (`reverse_path_check`), and holds the outer epoll's lock. For 300,000 epolls that takes 11.5 ms,
//! even if no thread signals the eventfd. So the inner epoll is empty when it is added to the worker's.

use super::notifier::{SLOW, cpu_time, slow};
use super::saved::Numbered;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The eventfd by which a queue's driver kicks, and the epoll that listens to it. Clones share both:
/// dropping the last one ends the listening, which may take long.
#[derive(Clone, Debug)]
pub struct Kick {
    event: Numbered,
    /// Readable from the first kick on; each further kick wakes the worker's epoll.
    listening: Arc<OwnedFd>,
}

impl Kick {
    /// Returns a kick that does not listen to `event` yet: a thread adds it to its epoll, then calls
    /// [`listen_to_driver`](Self::listen_to_driver).
    ///
    /// # Errors
    /// No descriptors left.
    pub fn new(event: Numbered) -> io::Result<Self> {
        Ok(Self { event, listening: Arc::new(epoll::create(CreateFlags::CLOEXEC)?) })
    }

    /// Listens to the driver from now on. May take long. Returns the part caused by the counter's waiters
    /// (ns of CPU time).
    ///
    /// The kernel has one lock for all epolls of epolls (`epnested_mutex`), and spins for it: CPU time that
    /// others cause. So after a long time, a signal to the counter tells whether its waiters caused it.
    ///
    /// # Errors
    /// No watches (fs.epoll.max_user_watches) left.
    pub fn listen_to_driver(&self) -> io::Result<u64> {
        let before = cpu_time();
        epoll::add(&self.listening, &self.event, EventData::new_u64(0), EventFlags::IN | EventFlags::ET)?;
        match cpu_time().saturating_sub(before) {
            ..=SLOW => Ok(0),
            _ => Ok(slow(&self.event).unwrap_or(0)),
        }
    }

    /// Returns the driver's kick eventfd.
    pub fn event(&self) -> &Numbered {
        &self.event
    }
}

impl AsFd for Kick {
    /// For an epoll.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listening.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vhost_user::conduct::LONG;
    use rustix::event::{EventfdFlags, Timespec, eventfd};
    use std::mem::MaybeUninit;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::{Duration, Instant};
    use tidegate_frontend::attack::counters::{WAITERS, Waiters};

    #[test]
    fn each_kick_is_heard_and_the_count_stays() {
        let event = Numbered::free(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap());
        let kick = Kick::new(event.clone()).unwrap();
        let worker = epoll::create(CreateFlags::CLOEXEC).unwrap();
        epoll::add(&worker, &kick, EventData::new_u64(7), EventFlags::IN | EventFlags::ET).unwrap();
        let heard = || {
            let mut events = [MaybeUninit::<epoll::Event>::uninit(); 4];
            let (events, _) = epoll::wait(&worker, &mut events, Some(&Timespec::default())).unwrap();
            events.iter().map(|event| event.data.u64()).collect::<Vec<_>>()
        };
        assert_eq!(kick.listen_to_driver().unwrap(), 0);
        let mut count = [0; 8];
        // If tests beside this one hold the kernel's lock for long, it signalled the counter itself.
        let signalled = rustix::io::read(&event, &mut count).is_ok();
        assert!(heard().is_empty() || signalled);
        for _ in 0..5 {
            rustix::io::write(&event, &1u64.to_ne_bytes()).unwrap();
            assert_eq!((heard(), heard()), (vec![7], vec![]));
        }
        epoll::delete(&worker, &kick).unwrap();
        rustix::io::write(&event, &1u64.to_ne_bytes()).unwrap();
        assert_eq!(heard(), [0; 0]);
        rustix::io::read(&event, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 6);
    }

    /// Others use the kernel's one lock for epolls of epolls: this counter does not cause that.
    #[test]
    fn a_wait_for_other_epolls_is_not_charged() {
        crate::eventfd::prepare();
        let counter = || eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
        let theirs = counter();
        let _waiters = Waiters::on(&theirs, WAITERS).unwrap();
        let [inner, outer, worker] = std::array::from_fn(|_| epoll::create(CreateFlags::CLOEXEC).unwrap());
        epoll::add(&inner, &theirs, EventData::new_u64(0), EventFlags::IN).unwrap();
        let (over, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
        let (mut charged, mut waited) = (Vec::new(), Duration::ZERO);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    epoll::add(&outer, &inner, EventData::new_u64(0), EventFlags::IN).unwrap();
                    epoll::delete(&outer, &inner).unwrap();
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
            while rounds.load(Ordering::Relaxed) < 20 {
                let kick = Kick::new(Numbered::free(counter())).unwrap();
                epoll::add(&worker, &kick, EventData::new_u64(7), EventFlags::IN | EventFlags::ET).unwrap();
                let before = Instant::now();
                charged.push(kick.listen_to_driver().unwrap());
                waited = waited.max(before.elapsed());
            }
            over.store(true, Ordering::Relaxed);
        });
        println!("waited {waited:?} at most");
        assert!(waited > Duration::from_millis(1), "nobody kept it waiting: {waited:?}");
        assert!(charged.iter().all(|took| *took < LONG), "{charged:?}");
    }
}
