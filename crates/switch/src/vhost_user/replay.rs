//! A message handler that knows what was negotiated before its time.
//!
//! ```text
//!  features kept ─▶ their messages ─▶ ┐
//!                                     ├─ one socket's descriptor ─▶ BackendReqHandler ─▶ Connection
//!  the front end's stream ── dup3 ──▶ ┘ (after them)
//! ```
//!
//! The `vhost` crate's handler notes the features from the messages that pass
//! through it, and has no other way to be told. So these messages are said again,
//! by us, before the front end's own socket takes the place of ours.

use super::connection::Connection;
use super::kept::Kept;
use std::io::{Read, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use vhost::vhost_user::message::FrontendReq;
use vhost::vhost_user::{BackendReqHandler, Error};

/// The handler of a connection's stream whose features are those that were kept. They are checked and
/// obeyed as if the front end had said them now.
///
/// # Errors
/// In words: they do not hold, or a system call failed.
pub fn handler<'c>(
    stream: &UnixStream,
    connection: &Arc<Mutex<Connection<'c>>>,
    kept: &Kept,
) -> Result<BackendReqHandler<Mutex<Connection<'c>>>, String> {
    let socket = |e: std::io::Error| format!("socket: {e}");
    let (mut front, back) = UnixStream::pair().map_err(socket)?;
    let place = back.as_raw_fd();
    let mut handler = BackendReqHandler::from_stream(back, connection.clone());
    let mut say = |code: FrontendReq, value: Option<u64>| -> Result<(), String> {
        let mut message = Vec::new();
        let size = if value.is_some() { 8 } else { 0 };
        [u32::from(code), 1, size].iter().for_each(|word| message.extend(word.to_ne_bytes()));
        message.extend(value.iter().flat_map(|value| value.to_ne_bytes()));
        front.write_all(&message).map_err(socket)?;
        handler.handle_request().map_err(|error| match error {
            Error::ReqHandlerError(e) => e.to_string(),
            other => format!("{code:?}: {other}"),
        })?;
        if value.is_none() {
            // The answer of 8 bytes behind its header is of no interest.
            front.read_exact(&mut [0; 20]).map_err(socket)?;
        }
        Ok(())
    };
    say(FrontendReq::GET_FEATURES, None)?;
    if kept.protocol_features != 0 {
        say(FrontendReq::SET_PROTOCOL_FEATURES, Some(kept.protocol_features))?;
    }
    if let Some(features) = kept.features {
        say(FrontendReq::SET_FEATURES, Some(features))?;
    }
    // SAFETY: `place` is the descriptor that the handler owns, and is not closed here; dup3 puts another
    // file behind its number, which is what the handler is to have.
    let mut owned = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(place) });
    rustix::io::dup3(stream, &mut owned, rustix::io::DupFlags::CLOEXEC).map_err(|e| socket(e.into()))?;
    Ok(handler)
}
