//! Errors of confinement.

use std::io;

/// The reason why the process could not be confined.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Other threads exist already, and would keep the rights that the calling one gives up.
    #[error("the process has {0} threads, and can give up its rights only while it has one")]
    Threads(usize),
    /// The new user.
    #[error("cannot become user {user}: {reason}")]
    User {
        /// The user as given.
        user: String,
        /// The reason.
        reason: String,
    },
    /// A right could not be given up.
    #[error("cannot {action}: {source}")]
    Right {
        /// The failed action.
        action: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// Landlock exists and fails.
    #[error("landlock: {0}")]
    Landlock(String),
    /// The kernel refused the list of system calls.
    #[error("cannot limit system calls (seccomp): {0}; --no-confinement runs the switch without")]
    Seccomp(String),
}
