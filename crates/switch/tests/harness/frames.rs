//! Frames with offload requests, built and checked independently of the switch.

use super::checksum;

pub const NEEDS_CSUM: u8 = 1;
pub const TCPV4: u8 = 1;
pub const TCPV6: u8 = 4;
pub const UDP_L4: u8 = 5;
pub const ECN: u8 = 0x80;

pub const CSUM: u64 = 1 << 0;
pub const GUEST_CSUM: u64 = 1 << 1;
pub const GUEST_TSO4: u64 = 1 << 7;
pub const GUEST_TSO6: u64 = 1 << 8;
pub const GUEST_ECN: u64 = 1 << 9;
pub const HOST_TSO4: u64 = 1 << 11;
pub const HOST_TSO6: u64 = 1 << 12;
pub const HOST_ECN: u64 = 1 << 13;
pub const GUEST_USO4: u64 = 1 << 54;
pub const GUEST_USO6: u64 = 1 << 55;
pub const HOST_USO: u64 = 1 << 56;
/// All offloads that a sender may leave to the switch.
pub const SENDER: u64 = CSUM | HOST_TSO4 | HOST_TSO6 | HOST_ECN | HOST_USO;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    pub flags: u8,
    pub gso_type: u8,
    pub gso_size: u16,
    pub csum_start: u16,
    pub csum_offset: u16,
    pub num_buffers: u16,
}

