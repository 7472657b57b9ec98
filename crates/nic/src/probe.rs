//! Abilities of a NIC, found by asking.

use crate::abilities::Abilities;
use crate::nic::Nic;
use crate::pf::Pf;

/// What a NIC takes. Asks without changing anything for longer than a moment.
pub fn probe(_nic: &mut Nic, _pf: &Pf) -> Abilities {
    Abilities::default()
}
