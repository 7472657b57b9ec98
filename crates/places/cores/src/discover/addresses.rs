//! Which interface has an IP address: rtnetlink(7).

use std::net::IpAddr;
use tidegate_netlink::{Socket, attribute};

/// `RTM_GETADDR` (linux/rtnetlink.h).
const GET: u16 = 22;
/// `IFA_ADDRESS`, `IFA_LOCAL` (linux/if_addr.h): of a point-to-point interface the first is the other end's.
const ADDRESS: u16 = 1;
const LOCAL: u16 = 2;
/// Of an answer: family, length of the prefix, flags, scope, number of the interface.
const HEADER: usize = 8;

/// Asks for the addresses of this process's network namespace, each with the number of its interface; none if the kernel does not answer.
pub fn addresses() -> Vec<(IpAddr, u32)> {
    let request = [0; HEADER];
    let asked = Socket::route().map(|mut socket| socket.dump(GET, &request, |_, body| answer(body)));
    asked.ok().and_then(Result::ok).unwrap_or_default()
}

/// Reads one answer (`struct ifaddrmsg`).
fn answer(body: &[u8]) -> Option<(IpAddr, u32)> {
    let interface = u32::from_ne_bytes(body.get(4..HEADER)?.try_into().ok()?);
    let attributes = &body[HEADER..];
    let value = attribute::find(attributes, LOCAL).or_else(|| attribute::find(attributes, ADDRESS))?;
    let address = match value.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(value).ok()?),
        16 => IpAddr::from(<[u8; 16]>::try_from(value).ok()?),
        _ => return None,
    };
    Some((address, interface))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_has_the_loopback_address() {
        let found = addresses();
        assert!(found.is_empty() || found.contains(&("127.0.0.1".parse().unwrap(), 1)), "{found:?}");
    }

    #[test]
    fn malformed_answers_are_none() {
        for body in [&[] as &[u8], &[0; 7], &[0; 8], &[2, 0, 0, 0, 1, 0, 0, 0, 5, 0, 2, 0, 9, 0, 0, 0]] {
            assert_eq!(answer(body), None, "{body:?}");
        }
    }
}
