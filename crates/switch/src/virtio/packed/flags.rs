//! Flags of packed descriptors, and how many fit into a cache line.

/// Descriptor flag: with the driver's wrap counter made available (virtio 1.2, 2.8.1).
pub(super) const DESC_AVAIL: u16 = 1 << 7;

/// Descriptor flag: with the device's wrap counter made used.
pub(super) const DESC_USED: u16 = 1 << 15;

/// Descriptors in a cache line.
pub(super) const PER_LINE: u16 = 4;
