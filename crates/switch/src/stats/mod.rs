//! Counters and histograms in shared memory.
//!
//! ```text
//!  worker ──plain stores──▶ memfd: Header │ WorkerSlot × 64 │ VnicSlot × 1024
//!                             │  mapped read-only
//!                             ▼
//!                 agent, top: Reader::snapshot ──▶ VnicStats, WorkerStats
//! ```
//!
//! Each value has one writer: a vNIC's worker writes its slot. So counting is a load, an add and a store, and
//! readers in other processes cost the worker nothing.
//!
//! - [`arms`]: counters of an uplink's ports at other workers
//! - [`layout`]: the layout of the shared memory
//! - [`shared_histogram`]: a [histogram](tidegate_evidence::histogram) that one writer fills
//! - [`thrown_out`]: why the switch disconnected a front end
//! - [`part`]: the parts of a worker's loop
//! - [`misses`]: misses of deadlines, and loops in which late frames waited
//! - [`writer`]: the switch's side
//! - [`reader`]: all other programs' side

pub mod arms;
pub mod layout;
pub mod misses;
pub mod part;
pub mod reader;
pub mod shared_histogram;
pub mod thrown_out;
pub mod writer;

pub use misses::{LateWait, LongLoop};
pub use part::LoopPart;
pub use reader::Reader;
pub use thrown_out::ThrownOut;
pub use writer::Region;
