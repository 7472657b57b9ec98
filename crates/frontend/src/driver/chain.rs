//! Buffers of a chain, and the features that change what rings mean.

pub(super) const NEXT: u16 = 1;

pub(super) const WRITE: u16 = 2;

pub(super) const INDIRECT: u16 = 4;

/// Most buffers of a chain added through an indirect table.
pub const MAX_INDIRECT: usize = 128;

/// The negotiated features that change what the rings mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverFeatures {
    /// VIRTIO_F_RING_PACKED.
    pub packed: bool,
    /// VIRTIO_F_EVENT_IDX.
    pub event_idx: bool,
    /// VIRTIO_F_INDIRECT_DESC, for [`DriverQueue::add_indirect`].
    pub indirect: bool,
    /// VIRTIO_F_IN_ORDER: one used entry may stand for a batch, by its last chain.
    pub in_order: bool,
}

/// One buffer of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Guest physical address.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
    /// For the device to write, not to read.
    pub writable: bool,
}

impl Buffer {
    /// A buffer the device reads.
    pub fn readable(addr: u64, len: u32) -> Self {
        Self { addr, len, writable: false }
    }

    /// A buffer the device writes.
    pub fn writable(addr: u64, len: u32) -> Self {
        Self { addr, len, writable: true }
    }

    /// The flags of its descriptor.
    pub(super) fn flags(self, more: bool) -> u16 {
        (if self.writable { WRITE } else { 0 }) | if more { NEXT } else { 0 }
    }
}

/// A chain that came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// What [`DriverQueue::add`] returned for it.
    pub head: u16,
    /// Bytes the device says it wrote.
    pub len: u32,
}
