//! The system calls: many messages by one call, each of several datagrams.
//!
//! ```text
//!  socket ─ recvmmsg, UDP_GRO ─▶ Incoming ─▶ Message: source, traffic class, datagrams of one size
//!  socket ◀ sendmmsg, UDP_SEGMENT ─ Outgoing ◀─ Train: destination, traffic class, datagrams of one size
//! ```
//!
//! The agent makes the sockets: bound, non-blocking, `UDP_GRO`, `IP_RECVTOS`, `IPV6_RECVTCLASS` and
//! `SO_TIMESTAMPNS` for arrival, no fragmentation (`IP_PMTUDISC_DO`) for sending. The last of a message's datagrams may be shorter.

use rustix::io::Errno;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Most messages of one call.
pub const MESSAGES: usize = 32;
/// Longest message (bytes): that of UDP over IPv4. One of IPv6 without extension headers may have 20 more.
pub const MESSAGE_MAX: usize = 65_507;
/// Most datagrams of a message (`UDP_MAX_SEGMENTS` of kernels before 6.9; later ones take more).
pub const DATAGRAMS: usize = 64;

/// A receive buffer (bytes), longer than any message.
const BUFFER: usize = 1 << 16;
/// From one buffer to the next (bytes), so that their beginnings fall into different sets of a cache.
const STRIDE: usize = BUFFER + 192;
/// Room for control messages (bytes): more than those that are asked for.
pub(in crate::link) const CONTROL: usize = 128;
/// Length of a control message's header (bytes).
const CONTROL_HEADER: usize = size_of::<libc::cmsghdr>();
/// Alignment of control messages (bytes).
const ALIGN: usize = size_of::<usize>();

/// A `sockaddr_in` or `sockaddr_in6`.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Name([u8; size_of::<libc::sockaddr_in6>()]);

#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(in crate::link) struct Control(pub(in crate::link) [u8; CONTROL]);

/// What the kernel reads and writes for each message of a call.
pub(in crate::link) struct Calls {
    names: [Name; MESSAGES],
    pub(in crate::link) controls: [Control; MESSAGES],
    vectors: [libc::iovec; MESSAGES],
    pub(in crate::link) headers: [libc::mmsghdr; MESSAGES],
}

// SAFETY: its pointers are set anew before each call, and used by that call only.
unsafe impl Send for Calls {}

impl Calls {
    pub(in crate::link) fn new() -> Box<Self> {
        let vector = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        // SAFETY: all fields are numbers, or pointers that may be null.
        let header = unsafe { std::mem::zeroed() };
        Box::new(Self {
            names: [Name([0; _]); MESSAGES],
            controls: [Control([0; CONTROL]); MESSAGES],
            vectors: [vector; MESSAGES],
            headers: [header; MESSAGES],
        })
    }

    /// Points message `at` to `len` bytes, and to the first bytes of its name and its control messages.
    pub(in crate::link) fn point(
        &mut self,
        at: usize,
        bytes: *mut u8,
        len: usize,
        name: usize,
        control: usize,
    ) {
        self.vectors[at] = libc::iovec { iov_base: bytes.cast(), iov_len: len };
        let vector = &raw mut self.vectors[at];
        let header = &mut self.headers[at].msg_hdr;
        header.msg_name = self.names[at].0.as_mut_ptr().cast();
        header.msg_namelen = name as libc::socklen_t;
        header.msg_iov = vector;
        header.msg_iovlen = 1;
        header.msg_control = self.controls[at].0.as_mut_ptr().cast();
        header.msg_controllen = control as _;
        header.msg_flags = 0;
    }
}

/// Received messages, in own memory.
pub struct Incoming {
    memory: Box<[u8]>,
    calls: Box<Calls>,
    count: usize,
}

/// One received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// The sender.
    pub source: IpAddr,
    /// Datagrams, one after the other.
    pub bytes: &'a [u8],
    /// Length of each datagram but the last (bytes); at least 1.
    pub size: usize,
    /// DSCP and ECN of the outer headers.
    pub traffic_class: u8,
    /// When the kernel received its first datagram (ns of CLOCK_REALTIME), if the socket tells (`SO_TIMESTAMPNS`).
    pub received: Option<u64>,
}

