//! Listening to a driver's kicks, without touching its counter.
//!
//! ```text
//!  driver ─▶ eventfd ─▶ an epoll of its own ─▶ the worker's epoll ─▶ worker
//!            └ the front end's ┘└──────────── ours ─────────────┘
//!                 locked to listen and to stop: by errands     locked by the worker
//! ```
//!
//! To listen to an eventfd, or not any more, the kernel takes the lock of those who wait for it, and the lock of the
//! epoll meanwhile. Whoever signals an eventfd with 300,000 waiters holds the first for 228 ms, and does so again and
//! again. So neither is a worker's: between both lies an epoll that is made with the counter, where nobody waits,
//! and closed with it.

use super::kept::Numbered;
use super::notifier::cpu_time;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// What a queue's driver kicks by, listened to. Clones share it: whoever drops the last one stops listening, which may
/// take long.
#[derive(Clone, Debug)]
pub struct Kick {
    event: Numbered,
    /// Readable from the first kick on; each further one wakes whoever waits for it again.
    listening: Arc<OwnedFd>,
}

impl Kick {
    /// Listens to `event`. May take long. Also returns how long it took, ns of CPU time.
    ///
    /// # Errors
    /// There are no descriptors, or no watches (fs.epoll.max_user_watches) left.
    pub fn listen(event: Numbered) -> io::Result<(Self, u64)> {
        let listening = epoll::create(CreateFlags::CLOEXEC)?;
        let before = cpu_time();
        epoll::add(&listening, &event, EventData::new_u64(0), EventFlags::IN | EventFlags::ET)?;
        let took = cpu_time().saturating_sub(before);
        Ok((Self { event, listening: Arc::new(listening) }, took))
    }

    /// What the driver kicks by.
    pub fn event(&self) -> &Numbered {
        &self.event
    }
}

impl AsFd for Kick {
    /// To be waited for.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listening.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, Timespec, eventfd};
    use std::mem::MaybeUninit;

    #[test]
    fn each_kick_is_heard_and_the_count_stays() {
        let event = Numbered::free(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap());
        let (kick, _) = Kick::listen(event.clone()).unwrap();
        let worker = epoll::create(CreateFlags::CLOEXEC).unwrap();
        epoll::add(&worker, &kick, EventData::new_u64(7), EventFlags::IN | EventFlags::ET).unwrap();
        let heard = || {
            let mut events = [MaybeUninit::<epoll::Event>::uninit(); 4];
            let (events, _) = epoll::wait(&worker, &mut events, Some(&Timespec::default())).unwrap();
            events.iter().map(|event| event.data.u64()).collect::<Vec<_>>()
        };
        assert_eq!(heard(), [0; 0]);
        for _ in 0..5 {
            rustix::io::write(&event, &1u64.to_ne_bytes()).unwrap();
            assert_eq!((heard(), heard()), (vec![7], vec![]));
        }
        epoll::delete(&worker, &kick).unwrap();
        rustix::io::write(&event, &1u64.to_ne_bytes()).unwrap();
        assert_eq!(heard(), [0; 0]);
        let mut count = [0; 8];
        rustix::io::read(&event, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 6);
    }
}
