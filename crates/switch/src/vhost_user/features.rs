//! The feature bits offered to front ends (virtio 1.2, 5.1.3 and 6; vhost-user,
//! "Protocol features").
//!
//! Not offered, and why:
//! - CTRL_VQ and its dependants: the front end runs the control queue itself.
//! - IN_ORDER, to vNICs with a deadline: a waiting best-effort frame would delay the buffers of real-time
//!   ones behind it. See docs/decisions/in-order.md. To vNICs with zero copy: a buffer that a device still reads would
//!   delay those behind it.
//! - PAGEFAULT: post-copy would stall the worker, and with it every other port.
//! - ACCESS_PLATFORM: there is no IOTLB; rings hold guest physical addresses.

use vhost::vhost_user::VhostUserProtocolFeatures;

/// The guest may leave checksums of its frames to the switch.
pub const NET_F_CSUM: u64 = 1 << 0;
/// The guest takes frames with unfinished checksums.
pub const NET_F_GUEST_CSUM: u64 = 1 << 1;
/// The guest takes TCP super-frames over IPv4.
pub const NET_F_GUEST_TSO4: u64 = 1 << 7;
/// The guest takes TCP super-frames over IPv6.
pub const NET_F_GUEST_TSO6: u64 = 1 << 8;
/// The guest takes TCP super-frames with ECN's CWR set.
pub const NET_F_GUEST_ECN: u64 = 1 << 9;
/// The guest may send TCP super-frames over IPv4.
pub const NET_F_HOST_TSO4: u64 = 1 << 11;
/// The guest may send TCP super-frames over IPv6.
pub const NET_F_HOST_TSO6: u64 = 1 << 12;
/// The guest may send TCP super-frames with ECN's CWR set.
pub const NET_F_HOST_ECN: u64 = 1 << 13;
/// A received frame may span several of the guest's buffers.
pub const NET_F_MRG_RXBUF: u64 = 1 << 15;
/// The guest announces itself on request, which comes through the front end's control queue; QEMU shows
/// this bit to its guest only if the back end offers it too, and takes it as "no RARP needed after a
/// migration".
pub const NET_F_GUEST_ANNOUNCE: u64 = 1 << 21;
/// More than one queue pair.
pub const NET_F_MQ: u64 = 1 << 22;
/// The guest takes UDP super-frames over IPv4.
pub const NET_F_GUEST_USO4: u64 = 1 << 54;
/// The guest takes UDP super-frames over IPv6.
pub const NET_F_GUEST_USO6: u64 = 1 << 55;
/// The guest may send UDP super-frames.
pub const NET_F_HOST_USO: u64 = 1 << 56;
/// vhost's own bit: written pages are noted in the dirty log. Set and cleared while rings run.
pub const VHOST_F_LOG_ALL: u64 = 1 << 26;
/// Legacy drivers: the header need not be in a descriptor of its own.
pub const F_ANY_LAYOUT: u64 = 1 << 27;
/// A descriptor may refer to a table of descriptors.
pub const F_INDIRECT_DESC: u64 = 1 << 28;
/// Notifications are requested by index.
pub const F_EVENT_IDX: u64 = 1 << 29;
/// Virtio 1.0 or later; the header is then always 12 bytes.
pub const F_VERSION_1: u64 = 1 << 32;
/// One descriptor ring for both sides, instead of a table and two rings.
pub const F_RING_PACKED: u64 = 1 << 34;
/// Chains are given back in the order they were made available.
pub const F_IN_ORDER: u64 = 1 << 35;
/// vhost-user's own bit: protocol features follow, and rings start disabled.
pub const VHOST_USER_F_PROTOCOL_FEATURES: u64 = 1 << 30;

