//! RDMA devices in memory, for tests: a fabric that behaves as hardware does.
//!
//! ```text
//!  Fabric ─▶ simulated::Device ─ crate::Device::simulated ─▶ what the code under test uses
//!    │ forge, lose,          │ pause, run, fail_next_send, break_queue_pair, unplug
//!    │ hold, release         │
//!    └─▶ Network (one lock) ◀┘
//! ```
//!
//! A datagram arrives before `post_send` returns, unless a device is paused or the fabric holds it: nothing depends on
//! time or on threads. What a receiver cannot take vanishes, and its sender is told nothing: [`Fate`] tells the test.
//! Where devices differ, the fabric is like the one that asks most of its user:
//!
//! - Requests keep their places until their completions are taken; sends that are not told, until a later one is.
//! - A completion that waits while its queue is armed is no event. A completion queue that is full breaks for good.
//! - Completions of a queue pair that is gone stay. All devices number their queue pairs alike.
//! - The first 20 bytes of an IPv4 datagram's GRH are garbage. Each address has a GID of RoCE v1 as well.
//! - Parts of another device, and bytes beyond a region, are refused, as by the real half. A region that is gone is not.
//! - A send that fails brings its queue pair into the error state; what is posted there is flushed.
//!
//! Regions over memory of others go by the mapping, where real ones have pinned its pages.
//!
//! - [`fabric`]: what connects devices, and orders to it
//! - [`device`]: a device, and orders to it
//! - `handles`: regions, addresses, completion queues, queue pairs
//! - `network`: the state of a fabric
//! - `queue`: a completion queue
//! - `pair`: a queue pair and its requests
//! - `memory`: the memory of a region
//! - [`datagram`]: a datagram and its GRH
//! - [`fate`]: what becomes of a datagram

pub mod datagram;
pub mod device;
pub mod fabric;
pub mod fate;
mod handles;
mod memory;
mod network;
mod pair;
mod queue;
#[cfg(test)]
mod tests;

pub use datagram::Datagram;
pub use device::Device;
pub(crate) use device::Library;
pub use fabric::Fabric;
pub use fate::{Fate, Fates};
pub(crate) use handles::{Address, CompletionQueue, Piece, QueuePair, Receiving, Region, Sending};
pub use network::Counters;
