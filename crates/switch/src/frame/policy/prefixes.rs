//! `allowed.prefixes` as numbers: a check takes two instructions per prefix.

use super::link_local::LinkLocals;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tidegate_contract::Prefix;

/// fe80::/10 is used with a 64-bit interface id: a prefix up to this length covers the addresses of every
/// link, and names none.
const LINK: u8 = 64;

/// A prefix as network and mask.
pub type Net6 = (u128, u128);

/// The prefixes of a vNIC.
#[derive(Clone, Debug)]
pub struct Prefixes {
    v4: Box<[(u32, u32)]>,
    v6: Box<[Net6]>,
    /// Link-local prefixes that name addresses.
    named: Box<[Net6]>,
}

/// Whether an address may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Allowed.
    Yes,
    /// Not allowed.
    No,
    /// Link-local: allowed once the vNIC holds it.
    Claim(Ipv6Addr),
}

impl Prefixes {
    /// Converts the prefixes of a contract.
    pub fn new(prefixes: &[Prefix]) -> Self {
        let v4 = prefixes.iter().filter_map(|p| match p.addr() {
            IpAddr::V4(a) => Some((a.to_bits(), high_bits(p.len(), 32) as u32)),
            IpAddr::V6(_) => None,
        });
        let v6 = prefixes.iter().filter_map(|p| match p.addr() {
            IpAddr::V6(a) => Some((a.to_bits(), high_bits(p.len(), 128))),
            IpAddr::V4(_) => None,
        });
        Self { v4: v4.collect(), v6: v6.collect(), named: named(prefixes).collect() }
    }

    /// Whether there are no prefixes: then any address is allowed.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    /// Whether `ip` is in the prefixes, or 0.0.0.0: hosts without an address use it (DHCP, ARP probe).
    #[inline]
    pub fn contain_v4(&self, ip: Ipv4Addr) -> bool {
        for (net, mask) in &self.v4 {
            if ip.to_bits() & mask == *net {
                return true;
            }
        }
        ip.is_unspecified()
    }

    /// Whether an IPv6 source is allowed. `::` is: hosts without an address use it (duplicate address detection).
    #[inline]
    pub fn source_v6(&self, ip: Ipv6Addr, claimed: &LinkLocals) -> Use {
        if ip.is_unspecified() { Use::Yes } else { self.own_v6(ip, claimed) }
    }

    /// Whether the vNIC may claim an IPv6 address as its own.
    #[inline]
    pub fn own_v6(&self, ip: Ipv6Addr, claimed: &LinkLocals) -> Use {
        let within = |nets: &[Net6]| nets.iter().any(|(net, mask)| ip.to_bits() & mask == *net);
        match ip.is_unicast_link_local() {
            true if claimed.contains(ip) || within(&self.named) => Use::Yes,
            true => Use::Claim(ip),
            // ::/0 says nothing about link-local addresses.
            false if within(&self.v6) => Use::Yes,
            false => Use::No,
        }
    }
}

/// Returns the link-local prefixes among `prefixes` that name addresses.
pub fn named(prefixes: &[Prefix]) -> impl Iterator<Item = Net6> + '_ {
    prefixes.iter().filter_map(|prefix| match prefix.addr() {
        IpAddr::V6(net) if net.is_unicast_link_local() && prefix.len() > LINK => {
            Some((net.to_bits(), high_bits(prefix.len(), 128)))
        }
        _ => None,
    })
}

fn high_bits(len: u8, width: u8) -> u128 {
    let low = u32::from(width.saturating_sub(len));
    u128::MAX.checked_shl(low).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_lookup_agrees_with_the_contract(addr: u128, flip in 0u32..128, len in 0u8..=128, v4: bool) {
            let (addr, other, network, len): (IpAddr, IpAddr, IpAddr, u8) = if v4 {
                let (addr, len) = (addr as u32, len.min(32));
                let v4 = |bits: u32| Ipv4Addr::from_bits(bits).into();
                (v4(addr), v4(addr ^ 1 << (flip % 32)), v4(addr & high_bits(len, 32) as u32), len)
            } else {
                let v6 = |bits: u128| Ipv6Addr::from_bits(bits).into();
                (v6(addr), v6(addr ^ 1 << flip), v6(addr & high_bits(len, 128)), len)
            };
            let p = Prefix::new(network, len).unwrap();
            let list = Prefixes::new(&[p]);
            let contain = |ip| match ip {
                IpAddr::V4(ip) => list.contain_v4(ip),
                IpAddr::V6(ip) => list.own_v6(ip, &LinkLocals::default()) != Use::No,
            };
            prop_assert!(contain(addr));
            prop_assert_eq!(contain(other), p.contains(other) || contain_anyway(other));
        }
    }

    fn contain_anyway(ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(ip) => ip.is_unspecified(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        }
    }

    #[test]
    fn prefixes_that_name_a_link_local_address() {
        let list = |prefix: &str| Prefixes::new(&[prefix.parse().unwrap()]);
        let ip: Ipv6Addr = "fe80::1:5".parse().unwrap();
        let mut claimed = LinkLocals::default();
        for (prefix, named) in [
            ("fe80::1:5/128", true),
            ("fe80::1:0/112", true),
            ("fe80::2:0/112", false),
            ("fe80::/64", false),
            ("fe80::/10", false),
            ("::/0", false),
            ("10.0.0.0/8", false),
        ] {
            let expected = if named { Use::Yes } else { Use::Claim(ip) };
            assert_eq!(list(prefix).own_v6(ip, &claimed), expected, "{prefix}");
        }
        assert!(claimed.insert(ip));
        assert_eq!(list("10.0.0.0/8").own_v6(ip, &claimed), Use::Yes);
    }
}
