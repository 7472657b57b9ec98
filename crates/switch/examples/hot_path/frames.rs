//! What is sent: frames behind their virtio headers.

/// Of the virtio header in front of every frame.
pub const HEADER: usize = 12;
/// Of Ethernet, IPv4 and TCP together.
const TCP_HEADERS: usize = 54;
/// Payload of one segment of a super-frame.
const SEGMENT: usize = 1448;
/// Segments of a super-frame: as many as 64 kB hold.
const SEGMENTS: usize = 45;

/// The frames of a case; they take turns.
#[derive(Clone, Copy)]
pub enum Frames {
    /// UDP over IPv4 in this many bytes.
    V4(usize),
    /// The same of eight flows in turn.
    Flows(usize),
    /// UDP over IPv4 with a VLAN tag.
    Tagged(usize),
    /// UDP over IPv6.
    V6(usize),
    /// The same from a link-local address.
    LinkLocal(usize),
    /// UDP over IPv4, its checksum left to the receiver.
    Unfinished(usize),
    /// UDP over IPv4, one to the first receiver, one to the second.
    ToTwo(usize),
    /// UDP over IPv4 to everyone.
    Broadcast(usize),
    /// A TCP super-frame over IPv4 of 64 kB.
    Super,
}

impl Frames {
    /// Virtio header and frame, of each, from vNIC `from` to `to`.
    pub fn build(self, from: u16, to: u16) -> Vec<Vec<u8>> {
        let complete = [0; HEADER];
        let v4 = |len, to| join(complete, v4(len, mac(from), mac(to)));
        match self {
            Self::V4(len) => vec![v4(len, to)],
            Self::Flows(len) => (0..8)
                .map(|flow| {
                    let mut frame = v4(len, to);
                    // The UDP source port.
                    frame[HEADER + 35] = flow;
                    frame
                })
                .collect(),
            Self::Tagged(len) => {
                let mut frame = v4(len - 4, to);
                frame.splice(HEADER + 12..HEADER + 12, [0x81, 0, 0, 10]);
                vec![frame]
            }
            Self::V6(len) => vec![join(complete, v6(len, mac(from), mac(to)))],
            Self::LinkLocal(len) => {
                let mut frame = v6(len, mac(from), mac(to));
                frame[22..24].copy_from_slice(&[0xfe, 0x80]);
                vec![join(complete, frame)]
            }
            // VIRTIO_NET_HDR_F_NEEDS_CSUM, from the UDP header on, into its checksum.
            Self::Unfinished(len) => {
                let mut frame = v4(len, to);
                frame[..HEADER].copy_from_slice(&[1, 0, 0, 0, 0, 0, 34, 0, 6, 0, 0, 0]);
                vec![frame]
            }
            Self::ToTwo(len) => vec![v4(len, to), v4(len, to + 1)],
            Self::Broadcast(len) => vec![join(complete, self::v4(len, mac(from), [0xff; 6]))],
            Self::Super => vec![super_frame(mac(from), mac(to))],
        }
    }

    /// Buffers of `size` bytes that a frame of `len` bytes with its header fills; a super-frame is `cut` into
    /// segments.
    pub fn buffers(self, len: usize, size: usize, cut: bool) -> usize {
        match self {
            Self::Super if cut => SEGMENTS,
            _ => len.div_ceil(size),
        }
    }

    /// Bytes in the buffers of each receiver of a frame of `len` bytes with its header; a super-frame is
    /// `cut` into segments.
    pub fn delivered(self, len: usize, cut: bool) -> usize {
        match self {
            Self::Super if cut => SEGMENTS * (HEADER + TCP_HEADERS + SEGMENT),
            _ => len,
        }
    }
}

/// The MAC of vNIC `index`.
pub fn mac(index: u16) -> [u8; 6] {
    let [high, low] = index.to_be_bytes();
    [0x52, 0x54, 0, 0, high, low]
}

fn join(vnet: [u8; HEADER], mut frame: Vec<u8>) -> Vec<u8> {
    frame.splice(0..0, vnet);
    frame
}

fn ethernet(len: usize, from: [u8; 6], to: [u8; 6], ethertype: [u8; 2]) -> Vec<u8> {
    let mut frame = vec![0; len];
    frame[..6].copy_from_slice(&to);
    frame[6..12].copy_from_slice(&from);
    frame[12..14].copy_from_slice(&ethertype);
    frame
}

/// An IPv4 packet of `protocol`, its payload empty.
fn ipv4(len: usize, from: [u8; 6], to: [u8; 6], protocol: u8) -> Vec<u8> {
    let mut frame = ethernet(len, from, to, [0x08, 0x00]);
    frame[14] = 0x45;
    frame[16..18].copy_from_slice(&((len - 14) as u16).to_be_bytes());
    frame[22..24].copy_from_slice(&[64, protocol]);
    frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    frame
}

/// A UDP datagram, without a checksum.
fn v4(len: usize, from: [u8; 6], to: [u8; 6]) -> Vec<u8> {
    let mut frame = ipv4(len, from, to, 17);
    udp(&mut frame[34..], (len - 34) as u16);
    frame
}

fn v6(len: usize, from: [u8; 6], to: [u8; 6]) -> Vec<u8> {
    let mut frame = ethernet(len, from, to, [0x86, 0xdd]);
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

/// What a kernel hands to its driver: checksum and segmentation are left to the receiver.
fn super_frame(from: [u8; 6], to: [u8; 6]) -> Vec<u8> {
    let mut frame = ipv4(TCP_HEADERS + SEGMENTS * SEGMENT, from, to, 6);
    frame[34..38].copy_from_slice(&[4, 0, 4, 1]);
    // Five words of header; ACK.
    frame[46..48].copy_from_slice(&[0x50, 0x10]);
    let [low, high] = (SEGMENT as u16).to_le_bytes();
    // VIRTIO_NET_HDR_F_NEEDS_CSUM, VIRTIO_NET_HDR_GSO_TCPV4; lengths, then where the checksum begins and goes.
    join([1, 1, TCP_HEADERS as u8, 0, low, high, 34, 0, 16, 0, 0, 0], frame)
}
