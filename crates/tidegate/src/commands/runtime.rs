//! The runtime of commands that wait for sockets.

use crate::exit::Failure;
use std::future::Future;

/// Runs `command` to its end on this thread.
///
/// # Errors
/// `command` fails, or the operating system gives no event queue.
pub fn wait<T>(command: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::failed)?;
    runtime.block_on(command)
}
