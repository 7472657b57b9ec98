//! A datagram in flight, and the GRH that its receiver finds before it.
//!
//! ```text
//!  Datagram {from, source, to, queue_pair, q_key, traffic class, bytes} ─ grh ─▶ 40 bytes
//!     IPv4: 20 bytes without meaning, then the IPv4 header        IPv6: the IPv6 header
//! ```

use crate::GRH;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of RoCE v2 around the payload of an unreliable datagram: UDP 8, BTH 12, DETH 8, ICRC 4 (InfiniBand
/// Architecture, annex A17).
const AROUND: usize = 32;
/// Bytes that a device leaves as they are, before an IPv4 header. A reader of them is wrong, so they look like nothing.
const WITHOUT_MEANING: u8 = 0xa5;

/// A datagram on its way. A forger chooses every field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Address of the sending host.
    pub from: IpAddr,
    /// Number of the sending queue pair.
    pub source: u32,
    /// Address of the receiving host.
    pub to: IpAddr,
    /// Number of the receiving queue pair.
    pub queue_pair: u32,
    /// The key that it carries.
    pub q_key: u32,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Its payload.
    pub bytes: Vec<u8>,
}

impl Datagram {
    /// Returns what the device writes before the payload.
    pub(super) fn grh(&self) -> [u8; GRH] {
        match (self.from, self.to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let mut grh = [WITHOUT_MEANING; GRH];
                grh[GRH - 20..].copy_from_slice(&self.ipv4(from, to));
                grh
            }
            (from, to) => self.ipv6(mapped(from), mapped(to)),
        }
    }

    /// Returns the IPv4 header (RFC 791, 3.1).
    fn ipv4(&self, from: Ipv4Addr, to: Ipv4Addr) -> [u8; 20] {
        let mut header = [0; 20];
        header[0] = 0x45;
        header[1] = self.traffic_class;
        header[2..4].copy_from_slice(&((20 + self.padded()) as u16).to_be_bytes());
        header[6] = 0x40; // not to be cut
        header[8] = 64;
        header[9] = libc::IPPROTO_UDP as u8;
        header[12..16].copy_from_slice(&from.octets());
        header[16..].copy_from_slice(&to.octets());
        let sum =
            header.chunks_exact(2).fold(0, |sum, word| sum + u32::from(word[0]) * 256 + u32::from(word[1]));
        let folded = (sum & 0xffff) + (sum >> 16);
        let checksum = !((folded & 0xffff) + (folded >> 16)) as u16;
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        header
    }

    /// Returns the IPv6 header (RFC 8200, 3).
    fn ipv6(&self, from: Ipv6Addr, to: Ipv6Addr) -> [u8; GRH] {
        let mut header = [0; GRH];
        let word = 6 << 28 | u32::from(self.traffic_class) << 20;
        header[..4].copy_from_slice(&word.to_be_bytes());
        header[4..6].copy_from_slice(&(self.padded() as u16).to_be_bytes());
        header[6] = libc::IPPROTO_UDP as u8;
        header[7] = 64;
        header[8..24].copy_from_slice(&from.octets());
        header[24..].copy_from_slice(&to.octets());
        header
    }

    /// Returns the bytes behind the IP header: the payload is padded to a multiple of 4.
    fn padded(&self) -> usize {
        AROUND + self.bytes.len().next_multiple_of(4)
    }
}

fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagram(from: &str, to: &str) -> Datagram {
        let (from, to) = (from.parse().unwrap(), to.parse().unwrap());
        Datagram { from, source: 1, to, queue_pair: 2, q_key: 3, traffic_class: 0xba, bytes: vec![0; 6] }
    }

    #[test]
    fn an_ipv4_header_is_the_second_half_of_the_grh() {
        let grh = datagram("192.168.0.1", "192.168.0.199").grh();
        assert_eq!(grh[..20], [WITHOUT_MEANING; 20]);
        assert_eq!(grh[20..30], [0x45, 0xba, 0, 60, 0, 0, 0x40, 0, 64, 17]);
        assert_eq!(grh[32..], [192, 168, 0, 1, 192, 168, 0, 199]);
        let sum: u32 =
            grh[20..].chunks_exact(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
    }

    #[test]
    fn an_ipv6_header_is_the_grh() {
        let grh = datagram("fd00::1", "fd00::2").grh();
        assert_eq!(grh[..8], [0x6b, 0xa0, 0, 0, 0, 40, 17, 64]);
        assert_eq!((grh[8], grh[23], grh[24], grh[39]), (0xfd, 1, 0xfd, 2));
    }
}
