//! The kernel place: contracts for VMs on network devices of the host's kernel: a tap with vhost-net, a macvtap, a veth; and for the
//! uplink that they share.
//!
//! ```text
//!  contracts ──▶ place ── Shaping ──▶ tc: plan (pure) ── Steps ──▶ rtnetlink ──▶ kernel ◀── ebpf: programs of filters
//!                  ▲                                                              │
//!                  └── evidence ◀── tc: observe, ebpf: maps ◀─────────────────────┘
//!
//!  In the kernel, for a tap:
//!
//!    to the VM (rx):    host stack, bridge ──▶ tap: HTB 7464: ─ class 7464:1 ─ queue ──▶ VM
//!                       if senders were promised a rate: ────────┴─ a class below it for each of them
//!
//!    from the VM (tx):  VM ──▶ tap: clsact ─ marks ─ redirect ─▶ tidegate-tx (IFB): HTB 7464: ─┬─ 7464:1 ─ queue ─┐
//!                       host stack, bridge ◀─ as if received on its tap ───────────────────────┴─ 7464:2 ─ queue ─┘
//!
//!  The other ports that a netdev's frames reach: the VLAN of its bridge port (PVID, untagged, no other)
//! ```
//!
//! The frames of a VM are *shaped*: they wait where a policer would drop, so that super-frames of 64 KiB neither starve nor burst.
//! Rates count wire bytes, every segment of a super-frame with its headers.
//!
//! - `place`: the place, as the agent knows it
//! - [`handle`]: names of qdiscs and classes
//! - [`limit`]: a rate and a burst as the kernel rounds them
//! - [`tc`]: qdiscs, classes, filters, VLANs: from limits to requests
//! - [`ebpf`]: the programs, each `.bpf.c` beside the Rust file that loads it
//! - [`foreign`]: objects of other software, taken over and restored

pub mod ebpf;
pub mod foreign;
pub mod handle;
pub mod limit;
mod place;
pub mod tc;

pub use place::{KernelPlace, install};
