//! Where a datagram came from, by the header that the device puts before it. Pure.
//!
//! ```text
//!  RoCE v2 over IPv4:  │ 20 bytes of any kind │ IPv4 header │
//!  RoCE v2 over IPv6:  │ IPv6 header                        │ ─▶ to this host? ─▶ source, traffic class
//! ```
//!
//! A queue pair takes datagrams to any GID of its port. The family of this host's address tells which form is meant;
//! the receiver's address in it has to be this host's, so that no datagram of the other family passes for one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tidegate_verbs::GRH;

/// The origin of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The sender's address, which anyone on the network may forge.
    pub source: IpAddr,
    /// DSCP and ECN, as they arrived.
    pub traffic_class: u8,
}

/// Returns the origin of a datagram to `local`; `None` if it is to another address.
#[inline]
pub fn origin(grh: &[u8; GRH], local: IpAddr) -> Option<Origin> {
    match local {
        IpAddr::V4(local) => {
            let ip: &[u8; 20] = grh.last_chunk()?;
            let [0x45, traffic_class, .., s0, s1, s2, s3, d0, d1, d2, d3] = *ip else { return None };
            let source = Ipv4Addr::new(s0, s1, s2, s3).into();
            (Ipv4Addr::new(d0, d1, d2, d3) == local).then_some(Origin { source, traffic_class })
        }
        IpAddr::V6(local) => {
            let (source, to): (&[u8; 16], &[u8; 16]) = (grh[8..].first_chunk()?, grh.last_chunk()?);
            if grh[0] >> 4 != 6 || Ipv6Addr::from(*to) != local {
                return None;
            }
            let traffic_class = grh[0] << 4 | grh[1] >> 4;
            Some(Origin { source: Ipv6Addr::from(*source).into(), traffic_class })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn v4(first: u8, class: u8, source: [u8; 4], to: [u8; 4]) -> [u8; GRH] {
        let mut grh = [0xee; GRH];
        grh[20..22].copy_from_slice(&[first, class]);
        grh[32..36].copy_from_slice(&source);
        grh[36..].copy_from_slice(&to);
        grh
    }

    fn v6(class: u8, source: [u8; 16], to: [u8; 16]) -> [u8; GRH] {
        let mut grh = [0; GRH];
        grh[..2].copy_from_slice(&[0x60 | class >> 4, class << 4 | 0xf]);
        grh[8..24].copy_from_slice(&source);
        grh[24..].copy_from_slice(&to);
        grh
    }

    proptest! {
        #[test]
        fn an_origin_is_read(class: u8, source: [u8; 4], to: [u8; 4], source6: [u8; 16], to6: [u8; 16]) {
            let expected = |source| Some(Origin { source, traffic_class: class });
            prop_assert_eq!(origin(&v4(0x45, class, source, to), IpAddr::from(to)), expected(source.into()));
            prop_assert_eq!(origin(&v6(class, source6, to6), IpAddr::from(to6)), expected(source6.into()));
        }

        #[test]
        fn a_datagram_to_another_address_has_none(class: u8, source: [u8; 4], to: [u8; 4], local: [u8; 4]) {
            prop_assume!(to != local);
            prop_assert_eq!(origin(&v4(0x45, class, source, to), local.into()), None);
            prop_assert_eq!(origin(&v4(0x46, class, source, local), local.into()), None, "options");
        }

        /// A datagram over IPv6 is to one of this host's IPv6 addresses, whatever its sender writes.
        #[test]
        fn a_datagram_of_the_other_family_has_none(class: u8, source: [u8; 16], last in 1..255u8) {
            let to = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, u16::from(last)).octets();
            prop_assert_eq!(origin(&v6(class, source, to), [10, 0, 0, 1].into()), None);
            prop_assert_eq!(origin(&v4(0x45, class, [10, 0, 0, 2], [10, 0, 0, 1]), IpAddr::from(to)), None);
        }
    }
}
