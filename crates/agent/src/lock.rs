//! One agent per state directory.

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

/// Held for as long as the agent runs; the kernel lets go of it with the process.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// Why the state directory cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another agent has it.
    #[error("an agent (pid {pid}) already runs on {dir}: stop it first, or give this one its own --state")]
    Taken {
        /// Its process id as it wrote it, `unknown` where it could not be read.
        pid: String,
        /// The state directory.
        dir: PathBuf,
    },
    /// The lock file cannot be made.
    #[error("cannot lock the state directory {dir}: {source}")]
    Io {
        /// The state directory.
        dir: PathBuf,
        /// What happened.
        source: std::io::Error,
    },
}

impl Lock {
    /// Takes `dir`, which must exist.
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
        // Only for the message above: a full disk must not keep an agent from what is saved already.
        let told = file.set_len(0).and_then(|()| file.rewind());
        if let Err(error) = told.and_then(|()| writeln!(file, "{}", std::process::id())) {
            tracing::warn!(dir = %dir.display(), %error, "cannot write the pid into the lock file");
        }
        Ok(Self { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_told_who_was_first() {
        let dir = tempfile::tempdir().unwrap();
        let first = Lock::take(dir.path()).unwrap();
        let error = Lock::take(dir.path()).unwrap_err().to_string();
        assert!(error.contains(&format!("pid {}", std::process::id())), "{error}");
        drop(first);
        Lock::take(dir.path()).unwrap();
    }
}
