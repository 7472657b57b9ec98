//! libxdp, where the host has it: the library that rebuilds a dispatcher of XDP programs. Opened when a program joins or leaves one; without
//! it nothing else fails.
//!
//! ```text
//!  program ─▶ a thread with descriptors of its own ─▶ libxdp ─┬─▶ kernel: another dispatcher at the device, with the program or without
//!                          ▲                                  └─▶ /sys/fs/bpf/xdp: who is in it; libxdp's lock
//!                          └── its words, for our error
//! ```
//!
//! The thread, because libxdp before 1.4.1 leaves descriptors of the others' programs open, and those would stay in the kernel as long as this
//! process lives; and because libxdp says what is wrong to standard error alone.

use rustix::fs::{Access, MemfdFlags, SeekFrom, access, memfd_create, seek};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::ffi::{CStr, c_int, c_long, c_uint, c_void};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The interface of all its releases since 1.0, on Debian the package libxdp1.
const FILE: &CStr = c"libxdp.so.1";
const NOT_INSTALLED: &str =
    "libxdp is not installed, which builds dispatchers anew: apt install libxdp1 (libxdp.so.1)";
/// Where it has its records, in the folder `xdp`, unless its variable names another one.
const RECORDS: &str = "/sys/fs/bpf";
/// By the driver, of its `enum xdp_attach_mode`.
const NATIVE: c_int = 1;
/// Where the thread has the program.
const PROGRAM: RawFd = 3;
/// Of its words, bytes.
const MOST_WORDS: u64 = 4000;

type XdpProgram = *mut c_void;
type FromFd = unsafe extern "C" fn(c_int) -> XdpProgram;
type GetError = unsafe extern "C" fn(*const c_void) -> c_long;
type Change = unsafe extern "C" fn(XdpProgram, c_int, c_int, c_uint) -> c_int;
type Close = unsafe extern "C" fn(XdpProgram);

/// Its functions that we need.
#[derive(Clone, Copy)]
struct Functions {
    from_fd: FromFd,
    get_error: GetError,
    attach: Change,
    detach: Change,
    close: Close,
}

/// What shall be done.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// The program, of the type of extensions, joins the dispatcher of the device.
    Join,
    /// It leaves it; the others stay. The last one takes the dispatcher with it.
    Leave,
}

/// Returns the reason why libxdp cannot be used, if there is one. It would remember the second one itself, as one of the kernel's, until
/// this process ends.
pub(crate) fn obstacle() -> Option<String> {
    if functions().is_none() {
        return Some(NOT_INSTALLED.into());
    }
    let records = std::env::var_os("LIBXDP_BPFFS").unwrap_or_else(|| RECORDS.into());
    let why = io::Error::from(access(&*records, Access::WRITE_OK).err()?);
    Some(format!(
        "{} cannot be written: {why}: there libxdp has its records; the packaged agent needs the drop-in cores.conf",
        records.display()
    ))
}

/// Lets a program join or leave the dispatcher of a device of the calling thread's network namespace. Waits for other processes that
/// change any dispatcher.
///
/// # Errors
/// The words of libxdp. The dispatcher stays as it was.
pub(crate) fn change(step: Step, index: u32, program: BorrowedFd<'_>) -> Result<(), String> {
    // Its own state is not made for threads.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let functions = functions().ok_or(NOT_INSTALLED)?;
    let index = c_int::try_from(index).map_err(|e| e.to_string())?;
    let (done, words) = apart(program, || functions.change(step, index)).map_err(|e| e.to_string())?;
    done.map_err(|error| if words.is_empty() { error.to_string() } else { format!("{error}: {words}") })
}

