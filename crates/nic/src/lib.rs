//! SR-IOV virtual functions: what the host says to a NIC and hears from it.
//!
//! ```text
//!  Function (what a VF shall be) ──┐
//!  Abilities (what the NIC takes) ─┼─▶ plan (pure) ──▶ Steps ──▶ Nic::apply ──▶ rtnetlink, devlink ──▶ driver
//!  Pf, Vf (what is) ───────────────┘                                                                     │
//!        ▲                                                                                               │
//!        ├── Nic::observe: IFLA_VFINFO_LIST, sysfs, ethtool, devlink ◀────────────────────────────────────┘
//!        └── Nic::counters: VF statistics, register window, representors ──▶ Accumulator ──▶ Counted
//! ```
//!
//! A virtual function (VF) of a physical function (PF) bypasses the host: a VM that has one sends and receives without the
//! host's kernel. What remains to the host is what the PF's driver tells the NIC. Directions are the VM's: tx is what it
//! sends. Rates count as the NIC does; bytes are normalised to Ethernet frames without FCS.
//!
//! Pure, tested without a NIC:
//! - [`pf`], [`vf`]: what is
//! - [`function`]: what a VF shall be, or was
//! - [`abilities`]: what a NIC takes
//! - [`step`]: one request to it
//! - [`mod@plan`]: from wanted and observed to steps
//! - [`group`]: VFs that share a rate
//! - [`counters`]: from registers that wrap to totals
//! - [`control`]: the traffic-engineering loop
//!
//! With a NIC:
//! - [`nic`]: observing, applying, counting
//! - [`probe`]: abilities, found by asking
//! - `netlink`: the messages; `sysfs`: what only files say

pub mod abilities;
pub mod control;
pub mod counters;
pub mod function;
pub mod group;
pub mod nic;
pub mod pf;
pub mod plan;
pub mod probe;
pub mod step;
pub mod vf;

mod netlink;
mod sysfs;

pub use abilities::{Abilities, Ability};
pub use counters::{Counted, Doubts, Figure, Source, Traffic};
pub use function::Function;
pub use group::{Group, GroupPlan, plan_groups};
pub use nic::{Nic, NicError, StepError};
pub use pf::{Mode, Node, Pf};
pub use plan::{Note, Pending, Plan, Refusal, plan, undo};
pub use probe::probe;
pub use step::{Set, Step};
pub use vf::{Leaf, LinkState, Representor, Statistics, Vf};
