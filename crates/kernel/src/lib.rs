//! The kernel place: contracts for VMs on network devices that are there already: a tap with vhost-net, a macvtap,
//! a veth; and for the uplink that they share.
//!
//! ```text
//!  Shaping (rates of each netdev) ─┐
//!                                  ├─▶ plan (pure) ──▶ Steps ──▶ netlink ──▶ kernel
//!  Network (what is there) ────────┘                                           │
//!        ▲                                                                     │
//!        └───────────────────────── observe: links, qdiscs, classes, filters ◀─┘
//!
//!  In the kernel, for a tap:
//!
//!    to the VM (rx):    host stack, bridge ──▶ tap: HTB 7464: ─ class 7464:1 ─ queue ──▶ VM
//!                       where senders were promised something: ──┴─ a class below it for each of them
//!
//!    from the VM (tx):  VM ──▶ tap: clsact ─ marks ─ redirect ─▶ tidegate-tx (IFB): HTB 7464: ─┬─ 7464:1 ─ queue ─┐
//!                       host stack, bridge ◀─ as if received on its tap ───────────────────────┴─ 7464:2 ─ queue ─┘
//!
//!  Which other ports a netdev's frames reach: the VLAN of its bridge port (PVID, untagged, no other)
//! ```
//!
//! What a VM sends is *shaped*: it waits, where a policer would drop, so that super-frames of 64 KiB neither starve
//! nor burst. Rates count wire bytes, every segment of a super-frame with its headers.
//!
//! Pure, tested without a kernel:
//! - [`limit`]: what the kernel makes of a rate and a burst
//! - [`class`]: the HTB classes of limits and shares
//! - [`handle`]: names of qdiscs and classes
//! - [`owner`]: how what is ours is marked
//! - [`network`]: what was observed
//! - [`queueing`]: how frames wait for a limit: the qdiscs below its class
//! - [`shaping`]: what is wanted
//! - [`step`]: one request to the kernel
//! - [`theirs`]: what others made on a netdev, remembered to be made again
//! - [`vlan`]: the VLANs of a bridge port
//! - [`mod@plan`]: from wanted and observed to steps
//!
//! With a kernel:
//! - [`netlink`]: the messages
//! - [`kernel`]: observing and applying
//! - [`classify`]: from netdev to class, an eBPF program of `bpf/`
//! - [`meter`]: how long frames waited, by eBPF programs of `bpf/`
//! - [`deadline`]: how long frames of real-time vNICs took, and what became of those that were late, by eBPF programs
//! - [`noise`]: what keeps the switch's workers from their CPUs, by eBPF programs
//! - [`earlier`]: others' programs that get frames before our filters
//! - [`nftables`]: others' rules that what waits for a limit goes past
//! - [`congestion`]: marks of congestion (CE) where flows cannot be kept apart, an eBPF program of `bpf/`
//! - [`mark`]: priority marks in the IP header, an eBPF program of `bpf/`
//! - [`police`]: a token bucket that drops, an eBPF program of `bpf/`
//! - [`program`]: loading such a program for a filter
//! - `layout`: where the running kernel has what such a program reads
//! - [`mod@probe`]: what the running kernel lacks

pub mod class;
pub mod classify;
pub mod congestion;
pub mod deadline;
pub mod earlier;
pub mod handle;
pub mod kernel;
mod layout;
pub mod limit;
pub mod mark;
pub mod meter;
pub mod netlink;
pub mod network;
pub mod nftables;
pub mod noise;
pub mod owner;
pub mod plan;
pub mod police;
pub mod probe;
pub mod program;
pub mod queueing;
pub mod shaping;
pub mod step;
#[cfg(test)]
mod testing;
pub mod theirs;
pub mod vlan;

pub use classify::{Classes, Classifier, ClassifyError};
pub use congestion::{Marked, VirtualQueue};
pub use deadline::{DeadlineMeter, Delays, Loss, MissSeen, Part, Promise};
pub use earlier::Earlier;
pub use kernel::{Kernel, ObserveError, StepError};
pub use limit::{Limit, LimitError};
pub use mark::Marks;
pub use meter::{Came, Meter, MeterError, Queue, Waits};
pub use network::{Link, Network};
pub use nftables::IngressChain;
pub use noise::{Noise, NoiseMeter};
pub use plan::{Plan, no_shares_at, plan, refusals};
pub use police::{Bucket, BucketError, Policed, Policer};
pub use probe::{Missing, probe, probe_queues};
pub use program::{ProgramError, log_by_tracing};
pub use queueing::{Flows, Qdiscs};
pub use shaping::{Ends, Refusal, Shaping, Share, Ways};
pub use step::{Device, Step};
pub use theirs::{Port, Theirs, rehearse};
pub use vlan::Vlans;
