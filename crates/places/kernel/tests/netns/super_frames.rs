//! Super-frames: as guests make them, and as an attacker may.
//!
//! ```text
//!  Headers (tags, IPv4 options, IPv6 extensions, TCP options) ─┬─▶ bytes
//!  payload, what is asked of the host ─────────────────────────┤
//!                                                              └─▶ wire: the segments that these are, worked out by hand
//! ```

use super::tap::Request;
use proptest::prelude::*;

/// To, and from.
const ADDRESSES: [u8; 12] = [2, 2, 2, 2, 2, 3, 2, 2, 2, 2, 2, 2];
const TCP: u8 = 6;
const UDP: u8 = 17;
/// IPv6 extension headers behind which the kernel cuts super-frames: hop-by-hop, routing, destination.
const CUT_BEHIND: [u8; 3] = [0, 43, 60];
/// And others: fragment, authentication, mobility.
const NOT_BEHIND: [u8; 3] = [44, 51, 135];

/// What is between Ethernet addresses and transport header.
#[derive(Clone, Debug)]
pub enum Network {
    /// With so many words of options.
    V4 { options: usize },
    /// Extension headers: protocol, and units of 8 bytes beyond the first.
    V6 { extensions: Vec<(u8, u8)> },
}

/// What each segment has.
#[derive(Clone, Debug)]
pub struct Headers {
    /// Ethernet types of VLAN tags.
    pub tags: Vec<u16>,
    /// From the outside; more than one is a tunnel without a header of its own.
    pub network: Vec<Network>,
    /// Words of TCP options; `None` is UDP.
    pub tcp: Option<usize>,
}

impl Headers {
    /// The headers, and where the transport header is in them.
    fn bytes(&self, payload: usize) -> (Vec<u8>, usize) {
        let mut frame = ADDRESSES.to_vec();
        for tag in &self.tags {
            frame.extend(tag.to_be_bytes());
            frame.extend([0, 7]);
        }
        let kind = |network: &Network| match network {
            Network::V4 { .. } => (0x0800_u16, 4_u8),
            Network::V6 { .. } => (0x86dd, 41),
        };
        frame.extend(kind(&self.network[0]).0.to_be_bytes());
        let transport = match self.tcp {
            Some(options) => {
                let mut header = vec![1; 20 + 4 * options];
                header[12] = ((5 + options) << 4) as u8;
                header
            }
            None => {
                let length = ((8 + payload) as u16).to_be_bytes();
                vec![0, 9, 0, 9, length[0], length[1], 0, 0]
            }
        };
        let mut upper = transport.len() + payload;
        let mut packet = transport;
        let mut protocol = if self.tcp.is_some() { TCP } else { UDP };
        for network in self.network.iter().rev() {
            let header = network.bytes(protocol, upper);
            upper += header.len();
            packet.splice(..0, header);
            protocol = kind(network).1;
        }
        let length = match self.tcp {
            Some(options) => 20 + 4 * options,
            None => 8,
        };
        frame.extend(packet);
        let transport = frame.len() - length;
        (frame, transport)
    }
}

impl Network {
    fn bytes(&self, protocol: u8, upper: usize) -> Vec<u8> {
        match self {
            Self::V4 { options } => {
                let length = 20 + 4 * options;
                let mut header = vec![1; length];
                header[..12].fill(0);
                header[0] = 0x40 | (length / 4) as u8;
                header[2..4].copy_from_slice(&((length + upper) as u16).to_be_bytes());
                (header[8], header[9]) = (64, protocol);
                let sum: u32 =
                    header.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
                let sum = (sum & 0xffff) + (sum >> 16);
                header[10..12].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
                header
            }
            Self::V6 { extensions } => {
                let mut header = vec![3; 40];
                header[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, 0, 0, 64]);
                let mut next = 6;
                for (kind, units) in extensions {
                    header[next] = *kind;
                    next = header.len();
                    // One option of padding (RFC 8200, 4.2) where it fits; a routing header that is used up.
                    let mut extension = vec![0; 8 + 8 * usize::from(*units)];
                    extension[1] = *units;
                    header.extend(extension);
                }
                header[next] = protocol;
                let length = (header.len() - 40 + upper) as u16;
                header[4..6].copy_from_slice(&length.to_be_bytes());
                header
            }
        }
    }
}

