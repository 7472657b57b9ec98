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
//! process lives; because libxdp says what is wrong to standard error alone; and because libxdp waits for its lock, which another process may
//! hold as long as that likes. So we wait for the thread a limited time, and then leave it to itself: no second one starts before that ends.

use rustix::fs::{Access, MemfdFlags, SeekFrom, access, memfd_create, seek};
use rustix::process::geteuid;
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::ffi::{CStr, c_int, c_long, c_uint, c_void};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

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
/// How long one step may take: the kernel's own work is a matter of a second, the rest is waiting for others.
const PATIENCE: Duration = Duration::from_secs(20);
/// Permissions by which others than the owner could make a folder's files.
const OTHERS_WRITE: u32 = 0o022;
/// Why it does not end.
const HELD: &str =
    "another process holds its lock, the folder xdp (fuser -v /sys/fs/bpf/xdp names the process)";
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

/// The thread that was left to itself.
type Left = Mutex<Option<JoinHandle<()>>>;
/// One at a time: libxdp's own state is not made for threads.
static LEFT: Left = Mutex::new(None);

/// Returns the reason why libxdp cannot be used, if there is one.
pub(crate) fn obstacle() -> Option<String> {
    if functions().is_none() {
        return Some(NOT_INSTALLED.into());
    }
    let records = std::env::var_os("LIBXDP_BPFFS").unwrap_or_else(|| RECORDS.into());
    unusable(Path::new(&records)).or_else(undecided)
}

/// Returns the reason why the kernel does not yet tell who will be in a dispatcher, if there is one: a step that we no longer wait for.
pub(crate) fn undecided() -> Option<String> {
    turn(&LEFT).err()
}

/// Returns the reason why its records here cannot be used, if there is one. Where others could write, they could make the records or hold
/// the lock, and libxdp would follow them with our rights.
fn unusable(records: &Path) -> Option<String> {
    // libxdp would remember this itself, as one of the kernel's, until this process ends.
    if let Err(why) = access(records, Access::WRITE_OK) {
        return Some(format!(
            "{} cannot be written: {}: there libxdp has its records; the packaged agent needs the drop-in cores.conf",
            records.display(),
            io::Error::from(why)
        ));
    }
    let owners = [0, geteuid().as_raw()];
    [records.to_owned(), records.join("xdp")].iter().find_map(|folder| {
        let found = match folder.symlink_metadata() {
            // libxdp makes it for its owner alone.
            Err(why) if why.kind() == io::ErrorKind::NotFound => return None,
            Err(why) => return Some(format!("{} cannot be looked at: {why}", folder.display())),
            Ok(found) => found,
        };
        let is_ours = owners.contains(&found.uid()) && found.mode() & OTHERS_WRITE == 0 && found.is_dir();
        (!is_ours).then(|| {
            format!(
                "{folder} is not a folder that root alone can write (owner {}, mode {:o}), and libxdp would trust the records in it: chown root \
                 {folder} && chmod 700 {folder}, after a look into it",
                found.uid(),
                found.mode() & 0o7777,
                folder = folder.display()
            )
        })
    })
}

/// Lets a program join or leave the dispatcher of a device of the calling thread's network namespace. Waits for other processes that
/// change any dispatcher, 20 s at most.
///
/// # Errors
/// The words of libxdp, or an [`obstacle`], and the dispatcher stays as it was. Or the time is over: the program may join or leave later.
pub(crate) fn change(step: Step, index: u32, program: BorrowedFd<'_>) -> Result<(), String> {
    if let Some(why) = obstacle() {
        return Err(why);
    }
    let functions = functions().ok_or(NOT_INSTALLED)?;
    let index = c_int::try_from(index).map_err(|e| e.to_string())?;
    let (done, words) = apart(&LEFT, PATIENCE, program, move || functions.change(step, index))?;
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

/// Waits for the step of another thread of ours.
///
/// # Errors
/// One is left to itself, and has not ended.
fn turn(left: &Left) -> Result<MutexGuard<'_, Option<JoinHandle<()>>>, String> {
    let mut turn = left.lock().unwrap_or_else(PoisonError::into_inner);
    if turn.as_ref().is_some_and(|thread| !thread.is_finished()) {
        return Err(format!("a former step of libxdp has not ended: {HELD}"));
    }
    *turn = None;
    Ok(turn)
}

