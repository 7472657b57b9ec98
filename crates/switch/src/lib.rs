//! The host switch: frames of virtual machines, carried under contract.
//!
//! ```text
//!  agent ──control──▶ server: table of ports      stats (shared memory) ──▶ agent, top
//!                          │ calls                   ▲
//!  VM A tx ring ─┐         ▼                         │
//!  VM B tx ring ─┼─ worker: ingress ─▶ sched ─▶ egress ──▶ VM C rx ring, tap
//!  tap ──────────┘   (frame, fdb)   (EDF, min, share)   (offloads, misses)
//! ```
//!
//! One payload copy, no payload buffer: a frame stays in its sender's memory,
//! as a reference, until it is copied straight into its receiver's. Best effort into taps is copied once more while
//! deadlines are in force, for [the thread that writes it](link::tap::writer).
//!
//! - [`frame`]: what the bytes of a frame say: headers, offloads, checksums; pure
//! - [`sched`]: in which order and when frames leave: token buckets, EDF, minima, shares; pure
//! - [`fdb`]: which port, or other host, a MAC lives behind
//! - [`claims`]: whose a link-local address is
//! - [`holder`]: which vNIC has an address that several may have
//! - [`virtio`]: guest memory and virtqueues
//! - [`vhost_user`]: the protocol that hands us guest memory and virtqueues
//! - [`link`]: how frames get in and out: a guest's rings, a tap
//! - [`port`]: where a vNIC is connected, with its contract
//! - [`worker`]: the threads that carry frames
//! - [`stats`]: counters and histograms in shared memory
//! - [`eventfd`]: telling drivers, without waiting
//! - `housekeeping`: threads that are no workers leave workers' CPUs
//! - `prefetch`: telling the processor what is needed soon
//! - [`quota`]: what front ends may take of what the process has
//! - [`control`]: what the agent asks of the switch
//! - [`confine`]: the rights the process gives up
//! - [`server`]: the process: workers, ports, the control socket

pub mod capacity;
pub mod capture;
pub mod claims;
pub mod clock;
pub mod confine;
pub mod control;
pub mod eventfd;
pub mod fdb;
pub mod frame;
pub mod holder;
pub mod link;
pub mod moved;
pub mod port;
mod prefetch;
pub mod quota;
pub mod sched;
pub mod server;
pub mod slots;
pub mod stats;
pub mod vhost_user;
pub mod virtio;
pub mod worker;

pub use server::{Error, Options, run};
