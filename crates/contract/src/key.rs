//! The keys of segments themselves. They are read from [files](crate::SegmentKeys), and are neither saved nor printed.

use crate::Segment;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Hex digits of a key.
const DIGITS: usize = 32;

/// A key: 128 bits that the hosts of a segment share.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct SecretKey([u8; 16]);

/// The keys of a segment that are valid now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentKey {
    /// The segment.
    pub segment: Segment,
    /// The key in use: this host's stamps are made with it.
    pub key: SecretKey,
    /// The key that replaces it, of the other [parity](SecretKey::is_odd).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<SecretKey>,
}

impl SecretKey {
    /// Reads 32 hex digits, and spaces or line breaks around them. `None` for anything else.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let digits = text.trim_ascii();
        if digits.len() != DIGITS {
            return None;
        }
        let mut bytes = [0; 16];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |digit: u8| char::from(digit).to_digit(16);
            *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
        }
        Some(Self(bytes))
    }

    /// Returns its bytes.
    pub const fn bytes(&self) -> [u8; 16] {
        self.0
    }

    /// Whether its last hex digit is odd. A stamp tells which of two keys made it by this bit, so the key that
    /// replaces another has the other parity.
    pub const fn is_odd(&self) -> bool {
        self.0[15] & 1 == 1
    }
}

impl fmt::Debug for SecretKey {
    /// Hides the bytes: readers of logs need not know the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretKey(..)")
    }
}

impl From<SecretKey> for String {
    fn from(key: SecretKey) -> Self {
        key.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl TryFrom<String> for SecretKey {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(text.as_bytes()).ok_or("a key has 32 hex digits")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_key_is_read_as_it_is_written(bytes: [u8; 16], upper: bool) {
            let mut text = String::from(SecretKey(bytes));
            if upper {
                text = text.to_uppercase();
            }
            let key = SecretKey::parse(format!("{text}\n").as_bytes()).expect("is a key");
            prop_assert_eq!((key.bytes(), key.is_odd()), (bytes, bytes[15] % 2 == 1));
        }

        #[test]
        fn any_text_is_read_without_panic(text: Vec<u8>) {
            prop_assert_eq!(SecretKey::parse(&text), None);
        }
    }

    #[test]
    fn other_lengths_and_digits_are_no_key() {
        for wrong in ["", "0", &"0".repeat(31), &"0".repeat(33), &format!("{}g", "0".repeat(31))] {
            assert_eq!(SecretKey::parse(wrong.as_bytes()), None, "{wrong}");
        }
        let key = SecretKey::parse("0".repeat(32).as_bytes()).expect("is a key");
        assert_eq!(format!("{key:?}"), "SecretKey(..)");
    }
}
