//! No access to files: landlock(7) with every right handled and none allowed.
//!
//! ```text
//!  open, create, rename, ...    denied (Linux 5.13)
//!  TCP bind, connect            denied (6.7)
//!  ioctl of a device opened     denied (6.10)
//!  abstract Unix sockets and signals of processes outside    denied (6.12)
//! ```
//!
//! Open descriptors stay usable. The system call filter covers the same and more. Landlock holds if the
//! filter has a hole, and it sees what a filter cannot: the address in a `sendmsg`.

use super::Error;
use landlock::{ABI, Access, AccessFs, AccessNet, LandlockStatus, Ruleset, RulesetAttr, RulesetError, Scope};

/// The newest requested ABI; an older kernel applies what it knows. The next ABI restricts Unix sockets with
/// a path, to which a successor must still connect.
const NEWEST: ABI = ABI::V8;

/// Closes the file system to the calling thread and its children. Returns the ABI in force; `None`, with a
/// warning, without landlock.
///
/// # Errors
/// Landlock exists and refuses.
pub fn close() -> Result<Option<u32>, Error> {
    let restrict = || -> Result<_, RulesetError> {
        Ruleset::default()
            .handle_access(AccessFs::from_all(NEWEST))?
            .handle_access(AccessNet::from_all(NEWEST))?
            .scope(Scope::from_all(NEWEST))?
            .create()?
            .restrict_self()
    };
    let status = restrict().map_err(|error| Error::Landlock(error.to_string()))?;
    match status.landlock {
        LandlockStatus::Available { effective_abi, .. } => Ok(Some(effective_abi as u32)),
        LandlockStatus::NotEnabled => {
            tracing::warn!(
                "landlock is not enabled (lsm= of the kernel's command line): seccomp alone keeps files away"
            );
            Ok(None)
        }
        LandlockStatus::NotImplemented => {
            tracing::warn!("this kernel has no landlock (Linux 5.13): seccomp alone keeps files away");
            Ok(None)
        }
    }
}
