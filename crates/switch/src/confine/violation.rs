//! Denies a system call that is not on the list with EPERM, logs and counts it.
//!
//! ```text
//!  system call ─▶ filter ─trap─▶ SIGSYS ─▶ count, note ─▶ the call returns EPERM
//!                                             └▶ thread `teller` ─▶ one line in the log
//! ```
//!
//! Traffic goes on: no tenant should pay for our bug, or for a new habit of the C library. The calling thread
//! does not write the log, whose reader may stall. The kernel also writes an audit record (type SECCOMP,
//! 1326), which the process cannot prevent. A thread that blocks the signal, or removes the handler, dies at
//! its next violation, with the process.

use super::Error;
use super::syscalls::name_of;
use crate::stats::layout::Counter;
use crate::worker::events::LogWaker;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

/// Violations that wait for the log: many times those of a tenth of a second, the pause of the logging
/// thread. Older ones are only counted.
const NOTES: u64 = 1024;

static COUNT: AtomicU64 = AtomicU64::new(0);
static PUBLISHED: OnceLock<&'static Counter> = OnceLock::new();
/// The latest violations, the n-th at `n % NOTES`.
static LATEST: [Note; NOTES as usize] = [const { Note::new() }; NOTES as usize];
static LOGGED: AtomicU64 = AtomicU64::new(0);
static WAKER: OnceLock<Arc<LogWaker>> = OnceLock::new();

/// One violation. Readers take no lock: its number shows whether it was overwritten.
struct Note {
    /// Number of the violation, from 1; 0 while it is written.
    number: AtomicU64,
    call: AtomicU64,
    /// The thread's name (prctl(2), PR_GET_NAME).
    thread: [AtomicU64; 2],
}

impl Note {
    const fn new() -> Self {
        Self {
            number: AtomicU64::new(0),
            call: AtomicU64::new(0),
            thread: [AtomicU64::new(0), AtomicU64::new(0)],
        }
    }
}

/// Returns the number of system calls denied so far.
pub fn count() -> u64 {
    COUNT.load(Relaxed)
}

/// Handles SIGSYS for all threads, and publishes the count in `counter`.
///
/// # Errors
/// The kernel refused.
pub fn catch(counter: &'static Counter) -> Result<(), Error> {
    // A second switch in the process shares the first one's counter.
    let _ = PUBLISHED.set(counter);
    // SAFETY: sigaction is plain data; all zero means an empty mask and no flag.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = denied as *const () as usize;
    // On the alternate stack, if any, for threads with a full stack.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
    // SAFETY: a valid action, whose handler obeys signal-safety(7).
    if unsafe { libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()) } != 0 {
        let source = io::Error::last_os_error();
        return Err(Error::Right { action: "catch SIGSYS", source });
    }
    Ok(())
}

/// siginfo_t of a SIGSYS (sigaction(2)).
#[repr(C)]
struct Denied {
    signal: i32,
    errno: i32,
    code: i32,
    _padding: i32,
    address: *const libc::c_void,
    call: i32,
    arch: u32,
}

/// si_code of a SIGSYS that a filter raised (sigaction(2)).
const SYS_SECCOMP: i32 = 1;

extern "C" fn denied(_signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a siginfo_t, which is larger than `Denied`.
    let info = unsafe { &*info.cast::<Denied>() };
    if info.code != SYS_SECCOMP {
        return;
    }
    // SAFETY: this thread's errno, which the interrupted code may be about to read.
    let errno = unsafe { *libc::__errno_location() };
    let number = COUNT.fetch_add(1, Relaxed) + 1;
    if let Some(counter) = PUBLISHED.get() {
        counter.raise(number);
    }
    note(number, i64::from(info.call));
    // SAFETY: the context of the interrupted thread, of the type that SA_SIGINFO specifies.
    unsafe { set_result(&mut *context.cast::<libc::ucontext_t>(), -libc::EPERM) };
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Records a violation for the logging thread; does not allocate or wait.
fn note(number: u64, call: i64) {
    let mut thread = [0u8; 16];
    // SAFETY: PR_GET_NAME writes at most 16 bytes, with a NUL (prctl(2)).
    unsafe { libc::prctl(libc::PR_GET_NAME, thread.as_mut_ptr()) };
    let note = &LATEST[(number % NOTES) as usize];
    note.number.store(0, SeqCst);
    note.call.store(call as u64, SeqCst);
    for (word, bytes) in note.thread.iter().zip(thread.chunks_exact(8)) {
        word.store(u64::from_ne_bytes(bytes.try_into().expect("eight bytes")), SeqCst);
    }
    note.number.store(number, SeqCst);
    if let Some(waker) = WAKER.get() {
        waker.wake();
    }
}

/// Makes each violation wake `waker` from now on. Its thread calls [`log_new`].
pub fn wake_on_violation(waker: &Arc<LogWaker>) {
    let _ = WAKER.set(Arc::clone(waker));
}

/// Logs the violations since the last call; `true` if there were any.
pub fn log_new() -> bool {
    let count = COUNT.load(SeqCst);
    let logged = LOGGED.swap(count, SeqCst);
    let first = logged.max(count.saturating_sub(NOTES));
    if first > logged {
        tracing::error!(
            "{} system calls were denied before violation {}, and are counted",
            first - logged,
            first + 1
        );
    }
    for number in first + 1..=count {
        let note = &LATEST[(number % NOTES) as usize];
        let before = note.number.load(SeqCst);
        if before < number && count - number < NOTES / 2 {
            // The denied thread is about to write it.
            LOGGED.store(number - 1, SeqCst);
            return true;
        }
        let (call, name) =
            (note.call.load(SeqCst) as i64, note.thread.each_ref().map(|word| word.load(SeqCst)));
        if before != number || note.number.load(SeqCst) != number {
            continue;
        }
        let bytes = name.map(u64::to_ne_bytes).concat();
        let thread = String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or_default());
        let name = name_of(call).unwrap_or("see ausyscall(8)");
        tracing::error!(
            call,
            "denied system call {call} ({name}) to thread {thread}, violation {number}: \
             a bug, or an intruder controls this switch"
        );
    }
    count > logged
}

#[cfg(target_arch = "x86_64")]
fn set_result(context: &mut libc::ucontext_t, result: i32) {
    context.uc_mcontext.gregs[libc::REG_RAX as usize] = i64::from(result);
}

#[cfg(target_arch = "aarch64")]
fn set_result(context: &mut libc::ucontext_t, result: i32) {
    context.uc_mcontext.regs[0] = i64::from(result) as u64;
}
