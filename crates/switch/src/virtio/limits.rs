//! Bounds on one chain of descriptors.

/// Most pieces one chain may have.
///
/// Linux sends at most 17 fragments plus header and linear part, DPDK's default is below that;
/// 64 leaves room for guests that split at 1 KiB.
pub const MAX_SPANS: usize = 64;

/// Most bytes one chain may have.
///
/// The largest frame is 64 KiB plus headers; receive buffers of a driver without mergeable
/// buffers are 19 pages, which is 1.2 MiB where pages are 64 KiB.
pub const MAX_CHAIN_BYTES: u32 = 2 << 20;

/// Most descriptors of one chain, empty ones included: half of them can hold as many buffers as are taken,
/// and a worker must not walk through thousands of empty ones.
pub(crate) const MAX_DESCRIPTORS: u16 = 2 * MAX_SPANS as u16;
