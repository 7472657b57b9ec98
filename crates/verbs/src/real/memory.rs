//! The owner of a registration, and of what it is of.
//!
//! ```text
//!  new: Mapping ─┐
//!                ├─ owner ─▶ Memory ─ key ─▶ elements of requests
//!  over ─────────┘             └ dropped: first the registration ends, then the owner goes; else the owner stays for good
//! ```

use super::layout::{LOCAL_WRITE, MemoryRegion};
use super::objects::{Domain, Raw, made};
use crate::mapping::Mapping;
use crate::{Access, Error};
use std::any::Any;
use std::sync::Arc;

/// Registered memory.
#[derive(Debug)]
pub(super) struct Memory {
    raw: Raw<MemoryRegion>,
    /// Keeps it mapped. `None` when the library kept the registration.
    owner: Option<Arc<dyn Any + Send + Sync>>,
    access: Access,
    domain: Arc<Domain>,
}

impl Memory {
    pub(super) fn new(domain: &Arc<Domain>, bytes: usize) -> Result<Self, Error> {
        let mapping = Mapping::new(bytes).map_err(|error| Error::Call { call: "mmap", error })?;
        let all = (mapping.start(), mapping.len());
        // SAFETY: the mapping has these pages.
        unsafe { Self::over(domain, all, Arc::new(mapping), Access::Write) }
    }

    /// Registers bytes from an address.
    ///
    /// # Safety
    /// They stay mapped while `owner` lives.
    pub(super) unsafe fn over(
        domain: &Arc<Domain>,
        (start, len): (*mut u8, usize),
        owner: Arc<dyn Any + Send + Sync>,
        access: Access,
    ) -> Result<Self, Error> {
        // All memory may be read.
        let flags = if access == Access::Write { LOCAL_WRITE } else { 0 };
        // SAFETY: the domain is there, and the pages are until the registration ends: the owner is kept so long.
        let raw = unsafe { (domain.functions().reg_mr)(domain.raw(), start.cast(), len, flags) };
        let raw = made("ibv_reg_mr, of memory that counts against RLIMIT_MEMLOCK", raw)?;
        Ok(Self { raw, owner: Some(owner), access, domain: domain.clone() })
    }

    pub(super) fn start(&self) -> *mut u8 {
        // SAFETY: the object lives as long as its owner.
        unsafe { (*self.raw.as_ptr()).addr }.cast()
    }

    pub(super) fn len(&self) -> usize {
        // SAFETY: the object lives as long as its owner.
        unsafe { (*self.raw.as_ptr()).length }
    }

    /// Returns what the device may do with it.
    pub(super) fn access(&self) -> Access {
        self.access
    }

    pub(super) fn key(&self) -> u32 {
        // SAFETY: the object lives as long as its owner.
        unsafe { (*self.raw.as_ptr()).lkey }
    }

    pub(super) fn is_of(&self, domain: &Arc<Domain>) -> bool {
        Arc::ptr_eq(&self.domain, domain)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the owner alone uses the registration. Requests that name it fail.
        if unsafe { (self.domain.functions().dereg_mr)(self.raw.as_ptr()) } != 0 {
            // The device may still write there.
            std::mem::forget(self.owner.take());
        }
    }
}
