//! Least privilege: reduces the process to what carrying frames needs.
//!
//! ```text
//!  one thread                                                          all threads
//!  bind, dial, read ─▶ enclose ─▶ open RDMA devices, start threads ─▶ seal ─▶ frames, ports, captures
//!                       │ user, no capabilities                          │ system calls of a list (seccomp)
//!                       │ no file (landlock)                             └─▶ another one: denied, logged, counted
//!                       └ inherited by every thread
//! ```
//!
//! An attacker who takes the process over through a guest's rings can open no file, connect to no address and
//! start no program. Open descriptors remain: memory and sockets of connected guests, the taps, and
//! `/proc/stat` (read-only). Reasons: `docs/decisions/confinement.md`.
//!
//! - [`privileges`]: user, capabilities, no new privileges
//! - [`filesystem`]: landlock without a rule: no file, no TCP port, no signal to others
//! - [`devices`]: the files of RDMA devices, which landlock leaves
//! - [`syscalls`]: the list of system calls, and the allowed arguments
//! - [`violation`]: handles any other call
//! - `error`: the errors of confinement

pub mod devices;
mod error;
pub mod filesystem;
pub mod privileges;
pub mod syscalls;
pub mod violation;

use crate::stats::layout::Counter;
pub use devices::DeviceFiles;
pub use error::Error;
pub use filesystem::Files;
pub use privileges::User;
pub use syscalls::Calls;

/// The process after [`enclose`]. Threads may start now.
#[must_use = "system calls are not limited yet: call `seal`"]
#[derive(Debug)]
pub struct Enclosed {
    landlock: Option<u32>,
}

/// Gives up all that threads inherit: user, capabilities, files. Call it while the process has one thread,
/// after everything that needs a right is open. Only root can become another `user`.
///
/// # Errors
/// There are other threads, or the user or the kernel refused. Some rights may be gone then, so the process
/// should end. A missing landlock is only a warning: the system call filter covers the same.
pub fn enclose(user: Option<&User>, files: Files) -> Result<Enclosed, Error> {
    // Without /proc they cannot be counted; the important ones start later anyway.
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if threads != 1 {
        return Err(Error::Threads(threads));
    }
    privileges::drop_all(user)?;
    let landlock = filesystem::close(files)?;
    Ok(Enclosed { landlock })
}

impl Enclosed {
    /// Limits all present and future threads to the [list](syscalls) of system calls. Counts others in `denied`.
    ///
    /// # Errors
    /// The kernel has no seccomp filters, or refused the filter.
    pub fn seal(self, denied: &'static Counter, calls: Calls) -> Result<(), Error> {
        let uid = rustix::process::getuid().as_raw();
        settle_allocator();
        violation::catch(denied)?;
        let allowed = syscalls::limit(calls)?;
        let landlock = self.landlock.map_or("none".to_owned(), |abi| format!("ABI {abi}"));
        tracing::info!(uid, landlock, system_calls = allowed, "confined: no capability, no file, no exec");
        Ok(())
    }
}

/// Number of heaps: no thread allocates on the path of a frame.
const HEAPS: i32 = 2;
/// Allocations from this size (bytes) get their own mapping: the C library's default, made fixed.
const MAPPED: i32 = 128 << 10;

/// Prevents the C library's allocator from opening files: it counts the processors before a ninth heap,
/// unless the number of heaps is set, and reads /proc before it shrinks a thread's heap.
///
/// The fixed threshold returns large memory, such as a tap's pool, to the kernel when a port goes. By
/// default, the allocator later takes such memory from a heap and keeps it there.
fn settle_allocator() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the calls only set numbers.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, HEAPS);
        libc::mallopt(libc::M_TRIM_THRESHOLD, libc::c_int::MAX);
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED);
    }
}
