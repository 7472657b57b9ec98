//! A netlink socket: a request, then its acknowledgement or the answers.

use crate::attribute;
use netlink_packet_core::NetlinkBuffer;
use netlink_sys::{
    SocketAddr,
    protocols::{NETLINK_GENERIC, NETLINK_NETFILTER, NETLINK_ROUTE, NETLINK_SOCK_DIAG},
};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use std::io;
use std::time::{Duration, Instant};

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;

const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
/// Some older kernels answer a request only if it asks for an echo (`qdisc_notify`, net/sched/sch_api.c).
const NLM_F_ECHO: u16 = 0x8;
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLM_F_DUMP: u16 = 0x300;
/// The answer has attributes (linux/netlink.h).
const NLM_F_ACK_TLVS: u16 = 0x200;
/// The words of an error (`NLMSGERR_ATTR_MSG`).
const MESSAGE: u16 = 1;

/// Of a message: length, type, flags, sequence number, port.
const HEADER: usize = 16;

/// Timeout of an answer. The kernel answers at once, unless it lost the answer for want of memory.
const PATIENCE: Duration = Duration::from_secs(5);

/// Size of the receive buffer, bytes. The kernel sends a dump in parts that fit the buffer, up to 32 KiB, and begins each
/// part by walking over all earlier ones (`netlink_dump`, net/netlink/af_netlink.c). The message of one NIC is longer: about
/// 300 bytes for each virtual function.
const BUFFER: usize = 512 * 1024;
/// Of `recv`: tells the whole length (sys/socket.h).
const MSG_TRUNC: i32 = 0x20;

/// For how long an interrupted dump is repeated, and the longest pause before a repetition.
const CHANGING: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(20);

/// A failed request.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// The kernel refused the request; nothing was changed.
    #[error("the kernel refused: {}{}", .error, .words.as_ref().map(|w| format!(" ({w})")).unwrap_or_default())]
    Refused {
        /// Its error number.
        error: io::Error,
        /// The text of the kernel (extended acknowledgement), if it sent one.
        words: Option<String>,
    },
    /// The socket failed; the request may have been done or not.
    #[error("cannot talk to the kernel (netlink): {0}")]
    Broken(#[from] io::Error),
}

impl NetlinkError {
    /// The kernel's error number, such as `EEXIST`.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Refused { error, .. } => error.raw_os_error(),
            Self::Broken(_) => None,
        }
    }
}

/// A socket in the network namespace of the thread that opened it.
pub struct Socket {
    socket: netlink_sys::Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Socket {
    /// Opens one for links and traffic control, rtnetlink(7).
    ///
    /// # Errors
    /// The socket cannot be opened.
    pub fn route() -> io::Result<Self> {
        Self::open(NETLINK_ROUTE)
    }

    /// Opens one for [`crate::generic`].
    ///
    /// # Errors
    /// The socket cannot be opened.
    pub fn generic() -> io::Result<Self> {
        Self::open(NETLINK_GENERIC)
    }

    /// Opens one for [`crate::netfilter`].
    ///
    /// # Errors
    /// The socket cannot be opened.
    pub fn netfilter() -> io::Result<Self> {
        Self::open(NETLINK_NETFILTER)
    }

    /// Opens one for questions about sockets, sock_diag(7).
    ///
    /// # Errors
    /// The socket cannot be opened.
    pub fn diagnosis() -> io::Result<Self> {
        Self::open(NETLINK_SOCK_DIAG)
    }

    fn open(protocol: isize) -> io::Result<Self> {
        let mut socket = netlink_sys::Socket::new(protocol)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        // Without the words of its errors, and with the request in them, it can be talked to as well.
        let _ = socket.set_ext_ack(true);
        let _ = socket.set_cap_ack(true);
        set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
        Ok(Self { socket, sequence: 0, buffer: vec![0; BUFFER] })
    }

    /// Asks for a change, and waits until it is done.
    ///
    /// # Errors
    /// The kernel refused it, or the conversation broke off.
    pub fn change(&mut self, kind: u16, flags: u16, body: &[u8]) -> Result<(), NetlinkError> {
        self.send(kind, NLM_F_REQUEST | NLM_F_ACK | flags, body)?;
        self.receive(|_, _| ()).map(drop)
    }

    /// Asks for one object; `each` gets type and body of each answer, of which there may be none.
    ///
    /// # Errors
    /// As [`Socket::change`].
    pub fn get<T>(
        &mut self,
        kind: u16,
        body: &[u8],
        mut each: impl FnMut(u16, &[u8]) -> Option<T>,
    ) -> Result<Option<T>, NetlinkError> {
        self.send(kind, NLM_F_REQUEST | NLM_F_ACK | NLM_F_ECHO, body)?;
        let mut found = None;
        self.receive(|kind, body| found = each(kind, body))?;
        Ok(found)
    }

    /// Asks for all objects of a kind; `each` gets type and body of every message.
    ///
    /// # Errors
    /// As [`Socket::change`].
    pub fn dump<T>(
        &mut self,
        kind: u16,
        body: &[u8],
        mut each: impl FnMut(u16, &[u8]) -> Option<T>,
    ) -> Result<Vec<T>, NetlinkError> {
        let (begin, mut pause) = (Instant::now(), Duration::from_micros(500));
        while begin.elapsed() < CHANGING {
            self.send(kind, NLM_F_REQUEST | NLM_F_DUMP, body)?;
            let mut found = Vec::new();
            let whole = self.receive(|kind, body| found.extend(each(kind, body)))?;
            if whole {
                return Ok(found);
            }
            // The program that changes it is done sooner when we wait than when we ask without end.
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE);
        }
        Err(io::Error::other("the list changes faster than it can be read").into())
    }

