//! Checks a guest's requests in its virtio header against the frame, and computes the frame's size on a wire.
//!
//! ```text
//!  VnetHdr (a guest's word) ─┐
//!                            ├─▶ check ─▶ Offload ─▶ wire_bytes, segments
//!  Headers (as parsed) ──────┘              └──────▶ receiver_hdr: the VnetHdr that is delivered
//! ```
//!
//! Virtio 1.2, 5.1.6.2 lists a driver's possible requests.

use crate::frame::headers::{Headers, L3, L4};
use crate::frame::vnet_hdr::{
    GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP, GSO_UDP_L4, NEEDS_CSUM, VnetHdr,
};

/// Least payload of a TCP segment (bytes). With less, one frame could become thousands of headers.
pub const TSO_SIZE_MIN: u16 = 8;
/// Most datagrams of one UDP super-frame, as in Linux. Limited because a payload may be one byte.
pub const USO_SEGMENTS_MAX: u32 = 128;

/// Offset of the checksum in a TCP header (bytes).
pub const TCP_CSUM_OFFSET: u16 = 16;
/// Offset of the checksum in a UDP header (bytes).
pub const UDP_CSUM_OFFSET: u16 = 6;

/// Work that the sender leaves to the switch or the receiver. The number is the L4 payload of one segment
/// (bytes); the frame has more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    /// The frame is complete.
    None,
    /// One checksum is partial.
    Checksum,
    /// A super-frame of TCP over IPv4.
    Tso4(u16),
    /// A super-frame of TCP over IPv6.
    Tso6(u16),
    /// A super-frame of UDP over IPv4, to become datagrams.
    Uso4(u16),
    /// A super-frame of UDP over IPv6, to become datagrams.
    Uso6(u16),
}

/// The reason why a virtio header contradicts its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// `csum_start` and `csum_offset` name no checksum field that the switch may write.
    #[error("csum_start and csum_offset do not name a checksum of the frame's headers")]
    ChecksumPlace,
    /// A fragment or ARP has no checksum to complete.
    #[error("checksum requested for a fragment or ARP")]
    ChecksumFragment,
    /// A super-frame without a partial checksum.
    #[error("segmentation requested without NEEDS_CSUM")]
    GsoWithoutChecksum,
    /// The GSO type does not match the frame's protocol.
    #[error("gso_type does not match the frame's protocol, or its headers exceed 192 bytes")]
    GsoProtocol,
    /// `gso_size` is 0, or too small.
    #[error("gso_size below {TSO_SIZE_MIN} (TCP) or 1 (UDP), or more than {USO_SEGMENTS_MAX} datagrams")]
    GsoSize,
    /// Bytes follow the IP datagram.
    #[error("super-frame whose IP length is not that of the frame")]
    GsoLength,
    /// UDP fragmentation, which the switch does not offer.
    #[error("UDP fragmentation offload (UFO) is not offered")]
    Ufo,
    /// A type that virtio does not define.
    #[error("unknown gso_type")]
    GsoType,
}

impl Offload {
    /// Returns the L4 payload of one segment (bytes); `None` unless it is a super-frame.
    #[inline]
    pub const fn gso_size(self) -> Option<u16> {
        match self {
            Self::None | Self::Checksum => None,
            Self::Tso4(s) | Self::Tso6(s) | Self::Uso4(s) | Self::Uso6(s) => Some(s),
        }
    }

    /// Returns the `gso_type`, without [`GSO_ECN`].
    #[inline]
    pub const fn gso_type(self) -> u8 {
        match self {
            Self::None | Self::Checksum => GSO_NONE,
            Self::Tso4(_) => GSO_TCPV4,
            Self::Tso6(_) => GSO_TCPV6,
            Self::Uso4(_) | Self::Uso6(_) => GSO_UDP_L4,
        }
    }
}

/// Checks a guest's request against a frame of `total_len` bytes, of which `head_len` were copied. `hdr_len` is ignored.
///
/// A checksum beyond the parsed headers is allowed within the copied bytes: guests that tunnel (VXLAN, GRE)
/// leave the *inner* checksum to the switch.
///
/// # Errors
///
/// The request contradicts the frame, is not offered, or is out of range.
#[inline]
pub fn check(
    vnet: &VnetHdr,
    headers: &Headers,
    head_len: usize,
    total_len: usize,
) -> Result<Offload, Malformed> {
    if vnet.needs_csum() {
        return check_csum(vnet, headers, head_len, total_len);
    }
    match vnet.gso_type {
        GSO_NONE => Ok(Offload::None),
        _ => Err(Malformed::GsoWithoutChecksum),
    }
}

