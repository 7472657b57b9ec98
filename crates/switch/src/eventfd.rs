//! Adds to an event counter of a front end without ever waiting.
//!
//! ```text
//!  write(2):      counter full ── O_NONBLOCK? ── no: waits until it is read ✗
//!                                     └─ a flag of the open file, which the front end has as well
//!  io_submit(2):  an empty read of /dev/null, done at once ── its completion adds 1, full or not ✓
//! ```
//!
//! A front end may clear O_NONBLOCK and fill the counter at any moment, also between a check and a write. A
//! blocked worker would stop its other ports, too. No flag of a write to an eventfd says "do not wait"
//! (RWF_NOWAIT is not supported there); a completion (IOCB_FLAG_RESFD) never waits.
//!
//! The same call tells an event counter from other files ([`is_counter`]), without /proc and without a
//! signal: the kernel checks the counter before the read, and the requested read is impossible.

use std::ffi::c_long;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::OnceLock;

/// Capacity of the queue of completions. They carry no information; `signal` empties the queue when it is
/// full.
const COMPLETIONS: usize = 128;

/// One request (linux/aio_abi.h, `struct iocb`).
#[repr(C)]
#[derive(Default)]
struct Iocb {
    data: u64,
    /// The kernel's key and the request's flags, in native byte order; both 0.
    key_and_rw_flags: u64,
    /// 0: read (IOCB_CMD_PREAD).
    opcode: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event: u32,
}

/// The kernel signals the event counter in [`Iocb::event`] on completion.
const IOCB_FLAG_RESFD: u32 = 1;

/// One completion (`struct io_event`).
type IoEvent = [u64; 4];

/// The queue of completions, shared by all threads.
struct Context {
    id: libc::c_ulong,
    /// /dev/null, open for reading.
    null: File,
    /// /dev/null, open only for writing.
    unreadable: File,
}

static CONTEXT: OnceLock<Option<Context>> = OnceLock::new();

/// Opens the files of [`signal`]. Call it before the process gives up its rights; once is enough.
pub fn prepare() {
    CONTEXT.get_or_init(|| {
        Context::new()
            .inspect_err(|error| {
                tracing::warn!(%error, "the kernel allows no asynchronous I/O (io_setup): a hostile front end can stop a worker");
            })
            .ok()
    });
}

/// Whether [`signal`] never waits: [`prepare`] was called, and the kernel has asynchronous I/O.
pub fn never_waits() -> bool {
    CONTEXT.get().is_some_and(Option::is_some)
}

/// Adds 1 to the counter `event`. With asynchronous I/O, never waits.
///
/// # Errors
/// `event` is no eventfd; or, without asynchronous I/O, it is full.
#[inline]
pub fn signal(event: impl AsFd) -> io::Result<()> {
    let event = event.as_fd();
    match CONTEXT.get().and_then(Option::as_ref) {
        Some(context) => context.signal(event.as_raw_fd() as u32),
        None => Ok(rustix::io::write(event, &1u64.to_ne_bytes()).map(drop)?),
    }
}

/// Returns whether `file` is an event counter (eventfd(2)). Epoll, timer, signal and inotify descriptors
/// share its file system, but are none. Nothing is signalled, and the file is not touched.
///
/// # Errors
/// The kernel's answer is neither yes nor no.
pub fn is_counter(file: impl AsFd) -> io::Result<bool> {
    let file = file.as_fd();
    match CONTEXT.get().and_then(Option::as_ref) {
        Some(context) => context.is_counter(file.as_raw_fd() as u32),
        None => takes_numbers(file),
    }
}

/// Without asynchronous I/O: returns whether 8 bytes at an unmapped address pass the kernel's first checks of
/// a write. A file that cannot be written fails with EINVAL or EBADF, any other with EFAULT. Some devices
/// pass for counters.
fn takes_numbers(file: BorrowedFd<'_>) -> io::Result<bool> {
    let nowhere = std::ptr::null::<libc::c_void>();
    // SAFETY: the address is not mapped, so the kernel writes nothing.
    match check(unsafe { libc::syscall(libc::SYS_write, file.as_raw_fd(), nowhere, 8usize) }) {
        Err(error) if error.raw_os_error() == Some(libc::EFAULT) => Ok(true),
        Ok(_) | Err(_) => Ok(false),
    }
}

impl Context {
    fn new() -> io::Result<Self> {
        let null = File::open("/dev/null")?;
        let unreadable = File::options().write(true).open("/dev/null")?;
        let mut id: libc::c_ulong = 0;
        // SAFETY: the kernel writes one word to `id`, which is 0 as required.
        check(unsafe { libc::syscall(libc::SYS_io_setup, COMPLETIONS as c_long, &raw mut id) })?;
        Ok(Self { id, null, unreadable })
    }

    fn signal(&self, event: u32) -> io::Result<()> {
        self.read_nothing(&self.null, event)
    }

    fn is_counter(&self, file: u32) -> io::Result<bool> {
        match self.read_nothing(&self.unreadable, file) {
            // `file` passed as a counter (eventfd_ctx_fdget()); then the kernel refused the read.
            Err(error) if error.raw_os_error() == Some(libc::EBADF) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
            Err(error) => Err(error),
            Ok(()) => Err(io::Error::other("/dev/null is readable through a descriptor for writing")),
        }
    }

