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
//! - [`histogram`]: log-linear buckets, 3 % wide
//! - [`reason`]: why a frame was dropped or missed its deadline
//! - [`part`]: what a worker is busy with
//! - [`writer`]: the switch's side
//! - [`reader`]: everybody else's side

pub mod histogram;
pub mod layout;
pub mod part;
pub mod reader;
pub mod reason;
pub mod writer;

pub use histogram::{Histogram, total};
pub use part::LoopPart;
pub use reader::{
    Culprit, Delay, LateWait, LogStats, LongLoop, Miss, Reader, Traffic, VnicStats, Work, WorkerStats,
    time_of_day,
};
pub use reason::{CulpritKind, DropReason, MissCause, ThrownOut};
pub use writer::Region;
