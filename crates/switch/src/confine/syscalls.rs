//! The system calls of a running switch, as a seccomp filter.
//!
//! ```text
//!  call ─▶ on the list? ─▶ arguments as they may be? ─▶ allowed
//!              │ no                 │ no
//!              └────────────────────┴─▶ trapped: see `violation`
//! ```
//!
//! [`ALWAYS`] lists calls that are harmless with any argument, given the process's descriptors; [`guarded`]
//! lists the others. None of them opens a file, creates or connects a socket, starts a program or a process,
//! makes memory executable, or reaches another process.
//!
//! The kernel looks up calls without conditions, such as those that carry frames (read, write, readv, writev,
//! epoll), in a bitmap: the length of the list costs them nothing.

use super::Error;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};
use std::collections::BTreeMap;
use std::io;

/// Number and name of a system call.
type Call = (i64, &'static str);

macro_rules! calls {
    ($($name:ident),* $(,)?) => { &[$((libc::$name, stringify!($name))),*] };
}

/// Allowed with any argument.
#[rustfmt::skip]
pub const ALWAYS: &[Call] = calls![
    // Frames, kicks, captures, logs.
    SYS_read, SYS_write, SYS_io_submit, SYS_io_getevents, SYS_readv, SYS_writev, SYS_pread64, SYS_pwrite64, SYS_close,
    SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_pwait, SYS_epoll_pwait2, SYS_ppoll,
    // Sockets that other processes created: front ends, the agent. They chose the peer.
    SYS_accept4, SYS_recvmsg, SYS_sendmsg, SYS_recvfrom, SYS_shutdown,
    // Frames between hosts, over sockets that the agent created: the address filter of its control group holds.
    SYS_recvmmsg, SYS_sendmmsg,
    // Descriptors for memory or counters of this process only.
    SYS_eventfd2, SYS_memfd_create, SYS_ftruncate, SYS_fstat, SYS_fstatfs, SYS_dup3,
    // Memory; executable memory is refused below.
    SYS_brk, SYS_munmap, SYS_mremap, SYS_madvise,
    // Threads and time.
    SYS_futex, SYS_set_robust_list, SYS_rseq, SYS_sched_yield, SYS_sched_getaffinity, SYS_getpid, SYS_gettid,
    SYS_exit, SYS_exit_group, SYS_clock_gettime, SYS_clock_nanosleep, SYS_nanosleep, SYS_getrandom,
    SYS_getrusage,
    SYS_restart_syscall,
    // Signals to this thread.
    SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_sigaltstack,
    // The C library tries it for every thread; another filter says that the kernel does not know it.
    SYS_clone3,
];

/// Allowed on architectures that have them: older forms of the above.
#[cfg(target_arch = "x86_64")]
pub const OLDER: &[Call] = calls![SYS_epoll_wait, SYS_poll];
/// Allowed on architectures that have them: older forms of the above.
#[cfg(not(target_arch = "x86_64"))]
pub const OLDER: &[Call] = &[];

/// Denied calls with a name in the log: likely first attempts of an intruder, or of a library's next version.
#[rustfmt::skip]
const NAMED: &[Call] = calls![
    SYS_openat, SYS_openat2, SYS_statx, SYS_newfstatat, SYS_faccessat, SYS_readlinkat, SYS_mkdirat, SYS_unlinkat,
    SYS_renameat2, SYS_fchmodat, SYS_truncate, SYS_getdents64, SYS_open_by_handle_at, SYS_inotify_init1,
    SYS_socket, SYS_bind, SYS_listen, SYS_connect, SYS_setsockopt,
    SYS_execve, SYS_execveat, SYS_wait4, SYS_kill, SYS_tkill, SYS_ptrace, SYS_process_vm_readv,
    SYS_process_vm_writev, SYS_pidfd_open, SYS_pidfd_getfd, SYS_pidfd_send_signal, SYS_pkey_mprotect, SYS_shmget,
    SYS_unshare, SYS_setns, SYS_mount, SYS_umount2, SYS_pivot_root, SYS_chroot,
    SYS_setuid, SYS_setresuid, SYS_setgroups, SYS_capset, SYS_seccomp, SYS_personality, SYS_prlimit64,
    SYS_sched_setscheduler, SYS_sched_setattr, SYS_bpf, SYS_perf_event_open, SYS_userfaultfd,
    SYS_io_uring_setup, SYS_io_uring_enter, SYS_add_key, SYS_keyctl, SYS_uname, SYS_sysinfo, SYS_getuid,
];
#[cfg(target_arch = "x86_64")]
const NAMED_OLDER: &[Call] =
    calls![SYS_open, SYS_creat, SYS_stat, SYS_access, SYS_unlink, SYS_rename, SYS_fork, SYS_vfork];
#[cfg(not(target_arch = "x86_64"))]
const NAMED_OLDER: &[Call] = &[];

/// Request of the kernel's verbs (`<rdma/rdma_user_ioctl_cmds.h>`): any method of any object of an open RDMA device. The
/// method is behind a pointer, where a filter cannot see it.
pub const RDMA_VERBS_IOCTL: u64 = 0xc018_1b01;

/// Which calls a switch needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// Those of every switch.
    Plain,
    /// These, and requests to RDMA devices.
    WithVerbs,
}

