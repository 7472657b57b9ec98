//! A system call that is not on the list: denied with EPERM, logged, counted.
//!
//! ```text
//!  system call ─▶ filter ─trap─▶ SIGSYS ─▶ count, one line to stderr ─▶ the call returns EPERM
//! ```
//!
//! Traffic goes on: if it is a bug of ours, or a new C library's habit, no tenant should pay for it.
//! The kernel writes an audit record of its own (type SECCOMP, 1326), which the process cannot prevent.
//! Whoever blocks the signal or takes the handler away dies of the next violation.

use super::Error;
use super::syscalls::name_of;
use crate::stats::layout::Counter;
use std::fmt::Write;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Violations logged one by one; after that, every power of two. A loop must not fill the disk.
const LOGGED: u64 = 128;

static COUNT: AtomicU64 = AtomicU64::new(0);
/// Where others read it.
static PUBLISHED: OnceLock<&'static Counter> = OnceLock::new();

/// System calls denied so far.
pub fn count() -> u64 {
    COUNT.load(Relaxed)
}

/// Takes SIGSYS, for all threads; the count is published in `counter`.
///
/// # Errors
/// The kernel refused.
pub fn catch(counter: &'static Counter) -> Result<(), Error> {
    // A second switch in the process shares the first one's.
    let _ = PUBLISHED.set(counter);
    // SAFETY: sigaction is plain data; all zero is an empty mask and no flag.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = denied as *const () as usize;
    // On the alternate stack, where there is one: a thread whose stack is full is denied like others.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
    // SAFETY: a valid action, whose handler only does what signal-safety(7) allows.
    if unsafe { libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()) } != 0 {
        let source = io::Error::last_os_error();
        return Err(Error::Right { what: "catch SIGSYS", source });
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
    // SAFETY: the kernel passes a siginfo_t, which is larger than the part of it that is read here.
    let info = unsafe { &*info.cast::<Denied>() };
    if info.code != SYS_SECCOMP {
        return;
    }
    // SAFETY: the address of this thread's errno, which the interrupted code may be about to read.
    let errno = unsafe { *libc::__errno_location() };
    let number = COUNT.fetch_add(1, Relaxed) + 1;
    if let Some(counter) = PUBLISHED.get() {
        counter.raise(number);
    }
    if number <= LOGGED || number.is_power_of_two() {
        say(i64::from(info.call), number);
    }
    // SAFETY: the context of the interrupted thread, of the type that SA_SIGINFO says.
    unsafe { set_result(&mut *context.cast::<libc::ucontext_t>(), -libc::EPERM) };
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// One line to standard error, in one write and without allocation.
fn say(call: i64, number: u64) {
    let mut thread = [0u8; 16];
    // SAFETY: PR_GET_NAME writes at most 16 bytes, with a NUL (prctl(2)).
    unsafe { libc::prctl(libc::PR_GET_NAME, thread.as_mut_ptr()) };
    let thread = thread.split(|&byte| byte == 0).next().unwrap_or_default();
    let thread = std::str::from_utf8(thread).unwrap_or("?");
    let mut line = Line::default();
    let name = name_of(call).unwrap_or("see ausyscall(8)");
    let _ = writeln!(
        line,
        "tidegate: denied system call {call} ({name}) to thread {thread}, violation {number}: \
         a bug, or somebody else runs this switch"
    );
    // SAFETY: the bytes are initialised and live. Where nobody reads them there is nothing to be done.
    unsafe { libc::write(libc::STDERR_FILENO, line.bytes.as_ptr().cast(), line.len) };
}

/// A line on the stack; what does not fit is left out.
struct Line {
    bytes: [u8; 256],
    len: usize,
}

impl Default for Line {
    fn default() -> Self {
        Self { bytes: [0; 256], len: 0 }
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let room = &mut self.bytes[self.len..];
        let len = text.len().min(room.len());
        room[..len].copy_from_slice(&text.as_bytes()[..len]);
        self.len += len;
        Ok(())
    }
}

/// What the denied call returns when the handler is done.
#[cfg(target_arch = "x86_64")]
fn set_result(context: &mut libc::ucontext_t, result: i32) {
    context.uc_mcontext.gregs[libc::REG_RAX as usize] = i64::from(result);
}

/// What the denied call returns when the handler is done.
#[cfg(target_arch = "aarch64")]
fn set_result(context: &mut libc::ucontext_t, result: i32) {
    context.uc_mcontext.regs[0] = i64::from(result) as u64;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_too_long_is_cut() {
        let mut line = Line::default();
        write!(line, "{}", "x".repeat(300)).unwrap();
        write!(line, "y").unwrap();
        assert_eq!(line.len, 256);
        assert!(line.bytes.iter().all(|&byte| byte == b'x'));
    }
}
