//! Guest memory that its front end takes away during use costs the front end's port, not the process.
//!
//! ```text
//!  front end: ftruncate(memfd)            worker: load, store, copy ──▶ SIGBUS at an address
//!                                                                            │
//!  watched mappings ─────── whose is it? ◀───────────────────────────────────┘
//!        │                     │ no port's: the action there was before, so a bug of ours still ends us
//!        │                     ▼
//!        │         zeros in place of what is left of the mapping; the instruction goes on
//!        ▼
//!  lost() ──▶ the workers, once a loop ──▶ the port is broken, its connection ends
//! ```
//!
//! A page lost to broken hardware (BUS_MCEERR_AR) ends the same way, as does a huge page that the pool
//! lacks.
//!
//! The table is process-wide, as the signal is. A lock guards making and removing entries; the handler only
//! loads. A thread that touches guest memory keeps its mapping until the access is done, so the entry of a
//! fault cannot be removed meanwhile.

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::ffi::{c_int, c_void};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Watched mappings: for every port of a switch the largest table and a dirty log, twice, while a new one
/// replaces an old one. No front end can use up another one's.
const ENTRIES: usize = crate::capacity::VNICS * (crate::quota::MAX_REGIONS + 1) * 2;

/// Why a port whose memory was lost is disconnected.
pub const REASON: &str =
    "guest memory was taken away while it was in use (its file was truncated, or a page of it is broken)";

struct Entry {
    /// Address of the first byte; 0 if the entry is free.
    start: AtomicUsize,
    len: AtomicUsize,
    /// Size of its pages, a power of two.
    page: AtomicUsize,
    lost: AtomicBool,
}

static TABLE: [Entry; ENTRIES] = [const {
    Entry {
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        page: AtomicUsize::new(0),
        lost: AtomicBool::new(false),
    }
}; ENTRIES];

/// No entry from here on was ever used.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Held during changes of entries.
static CHANGING: Mutex<()> = Mutex::new(());

/// Faults caught so far.
static LOST: AtomicU64 = AtomicU64::new(0);

/// The former action for SIGBUS.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Returns how often this process found guest memory lost. After a change, some port's
/// [`GuestMemory::is_lost`](super::GuestMemory::is_lost) is true.
#[inline]
pub fn losses() -> u64 {
    LOST.load(Ordering::Acquire)
}

/// One mapping that may be lost.
#[derive(Debug)]
pub(super) struct Watch(usize);

impl Watch {
    /// Watches `len` bytes at `start`, whole pages of `page` bytes; `None` if the table is full. Drop it
    /// before unmapping.
    pub(super) fn new(start: *const c_void, len: usize, page: usize) -> Option<Self> {
        let _changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
        let index = TABLE.iter().position(|entry| entry.start.load(Ordering::Relaxed) == 0)?;
        let entry = &TABLE[index];
        entry.lost.store(false, Ordering::Relaxed);
        entry.len.store(len, Ordering::Relaxed);
        entry.page.store(page, Ordering::Relaxed);
        entry.start.store(start.addr(), Ordering::Release);
        USED.fetch_max(index + 1, Ordering::Release);
        Some(Self(index))
    }

    /// Whether a part of it was lost.
    pub(super) fn is_lost(&self) -> bool {
        TABLE[self.0].lost.load(Ordering::Acquire)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
        TABLE[self.0].start.store(0, Ordering::Release);
    }
}

