//! The possible readings of a frame by receivers: an independent reading, for tests.
//!
//! It reads the whole frame, header by header, through tags of any kind, and behind the header of a first
//! fragment, without a limit on headers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tidegate_contract::{Allowed, Mac};

/// What some receiver might read from a frame.
#[derive(Default, Debug)]
pub struct Receiver {
    /// Senders, at both layers.
    from: Option<Mac>,
    sources: Vec<IpAddr>,
    /// Addresses claimed for the sender.
    claimed: Vec<IpAddr>,
    macs: Vec<Mac>,
    of_router: bool,
    of_dhcp_server: bool,
}

impl Receiver {
    /// Reads a frame.
    pub fn of(frame: &[u8]) -> Self {
        let from = <[u8; 6]>::try_from(bytes(frame, 6, 6)).ok().map(Mac);
        let mut seen = Self { from, ..Self::default() };
        let mut at = 12;
        // Receivers unwrap several tags of any kind.
        while [&[0x81, 0][..], &[0x88, 0xa8], &[0x91, 0], &[0x92, 0], &[0x93, 0]]
            .contains(&bytes(frame, at, 2))
        {
            at += 4;
        }
        let rest = frame.get(at + 2..).unwrap_or_default();
        match bytes(frame, at, 2) {
            [8, 0] => seen.v4(rest),
            [0x86, 0xdd] => seen.v6(rest),
            [8, 6] | [0x80, 0x35] => seen.arp(rest),
            _ => {}
        }
        seen
    }

    /// Whether a vNIC with this MAC and these link-local addresses may say all that was read.
    pub fn is_allowed(&self, mac: Mac, allowed: &Allowed, claimed: &[Ipv6Addr]) -> bool {
        let owns_mac = |other: &Mac| {
            *other == mac || allowed.macs.contains(other) || allowed.any_mac && !other.is_group()
        };
        if !self.from.is_some_and(|from| owns_mac(&from)) {
            return false;
        }
        let of_link =
            |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if ip.octets()[0] == 0xfe && ip.octets()[1] >> 6 == 2);
        // A prefix names link-local addresses if it is longer than the link's.
        let named =
            |ip: &IpAddr| allowed.prefixes.iter().any(|p| p.contains(*ip) && (!of_link(ip) || p.len() > 64));
        let own = |ip: &IpAddr| named(ip) || claimed.iter().any(|claimed| ip == claimed);
        let probe = |ip: &IpAddr| ip.is_ipv4() && ip.is_unspecified();
        allowed.prefixes.is_empty()
            || self.macs.iter().all(owns_mac)
                && self.sources.iter().all(|ip| ip.is_unspecified() || own(ip))
                && self.claimed.iter().all(|ip| probe(ip) || own(ip))
                && (allowed.router || !self.of_router)
                && (allowed.dhcp_server || !self.of_dhcp_server)
    }

    fn arp(&mut self, packet: &[u8]) {
        if let (Ok(mac), Ok(ip)) =
            (<[u8; 6]>::try_from(bytes(packet, 8, 6)), <[u8; 4]>::try_from(bytes(packet, 14, 4)))
        {
            self.macs.push(Mac(mac));
            self.claimed.push(Ipv4Addr::from(ip).into());
        }
    }

    fn v4(&mut self, packet: &[u8]) {
        let Ok(source) = <[u8; 4]>::try_from(bytes(packet, 12, 4)) else { return };
        self.sources.push(Ipv4Addr::from(source).into());
        let upper = packet.get(usize::from(packet[0] & 15) * 4..).unwrap_or_default();
        if packet[6] & 0x1f != 0 || packet[7] != 0 {
            return;
        }
        match packet[9] {
            17 => self.of_dhcp_server |= bytes(upper, 0, 2) == [0, 67] || bytes(upper, 2, 2) == [0, 68],
            1 => self.of_router |= matches!(upper.first(), Some(5 | 9)),
            _ => {}
        }
    }

    fn v6(&mut self, packet: &[u8]) {
        let Ok(source) = <[u8; 16]>::try_from(bytes(packet, 8, 16)) else { return };
        self.sources.push(Ipv6Addr::from(source).into());
        let len = usize::from(packet[4]) << 8 | usize::from(packet[5]);
        let Some(mut upper) = packet.get(40..40 + len) else { return };
        let mut next = packet[6];
        loop {
            let len = match (next, upper.get(1)) {
                (0 | 43 | 60 | 135 | 139 | 140, Some(units)) => 8 + usize::from(*units) * 8,
                (51, Some(units)) => 8 + usize::from(*units) * 4,
                (44, _) if upper.len() >= 8 && (upper[2] != 0 || upper[3] & !7 != 0) => return,
                (44, _) => 8,
                _ => break,
            };
            let Some(rest) = upper.get(len..) else { return };
            (next, upper) = (upper[0], rest);
        }
        match next {
            17 => {
                self.of_dhcp_server |=
                    bytes(upper, 0, 2) == [0x02, 0x23] || bytes(upper, 2, 2) == [0x02, 0x22]
            }
            58 => self.icmp(upper),
            _ => {}
        }
    }

    fn icmp(&mut self, message: &[u8]) {
        let options = match message.first() {
            Some(134 | 137) => return self.of_router = true,
            Some(133) => 8,
            Some(135 | 136) => 24,
            _ => return,
        };
        if message[0] == 136
            && let Ok(target) = <[u8; 16]>::try_from(bytes(message, 8, 16))
        {
            self.claimed.push(Ipv6Addr::from(target).into());
        }
        let mut rest = message.get(options..).unwrap_or_default();
        while let [kind, units, ..] = *rest
            && units > 0
        {
            if let (1 | 2, Ok(mac)) = (kind, <[u8; 6]>::try_from(bytes(rest, 2, 6))) {
                self.macs.push(Mac(mac));
            }
            rest = rest.get(usize::from(units) * 8..).unwrap_or_default();
        }
    }
}

fn bytes(from: &[u8], at: usize, len: usize) -> &[u8] {
    from.get(at..at + len).unwrap_or_default()
}