/// Argument number, width that the kernel reads, operator and value.
type Condition = (u8, SeccompCmpArgLen, SeccompCmpOp, u64);

/// A call that is allowed if all conditions of a rule hold.
#[derive(Clone, Debug)]
pub struct Guarded {
    /// The call.
    pub call: Call,
    rules: Vec<Vec<Condition>>,
}

/// Every guarded call.
#[rustfmt::skip]
pub fn guarded(calls: Calls) -> Vec<Guarded> {
    use SeccompCmpArgLen::{Dword, Qword};
    use SeccompCmpOp::{Eq, MaskedEq, Ne};
    let exec = libc::PROT_EXEC as u64;
    let namespaces = (libc::CLONE_NEWNS | libc::CLONE_NEWCGROUP | libc::CLONE_NEWUTS | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUSER | libc::CLONE_NEWPID | libc::CLONE_NEWNET) as u64;
    let thread = libc::CLONE_THREAD as u64;
    let stream = (libc::SOCK_STREAM | libc::SOCK_CLOEXEC) as u64;
    let pid = rustix::process::getpid().as_raw_pid() as u64;
    let one_of = |argument: u8, values: &[u64]| -> Vec<Vec<Condition>> {
        values.iter().map(|value| vec![(argument, Dword, Eq, *value)]).collect()
    };
    let ioctls: &[u64] = match calls {
        Calls::Plain => &[libc::FIONBIO, libc::FIONREAD],
        Calls::WithVerbs => &[libc::FIONBIO, libc::FIONREAD, RDMA_VERBS_IOCTL],
    };
    let guard = |calls: &'static [Call], rules| Guarded { call: calls[0], rules };
    vec![
        // No executable memory.
        guard(calls![SYS_mmap], vec![vec![(2, Qword, MaskedEq(exec), 0)]]),
        guard(calls![SYS_mprotect], vec![vec![(2, Qword, MaskedEq(exec), 0)]]),
        // Threads of this process, in its namespaces; no new process.
        guard(calls![SYS_clone], vec![vec![(0, Qword, MaskedEq(thread | namespaces), thread)]]),
        // Signals within this process: abort(3).
        guard(calls![SYS_tgkill], one_of(0, &[pid])),
        // The crash handler may be reset; the handler that denies calls stays.
        guard(calls![SYS_rt_sigaction], vec![vec![(0, Dword, Ne, libc::SIGSYS as u64)]]),
        // Only the CPUs of the calling thread.
        guard(calls![SYS_sched_setaffinity], one_of(0, &[0])),
        guard(calls![SYS_prctl], one_of(0, &[libc::PR_SET_NAME as u64, libc::PR_GET_NAME as u64])),
        // Both ends in this process. A datagram socket could send to an address.
        guard(calls![SYS_socketpair], vec![vec![(0, Dword, Eq, libc::AF_UNIX as u64), (1, Dword, Eq, stream)]]),
        // Only over connected sockets.
        guard(calls![SYS_sendto], vec![vec![(4, Qword, Eq, 0)]]),
        // The places in the rings of an AF_XDP socket.
        guard(calls![SYS_getsockopt], vec![vec![
            (1, Dword, Eq, libc::SOL_XDP as u64), (2, Dword, Eq, libc::XDP_MMAP_OFFSETS as u64),
        ]]),
        // Duplicates, blocking, seals. No signals for other processes (F_SETOWN), no leases.
        guard(calls![SYS_fcntl], one_of(1, &[
            libc::F_DUPFD_CLOEXEC, libc::F_GETFD, libc::F_SETFD, libc::F_GETFL, libc::F_SETFL,
            libc::F_ADD_SEALS, libc::F_GET_SEALS,
        ].map(|command| command as u64))),
        // Blocking, the number of bytes to read, requests to RDMA devices. No change of a tap, no input into a terminal.
        guard(calls![SYS_ioctl], one_of(1, ioctls)),
    ]
}

