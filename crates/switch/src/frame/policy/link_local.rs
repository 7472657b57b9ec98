//! Link-local addresses (fe80::/10; RFC 4291, 2.5.6) of a vNIC, and the MAC from which an address was made.
//!
//! A host chooses such an address by itself. So a vNIC with `allowed.prefixes` gets the first
//! [`LINK_LOCALS_MAX`] that it uses, unless another vNIC has them; [`crate::claims`] ensures that.

use std::net::Ipv6Addr;
use tidegate_contract::Mac;

/// Most link-local addresses of a vNIC with `allowed.prefixes`, besides those that its contract names.
pub const LINK_LOCALS_MAX: usize = 4;

/// The link-local addresses of a vNIC.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkLocals {
    /// 0, the unspecified address, for none.
    addresses: [u128; LINK_LOCALS_MAX],
}

impl LinkLocals {
    /// Whether the set contains `ip`, a link-local address.
    #[inline]
    pub fn contains(&self, ip: Ipv6Addr) -> bool {
        self.addresses.contains(&ip.to_bits())
    }

    /// Whether the set has no room.
    pub fn is_full(&self) -> bool {
        !self.addresses.contains(&0)
    }

    /// Adds an address; `false`, without a change, if there is no room.
    pub fn insert(&mut self, ip: Ipv6Addr) -> bool {
        let free = self.addresses.iter_mut().find(|claimed| **claimed == 0);
        free.map(|free| *free = ip.to_bits()).is_some()
    }

    /// Removes the addresses that `keep` refuses.
    pub fn retain(&mut self, mut keep: impl FnMut(Ipv6Addr) -> bool) {
        for claimed in self.addresses.iter_mut().filter(|claimed| **claimed != 0) {
            if !keep(Ipv6Addr::from_bits(*claimed)) {
                *claimed = 0;
            }
        }
    }

    /// Iterates over the addresses.
    pub fn iter(&self) -> impl Iterator<Item = Ipv6Addr> + '_ {
        self.addresses.iter().filter(|claimed| **claimed != 0).map(|claimed| Ipv6Addr::from_bits(*claimed))
    }
}

/// Returns the MAC from which an address was made, if it has that form (modified EUI-64; RFC 4291, appendix A).
pub fn mac_of(ip: Ipv6Addr) -> Option<Mac> {
    match ip.octets() {
        [.., a, b, c, 0xff, 0xfe, d, e, f] => Some(Mac([a ^ 2, b, c, d, e, f])),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> Ipv6Addr {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_are_held_until_there_is_no_room() {
        let mut claimed = LinkLocals::default();
        let all: Vec<_> = (1..=4).map(|n| ip(&format!("fe80::{n}"))).collect();
        assert!(all.iter().all(|ip| claimed.insert(*ip)) && claimed.is_full());
        assert!(!claimed.insert(ip("fe80::5")) && !claimed.contains(ip("fe80::5")));
        assert!(claimed.iter().eq(all.iter().copied()));
        claimed.retain(|claimed| claimed != ip("fe80::2"));
        assert!(!claimed.contains(ip("fe80::2")) && claimed.insert(ip("fe80::5")) && claimed.is_full());
    }

    #[test]
    fn the_mac_in_an_address() {
        assert_eq!(mac_of(ip("fe80::5054:ff:fe00:1")), Some(Mac([0x52, 0x54, 0, 0, 0, 1])));
        assert_eq!(mac_of(ip("fe80::5054:ff:ff00:1")), None);
    }
}
