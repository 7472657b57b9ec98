//! Reads and changes the bytes of an Ethernet frame. Pure: no I/O, no clock, no allocation per frame, and no
//! panic on any input, because a guest wrote it.
//!
//! ```text
//!            ┌ vnet_hdr ─────────────┐
//!  guest ──▶ │ head: first ≤ 192 B,  │──▶ parse ──▶ policy    may it send this?
//!            │ copied once           │      │   └──▶ offload   what is asked of us? wire_bytes
//!            └───────────────────────┘      ▼                        │
//!            ┌ payload ──────────────┐    dscp                       ▼
//!            │ Spans: still guest's, │──────────────────▶ segment, finish ──▶ head' + part of payload
//!            │ may change any time   │                   (checksum)          for one receiver
//!            └───────────────────────┘
//! ```
//!
//! Decisions use the copied head, and the copied head is delivered. Guest memory supplies only payload.
//!
//! - [`vnet_hdr`]: the virtio header in front of every frame
//! - [`headers`]: Ethernet, VLAN, IP, ARP, TCP and UDP: places and content
//! - [`mod@parse`]: reads them from the bytes
//! - [`plain`]: recognises the most frequent frames in few instructions
//! - `extension`: IPv6 extension headers by number
//! - [`offload`]: checks a guest's offload requests; the number of bytes on a wire
//! - [`payload`]: guest memory as a scatter list that is never a slice
//! - [`checksum`]: the Internet checksum
//! - [`finish`]: the checksum that a receiver will not compute
//! - [`mod@flow`]: which frames keep their order
//! - [`segment`]: cuts super-frames to frames, or to smaller super-frames
//! - [`join`]: joins frames to super-frames
//! - [`dscp`]: priority marks; [`mod@ecn`]: congestion marks
//! - [`neighbour`]: requests for a MAC, and replies
//! - [`policy`]: whether a vNIC may send a frame: anti-spoofing; link, router and DHCP server frames

pub mod checksum;
pub mod dscp;
pub mod ecn;
mod extension;
pub mod finish;
pub mod flow;
pub mod headers;
pub mod join;
pub mod neighbour;
pub mod offload;
pub mod parse;
pub mod payload;
pub mod plain;
pub mod policy;
pub mod segment;
pub mod vnet_hdr;

#[cfg(test)]
pub(crate) mod testing;

pub use dscp::{clear_realtime_marks, set_dscp};
pub use ecn::{ecn, ect, set_ce, set_ecn};
pub use finish::{finish_checksum, is_intact};
pub use flow::{FlowKey, HostEnd, flow, flow_of};
pub use headers::{FRAME_MAX, HEADER_MAX, Headers, L3, L4};
pub use join::Joined;
pub use offload::{Malformed, Offload, receiver_hdr, segments, wire_bytes};
pub use parse::{ParseError, parse};
pub use payload::{Payload, Span};
pub use policy::link_local::LinkLocals;
pub use policy::{Policy, Reason, Verdict};
pub use segment::{SegmentPart, Segmenter};
pub use vnet_hdr::VnetHdr;