impl Default for Incoming {
    /// Returns an empty batch. Pages are touched when first used.
    fn default() -> Self {
        Self { memory: vec![0; MESSAGES * STRIDE].into(), calls: Calls::new(), count: 0 }
    }
}

impl Incoming {
    /// Receives up to `most` messages, at most [`MESSAGES`], in place of those before; returns their number.
    ///
    /// # Errors
    /// There is none (`EAGAIN`), or the kernel's reason.
    pub fn receive(&mut self, socket: BorrowedFd<'_>, most: usize) -> Result<usize, Errno> {
        self.count = 0;
        let most = most.min(MESSAGES);
        for (at, buffer) in self.memory.chunks_exact_mut(STRIDE).take(most).enumerate() {
            self.calls.point(at, buffer.as_mut_ptr(), BUFFER, size_of::<Name>(), CONTROL);
        }
        let headers = self.calls.headers.as_mut_ptr();
        // SAFETY: `most` headers lead to buffers, names and control messages of those lengths, which are
        // exclusive during the call.
        let result = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                headers,
                most as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        self.count = usize::try_from(result).map_err(|_| last_error())?;
        Ok(self.count)
    }

    /// Returns the number of messages.
    #[inline]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the length of a message (bytes).
    #[inline]
    pub fn len(&self, at: usize) -> usize {
        self.calls.headers[..self.count].get(at).map_or(0, |header| header.msg_len as usize)
    }

    /// Returns a part of a [message](Self::message)'s bytes; no bytes beyond its end.
    #[inline]
    pub fn bytes(&self, at: usize, part: std::ops::Range<usize>) -> &[u8] {
        let message = self.memory.get(at * STRIDE..).and_then(|from| from.get(..self.len(at)));
        message.and_then(|message| message.get(part)).unwrap_or(&[])
    }

    /// Returns a message; `None` if it was cut off, has no sender, or the kernel did not say what it is.
    pub fn message(&self, at: usize) -> Option<Message<'_>> {
        let header = self.calls.headers[..self.count].get(at)?;
        let hdr = &header.msg_hdr;
        if hdr.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
            return None;
        }
        let source = self.calls.names[at].source(hdr.msg_namelen as usize)?;
        let bytes = self.memory.get(at * STRIDE..)?.get(..header.msg_len as usize)?;
        let control = self.calls.controls[at].0.get(..hdr.msg_controllen)?;
        let size = bytes.len().max(1);
        let mut message = Message { source, bytes, size, traffic_class: 0, received: None };
        for (level, kind, data) in Controls(control) {
            match (level, kind) {
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    message.size = usize::try_from(i32::from_ne_bytes(*data.first_chunk()?)).ok()?;
                }
                (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => message.received = timespec(data),
                (libc::IPPROTO_IP, libc::IP_TOS) => message.traffic_class = *data.first()?,
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    message.traffic_class = i32::from_ne_bytes(*data.first_chunk()?) as u8;
                }
                _ => {}
            }
        }
        (message.size > 0).then_some(message)
    }
}

/// Datagrams of one size to one destination.
#[derive(Clone, Copy, Debug)]
pub struct Train<'a> {
    /// The destination.
    pub to: SocketAddr,
    /// The datagrams, one after the other; at most [`MESSAGE_MAX`] bytes and [`DATAGRAMS`].
    pub bytes: &'a [u8],
    /// Length of each datagram but the last (bytes).
    pub size: usize,
    /// DSCP and ECN of the outer headers.
    pub traffic_class: u8,
}

/// Why the kernel did not send a train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotSent {
    /// It has no room now.
    Full,
    /// A datagram is longer than the path's MTU.
    TooLong,
    /// There is no route.
    NoRoute,
    /// An ICMP message about an earlier datagram; the train may be sent.
    Earlier,
    /// A filter refused it.
    Filter,
    /// The device of its route cannot cut trains: it computes no checksums, or encrypts.
    Uncut,
    /// Another reason.
    Other(Errno),
}

