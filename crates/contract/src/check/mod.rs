//! The rules of contracts.
//!
//! ```text
//!  Vnic ──────────────────────────▶ vnic: limits, envelope, names ───┐
//!  Host ──────────────────────────▶ host, cores: ranges, CPUs, flows ┤
//!  Uplink, Remote, SegmentKeys ───▶ uplink: addresses, MTU, ranges ──┴▶ Problem (key, message)
//!  all of them ─▶ set: one name, one MAC, one socket, `to` ──────────┬▶ Errors (both places)
//!              ├▶ between: what crosses hosts, MTUs that fit ────────┤
//!              └▶ rdma: which uplink has a device for it ────────────┘
//! ```

mod between;
mod controller;
mod cores;
mod host;
mod rdma;
mod rules;
mod set;
mod taken;
mod uplink;
mod vnic;

pub(crate) use between::may_come;
pub(crate) use cores::id_range;
pub use cores::{FLOWS, MASKS};
pub(crate) use host::check_host;
pub use rules::Problem;
pub use set::{check_set, merge};
pub(crate) use uplink::{UPLINK_MTU, without_effect};
pub use vnic::{LONGEST_SOCKET_NAME, QUEUES, SHARED};
pub(crate) use vnic::{MTU, QOS, VLAN, WEIGHT, vnic_name};
