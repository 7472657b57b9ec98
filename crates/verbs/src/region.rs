//! Registered memory: anonymous, of this process alone.

#[cfg(feature = "simulated")]
use crate::simulated;
use crate::{Device, Error, device, real};
use std::sync::Arc;

/// Memory that the device reads and writes. The device may write to it at any time while a receive is posted.
#[derive(Debug)]
pub struct Region {
    pub(crate) inner: Inner,
}

#[derive(Debug)]
pub(crate) enum Inner {
    Real(real::Region),
    #[cfg(feature = "simulated")]
    Simulated(simulated::Region),
}

impl Region {
    /// Maps `bytes` (rounded up to pages) and registers them. They count as locked memory (RLIMIT_MEMLOCK).
    ///
    /// # Errors
    /// No memory, or it may not be locked.
    pub fn new(device: &Arc<Device>, bytes: usize) -> Result<Arc<Self>, Error> {
        let inner = match &device.inner {
            device::Inner::Real(device) => Inner::Real(real::Region::new(device, bytes)?),
            #[cfg(feature = "simulated")]
            device::Inner::Simulated(device) => Inner::Simulated(simulated::Region::new(device, bytes)?),
        };
        Ok(Arc::new(Self { inner }))
    }

    /// Returns its size (bytes).
    pub fn len(&self) -> usize {
        match &self.inner {
            Inner::Real(region) => region.len(),
            #[cfg(feature = "simulated")]
            Inner::Simulated(region) => region.len(),
        }
    }

    /// Whether it has no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns where it begins. The owner of a buffer in it reads and writes that by this address.
    pub fn start(&self) -> *mut u8 {
        match &self.inner {
            Inner::Real(region) => region.start(),
            #[cfg(feature = "simulated")]
            Inner::Simulated(region) => region.start(),
        }
    }

    /// Returns its local key.
    pub fn local_key(&self) -> u32 {
        match &self.inner {
            Inner::Real(region) => region.local_key(),
            #[cfg(feature = "simulated")]
            Inner::Simulated(region) => region.local_key(),
        }
    }
}
