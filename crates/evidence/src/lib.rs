//! What every place reports of a vNIC and of the workers that carry it. No I/O; the only system call reads the clock.
//!
//! ```text
//!  places/* ── observe ──▶ Traffic, Delay, Miss, Figure, ... ──▶ agent ──▶ API, metrics ──▶ tidegate why, top
//! ```
//!
//! - [`histogram`]: log-linear buckets, 3 % wide
//! - `reason`: why a frame was dropped or missed its deadline
//! - `traffic`, `delay`, `work`, `miss`: what was counted
//! - `vnic`, `worker`, `log`: the counters of a vNIC, of a worker, of a log
//! - `connection`, `shared`, `held_up`: how a vNIC is connected, and what its front end did
//! - `figure`: what a place does not count, and where each figure was read
//! - `time`: moments of CLOCK_MONOTONIC as times of day

mod connection;
mod delay;
mod figure;
mod held_up;
pub mod histogram;
mod log;
mod miss;
mod reason;
mod shared;
mod time;
mod traffic;
mod vnic;
mod work;
mod worker;

pub use connection::Connection;
pub use delay::Delay;
pub use figure::{Figure, Quantity, Unknown};
pub use held_up::{HeldUp, Quarantine};
pub use histogram::{Histogram, total};
pub use log::LogStats;
pub use miss::{Culprit, MISSES, Miss};
pub use reason::{CulpritKind, DropReason, MissCause};
pub use shared::SharedStatus;
pub use time::time_of_day;
pub use traffic::Traffic;
pub use vnic::VnicStats;
pub use work::Work;
pub use worker::WorkerStats;