/// One of them, and what a guest says of it.
#[derive(Clone, Debug)]
pub struct SuperFrame {
    pub headers: Headers,
    pub payload: usize,
    pub request: Request,
    /// Bytes that are written over, each by its place in the headers.
    pub pokes: Vec<(prop::sample::Index, u8)>,
    /// It ends here.
    pub cut: Option<prop::sample::Index>,
}

/// What a super-frame is on a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Wire {
    pub frames: u64,
    pub bytes: u64,
}

impl SuperFrame {
    pub fn bytes(&self) -> Vec<u8> {
        let (mut frame, _) = self.headers.bytes(self.payload);
        let headers = frame.len();
        for (at, value) in &self.pokes {
            let at = at.index(headers);
            frame[at] = *value;
        }
        frame.resize(headers + self.payload, 5);
        if let Some(cut) = self.cut {
            frame.truncate(14 + cut.index(headers + self.payload - 14));
        }
        frame
    }

    /// The segments of one that is as it should be.
    pub fn wire(&self) -> Wire {
        let (headers, transport) = self.headers.bytes(self.payload);
        let (size, is_v6) = (
            usize::from(self.request.gso_size),
            matches!(self.headers.network.last(), Some(Network::V6 { .. })),
        );
        // A fragment repeats what is before the UDP header, which is in the first one only.
        let (each, cut) = if self.request.gso_type == Request::UDP {
            (transport + if is_v6 { 8 } else { 0 }, headers.len() - transport + self.payload)
        } else {
            (headers.len(), self.payload)
        };
        let frames = cut.div_ceil(size);
        Wire { frames: frames as u64, bytes: (cut + frames * each) as u64 }
    }
}

fn tags(most: usize) -> impl Strategy<Value = Vec<u16>> {
    prop::collection::vec(prop::sample::select(vec![0x8100, 0x88a8]), 0..=most)
}

fn network(kinds: Vec<u8>, most: usize) -> impl Strategy<Value = Network> {
    // Mostly short ones, so that many fit.
    let units = prop_oneof![4 => 0_u8..3, 1 => 0_u8..=255];
    let extensions = prop::collection::vec((prop::sample::select(kinds), units), 0..=most);
    prop_oneof![
        (0_usize..=10).prop_map(|options| Network::V4 { options }),
        extensions.prop_map(|extensions| Network::V6 { extensions }),
    ]
}

/// A guest whose driver is right: any nesting that the kernel can cut.
pub fn ordinary() -> impl Strategy<Value = SuperFrame> {
    let headers = (tags(3), network(CUT_BEHIND.to_vec(), 16), prop::option::weighted(0.7, 0_usize..=10));
    // Segments of datagrams are 128 at most; the kernel takes a TCP segment of less than 8 bytes for one of 8.
    let sizes =
        (prop_oneof![4 => 500_u16..1_500, 1 => 8_u16..500], 1_usize..128, any::<prop::sample::Index>());
    (headers, sizes, any::<bool>(), any::<prop::sample::Index>()).prop_filter_map(
        "longer than an IP packet",
        |((tags, network, tcp), (gso_size, full, rest), fragments, linear)| {
            let is_v4 = matches!(network, Network::V4 { .. });
            let headers = Headers { tags, network: vec![network], tcp };
            let (bytes, transport) = headers.bytes(0);
            let room = 65_535_usize.checked_sub(bytes.len())?.checked_sub(1 + usize::from(gso_size))?;
            // More than one segment, the last of any length.
            let full = full.min(room / usize::from(gso_size)).max(1);
            let payload = full * usize::from(gso_size) + 1 + rest.index(gso_size.into());
            let payload = payload.min(65_535 - bytes.len()).min(128 * usize::from(gso_size));
            let (gso_type, csum_offset) = match (tcp, is_v4) {
                (Some(_), true) => (Request::TCPV4, 16),
                (Some(_), false) => (Request::TCPV6, 16),
                (None, _) if fragments => (Request::UDP, 6),
                (None, _) => (Request::UDP_L4, 6),
            };
            // Fragments begin at multiples of 8.
            let gso_size = if gso_type == Request::UDP { (gso_size & !7).max(8) } else { gso_size };
            let request = Request {
                flags: Request::NEEDS_CSUM,
                gso_type,
                hdr_len: linear.index(bytes.len() + payload) as u16,
                gso_size,
                csum_start: transport as u16,
                csum_offset,
            };
            Some(SuperFrame { headers, payload, request, pokes: vec![], cut: None })
        },
    )
}