/// The memory of a call that sends.
pub struct Outgoing {
    calls: Box<Calls>,
    /// Answers of the next calls: so many messages at most, or none.
    #[cfg(test)]
    pub script: std::collections::VecDeque<Result<usize, NotSent>>,
}

impl Default for Outgoing {
    fn default() -> Self {
        Self {
            calls: Calls::new(),
            #[cfg(test)]
            script: std::collections::VecDeque::new(),
        }
    }
}

impl Outgoing {
    /// Sends the first of `trains`, at most [`MESSAGES`]; returns how many were sent, at least one.
    ///
    /// # Errors
    /// The first was not sent; why.
    pub fn send<'a>(
        &mut self,
        socket: BorrowedFd<'_>,
        trains: impl Iterator<Item = Train<'a>>,
    ) -> Result<usize, NotSent> {
        #[cfg(test)]
        let trains = trains.take(self.script.pop_front().unwrap_or(Ok(MESSAGES))?);
        let mut count = 0;
        let mut is_segmented = false;
        for (at, train) in trains.take(MESSAGES).enumerate() {
            let name = self.calls.names[at].set(&train.to);
            let control = write_controls(&mut self.calls.controls[at].0, &train);
            is_segmented |= at == 0 && train.bytes.len() > train.size;
            self.calls.point(at, train.bytes.as_ptr().cast_mut(), train.bytes.len(), name, control);
            count = at + 1;
        }
        let headers = self.calls.headers.as_mut_ptr();
        // SAFETY: `count` headers lead to names, control messages and trains of those lengths, which live
        // during the call. It only reads the trains.
        let result = unsafe {
            libc::sendmmsg(socket.as_raw_fd(), headers, count as libc::c_uint, libc::MSG_DONTWAIT as _)
        };
        usize::try_from(result).map_err(|_| NotSent::of(last_error(), is_segmented))
    }
}

impl NotSent {
    fn of(error: Errno, is_segmented: bool) -> Self {
        match error {
            Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::INTR => Self::Full,
            Errno::MSGSIZE => Self::TooLong,
            // Kernels say so of a train whose datagrams exceed the MTU.
            Errno::INVAL if is_segmented => Self::TooLong,
            Errno::NETUNREACH | Errno::NETDOWN | Errno::ADDRNOTAVAIL => Self::NoRoute,
            // A route of this kind, or an earlier datagram's fate: sending again tells.
            Errno::CONNREFUSED | Errno::HOSTUNREACH | Errno::HOSTDOWN | Errno::PROTO => Self::Earlier,
            Errno::PERM | Errno::ACCESS => Self::Filter,
            Errno::IO | Errno::OPNOTSUPP if is_segmented => Self::Uncut,
            other => Self::Other(other),
        }
    }
}

impl Name {
    /// Returns the address of a name of `len` bytes.
    fn source(&self, len: usize) -> Option<IpAddr> {
        let bytes = self.0.get(..len)?;
        let family = u16::from_ne_bytes(*bytes.first_chunk()?);
        match libc::c_int::from(family) {
            libc::AF_INET => Some(Ipv4Addr::from(*bytes.get(4..)?.first_chunk::<4>()?).into()),
            libc::AF_INET6 => Some(Ipv6Addr::from(*bytes.get(8..)?.first_chunk::<16>()?).into()),
            _ => None,
        }
    }

    /// Writes an address; returns its length.
    fn set(&mut self, to: &SocketAddr) -> usize {
        let bytes = &mut self.0;
        bytes[2..4].copy_from_slice(&to.port().to_be_bytes());
        let (family, len) = match to {
            SocketAddr::V4(v4) => {
                bytes[4..8].copy_from_slice(&v4.ip().octets());
                bytes[8..16].fill(0);
                (libc::AF_INET, size_of::<libc::sockaddr_in>())
            }
            SocketAddr::V6(v6) => {
                bytes[4..8].copy_from_slice(&v6.flowinfo().to_be_bytes());
                bytes[8..24].copy_from_slice(&v6.ip().octets());
                bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
                (libc::AF_INET6, size_of::<libc::sockaddr_in6>())
            }
        };
        bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
        len
    }
}

