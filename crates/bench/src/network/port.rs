//! An interface, by AF_PACKET (packet(7)): whole frames in, with the kernel's time of arrival, and out.
//!
//! The interface's peer has to send finished frames: without segmentation and checksum offloads
//! (`ethtool -K eth0 tx off gso off tso off`).

use rustix::time::{ClockId, clock_gettime};
use std::ffi::CString;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Longest frame.
const LONGEST: usize = 65_536 + 18;
/// Bytes of frames that may wait for the network in a socket.
const WAITING: i32 = 32 << 20;

/// Returns CLOCK_MONOTONIC_RAW (ns).
pub fn now() -> u64 {
    time(ClockId::MonotonicRaw)
}

fn time(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// An interface of the network.
pub struct Port {
    /// Its name.
    pub name: String,
    socket: OwnedFd,
    buffer: Box<[u8]>,
}

impl Port {
    /// Opens an interface of this namespace.
    ///
    /// # Errors
    /// There is no such interface, or this process may not open it (CAP_NET_RAW).
    pub fn new(name: &str) -> io::Result<Self> {
        let c_name = CString::new(name)?;
        // SAFETY: the string ends with a zero byte.
        let index = unsafe { libc::if_nametoindex(c_name.as_ptr()) };
        if index == 0 {
            return Err(io::Error::last_os_error());
        }
        let protocol = (libc::ETH_P_ALL as u16).to_be();
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: no memory is passed. Protocol 0 receives nothing before the socket is bound.
        let fd = checked(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
        // SAFETY: the descriptor is new and has no other owner.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        set(&socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
        set(&socket, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)?;
        set(&socket, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1)?;
        // Only root of the first user namespace may pass the limit of all others.
        if set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, WAITING).is_err() {
            set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, WAITING)?;
        }
        // SAFETY: all-zero bytes are a valid address.
        let mut address: libc::sockaddr_ll = unsafe { zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol;
        address.sll_ifindex = index as i32;
        // SAFETY: the kernel reads an address of that length.
        checked(unsafe {
            libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size_of::<libc::sockaddr_ll>() as u32)
        })?;
        // SAFETY: all-zero bytes are a valid request.
        let mut all: libc::packet_mreq = unsafe { zeroed() };
        all.mr_ifindex = index as i32;
        all.mr_type = libc::PACKET_MR_PROMISC as u16;
        // SAFETY: the kernel reads a request of that length.
        checked(unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_ADD_MEMBERSHIP,
                (&raw const all).cast(),
                size_of::<libc::packet_mreq>() as u32,
            )
        })?;
        Ok(Self { name: name.to_owned(), socket, buffer: vec![0; LONGEST].into() })
    }

    /// Takes a frame and the time of its arrival (CLOCK_MONOTONIC_RAW, ns); `None` if there is none.
    ///
    /// # Errors
    /// The interface is gone.
    pub fn receive(&mut self) -> io::Result<Option<(Vec<u8>, u64)>> {
        let mut part = libc::iovec { iov_base: self.buffer.as_mut_ptr().cast(), iov_len: self.buffer.len() };
        // Aligned as a cmsghdr is.
        let mut control = [0u64; 16];
        // SAFETY: all-zero bytes are a valid header.
        let mut header: libc::msghdr = unsafe { zeroed() };
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = size_of_val(&control);
        // SAFETY: the header names the two buffers above and their lengths.
        let length = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut header, 0) };
        let Ok(length) = usize::try_from(length) else {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock => Ok(None),
                // The interface is down: it may come up again.
                _ if error.raw_os_error() == Some(libc::ENETDOWN) => Ok(None),
                _ => Err(error),
            };
        };
        let (now, real) = (now(), time(ClockId::Realtime));
        let arrived = timestamp(&header).map_or(now, |stamp| now - real.saturating_sub(stamp).min(now));
        Ok(Some((self.buffer[..length.min(LONGEST)].to_vec(), arrived)))
    }

    /// Sends a frame; returns whether the interface took it.
    ///
    /// # Errors
    /// The socket is broken.
    pub fn send(&self, frame: &[u8]) -> io::Result<bool> {
        // SAFETY: the kernel reads the bytes of the slice.
        let sent = unsafe { libc::send(self.socket.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        if sent >= 0 {
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            // Full, down, or longer than its MTU.
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENETDOWN | libc::EMSGSIZE | libc::ENXIO) => Ok(false),
            _ => Err(error),
        }
    }

    /// Returns how many frames the kernel dropped for want of room in the socket.
    ///
    /// # Errors
    /// The socket is broken.
    pub fn dropped(&self) -> io::Result<u64> {
        let mut counts = [0u32; 2];
        let mut length = size_of_val(&counts) as u32;
        // SAFETY: the kernel writes at most that many bytes: packets and drops (struct tpacket_stats).
        checked(unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                counts.as_mut_ptr().cast(),
                &raw mut length,
            )
        })?;
        Ok(counts[1].into())
    }
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Returns the kernel's time of arrival (CLOCK_REALTIME, ns).
fn timestamp(header: &libc::msghdr) -> Option<u64> {
    // SAFETY: recvmsg filled the header, whose control buffer is still there; the macro returns a message in it or null.
    let message = unsafe { libc::CMSG_FIRSTHDR(header).as_ref() }?;
    if (message.cmsg_level, message.cmsg_type) != (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) {
        return None;
    }
    // SAFETY: a message of this type holds a timespec, perhaps unaligned.
    let time = unsafe { libc::CMSG_DATA(message).cast::<libc::timespec>().read_unaligned() };
    Some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

fn set(socket: &OwnedFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    // SAFETY: the kernel reads an integer of that length.
    checked(unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), size_of::<i32>() as u32)
    })
    .map(drop)
}

fn checked(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Runs this thread before ordinary ones (SCHED_FIFO), with exact timers and its memory kept.
///
/// # Errors
/// This process may not.
pub fn first(priority: i32) -> io::Result<()> {
    let parameter = libc::sched_param { sched_priority: priority };
    // SAFETY: the kernel reads the parameter; the other calls pass no memory.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1);
        libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE);
        checked(libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameter)).map(drop)
    }
}
