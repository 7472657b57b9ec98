//! The fields of a frame that rules and records name.
//!
//! ```text
//!  │ Ethernet │ IPv4, IPv6 │ UDP │ VXLAN │ inner Ethernet frame ... │ stamp (32 bytes) │
//! ```
//!
//! The network has no key: what looks like a stamp (magic and version) is one to it.

use serde::Serialize;
use tidegate_uplink::vxlan;

/// Bytes of a stamp, its magic and its version ([`tidegate_uplink::stamp`]).
const STAMP: usize = 32;
const MAGIC_AND_VERSION: [u8; 3] = [0x74, 0x64, 1];

/// What a frame is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The UDP destination port of a frame that is no fragment.
    pub udp_port: Option<u16>,
    /// Where its UDP checksum is.
    pub checksum_at: Option<usize>,
    /// Its VNI, if it is VXLAN.
    pub vni: Option<u32>,
    /// The inner source address.
    pub src: Option<String>,
    /// The inner destination address.
    pub dst: Option<String>,
    /// The first 8 bytes of an inner UDP datagram over IPv4: test programs number their datagrams there.
    pub payload: Option<u64>,
    /// The fields of its stamp.
    pub stamp: Option<Stamp>,
}

/// The fields of a stamp, unchecked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Stamp {
    /// Td (us).
    pub deadline_us: u32,
    /// Ts (ns).
    pub sent_ns: u64,
    /// Time in the sending host (ns).
    pub hold_ns: u32,
    /// Number of the frame.
    pub sequence: u32,
}

impl Seen {
    /// Looks at a frame; what it does not know stays empty.
    pub fn of(frame: &[u8]) -> Self {
        let mut seen = Self::default();
        let Some((at, datagram)) = udp(frame) else { return seen };
        seen.udp_port = Some(u16::from_be_bytes([frame[at + 2], frame[at + 3]]));
        seen.checksum_at = Some(at + 6);
        if seen.udp_port != Some(vxlan::PORT) {
            return seen;
        }
        let Ok((vni, inner)) = vxlan::parse(datagram) else { return seen };
        seen.vni = Some(vni);
        if let Some(addresses) = inner.first_chunk::<12>() {
            (seen.dst, seen.src) = (Some(mac(&addresses[..6])), Some(mac(&addresses[6..])));
        }
        seen.payload =
            udp(inner).and_then(|(_, datagram)| Some(u64::from_be_bytes(*datagram.first_chunk()?)));
        seen.stamp = inner.last_chunk().and_then(Stamp::of);
        seen
    }
}

impl Stamp {
    fn of(bytes: &[u8; STAMP]) -> Option<Self> {
        let number = |from: usize, length: usize| {
            bytes[from..from + length].iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte))
        };
        bytes.starts_with(&MAGIC_AND_VERSION).then(|| Self {
            deadline_us: number(4, 4) as u32,
            sent_ns: number(8, 8),
            hold_ns: number(16, 4) as u32,
            sequence: number(20, 4) as u32,
        })
    }
}

/// Finds the UDP header of a frame, and the datagram behind it, within the length that the header names.
fn udp(frame: &[u8]) -> Option<(usize, &[u8])> {
    let at = match frame.get(12..14)? {
        [0x08, 0x00] => {
            let fragment = u16::from_be_bytes([*frame.get(20)?, *frame.get(21)?]) & 0x3fff;
            (*frame.get(23)? == 17 && fragment == 0).then_some(14 + usize::from(frame[14] & 15) * 4)?
        }
        [0x86, 0xdd] => (*frame.get(20)? == 17).then_some(54)?,
        _ => return None,
    };
    let header = frame.get(at..)?.first_chunk::<8>()?;
    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    Some((at, frame.get(at + 8..at + length)?))
}

/// Returns an address as it is written.
pub fn mac(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
}

#[cfg(test)]
pub mod testing {
    use super::*;

    /// A frame of VXLAN over IPv4 with an inner frame of `payload` bytes and what looks like a stamp.
    pub fn stamped(sequence: u32, payload: usize) -> Vec<u8> {
        let mut inner = vec![0x52, 0x54, 0, 0, 0, 2, 0x52, 0x54, 0, 0, 0, 1, 8, 0];
        inner.resize(14 + payload, 0);
        inner.extend_from_slice(&[0x74, 0x64, 1, 0, 0, 0, 3, 0xe8]);
        inner.extend_from_slice(&7u64.to_be_bytes());
        inner.extend_from_slice(&9u32.to_be_bytes());
        inner.extend_from_slice(&sequence.to_be_bytes());
        inner.extend_from_slice(&[0; 8]);
        let datagram = [&vxlan::header(42)[..], &inner].concat();
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17];
        frame.resize(34, 0);
        frame.extend_from_slice(&[0xc0, 0, 0x12, 0xb5]);
        frame.extend_from_slice(&(datagram.len() as u16 + 8).to_be_bytes());
        frame.extend_from_slice(&[0x12, 0x34]);
        [frame, datagram].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::testing::stamped;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_parts_of_a_frame_are_found() {
        let seen = Seen::of(&stamped(77, 60));
        let stamp = Stamp { deadline_us: 1_000, sent_ns: 7, hold_ns: 9, sequence: 77 };
        let expected = Seen {
            udp_port: Some(4789),
            checksum_at: Some(40),
            vni: Some(42),
            src: Some("52:54:00:00:00:01".into()),
            dst: Some("52:54:00:00:00:02".into()),
            payload: None,
            stamp: Some(stamp),
        };
        assert_eq!(seen, expected);
    }

    #[test]
    fn the_number_of_an_inner_datagram_is_found() {
        let mut frame = stamped(1, 60);
        let inner = 14 + 20 + 8 + vxlan::LEN;
        frame[inner + 14..inner + 34]
            .copy_from_slice(&[0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, 17, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]);
        frame[inner + 38..inner + 40].copy_from_slice(&26u16.to_be_bytes());
        frame[inner + 42..inner + 50].copy_from_slice(&123_456u64.to_be_bytes());
        assert_eq!(Seen::of(&frame).payload, Some(123_456));
    }

    #[test]
    fn a_stamp_is_read_where_another_program_writes_it() {
        use tidegate_uplink::stamp::{Key, KeyNumber, LEN};
        let fields = tidegate_uplink::stamp::Stamp {
            key: KeyNumber::Odd,
            deadline_us: 5,
            sent_ns: 1 << 40,
            hold_ns: 3,
            sequence: u32::MAX,
        };
        assert_eq!(LEN, STAMP);
        let found = Stamp::of(&fields.trailer(&Key::new([1; 16]), &[0; 80], 80)).unwrap();
        assert_eq!(found, Stamp { deadline_us: 5, sent_ns: 1 << 40, hold_ns: 3, sequence: u32::MAX });
    }

    proptest! {
        #[test]
        fn any_frame_is_looked_at_without_panic(mut frame: Vec<u8>, ipv6: bool) {
            let _ = Seen::of(&frame);
            if frame.len() > 24 {
                frame[12..14].copy_from_slice(if ipv6 { &[0x86, 0xdd] } else { &[8, 0] });
                frame[if ipv6 { 20 } else { 23 }] = 17;
                let _ = Seen::of(&frame);
            }
        }
    }
}
