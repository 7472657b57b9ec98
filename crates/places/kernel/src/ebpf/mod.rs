//! eBPF programs of the kernel place: each `NAME.bpf.c` beside `NAME.rs`, which loads it.
//!
//! ```text
//!  NAME.bpf.c ─ build.rs: clang ─▶ object file, in the program ─ load: constants, layout ─▶ kernel ─▶ filter, tracepoint
//!                                                                                             │
//!  NAME.rs ◀────────────────────────── counters, histograms ◀── maps ◀────────────────────────┘
//! ```
//!
//! Filters:
//! - [`classify`]: from a netdev to its class
//! - [`congestion`]: congestion marks (CE) where the kernel cannot queue by flow
//! - [`mark`]: priority marks in the IP header
//! - [`police`]: a token bucket that drops
//! - [`program`]: loading such a program for a filter
//! - `layout`: offsets in the running kernel's structures
//!
//! Tracepoints:
//! - [`wait`]: how long frames waited
//! - [`deadline`]: delays of real-time frames, and the ends of late ones

pub mod classify;
pub mod congestion;
pub mod deadline;
mod layout;
pub mod mark;
pub mod police;
pub mod program;
#[cfg(test)]
mod testing;
pub mod wait;

pub use classify::{Classes, Classifier, ClassifyError};
pub use congestion::{Marked, VirtualQueue};
pub use deadline::{DeadlineMeter, Delays, Loss, MissSeen, Part, Promise};
pub use mark::Marks;
pub use police::{Bucket, BucketError, Policed, Policer};
pub use program::ProgramError;
pub use wait::{ArrivalSource, Meter, MeterError, Queue, Waits};
