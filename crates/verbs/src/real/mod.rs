//! The types over libibverbs.
//!
//! ```text
//!  Library ─▶ functions: dlopen, names and versions         Device, Region, Address, CompletionQueue, QueuePair
//!                 │                                            │ what is asked, checked
//!                 ▼                                            ▼
//!             objects: one owner for each object of the library, each keeps alive what its object needs ─▶ libibverbs
//! ```
//!
//! After a device is open, most calls are ioctl, and for rxe's doorbell write, on the device's descriptor, mmap of it, and
//! read of the channels' descriptors.
//!
//! - `layout`: the library's structures and numbers
//! - `functions`: its functions
//! - `objects`: owners of its objects; all calls but those of memory
//! - `memory`: registered memory
//! - `device`: the library and a device
//! - `queues`: completion queues
//! - `batch`: requests, chained
//! - `pair`: queue pairs

mod batch;
mod device;
mod functions;
mod layout;
mod memory;
mod objects;
mod pair;
mod queues;

pub(crate) use device::{Address, Device, Library, Region};
pub(crate) use pair::{Datagram, Piece, Pieces, QueuePair};
pub(crate) use queues::CompletionQueue;
