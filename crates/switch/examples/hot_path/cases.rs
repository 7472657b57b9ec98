//! What is sent, under which contracts, and how it meets its receivers.

/// VIRTIO_F_VERSION_1, VIRTIO_NET_F_MRG_RXBUF, VIRTIO_NET_F_GUEST_CSUM.
const USUAL: u64 = 1 << 32 | 1 << 15 | 1 << 1;
/// VIRTIO_F_RING_PACKED.
pub const PACKED: u64 = 1 << 34;
/// VIRTIO_F_IN_ORDER.
pub const IN_ORDER: u64 = 1 << 35;
/// Of the virtio header in front of every frame.
pub const HEADER: usize = 12;

/// The frames of a case; they take turns.
#[derive(Clone, Copy)]
pub enum Frames {
    /// UDP over IPv4 in this many bytes.
    V4(usize),
    /// The same with a VLAN tag.
    Tagged(usize),
    /// UDP over IPv6.
    V6(usize),
    /// The same from a link-local address.
    LinkLocal(usize),
    /// UDP over IPv4, its checksum left to the receiver.
    Unfinished(usize),
    /// UDP over IPv4, one to the first receiver, one to the second.
    ToTwo(usize),
}

/// One case.
pub struct Case {
    pub name: &'static str,
    pub frames: Frames,
    /// Of the sender and the receivers, as in a contract file.
    pub contracts: &'static [&'static str],
    pub features: u64,
    /// Receive buffers come after the frames, which wait for them in the queue.
    pub late_buffers: bool,
}

const LIMITS: [&str; 2] = ["tx = { max = \"100gbit\" }", "rx = { max = \"100gbit\" }"];

const fn case(name: &'static str, frames: Frames) -> Case {
    Case { name, frames, contracts: &LIMITS, features: USUAL, late_buffers: false }
}

/// All cases.
pub const CASES: [Case; 15] = [
    Case { contracts: &["", ""], ..case("64B-open", Frames::V4(64)) },
    case("64B", Frames::V4(64)),
    Case {
        contracts: &[
            "tx = { max = \"100gbit\", burst = \"64kB\" }\ndeadline = \"1ms\"\nto = [\"v1\"]",
            "rx = { max = \"200gbit\" }",
        ],
        ..case("64B-deadline", Frames::V4(64))
    },
    case("512B", Frames::V4(512)),
    case("1518B", Frames::V4(1514)),
    Case { features: USUAL | PACKED, ..case("64B-packed", Frames::V4(64)) },
    Case { features: USUAL | PACKED | IN_ORDER, ..case("64B-packed-in-order", Frames::V4(64)) },
    Case { features: USUAL | IN_ORDER, ..case("64B-in-order", Frames::V4(64)) },
    case("66B-ipv6", Frames::V6(66)),
    Case {
        contracts: &[
            "tx = { max = \"100gbit\" }\nallowed = { vlans = [10] }",
            "rx = { max = \"100gbit\" }\nallowed = { vlans = [10] }",
        ],
        ..case("68B-vlan", Frames::Tagged(68))
    },
    Case {
        contracts: &[
            "tx = { max = \"100gbit\" }\nallowed = { prefixes = [\"10.7.0.0/16\", \"10.0.0.0/24\"] }",
            "rx = { max = \"100gbit\" }",
        ],
        ..case("64B-prefixes", Frames::V4(64))
    },
    Case {
        contracts: &[
            "tx = { max = \"100gbit\" }\nallowed = { prefixes = [\"10.7.0.0/16\", \"10.0.0.0/24\"] }",
            "rx = { max = \"100gbit\" }",
        ],
        ..case("66B-link-local", Frames::LinkLocal(66))
    },
    case("64B-checksum", Frames::Unfinished(64)),
    Case { contracts: &[LIMITS[0], LIMITS[1], LIMITS[1]], ..case("64B-two", Frames::ToTwo(64)) },
    Case { late_buffers: true, ..case("64B-queued", Frames::V4(64)) },
];

impl Frames {
    /// Virtio header and frame, of each.
    pub fn build(self) -> Vec<Vec<u8>> {
        let complete = [0; HEADER];
        match self {
            Self::V4(len) => vec![join(complete, v4(len, 1))],
            Self::Tagged(len) => {
                let mut frame = v4(len - 4, 1);
                frame.splice(12..12, [0x81, 0, 0, 10]);
                vec![join(complete, frame)]
            }
            Self::V6(len) => vec![join(complete, v6(len))],
            Self::LinkLocal(len) => {
                let mut frame = v6(len);
                frame[22..24].copy_from_slice(&[0xfe, 0x80]);
                vec![join(complete, frame)]
            }
            // VIRTIO_NET_HDR_F_NEEDS_CSUM, from the UDP header on, into its checksum.
            Self::Unfinished(len) => vec![join([1, 0, 0, 0, 0, 0, 34, 0, 6, 0, 0, 0], v4(len, 1))],
            Self::ToTwo(len) => [1, 2].map(|to| join(complete, v4(len, to))).into(),
        }
    }
}

/// The MAC of vNIC `index`.
pub fn mac(index: u16) -> [u8; 6] {
    [0x52, 0x54, 0, 0, 0, index as u8]
}

fn join(vnet: [u8; HEADER], mut frame: Vec<u8>) -> Vec<u8> {
    frame.splice(0..0, vnet);
    frame
}

fn ethernet(len: usize, to: u16, ethertype: [u8; 2]) -> Vec<u8> {
    let mut frame = vec![0; len];
    frame[..6].copy_from_slice(&mac(to));
    frame[6..12].copy_from_slice(&mac(0));
    frame[12..14].copy_from_slice(&ethertype);
    frame
}

/// A UDP datagram from vNIC 0, without a checksum.
fn v4(len: usize, to: u16) -> Vec<u8> {
    let mut frame = ethernet(len, to, [0x08, 0x00]);
    let ip_len = (len - 14) as u16;
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&ip_len.to_be_bytes());
    frame[22..24].copy_from_slice(&[64, 17]);
    frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    udp(&mut frame[34..], ip_len - 20);
    frame
}

fn v6(len: usize) -> Vec<u8> {
    let mut frame = ethernet(len, 1, [0x86, 0xdd]);
    let udp_len = (len - 54) as u16;
    frame[14] = 0x60;
    frame[18..20].copy_from_slice(&udp_len.to_be_bytes());
    frame[20..22].copy_from_slice(&[17, 64]);
    (frame[22], frame[37]) = (0xfd, 1);
    (frame[38], frame[53]) = (0xfd, 2);
    udp(&mut frame[54..], udp_len);
    frame
}

fn udp(header: &mut [u8], len: u16) {
    header[..4].copy_from_slice(&[4, 0, 4, 1]);
    header[4..6].copy_from_slice(&len.to_be_bytes());
}
