//! Traffic control: the limits of netdevs as qdiscs, classes and filters.
//!
//! ```text
//!  Shaping (limits of each netdev) ─┐
//!                                   ├─▶ plan (pure) ──▶ Steps ──▶ netlink ──▶ kernel
//!  Network (observed) ──────────────┘                                           │
//!        ▲                                                                      │
//!        └──────────────── observe: netdevs, qdiscs, classes, filters ◀─────────┘
//! ```
//!
//! Pure, tested without a kernel:
//! - [`class`]: the HTB classes of limits and shares
//! - [`owner`]: the marks of our objects
//! - [`network`]: the observed state
//! - [`object`]: a foreign qdisc, class or filter that a step makes again
//! - [`qdisc`]: qdiscs and their settings
//! - [`ingress_chain`]: the foreign nftables rules at an ingress
//! - `arrival`: how the arrival of frames in a queue is known
//! - [`queueing`]: the qdiscs below a class, in which frames wait for its limit
//! - [`shaping`]: the wanted state
//! - [`step`]: one request to the kernel
//! - [`vlan`]: the VLANs of a bridge port
//! - [`mod@plan`]: from wanted and observed to steps
//!
//! With a kernel:
//! - [`netlink`]: the messages of steps and observations
//! - [`kernel`]: observing and applying
//! - [`foreign_programs`]: foreign eBPF programs that get frames before our filters
//! - [`nftables`]: foreign rules that frames skip while they wait for a limit
//! - [`mod@probe`]: features that the running kernel lacks

mod arrival;
pub mod class;
pub mod foreign_programs;
pub mod ingress_chain;
pub mod kernel;
pub mod netlink;
pub mod network;
pub mod nftables;
pub mod object;
pub mod owner;
pub mod plan;
pub mod probe;
pub mod qdisc;
pub mod queueing;
pub mod shaping;
pub mod step;
pub mod vlan;

pub use crate::handle;
pub use crate::limit::{self, Limit, LimitError};
pub use foreign_programs::ForeignProgram;
pub use ingress_chain::IngressChain;
pub use kernel::{Kernel, ObserveError, StepError};
pub use network::{Netdev, Network};
pub use plan::{Plan, no_shares_at, plan, refusals};
pub use probe::{Missing, probe, probe_queues};
pub use queueing::{Flows, Qdiscs};
pub use shaping::{Ends, NetdevRefusal, Shaping, Share, Ways};
pub use step::{Device, Step};
pub use vlan::Vlans;
