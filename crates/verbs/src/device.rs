//! An open device: its first port, and the GIDs of that.

use crate::Error;
use std::net::IpAddr;

/// An open device with a protection domain. One port, the first, is used.
#[derive(Debug)]
pub struct Device {}

/// What a port's link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// RoCE.
    Ethernet,
    /// InfiniBand.
    InfiniBand,
    /// Another one.
    Other(u8),
}

/// The state of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// Whether it carries datagrams.
    pub is_active: bool,
    /// Most bytes of a datagram: 256 to 4096.
    pub mtu: u32,
    /// Its link.
    pub link: Link,
}

/// One GID of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Its index in the port's table.
    pub index: u8,
    /// Its address: an IPv4 address is mapped in the GID (RFC 4291, 2.5.5.2).
    pub address: IpAddr,
    /// Whether datagrams from it are RoCE v2.
    pub is_roce_v2: bool,
}

impl Device {
    /// Returns its name.
    pub fn name(&self) -> &str {
        todo!()
    }

    /// Returns the state of the port.
    ///
    /// # Errors
    /// The device went away.
    pub fn port(&self) -> Result<Port, Error> {
        todo!()
    }

    /// Returns the port's GIDs.
    ///
    /// # Errors
    /// The device went away.
    pub fn gids(&self) -> Result<Vec<Gid>, Error> {
        todo!()
    }
}
