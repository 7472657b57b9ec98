//! Why the process could not be confined.

use std::io;

/// Why the process could not be confined.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There are threads already: they would keep what the calling one gives up.
    #[error("the process has {0} threads where it is to give up its rights, expected one")]
    Threads(usize),
    /// The user to become.
    #[error("cannot become user {user}: {reason}")]
    User {
        /// As it was named.
        user: String,
        /// What is wrong.
        reason: String,
    },
    /// A right could not be given up.
    #[error("cannot {what}: {source}")]
    Right {
        /// What was tried.
        what: &'static str,
        /// What happened.
        source: io::Error,
    },
    /// Landlock is there and does not work.
    #[error("landlock: {0}")]
    Landlock(String),
    /// The list of system calls.
    #[error("cannot limit system calls (seccomp): {0}; --no-confinement runs the switch without")]
    Seccomp(String),
}
