//! Checks a message's descriptors before anything uses them.
//!
//! ```text
//!  message + descriptors ─▶ each of the kind it is to be? ─▶ Connection
//!                                     └─ no ─▶ refused, given up to the errands
//! ```
//!
//! Only event counters and files that can be memory pass. Closing the last descriptor of one may take long,
//! but ends.

use super::errands::Errands;
use super::request::Kind;
use super::saved::SharedFd;
use super::wire::{Header, Message};
use crate::eventfd;
use crate::virtio::backing;
use std::os::fd::AsFd;
use std::time::Duration;

/// Longest wait for a file system's answer: less than an upgrade of the switch waits for a message.
const PATIENCE: Duration = Duration::from_millis(500);

/// Whether a message may come with these descriptors.
///
/// # Errors
/// The reason; the caller gives the descriptors up.
pub fn check_descriptors(header: Header, message: &Message, errands: &Errands) -> Result<(), String> {
    let name = format!("{:?}", header.code);
    // The lowest byte of messages about a queue's counter (vhost-user, "Ring descriptor index").
    let queue = message.payload.first().copied().unwrap_or(0);
    message.descriptors.iter().enumerate().try_for_each(|(n, descriptor)| match header.form.kind {
        Kind::Counter => counter(&name, queue.into(), descriptor),
        Kind::Guest => guest(&name, n, descriptor, errands),
        Kind::Plain => plain(&name, descriptor),
        Kind::Unused => Ok(()),
    })
}

/// Whether it is an event counter, for queue `queue`.
///
/// # Errors
/// It is not.
pub fn counter(message: &str, queue: u16, descriptor: impl AsFd) -> Result<(), String> {
    match eventfd::is_counter(descriptor) {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!("{message}: the descriptor for queue {queue} is not an eventfd")),
        Err(error) => Err(format!(
            "{message}: cannot find out whether the descriptor for queue {queue} is an eventfd: {error}"
        )),
    }
}

/// Whether region `n` can be guest memory.
///
/// # Errors
/// It cannot, or its file system does not answer.
fn guest(message: &str, n: usize, descriptor: &SharedFd, errands: &Errands) -> Result<(), String> {
    if backing::is_memory(descriptor) {
        return Ok(());
    }
    let looked_at = descriptor.clone();
    let why = match errands.ask(PATIENCE, move || backing::inspect(looked_at)) {
        Some(Ok(_)) => return Ok(()),
        Some(Err(why)) => why.to_string(),
        None => "the file system of the memory does not answer, and could delay the switch (use \
         memory-backend-memfd)"
            .into(),
    };
    Err(format!("{message}: memory region {n}: {why}"))
}

/// Whether it is memory.
///
/// # Errors
/// It is not.
fn plain(message: &str, descriptor: impl AsFd) -> Result<(), String> {
    if backing::is_memory(descriptor) {
        return Ok(());
    }
    Err(format!("{message}: the descriptor is not shared memory; give a memfd"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eventfd;
    use crate::vhost_user::request;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::os::fd::OwnedFd;
    use std::sync::Arc;
    use vhost::vhost_user::message::FrontendReq::*;

    #[test]
    fn each_message_has_only_the_descriptors_that_it_may_have() {
        eventfd::prepare();
        let errands = Errands::new("test");
        let look = |code, files: &[&OwnedFd]| {
            let descriptors = files.iter().map(|file| Arc::new(file.try_clone().unwrap())).collect();
            let form = request::form(code).unwrap();
            let header = Header { code, form, size: 0, need_reply: false };
            super::check_descriptors(header, &Message { descriptors, ..Message::default() }, &errands)
        };
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let memory = memfd_create("memory", MemfdFlags::CLOEXEC).unwrap();
        let socket: OwnedFd = std::os::unix::net::UnixStream::pair().unwrap().0.into();
        for code in [SET_VRING_KICK, SET_VRING_CALL, SET_VRING_ERR] {
            assert_eq!((look(code, &[]), look(code, &[&event])), (Ok(()), Ok(())));
            for files in [[&memory], [&socket]] {
                assert!(look(code, &files).is_err(), "{code:?}");
            }
        }
        for code in [SET_MEM_TABLE, ADD_MEM_REG, SET_LOG_BASE, SET_INFLIGHT_FD] {
            assert_eq!(look(code, &[&memory]), Ok(()));
            for file in [&event, &socket] {
                assert!(look(code, &[file]).is_err(), "{code:?}");
            }
        }
        assert_eq!(look(SET_MEM_TABLE, &[&memory; 32]), Ok(()));
        assert!(look(SET_MEM_TABLE, &[&memory, &socket]).is_err());
        assert_eq!(look(REM_MEM_REG, &[&socket]), Ok(()));
    }
}
