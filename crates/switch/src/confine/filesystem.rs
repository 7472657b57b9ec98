//! No access to files: landlock(7) with every right handled, and none allowed but those that RDMA devices need.
//!
//! ```text
//!  open, create, rename, ...    denied (Linux 5.13)
//!  TCP bind, connect            denied (6.7)
//!  ioctl of a device opened     denied (6.10)
//!  abstract Unix sockets and signals of processes outside    denied (6.12)
//! ```
//!
//! With RDMA devices, [their files](super::devices) stay: restricting a thread changes its credentials, and the kernel takes requests to a device
//! only from the credentials that opened it. So devices are opened after this, and no second restriction can follow.
//!
//! Open descriptors stay usable. The system call filter covers the same and more. Landlock holds if the
//! filter has a hole, and it sees what a filter cannot: the address in a `sendmsg`.

use super::Error;
use super::devices::DeviceFiles;
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, LandlockStatus, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, Scope, path_beneath_rules,
};

/// The newest requested ABI; an older kernel applies what it knows. The next ABI restricts Unix sockets with
/// a path, to which a successor must still connect.
const NEWEST: ABI = ABI::V8;

/// The files that can be opened afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Files {
    /// None.
    None,
    /// Those of RDMA devices.
    OfRdma(DeviceFiles),
}

/// Closes the file system to the calling thread and its children, but for `files`. Returns the ABI in force; `None`, with a
/// warning, without landlock.
///
/// # Errors
/// Landlock exists and refuses.
pub fn close(files: Files) -> Result<Option<u32>, Error> {
    let read: BitFlags<AccessFs> = AccessFs::ReadFile | AccessFs::ReadDir;
    let restrict = || -> Result<_, RulesetError> {
        let rules = Ruleset::default()
            .handle_access(AccessFs::from_all(NEWEST))?
            .handle_access(AccessNet::from_all(NEWEST))?
            .scope(Scope::from_all(NEWEST))?
            .create()?;
        let rules = match files {
            Files::None => rules,
            // A file that is not there is left out.
            Files::OfRdma(DeviceFiles { read: to_read, devices }) => rules
                .add_rules(path_beneath_rules(to_read, read))?
                .add_rules(path_beneath_rules(devices, read | AccessFs::WriteFile | AccessFs::IoctlDev))?,
        };
        rules.restrict_self()
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