/// Anything else that can be written to a tap: what is asked does not go with the frame, or the frame makes no sense. Not
/// all is wrong at once, so that many are cut.
pub fn hostile() -> impl Strategy<Value = SuperFrame> {
    let all_kinds = [&CUT_BEHIND[..], &NOT_BEHIND].concat();
    let network = || prop_oneof![8 => network(CUT_BEHIND.to_vec(), 24), 1 => network(all_kinds.clone(), 6)];
    let nested = prop::collection::vec(network(), 2..=3);
    let headers = (
        prop_oneof![6 => tags(3), 1 => tags(9)],
        prop_oneof![6 => network().prop_map(|one| vec![one]), 1 => nested],
        prop::option::weighted(0.6, 0_usize..=10),
    );
    let types = prop::sample::select(vec![1_u8, 3, 4, 5, 0x81, 0x84, 0x85]);
    let sizes = prop_oneof![2 => 1_u16..64, 4 => 64_u16..1_500, 1 => 1_u16..=u16::MAX];
    // Where the checksum is said to begin: where it does, near the headers, anywhere.
    let start = prop_oneof![
        12 => Just(None),
        1 => (0_u16..200).prop_map(Some),
        1 => any::<u16>().prop_map(Some),
    ];
    // Most leave the checksum to the host, as the kernel asks of most.
    let request = (types, sizes, start, 0_u8..8, 0_u8..8, any::<prop::sample::Index>());
    let poke = (any::<prop::sample::Index>(), any::<u8>());
    let pokes = prop_oneof![4 => Just(vec![]), 1 => prop::collection::vec(poke, 1..4)];
    let cut = prop::option::weighted(0.1, any::<prop::sample::Index>());
    (headers, 1_usize..30_000, request, pokes, cut).prop_map(
        |((tags, network, tcp), payload, (gso_type, gso_size, start, odd, flags, linear), pokes, cut)| {
            let is_v4 = matches!(network.last(), Some(Network::V4 { .. }));
            let headers = Headers { tags, network, tcp };
            let (bytes, transport) = headers.bytes(0);
            let gso_type = match (odd, tcp, is_v4) {
                (0, ..) => gso_type,
                (_, Some(_), true) => Request::TCPV4,
                (_, Some(_), false) => Request::TCPV6,
                (1, None, _) => Request::UDP,
                (_, None, _) => Request::UDP_L4,
            };
            // More datagrams are refused.
            let most = if gso_type == Request::UDP_L4 { 128 * usize::from(gso_size) } else { usize::MAX };
            let payload = payload.min(65_535_usize.saturating_sub(bytes.len())).min(most).max(1);
            let request = Request {
                flags: if flags == 0 { 0 } else { Request::NEEDS_CSUM },
                gso_type,
                hdr_len: 0,
                gso_size,
                csum_start: start.unwrap_or(transport as u16),
                csum_offset: if tcp.is_some() { 16 } else { 6 },
            };
            let mut frame = SuperFrame { headers, payload, request, pokes, cut };
            // More than there is, the kernel refuses.
            frame.request.hdr_len = linear.index(frame.bytes().len()) as u16;
            frame
        },
    )
}
