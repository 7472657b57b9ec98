//! What kind of guest to be: its features, queues and memory.

use vhost::vhost_user::VhostUserProtocolFeatures;

/// VIRTIO_NET_F_MRG_RXBUF.
pub const MRG_RXBUF: u64 = 1 << 15;
/// VIRTIO_NET_F_MQ.
pub const MQ: u64 = 1 << 22;
/// VIRTIO_F_INDIRECT_DESC.
pub const INDIRECT_DESC: u64 = 1 << 28;
/// VIRTIO_F_EVENT_IDX.
pub const EVENT_IDX: u64 = 1 << 29;
/// VHOST_USER_F_PROTOCOL_FEATURES.
pub const PROTOCOL_FEATURES: u64 = 1 << 30;
/// VIRTIO_F_VERSION_1.
pub const VERSION_1: u64 = 1 << 32;
/// VIRTIO_F_IN_ORDER.
pub const IN_ORDER: u64 = 1 << 35;
/// VIRTIO_F_RING_PACKED.
pub const RING_PACKED: u64 = 1 << 34;

/// What kind of guest to be.
#[derive(Clone, Debug)]
pub struct Options {
    /// Wanted virtio features; negotiated is what the back end offers of them.
    pub features: u64,
    /// Wanted protocol features, likewise. With CONFIGURE_MEM_SLOTS memory goes
    /// region by region, as QEMU does it, else as one table. With INFLIGHT_SHMFD the back end's
    /// account of what is in flight is kept, and given back when the guest reconnects.
    pub protocol_features: VhostUserProtocolFeatures,
    /// Queue pairs to set up.
    pub queue_pairs: u16,
    /// Entries of each virtqueue; a power of two unless RING_PACKED is negotiated.
    pub queue_size: u16,
    /// Bytes of each buffer, header included: the longest frame that can be
    /// sent, and received unless MRG_RXBUF is negotiated.
    pub buffer_size: u32,
    /// Bytes of guest memory; more if rings and buffers need more.
    pub memory_size: u64,
    /// Whether to pass the memory on. A guest that does not sends an empty table.
    pub share: bool,
    /// Whether the memory is all there from the start.
    pub preallocate: bool,
    /// Whether the memory is in pages of 2 MB, where enough are free; then it is all there.
    pub huge_pages: bool,
}

impl Default for Options {
    /// One queue pair of 256 entries, buffers for a full Ethernet frame, and
    /// the features of a modern driver with split rings and without offloads.
    fn default() -> Self {
        Self {
            features: VERSION_1 | MRG_RXBUF | EVENT_IDX | INDIRECT_DESC | MQ | PROTOCOL_FEATURES,
            protocol_features: VhostUserProtocolFeatures::MQ | VhostUserProtocolFeatures::REPLY_ACK,
            queue_pairs: 1,
            queue_size: 256,
            buffer_size: 2048,
            memory_size: 0,
            share: true,
            preallocate: true,
            huge_pages: false,
        }
    }
}
