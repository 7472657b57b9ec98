//! Taps, with a test in the place of the VM.

use super::ip;
use rustix::ioctl::{Updater, ioctl};
use std::fs::File;
use std::io::{IoSlice, Read, Write};

/// Flags of linux/if_tun.h.
const IFF_TAP: u16 = 0x0002;
const IFF_NO_PI: u16 = 0x1000;
const IFF_VNET_HDR: u16 = 0x4000;

/// A tap that is up. Its descriptor does not block.
pub struct Tap(File);

impl Tap {
    /// Frames alone go in and out: none of what comes out is a super-frame.
    #[track_caller]
    pub fn plain(name: &str) -> Self {
        Self::open(name, IFF_TAP | IFF_NO_PI)
    }

    /// As a VM has one: a [`Request`] is before each frame.
    #[track_caller]
    pub fn with_requests(name: &str) -> Self {
        Self::open(name, IFF_TAP | IFF_NO_PI | IFF_VNET_HDR)
    }

    #[track_caller]
    fn open(name: &str, flags: u16) -> Self {
        let tap = File::options().read(true).write(true).open("/dev/net/tun").unwrap();
        rustix::io::ioctl_fionbio(&tap, true).unwrap();
        // struct ifreq: the name and the flags.
        let mut request = [0_u8; 40];
        request[..name.len()].copy_from_slice(name.as_bytes());
        request[16..18].copy_from_slice(&flags.to_ne_bytes());
        // SAFETY: TUNSETIFF (linux/if_tun.h) reads and writes one `struct ifreq`.
        unsafe { ioctl(&tap, Updater::<0x400454ca, _>::new(&mut request)) }.unwrap();
        ip(&format!("link set {name} up"));
        Self(tap)
    }

    /// Sends one frame into the host; whether the kernel took it.
    pub fn send(&self, request: &Request, frame: &[u8]) -> bool {
        (&self.0).write_vectored(&[IoSlice::new(&request.bytes()), IoSlice::new(frame)]).is_ok()
    }

    /// The next frame that the host sent.
    pub fn receive(&self) -> Option<Vec<u8>> {
        let mut frame = vec![0; 70_000];
        let length = (&self.0).read(&mut frame).ok()?;
        frame.truncate(length);
        Some(frame)
    }
}

/// What a guest asks of the host for one frame: `struct virtio_net_hdr` (virtio 1.2, 5.1.6).
#[derive(Clone, Copy, Debug, Default)]
pub struct Request {
    /// Bit 0: the checksum is left to the host.
    pub flags: u8,
    pub gso_type: u8,
    pub hdr_len: u16,
    pub gso_size: u16,
    pub csum_start: u16,
    pub csum_offset: u16,
}

impl Request {
    pub const NEEDS_CSUM: u8 = 1;
    pub const TCPV4: u8 = 1;
    /// Fragments of one datagram.
    pub const UDP: u8 = 3;
    pub const TCPV6: u8 = 4;
    /// Several datagrams.
    pub const UDP_L4: u8 = 5;

    fn bytes(&self) -> [u8; 10] {
        let mut bytes = [self.flags, self.gso_type, 0, 0, 0, 0, 0, 0, 0, 0];
        for (i, word) in
            [self.hdr_len, self.gso_size, self.csum_start, self.csum_offset].into_iter().enumerate()
        {
            bytes[2 + 2 * i..][..2].copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }
}
