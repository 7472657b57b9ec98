//! The host switch: frames of virtual machines, carried under contract.
//!
//! ```text
//!  agent ──control──▶ ports, contracts            stats (shared memory) ──▶ agent, top
//!                          │                         ▲
//!  VM A tx ring ─┐         ▼                         │
//!  VM B tx ring ─┼─ worker: ingress ─▶ sched ─▶ egress ──▶ VM C rx ring, tap
//!  tap ──────────┘   (frame, fdb)   (EDF, min, share)   (offloads, misses)
//! ```
//!
//! - [`frame`]: what the bytes of a frame say: headers, offloads, checksums; pure
//! - [`sched`]: in which order and when frames leave: token buckets, EDF, minima, shares; pure
//! - [`virtio`]: guest memory and virtqueues
//! - [`vhost_user`]: the protocol that hands us guest memory and virtqueues
//! - [`stats`]: counters and histograms in shared memory
//! - [`control`]: what the agent asks of the switch

pub mod control;
pub mod frame;
pub mod sched;
pub mod stats;
pub mod vhost_user;
pub mod virtio;
