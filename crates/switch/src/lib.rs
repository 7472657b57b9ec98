//! The host switch: frames of virtual machines, carried under contract.
//!
//! ```text
//!  agent ──control──▶ server: table of ports      stats (shared memory) ──▶ agent, top
//!                          │ calls                   ▲
//!  VM A tx ring ─┐         ▼                         │
//!  VM B tx ring ─┼─ worker: ingress ─▶ sched ─▶ egress ──▶ VM C rx ring, tap, other hosts
//!  tap, hosts ───┘   (frame, fdb)   (EDF, min, share)   (offloads, misses)
//! ```
//!
//! A frame stays in its sender's memory, as a reference, until the worker copies it straight into its
//! receiver's: one payload copy, no payload buffer. While deadlines are in force, best effort into taps is
//! copied once more, for [the thread that writes it](link::tap::writer).
//!
//! - [`frame`]: headers, offloads and checksums of a frame; pure
//! - [`sched`]: in which order and when frames leave: token buckets, EDF, minima, shares; pure
//! - [`fdb`]: which port, or other host, has a MAC
//! - [`claims`]: which port owns a link-local address
//! - [`holder`]: which vNIC has an address that several may have
//! - [`virtio`]: guest memory and virtqueues
//! - [`slots`]: frames in flight, and their memory
//! - [`vhost_user`]: the protocol by which front ends pass guest memory and virtqueues
//! - [`hosts`]: what the switch knows of other hosts, and tells them, beside frames
//! - [`neighbours`]: addresses of vNICs of other hosts
//! - [`link`]: how frames get in and out: a guest's rings, a tap, other hosts
//! - [`port`]: a vNIC's connection, with its contract
//! - [`moved`]: the outcome of a port's move to another worker
//! - [`capture`]: copies of a vNIC's frames, as pcapng
//! - [`worker`]: the threads that carry frames
//! - [`stats`]: counters and histograms in shared memory
//! - [`eventfd`]: signals drivers, without waiting
//! - `prefetch`: hints to the processor
//! - [`clock`]: the clock of the data plane
//! - [`capacity`]: size limits of a switch
//! - [`quota`]: limits on the memory and descriptors that front ends use in the process
//! - [`control`]: the agent's requests to the switch
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
pub mod hosts;
pub mod link;
pub mod moved;
pub mod neighbours;
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
