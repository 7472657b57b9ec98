//! Sizes of frames and super-frames, bytes without FCS, for the whole workspace.
//!
//! ```text
//!  │ Ethernet 14 │ tag 4 │ IP packet: MTU, or a super-frame of up to 65,535 (IPv6: 40 + 65,535) │
//! ```

/// Ethernet header: two addresses and a type (IEEE 802.3, 3.1.1).
pub const ETHERNET: u64 = 14;

/// A VLAN tag (IEEE 802.1Q, 9.6).
pub const VLAN_TAG: u64 = 4;

/// Ethernet header with one VLAN tag.
pub const TAGGED_ETHERNET: u64 = ETHERNET + VLAN_TAG;

/// Largest frame of an MTU of 1,500 bytes, without a tag.
pub const FRAME: u64 = ETHERNET + 1500;

/// `FRAME` with one VLAN tag.
pub const TAGGED_FRAME: u64 = TAGGED_ETHERNET + 1500;

/// Largest length in an IP header: an IPv4 packet (RFC 791, 3.1), or the payload of an IPv6 packet (RFC 8200, 3).
pub const LONGEST_IP: u64 = 65_535;

/// Largest super-frame of the admission arithmetic: an IPv4 packet in a tagged frame.
pub const SUPER_FRAME_IPV4: u64 = TAGGED_ETHERNET + LONGEST_IP;

/// Largest frame that the switch takes: an IPv6 packet in a tagged frame.
pub const FRAME_MAX: u64 = TAGGED_ETHERNET + 40 + LONGEST_IP;

/// Data of one super-frame (64 KiB): the least burst that lets a super-frame pass without a debt.
pub const SUPER_FRAME: u64 = 65_536;

/// Bytes on the wire of [`SUPER_FRAME`] bytes in frames of an MTU of 1,500 bytes, rounded up: 45 frames, each with
/// headers of 54 bytes.
pub const SUPER_FRAME_ON_WIRE: u64 = 68_000;

/// Smallest frame that a wire carries (IEEE 802.3, 4.2.3.3: 64 bytes with FCS).
pub const SMALLEST_FRAME: u64 = 60;

/// IPv4 header without options (RFC 791, 3.1).
pub const IPV4: u64 = 20;

/// IPv6 header (RFC 8200, 3).
pub const IPV6: u64 = 40;

/// UDP header (RFC 768).
pub const UDP: u64 = 8;

/// VXLAN header (RFC 7348, 5).
pub const VXLAN: u64 = 8;

/// Deadline stamp behind the payload of a real-time frame between hosts.
pub const STAMP: u64 = 32;
