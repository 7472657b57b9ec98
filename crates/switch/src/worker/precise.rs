//! Waits for events until a time to the nanosecond.
//!
//! `epoll_pwait` counts milliseconds, and rounds up: a timer of 100 us ends after 1 ms. `epoll_pwait2`
//! (Linux 5.11) does not; rustix calls it only if built for kernels that have it.

use rustix::event::Timespec;
use rustix::event::epoll::{self, Event};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};

/// Waits like [`epoll::wait`], at most for `timeout`; on an older kernel to the millisecond.
///
/// # Errors
/// A signal came.
pub(super) fn wait<'a>(
    epoll: &OwnedFd,
    events: &'a mut [MaybeUninit<Event>],
    timeout: &Timespec,
) -> rustix::io::Result<&'a mut [Event]> {
    // SAFETY: the kernel writes at most so many events, which rustix lays out alike (it passes them on as
    // they are), and reads the timeout; there is no signal mask.
    let count = unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait2,
            epoll.as_raw_fd(),
            events.as_mut_ptr(),
            events.len() as libc::c_int,
            std::ptr::from_ref(timeout),
            std::ptr::null::<libc::sigset_t>(),
            0usize,
        )
    };
    let Ok(count) = usize::try_from(count) else {
        let error = Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL);
        return match error {
            Errno::NOSYS => epoll::wait(epoll, events, Some(timeout)).map(|(events, _)| events),
            error => Err(error),
        };
    };
    // SAFETY: the kernel has written these, and any bytes are an event.
    Ok(unsafe { std::slice::from_raw_parts_mut(events.as_mut_ptr().cast(), count) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::epoll::{CreateFlags, EventData, EventFlags};
    use rustix::event::{EventfdFlags, eventfd};
    use std::time::Instant;

    const WAIT: i64 = 50_000;

    fn timeout() -> Timespec {
        Timespec { tv_sec: 0, tv_nsec: WAIT }
    }

    /// At least one of many waits of 50 us ends within a millisecond.
    #[test]
    fn a_precise_wait_is_not_rounded_up_to_milliseconds() {
        let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
        let waited = (0..200).map(|_| {
            let began = Instant::now();
            assert!(wait(&epoll, &mut [MaybeUninit::uninit(); 4], &timeout()).unwrap().is_empty());
            began.elapsed().as_nanos() as i64
        });
        let shortest = waited.min().unwrap();
        assert!((WAIT..15 * WAIT).contains(&shortest), "{shortest} ns");
    }

    #[test]
    fn a_precise_wait_returns_the_readable_descriptors() {
        let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
        let event = eventfd(1, EventfdFlags::CLOEXEC).unwrap();
        epoll::add(&epoll, &event, EventData::new_u64(7), EventFlags::IN).unwrap();
        let mut events = [MaybeUninit::uninit(); 4];
        let events = wait(&epoll, &mut events, &timeout()).unwrap();
        assert_eq!(events.iter().map(|event| event.data.u64()).collect::<Vec<_>>(), [7]);
    }
}
