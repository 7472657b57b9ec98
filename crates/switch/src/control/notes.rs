//! State that the switch sends unasked: all that another process needs to continue in its place.
//!
//! ```text
//!  port threads ── Note + descriptors ──▶ SOCK_SEQPACKET ──▶ agent: Notes::next
//!                                             │ the switch is gone: what it sent is still there,
//!                                             └──▶ then the end
//! ```
//!
//! One packet is one note. Nothing is acknowledged: a sent note is in the receiver's queue and survives the sender. If a
//! note could *not* be sent to a slow receiver, [`messages`](crate::stats::layout::VnicSlot::messages) in the statistics
//! region differs from the stored count, and the stored connection is not the one the front end knows.

use crate::vhost_user::saved::{Number, SavedConnection};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair, sockopt};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use tidegate_service::scm::{self, SCM_MAX};

/// Longest note (bytes); a connection of 128 queue pairs takes less.
const LONGEST: usize = 192 << 10;

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// The vNIC.
    pub vnic: String,
    /// The change.
    #[serde(rename = "what")]
    pub change: Change,
}

/// A change of a vNIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// The note's descriptors have these numbers; a connection will refer to them.
    Descriptors(Vec<Number>),
    /// The present state of the connection.
    #[serde(rename = "said")]
    State {
        /// [`messages`](crate::stats::layout::VnicSlot::messages) at which the state holds.
        messages: u64,
        /// The connection.
        #[serde(rename = "kept")]
        saved: Box<SavedConnection>,
    },
    /// The connection is over.
    #[serde(rename = "gone")]
    Closed,
    /// The note's descriptor is the listening socket.
    Listener,
    /// The note's descriptors are the tap's, one per queue pair.
    Tap,
}

/// Creates a socket pair: the receiver of notes, and the switch's end.
///
/// # Errors
/// No descriptors are available.
pub fn pair() -> io::Result<(Notes, OwnedFd)> {
    let (ours, switch_end) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    // As large as the host allows (net.core.wmem_max): all ports may send at once.
    sockopt::set_socket_send_buffer_size(&switch_end, 4 << 20)?;
    Ok((Notes::from_socket(ours), switch_end))
}

/// Sends one note without waiting.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] if the receiver is slow; any other error: it is gone.
pub fn send(socket: impl AsFd, note: &Note, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = serde_json::to_vec(note)?;
    if bytes.len() > LONGEST {
        return Err(io::Error::other(format!("a note of {} bytes, at most {LONGEST}", bytes.len())));
    }
    scm::send(socket, &bytes, descriptors, SendFlags::DONTWAIT).map(drop)
}

/// Receives the notes of a switch, until it ends.
#[derive(Debug)]
pub struct Notes {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl Notes {
    /// Receives notes from `socket`, of type SOCK_SEQPACKET.
    pub fn from_socket(socket: OwnedFd) -> Self {
        Self { socket, buffer: vec![0; LONGEST] }
    }

    /// Returns the next note; `None` after the last note of a switch that has ended.
    ///
    /// # Errors
    /// The switch sent something else, or the system refused.
    #[expect(clippy::should_implement_trait, reason = "it fails")]
    pub fn next(&mut self) -> io::Result<Option<(Note, Vec<OwnedFd>)>> {
        self.receive(RecvFlags::empty(), SCM_MAX)
    }

    /// As [`next`](Self::next), without waiting.
    ///
    /// # Errors
    /// As there; [`io::ErrorKind::WouldBlock`] if there is none.
    pub fn try_next(&mut self) -> io::Result<Option<(Note, Vec<OwnedFd>)>> {
        self.receive(RecvFlags::DONTWAIT, SCM_MAX)
    }

    /// As [`try_next`](Self::try_next), without the note's descriptors: this process never receives them.
    ///
    /// # Errors
    /// As there.
    pub fn try_next_without_descriptors(&mut self) -> io::Result<Option<Note>> {
        Ok(self.receive(RecvFlags::DONTWAIT, 0)?.map(|(note, _)| note))
    }

    /// Duplicates the socket's descriptor; shutting it down ends the conversation.
    ///
    /// # Errors
    /// No descriptor is available.
    pub fn socket(&self) -> io::Result<OwnedFd> {
        self.socket.try_clone()
    }

    fn receive(&mut self, flags: RecvFlags, most: usize) -> io::Result<Option<(Note, Vec<OwnedFd>)>> {
        let mut descriptors = Vec::new();
        let received = scm::receive(&self.socket, &mut self.buffer, &mut descriptors, most, flags)?;
        if received.bytes == 0 {
            return Ok(None);
        }
        if received.cut {
            return Err(io::Error::other(format!("a note of more than {LONGEST} bytes")));
        }
        Ok(Some((serde_json::from_slice(&self.buffer[..received.bytes])?, descriptors)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vhost_user::saved::{SavedLog, SavedRegion, SavedVring};

    #[test]
    fn sent_notes_survive_the_sender() {
        let (mut notes, switch_end) = pair().unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        let note = |change| Note { vnic: "a".into(), change };
        send(&switch_end, &note(Change::Descriptors(vec![7])), &[writer.as_fd()]).unwrap();
        send(&switch_end, &note(Change::Closed), &[]).unwrap();
        drop((switch_end, writer));
        let (first, descriptors) = notes.next().unwrap().unwrap();
        assert_eq!((first.change, descriptors.len()), (Change::Descriptors(vec![7]), 1));
        assert_eq!(notes.next().unwrap().unwrap().0.change, Change::Closed);
        assert!(notes.next().unwrap().is_none());
        rustix::io::write(&descriptors[0], b"x").unwrap();
        drop(descriptors);
        assert_eq!(std::io::read_to_string(reader).unwrap(), "x");
    }

    #[test]
    fn the_largest_connection_fits_and_a_slow_receiver_is_reported() {
        let number = Some(u64::MAX);
        let vring = SavedVring {
            size: Some(u16::MAX),
            addresses: Some((u64::MAX, u64::MAX, u64::MAX)),
            base: Some(u32::MAX),
            log: number,
            kick: number,
            call: number,
            err: number,
            enabled: true,
            running: true,
        };
        let all = u64::MAX;
        let region = SavedRegion { guest_addr: all, user_addr: all, size: all, mmap_offset: all, file: all };
        let saved = SavedConnection {
            stream: all,
            features: number,
            protocol_features: all,
            regions: vec![region; 32],
            memory_is_alive: true,
            vrings: vec![vring; 256],
            inflight: number,
            log: Some(SavedLog { file: all, size: all, offset: all }),
        };
        let (mut notes, switch_end) = pair().unwrap();
        let said = Change::State { messages: all, saved: Box::new(saved) };
        let note = Note { vnic: "n".repeat(63), change: said };
        let mut sent = 0;
        let error = loop {
            match send(&switch_end, &note, &[]) {
                Ok(()) => sent += 1,
                Err(error) => break error,
            }
        };
        assert!(sent > 0 && error.kind() == io::ErrorKind::WouldBlock, "{sent}: {error}");
        drop(switch_end);
        for _ in 0..sent {
            assert_eq!(notes.next().unwrap().unwrap().0, note);
        }
        assert!(notes.next().unwrap().is_none());
    }
}
