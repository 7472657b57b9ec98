//! One agent per state directory, and one per network namespace: two agents would undo each other's work for ever.
//!
//! ```text
//!  state directory ─ flock ─▶ Lock
//!  network namespace ─ the one socket that has the name @tidegate-agent there ─▶ NamespaceLock
//! ```

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use rustix::thread::{CapabilitySet, capabilities};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The agent's abstract socket name (unix(7)) in its network namespace. The kernel frees it when the process ends.
const NAME: &[u8] = b"tidegate-agent";
/// Attempts to ask a holder that does not listen yet, and the pause after each.
const ASKED: (u32, Duration) = (20, Duration::from_millis(10));

/// The lock of the state directory. The kernel releases it when the process ends.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// Why the agent cannot have its state directory, or its network namespace, to itself.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error(
        "an agent (pid {pid}) already runs on {dir}: stop that agent first, or give this agent its own --state"
    )]
    Taken {
        /// The other agent's process id from the lock file, `unknown` if it cannot be read.
        pid: String,
        dir: PathBuf,
    },
    #[error(
        "an agent (pid {pid}) already manages the interfaces of this network namespace, and two agents would undo \
         each other's changes: stop that agent first, or run this agent in a network namespace of its own (ip netns \
         exec NAME tidegate agent)"
    )]
    Shared {
        /// The other agent's process id, 0 if that agent is in another PID namespace.
        pid: i32,
    },
    /// The lock file cannot be made.
    #[error("cannot lock the state directory {dir}: {source}")]
    Io {
        dir: PathBuf,
        /// The error of the system call.
        source: std::io::Error,
    },
    #[error("cannot lock the network namespace: {0}")]
    Namespace(Errno),
}

impl Lock {
    /// Locks `dir`, which must exist.
    pub fn take(dir: &Path) -> Result<Self, LockError> {
        let io = |source| LockError::Io { dir: dir.to_owned(), source };
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(dir.join("lock"))
            .map_err(io)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut pid = String::new();
                let read = file.read_to_string(&mut pid);
                let pid =
                    if read.is_ok() && !pid.trim().is_empty() { pid.trim().into() } else { "unknown".into() };
                return Err(LockError::Taken { pid, dir: dir.to_owned() });
            }
            Err(e) => return Err(io(e.into())),
        }
        // The pid is only for the message above: a full disk must not keep the agent from starting.
        let rewound = file.set_len(0).and_then(|()| file.rewind());
        if let Err(error) = rewound.and_then(|()| writeln!(file, "{}", std::process::id())) {
            tracing::warn!(dir = %dir.display(), %error, "cannot write the pid into the lock file");
        }
        Ok(Self { _file: file })
    }
}

/// The lock of the network namespace.
#[derive(Debug)]
pub struct NamespaceLock {
    _name: Option<OwnedFd>,
    /// Why a second agent here would not be noticed; `None` if it would be.
    pub problem: Option<String>,
}

impl NamespaceLock {
    /// Locks the network namespace of this thread. An agent without CAP_NET_ADMIN locks nothing.
    ///
    /// Any user may take the name. If a process of a user other than root and this agent's holds it, the agent runs all the
    /// same.
    ///
    /// # Errors
    /// Another agent has the namespace, or a system call failed.
    pub fn take() -> Result<Self, LockError> {
        let may = capabilities(None).map_err(LockError::Namespace)?.effective;
        if !may.contains(CapabilitySet::NET_ADMIN) {
            return Ok(Self { _name: None, problem: None });
        }
        let make = || {
            let name = SocketAddrUnix::new_abstract_name(NAME)?;
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            Ok((socket, name))
        };
        for _ in 0..ASKED.0 {
            let (socket, name) = make().map_err(LockError::Namespace)?;
            match bind(&socket, &name) {
                // A later agent connects, to ask the kernel whose socket this is.
                Ok(()) => listen(&socket, 128).map_err(LockError::Namespace)?,
                Err(Errno::ADDRINUSE) => {
                    let holder = connect(&socket, &name).and_then(|()| socket_peercred(&socket));
                    let own = rustix::process::geteuid();
                    match holder {
                        Ok(holder) if holder.uid.is_root() || holder.uid == own => {
                            return Err(LockError::Shared { pid: holder.pid.as_raw_nonzero().get() });
                        }
                        Ok(holder) => {
                            let (pid, uid) = (holder.pid.as_raw_nonzero(), holder.uid.as_raw());
                            return Ok(Self::problem_of_holder(&format!("pid {pid} of user {uid}")));
                        }
                        // The holder does not listen yet, or has just ended.
                        Err(_) => std::thread::sleep(ASKED.1),
                    }
                    continue;
                }
                Err(e) => return Err(LockError::Namespace(e)),
            }
            return Ok(Self { _name: Some(socket), problem: None });
        }
        Ok(Self::problem_of_holder("a process that does not say who it is"))
    }

    fn problem_of_holder(holder: &str) -> Self {
        let name = NAME.escape_ascii();
        let problem = format!(
            "the socket @{name} of this network namespace belongs to {holder}, which is no agent: this agent cannot \
             notice a second agent in this namespace; end that process, and restart this agent"
        );
        Self { _name: None, problem: Some(problem) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_testkit::own_network_or_skip;

    #[test]
    fn a_second_agent_learns_the_process_of_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let first = Lock::take(dir.path()).unwrap();
        let error = Lock::take(dir.path()).unwrap_err().to_string();
        assert!(error.contains(&format!("pid {}", std::process::id())), "{error}");
        drop(first);
        Lock::take(dir.path()).unwrap();
    }

    #[test]
    fn a_second_agent_in_a_namespace_learns_the_process_of_the_first() {
        if !own_network_or_skip() {
            return;
        }
        let first = NamespaceLock::take().unwrap();
        assert_eq!(first.problem, None);
        let error = NamespaceLock::take().unwrap_err().to_string();
        assert!(error.starts_with(&format!("an agent (pid {})", std::process::id())), "{error}");
        std::thread::spawn(|| {
            assert!(own_network_or_skip() && NamespaceLock::take().unwrap().problem.is_none())
        })
        .join()
        .unwrap();
        drop(first);
        assert!(NamespaceLock::take().unwrap().problem.is_none());
    }

    #[test]
    fn a_socket_of_another_program_does_not_stop_the_agent() {
        if !own_network_or_skip() {
            return;
        }
        let name = SocketAddrUnix::new_abstract_name(NAME).unwrap();
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        bind(&socket, &name).unwrap();
        let problem = || NamespaceLock::take().unwrap().problem.unwrap();
        assert!(problem().contains("does not say who it is"), "{}", problem());
        // As another user: the kernel notes the user at listen().
        let thread = std::thread::spawn(move || {
            // SAFETY: the raw system call changes the user of this thread only, and the thread ends with this closure.
            unsafe { libc::syscall(libc::SYS_setresuid, -1, 4242, -1) };
            listen(&socket, 1).unwrap();
            socket
        });
        let _socket = thread.join().unwrap();
        assert!(problem().contains("of user 4242, which is no agent"), "{}", problem());
    }
}
