//! Least privilege: what the process can still do once frames flow, and nothing else.
//!
//! ```text
//!  one thread                                     all threads
//!  bind, dial, read ─▶ enclose ─▶ start threads ─▶ seal ─▶ frames, ports, captures
//!                       │ user, no capabilities     │ system calls of a list (seccomp)
//!                       │ no file (landlock)        └─▶ another one: denied, logged, counted
//!                       └ inherited by every thread
//! ```
//!
//! An attacker who takes the process over by way of a guest's rings finds no file to open, no address to
//! connect to and no program to start. What it holds it keeps: memory of the guests that are
//! connected, their sockets, the taps, and `/proc/stat`, open to read. Why it is done like this: `docs/decisions/confinement.md`.
//!
//! - [`privileges`]: user, capabilities, no new privileges
//! - [`filesystem`]: landlock without a rule: no file, no TCP port, no signal to others
//! - [`syscalls`]: the list of system calls, and what may stand in their arguments
//! - [`violation`]: what happens to any other

mod error;
pub mod filesystem;
pub mod privileges;
pub mod syscalls;
pub mod violation;

use crate::stats::layout::Counter;
pub use error::Error;
pub use privileges::User;

/// The process as [`enclose`] left it; threads may be started now.
#[must_use = "system calls are not limited yet: call `seal`"]
#[derive(Debug)]
pub struct Enclosed {
    landlock: Option<u32>,
}

/// Gives up everything that threads inherit: user, capabilities, files. To be called while the
/// process has one thread, when everything that needs a right is open.
/// Only root can become another `user`.
///
/// # Errors
/// There are other threads, the user is refused, or the kernel refused. The process may have
/// lost some of its rights then, and should end. A kernel without landlock is no error: it is said
/// in the log, and the limit on system calls covers the same.
pub fn enclose(user: Option<&User>) -> Result<Enclosed, Error> {
    // Without /proc there is nothing to count; the threads that matter are ours to start anyway.
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if threads != 1 {
        return Err(Error::Threads(threads));
    }
    privileges::drop_all(user)?;
    let landlock = filesystem::close()?;
    Ok(Enclosed { landlock })
}

impl Enclosed {
    /// Limits all threads, and those still to be started, to the [list](syscalls) of system calls.
    /// Others are counted in `denied`.
    ///
    /// # Errors
    /// The kernel has no seccomp filters, or refused this one.
    pub fn seal(self, denied: &'static Counter) -> Result<(), Error> {
        let uid = rustix::process::getuid().as_raw();
        settle_allocator();
        violation::catch(denied)?;
        let allowed = syscalls::limit()?;
        let landlock = self.landlock.map_or("none".to_owned(), |abi| format!("ABI {abi}"));
        tracing::info!(uid, landlock, system_calls = allowed, "confined: no capability, no file, no exec");
        Ok(())
    }
}

/// Heaps: no thread allocates on the path of a frame, and each keeps what it once had.
const HEAPS: i32 = 2;
/// From this size on memory is a mapping of its own, bytes: the C library's own default, made fixed.
const MAPPED: i32 = 128 << 10;

/// The C library's allocator opens two files at some time: it counts the processors before it makes
/// a ninth heap for a new thread, unless the number of heaps is set; and it looks into /proc before it makes
/// a thread's heap smaller. With a number, and without ever making one smaller, it opens none.
///
/// It also learns: what was large once, such as a tap's pool, is later taken from a heap and kept there.
/// With a fixed threshold it goes back to the kernel when a port goes.
fn settle_allocator() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets numbers.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, HEAPS);
        libc::mallopt(libc::M_TRIM_THRESHOLD, libc::c_int::MAX);
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED);
    }
}
