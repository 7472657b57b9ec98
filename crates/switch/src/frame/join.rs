//! Joins consecutive frames of one flow to a super-frame: the reverse of [`segment`](crate::frame::segment).
//!
//! ```text
//!  head   │ payload 1 │            Joined::begin
//!  head'  │ payload 2 │            join ─▶ true
//!  head'' │ payl. 3 │              join ─▶ true, the last: it is shorter
//!                                  finish ─▶ head of one super-frame │ payload 1 │ payload 2 │ payl. 3 │
//! ```
//!
//! A frame joins only if the [`Segmenter`](crate::frame::Segmenter) would cut the result into the same frames again. The
//! caller checks the L4 checksums first: a receiver cannot check the checksum of a super-frame.

use crate::frame::checksum;
use crate::frame::finish::{csum_offset, pseudo_sum};
use crate::frame::headers::{HEADER_MAX, Headers, L3, L4, get, get16, put};
use crate::frame::offload::USO_SEGMENTS_MAX;
use crate::frame::vnet_hdr::{GSO_ECN, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM, VnetHdr};

const TCP_FIN: u8 = 0x01;
const TCP_SYN: u8 = 0x02;
const TCP_RST: u8 = 0x04;
const TCP_PSH: u8 = 0x08;
const TCP_ACK: u8 = 0x10;
const TCP_URG: u8 = 0x20;
const TCP_CWR: u8 = 0x80;

/// Largest length in an IP header (bytes).
const PACKET_MAX: u32 = tidegate_contract::frame::LONGEST_IP as u32;

/// A super-frame that grows.
#[derive(Clone, Debug)]
pub struct Joined {
    /// Headers of the first frame.
    head: [u8; HEADER_MAX],
    headers: Headers,
    /// The head without the fields that differ between segments; see [`canonical`].
    canonical: [u8; HEADER_MAX],
    /// L4 payload of the first frame, and of all but the last (bytes).
    size: u32,
    /// L4 payload so far (bytes).
    payload: u32,
    segments: u32,
    /// PSH and FIN of the last frame.
    last_flags: u8,
    /// No frame can follow.
    complete: bool,
}

impl Joined {
    /// Begins with a frame of `total_len` bytes, whose headers were parsed from `head`. Returns `None` if no frame can
    /// join it: it is padded, or is neither a TCP segment with data nor a UDP datagram with a checksum.
    #[inline]
    pub fn begin(head: &[u8], headers: &Headers, total_len: usize) -> Option<Self> {
        let payload = payload(head, headers, total_len)?;
        let source = head.get(..usize::from(headers.len))?;
        let mut copy = [0; HEADER_MAX];
        copy.get_mut(..source.len())?.copy_from_slice(source);
        let last_flags = closing_flags(head, headers)?;
        Some(Self {
            canonical: canonical(&copy, headers)?,
            head: copy,
            headers: *headers,
            size: payload,
            payload,
            segments: 1,
            last_flags,
            complete: last_flags != 0,
        })
    }

    /// Joins the frame that arrived next. Returns `false` and changes nothing if it does not belong to this super-frame.
    #[inline]
    pub fn join(&mut self, head: &[u8], headers: &Headers, total_len: usize) -> bool {
        self.try_join(head, headers, total_len).is_some()
    }

    fn try_join(&mut self, head: &[u8], headers: &Headers, total_len: usize) -> Option<()> {
        let payload = payload(head, headers, total_len)?;
        let same_layout = (headers.len, headers.l3_offset, headers.l4_offset, headers.l3, headers.l4)
            == (
                self.headers.len,
                self.headers.l3_offset,
                self.headers.l4_offset,
                self.headers.l3,
                self.headers.l4,
            );
        if self.complete || !same_layout || payload > self.size {
            return None;
        }
        let most = if headers.l4 == L4::Udp { USO_SEGMENTS_MAX } else { u32::MAX };
        let packet = u32::from(headers.len) - u32::from(headers.l3_offset) + self.payload + payload;
        if self.segments >= most || packet > PACKET_MAX {
            return None;
        }
        let (l3, l4) = (usize::from(headers.l3_offset), usize::from(headers.l4_offset));
        if headers.l3 == L3::Ipv4 {
            let expected = get16(&self.head, l3 + 4)?.wrapping_add(self.segments as u16);
            if get16(head, l3 + 4)? != expected {
                return None;
            }
        }
        if headers.l4 == L4::Tcp {
            let expected = u32::from_be_bytes(*get(&self.head, l4 + 4)?).wrapping_add(self.payload);
            if u32::from_be_bytes(*get(head, l4 + 4)?) != expected || head.get(l4 + 13)? & TCP_CWR != 0 {
                return None;
            }
        }
        let len = usize::from(headers.len);
        let mut copy = [0; HEADER_MAX];
        copy.get_mut(..len)?.copy_from_slice(head.get(..len)?);
        if canonical(&copy, headers)?.get(..len)? != self.canonical.get(..len)? {
            return None;
        }
        self.last_flags = closing_flags(head, headers)?;
        self.complete = self.last_flags != 0 || payload < self.size;
        self.payload += payload;
        self.segments += 1;
        Some(())
    }