/// Returns the name of a denied call, without `SYS_`. Safe in a signal handler: it does not call [`guarded`].
pub fn name_of(call: i64) -> Option<&'static str> {
    #[rustfmt::skip]
    const GUARDED: &[Call] = calls![
        SYS_mmap, SYS_mprotect, SYS_clone, SYS_tgkill, SYS_rt_sigaction, SYS_sched_setaffinity, SYS_prctl,
        SYS_socketpair, SYS_sendto, SYS_getsockopt, SYS_fcntl, SYS_ioctl,
    ];
    [NAMED, GUARDED, NAMED_OLDER]
        .into_iter()
        .flatten()
        .find(|(number, _)| *number == call)
        .map(|(_, name)| &name[4..])
}

/// Puts the filter in force for all threads. Returns the number of listed calls.
///
/// # Errors
/// The kernel is older than Linux 4.17, or built without seccomp filters.
pub fn limit(calls: Calls) -> Result<usize, Error> {
    let calls = list(calls).map_err(|error| Error::Seccomp(error.to_string()))?;
    let count = calls.len();
    // The C library tries clone3, whose flags a filter cannot see, and falls back to clone.
    let unknown = compile(
        BTreeMap::from([(libc::SYS_clone3, vec![])]),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::ENOSYS as u32),
    )?;
    let listed = compile(calls, SeccompAction::Trap, SeccompAction::Allow)?;
    install(&unknown, 0)?;
    // The kernel writes an audit record of each violation.
    install(&listed, libc::SECCOMP_FILTER_FLAG_LOG)?;
    Ok(count)
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn list(calls: Calls) -> Result<Rules, seccompiler::BackendError> {
    let mut rules: Rules = [ALWAYS, OLDER].into_iter().flatten().map(|(call, _)| (*call, vec![])).collect();
    for one in guarded(calls) {
        let condition =
            |(argument, width, operator, value)| SeccompCondition::new(argument, width, operator, value);
        let rule = |conditions: Vec<Condition>| {
            SeccompRule::new(conditions.into_iter().map(condition).collect::<Result<_, _>>()?)
        };
        rules.insert(one.call.0, one.rules.into_iter().map(rule).collect::<Result<_, _>>()?);
    }
    Ok(rules)
}

fn compile(rules: Rules, others: SeccompAction, these: SeccompAction) -> Result<BpfProgram, Error> {
    let compile = || -> Result<BpfProgram, seccompiler::BackendError> {
        let arch = TargetArch::try_from(std::env::consts::ARCH)?;
        SeccompFilter::new(rules, others, these, arch)?.try_into()
    };
    compile().map_err(|error| Error::Seccomp(error.to_string()))
}

/// Installs a filter for all threads, without the mitigation of speculation that kernels before 5.16 enable
/// with it: a switch runs no foreign code.
fn install(program: &BpfProgram, flags: libc::c_ulong) -> Result<(), Error> {
    let flags = flags | libc::SECCOMP_FILTER_FLAG_TSYNC | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_ptr().cast_mut().cast::<libc::sock_filter>(),
    };
    let call = libc::SECCOMP_SET_MODE_FILTER;
    // SAFETY: the kernel copies the live program of that length (repr(C), as sock_filter is).
    match unsafe { libc::syscall(libc::SYS_seccomp, call, flags, &raw const filter) } {
        0 => Ok(()),
        -1 => Err(Error::Seccomp(io::Error::last_os_error().to_string())),
        thread => Err(Error::Seccomp(format!("thread {thread} has a filter of its own"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_stands_once() {
        let guarded = guarded(Calls::WithVerbs);
        let all = [ALWAYS, OLDER, NAMED, NAMED_OLDER].into_iter().flatten().map(|call| call.0);
        let mut all: Vec<_> = all.chain(guarded.iter().map(|one| one.call.0)).collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
        assert!(guarded.iter().all(|one| name_of(one.call.0) == Some(&one.call.1[4..])));
        assert_eq!(name_of(libc::SYS_execve), Some("execve"));
        assert_eq!(name_of(libc::SYS_read), None);
    }

    #[test]
    fn the_list_compiles_and_fits() {
        for calls in [Calls::Plain, Calls::WithVerbs] {
            let count = ALWAYS.len() + OLDER.len() + guarded(calls).len();
            let rules = list(calls).unwrap();
            assert_eq!(rules.len(), count);
            assert!(compile(rules, SeccompAction::Trap, SeccompAction::Allow).unwrap().len() < 1000);
        }
    }
}
