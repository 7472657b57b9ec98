//! What an intruder in control of a switch would try: one system call each.

use std::ffi::{CString, c_char};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::ptr::null_mut;
use tidegate_switch::confine::syscalls::RDMA_VERBS_IOCTL;

type Arguments = [usize; 6];

pub struct Attempt {
    /// Completes "a compromised switch cannot ...".
    pub name: &'static str,
    pub call: i64,
    pub arguments: fn(&Held) -> Arguments,
    /// Whether any user may make the call. Such calls are first tried unconfined, so that a denial proves
    /// something.
    pub works: bool,
}

/// What the process already holds, and an intruder may use.
pub struct Held {
    pub parent: usize,
    tcp: OwnedFd,
    udp: OwnedFd,
    unix: OwnedFd,
    datagram: OwnedFd,
    program: OwnedFd,
    page: usize,
    listener: Box<libc::sockaddr_in>,
    anywhere: Box<libc::sockaddr_in>,
    abstract_listener: Box<libc::sockaddr_un>,
    abstract_own: Box<libc::sockaddr_un>,
    victim: CString,
    new: CString,
    /// Of two RDMA devices the device, and a file about the device.
    devices: [[CString; 2]; 2],
    argv: Box<[usize; 3]>,
    scratch: Box<[u64; 64]>,
}

impl Held {
    /// Must run before the process gives up its rights.
    pub fn new(dir: &Path, parent: u32, port: u16) -> Self {
        let socket = |family, kind| {
            // SAFETY: a call without pointers.
            let fd = unsafe { libc::socket(family, kind, 0) };
            assert!(fd >= 0);
            // SAFETY: a new descriptor, not owned elsewhere.
            unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd) }
        };
        let inet = |port: u16| libc::sockaddr_in {
            sin_family: libc::AF_INET as u16,
            sin_port: port.to_be(),
            sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([127, 0, 0, 1]) },
            sin_zero: [0; 8],
        };
        let path = |name: &str| CString::new(dir.join(name).to_str().unwrap()).unwrap();
        // SAFETY: a new private mapping that replaces no other.
        let page = unsafe {
            let (protection, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            libc::mmap(null_mut(), 4096, protection, flags, -1, 0)
        };
        Self {
            parent: parent as usize,
            tcp: socket(libc::AF_INET, libc::SOCK_STREAM),
            udp: socket(libc::AF_INET, libc::SOCK_DGRAM),
            unix: socket(libc::AF_UNIX, libc::SOCK_STREAM),
            datagram: UnixDatagram::unbound().unwrap().into(),
            program: std::fs::File::open("/bin/echo").unwrap().into(),
            page: page as usize,
            listener: Box::new(inet(port)),
            anywhere: Box::new(inet(0)),
            abstract_listener: Box::new(abstract_address(parent)),
            abstract_own: Box::new(abstract_address(std::process::id())),
            victim: path("victim"),
            new: path("new"),
            devices: [0, 1].map(|n| {
                let about = format!("sys/class/infiniband/rxe{n}/node_type");
                [path(&format!("dev/infiniband/uverbs{n}")), path(&about)]
            }),
            argv: Box::new([c"echo".as_ptr() as usize, c"escaped".as_ptr() as usize, 0]),
            scratch: Box::new([0; 64]),
        }
    }

    fn scratch(&self) -> usize {
        self.scratch.as_ptr() as usize
    }
}

pub fn abstract_address(pid: u32) -> libc::sockaddr_un {
    let mut address = libc::sockaddr_un { sun_family: libc::AF_UNIX as u16, sun_path: [0; 108] };
    for (to, from) in address.sun_path[1..].iter_mut().zip(format!("tidegate-confine-{pid:010}").bytes()) {
        *to = from as c_char;
    }
    address
}

/// Family, NUL and name.
pub const ABSTRACT_LEN: usize = 2 + 1 + 27;

/// Makes the call. Returns the error number if it fails.
pub fn make(attempt: &Attempt, held: &Held) -> Result<(), i32> {
    let [a, b, c, d, e, f] = (attempt.arguments)(held);
    // SAFETY: pointer arguments lead into `held` or static data of the size that the call reads or writes;
    // the effect of a successful call on this process is what the test measures.
    let result = unsafe { libc::syscall(attempt.call, a, b, c, d, e, f) };
    if result == 0 && attempt.name.starts_with("fork") {
        // SAFETY: the new process ends at once.
        unsafe { libc::_exit(0) };
    }
    if result < 0 { Err(std::io::Error::last_os_error().raw_os_error().unwrap()) } else { Ok(()) }
}