/// The part of [`check`] for partial checksums.
fn check_csum(
    vnet: &VnetHdr,
    headers: &Headers,
    head_len: usize,
    total_len: usize,
) -> Result<Offload, Malformed> {
    let start = usize::from(vnet.csum_start);
    let field_end = start + usize::from(vnet.csum_offset) + 2;
    let own = start == usize::from(headers.l4_offset)
        && match headers.l4 {
            L4::Tcp => vnet.csum_offset == TCP_CSUM_OFFSET,
            L4::Udp => vnet.csum_offset == UDP_CSUM_OFFSET,
            L4::None | L4::Other => false,
        };
    if headers.l4 == L4::None && headers.l3 != L3::None {
        return Err(Malformed::ChecksumFragment);
    }
    let inner = start >= usize::from(headers.len);
    if !(own || inner) || field_end > head_len.min(headers.end as usize) {
        return Err(Malformed::ChecksumPlace);
    }
    if vnet.gso_type == GSO_NONE {
        return Ok(Offload::Checksum);
    }
    check_gso(vnet, headers, total_len, own)
}

/// The additional part of [`check`] for super-frames.
fn check_gso(vnet: &VnetHdr, headers: &Headers, total_len: usize, own: bool) -> Result<Offload, Malformed> {
    let size = vnet.gso_size;
    let (offload, least) = match (vnet.gso_type & !GSO_ECN, headers.l3, headers.l4) {
        (GSO_UDP, ..) => return Err(Malformed::Ufo),
        (GSO_TCPV4, L3::Ipv4, L4::Tcp) => (Offload::Tso4(size), TSO_SIZE_MIN),
        (GSO_TCPV6, L3::Ipv6, L4::Tcp) => (Offload::Tso6(size), TSO_SIZE_MIN),
        (GSO_UDP_L4, L3::Ipv4, L4::Udp) => (Offload::Uso4(size), 1),
        (GSO_UDP_L4, L3::Ipv6, L4::Udp) => (Offload::Uso6(size), 1),
        (GSO_TCPV4 | GSO_TCPV6 | GSO_UDP_L4, ..) => return Err(Malformed::GsoProtocol),
        _ => return Err(Malformed::GsoType),
    };
    if vnet.gso_type & GSO_ECN != 0 && headers.l4 != L4::Tcp {
        return Err(Malformed::GsoProtocol);
    }
    if !own {
        return Err(Malformed::ChecksumPlace);
    }
    if headers.end as usize != total_len {
        return Err(Malformed::GsoLength);
    }
    if size < least {
        return Err(Malformed::GsoSize);
    }
    let payload = payload_len(headers, total_len);
    if payload <= u32::from(size) {
        return Ok(Offload::Checksum);
    }
    if headers.l4 == L4::Udp && payload.div_ceil(u32::from(size)) > USO_SEGMENTS_MAX {
        return Err(Malformed::GsoSize);
    }
    Ok(offload)
}

#[inline]
fn payload_len(headers: &Headers, total_len: usize) -> u32 {
    (total_len as u32).saturating_sub(u32::from(headers.len))
}

/// Returns the number of frames on a wire; at least 1.
#[inline]
pub fn segments(offload: Offload, headers: &Headers, total_len: usize) -> u32 {
    match offload.gso_size() {
        None => 1,
        Some(size) => payload_len(headers, total_len).div_ceil(u32::from(size).max(1)).max(1),
    }
}

/// Returns the bytes of all those frames, each with its own headers, without FCS, as rate limits count them.
/// At most 192 times `total_len`.
#[inline]
pub fn wire_bytes(offload: Offload, headers: &Headers, total_len: usize) -> u32 {
    total_len as u32 + (segments(offload, headers, total_len) - 1) * u32::from(headers.len)
}

