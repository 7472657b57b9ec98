//! The netdev that a contract names.

use tidegate_contract::{Attach, Vnic};

/// The netdev of a contract; `None` if it is attached to none.
pub fn netdev(vnic: &Vnic) -> Option<&str> {
    match &vnic.attach {
        Attach::Netdev { name } => Some(name),
        _ => None,
    }
}
