//! Floods that a vNIC's limit must withstand.

use super::frames::{CSUM, HOST_TSO4, Kind};
use super::{checksum, ring, udp};
use tidegate_frontend::front_end::Options;

/// What a vNIC sends above a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flood {
    /// Long frames of one UDP flow, which never reacts.
    OneFlow,
    /// Short frames, each of its own flow.
    ManyFlows,
    /// Frames of 43 segments.
    SuperFrames,
    /// All ECN codes in random order, on protocols that do not react to a mark.
    EcnLies,
}

/// Payload of a super-frame's segment (bytes).
const SEGMENT: u16 = 1400;
/// UDP, ICMP, GRE, SCTP.
const PROTOCOLS: [u8; 4] = [17, 1, 47, 132];

impl Flood {
    pub const ALL: [Self; 4] = [Self::OneFlow, Self::ManyFlows, Self::SuperFrames, Self::EcnLies];

    pub fn options(self, queue_size: u16) -> Options {
        let usual = ring(queue_size);
        match self {
            Self::SuperFrames => {
                Options { features: usual.features | CSUM | HOST_TSO4, buffer_size: 1 << 16, ..usual }
            }
            _ => usual,
        }
    }

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
                // For the receiver.
                frame[60] = code;
                plain(frame)
            }
        }
    }

    #[track_caller]
    pub fn check(self, frame: &[u8]) {
        assert_eq!(checksum(&frame[14..34]), 0, "the header's checksum");
        let code = frame[15] & 3;
        match self {
            // Only ECN-capable frames get a mark, and none loses one.
            Self::EcnLies => {
                let said = frame[60];
                assert!(code == said || code == 3 && said != 0, "{said} became {code}");
            }
            _ => assert_eq!(code, 0, "a mark on what claims nothing"),
        }
    }
}
