//! An open device: its first port, and the GIDs of that.

#[cfg(feature = "simulated")]
use crate::simulated;
use crate::{Error, Gid, PIECES, Port, real};
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

impl Device {
    pub(crate) fn of(inner: Inner) -> Arc<Self> {
        Arc::new(Self { inner })
    }

    /// Returns a device of a fabric.
    #[cfg(feature = "simulated")]
    pub fn simulated(device: &simulated::Device) -> Arc<Self> {
        Self::of(Inner::Simulated(device.clone()))
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        match &self.inner {
            Inner::Real(device) => device.name(),
            #[cfg(feature = "simulated")]
            Inner::Simulated(device) => device.name(),
        }
    }

    /// Returns the most pieces of memory of one request, of both directions: at most [`PIECES`](crate::PIECES).
    pub fn pieces(&self) -> u32 {
        let most = match &self.inner {
            Inner::Real(device) => device.pieces(),
            #[cfg(feature = "simulated")]
            Inner::Simulated(device) => device.pieces(),
        };
        most.min(PIECES)
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
