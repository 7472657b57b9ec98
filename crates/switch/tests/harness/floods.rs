//! Floods that a vNIC's limit has to stand.

use super::frames::{CSUM, HOST_TSO4, Kind};
use super::{checksum, ring, udp};
use tidegate_frontend::front_end::Options;

/// What a vNIC sends above a limit, frame after frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flood {
    /// Long frames of one flow of UDP, which never reacts.
    OneFlow,
    /// Short frames, each of a flow of its own.
    ManyFlows,
    /// Frames of 43 segments.
    SuperFrames,
    /// All codes of ECN, as it comes, on protocols that have no answer to a mark.
    EcnLies,
}

/// Payload of a segment of a super-frame.
const SEGMENT: u16 = 1400;
/// UDP, ICMP, GRE, SCTP.
const PROTOCOLS: [u8; 4] = [17, 1, 47, 132];

impl Flood {
    pub const ALL: [Self; 4] = [Self::OneFlow, Self::ManyFlows, Self::SuperFrames, Self::EcnLies];

    /// What its sender needs, with rings of so many entries.
    pub fn options(self, queue_size: u16) -> Options {
        let usual = ring(queue_size);
        match self {
            Self::SuperFrames => {
                Options { features: usual.features | CSUM | HOST_TSO4, buffer_size: 1 << 16, ..usual }
            }
            _ => usual,
        }
    }

    /// The virtio header and the bytes of its frame number `number`.
    pub fn frame(self, number: u32, to: [u8; 6], from: [u8; 6]) -> ([u8; 12], Vec<u8>) {
        let plain = |frame| ([0; 12], frame);
        match self {
            Self::OneFlow => plain(udp(to, from, &[7; 1400])),
            Self::ManyFlows => {
                let mut frame = udp(to, from, &[7; 18]);
                // The ports; there is no UDP checksum.
                frame[34..38].copy_from_slice(&number.to_be_bytes());
                plain(frame)
            }
            Self::SuperFrames => {
                let kind = Kind { v6: false, tcp: true };
                let (header, frame) = kind.frame(to, from, &[7; 60_000], SEGMENT);
                (header.bytes(kind.headers() as u16), frame)
            }
            Self::EcnLies => {
                let mut frame = udp(to, from, &[7; 1000]);
                let random = number.wrapping_mul(2_654_435_761) >> 16;
                let code = random as u8 & 3;
                (frame[15], frame[23]) = (code, PROTOCOLS[(random >> 2) as usize & 3]);
                frame[24..26].fill(0);
                let sum = checksum(&frame[14..34]);
                frame[24..26].copy_from_slice(&sum.to_be_bytes());
                // What was said, for the receiver.
                frame[60] = code;
                plain(frame)
            }
        }
    }

    /// Checks what arrived of it.
    #[track_caller]
    pub fn check(self, frame: &[u8]) {
        assert_eq!(checksum(&frame[14..34]), 0, "the header's checksum");
        let code = frame[15] & 3;
        match self {
            // A mark is set on what claims to bear it, and never taken away.
            Self::EcnLies => {
                let said = frame[60];
                assert!(code == said || code == 3 && said != 0, "{said} became {code}");
            }
            _ => assert_eq!(code, 0, "a mark on what claims nothing"),
        }
    }
}
