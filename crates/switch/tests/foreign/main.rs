//! Objects that front ends share: their kind, the kernel's work on them, the time to close them. None
//! delays a neighbour.
//!
//! ```text
//!  hostile ── counters with 300,000 waiters, memory with holes, sockets that linger ──▶ ┌────────┐
//!  a ══ a frame each millisecond ═════════════════════════════════════════════════════▶ │ switch │ ══▶ b
//!                                                           in time beside it, of those in time alone
//! ```
//!
//! - [`counters`]: event counters
//! - [`memory`]: holes, disks, file systems of another process
//! - [`closing`]: descriptors that take long to close: the port, its removal, an upgrade
//! - [`quotas`]: front ends that exceed their share
//! - [`pulse`]: the neighbours
//! - [`fuse`]: a file system that does not answer

#[path = "../harness/mod.rs"]
mod harness;

mod closing;
mod counters;
mod fuse;
mod memory;
mod pulse;
mod quotas;
