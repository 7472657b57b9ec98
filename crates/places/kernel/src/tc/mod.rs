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
//! - [`limit`]: a rate and a burst as the kernel rounds them
//! - [`class`]: the HTB classes of limits and shares
//! - [`handle`]: names of qdiscs and classes
//! - [`owner`]: the marks of our objects
//! - [`network`]: the observed state
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

pub mod class;
pub mod foreign_programs;
pub mod handle;
pub mod kernel;
pub mod limit;
pub mod netlink;
pub mod network;
pub mod nftables;
pub mod owner;
pub mod plan;
pub mod probe;
pub mod queueing;
pub mod shaping;
pub mod step;
pub mod vlan;

pub use foreign_programs::ForeignProgram;
pub use kernel::{Kernel, ObserveError, StepError};
pub use limit::{Limit, LimitError};
pub use network::{Netdev, Network};
pub use nftables::IngressChain;
pub use plan::{Plan, no_shares_at, plan, refusals};
pub use probe::{Missing, probe, probe_queues};
pub use queueing::{Flows, Qdiscs};
pub use shaping::{Ends, NetdevRefusal, Shaping, Share, Ways};
pub use step::{Device, Step};
pub use vlan::Vlans;
