//! The bytes of a frame's head that no element of the network changes.

/// Most bytes of a head that a tag covers.
pub const COVERED: usize = 64;

const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const ETHERTYPE_VLAN: [u8; 2] = [0x81, 0x00];

/// Copies the first 64 bytes of a frame without the fields that a network may change; returns them and their number.
///
/// The copy has no 802.1Q tag; its DSCP, ECN and IPv4 header checksum are 0. `head` holds the frame's first 68 bytes or
/// more, or all of a shorter frame.
#[inline]
pub fn canonical(head: &[u8]) -> ([u8; COVERED], usize) {
    let mut bytes = [0; COVERED];
    let (addresses, rest) = head.split_at(head.len().min(12));
    let rest = if rest.starts_with(&ETHERTYPE_VLAN) { rest.get(4..).unwrap_or(&[]) } else { rest };
    let rest = &rest[..rest.len().min(COVERED - addresses.len())];
    let len = addresses.len() + rest.len();
    bytes[..addresses.len()].copy_from_slice(addresses);
    bytes[addresses.len()..len].copy_from_slice(rest);
    // Bytes beyond `len` are 0 already, so a short frame needs no check of its own.
    if rest.starts_with(&ETHERTYPE_IPV4) {
        bytes[15] = 0;
        bytes[24..26].fill(0);
    } else if rest.starts_with(&ETHERTYPE_IPV6) {
        // Version stays; the traffic class lies across two bytes (RFC 8200, section 3).
        bytes[14] &= 0xf0;
        bytes[15] &= 0x0f;
    }
    (bytes, len)
}