impl Header {
    pub fn bytes(self, hdr_len: u16) -> [u8; 12] {
        let mut bytes = [0; 12];
        bytes[0] = self.flags;
        bytes[1] = self.gso_type;
        let words = [hdr_len, self.gso_size, self.csum_start, self.csum_offset, self.num_buffers];
        for (word, at) in words.into_iter().zip((2..).step_by(2)) {
            bytes[at..at + 2].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads a header of 10 or 12 bytes.
    pub fn read(bytes: &[u8]) -> Self {
        let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        Self {
            flags: bytes[0],
            gso_type: bytes[1],
            gso_size: word(4),
            csum_start: word(6),
            csum_offset: word(8),
            num_buffers: if bytes.len() >= 12 { word(10) } else { 0 },
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    pub v6: bool,
    pub tcp: bool,
}

impl Kind {
    pub const ALL: [Self; 4] = [
        Self { v6: false, tcp: true },
        Self { v6: true, tcp: true },
        Self { v6: false, tcp: false },
        Self { v6: true, tcp: false },
    ];

    pub fn gso_type(self) -> u8 {
        match (self.tcp, self.v6) {
            (true, false) => TCPV4,
            (true, true) => TCPV6,
            (false, _) => UDP_L4,
        }
    }

    pub fn l4(self) -> usize {
        if self.v6 { 14 + 40 } else { 14 + 20 }
    }

    fn csum_offset(self) -> usize {
        if self.tcp { 16 } else { 6 }
    }

    /// Returns the length of all headers (bytes).
    pub fn headers(self) -> usize {
        self.l4() + if self.tcp { 20 } else { 8 }
    }

    /// Returns the features with which a super-frame of this kind arrives whole.
    pub fn guest_features(self) -> u64 {
        GUEST_CSUM
            | match (self.tcp, self.v6) {
                (true, false) => GUEST_TSO4,
                (true, true) => GUEST_TSO6,
                // A driver accepts USO for both IP versions, or for none.
                (false, _) => GUEST_USO4 | GUEST_USO6 | GUEST_TSO4 | GUEST_TSO6,
            }
    }

    /// Returns a frame without its L4 checksum, and its virtio header; a super-frame if the payload exceeds
    /// `gso_size`.
    pub fn frame(self, dst: [u8; 6], src: [u8; 6], payload: &[u8], gso_size: u16) -> (Header, Vec<u8>) {
        let l4_len = self.headers() - self.l4() + payload.len();
        let mut frame = [&dst[..], &src[..]].concat();
        if self.v6 {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend((l4_len as u16).to_be_bytes());
            frame.extend([if self.tcp { 6 } else { 17 }, 64]);
            for mac in [src, dst] {
                frame.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
                frame.extend(mac);
            }
        } else {
            frame.extend([0x08, 0x00, 0x45, 0]);
            frame.extend(((20 + l4_len) as u16).to_be_bytes());
            frame.extend([0x12, 0x34, 0x40, 0, 64, if self.tcp { 6 } else { 17 }, 0, 0]);
            frame.extend([10, 0, 0, src[5], 10, 0, 0, dst[5]]);
            let sum = checksum(&frame[14..34]);
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        frame.extend([0x10, 0x00, 0x20, 0x00]);
        if self.tcp {
            // Sequence number just below the wrap; acknowledgement; ACK and PSH; window.
            frame.extend(0xffff_f000u32.to_be_bytes());
            frame.extend([0, 0, 0, 9, 0x50, 0x18, 0x20, 0, 0, 0, 0, 0]);
        } else {
            frame.extend((l4_len as u16).to_be_bytes());
            frame.extend([0, 0]);
        }
        // The driver writes only the sum of the pseudo-header.
        let pseudo = !checksum(&self.pseudo(&frame, l4_len));
        let at = self.l4() + self.csum_offset();
        frame[at..at + 2].copy_from_slice(&pseudo.to_be_bytes());
        frame.extend(payload);
        let gso = payload.len() > usize::from(gso_size) && gso_size > 0;
        let header = Header {
            flags: NEEDS_CSUM,
            gso_type: if gso { self.gso_type() } else { 0 },
            gso_size: if gso { gso_size } else { 0 },
            csum_start: self.l4() as u16,
            csum_offset: self.csum_offset() as u16,
            num_buffers: 0,
        };
        (header, frame)
    }

    fn pseudo(self, frame: &[u8], l4_len: usize) -> Vec<u8> {
        let addresses = if self.v6 { &frame[22..54] } else { &frame[26..34] };
        let mut bytes = addresses.to_vec();
        bytes.extend((l4_len as u32).to_be_bytes());
        bytes.extend([0, 0, 0, if self.tcp { 6 } else { 17 }]);
        bytes
    }

    /// Checks a complete frame. Returns TCP's sequence number (0 for UDP) and the payload.
    #[track_caller]
    pub fn complete(self, frame: &[u8]) -> (u32, Vec<u8>) {
        let l4_len = frame.len() - self.l4();
        let pseudo = self.pseudo(frame, l4_len);
        assert_eq!(checksum(&[&pseudo[..], &frame[self.l4()..]].concat()), 0, "{self:?}: L4 checksum");
        self.lengths(frame)
    }

    /// As [`complete`](Self::complete), for a frame whose L4 checksum is left to the receiver.
    #[track_caller]
    pub fn lengths(self, frame: &[u8]) -> (u32, Vec<u8>) {
        let l4_len = frame.len() - self.l4();
        let word = |at: usize| usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
        if self.v6 {
            assert_eq!(word(18), l4_len, "IPv6 payload length");
        } else {
            assert_eq!(word(16), 20 + l4_len, "IPv4 length");
            assert_eq!(checksum(&frame[14..34]), 0, "IPv4 header checksum");
        }
        let seq = if self.tcp {
            u32::from_be_bytes(frame[self.l4() + 4..][..4].try_into().unwrap())
        } else {
            assert_eq!(word(self.l4() + 4), l4_len, "UDP length");
            0
        };
        (seq, frame[self.headers()..].to_vec())
    }
}

/// Finishes a checksum as the receiver's network stack does.
pub fn finish(header: Header, frame: &mut [u8]) {
    assert_eq!(header.flags & NEEDS_CSUM, NEEDS_CSUM);
    let start = usize::from(header.csum_start);
    let sum = checksum(&frame[start..]);
    let at = start + usize::from(header.csum_offset);
    frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

/// Returns bytes without a repeating pattern.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}
