//! A virtqueue with a buffer per entry.

use crate::driver::{Buffer, DriverFeatures, DriverQueue};
use crate::memory::SharedMemory;
use std::io;
use std::sync::Arc;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

pub struct Queue {
    pub ring: DriverQueue,
    /// Guest address of buffer 0.
    buffers: u64,
    buffer_size: u32,
    pub free: Vec<u16>,
    /// Buffer of the chain with each head.
    pub buffer_of: Vec<u16>,
    /// Written by the driver.
    pub kick: EventFd,
    /// Written by the device.
    pub call: EventFd,
}

impl Queue {
    pub fn new(
        memory: &Arc<SharedMemory>,
        size: u16,
        features: DriverFeatures,
        buffer_size: u32,
    ) -> io::Result<Self> {
        let mut ring = DriverQueue::new(memory, size, features);
        ring.disable_interrupts();
        Ok(Self {
            ring,
            buffers: memory.alloc(u64::from(size) * u64::from(buffer_size), 64),
            buffer_size,
            free: (0..size).rev().collect(),
            buffer_of: vec![0; usize::from(size)],
            kick: EventFd::new(EFD_NONBLOCK)?,
            call: EventFd::new(EFD_NONBLOCK)?,
        })
    }

    #[inline]
    pub fn addr(&self, buffer: u16) -> u64 {
        self.buffers + u64::from(buffer) * u64::from(self.buffer_size)
    }

    /// Takes a free buffer. Looks for completed ones only if none is free.
    #[inline]
    pub fn take_buffer(&mut self) -> Option<u16> {
        if self.free.is_empty() {
            self.reap_all();
        }
        self.free.pop()
    }

    pub fn reap_all(&mut self) {
        while let Some(used) = self.ring.reap() {
            self.free.push(self.buffer_of[usize::from(used.head)]);
        }
    }

    /// Adds a chain for `buffer`. Returns `false` without free descriptors, which raw chains may use up.
    #[inline]
    pub fn add(&mut self, buffer: u16, chain: &[Buffer]) -> bool {
        match self.ring.add(chain) {
            Some(head) => {
                self.buffer_of[usize::from(head)] = buffer;
                true
            }
            None => {
                self.free.push(buffer);
                false
            }
        }
    }

    /// Gives the device a free buffer to write. Returns `false` if there is none.
    pub fn give_buffer(&mut self) -> bool {
        let Some(buffer) = self.free.pop() else {
            return false;
        };
        let chain = [Buffer::writable(self.addr(buffer), self.buffer_size)];
        self.add(buffer, &chain)
    }

    /// Publishes added buffers, and kicks the device if it asked for kicks.
    #[inline]
    pub fn show(&mut self) {
        if self.ring.publish() {
            // A full counter is signalled already.
            let _ = self.kick.write(1);
        }
    }
}
