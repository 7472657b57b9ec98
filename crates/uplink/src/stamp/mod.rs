//! The stamp: a trailer of 32 bytes behind the payload of a real-time frame.
//!
//! ```text
//!  0     2     3     4          8          16      20        24       32
//!  │magic│ver. │flags│ Td, us   │ Ts, ns   │hold,ns│sequence │ tag    │   big-endian
//!
//!  frame head ─▶ head::canonical ─▶ SipHash-2-4 under the segment's key ─▶ tag
//! ```
//!
//! The network forwards a stamped frame unchanged; the receiving host checks the tag and removes the trailer. The tag
//! covers the head that the switch copied, the frame's length and the other fields: payload that a guest rewrites during
//! the transmission causes no false forgery, and the cost is constant.
//!
//! - `head`: the bytes of a frame's head that no network element changes
//! - [`key`]: the keys of a segment, and the tag

mod head;
pub mod key;

pub use key::{Key, KeyNumber, Keys};

use key::FIELDS;

/// Bytes of the trailer.
pub const LEN: usize = 32;
/// First two bytes of a stamp.
const MAGIC: u16 = 0x7464;
/// Layout of the trailer.
const VERSION: u8 = 1;

/// The fields of a stamp, without its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Which of the segment's two keys made the tag.
    pub key: KeyNumber,
    /// Td: the deadline, relative to Ts (us).
    pub deadline_us: u32,
    /// Ts: when the frame's clock started, on the sending host's timescale (ns).
    pub sent_ns: u64,
    /// From Ts until the frame left the sending switch (ns); `u32::MAX` stands for 4.29 s or longer.
    pub hold_ns: u32,
    /// Number of the frame among those of its pair (vNIC, remote), modulo 2^32.
    pub sequence: u32,
}

impl Stamp {
    /// Makes the trailer of a frame of `length` bytes. `head` holds the frame's first 68 bytes or more, or the whole of
    /// a shorter frame.
    #[inline]
    pub fn trailer(&self, key: &Key, head: &[u8], length: u32) -> [u8; LEN] {
        let fields = self.fields();
        let mut trailer = [0; LEN];
        trailer[..FIELDS].copy_from_slice(&fields);
        trailer[FIELDS..].copy_from_slice(&key.tag(head, length, &fields).to_be_bytes());
        trailer
    }

    /// Reads the trailer at the end of `frame` and checks its tag. The bytes before the trailer are the sent frame.
    /// Returns `None` if `frame` carries no stamp of this segment: the switch delivers such a frame unchanged.
    #[inline]
    pub fn read(frame: &[u8], keys: &Keys) -> Option<Self> {
        let (rest, trailer) = frame.split_last_chunk::<LEN>()?;
        let (fields, tag) = trailer.split_first_chunk::<FIELDS>()?;
        let stamp = Self::from_fields(fields)?;
        let expected = keys.get(stamp.key)?.tag(rest, u32::try_from(rest.len()).ok()?, fields);
        // Not in constant time: the network sees anyway whether the switch accepts a frame, and each tag fits one frame.
        (tag == expected.to_be_bytes()).then_some(stamp)
    }

    fn fields(&self) -> [u8; FIELDS] {
        let flags = u64::from(self.key == KeyNumber::Odd);
        let first =
            u64::from(MAGIC) << 48 | u64::from(VERSION) << 40 | flags << 32 | u64::from(self.deadline_us);
        let last = u64::from(self.hold_ns) << 32 | u64::from(self.sequence);
        let mut bytes = [0; FIELDS];
        bytes[..8].copy_from_slice(&first.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.sent_ns.to_be_bytes());
        bytes[16..].copy_from_slice(&last.to_be_bytes());
        bytes
    }

    /// Returns `None` for another magic or version, and for a flag that this version does not know.
    fn from_fields(bytes: &[u8; FIELDS]) -> Option<Self> {
        let [m0, m1, version, flags, rest @ ..] = bytes;
        if u16::from_be_bytes([*m0, *m1]) != MAGIC || *version != VERSION {
            return None;
        }
        let key = match flags {
            0 => KeyNumber::Even,
            1 => KeyNumber::Odd,
            _ => return None,
        };
        let (deadline, rest) = rest.split_first_chunk()?;
        let (sent, rest) = rest.split_first_chunk()?;
        let (hold, rest) = rest.split_first_chunk()?;
        let (sequence, _) = rest.split_first_chunk()?;
        Some(Self {
            key,
            deadline_us: u32::from_be_bytes(*deadline),
            sent_ns: u64::from_be_bytes(*sent),
            hold_ns: u32::from_be_bytes(*hold),
            sequence: u32::from_be_bytes(*sequence),
        })
    }
}

/// Whether the end of a frame looks like a stamp of this version. Few other frames do, so that most need no key.
#[inline]
pub fn is_alike(frame: &[u8]) -> bool {
    let Some((_, [m0, m1, version, ..])) = frame.split_last_chunk::<LEN>() else { return false };
    u16::from_be_bytes([*m0, *m1]) == MAGIC && *version == VERSION
}

#[cfg(test)]
mod tests;
