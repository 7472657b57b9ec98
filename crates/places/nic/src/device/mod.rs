//! SR-IOV virtual functions, as the host governs them.
//!
//! ```text
//!  Function (wanted for a VF) ──┐
//!  Abilities (of the NIC) ──────┼─▶ plan (pure) ──▶ Steps ──▶ request ──▶ Nic::apply ──▶ rtnetlink, devlink ──▶ driver
//!  Pf, Vf (observed) ───────────┘                                                                                │
//!        ▲                                                                                                       │
//!        ├── Nic::observe: IFLA_VFINFO_LIST, sysfs, ethtool, devlink ◀────────────────────────────────────────────┘
//!        └── Nic::counters: VF statistics, register window, representors ──▶ crate::counters
//! ```
//!
//! A virtual function (VF) of a physical function (PF) bypasses the host: the host's kernel does not see the frames of a VM that
//! has one. The host governs a VF only by settings of the PF's driver. Directions are the VM's: tx is what the VM sends. Rates count
//! as the NIC counts; bytes are normalised to Ethernet frames without FCS.
//!
//! Pure, tested without a NIC:
//! - [`pf`], [`vf`]: the observed state
//! - [`function`]: the wanted or former settings of a VF
//! - [`abilities`]: the settings that a NIC accepts
//! - [`step`], `request`: one request to the NIC, and its message
//! - [`mod@plan`]: from wanted and observed to steps
//! - [`group`]: VFs that share a rate
//!
//! With a NIC:
//! - [`nic`]: observing, applying
//! - `source`: the sources of a NIC's counters of its VFs
//! - `sysfs`: facts that only files have

pub mod abilities;
pub mod function;
pub mod group;
pub mod nic;
pub mod pf;
pub mod plan;
mod request;
mod source;
pub mod step;
pub(crate) mod sysfs;
pub mod vf;

pub use abilities::{Abilities, Ability};
pub use function::Function;
pub use group::{Group, GroupPlan, plan_groups};
pub use nic::{Nic, NicError, StepError};
pub use pf::{Mode, Node, Pf};
pub use plan::{Note, Pending, Plan, VfRefusal, plan, undo};
pub use source::Source;
pub use step::{Set, Step};
pub use vf::{Leaf, LinkState, Representor, Statistics, Vf};
