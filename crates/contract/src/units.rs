//! Quantities with units, as people write them: `"500mbit"`, `"4kB"`, `"500us"`.
//!
//! All three are stored as integers, serialise as the string a person would
//! write, and parse back to the same value.

use serde::{Deserialize, Serialize};

/// A rate in bits per second of Ethernet frames (without preamble and FCS).
///
/// Written with a unit: `bit`, `kbit`, `mbit`, `gbit` (powers of 1000). Range
/// 1 bit/s to 400 Gbit/s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Rate(u64);

/// A size in bytes: `B`, `kB`, `MB` (powers of 1000), `KiB`, `MiB` (1024).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Bytes(u64);

/// A duration in nanoseconds: `ns`, `us`, `ms`, `s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Nanos(u64);

impl Rate {
    /// `bits` per second; `None` outside 1 to 400 Gbit/s.
    pub const fn from_bits(bits: u64) -> Option<Self> {
        if bits >= 1 && bits <= 400_000_000_000 { Some(Self(bits)) } else { None }
    }
    /// Bits per second.
    pub const fn bits(self) -> u64 {
        self.0
    }
}

impl Bytes {
    /// A size of `n` bytes.
    pub const fn new(n: u64) -> Self {
        Self(n)
    }
    /// Bytes.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl Nanos {
    /// A duration of `n` nanoseconds.
    pub const fn new(n: u64) -> Self {
        Self(n)
    }
    /// Nanoseconds.
    pub const fn get(self) -> u64 {
        self.0
    }
}
