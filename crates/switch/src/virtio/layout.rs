//! Common to both layouts of a virtqueue before the first descriptor is read: negotiated features, places
//! of the parts, and when the other side wants a notification.

use super::{GuestMemory, RingError, RingPart};

/// The kind of a queue's rings, and whether its driver relies on order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::virtio) struct Kind {
    /// VIRTIO_F_RING_PACKED.
    pub packed: bool,
    /// VIRTIO_F_IN_ORDER.
    pub in_order: bool,
}

impl Kind {
    pub(super) fn bits(self) -> u32 {
        u32::from(self.packed) | u32::from(self.in_order) << 1
    }
}

/// The negotiated features that change what the rings mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// VIRTIO_F_RING_PACKED: one ring for both sides instead of three parts.
    pub packed: bool,
    /// VIRTIO_F_EVENT_IDX: notifications are asked for by index.
    pub event_idx: bool,
    /// VIRTIO_F_INDIRECT_DESC: chains may continue in a table of their own.
    pub indirect: bool,
    /// VIRTIO_F_IN_ORDER: chains are given back in the order they were made available.
    pub in_order: bool,
}

impl Features {
    pub(super) fn kind(self) -> Kind {
        Kind { packed: self.packed, in_order: self.in_order }
    }
}

/// Size of a virtqueue and addresses of its parts, in the front end's (user) addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingLayout {
    /// Entries: 1 to 32768; of a split ring a power of two.
    pub size: u16,
    /// Descriptor table or ring, aligned to 16 bytes.
    pub desc: u64,
    /// Available ring, aligned to 2 bytes; packed: driver event suppression, to 4.
    pub avail: u64,
    /// Used ring, aligned to 4 bytes; packed: device event suppression, to 4.
    pub used: u64,
}

/// Returns the address of a part in this process: wholly in one region, and aligned.
pub(super) fn locate(
    memory: &GuestMemory,
    part: RingPart,
    addr: u64,
    len: u64,
    align: u64,
) -> Result<*mut u8, RingError> {
    let ptr = memory.translate_user(addr, len).ok_or(RingError::PartUnmapped { part, addr, len })?;
    // A front end's page offsets need not be ours, so both addresses are checked.
    if !addr.is_multiple_of(align) || !ptr.addr().is_multiple_of(align as usize) {
        return Err(RingError::PartUnaligned { part, addr, align });
    }
    Ok(ptr)
}

/// Whether the step from index `old` to `new` crosses the other side's `event`
/// (virtio 1.2, 2.7.10: vring_need_event).
#[inline]
pub(super) fn need_event(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}
