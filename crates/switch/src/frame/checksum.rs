//! The Internet checksum (RFC 1071).
//!
//! A *sum* here is the folded 16-bit one's-complement sum of big-endian words; the *checksum* in a header is
//! its complement. An odd last byte counts as if a zero followed.

/// One's-complement addition.
#[inline]
pub const fn add(a: u16, b: u16) -> u16 {
    let (s, carry) = a.overflowing_add(b);
    s + carry as u16
}

/// Returns the sum of `bytes`.
#[inline]
pub fn sum(bytes: &[u8]) -> u16 {
    // Sums in native byte order and swaps once at the end (RFC 1071, 2 B). 32-bit words in a 64-bit
    // accumulator cannot overflow below 16 GiB.
    let mut acc = 0u64;
    let mut words = bytes.chunks_exact(4);
    for w in &mut words {
        acc += u64::from(u32::from_ne_bytes([w[0], w[1], w[2], w[3]]));
    }
    let mut last = [0; 4];
    for (to, from) in last.iter_mut().zip(words.remainder()) {
        *to = *from;
    }
    acc += u64::from(u32::from_ne_bytes(last));
    fold(acc).to_be()
}

/// Folds an accumulator to 16 bits with end-around carry.
#[inline]
const fn fold(acc: u64) -> u16 {
    let acc = (acc >> 32) + (acc & 0xffff_ffff);
    let acc = (acc >> 16) + (acc & 0xffff);
    let acc = (acc >> 16) + (acc & 0xffff);
    let acc = (acc >> 16) + (acc & 0xffff);
    acc as u16
}

/// Returns the sum of a whole, from the sums of its first `offset` bytes (`a`) and of the rest (`b`). At an
/// odd offset the words of `b` straddle those of the whole.
#[inline]
pub const fn combine(a: u16, b: u16, offset: usize) -> u16 {
    add(a, if offset % 2 == 1 { b.swap_bytes() } else { b })
}

/// Returns the sum of TCP's or UDP's pseudo header over IPv4 (RFC 9293, 3.1; RFC 768). `len`: L4 header and
/// payload (bytes).
#[inline]
pub fn pseudo_v4(src: &[u8; 4], dst: &[u8; 4], protocol: u8, len: u16) -> u16 {
    add(add(sum(src), sum(dst)), add(protocol as u16, len))
}

/// Returns the sum of the pseudo header over IPv6 (RFC 8200, 8.1). `len`: L4 header and payload (bytes).
#[inline]
pub fn pseudo_v6(src: &[u8; 16], dst: &[u8; 16], protocol: u8, len: u32) -> u16 {
    let len = add((len >> 16) as u16, len as u16);
    add(add(sum(src), sum(dst)), add(protocol as u16, len))
}

/// Returns the checksum after a 16-bit word of its data changed from `old` to `new` (RFC 1624, equation 3).
#[inline]
pub const fn update(checksum: u16, old: u16, new: u16) -> u16 {
    !add(add(!checksum, !old), new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 1071 read literally.
    fn model(bytes: &[u8]) -> u16 {
        let mut s = 0u32;
        for w in bytes.chunks(2) {
            s += u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0));
            s = (s & 0xffff) + (s >> 16);
        }
        s as u16
    }

    #[test]
    fn example_of_rfc_1071() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(sum(&bytes), 0xddf2);
    }

    #[test]
    fn example_of_rfc_1624() {
        // Section 4: a header whose checksum becomes 0, not -0.
        assert_eq!(update(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    #[test]
    fn ones_do_not_overflow() {
        assert_eq!(sum(&[0xff; 65_536]), 0xffff);
        assert_eq!(sum(&[]), 0);
    }

    #[test]
    fn pseudo_headers_are_the_sums_of_their_bytes() {
        let v4 = [10, 0, 0, 1, 192, 168, 255, 254, 0, 17, 0x12, 0x34];
        assert_eq!(pseudo_v4(&[10, 0, 0, 1], &[192, 168, 255, 254], 17, 0x1234), model(&v4));
        let mut v6 = [0xfd; 40];
        v6[32..].copy_from_slice(&[0, 1, 0x12, 0x34, 0, 0, 0, 6]);
        assert_eq!(pseudo_v6(&[0xfd; 16], &[0xfd; 16], 6, 0x1_1234), model(&v6));
    }

    proptest! {
        #[test]
        fn sum_is_the_model(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert_eq!(sum(&bytes), model(&bytes));
        }

        #[test]
        fn combine_joins_at_any_offset(
            bytes in prop::collection::vec(any::<u8>(), 0..300), at in any::<prop::sample::Index>(),
        ) {
            let at = at.index(bytes.len() + 1);
            let (a, b) = bytes.split_at(at);
            prop_assert_eq!(combine(sum(a), sum(b), at), model(&bytes));
        }

        #[test]
        fn update_is_recomputation(
            mut bytes in prop::collection::vec(1u8.., 20..=20), at in 0usize..10, new: u16,
        ) {
            let before = !sum(&bytes);
            let old = u16::from_be_bytes([bytes[2 * at], bytes[2 * at + 1]]);
            bytes[2 * at..2 * at + 2].copy_from_slice(&new.to_be_bytes());
            prop_assert_eq!(update(before, old, new), !sum(&bytes));
        }
    }
}
