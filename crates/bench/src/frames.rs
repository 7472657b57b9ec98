//! Frames with their virtio_net_hdr, built before the measurement begins.

use tidegate_contract::Mac;

/// Length of virtio_net_hdr in front of every frame (bytes; virtio 1.2, 5.1.6).
pub const VNET_HDR: usize = 12;
/// Length of Ethernet, IPv4 and UDP headers: the shortest frame (bytes).
pub const UDP_HEADERS: usize = 14 + 20 + 8;
/// Longest frame (bytes): 9,000 bytes of IP behind an Ethernet header.
pub const LONGEST: usize = 14 + 9000;
/// Length of Ethernet, IPv4 and TCP headers without options (bytes).
pub const TCP_HEADERS: usize = 14 + 20 + 20;
/// Payload of each segment of a super-frame (bytes): 1500 without headers.
pub const SEGMENT: usize = 1460;
/// Segments of a super-frame: as many whole ones as fit the 65,535 bytes of an IP packet.
pub const SEGMENTS: usize = 44;

const NEEDS_CSUM: u8 = 1;
const GSO_TCPV4: u8 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// UDP frames of this length (bytes, without FCS).
    Frame(usize),
    /// TCP super-frames of [`SEGMENTS`] times [`SEGMENT`] bytes.
    Super,
}

impl std::str::FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "super" {
            return Ok(Self::Super);
        }
        match text.parse() {
            Ok(bytes @ UDP_HEADERS..=LONGEST) => Ok(Self::Frame(bytes)),
            _ => Err(format!("`{text}` is neither {UDP_HEADERS} to {LONGEST} bytes nor `super`")),
        }
    }
}

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Frame(bytes) => write!(f, "{bytes}"),
            Self::Super => write!(f, "super"),
        }
    }
}

impl Size {
    /// Returns the length of the frame in memory, without virtio_net_hdr (bytes).
    pub fn bytes(self) -> usize {
        match self {
            Self::Frame(bytes) => bytes,
            Self::Super => TCP_HEADERS + SEGMENT * SEGMENTS,
        }
    }

    /// Returns the size of a buffer for such frames (bytes): 2 KiB, as in Linux, or more for longer frames.
    pub fn buffer(self) -> u32 {
        ((VNET_HDR + self.bytes()) as u32).next_multiple_of(64).max(2048)
    }

    /// Returns the bytes as the contract counts them: every segment with its own headers.
    pub fn wire_bytes(self) -> u64 {
        let bytes = match self {
            Self::Frame(bytes) => bytes,
            Self::Super => (TCP_HEADERS + SEGMENT) * SEGMENTS,
        };
        bytes as u64
    }

    /// Builds a frame behind its virtio_net_hdr. Writes `flow` to the source port and to the IPv4
    /// identification, where [`flow_of`] finds it.
    pub fn build(self, to: Mac, from: Mac, flow: u16) -> Vec<u8> {
        let tcp = self == Self::Super;
        let len = self.bytes();
        let mut frame = [&to.0[..], &from.0, &[0x08, 0x00]].concat();
        let mut ip =
            [0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, if tcp { 6 } else { 17 }, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        ip[2..4].copy_from_slice(&((len - 14) as u16).to_be_bytes());
        ip[4..6].copy_from_slice(&flow.to_be_bytes());
        ip[13..16].copy_from_slice(&from.0[3..]);
        ip[17..20].copy_from_slice(&to.0[3..]);
        let sum = !fold(words(&ip));
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        frame.extend(ip);
        frame.extend(flow.to_be_bytes());
        frame.extend([0x20, 0x00]);
        let mut vnet = [0; VNET_HDR];
        if tcp {
            // Sequence, acknowledgement, 5 words of header, ACK, window.
            frame.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff]);
            let pseudo = fold(words(&ip[12..20]) + 6 + (len - 34) as u32);
            frame.extend(pseudo.to_be_bytes());
            frame.extend([0, 0]);
            vnet[..2].copy_from_slice(&[NEEDS_CSUM, GSO_TCPV4]);
            let fields = [TCP_HEADERS as u16, SEGMENT as u16, 34, 16];
            for (field, at) in fields.into_iter().zip((2..).step_by(2)) {
                vnet[at..at + 2].copy_from_slice(&field.to_le_bytes());
            }
        } else {
            frame.extend(((len - 34) as u16).to_be_bytes());
            // No UDP checksum (RFC 768).
            frame.extend([0, 0]);
        }
        // Not zeros, which would look like a page that was never written.
        frame.resize(len, 0x5a);
        [&vnet[..], &frame].concat()
    }
}

/// Offset of [`flow_of`]'s bytes in a buffer.
pub const FLOW_OFFSET: u64 = (VNET_HDR + 14 + 4) as u64;

/// Returns the flow of a frame from the two bytes at [`FLOW_OFFSET`].
pub fn flow_of(bytes: [u8; 2]) -> u16 {
    u16::from_be_bytes(bytes)
}

fn words(bytes: &[u8]) -> u32 {
    bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum()
}

/// Computes the ones' complement sum (RFC 1071).
fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const B: Mac = Mac([2, 0, 0, 0, 0, 2]);

    #[test]
    fn sizes_are_what_they_say() {
        for bytes in [42, 60, 64, 1518] {
            let frame = Size::Frame(bytes).build(B, A, 7);
            assert_eq!(frame.len(), VNET_HDR + bytes);
            assert_eq!(&frame[..VNET_HDR], [0; VNET_HDR]);
        }
        assert_eq!(Size::Super.build(B, A, 7).len(), VNET_HDR + Size::Super.bytes());
        assert_eq!(Size::Super.wire_bytes(), 44 * 1514);
        assert!(Size::Super.bytes() - 14 <= 65_535);
    }

    #[test]
    fn the_ip_header_sums_up_and_holds_the_flow() {
        for size in [Size::Frame(64), Size::Super] {
            let frame = size.build(B, A, 0x1234);
            assert_eq!(fold(words(&frame[VNET_HDR + 14..VNET_HDR + 34])), 0xffff);
            let at = FLOW_OFFSET as usize;
            assert_eq!(flow_of([frame[at], frame[at + 1]]), 0x1234);
            assert_eq!(&frame[VNET_HDR..VNET_HDR + 12], [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
        }
    }

    #[test]
    fn sizes_are_read_as_they_are_written() {
        for size in [Size::Frame(64), Size::Super] {
            assert_eq!(size.to_string().parse(), Ok(size));
        }
        for wrong in ["41", "9015", "", "64k"] {
            assert!(wrong.parse::<Size>().is_err(), "{wrong}");
        }
    }
}