/// Returns the header to deliver with a frame of a checked `offload`, to a receiver that takes such frames,
/// with only checked values.
#[inline]
pub fn receiver_hdr(vnet: &VnetHdr, headers: &Headers, offload: Offload) -> VnetHdr {
    let mut hdr = VnetHdr { num_buffers: 1, ..VnetHdr::default() };
    if offload != Offload::None {
        hdr.flags = NEEDS_CSUM;
        hdr.csum_start = vnet.csum_start;
        hdr.csum_offset = vnet.csum_offset;
    }
    if let Some(size) = offload.gso_size() {
        hdr.gso_type = offload.gso_type() | vnet.gso_type & GSO_ECN;
        hdr.gso_size = size;
        hdr.hdr_len = u16::from(headers.len);
    }
    hdr
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::headers::HEADER_MAX;
    use crate::frame::parse;
    use crate::frame::testing::{self, Frame};
    use proptest::prelude::*;

    fn run(frame: &[u8], vnet: VnetHdr) -> Result<Offload, Malformed> {
        let head = &frame[..frame.len().min(HEADER_MAX)];
        let headers = parse(head, frame.len()).unwrap();
        check(&vnet, &headers, head.len(), frame.len())
    }

    fn csum(start: u16, offset: u16) -> VnetHdr {
        VnetHdr { flags: NEEDS_CSUM, csum_start: start, csum_offset: offset, ..VnetHdr::default() }
    }

    fn gso(gso_type: u8, gso_size: u16, start: u16, offset: u16) -> VnetHdr {
        VnetHdr { gso_type, gso_size, hdr_len: 9999, ..csum(start, offset) }
    }

    #[test]
    fn requests_of_real_drivers_are_accepted() {
        let tcp4 = Frame::tcp4(4000).build();
        let tcp6 = Frame { vlan: Some(5), ..Frame::tcp6(4000) }.build();
        let udp4 = Frame::udp4(4000).build();
        let udp6 = Frame::udp6(4000).build();
        assert_eq!(run(&tcp4, VnetHdr::default()), Ok(Offload::None));
        assert_eq!(run(&tcp4, csum(34, 16)), Ok(Offload::Checksum));
        assert_eq!(run(&udp6, csum(54, 6)), Ok(Offload::Checksum));
        assert_eq!(run(&tcp4, gso(GSO_TCPV4, 1460, 34, 16)), Ok(Offload::Tso4(1460)));
        assert_eq!(run(&tcp4, gso(GSO_TCPV4 | GSO_ECN, 1460, 34, 16)), Ok(Offload::Tso4(1460)));
        assert_eq!(run(&tcp6, gso(GSO_TCPV6, 1440, 58, 16)), Ok(Offload::Tso6(1440)));
        assert_eq!(run(&udp4, gso(GSO_UDP_L4, 1000, 34, 6)), Ok(Offload::Uso4(1000)));
        assert_eq!(run(&udp6, gso(GSO_UDP_L4, 1000, 54, 6)), Ok(Offload::Uso6(1000)));
        // One segment is no super-frame.
        assert_eq!(run(&tcp4, gso(GSO_TCPV4, 4000, 34, 16)), Ok(Offload::Checksum));
        assert_eq!(run(&tcp4, gso(GSO_TCPV4, 3999, 34, 16)), Ok(Offload::Tso4(3999)));
    }

    #[test]
    fn inner_checksum_of_a_tunnel_is_taken_within_the_copied_bytes() {
        // VXLAN: outer UDP, inner TCP at 14 + 20 + 8 + 8 + 14 + 20.
        let f = Frame::udp4(300).build();
        assert_eq!(run(&f, csum(84, 16)), Ok(Offload::Checksum));
        assert_eq!(run(&f, csum(174, 16)), Ok(Offload::Checksum));
        assert_eq!(run(&f, csum(175, 16)), Err(Malformed::ChecksumPlace));
        // But not a super-frame: the headers to repeat are unknown.
        let inner = gso(GSO_UDP_L4, 100, 84, 16);
        assert_eq!(run(&f, inner), Err(Malformed::ChecksumPlace));
    }

    #[test]
    fn requests_that_contradict_the_frame_are_refused() {
        let tcp = Frame::tcp4(4000).build();
        let udp = Frame::udp4(4000).build();
        let arp = testing::arp(testing::SRC, testing::SRC4);
        let mut fragment = tcp.clone();
        fragment[20] = 0x20;
        let mut padded = tcp.clone();
        padded.push(0);
        use Malformed::*;
        for (frame, vnet, error) in [
            (&tcp, csum(33, 16), ChecksumPlace),
            (&tcp, csum(34, 17), ChecksumPlace),
            (&tcp, csum(34, 6), ChecksumPlace),
            (&tcp, csum(14, 10), ChecksumPlace),
            (&tcp, csum(0, 0), ChecksumPlace),
            (&tcp, csum(u16::MAX, u16::MAX), ChecksumPlace),
            (&udp, csum(34, 16), ChecksumPlace),
            (&fragment, csum(34, 16), ChecksumFragment),
            (&arp, csum(42, 0), ChecksumFragment),
            (&tcp, VnetHdr { flags: 0, ..gso(GSO_TCPV4, 1460, 34, 16) }, GsoWithoutChecksum),
            (&tcp, VnetHdr { gso_type: GSO_ECN, ..VnetHdr::default() }, GsoWithoutChecksum),
            (&tcp, gso(GSO_TCPV6, 1460, 34, 16), GsoProtocol),
            (&tcp, gso(GSO_UDP_L4, 1460, 34, 16), GsoProtocol),
            (&udp, gso(GSO_TCPV4, 1460, 34, 6), GsoProtocol),
            (&udp, gso(GSO_UDP_L4 | GSO_ECN, 1460, 34, 6), GsoProtocol),
            (&udp, gso(GSO_UDP, 1460, 34, 6), Ufo),
            (&tcp, gso(2, 1460, 34, 16), GsoType),
            (&tcp, gso(GSO_ECN, 1460, 34, 16), GsoType),
            (&tcp, gso(0x41, 1460, 34, 16), GsoType),
            (&tcp, gso(GSO_TCPV4, 0, 34, 16), GsoSize),
            (&tcp, gso(GSO_TCPV4, 7, 34, 16), GsoSize),
            (&udp, gso(GSO_UDP_L4, 0, 34, 6), GsoSize),
            (&udp, gso(GSO_UDP_L4, 31, 34, 6), GsoSize), // 130 datagrams
            (&padded, gso(GSO_TCPV4, 1460, 34, 16), GsoLength),
        ] {
            assert_eq!(run(frame, vnet), Err(error), "{vnet:?}");
        }
        assert_eq!(run(&udp, gso(GSO_UDP_L4, 32, 34, 6)), Ok(Offload::Uso4(32)));
    }

    #[test]
    fn wire_bytes_counts_every_segments_headers() {
        let f = Frame::tcp4(3000).build();
        let h = parse(&f[..HEADER_MAX], f.len()).unwrap();
        assert_eq!(wire_bytes(Offload::None, &h, f.len()), 3054);
        assert_eq!(wire_bytes(Offload::Checksum, &h, f.len()), 3054);
        assert_eq!(segments(Offload::Tso4(1460), &h, f.len()), 3);
        assert_eq!(wire_bytes(Offload::Tso4(1460), &h, f.len()), 3000 + 3 * 54);
        assert_eq!(wire_bytes(Offload::Tso4(1500), &h, f.len()), 3000 + 2 * 54);
    }

    #[test]
    fn the_delivered_header_holds_only_checked_values() {
        let f = Frame::tcp4(3000).build();
        let h = parse(&f[..HEADER_MAX], f.len()).unwrap();
        let wild = VnetHdr { flags: 0xff, num_buffers: 77, ..gso(GSO_TCPV4 | GSO_ECN, 1460, 34, 16) };
        let expected = VnetHdr { hdr_len: 54, num_buffers: 1, ..gso(GSO_TCPV4 | GSO_ECN, 1460, 34, 16) };
        assert_eq!(receiver_hdr(&wild, &h, Offload::Tso4(1460)), expected);
        let plain = VnetHdr { num_buffers: 1, ..VnetHdr::default() };
        assert_eq!(receiver_hdr(&wild, &h, Offload::None), plain);
        let checksum = VnetHdr { num_buffers: 1, ..csum(34, 16) };
        assert_eq!(receiver_hdr(&wild, &h, Offload::Checksum), checksum);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn no_request_panics_or_writes_outside(
            frame in testing::hostile(), vnet: [u8; 12], near: bool, gso_type in 0u8..7,
        ) {
            let head = frame.len().min(HEADER_MAX);
            let Ok(h) = parse(&frame[..head], frame.len()) else { return Ok(()) };
            let mut vnet = VnetHdr::read(&vnet).unwrap();
            if near {
                vnet = gso(gso_type, vnet.gso_size, u16::from(h.l4_offset), vnet.csum_offset % 20);
            }
            if let Ok(offload) = check(&vnet, &h, head, frame.len()) {
                let bytes = wire_bytes(offload, &h, frame.len());
                prop_assert!(bytes as usize >= frame.len());
                prop_assert!(bytes as usize <= frame.len().max(1) * HEADER_MAX);
                if offload != Offload::None {
                    let field = usize::from(vnet.csum_start) + usize::from(vnet.csum_offset);
                    prop_assert!(field >= usize::from(h.l4_offset) && field + 2 <= head);
                }
            }
        }
    }
}
