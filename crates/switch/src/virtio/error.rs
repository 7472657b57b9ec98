//! The ways a driver can lie about its rings.

use super::{MAX_CHAIN_BYTES, MAX_SPANS};
use std::fmt;

/// A part of a virtqueue: three of a split one (virtio 1.2, 2.7), three of a packed one (2.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingPart {
    /// Descriptor table or, packed, descriptor ring.
    Descriptors,
    /// Available (driver) ring.
    Available,
    /// Used (device) ring.
    Used,
    /// Driver event suppression structure: whether the driver wants interrupts.
    DriverEvents,
    /// Device event suppression structure: whether the device wants kicks.
    DeviceEvents,
}

impl fmt::Display for RingPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Descriptors => "descriptor table",
            Self::Available => "available ring",
            Self::Used => "used ring",
            Self::DriverEvents => "driver event structure",
            Self::DeviceEvents => "device event structure",
        })
    }
}

/// A fault of a virtqueue. All but [`TooManySpans`](Self::TooManySpans) are fatal: the driver broke virtio
/// 1.2, 2.7 or 2.8, and nothing it says afterwards can be relied on.
///
/// A chain is named by the place of its first descriptor in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// The size of a split ring is no power of two, zero or too large.
    #[error("a ring of {0} entries: the size must be a power of two from 1 to 32768")]
    Size(u16),
    /// The size of a packed ring is zero or too large.
    #[error("a packed ring of {0} entries: the size must be from 1 to 32768")]
    PackedSize(u16),
    /// A queue was started before any memory was shared.
    #[error("a ring was started before the guest's memory was shared")]
    NoMemory,
    /// A part is not (wholly) in one region of the memory table.
    #[error("the {part} at user address {addr:#x}, {len} bytes, is not in the guest's memory")]
    PartUnmapped {
        /// Which part.
        part: RingPart,
        /// Front end's address of its first byte.
        addr: u64,
        /// Its length in bytes.
        len: u64,
    },
    /// A part's address has the wrong alignment.
    #[error("the {part} at user address {addr:#x} is not aligned to {align} bytes")]
    PartUnaligned {
        /// Which part.
        part: RingPart,
        /// Front end's address of its first byte.
        addr: u64,
        /// Alignment it needs in bytes.
        align: u64,
    },
    /// The base to start from and the used index in the ring cannot both be true.
    #[error(
        "started at available index {base}, but the used index is {used}: more than {size} entries in flight"
    )]
    Base {
        /// First available index, as the front end set it.
        base: u16,
        /// Used index found in the ring.
        used: u16,
        /// Ring size.
        size: u16,
    },
    /// The base of a split ring is no index.
    #[error("started at {0:#x}, which is no available index of a split ring")]
    NoIndex(u32),
    /// The base of a packed ring names places that are not in it, or cannot both be true.
    #[error("started at {base:#x}, which are not two places at most {size} entries apart in a packed ring")]
    PackedBase {
        /// Available and used place, as the front end set them.
        base: u32,
        /// Ring size.
        size: u16,
    },
    /// The in-flight record of a predecessor does not match the ring.
    #[error("the last process's record of chains in flight does not fit the ring: {0}")]
    Inflight(&'static str),
    /// More entries are available than the driver can have.
    #[error("available index {avail} is more than {size} entries past the used index {used}")]
    AvailableIndex {
        /// Available index found in the ring.
        avail: u16,
        /// Used index last published.
        used: u16,
        /// Ring size.
        size: u16,
    },
    /// An available entry names a descriptor that does not exist.
    #[error("available entry {entry} names descriptor {head} of {size}")]
    Head {
        /// Available index of the entry.
        entry: u16,
        /// Descriptor it names.
        head: u16,
        /// Ring size.
        size: u16,
    },
    /// A descriptor that was available is no longer.
    #[error("chain {head}: the driver made its descriptor available and took it back")]
    TakenBack {
        /// First descriptor of the chain.
        head: u16,
    },
    /// A buffer id that no descriptor of the ring can need.
    #[error("chain {head}: buffer id {id} in a ring of {size}")]
    BufferId {
        /// First descriptor of the chain.
        head: u16,
        /// Its buffer id.
        id: u16,
        /// Ring size.
        size: u16,
    },
    /// A buffer id of another chain, which the device has not given back.
    #[error("chain {head}: buffer id {id} is in flight already")]
    BufferIdInFlight {
        /// First descriptor of the chain.
        head: u16,
        /// Its buffer id.
        id: u16,
    },
    /// `next` leads out of the table.
    #[error("chain {head}: next descriptor {next} of {entries}")]
    Next {
        /// First descriptor of the chain.
        head: u16,
        /// Where `next` leads.
        next: u16,
        /// Entries of the table it is in.
        entries: u32,
    },
    /// More descriptors than a chain may have: the ring's entries that are not in flight, and at
    /// most 128.
    #[error("chain {head}: a loop, or longer than {most} descriptors")]
    Loop {
        /// First descriptor of the chain.
        head: u16,
        /// Most it may have.
        most: u16,
    },
    /// A buffer for the device to write in a queue it only reads.
    #[error("chain {head}: a device-writable buffer in a transmit queue")]
    WritableInTransmit {
        /// First descriptor of the chain.
        head: u16,
    },
    /// A buffer for the device to read in a queue it only writes.
    #[error("chain {head}: a device-readable buffer in a receive queue")]
    ReadableInReceive {
        /// First descriptor of the chain.
        head: u16,
    },
    /// An indirect table without VIRTIO_F_INDIRECT_DESC.
    #[error("chain {head}: indirect descriptors were not negotiated")]
    IndirectNotNegotiated {
        /// First descriptor of the chain.
        head: u16,
    },
    /// INDIRECT and NEXT in one descriptor.
    #[error("chain {head}: a descriptor is both INDIRECT and NEXT")]
    IndirectNext {
        /// First descriptor of the chain.
        head: u16,
    },
    /// An indirect table inside an indirect table.
    #[error("chain {head}: an indirect table refers to another one")]
    IndirectNested {
        /// First descriptor of the chain.
        head: u16,
    },
    /// An indirect table of no or of broken entries.
    #[error("chain {head}: an indirect table of {len} bytes is not a positive multiple of 16")]
    IndirectLength {
        /// First descriptor of the chain.
        head: u16,
        /// Length of the table in bytes.
        len: u32,
    },
    /// A buffer or an indirect table outside the memory table.
    #[error("chain {head}: {len} bytes at guest address {addr:#x} are not in the guest's memory")]
    Unmapped {
        /// First descriptor of the chain.
        head: u16,
        /// Guest physical address.
        addr: u64,
        /// Length in bytes.
        len: u32,
    },
    /// More than [`MAX_CHAIN_BYTES`].
    #[error("chain {head}: more than {MAX_CHAIN_BYTES} bytes")]
    TooManyBytes {
        /// First descriptor of the chain.
        head: u16,
    },
    /// More than [`MAX_SPANS`] pieces. The chain was popped: complete it with length 0, count
    /// it, go on.
    #[error("chain {head}: more than {MAX_SPANS} buffers")]
    TooManySpans {
        /// First descriptor of the chain.
        head: u16,
    },
}

impl RingError {
    /// Whether the queue must be stopped. If not, only this chain is unusable: it was popped
    /// and is to be completed with length 0.
    pub fn is_fatal(&self) -> bool {
        !matches!(self, Self::TooManySpans { .. })
    }
}