    fn read_nothing(&self, file: &File, event: u32) -> io::Result<()> {
        let file = file.as_raw_fd() as u32;
        let mut request = Iocb { file, flags: IOCB_FLAG_RESFD, event, ..Iocb::default() };
        loop {
            let requests = [&raw mut request];
            // SAFETY: the kernel copies the one request before it returns, and the read has length 0.
            let done = check(unsafe {
                libc::syscall(libc::SYS_io_submit, self.id, 1 as c_long, &raw const requests)
            });
            match done {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.take_completions()?,
                done => return done.map(drop),
            }
        }
    }

    #[cold]
    fn take_completions(&self) -> io::Result<()> {
        let mut events: [IoEvent; COMPLETIONS] = [[0; 4]; COMPLETIONS];
        let (least, most) = (0 as c_long, COMPLETIONS as c_long);
        let no_timeout = std::ptr::null::<libc::timespec>();
        // SAFETY: the kernel writes at most `most` completions to `events`; with a least number of 0 it does
        // not wait.
        check(unsafe {
            libc::syscall(libc::SYS_io_getevents, self.id, least, most, events.as_mut_ptr(), no_timeout)
        })
        .map(drop)
    }
}

fn check(result: c_long) -> io::Result<c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
    use std::os::fd::OwnedFd;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    fn count(event: &OwnedFd) -> u64 {
        let mut bytes = [0; 8];
        rustix::io::read(event, &mut bytes).unwrap();
        u64::from_ne_bytes(bytes)
    }

    #[test]
    fn each_signal_adds_one_and_wakes() {
        prepare();
        assert!(CONTEXT.get().unwrap().is_some());
        let event = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let is_ready = || {
            let mut fds = [PollFd::new(&event, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
        };
        assert!(!is_ready());
        // More signals than the queue holds, from several threads.
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| signal(&event).unwrap()));
            }
        });
        assert!(is_ready());
        assert_eq!(count(&event), 4000);
        assert!(!is_ready());
    }

    #[test]
    fn a_full_counter_that_blocks_is_not_waited_for() {
        prepare();
        let event = eventfd(0, EventfdFlags::empty()).unwrap();
        rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        let (told, done) = channel();
        let ours = event.try_clone().unwrap();
        std::thread::spawn(move || {
            (0..3).for_each(|_| signal(&ours).unwrap());
            told.send(()).unwrap();
        });
        done.recv_timeout(Duration::from_secs(20)).expect("it did not wait");
        assert_eq!(count(&event), u64::MAX);
    }

    /// Other descriptors with their names, most from the same file system.
    fn others() -> Vec<(&'static str, OwnedFd)> {
        use std::os::fd::FromRawFd;
        let own = |fd: i32| {
            assert!(fd >= 0, "{}", io::Error::last_os_error());
            // SAFETY: a new descriptor without another owner.
            unsafe { OwnedFd::from_raw_fd(fd) }
        };
        // SAFETY: plain calls; the mask is empty and live.
        let (timer, inotify, signals, pidfd) = unsafe {
            let mask: libc::sigset_t = std::mem::zeroed();
            (
                own(libc::timerfd_create(libc::CLOCK_MONOTONIC, 0)),
                own(libc::inotify_init1(0)),
                own(libc::signalfd(-1, &raw const mask, 0)),
                own(libc::syscall(libc::SYS_pidfd_open, std::process::id(), 0) as i32),
            )
        };
        let (reader, writer) = std::io::pipe().unwrap();
        vec![
            ("an epoll", rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap()),
            ("a timer", timer),
            ("an inotify descriptor", inotify),
            ("a signal descriptor", signals),
            ("a process descriptor", pidfd),
            ("a socket", std::os::unix::net::UnixStream::pair().unwrap().0.into()),
            ("a pipe to read", reader.into()),
            ("a pipe to write", writer.into()),
            ("a memfd", rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).unwrap()),
            ("/dev/null", File::open("/dev/null").unwrap().into()),
        ]
    }

    #[test]
    fn event_counters_are_recognised_and_not_touched() {
        prepare();
        for flags in [EventfdFlags::empty(), EventfdFlags::NONBLOCK, EventfdFlags::SEMAPHORE] {
            let event = eventfd(3, flags).unwrap();
            assert!(is_counter(&event).unwrap() && takes_numbers(event.as_fd()).unwrap());
            assert_eq!(count(&event), if flags == EventfdFlags::SEMAPHORE { 1 } else { 3 });
        }
        let full = eventfd(0, EventfdFlags::empty()).unwrap();
        rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        assert!(is_counter(&full).unwrap());
        for (what, file) in others() {
            assert!(!is_counter(&file).unwrap(), "{what}");
        }
        for (what, file) in others().iter().take(5) {
            assert!(!takes_numbers(file.as_fd()).unwrap(), "{what}, without asynchronous I/O");
        }
    }

    #[test]
    fn other_descriptors_are_refused_and_not_written() {
        prepare();
        let (reader, writer) = std::io::pipe().unwrap();
        assert!(signal(&writer).is_err());
        drop(writer);
        assert_eq!(std::io::read_to_string(reader).unwrap(), "");
    }
}