/// Opens the library, once.
fn functions() -> Option<Functions> {
    static FOUND: OnceLock<Functions> = OnceLock::new();
    if FOUND.get().is_none() {
        // SAFETY: the file is the system's own, below folders of root; its start-up code runs here.
        let library = unsafe { libc::dlopen(FILE.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return None;
        }
        let found = Functions::of(library)?;
        return Some(*FOUND.get_or_init(|| found));
    }
    FOUND.get().copied()
}

impl Functions {
    /// Takes them from the library, which is never closed.
    fn of(library: *mut c_void) -> Option<Self> {
        let symbol = |name: &CStr| {
            // SAFETY: the library is open, and the name ends with a zero.
            let found = unsafe { libc::dlsym(library, name.as_ptr()) };
            (!found.is_null()).then_some(found)
        };
        // SAFETY: each has this type in xdp/libxdp.h since 1.0.
        unsafe {
            Some(Self {
                from_fd: std::mem::transmute::<*mut c_void, FromFd>(symbol(c"xdp_program__from_fd")?),
                get_error: std::mem::transmute::<*mut c_void, GetError>(symbol(c"libxdp_get_error")?),
                attach: std::mem::transmute::<*mut c_void, Change>(symbol(c"xdp_program__attach")?),
                detach: std::mem::transmute::<*mut c_void, Change>(symbol(c"xdp_program__detach")?),
                close: std::mem::transmute::<*mut c_void, Close>(symbol(c"xdp_program__close")?),
            })
        }
    }

    /// Does it with the program at [`PROGRAM`], of which libxdp takes a copy.
    fn change(self, step: Step, index: c_int) -> io::Result<()> {
        // SAFETY: any number may be given; what comes back is an object or an error, as the next call tells.
        let program = unsafe { (self.from_fd)(PROGRAM) };
        // SAFETY: it only looks at the pointer's value.
        let error = unsafe { (self.get_error)(program) };
        if error != 0 || program.is_null() {
            return Err(io::Error::from_raw_os_error(error.unsigned_abs() as i32));
        }
        let change = match step {
            Step::Join => self.attach,
            Step::Leave => self.detach,
        };
        // SAFETY: the object is one of `from_fd`, closed below and not used after that.
        let done = unsafe { change(program, index, NATIVE, 0) };
        // SAFETY: as above.
        unsafe { (self.close)(program) };
        if done < 0 { Err(io::Error::from_raw_os_error(-done)) } else { Ok(()) }
    }
}

/// Runs this in a thread whose descriptors are the program, at [`PROGRAM`], and what it opens itself; also returns what it wrote to standard
/// error.
fn apart<R: Send>(program: BorrowedFd<'_>, work: impl FnOnce() -> R + Send) -> io::Result<(R, String)> {
    let words = memfd_create("libxdp", MemfdFlags::CLOEXEC)?;
    let (from, to) = (program.as_raw_fd(), words.as_raw_fd());
    let run = move || {
        // SAFETY: this thread uses no descriptor that another one opens or closes from now on, but the two that are copied here.
        unsafe { unshare_unsafe(UnshareFlags::FILES) }?;
        // SAFETY: the table is this thread's own; no value of Rust in it owns the descriptors that are replaced or closed.
        unsafe {
            if libc::dup2(to, libc::STDERR_FILENO) < 0 || libc::dup2(from, PROGRAM) < 0 {
                return Err(io::Error::last_os_error());
            }
            // The process's other descriptors would be open here after it closes them. Without this call they are, for a moment.
            libc::syscall(libc::SYS_close_range, PROGRAM + 1, c_uint::MAX, 0);
        }
        Ok(work())
    };
    let result = std::thread::scope(|scope| scope.spawn(run).join());
    let result = result.unwrap_or_else(|_| Err(io::Error::other("the thread of libxdp panicked")))?;
    seek(&words, SeekFrom::Start(0))?;
    let mut bytes = vec![];
    File::from(words).take(MOST_WORDS).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok((result, said(&text)))
}

/// Returns the lines of libxdp as one; those of libbpf alone if there are no others.
fn said(text: &str) -> String {
    let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty());
    let own: Vec<&str> = lines().filter(|line| !line.starts_with("libbpf: ")).collect();
    if own.is_empty() { lines().collect::<Vec<_>>().join("; ") } else { own.join("; ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{PipeWriter, Write, pipe};
    use std::os::fd::AsFd;

    #[test]
    fn what_is_left_open_apart_is_closed_and_what_is_said_comes_back() {
        let (mut reader, writer): (_, PipeWriter) = pipe().unwrap();
        let (left, words) = apart(writer.as_fd(), || {
            // SAFETY: the descriptor is this thread's copy.
            let copy = unsafe { libc::dup(PROGRAM) };
            // SAFETY: standard error is this thread's own file.
            unsafe { libc::write(libc::STDERR_FILENO, c" libxdp: one\n\ntwo ".as_ptr().cast(), 18) };
            copy
        })
        .unwrap();
        assert!(left > PROGRAM, "{left}");
        assert_eq!(words, "libxdp: one; two");
        assert_eq!(said("libbpf: elf: skipping\n libxdp: No bpffs found\n"), "libxdp: No bpffs found");
        assert_eq!(said("libbpf: failed\n"), "libbpf: failed");
        // No copy of the pipe's end is left.
        (&writer).write_all(b"x").unwrap();
        drop(writer);
        let mut all = vec![];
        reader.read_to_end(&mut all).unwrap();
        assert_eq!(all, b"x");
    }
}