fn ptr<T>(value: &T) -> usize {
    std::ptr::from_ref(value) as usize
}

fn fd(descriptor: &OwnedFd) -> usize {
    descriptor.as_raw_fd() as usize
}

const CWD: usize = libc::AT_FDCWD as usize;
const PASSWD: &std::ffi::CStr = c"/etc/passwd";
const INET_LEN: usize = size_of::<libc::sockaddr_in>();

macro_rules! attempts {
    ($($name:literal, $works:literal, $call:ident, |$held:ident| [$($argument:expr),* $(,)?];)*) => {
        &[$(Attempt {
            name: $name,
            call: libc::$call,
            works: $works,
            arguments: |$held| {
                let _ = $held;
                let mut all = [0usize; 6];
                let given: &[usize] = &[$(($argument) as usize),*];
                all[..given.len()].copy_from_slice(given);
                all
            },
        }),*]
    };
}

/// `false` marks calls that do not work for every user, or would harm the host.
#[rustfmt::skip]
pub const ATTEMPTS: &[Attempt] = attempts![
    // Files.
    "open a file", true, SYS_openat, |h| [CWD, PASSWD.as_ptr(), libc::O_RDONLY];
    "open a file about devices", true, SYS_openat, |h| [CWD, c"/sys/devices/system/cpu/online".as_ptr(), libc::O_RDONLY];
    "open its RDMA device", true, SYS_openat, |h| [CWD, h.devices[0][0].as_ptr(), libc::O_RDWR];
    "open another RDMA device", true, SYS_openat, |h| [CWD, h.devices[1][0].as_ptr(), libc::O_RDWR];
    "read about its RDMA device", true, SYS_openat, |h| [CWD, h.devices[0][1].as_ptr(), libc::O_RDONLY];
    "read about another RDMA device", true, SYS_openat, |h| [CWD, h.devices[1][1].as_ptr(), libc::O_RDONLY];
    "write about its RDMA device", true, SYS_openat, |h| [CWD, h.devices[0][1].as_ptr(), libc::O_WRONLY];
    "create a file", true, SYS_openat, |h| [CWD, h.new.as_ptr(), libc::O_CREAT | libc::O_WRONLY, 0o600];
    "open a file in the newer way", false, SYS_openat2, |h| [CWD, PASSWD.as_ptr(), h.scratch(), 24];
    "open a file by its handle", false, SYS_open_by_handle_at, |h| [CWD, h.scratch(), libc::O_RDONLY];
    "list a folder", false, SYS_getdents64, |h| [0, h.scratch(), 512];
    "learn of a file", true, SYS_newfstatat, |h| [CWD, PASSWD.as_ptr(), h.scratch(), 0];
    "learn of a file in the newer way", true, SYS_statx, |h| [CWD, PASSWD.as_ptr(), 0, 0xfff, h.scratch()];
    "ask for access to a file", true, SYS_faccessat, |h| [CWD, PASSWD.as_ptr(), libc::F_OK];
    "read a link", true, SYS_readlinkat, |h| [CWD, c"/proc/self/exe".as_ptr(), h.scratch(), 512];
    "make a folder", true, SYS_mkdirat, |h| [CWD, h.new.as_ptr(), 0o700];
    "remove a file", true, SYS_unlinkat, |h| [CWD, h.victim.as_ptr(), 0];
    "rename a file", true, SYS_renameat2, |h| [CWD, h.victim.as_ptr(), CWD, h.new.as_ptr(), 0];
    "link a file", true, SYS_linkat, |h| [CWD, h.victim.as_ptr(), CWD, h.new.as_ptr(), 0];
    "make a symbolic link", true, SYS_symlinkat, |h| [PASSWD.as_ptr(), CWD, h.new.as_ptr()];
    "change a file's mode", true, SYS_fchmodat, |h| [CWD, h.victim.as_ptr(), 0o777];
    "cut a file short", true, SYS_truncate, |h| [h.victim.as_ptr(), 0];
    "watch files", true, SYS_inotify_init1, |h| [0];
    "watch a file system", false, SYS_fanotify_init, |h| [0, 0];
    "ask for a file system", false, SYS_fsopen, |h| [c"tmpfs".as_ptr(), 0];
    "clone a mount", false, SYS_open_tree, |h| [CWD, c"/".as_ptr(), 0];
    "open a message queue", false, SYS_mq_open, |h| [c"tidegate".as_ptr(), libc::O_RDONLY];

    // Network and other IPC.
    "make an IPv4 socket", true, SYS_socket, |h| [libc::AF_INET, libc::SOCK_STREAM, 0];
    "make an IPv6 socket", true, SYS_socket, |h| [libc::AF_INET6, libc::SOCK_DGRAM, 0];
    "make a Unix socket", true, SYS_socket, |h| [libc::AF_UNIX, libc::SOCK_DGRAM, 0];
    "make a netlink socket", true, SYS_socket, |h| [libc::AF_NETLINK, libc::SOCK_RAW, 0];
    "make a packet socket", false, SYS_socket, |h| [libc::AF_PACKET, libc::SOCK_RAW, 0];
    "make a vsock socket", false, SYS_socket, |h| [libc::AF_VSOCK, libc::SOCK_STREAM, 0];
    "make a pair of datagram sockets", true, SYS_socketpair, |h| [libc::AF_UNIX, libc::SOCK_DGRAM, 0, h.scratch()];
    "connect a TCP socket it was handed", true, SYS_connect, |h| [fd(&h.tcp), ptr(&*h.listener), INET_LEN];
    "connect to an abstract Unix socket", true, SYS_connect, |h| [fd(&h.unix), ptr(&*h.abstract_listener), ABSTRACT_LEN];
    "take a TCP port", true, SYS_bind, |h| [fd(&h.tcp), ptr(&*h.anywhere), INET_LEN];
    "take an abstract Unix address", true, SYS_bind, |h| [fd(&h.datagram), ptr(&*h.abstract_own), ABSTRACT_LEN];
    "listen", false, SYS_listen, |h| [fd(&h.tcp), 1];
    "send to an address", true, SYS_sendto, |h| [fd(&h.udp), h.scratch(), 1, 0, ptr(&*h.listener), INET_LEN];
    "change a socket's options", true, SYS_setsockopt,
        |h| [fd(&h.tcp), libc::SOL_SOCKET, libc::SO_KEEPALIVE, h.scratch(), 4];

    // Programs and processes.
    "execute a program", true, SYS_execve, |h| [c"/bin/echo".as_ptr(), h.argv.as_ptr(), 0];
    "execute an open program", true, SYS_execveat,
        |h| [fd(&h.program), c"".as_ptr(), h.argv.as_ptr(), 0, libc::AT_EMPTY_PATH];
    "fork by clone", true, SYS_clone, |h| [libc::SIGCHLD];
    "start a thread in a network namespace of its own", false, SYS_clone,
        |h| [libc::CLONE_THREAD | libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_NEWNET];
    "be traced", true, SYS_ptrace, |h| [libc::PTRACE_TRACEME];
    "trace another process", false, SYS_ptrace, |h| [libc::PTRACE_SEIZE, h.parent];
    "read another process's memory", false, SYS_process_vm_readv, |h| [h.parent, h.scratch(), 1, h.scratch(), 1];
    "write another process's memory", false, SYS_process_vm_writev, |h| [h.parent, h.scratch(), 1, h.scratch(), 1];
    "hold another process", true, SYS_pidfd_open, |h| [h.parent, 0];
    "take another process's descriptor", false, SYS_pidfd_getfd, |h| [0, 0, 0];
    "signal another process", true, SYS_kill, |h| [h.parent, 0];
    "signal init", false, SYS_kill, |h| [1, 0];
    "signal another process's thread", true, SYS_tgkill, |h| [h.parent, h.parent, 0];
    "signal a thread anywhere", true, SYS_tkill, |h| [h.parent, 0];
    "queue a signal to another process", false, SYS_rt_sigqueueinfo, |h| [h.parent, 0, h.scratch()];
    "have signals sent by a socket", true, SYS_fcntl, |h| [fd(&h.unix), libc::F_SETOWN, h.parent];

    // Executable memory.
    "map executable memory", true, SYS_mmap, |h| [0, 4096, libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, usize::MAX, 0];
    "map a program", true, SYS_mmap,
        |h| [0, 4096, libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE, fd(&h.program), 0];
    "make memory executable", true, SYS_mprotect, |h| [h.page, 4096, libc::PROT_READ | libc::PROT_EXEC];
    "make memory executable with a key", true, SYS_pkey_mprotect,
        |h| [h.page, 4096, libc::PROT_READ | libc::PROT_EXEC, usize::MAX];
    "make all memory executable", true, SYS_personality, |h| [0x0040_0000];
    "make shared memory of System V", false, SYS_shmget, |h| [0, 4096, 0o600];
    "make memory that is secret", false, SYS_memfd_secret, |h| [0];
    "lock memory", true, SYS_mlock, |h| [h.page, 4096];
    "handle page faults", false, SYS_userfaultfd, |h| [0];

    // Rights.
    "leave what it shares", true, SYS_unshare, |h| [libc::CLONE_FS];
    "make a user namespace", false, SYS_unshare, |h| [libc::CLONE_NEWUSER];
    "enter a namespace", false, SYS_setns, |h| [0, 0];
    "mount", false, SYS_mount, |h| [c"none".as_ptr(), c"/mnt".as_ptr(), c"tmpfs".as_ptr(), 0, 0];
    "change the root", false, SYS_chroot, |h| [c"/".as_ptr()];
    "pivot the root", false, SYS_pivot_root, |h| [c"/".as_ptr(), c"/".as_ptr()];
    "become a user", true, SYS_setresuid, |h| [usize::MAX, usize::MAX, usize::MAX];
    "change its groups", false, SYS_setgroups, |h| [0, 0];
    "change its capabilities", false, SYS_capset, |h| [h.scratch(), h.scratch()];
    "be dumped again", true, SYS_prctl, |h| [libc::PR_SET_DUMPABLE, 1];
    "change its filters", false, SYS_seccomp, |h| [libc::SECCOMP_SET_MODE_FILTER, 0, h.scratch()];
    "ignore denials", true, SYS_rt_sigaction, |h| [libc::SIGSYS, 0, 0, 8];
    "change its limits", true, SYS_prlimit64, |h| [0, libc::RLIMIT_CORE, 0, h.scratch()];
    "change its priority", true, SYS_sched_setscheduler, |h| [0, libc::SCHED_OTHER, h.scratch()];
    "change another thread's CPUs", false, SYS_sched_setaffinity, |h| [h.parent, 8, h.scratch()];

    // The kernel.
    "load a BPF program", false, SYS_bpf, |h| [0, h.scratch(), 48];
    "count events", false, SYS_perf_event_open, |h| [h.scratch(), 0, 0, 0, 0];
    "make a timer", true, SYS_timerfd_create, |h| [libc::CLOCK_MONOTONIC, 0];
    "make a signal descriptor", true, SYS_signalfd4, |h| [usize::MAX, h.scratch(), 8, 0];
    "seek in a descriptor", true, SYS_lseek, |h| [fd(&h.program), 0, libc::SEEK_SET];
    "take a file's space away", false, SYS_fallocate, |h| [fd(&h.program), libc::FALLOC_FL_PUNCH_HOLE, 0, 1];
    "use io_uring", false, SYS_io_uring_setup, |h| [1, h.scratch()];
    "add a key", false, SYS_add_key, |h| [c"user".as_ptr(), c"x".as_ptr(), h.scratch(), 1, 0];
    "use keys", false, SYS_keyctl, |h| [0, 0, 0];
    "load a module", false, SYS_init_module, |h| [h.scratch(), 0, c"".as_ptr()];
    "load a kernel", false, SYS_kexec_load, |h| [0, 0, 0, 0];
    "reboot", false, SYS_reboot, |h| [0, 0, 0, 0];
    "set the clock", false, SYS_clock_settime, |h| [libc::CLOCK_REALTIME, 0];
    "read the kernel's log", false, SYS_syslog, |h| [10, 0, 0];
    "type into a terminal", false, SYS_ioctl, |h| [0, libc::TIOCSTI, h.scratch()];
    "change a tap", false, SYS_ioctl, |h| [0, 0x4004_54ca, h.scratch()];
    "ask an RDMA device", false, SYS_ioctl, |h| [0, RDMA_VERBS_IOCTL, h.scratch()];
];

#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
pub const OLDER: &[Attempt] = attempts![
    "open a file in the oldest way", true, SYS_open, |h| [PASSWD.as_ptr(), libc::O_RDONLY];
    "create a file in the oldest way", true, SYS_creat, |h| [h.new.as_ptr(), 0o600];
    "fork", true, SYS_fork, |h| [];
    "vfork", false, SYS_vfork, |h| [];
    "reach I/O ports", false, SYS_iopl, |h| [3];
    "change segments", false, SYS_modify_ldt, |h| [0, h.scratch(), 0];
];
#[cfg(not(target_arch = "x86_64"))]
pub const OLDER: &[Attempt] = &[];

pub fn all() -> Vec<&'static Attempt> {
    ATTEMPTS.iter().chain(OLDER).collect()
}
