//! The rules of contracts.
//!
//! ```text
//!  Vnic ─────────▶ vnic: limits, envelope, names ──▶ Problem (key, message)
//!  all the vNICs ▶ set:  one MAC, one socket, `to` ─▶ Errors (both places)
//! ```

mod set;
mod vnic;

pub use set::{check_set, merge};
pub use vnic::{LONGEST_SOCKET_NAME, Problem, QUEUES, SHARED};
pub(crate) use vnic::{MTU, QOS, VLAN, WEIGHT, check_host, vnic_name};