    /// Frames that are joined; at least 1.
    #[inline]
    pub const fn segments(&self) -> u32 {
        self.segments
    }

    /// Whether no further frame can join.
    #[inline]
    pub const fn is_complete(&self) -> bool {
        self.complete
    }

    /// The head, the headers, and the virtio header of the result. One frame alone is as it arrived.
    #[inline]
    pub fn finish(mut self) -> Option<([u8; HEADER_MAX], Headers, VnetHdr)> {
        if self.segments == 1 {
            return Some((self.head, self.headers, VnetHdr { num_buffers: 1, ..VnetHdr::default() }));
        }
        let (l3, l4) = (usize::from(self.headers.l3_offset), usize::from(self.headers.l4_offset));
        self.headers.end = u32::from(self.headers.len) + self.payload;
        let packet = (self.headers.end - u32::from(self.headers.l3_offset)) as u16;
        let out = &mut self.head;
        let gso_type = match (self.headers.l3, self.headers.l4) {
            (L3::Ipv4, L4::Tcp) => GSO_TCPV4,
            (L3::Ipv6, L4::Tcp) => GSO_TCPV6,
            (L3::Ipv4 | L3::Ipv6, L4::Udp) => GSO_UDP_L4,
            _ => return None,
        };
        if self.headers.l3 == L3::Ipv4 {
            put(out, l3 + 2, packet.to_be_bytes())?;
            put(out, l3 + 10, [0, 0])?;
            let sum = checksum::sum(out.get(l3..l4)?);
            put(out, l3 + 10, (!sum).to_be_bytes())?;
        } else {
            put(out, l3 + 4, packet.saturating_sub(40).to_be_bytes())?;
        }
        let mut cwr = false;
        if self.headers.l4 == L4::Tcp {
            let flags = out.get_mut(l4 + 13)?;
            *flags |= self.last_flags;
            cwr = *flags & TCP_CWR != 0;
        } else {
            put(out, l4 + 4, (self.headers.l4_len() as u16).to_be_bytes())?;
        }
        let offset = csum_offset(self.headers.l4)?;
        let sum = pseudo_sum(out, &self.headers)?;
        put(out, l4 + usize::from(offset), sum.to_be_bytes())?;
        let vnet = VnetHdr {
            flags: NEEDS_CSUM,
            gso_type: gso_type | if cwr { GSO_ECN } else { 0 },
            hdr_len: u16::from(self.headers.len),
            gso_size: self.size as u16,
            csum_start: u16::from(self.headers.l4_offset),
            csum_offset: offset,
            num_buffers: 1,
        };
        Some((self.head, self.headers, vnet))
    }
}

/// L4 payload of a frame that may be part of a super-frame (bytes); `None` of another one.
#[inline]
fn payload(head: &[u8], headers: &Headers, total_len: usize) -> Option<u32> {
    if headers.end as usize != total_len {
        return None;
    }
    let l4 = usize::from(headers.l4_offset);
    match headers.l4 {
        L4::Tcp => {
            let flags = *head.get(l4 + 13)?;
            if flags & (TCP_SYN | TCP_RST | TCP_URG) != 0 || flags & TCP_ACK == 0 {
                return None;
            }
        }
        // A super-frame's datagrams all get a checksum; 0 says that there is none.
        L4::Udp if get16(head, l4 + 6)? == 0 => return None,
        L4::Udp => {}
        L4::None | L4::Other => return None,
    }
    headers.end.checked_sub(u32::from(headers.len)).filter(|payload| *payload > 0)
}

/// The flags that only a super-frame's last segment has.
#[inline]
fn closing_flags(head: &[u8], headers: &Headers) -> Option<u8> {
    match headers.l4 {
        L4::Tcp => head.get(usize::from(headers.l4_offset) + 13).map(|flags| flags & (TCP_FIN | TCP_PSH)),
        _ => Some(0),
    }
}

/// The head without lengths, identification, checksums, sequence number, PSH, FIN and CWR: equal for all segments of
/// one super-frame.
#[inline]
fn canonical(head: &[u8; HEADER_MAX], headers: &Headers) -> Option<[u8; HEADER_MAX]> {
    let mut head = *head;
    let (l3, l4) = (usize::from(headers.l3_offset), usize::from(headers.l4_offset));
    match headers.l3 {
        L3::Ipv4 => {
            put(&mut head, l3 + 2, [0; 4])?;
            put(&mut head, l3 + 10, [0; 2])?;
        }
        L3::Ipv6 => put(&mut head, l3 + 4, [0; 2])?,
        L3::None | L3::Arp => return None,
    }
    match headers.l4 {
        L4::Tcp => {
            put(&mut head, l4 + 4, [0; 4])?;
            *head.get_mut(l4 + 13)? &= !(TCP_FIN | TCP_PSH | TCP_CWR);
            put(&mut head, l4 + 16, [0; 2])?;
        }
        L4::Udp => put(&mut head, l4 + 4, [0; 4])?,
        L4::None | L4::Other => return None,
    }
    Some(head)
}

#[cfg(test)]
mod tests;
