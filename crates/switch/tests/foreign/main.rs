//! Objects that front ends share: what they are, how long the kernel works on them, and what it takes to close
//! them. None of it is a neighbour's.
//!
//! ```text
//!  hostile ── counters with 300,000 waiters, memory with holes, sockets that linger ──▶ ┌────────┐
//!  a ══ a frame each millisecond ═════════════════════════════════════════════════════▶ │ switch │ ══▶ b
//!                                                           in time beside it, of those in time alone
//! ```
//!
//! - [`counters`]: of events
//! - [`memory`]: holes, disks, file systems of another process
//! - [`closing`]: what takes long to close: the port, its removal, an upgrade
//! - [`quotas`]: more than there is for one
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
