//! What accepting connections of front ends comes to besides taking one.

use super::errands::Errands;
use super::wire::Parted;
use std::io::{self, ErrorKind};
use std::os::unix::net::UnixListener;
use std::time::Duration;

/// Pause after accept failed for want of descriptors or memory.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Most front ends that are turned away at once: each may have much to close.
const TURNED_AWAY: u64 = 64;

/// Accepts and closes connections that wait; how many, and whether accept failed.
pub(super) fn turn_away(listener: &UnixListener, errands: &Errands) -> (u64, bool) {
    let mut refused = 0;
    while refused < TURNED_AWAY {
        match listener.accept() {
            Ok((stream, _)) => {
                refused += 1;
                errands.give_up(Parted(stream));
            }
            Err(e) => return (refused, !is_transient(&e)),
        }
    }
    (refused, false)
}

/// Whether a failed accept may succeed at once.
pub(super) fn is_transient(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted)
}
