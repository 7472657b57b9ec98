//! The keys of a segment, and the tags they make.

use super::head::{self, COVERED};
use siphasher::sip::SipHasher24;
use std::fmt;

/// Bytes of the trailer without its tag.
pub(super) const FIELDS: usize = 24;

/// A segment has up to two keys: both are valid while one replaces the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyNumber {
    /// Flag bit 0 clear.
    Even,
    /// Flag bit 0 set.
    Odd,
}

/// A key of a segment: 128 bits that its hosts share.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key([u8; 16]);

impl Key {
    /// Makes a key of 16 bytes.
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Computes SipHash-2-4 of the canonical head, the frame's length and the stamp's fields.
    #[inline]
    pub(super) fn tag(&self, head: &[u8], length: u32, fields: &[u8; FIELDS]) -> u64 {
        let [a, b, c] = [0, 8, 16].map(|at| {
            let word = fields.get(at..).and_then(|rest| rest.first_chunk());
            word.map_or(0, |word| u64::from_le_bytes(*word))
        });
        // Word by word, since the hash reads words: it would wait for bytes that were just written one by one. The
        // padding of a short head is not ambiguous: the length is hashed too.
        let mut input = [0; COVERED + 4 + FIELDS];
        let (covered, rest) = input.split_at_mut(COVERED);
        for (place, word) in covered.chunks_exact_mut(8).zip(head::words(head)) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let length = u64::from(length.swap_bytes());
        let words = [length | a << 32, a >> 32 | b << 32, b >> 32 | c << 32, c >> 32];
        for (place, word) in rest.chunks_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes()[..place.len()]);
        }
        SipHasher24::new_with_key(&self.0).hash(&input)
    }

    /// Derives a key for another purpose: a tag made for one is none for the other. No stamp's tag has an input as
    /// short as these.
    pub(crate) fn derived(&self, purpose: &[u8; 16]) -> Self {
        let half = |number: u8| {
            let mut input = [number; 17];
            input[..16].copy_from_slice(purpose);
            self.hash(&input).to_be_bytes()
        };
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&half(0));
        bytes[8..].copy_from_slice(&half(1));
        Self(bytes)
    }

    /// Computes SipHash-2-4 of bytes of any kind. For [derived](Self::derived) keys.
    pub(crate) fn hash(&self, bytes: &[u8]) -> u64 {
        SipHasher24::new_with_key(&self.0).hash(bytes)
    }
}

impl Key {
    /// Returns a number that tells this key from others and does not tell the key: a tag of a fixed text.
    pub fn fingerprint(&self) -> u64 {
        SipHasher24::new_with_key(&self.0).hash(b"tidegate: fingerprint of a key")
    }
}

impl fmt::Debug for Key {
    /// Hides the bytes: readers of logs need not know the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// The keys of a segment that are valid now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    /// The key of [`KeyNumber::Even`].
    pub even: Option<Key>,
    /// The key of [`KeyNumber::Odd`].
    pub odd: Option<Key>,
}

impl Keys {
    /// Returns the key of a number; `None` if the segment has none.
    #[inline]
    pub const fn get(&self, number: KeyNumber) -> Option<&Key> {
        match number {
            KeyNumber::Even => self.even.as_ref(),
            KeyNumber::Odd => self.odd.as_ref(),
        }
    }
}
