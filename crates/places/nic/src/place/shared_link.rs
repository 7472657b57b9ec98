//! The link that the functions of one NIC share.

use std::collections::BTreeMap;
use tidegate_contract::Rate;

/// The links, by the NIC's name.
pub type SharedLinks = BTreeMap<String, SharedLink>;

/// The link of one NIC.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedLink {
    /// Its highest speed; `None` if the driver does not say.
    pub speed: Option<Rate>,
    /// The reason for which the NIC cannot enforce a minimum; `None` if it can.
    pub lacks_min: Option<String>,
    /// Whether the NIC enforces limits on groups of functions.
    pub groups: bool,
}
