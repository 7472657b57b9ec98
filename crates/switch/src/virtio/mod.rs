//! Guest memory and virtqueues, as the device sees them.
//!
//! ```text
//!  SET_MEM_TABLE ─▶ memory: map, translate      SET_VRING_* ─▶ queue: split or packed
//!                        ▲                          │
//!                        └── walker: every address ─┤
//!                                                   ▼
//!   VM tx: available ─▶ pop_readable ─▶ Chain ─▶ header, payload spans
//!   VM rx: available ─▶ pop_writable ─▶ Chain ─▶ writer: header + payload, one copy
//!                                                   │
//!          interrupt? ◀─ publish ◀─ complete ◀──────┘
//!
//!   pop, complete ──stores──▶ inflight ──▶ after a kill, the next process's Queue
//! ```
//!
//! Both layouts count chains and have the same methods. They differ in where a chain is found and given
//! back (`split`, `packed`). Each holds one component that knows the taken chains, and when completed ones
//! may go back: in any order, or in that of the pops (`order`). One walker checks descriptors.
//!
//! A queue may be killed at any instruction: its in-flight chains are recorded in a region that outlives
//! the process ([`Inflight`]), and the next queue completes them or takes them up again.
//!
//! The guest is hostile until proven otherwise, and never proven otherwise:
//!
//! - Only [`memory`] makes pointers out of addresses, and only inside a mapped region.
//! - Ring contents are read once into a local copy, then checked, then used.
//! - Lost memory is replaced by zeros ([`sigbus`]).
//! - A lie of the driver is a [`RingError`] that names it; its port loses the connection, the process loses
//!   nothing.
//!
//! Payload may change at any time; code that decides on bytes copies them first.

pub mod backing;
mod error;
mod inflight;
mod layout;
mod limits;
pub mod log;
pub mod memory;
mod order;
mod packed;
mod queue;
pub mod sigbus;
mod span;
mod split;
mod walker;
mod writer;

#[cfg(test)]
mod tests;

pub use error::{RingError, RingPart};
pub use inflight::{Inflight, InflightError, MAX_ENTRIES, QueueInflight, QueueState};
pub use layout::{Features, RingLayout};
pub use log::{DirtyLog, LogArea};
pub use memory::GuestMemory;
pub use queue::Queue;
pub use span::{Chain, MAX_CHAIN_BYTES, MAX_SPANS, Single, Span};
pub use writer::SpanWriter;
