//! What is sent, under which contracts, and how it meets its receivers.

use crate::frames::Frames;

/// VIRTIO_F_VERSION_1, VIRTIO_NET_F_MRG_RXBUF, VIRTIO_NET_F_GUEST_CSUM.
const USUAL: u64 = 1 << 32 | 1 << 15 | 1 << 1;
/// VIRTIO_NET_F_GUEST_TSO4.
pub const TSO: u64 = 1 << 7;
/// VIRTIO_F_RING_PACKED.
pub const PACKED: u64 = 1 << 34;
/// VIRTIO_F_IN_ORDER.
pub const IN_ORDER: u64 = 1 << 35;

/// One case.
pub struct Case {
    pub name: &'static str,
    pub frames: Frames,
    /// Of the sender and the receivers, as in a contract file.
    pub contracts: &'static [&'static str],
    pub features: u64,
    pub links: Links,
    pub who: Who,
    pub flow: Flow,
    /// Frames that each sender has in one round.
    pub batch: u16,
}

/// What vNICs are connected by.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// All by rings in guests' memory.
    Guests,
    /// The sender by a tap.
    FromTap,
    /// The receivers by taps.
    ToTap,
    /// All by taps.
    Taps,
}

/// Who sends to whom, and whose they are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// The first to the others; one worker has them all.
    First,
    /// The first to the others, which another worker has.
    Crossing,
    /// So many ports: each sends to its neighbour and receives from it; one worker has them all.
    Pairs(u16),
}

/// How frames meet their receivers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// The receivers' buffers are there first.
    Ready,
    /// Frames come so many at a time, and are queued before there are buffers.
    Late(u16),
    /// The rate of the sender or of the egress lets so many frames pass per loop, half as many as are taken in; as many
    /// wait for it all the time.
    AtRate(u16, Rate),
}

/// Bits a second, of a limit that frames wait for.
pub type Rate = u64;
/// Fast: a ring full of frames of 64 bytes is sent within the target of their flows, and waits as it is.
const FAST: Rate = 10_000_000_000;
/// Slow: they wait by flow.
const SLOW: Rate = 50_000_000;
/// What waits for the receiver's rate waits in one queue.
const LIMITS: [&str; 2] = ["tx = { max = \"100gbit\" }", "queueing = \"fifo\"\nrx = { max = \"100gbit\" }"];
/// What waits for it waits by flow.
const FLOWS: [&str; 2] = [LIMITS[0], "rx = { max = \"100gbit\" }"];
/// A sender above its own rate: its frames wait by flow, and in one queue.
const ABOVE: [&str; 2] = ["tx = { max = \"50mbit\", burst = \"4kB\" }", LIMITS[1]];
const ABOVE_FIFO: [&str; 2] = ["queueing = \"fifo\"\ntx = { max = \"50mbit\", burst = \"4kB\" }", LIMITS[1]];
const TO_FOUR: [&str; 5] = [LIMITS[0], LIMITS[1], LIMITS[1], LIMITS[1], LIMITS[1]];
const DEADLINE: [&str; 2] = [
    "tx = { max = \"100gbit\", burst = \"64kB\" }\ndeadline = \"1ms\"\nto = [\"v1\"]",
    "rx = { max = \"200gbit\" }",
];
const PREFIXES: [&str; 2] = [
    "tx = { max = \"100gbit\" }\nallowed = { prefixes = [\"10.7.0.0/16\", \"10.0.0.0/24\"] }",
    "rx = { max = \"100gbit\" }",
];
const VLAN: [&str; 2] = [
    "tx = { max = \"100gbit\" }\nallowed = { vlans = [10] }",
    "rx = { max = \"100gbit\" }\nallowed = { vlans = [10] }",
];

const fn case(name: &'static str, frames: Frames) -> Case {
    let (links, who, flow) = (Links::Guests, Who::First, Flow::Ready);
    Case { name, frames, contracts: &LIMITS, features: USUAL, links, who, flow, batch: 256 }
}

/// Super-frames, to a receiver that takes them whole.
const fn super_case(name: &'static str) -> Case {
    Case { features: USUAL | TSO, batch: 8, ..case(name, Frames::Super) }
}

/// Frames that sockets hold: a tap's other end is read between two loops.
const fn tap_case(name: &'static str, links: Links) -> Case {
    Case { links, batch: 32, ..case(name, Frames::V4(64)) }
}

