//! The other end of a tap, driven by hand: a socket that keeps frames apart, as a tap's descriptor does.
//! What the kernel does is not counted anyhow, and a real tap has frames that nobody here sent.

use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::os::fd::OwnedFd;

/// Bytes that the kernel may hold in each direction.
const HELD: usize = 200 << 10;

/// A stack beyond a tap.
pub struct Tap {
    socket: OwnedFd,
    /// What it sends, in turns.
    frames: Vec<Vec<u8>>,
    into: Vec<u8>,
}

impl Tap {
    /// It sends `frames`, virtio headers included. Returned beside it: the tap, for the switch.
    pub fn new(frames: &[Vec<u8>]) -> (Self, OwnedFd) {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (socket, ours) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("sockets");
        for end in [&socket, &ours] {
            set_socket_send_buffer_size(end, HELD).expect("a size");
            set_socket_recv_buffer_size(end, HELD).expect("a size");
        }
        (Self { socket, frames: frames.to_vec(), into: vec![0; 1 << 17] }, ours)
    }

    /// Sends `count` frames.
    pub fn send(&self, count: u16) {
        for frame in self.frames.iter().cycle().take(usize::from(count)) {
            assert_eq!(rustix::io::write(&self.socket, frame), Ok(frame.len()), "the socket holds so many");
        }
    }

    /// Takes what it received; returns the bytes, virtio headers included.
    pub fn receive(&mut self) -> usize {
        let mut bytes = 0;
        while let Ok(len) = rustix::io::read(&self.socket, &mut self.into[..]) {
            bytes += len;
        }
        bytes
    }
}
