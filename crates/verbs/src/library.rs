//! libibverbs, loaded at run time.

use crate::{Device, Error};
use std::sync::Arc;

/// The loaded library.
#[derive(Debug)]
pub struct Library {}

impl Library {
    /// Loads libibverbs.so.1, and the drivers that it finds. It reads files and sysfs: call it before they are out of reach.
    ///
    /// # Errors
    /// [`Error::Library`].
    pub fn load() -> Result<Arc<Self>, Error> {
        todo!()
    }

    /// Returns the names of all devices.
    ///
    /// # Errors
    /// The library cannot list them.
    pub fn devices(self: &Arc<Self>) -> Result<Vec<String>, Error> {
        todo!()
    }

    /// Opens a device. Do so as the user that will use it: the kernel refuses sends on a device that another user opened.
    ///
    /// # Errors
    /// [`Error::NoDevice`], or the device cannot be opened.
    pub fn open(self: &Arc<Self>, name: &str) -> Result<Arc<Device>, Error> {
        let _ = name;
        todo!()
    }
}