/// Frames above the rate of their sender.
const fn above(name: &'static str, contracts: &'static [&'static str]) -> Case {
    Case { flow: Flow::AtRate(16, SLOW), contracts, ..case(name, Frames::V4(64)) }
}

/// All cases.
pub const CASES: [Case; 43] = [
    // From ring to ring.
    Case { contracts: &["", ""], ..case("64B-open", Frames::V4(64)) },
    case("64B", Frames::V4(64)),
    Case { contracts: &DEADLINE, ..case("64B-deadline", Frames::V4(64)) },
    case("512B", Frames::V4(512)),
    case("1518B", Frames::V4(1514)),
    Case { features: USUAL | PACKED, ..case("64B-packed", Frames::V4(64)) },
    Case { features: USUAL | PACKED | IN_ORDER, ..case("64B-packed-in-order", Frames::V4(64)) },
    Case { features: USUAL | IN_ORDER, ..case("64B-in-order", Frames::V4(64)) },
    case("66B-ipv6", Frames::V6(66)),
    Case { contracts: &VLAN, ..case("68B-vlan", Frames::Tagged(68)) },
    Case { contracts: &PREFIXES, ..case("64B-prefixes", Frames::V4(64)) },
    Case { contracts: &PREFIXES, ..case("66B-link-local", Frames::LinkLocal(66)) },
    case("64B-checksum", Frames::Unfinished(64)),
    Case { contracts: &[LIMITS[0], LIMITS[1], LIMITS[1]], ..case("64B-two", Frames::ToTwo(64)) },
    // By a queue.
    Case { flow: Flow::Late(32), ..case("64B-queued", Frames::V4(64)) },
    Case { flow: Flow::Late(32), contracts: &FLOWS, ..case("64B-queued-by-flow", Frames::V4(64)) },
    Case { flow: Flow::Late(32), ..case("1518B-queued", Frames::V4(1514)) },
    // A turn is one frame.
    Case { flow: Flow::Late(32), contracts: &FLOWS, ..case("1518B-queued-by-8-flows", Frames::Flows(1514)) },
    Case { flow: Flow::Late(32), features: USUAL | PACKED, ..case("64B-queued-packed", Frames::V4(64)) },
    Case { flow: Flow::Late(32), contracts: &DEADLINE, ..case("64B-queued-deadline", Frames::V4(64)) },
    Case {
        flow: Flow::AtRate(16, FAST),
        contracts: &[LIMITS[0], "queueing = \"fifo\"\nrx = { max = \"10gbit\", burst = \"4kB\" }"],
        ..case("64B-at-rate", Frames::V4(64))
    },
    // In front of the sender's own rate.
    above("64B-tx-waiting", &ABOVE_FIFO),
    above("64B-tx-waiting-by-flow", &ABOVE),
    Case { links: Links::FromTap, batch: 32, ..above("64B-tx-waiting-by-flow-from-tap", &ABOVE) },
    super_case("64kB"),
    Case { flow: Flow::Late(1), ..super_case("64kB-queued") },
    Case { flow: Flow::Late(1), contracts: &FLOWS, ..super_case("64kB-queued-by-flow") },
    Case { features: USUAL, ..super_case("64kB-cut") },
    Case { flow: Flow::Late(1), features: USUAL, ..super_case("64kB-cut-queued") },
    // Fewer than the pool of copies holds.
    Case { contracts: &TO_FOUR, batch: 16, ..case("64B-broadcast-to-4", Frames::Broadcast(64)) },
    // To another worker's ports.
    Case { who: Who::Crossing, ..case("64B-crossing", Frames::V4(64)) },
    Case { who: Who::Crossing, ..case("1518B-crossing", Frames::V4(1514)) },
    Case { who: Who::Crossing, features: USUAL | PACKED, ..case("64B-crossing-packed", Frames::V4(64)) },
    Case { who: Who::Crossing, contracts: &DEADLINE, ..case("64B-crossing-deadline", Frames::V4(64)) },
    Case { who: Who::Crossing, ..super_case("64kB-crossing") },
    // By taps.
    tap_case("64B-from-tap", Links::FromTap),
    tap_case("64B-to-tap", Links::ToTap),
    tap_case("64B-tap-to-tap", Links::Taps),
    Case { links: Links::Taps, batch: 2, ..super_case("64kB-tap-to-tap") },
    // Many ports, with many frames each in a loop, and with one.
    Case { who: Who::Pairs(2), batch: 32, ..case("64B-ports-2", Frames::V4(64)) },
    Case { who: Who::Pairs(256), batch: 32, ..case("64B-ports-256", Frames::V4(64)) },
    Case { who: Who::Pairs(2), batch: 1, ..case("64B-ports-2-single", Frames::V4(64)) },
    Case { who: Who::Pairs(256), batch: 1, ..case("64B-ports-256-single", Frames::V4(64)) },
];
