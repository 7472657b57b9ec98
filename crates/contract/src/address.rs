//! Addresses a contract names: MAC, IP prefix, segment.

use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// An Ethernet address, written `52:54:00:00:00:01`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Mac(pub [u8; 6]);

/// An IP prefix, written `10.0.0.0/8` or `fd00::/64`; host bits are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Prefix {
    addr: IpAddr,
    len: u8,
}

/// A tenant network: VXLAN VNI (RFC 7348) and RDMA Q_Key. 0 to 2^24 - 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Segment(u32);

impl Mac {
    /// The group bit (IEEE 802): broadcast and multicast.
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 == 1
    }
}

impl Segment {
    /// Segment `id`; `None` above 2^24 - 1.
    pub const fn new(id: u32) -> Option<Self> {
        if id < 1 << 24 { Some(Self(id)) } else { None }
    }
    /// The number.
    pub const fn id(self) -> u32 {
        self.0
    }
}
