//! What comes with a message is looked at before anybody touches it.
//!
//! ```text
//!  message + descriptors ─▶ as many as it may have? ─▶ each of the kind it is to be? ─▶ relay, Connection
//!                                  └──────── no ─────────────┴─▶ refused, given up to the errands
//! ```
//!
//! Behind the door there are event counters, and files that can be memory. To close the last descriptor of one
//! may take long, but ends.

use super::errands::Errands;
use super::wire::{HEADER_LEN, Message};
use crate::eventfd;
use crate::virtio::backing::{self, Unfit};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use vhost::vhost_user::message::{FrontendReq, MAX_ATTACHED_FD_ENTRIES};

/// How long a file system may take to say what it is: less than who upgrades the switch waits for a message to be
/// done.
const PATIENCE: Duration = Duration::from_millis(500);

/// What the descriptors of a message are to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// There are none.
    None,
    /// An event counter.
    Counter,
    /// Memory, or a file on a disk.
    Guest,
    /// Memory.
    Plain,
    /// Whatever it is, it goes no further: the relay's handler would close it, on the port's thread, which takes as
    /// long as its file system likes. Older front ends send one.
    Any,
}

/// What a message may have with it, and how many of that.
fn may_have(code: FrontendReq) -> (Kind, usize) {
    use FrontendReq as Req;
    match code {
        Req::SET_VRING_KICK | Req::SET_VRING_CALL | Req::SET_VRING_ERR => (Kind::Counter, 1),
        Req::SET_MEM_TABLE => (Kind::Guest, MAX_ATTACHED_FD_ENTRIES),
        Req::ADD_MEM_REG => (Kind::Guest, 1),
        Req::SET_LOG_BASE | Req::SET_INFLIGHT_FD => (Kind::Plain, 1),
        Req::REM_MEM_REG => (Kind::Any, 1),
        _ => (Kind::None, 0),
    }
}

/// Whether a message may come with these descriptors.
///
/// # Errors
/// It may not, in words; the descriptors are to be given up.
pub fn look(code: FrontendReq, message: &Message, errands: &Errands) -> Result<(), String> {
    let (kind, most) = may_have(code);
    let count = message.descriptors.len();
    if count > most {
        return Err(format!("{code:?}: {count} file descriptors, expected at most {most}"));
    }
    let name = format!("{code:?}");
    // Of messages about a queue's counter, the lowest byte (vhost-user, "Ring descriptor index").
    let queue = message.bytes.get(HEADER_LEN).copied().unwrap_or(0);
    message.descriptors.iter().enumerate().try_for_each(|(n, descriptor)| match kind {
        Kind::Counter => counter(&name, queue.into(), descriptor),
        Kind::Guest => guest(&name, n, descriptor, errands),
        Kind::Plain => plain(&name, descriptor),
        Kind::None | Kind::Any => Ok(()),
    })
}

/// Those descriptors of a message that its handler needs.
pub fn needed(code: FrontendReq, message: &Message) -> &[OwnedFd] {
    match may_have(code).0 {
        Kind::Any => &[],
        _ => &message.descriptors,
    }
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
            "{message}: whether the descriptor for queue {queue} is an eventfd cannot be told: {error}"
        )),
    }
}

/// Whether region `n` can be a guest's memory.
///
/// # Errors
/// It cannot; or its file system does not answer.
pub fn guest(message: &str, n: usize, descriptor: &OwnedFd, errands: &Errands) -> Result<(), String> {
    if backing::is_memory(descriptor) {
        return Ok(());
    }
    let refused = |why: &dyn std::fmt::Display| Err(format!("{message}: memory region {n}: {why}"));
    let looked_at = match descriptor.try_clone() {
        Ok(duplicate) => duplicate,
        Err(error) => return refused(&Unfit::System(Errno::from_io_error(&error).unwrap_or(Errno::IO))),
    };
    match errands.ask(PATIENCE, move || backing::look(looked_at)) {
        Some(Ok(_)) => Ok(()),
        Some(Err(why)) => refused(&why),
        None => refused(
            &"the file system it is on does not answer, and may keep the switch waiting (use memory-backend-memfd)",
        ),
    }
}

/// Whether it is memory.
///
/// # Errors
/// It is not.
pub fn plain(message: &str, descriptor: impl AsFd) -> Result<(), String> {
    if backing::is_memory(descriptor) {
        return Ok(());
    }
    Err(format!("{message}: the descriptor is not shared memory; give a memfd"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::{MemfdFlags, memfd_create};

    #[test]
    fn each_message_has_what_it_may_have() {
        eventfd::prepare();
        let errands = Errands::new("test");
        let look = |code, files: &[&OwnedFd]| {
            let descriptors = files.iter().map(|file| file.try_clone().unwrap()).collect();
            super::look(code, &Message { descriptors, ..Message::default() }, &errands)
        };
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let memory = memfd_create("memory", MemfdFlags::CLOEXEC).unwrap();
        let socket: OwnedFd = std::os::unix::net::UnixStream::pair().unwrap().0.into();
        use FrontendReq::*;
        for code in [SET_OWNER, GET_FEATURES, SET_VRING_NUM, GET_INFLIGHT_FD, SEND_RARP] {
            assert_eq!(look(code, &[]), Ok(()));
            let refused = look(code, &[&event]).unwrap_err();
            assert!(refused.contains("1 file descriptors, expected at most 0"), "{refused}");
        }
        for code in [SET_VRING_KICK, SET_VRING_CALL, SET_VRING_ERR] {
            assert_eq!((look(code, &[]), look(code, &[&event])), (Ok(()), Ok(())));
            for files in [&[&memory][..], &[&socket], &[&event, &event]] {
                assert!(look(code, files).is_err(), "{code:?}");
            }
        }
        for code in [SET_MEM_TABLE, ADD_MEM_REG, SET_LOG_BASE, SET_INFLIGHT_FD] {
            assert_eq!(look(code, &[&memory]), Ok(()));
            for file in [&event, &socket] {
                assert!(look(code, &[file]).is_err(), "{code:?}");
            }
        }
        assert_eq!(look(SET_MEM_TABLE, &[&memory; 32]), Ok(()));
        assert!(look(SET_MEM_TABLE, &[&memory; 33]).is_err());
        assert_eq!(look(REM_MEM_REG, &[&socket]), Ok(()));
        let one = |file: OwnedFd| Message { descriptors: vec![file], ..Message::default() };
        assert!(needed(REM_MEM_REG, &one(socket)).is_empty());
        assert_eq!(needed(ADD_MEM_REG, &one(memory)).len(), 1);
    }
}
