//! Registered memory: anonymous and of this process alone, or mapped by others.
//!
//! ```text
//!  new ── maps pages ──▶ Region ─ key ─▶ requests: Piece
//!  over ─ owner ───────▶   └ dropped: first the registration ends, then the memory goes, or its owner
//! ```

#[cfg(feature = "simulated")]
use crate::simulated;
use crate::{Access, Device, Error, device, real};
use std::any::Any;
use std::sync::Arc;

/// Memory that the device reads and, with [`Access::Write`], writes: at any time while a receive is posted.
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

    /// Registers memory that others mapped, and keeps its `owner` until the registration has ended. All its pages become
    /// resident and stay so: they count as locked memory (RLIMIT_MEMLOCK), and this may take long. The device goes on with
    /// these very pages: whoever takes one out of the mapping (a hole punched into its file) parts the device from it.
    ///
    /// # Safety
    /// The bytes from `start` stay mapped while `owner` lives.
    ///
    /// # Errors
    /// No byte, or bytes beyond the address space; pages that are not mapped, or not writable; too many to be locked.
    pub unsafe fn over(
        device: &Arc<Device>,
        start: *mut u8,
        len: usize,
        owner: Arc<dyn Any + Send + Sync>,
        access: Access,
    ) -> Result<Self, Error> {
        if start.is_null() || len == 0 || start.addr().checked_add(len).is_none() {
            return Err(Error::invalid("ibv_reg_mr: memory without bytes, or beyond the address space"));
        }
        let inner = match &device.inner {
            // SAFETY: the caller's promise.
            device::Inner::Real(device) => {
                Inner::Real(unsafe { real::Region::over(device, start, len, owner, access) }?)
            }
            #[cfg(feature = "simulated")]
            // SAFETY: the caller's promise.
            device::Inner::Simulated(device) => {
                Inner::Simulated(unsafe { simulated::Region::over(device, start, len, owner, access) }?)
            }
        };
        Ok(Self { inner })
    }

    /// Returns the region of a real device.
    pub(crate) fn real(&self) -> Option<&real::Region> {
        match &self.inner {
            Inner::Real(region) => Some(region),
            #[cfg(feature = "simulated")]
            Inner::Simulated(_) => None,
        }
    }

    /// Returns the region of a simulated device.
    #[cfg(feature = "simulated")]
    pub(crate) fn simulated(&self) -> Option<&simulated::Region> {
        match &self.inner {
            Inner::Real(_) => None,
            Inner::Simulated(region) => Some(region),
        }
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