/// Catches SIGBUS in guest memory from now on, in this process. Once suffices.
///
/// # Errors
/// The kernel refused.
pub fn install() -> io::Result<()> {
    static INSTALLED: Mutex<bool> = Mutex::new(false);
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if *installed {
        return Ok(());
    }
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_sigbus;
    // SAFETY: all zeros is an action without mask or flags; the rest is set before it is used.
    let (mut action, mut before): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as libc::sighandler_t;
    // On the alternate stack, so that a stack overflow is still reported as one.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: both are valid; the handler calls nothing that is not async-signal-safe.
    if unsafe { libc::sigaction(libc::SIGBUS, &action, &mut before) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let _ = BEFORE.set(before);
    *installed = true;
    Ok(())
}

/// Atomics and raw system calls only: no lock, no allocation, errno untouched unless the process ends.
extern "C" fn on_sigbus(_signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo; its address is set for faults, which have a positive code.
    let (by_fault, at) = unsafe { ((*info).si_code > 0, (*info).si_addr().addr()) };
    if by_fault && replace(at) {
        return;
    }
    // The former handler expects the access to be repeated; a sender of the signal wants us to end.
    let before = BEFORE.get().filter(|_| by_fault).copied();
    // SAFETY: an action that was valid before, or the default one, which is all zeros. Returning then
    // repeats the access, or delivers the raised signal; if neither is possible, the process ends here.
    unsafe {
        let before = before.unwrap_or_else(|| std::mem::zeroed());
        if libc::sigaction(libc::SIGBUS, &before, std::ptr::null_mut()) != 0 {
            libc::_exit(128 + libc::SIGBUS);
        }
        if !by_fault {
            libc::raise(libc::SIGBUS);
        }
    }
}

/// Replaces the watched mapping that contains `at` by zeros, from that page on: truncated pages are not
/// mapped any more, so this takes no time. `false` if no mapping contains it.
fn replace(at: usize) -> bool {
    for entry in &TABLE[..USED.load(Ordering::Acquire)] {
        let start = entry.start.load(Ordering::Acquire);
        let (len, page) = (entry.len.load(Ordering::Relaxed), entry.page.load(Ordering::Relaxed));
        if start == 0 || at.wrapping_sub(start) >= len {
            continue;
        }
        let from = at & !(page - 1);
        // A mapping in two parts may be one more than the process may have.
        if !zeros(from, start + len - from) && !zeros(start, len) {
            return false;
        }
        entry.lost.store(true, Ordering::Release);
        LOST.fetch_add(1, Ordering::Release);
        return true;
    }
    false
}

/// Replaces `len` mapped bytes at `start` by zeros of this process alone.
fn zeros(start: usize, len: usize) -> bool {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    let start = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: inside a watched mapping, which exists while a thread accesses it; code that reads or writes
    // there expects any bytes at any time.
    unsafe { mmap_anonymous(start, len, protection, flags) }.is_ok()
}

#[cfg(test)]
mod tests {
    use super::super::memory::{GuestMemory, RegionSpec};
    use super::*;
    use rustix::fs::ftruncate;
    use std::process::Command;
    use tidegate_frontend::memory::SharedMemory;

    const SIZE: u64 = 16 << 12;

    fn map(shared: &SharedMemory, offset: u64, size: u64) -> GuestMemory {
        let fd = shared.fd().try_clone_to_owned().unwrap();
        let spec = RegionSpec { guest_addr: offset, user_addr: offset, size, mmap_offset: offset, fd };
        GuestMemory::map(vec![spec]).unwrap()
    }

    fn byte(memory: &GuestMemory, gpa: u64) -> *mut u8 {
        memory.translate(gpa, 1).unwrap()
    }

    #[test]
    fn lost_pages_read_as_zeros_and_their_memory_knows() {
        install().unwrap();
        let (cut, whole) =
            (SharedMemory::new(0, SIZE as usize).unwrap(), SharedMemory::new(0, SIZE as usize).unwrap());
        cut.write(0, &[7; SIZE as usize]);
        whole.write(0, &[8; SIZE as usize]);
        let (a, b) = (map(&cut, 0, SIZE), map(&whole, 0, SIZE));
        let before = losses();
        ftruncate(cut.fd(), 4 << 12).unwrap();
        assert!(!a.is_lost());
        // SAFETY: translated addresses of mapped memory; no other thread uses them.
        unsafe {
            assert_eq!(byte(&a, (4 << 12) - 1).read_volatile(), 7);
            assert_eq!(byte(&a, 8 << 12).read_volatile(), 0);
            assert!(a.is_lost() && losses() > before);
            byte(&a, SIZE - 1).write_volatile(3);
            assert_eq!(byte(&a, SIZE - 1).read_volatile(), 3);
            // Below the first fault: found lost by a fault of its own.
            byte(&a, 4 << 12).write_volatile(5);
            assert_eq!((byte(&a, 4 << 12).read_volatile(), byte(&a, 0).read_volatile()), (5, 7));
            assert_eq!(byte(&b, SIZE - 1).read_volatile(), 8);
        }
        assert!(!b.is_lost());
    }

    #[test]
    fn many_threads_may_find_memory_lost_at_once() {
        install().unwrap();
        for _ in 0..50 {
            let cut = SharedMemory::new(0, SIZE as usize).unwrap();
            let (a, b) = (map(&cut, 0, SIZE), map(&cut, 1 << 12, SIZE - (1 << 12)));
            ftruncate(cut.fd(), 1 << 12).unwrap();
            std::thread::scope(|scope| {
                for n in 1..8 {
                    let memory = if n % 2 == 0 { &a } else { &b };
                    // SAFETY: as above.
                    scope.spawn(move || unsafe { byte(memory, n << 13).write_volatile(1) });
                }
            });
            assert!(a.is_lost() && b.is_lost());
        }
    }

    #[test]
    fn entries_are_used_again() {
        install().unwrap();
        let cut = SharedMemory::new(0, SIZE as usize).unwrap();
        for _ in 0..100 {
            drop(map(&cut, 0, SIZE));
        }
        assert!(USED.load(Ordering::Relaxed) < 100);
    }

    #[test]
    fn other_faults_still_end_the_process() {
        use std::os::unix::process::ExitStatusExt;
        const HOW: &str = "TIDEGATE_TEST_SIGBUS";
        install().unwrap();
        match std::env::var(HOW).as_deref() {
            // This test in a process of its own, which it ends.
            Ok("touch") => {
                let cut = SharedMemory::new(0, SIZE as usize).unwrap();
                ftruncate(cut.fd(), 0).unwrap();
                cut.bytes(0, 1);
            }
            Ok(_) => {
                // SAFETY: a signal to ourselves.
                unsafe { libc::raise(libc::SIGBUS) };
            }
            Err(_) => {
                for how in ["touch", "raise"] {
                    let name = "virtio::sigbus::tests::other_faults_still_end_the_process";
                    let mut child = Command::new(std::env::current_exe().unwrap());
                    let output = child.args(["--exact", name]).env(HOW, how).output().unwrap();
                    assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{how}: {output:?}");
                }
            }
        }
    }
}
