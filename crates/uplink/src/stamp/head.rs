//! The bytes of a frame's head that no element of the network changes.

/// Most bytes of a head that a tag covers.
pub const COVERED: usize = 64;

const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const ETHERTYPE_VLAN: [u8; 2] = [0x81, 0x00];

/// Returns what [`canonical`] returns, as little-endian words. Most heads are long and have no 802.1Q tag: words keep
/// them out of memory until the hash reads them.
#[inline]
pub fn words(head: &[u8]) -> [u64; COVERED / 8] {
    let mut words = [0; COVERED / 8];
    let first = match head.first_chunk::<COVERED>() {
        Some(first) if first[12..14] != ETHERTYPE_VLAN => first,
        _ => &canonical(head).0,
    };
    for (word, bytes) in words.iter_mut().zip(first.chunks_exact(8)) {
        *word = bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    }
    // Bytes 12 to 15, and 24 to 25.
    match (words[1] >> 32) as u16 {
        IPV4 => {
            words[1] &= u64::MAX >> 8;
            words[3] &= u64::MAX << 16;
        }
        IPV6 => words[1] &= 0x0ff0_ffff_ffff_ffff,
        _ => {}
    }
    words
}

/// EtherTypes in the order of bytes.
const IPV4: u16 = u16::from_le_bytes(ETHERTYPE_IPV4);
const IPV6: u16 = u16::from_le_bytes(ETHERTYPE_IPV6);

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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn words_are_the_canonical_head(
            mut head in prop::collection::vec(any::<u8>(), 0..100), kind in prop::sample::select(vec![0x0800u16, 0x86dd, 0x8100, 1]),
        ) {
            if let Some(ethertype) = head.get_mut(12..14) {
                ethertype.copy_from_slice(&kind.to_be_bytes());
            }
            let bytes: Vec<u8> = words(&head).iter().flat_map(|word| word.to_le_bytes()).collect();
            prop_assert_eq!(&bytes[..], &canonical(&head).0[..]);
        }
    }
}
