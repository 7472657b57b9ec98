//! Registered memory: anonymous, of this process alone.

use crate::{Device, Error};
use std::sync::Arc;

/// Memory that the device reads and writes. The device may write to it at any time while a receive is posted.
#[derive(Debug)]
pub struct Region {}

impl Region {
    /// Maps `bytes` (rounded up to pages) and registers them. They count as locked memory (RLIMIT_MEMLOCK).
    ///
    /// # Errors
    /// No memory, or it may not be locked.
    pub fn new(device: &Arc<Device>, bytes: usize) -> Result<Arc<Self>, Error> {
        let _ = (device, bytes);
        todo!()
    }

    /// Returns its size (bytes).
    pub fn len(&self) -> usize {
        todo!()
    }

    /// Whether it has no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns where it begins. The owner of a buffer in it reads and writes that by this address.
    pub fn start(&self) -> *mut u8 {
        todo!()
    }

    /// Returns its local key.
    pub fn local_key(&self) -> u32 {
        todo!()
    }
}
