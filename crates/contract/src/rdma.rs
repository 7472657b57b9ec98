//! Frames as datagrams of RDMA: what fits into one. Pure.
//!
//! ```text
//!  │ header │ Ethernet, VLAN tag │ packet │ stamp │   at most the MTU of the device's port
//!     32          14, 4            mtu      32
//! ```

use crate::frame::{ETHERNET, STAMP, VLAN_TAG, VXLAN};
use crate::{Transport, Uplink, Vnic};

/// Bytes before the frame in each datagram.
pub const HEADER: u64 = 32;
/// Largest MTU of a port (bytes): IBV_MTU_4096.
pub const LARGEST_MTU: u16 = 4096;

/// Bytes of outer headers beyond VXLAN's: BTH 12 and DETH 8 (InfiniBand specification 1.4, 9.2 and 9.5), [`HEADER`], ICRC 4;
/// VXLAN has its own in their place.
pub const BEYOND_VXLAN: u64 = 12 + 8 + HEADER + 4 - VXLAN;
/// Most bytes that pad a frame: the payload of RoCE is a multiple of 4.
pub const PADDING: u64 = 3;

/// Longest name of a device (bytes): the kernel's, without the NUL (IB_DEVICE_NAME_MAX).
pub const LONGEST_NAME: usize = 63;

/// Whether a device may have this name: letters, digits, '.', '_' and '-', none of '.' and '-' first.
pub fn is_device_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    (1..=LONGEST_NAME).contains(&name.len()) && name.bytes().all(is_plain) && !name.starts_with(['.', '-'])
}

/// Returns the bytes of a datagram besides the vNIC's IP packet.
pub fn around_packet(vnic: &Vnic) -> u64 {
    let tag = if vnic.allowed.vlans.is_empty() { 0 } else { VLAN_TAG };
    let stamp = if vnic.is_realtime() { STAMP } else { 0 };
    HEADER + ETHERNET + tag + stamp
}

/// Returns the most bytes that a vNIC's frame grows by on the wire of an uplink, beyond VXLAN's: 51, or 0 without RDMA.
pub fn grows_by(vnic: &Vnic, uplink: &Uplink) -> u64 {
    if vnic.transport == Transport::Rdma { frames_grow_by(uplink) } else { 0 }
}

/// Returns the same for any frame of an uplink.
pub fn frames_grow_by(uplink: &Uplink) -> u64 {
    if uplink.rdma.is_some() { BEYOND_VXLAN + PADDING } else { 0 }
}

/// Returns the largest `mtu` that a vNIC may have, by a port whose MTU is `port` bytes.
pub fn guest_mtu(vnic: &Vnic, port: u32) -> u16 {
    u64::from(port).saturating_sub(around_packet(vnic)).try_into().unwrap_or(u16::MAX)
}

/// Returns the longest packet of a vNIC (bytes of IP) that goes to a member that takes `longest` bytes behind the header.
pub fn longest_packet(vnic: &Vnic, longest: u32) -> u16 {
    guest_mtu(vnic, longest.saturating_add(HEADER as u32))
}

/// Returns why the frames of a vNIC do not fit into datagrams of a port whose MTU is `port` bytes, and what would;
/// `None` if they do.
pub fn why_too_long(vnic: &Vnic, port: u32) -> Option<String> {
    let fits = guest_mtu(vnic, port);
    (vnic.mtu > fits).then(|| {
        format!(
            "mtu = {} does not fit: a datagram of the RDMA device has at most {port} bytes, {} of them around the guest's packet; \
             write mtu = {fits} here and set it in the guest",
            vnic.mtu,
            around_packet(vnic)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn names_are_those_of_the_kernel() {
        for good in ["rxe0", "mlx5_0", "rocep1s0f0", "a", "a.b-c", &"x".repeat(LONGEST_NAME)] {
            assert!(is_device_name(good), "{good}");
        }
        for bad in ["", "-", "-x", "..", "../x", "a/b", "a b", "ä", "a\n", &"x".repeat(LONGEST_NAME + 1)] {
            assert!(!is_device_name(bad), "{bad:?}");
        }
    }

    #[test]
    fn what_fits_into_a_datagram() {
        let mut vnic = testing::vnic("a");
        assert_eq!((guest_mtu(&vnic, 1024), guest_mtu(&vnic, 4096), guest_mtu(&vnic, 40)), (978, 4050, 0));
        vnic.mtu = 978;
        assert_eq!(why_too_long(&vnic, 1024), None);
        vnic.allowed.vlans = vec![7];
        let why = why_too_long(&vnic, 1024).expect("4 bytes too many");
        assert!(why.contains("1024 bytes, 50 of them") && why.contains("write mtu = 974"), "{why}");
    }
}