/// Returns the nanoseconds of a `timespec`.
fn timespec(data: &[u8]) -> Option<u64> {
    let (seconds, rest) = data.split_first_chunk()?;
    let nanoseconds = rest.first_chunk()?;
    let seconds = u64::try_from(i64::from_ne_bytes(*seconds)).ok()?;
    seconds.checked_mul(1_000_000_000)?.checked_add(u64::try_from(i64::from_ne_bytes(*nanoseconds)).ok()?)
}

/// Control messages: level, type and data of each.
pub(in crate::link) struct Controls<'a>(pub(in crate::link) &'a [u8]);

impl<'a> Iterator for Controls<'a> {
    type Item = (libc::c_int, libc::c_int, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (header, _) = self.0.split_at_checked(CONTROL_HEADER)?;
        let (len, rest) = header.split_first_chunk()?;
        let len = usize::from_ne_bytes(*len);
        let level = i32::from_ne_bytes(*rest.first_chunk()?);
        let kind = i32::from_ne_bytes(*rest.get(4..)?.first_chunk()?);
        let data = self.0.get(CONTROL_HEADER..len)?;
        self.0 = self.0.get(len.next_multiple_of(ALIGN)..).unwrap_or(&[]);
        Some((level, kind, data))
    }
}

/// Writes a train's control messages; returns their length.
fn write_controls(out: &mut [u8; CONTROL], train: &Train<'_>) -> usize {
    let mut at = 0;
    if train.bytes.len() > train.size {
        at = write_control(out, at, (libc::SOL_UDP, libc::UDP_SEGMENT), &(train.size as u16).to_ne_bytes());
    }
    if train.traffic_class != 0 {
        let kind = match train.to {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
        };
        at = write_control(out, at, kind, &i32::from(train.traffic_class).to_ne_bytes());
    }
    at
}

/// Writes a control message at `at`; returns its end.
fn write_control(
    out: &mut [u8; CONTROL],
    at: usize,
    (level, kind): (libc::c_int, libc::c_int),
    data: &[u8],
) -> usize {
    let out = &mut out[at..];
    let len = CONTROL_HEADER + data.len();
    out[..ALIGN].copy_from_slice(&len.to_ne_bytes());
    out[ALIGN..ALIGN + 4].copy_from_slice(&level.to_ne_bytes());
    out[ALIGN + 4..CONTROL_HEADER].copy_from_slice(&kind.to_ne_bytes());
    out[CONTROL_HEADER..len].copy_from_slice(data);
    at + len.next_multiple_of(ALIGN)
}

pub(in crate::link) fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn control_messages_are_read_back(size in 1..2000usize, class: u8, v6: bool) {
            let bytes = [0; 4000];
            let to = if v6 { "[::1]:9" } else { "127.0.0.1:9" }.parse().unwrap();
            let mut out = [0xaa; CONTROL];
            let len = write_controls(&mut out, &Train { to, bytes: &bytes, size, traffic_class: class });
            let read: Vec<_> = Controls(&out[..len]).collect();
            prop_assert_eq!(read[0], (libc::SOL_UDP, libc::UDP_SEGMENT, &(size as u16).to_ne_bytes()[..]));
            prop_assert_eq!(read.len(), 1 + usize::from(class != 0));
            if class != 0 {
                prop_assert_eq!(read[1].2, &i32::from(class).to_ne_bytes()[..]);
            }
        }

        #[test]
        fn any_control_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..CONTROL), len in 0..200usize) {
            let mut bytes = bytes;
            if let Some(first) = bytes.first_chunk_mut() {
                *first = len.to_ne_bytes();
            }
            // Each takes at least a header, or ends the list.
            prop_assert!(Controls(&bytes).count() <= CONTROL);
        }

        #[test]
        fn an_address_is_read_back(v4: [u8; 4], v6: [u8; 16], port: u16) {
            for ip in [IpAddr::from(v4), v6.into()] {
                let mut name = Name([0xaa; _]);
                let len = name.set(&(ip, port).into());
                prop_assert_eq!(name.source(len), Some(ip));
                prop_assert_eq!(name.source(2), None);
            }
        }
    }
}
