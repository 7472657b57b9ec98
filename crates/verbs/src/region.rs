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
    /// resident and stay so: they count as locked memory (RLIMIT_MEMLOCK), as often as they are registered, and this may take
    /// long. The device goes on with these very pages. A page that leaves the mapping (by a hole punched into its file, or as
    /// the file becomes shorter) stays the device's: it sends what that page had, and what arrives there is lost.
    ///
    /// # Safety
    /// The bytes from `start` stay mapped while `owner` lives.
    ///
    /// # Errors
    /// No byte, or bytes beyond the address space; pages that are not mapped, lie beyond the end of their file, or are not
    /// writable (for some kernels, 6.1 for one, also with [`Access::Read`]); too many to be locked.
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
            device::Inner::Real(device) => {
                // SAFETY: the caller's promise.
                let region = unsafe { real::Region::over(device, start, len, owner, access) };
                Inner::Real(region?)
            }
            #[cfg(feature = "simulated")]
            device::Inner::Simulated(device) => {
                // SAFETY: the caller's promise.
                let region = unsafe { simulated::Region::over(device, start, len, owner, access) };
                Inner::Simulated(region?)
            }
        };
        Ok(Self { inner })
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
