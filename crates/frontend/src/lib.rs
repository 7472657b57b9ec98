//! A guest without a virtual machine, for tests and benchmarks: a vhost-user front end with memory and the
//! driver's side of virtqueues.
//!
//! ```text
//!  test ── frames ──▶ FrontEnd ── driver ── descriptors, frames ──▶ SharedMemory ◀──▶ switch
//!       ◀─ frames ──    │                                                              ▲
//!                       └── vhost-user: memory, vrings, kick and call descriptors ─────┘
//!  attack ── malformed messages, shrunk memory, blocked descriptors ───────────────────┘
//! ```
//!
//! - [`front_end`]: the connection, and frames in both directions
//! - [`driver`]: split and packed virtqueues
//! - [`memory`]: the guest's memory, shared with the back end
//! - [`attack`]: hostile front ends
//! - `queue`: a virtqueue with its descriptors

pub mod attack;
pub mod driver;
pub mod front_end;
pub mod memory;
mod queue;
