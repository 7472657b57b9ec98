//! Counters and histograms in shared memory.
//!
//! ```text
//!  worker ──plain stores──▶ memfd: Header │ WorkerSlot × 64 │ VnicSlot × 1024
//!                             │  mapped read-only
//!                             ▼
//!                 agent, top: Reader::snapshot ──▶ VnicStats, WorkerStats
//! ```
//!
//! One writer per value: a vNIC's slot is written by the worker that owns the
//! vNIC, so counting is a load, an add and a store, and a reader in another
//! process costs the worker nothing.
//!
//! - [`layout`]: what stands where in the shared memory
//! - [`shared_histogram`]: a [histogram](tidegate_evidence::histogram) that one writer fills
//! - [`thrown_out`]: why a front end was disconnected by us
//! - [`part`]: what a worker is busy with
//! - [`writer`]: the switch's side
//! - [`reader`]: everybody else's side

pub mod layout;
pub mod part;
pub mod reader;
pub mod shared_histogram;
pub mod thrown_out;
pub mod writer;

pub use part::LoopPart;
pub use reader::{LateWait, LongLoop, Reader};
pub use thrown_out::ThrownOut;
pub use writer::Region;