    fn send(&mut self, kind: u16, flags: u16, body: &[u8]) -> Result<(), NetlinkError> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut message = vec![0; HEADER + body.len()];
        let length = u32::try_from(message.len()).map_err(io::Error::other)?;
        let mut buffer = NetlinkBuffer::new(&mut message);
        buffer.set_length(length);
        buffer.set_message_type(kind);
        buffer.set_flags(flags);
        buffer.set_sequence_number(self.sequence);
        buffer.payload_mut().copy_from_slice(body);
        self.socket.send(&message, 0)?;
        Ok(())
    }

    /// Until the end of the answer; whether nothing changed over it.
    fn receive(&mut self, mut each: impl FnMut(u16, &[u8])) -> Result<bool, NetlinkError> {
        let mut whole = true;
        loop {
            let length = self.socket.recv(&mut &mut self.buffer[..], MSG_TRUNC)?;
            let mut rest = self
                .buffer
                .get(..length)
                .ok_or_else(|| io::Error::other(format!("an answer of {length} bytes is too long")))?;
            while rest.len() >= HEADER {
                let message = NetlinkBuffer::new_checked(rest).map_err(io::Error::other)?;
                let body = message.payload();
                let flags = message.flags();
                // Answers to a request that was given up.
                let ours = message.sequence_number() == self.sequence;
                let length = (message.length() as usize).next_multiple_of(4).min(rest.len());
                rest = &rest[length..];
                if !ours {
                    continue;
                }
                whole &= flags & NLM_F_DUMP_INTR == 0;
                match message.message_type() {
                    // An error number here, too.
                    NLMSG_DONE => return result(body, 0).map(|()| whole),
                    NLMSG_ERROR => return result(body, flags).map(|()| whole),
                    kind => each(kind, body),
                }
            }
        }
    }
}

/// What an acknowledgement says: `struct nlmsgerr`, an error number and the request's header.
fn result(body: &[u8], flags: u16) -> Result<(), NetlinkError> {
    let code = attribute::u32_at(body, 0).map_or(0, u32::cast_signed);
    if code == 0 {
        return Ok(());
    }
    let words = (flags & NLM_F_ACK_TLVS != 0)
        .then(|| body.get(4 + HEADER..))
        .flatten()
        .and_then(|attributes| attribute::find(attributes, MESSAGE))
        .map(attribute::string);
    Err(NetlinkError::Refused { error: io::Error::from_raw_os_error(code.saturating_neg()), words })
}

impl std::fmt::Debug for Socket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Socket").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_its_number_and_the_message_of_the_kernel() {
        let mut attributes = attribute::Attributes::default();
        attributes.put_str(MESSAGE, "Qdisc not found");
        let body = [&(-2_i32).to_ne_bytes()[..], &[0; HEADER], &attributes.0].concat();
        let error = result(&body, NLM_F_ACK_TLVS).expect_err("an error");
        assert_eq!(error.errno(), Some(2));
        assert!(error.to_string().ends_with("(os error 2) (Qdisc not found)"), "{error}");
        let bare = result(&body[..20], 0).expect_err("an error");
        assert!(bare.to_string().ends_with("(os error 2)"), "{bare}");
        assert!(result(&[0; 20], 0).is_ok());
    }
}
