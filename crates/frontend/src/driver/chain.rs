//! Chains' buffers, and the features that change the rings' meaning.

pub(super) const NEXT: u16 = 1;

pub(super) const WRITE: u16 = 2;

pub(super) const INDIRECT: u16 = 4;

/// Most buffers of a chain in an indirect table.
pub const MAX_INDIRECT: usize = 128;

/// Negotiated features that change the rings' meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverFeatures {
    /// VIRTIO_F_RING_PACKED.
    pub packed: bool,
    /// VIRTIO_F_EVENT_IDX.
    pub event_idx: bool,
    /// VIRTIO_F_INDIRECT_DESC, for [`DriverQueue::add_indirect`].
    pub indirect: bool,
    /// VIRTIO_F_IN_ORDER: a used entry may stand for a batch, by its last chain.
    pub in_order: bool,
}

/// One buffer of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Guest physical address.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
    /// Whether the device writes, not reads.
    pub writable: bool,
}

impl Buffer {
    /// Makes a buffer that the device reads.
    pub fn readable(addr: u64, len: u32) -> Self {
        Self { addr, len, writable: false }
    }

    /// Makes a buffer that the device writes.
    pub fn writable(addr: u64, len: u32) -> Self {
        Self { addr, len, writable: true }
    }

    pub(super) fn flags(self, more: bool) -> u16 {
        (if self.writable { WRITE } else { 0 }) | if more { NEXT } else { 0 }
    }
}

/// A completed chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// The chain's head, from [`DriverQueue::add`].
    pub head: u16,
    /// Bytes written, as the device reports.
    pub len: u32,
}