const NAMES: [(u64, &str); 22] = [
    (NET_F_CSUM, "CSUM"),
    (NET_F_GUEST_CSUM, "GUEST_CSUM"),
    (NET_F_GUEST_TSO4, "GUEST_TSO4"),
    (NET_F_GUEST_TSO6, "GUEST_TSO6"),
    (NET_F_GUEST_ECN, "GUEST_ECN"),
    (NET_F_HOST_TSO4, "HOST_TSO4"),
    (NET_F_HOST_TSO6, "HOST_TSO6"),
    (NET_F_HOST_ECN, "HOST_ECN"),
    (NET_F_MRG_RXBUF, "MRG_RXBUF"),
    (NET_F_GUEST_ANNOUNCE, "GUEST_ANNOUNCE"),
    (NET_F_MQ, "MQ"),
    (NET_F_GUEST_USO4, "GUEST_USO4"),
    (NET_F_GUEST_USO6, "GUEST_USO6"),
    (NET_F_HOST_USO, "HOST_USO"),
    (VHOST_F_LOG_ALL, "LOG_ALL"),
    (F_ANY_LAYOUT, "ANY_LAYOUT"),
    (F_INDIRECT_DESC, "INDIRECT_DESC"),
    (F_EVENT_IDX, "EVENT_IDX"),
    (F_VERSION_1, "VERSION_1"),
    (F_RING_PACKED, "RING_PACKED"),
    (F_IN_ORDER, "IN_ORDER"),
    (VHOST_USER_F_PROTOCOL_FEATURES, "PROTOCOL_FEATURES"),
];

/// Returns the virtio features that a port with so many queue pairs accepts. It offers all of them but
/// IN_ORDER, which some contracts exclude; a front end that has negotiated it before keeps it.
pub fn offered(queue_pairs: u16) -> u64 {
    let all = NAMES.iter().fold(0, |bits, (bit, _)| bits | bit);
    if queue_pairs > 1 { all } else { all & !NET_F_MQ }
}

/// Returns the features offered at a port whose contract excludes IN_ORDER, or not.
pub fn offered_to(queue_pairs: u16, excludes_in_order: bool) -> u64 {
    offered(queue_pairs) & !if excludes_in_order { F_IN_ORDER } else { 0 }
}

/// Returns the protocol features of every port.
pub fn offered_protocol() -> VhostUserProtocolFeatures {
    VhostUserProtocolFeatures::MQ
        | VhostUserProtocolFeatures::LOG_SHMFD
        | VhostUserProtocolFeatures::RARP
        | VhostUserProtocolFeatures::REPLY_ACK
        | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
        | VhostUserProtocolFeatures::INFLIGHT_SHMFD
}

/// Whether a front end may have these protocol features.
///
/// # Errors
/// Names those that were not offered.
pub fn check_protocol(wanted: u64) -> Result<(), String> {
    match wanted & !offered_protocol().bits() {
        0 => Ok(()),
        excess => Err(format!("SET_PROTOCOL_FEATURES: {excess:#x} not offered")),
    }
}

/// Returns the names of the bits; `bit N` for a bit without one.
pub fn names(features: u64) -> Vec<String> {
    (0..u64::BITS)
        .filter(|n| features & (1 << n) != 0)
        .map(|n| {
            let known = NAMES.iter().find(|(bit, _)| *bit == 1 << n);
            known.map_or_else(|| format!("bit {n}"), |(_, name)| (*name).to_string())
        })
        .collect()
}

/// Length of the virtio_net_hdr in front of every frame (virtio 1.2, 5.1.6.1):
/// 12 bytes with VERSION_1 or MRG_RXBUF, else 10.
pub fn header_len(features: u64) -> usize {
    if features & (F_VERSION_1 | NET_F_MRG_RXBUF) != 0 { 12 } else { 10 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compared with the numbers of the standard, written out a second time.
    #[test]
    fn offers_the_bits_of_the_standard() {
        let expected = [0, 1, 7, 8, 9, 11, 12, 13, 15, 21, 22, 26, 27, 28, 29, 30, 32, 34, 35, 54, 55, 56];
        let bits = expected.iter().fold(0u64, |bits, n| bits | 1 << n);
        assert_eq!(offered(4), bits);
        assert_eq!(offered(1), bits & !(1 << 22));
        assert_eq!(offered_protocol().bits(), 0b1111 | 1 << 12 | 1 << 15);
    }

    #[test]
    fn header_is_ten_bytes_only_for_plain_legacy_drivers() {
        assert_eq!(header_len(0), 10);
        assert_eq!(header_len(NET_F_MRG_RXBUF), 12);
        assert_eq!(header_len(F_VERSION_1), 12);
    }

    #[test]
    fn names_bits() {
        assert_eq!(names(NET_F_CSUM | 1 << 17 | F_VERSION_1), ["CSUM", "bit 17", "VERSION_1"]);
    }
}
