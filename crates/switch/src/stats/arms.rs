//! Names of the counters of an uplink's [arms](crate::server::arms), which readers see as the uplink's.
//!
//! ```text
//!  slots: net0, net0@1, net0@2 ─▶ reader ─▶ net0
//! ```

use super::layout::NAME;
use tidegate_contract::Vnic;

/// Longest name of an uplink with arms (bytes).
pub const UPLINK_NAME: usize = NAME - 1 - "@63".len();

/// Returns the name of the counters of an arm, which is no name of a vNIC.
pub fn name(uplink: &str, worker: usize) -> String {
    format!("{uplink}@{worker}")
}

/// Returns the uplink of an arm's name; `None` of another name.
pub fn uplink_of(name: &str) -> Option<&str> {
    let (uplink, worker) = name.split_once('@')?;
    (Vnic::is_name(uplink) && worker.parse::<u16>().is_ok()).then_some(uplink)
}
