//! Our duplicates of the switch's descriptors.

use std::os::fd::OwnedFd;
use tidegate_service::foreign::Foreign;

/// The duplicate of a port's descriptors.
pub enum Duplicate {
    /// A listening socket. Front ends that connect to it can put descriptors into its queue, which may be slow to close.
    Listener(Foreign),
    /// The queues of a tap.
    Tap(Vec<OwnedFd>),
}