/// Runs this in a thread whose descriptors are the program, at [`PROGRAM`], and what it opens itself; also returns what it wrote to standard
/// error.
///
/// # Errors
/// The thread does not start, panics, or needs more time than this: then it goes on, and no other one begins before its end.
fn apart<R: Send + 'static>(
    left: &Left,
    patience: Duration,
    program: BorrowedFd<'_>,
    work: impl FnOnce() -> R + Send + 'static,
) -> Result<(R, String), String> {
    let mut turn = turn(left)?;
    let words = memfd_create("libxdp", MemfdFlags::CLOEXEC).map_err(|e| e.to_string())?;
    let (from, to) = (program.as_raw_fd(), words.as_raw_fd());
    let (began, begin) = channel();
    let (done, end) = channel();
    let run = move || {
        let ready = own_descriptors(from, to);
        let is_ready = ready.is_ok();
        let _ = began.send(ready);
        if is_ready {
            let _ = done.send(work());
        }
    };
    let thread = std::thread::Builder::new().name("libxdp".into()).spawn(run).map_err(|e| e.to_string())?;
    // Until then it needs our descriptors.
    begin.recv().map_err(|e| e.to_string())?.map_err(|e| e.to_string())?;
    let result = match end.recv_timeout(patience) {
        Err(RecvTimeoutError::Timeout) => {
            *turn = Some(thread);
            return Err(format!("libxdp has not ended after {} s: {HELD}", patience.as_secs()));
        }
        result => result,
    };
    let _ = thread.join();
    let result = result.map_err(|_| "the thread of libxdp panicked")?;
    let mut bytes = vec![];
    let read = seek(&words, SeekFrom::Start(0)).map_err(io::Error::from);
    let read = read.and_then(|_| File::from(words).take(MOST_WORDS).read_to_end(&mut bytes));
    read.map_err(|e| e.to_string())?;
    Ok((result, said(&String::from_utf8_lossy(&bytes))))
}

/// Gives this thread a table of descriptors of its own: a file as standard error, and the program at [`PROGRAM`].
fn own_descriptors(program: RawFd, words: RawFd) -> io::Result<()> {
    // SAFETY: this thread uses no descriptor that another one opens or closes from now on, but the two that are copied here.
    unsafe { unshare_unsafe(UnshareFlags::FILES) }?;
    // SAFETY: the table is this thread's own; no value of Rust in it owns the descriptors that are replaced or closed.
    unsafe {
        if libc::dup2(words, libc::STDERR_FILENO) < 0 || libc::dup2(program, PROGRAM) < 0 {
            return Err(io::Error::last_os_error());
        }
        // The process's other descriptors would be open here after it closes them. Without this call they are, for a moment.
        libc::syscall(libc::SYS_close_range, PROGRAM + 1, c_uint::MAX, 0);
    }
    Ok(())
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
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn what_is_left_open_apart_is_closed_and_what_is_said_comes_back() {
        let (mut reader, writer): (_, PipeWriter) = pipe().unwrap();
        let none = Left::default();
        let (left, words) = apart(&none, PATIENCE, writer.as_fd(), || {
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

    #[test]
    fn a_step_that_does_not_end_is_left_to_itself_and_none_begins_meanwhile() {
        let left = Left::default();
        let (release, held) = channel::<()>();
        let program = File::open("/dev/null").unwrap();
        let run = |patience, work: Box<dyn FnOnce() + Send>| {
            apart(&left, Duration::from_millis(patience), program.as_fd(), work)
        };
        let error = run(50, Box::new(move || _ = held.recv())).unwrap_err();
        assert!(
            error.starts_with("libxdp has not ended after 0 s: another process holds its lock"),
            "{error}"
        );
        let error = run(60_000, Box::new(|| ())).unwrap_err();
        assert!(error.starts_with("a former step of libxdp has not ended"), "{error}");
        drop(release);
        while turn(&left).is_err() {
            std::thread::yield_now();
        }
        run(60_000, Box::new(|| ())).unwrap();
    }

    #[test]
    fn records_that_others_can_write_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let xdp = root.path().join("xdp");
        let allow = |folder: &Path, mode| {
            std::fs::set_permissions(folder, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        let is_refused = |text: &str| unusable(root.path()).is_some_and(|why| why.contains(text));
        allow(root.path(), 0o1777);
        assert!(is_refused(&format!("chmod 700 {}", root.path().display())), "{:?}", unusable(root.path()));
        allow(root.path(), 0o755);
        assert_eq!(unusable(root.path()), None);
        std::fs::create_dir(&xdp).unwrap();
        allow(&xdp, 0o700);
        assert_eq!(unusable(root.path()), None);
        allow(&xdp, 0o770);
        assert!(is_refused("mode 770"), "{:?}", unusable(root.path()));
        allow(&xdp, 0o700);
        // Another user's.
        if geteuid().is_root() {
            std::os::unix::fs::chown(&xdp, Some(1000), None).unwrap();
            assert!(is_refused("owner 1000"), "{:?}", unusable(root.path()));
        }
        std::fs::remove_dir(&xdp).unwrap();
        std::os::unix::fs::symlink("/", &xdp).unwrap();
        assert!(is_refused("xdp is not a folder"), "{:?}", unusable(root.path()));
    }
}
