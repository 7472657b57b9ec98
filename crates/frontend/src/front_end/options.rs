//! Options of a guest.

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

/// Features, queues and memory of a guest.
#[derive(Clone, Debug)]
pub struct Options {
    /// Wanted virtio features, masked by those that the back end offers.
    pub features: u64,
    /// Wanted protocol features, likewise. With CONFIGURE_MEM_SLOTS memory is passed by region, as in QEMU,
    /// otherwise as one table. With INFLIGHT_SHMFD the back end's in-flight region is kept and passed after
    /// a reconnection.
    pub protocol_features: VhostUserProtocolFeatures,
    /// Queue pairs.
    pub queue_pairs: u16,
    /// Entries of each virtqueue: a power of two without RING_PACKED.
    pub queue_size: u16,
    /// Bytes of each buffer, header included: the longest frame to send, and without MRG_RXBUF to receive.
    pub buffer_size: u32,
    /// Bytes of guest memory; more if rings and buffers need it.
    pub memory_size: u64,
    /// Whether to pass the memory, instead of an empty table.
    pub share: bool,
    /// Whether to allocate all memory first.
    pub preallocate: bool,
    /// Whether to use pages of 2 MB, all allocated first, if enough are free.
    pub huge_pages: bool,
}

impl Default for Options {
    /// One queue pair of 256 entries, buffers for a full Ethernet frame, and a modern driver's features
    /// with split rings, without offloads.
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
