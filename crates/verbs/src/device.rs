//! An open device: its first port, and the GIDs of that.

#[cfg(feature = "simulated")]
use crate::simulated;
use crate::{Error, real};
use std::net::IpAddr;
use std::sync::Arc;

/// An open device with a protection domain. One port, the first, is used.
#[derive(Debug)]
pub struct Device {
    pub(crate) inner: Inner,
}

#[derive(Debug)]
pub(crate) enum Inner {
    Real(real::Device),
    #[cfg(feature = "simulated")]
    Simulated(simulated::Device),
}

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
    pub(crate) fn of(inner: Inner) -> Arc<Self> {
        Arc::new(Self { inner })
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        match &self.inner {
            Inner::Real(device) => device.name(),
            #[cfg(feature = "simulated")]
            Inner::Simulated(device) => device.name(),
        }
    }

    /// Returns the state of the port.
    ///
    /// # Errors
    /// The device went away.
    pub fn port(&self) -> Result<Port, Error> {
        match &self.inner {
            Inner::Real(device) => device.port(),
            #[cfg(feature = "simulated")]
            Inner::Simulated(device) => device.port(),
        }
    }

    /// Returns the port's GIDs.
    ///
    /// # Errors
    /// The device went away.
    pub fn gids(&self) -> Result<Vec<Gid>, Error> {
        match &self.inner {
            Inner::Real(device) => device.gids(),
            #[cfg(feature = "simulated")]
            Inner::Simulated(device) => device.gids(),
        }
    }
}
