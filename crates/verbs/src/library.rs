//! libibverbs, loaded at run time.

#[cfg(feature = "simulated")]
use crate::simulated;
use crate::{Device, Error, real};
use std::sync::Arc;

/// The loaded library.
#[derive(Debug)]
pub struct Library {
    inner: Inner,
}

#[derive(Debug)]
pub(crate) enum Inner {
    Real(real::Library),
    #[cfg(feature = "simulated")]
    Simulated(simulated::Library),
}

impl Library {
    /// Loads libibverbs.so.1, and the drivers of the devices that are there: of a device that comes later, none may be.
    /// Both read files, so it has to be done before they are out of reach.
    ///
    /// # Errors
    /// [`Error::Library`].
    pub fn load() -> Result<Arc<Self>, Error> {
        Ok(Self::of(Inner::Real(real::Library::load()?)))
    }

    /// Returns a library that has these devices of a fabric.
    #[cfg(feature = "simulated")]
    pub fn simulated(devices: &[simulated::Device]) -> Arc<Self> {
        Self::of(Inner::Simulated(simulated::Library::new(devices.to_vec())))
    }

    pub(crate) fn of(inner: Inner) -> Arc<Self> {
        Arc::new(Self { inner })
    }

    /// Returns the names of all devices.
    ///
    /// # Errors
    /// The library cannot list them.
    pub fn devices(self: &Arc<Self>) -> Result<Vec<String>, Error> {
        match &self.inner {
            Inner::Real(library) => library.devices(),
            #[cfg(feature = "simulated")]
            Inner::Simulated(library) => library.devices(),
        }
    }

    /// Opens a device. Do so as the user that will use it: the kernel refuses sends on a device that another user opened.
    ///
    /// # Errors
    /// [`Error::NoDevice`], or the device cannot be opened.
    pub fn open(self: &Arc<Self>, name: &str) -> Result<Arc<Device>, Error> {
        use crate::device;
        Ok(Device::of(match &self.inner {
            Inner::Real(library) => device::Inner::Real(library.open(name)?),
            #[cfg(feature = "simulated")]
            Inner::Simulated(library) => device::Inner::Simulated(library.open(name)?),
        }))
    }
}
