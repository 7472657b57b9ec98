//! Notices: what hosts tell each other beside frames, as small UDP messages.
//!
//! ```text
//!  0     2     3    4    5     8         16      20        28       …         n
//!  │magic│ver. │kind│key │ VNI │ started │number │ sent,ns │ body   │ tag, 8  │   big-endian
//!
//!  source and destination address, message ─▶ SipHash-2-4 under a key derived from the segment's ─▶ tag
//! ```
//!
//! The tag covers all of the message, and both addresses: a message that comes back to its sender, or that reaches
//! another host, is refused. The key is none of the stamps': no tag of a frame is one of a notice.
//!
//! A release that does not know a kind refuses its notices as malformed, counts them, and does nothing else: a new kind
//! needs no new version.
//!
//! - [`body`]: the kinds of notices
//! - `wire`: reads and writes fields

pub mod body;
mod wire;

pub use body::{Body, Cause, ClockReply, Here, LateReport, Member};

use crate::stamp::{Key, KeyNumber, Keys};
use std::net::IpAddr;
use wire::{Reader, Writer};

/// UDP port of notices: 0x7464, as the stamp's magic.
pub const PORT: u16 = 29_796;
/// Longest notice (bytes).
pub const LEN_MAX: usize = HEADER + body::LEN_MAX + TAG;

/// First two bytes of a notice.
const MAGIC: u16 = 0x746e;
/// Layout of all but the body.
const VERSION: u8 = 1;
/// Bytes before the body.
const HEADER: usize = 28;
/// Bytes of the tag.
const TAG: usize = 8;
/// What the derived key is for.
const PURPOSE: &[u8; 16] = b"tidegate notices";

/// One notice, without its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Which of the segment's two keys made the tag.
    pub key: KeyNumber,
    /// The segment whose key made the tag: 0 to 2^24 - 1.
    pub vni: u32,
    /// When the sending switch started, by its clock (ns): another process has another start.
    pub started_ns: u64,
    /// Number among the notices of this process to this peer, modulo 2^32.
    pub number: u32,
    /// When it was sent, by the sender's clock, CLOCK_MONOTONIC_RAW (ns).
    pub sent_ns: u64,
    /// What it says.
    pub body: Body,
}

/// The addresses of a message's outer IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// Source.
    pub from: IpAddr,
    /// Destination.
    pub to: IpAddr,
}

/// Why a message is no notice for this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Another magic, an unknown kind, or a length or value that its kind does not have.
    #[error("not a notice")]
    Malformed,
    /// A notice of another release.
    #[error("a notice of version {0}; this release reads version {VERSION}")]
    Version(u8),
    /// This host has no such key of the segment.
    #[error("no key of that number for segment {0}")]
    NoKey(u32),
    /// The tag is another one: forged, changed, or for another way.
    #[error("the tag does not fit")]
    Forged,
}

/// The bytes of one notice.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    bytes: [u8; LEN_MAX],
    len: usize,
}

impl Message {
    /// Returns its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Notice {
    /// Writes the notice, with its tag for `way`. Ignores the bits of `vni` above the 24th.
    pub fn write(&self, key: &Key, way: Way) -> Message {
        let mut writer = Writer::<LEN_MAX>::default();
        writer.u16(MAGIC);
        writer.u8(VERSION);
        writer.u8(self.body.kind());
        writer.u8(u8::from(self.key == KeyNumber::Odd));
        let [_, vni @ ..] = self.vni.to_be_bytes();
        writer.bytes(&vni);
        writer.u64(self.started_ns);
        writer.u32(self.number);
        writer.u64(self.sent_ns);
        self.body.write(&mut writer);
        writer.u64(tag(key, way, writer.written()));
        let (bytes, len) = writer.finish();
        Message { bytes, len }
    }

    /// Reads a message that came by `way`, and checks its tag. `keys` returns the valid keys of a VNI.
    ///
    /// # Errors
    /// Why it is none for this host.
    pub fn read(bytes: &[u8], way: Way, keys: impl FnOnce(u32) -> Keys) -> Result<Self, Refused> {
        let (covered, expected) = bytes.split_last_chunk::<TAG>().ok_or(Refused::Malformed)?;
        let mut reader = Reader::new(covered);
        if reader.u16() != Some(MAGIC) {
            return Err(Refused::Malformed);
        }
        match reader.u8() {
            Some(VERSION) => {}
            Some(other) => return Err(Refused::Version(other)),
            None => return Err(Refused::Malformed),
        }
        let notice = Self::fields(&mut reader).filter(|_| reader.is_at_end()).ok_or(Refused::Malformed)?;
        let keys = keys(notice.vni);
        let key = keys.get(notice.key).ok_or(Refused::NoKey(notice.vni))?;
        // Not in constant time: a tag fits one message on one way, and replays are refused.
        if tag(key, way, covered).to_be_bytes() != *expected {
            return Err(Refused::Forged);
        }
        Ok(notice)
    }

    /// Reads the fields behind the version.
    fn fields(reader: &mut Reader<'_>) -> Option<Self> {
        let kind = reader.u8()?;
        let key = match reader.u8()? {
            0 => KeyNumber::Even,
            1 => KeyNumber::Odd,
            _ => return None,
        };
        let [a, b, c] = reader.array()?;
        Some(Self {
            key,
            vni: u32::from_be_bytes([0, a, b, c]),
            started_ns: reader.u64()?,
            number: reader.u32()?,
            sent_ns: reader.u64()?,
            body: Body::read(kind, reader)?,
        })
    }
}

/// Computes the tag of a message on its way.
fn tag(key: &Key, way: Way, message: &[u8]) -> u64 {
    let mut input = Writer::<{ 32 + LEN_MAX }>::default();
    input.bytes(&sixteen(way.from));
    input.bytes(&sixteen(way.to));
    input.bytes(message);
    key.derived(PURPOSE).hash(input.written())
}

/// Returns an address as 16 bytes; an IPv4 address as RFC 4291, section 2.5.5.2, maps it.
fn sixteen(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

#[cfg(test)]
mod tests;
