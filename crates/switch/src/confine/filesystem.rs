//! No file at all: landlock(7) with everything handled and nothing allowed.
//!
//! ```text
//!  open, create, rename, ...    denied (Linux 5.13)
//!  TCP bind, connect            denied (6.7)
//!  ioctl of a device opened     denied (6.10)
//!  abstract Unix sockets and signals of processes outside    denied (6.12)
//! ```
//!
//! What is open stays usable. The limit on system calls covers the same and more; this is what holds
//! should a filter have a hole, and it sees what a filter cannot: the address in a `sendmsg`.

use super::Error;
use landlock::{ABI, Access, AccessFs, AccessNet, LandlockStatus, Ruleset, RulesetAttr, RulesetError, Scope};

/// The newest ABI whose restrictions are asked for; of an older kernel, those it knows. The next one
/// keeps from Unix sockets with a path, which a switch that takes another's place must still connect to.
const NEWEST: ABI = ABI::V8;

/// Closes the file system to the calling thread and all it will start. Returns the ABI in force, or
/// `None` where the kernel has no landlock; that is said.
///
/// # Errors
/// Landlock is there and refuses.
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
