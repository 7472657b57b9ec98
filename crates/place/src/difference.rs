//! The comparison of wanted and observed vNICs that all places share. Pure.
//!
//! ```text
//!                     observed          not observed
//!  wanted      Same, Changed, Moved       Missing
//!  not wanted        Unwanted                -
//! ```

use crate::ObservedVnic;
use std::collections::{BTreeMap, BTreeSet};
use tidegate_contract::Vnic;

/// The difference between the wanted and the observed state of one vNIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference<'a> {
    /// The place has no such vNIC.
    Missing(&'a Vnic),
    /// The contract in force has another attachment, so the vNIC has to be made anew.
    Moved {
        /// In force.
        from: &'a ObservedVnic,
        /// Wanted.
        to: &'a Vnic,
    },
    /// The contract in force has other terms.
    Changed {
        /// In force.
        from: &'a ObservedVnic,
        /// Wanted.
        to: &'a Vnic,
    },
    /// The wanted contract is in force; it may be broken.
    Same(&'a ObservedVnic),
    /// No contract wants this vNIC of ours.
    Unwanted(&'a ObservedVnic),
}

/// The differences: first the unwanted vNICs, then one for each wanted vNIC, in the order of `wanted`.
///
/// `in_place(from, to)` says whether the place can change the attachment of `from` to that of `to` without making the vNIC anew.
/// Vnics of other agents that no contract names are left out.
pub fn differences<'a>(
    wanted: &'a [Vnic],
    observed: &'a BTreeMap<String, ObservedVnic>,
    in_place: impl Fn(&Vnic, &Vnic) -> bool,
) -> Vec<Difference<'a>> {
    let names: BTreeSet<&str> = wanted.iter().map(|vnic| vnic.name.as_str()).collect();
    let unwanted = observed.values().filter(|there| there.ours && !names.contains(there.vnic.name.as_str()));
    let of_wanted = wanted.iter().map(|vnic| match observed.get(&vnic.name) {
        None => Difference::Missing(vnic),
        Some(from) if !in_place(&from.vnic, vnic) => Difference::Moved { from, to: vnic },
        Some(there) if !there.present => Difference::Missing(vnic),
        Some(from) if from.vnic != *vnic => Difference::Changed { from, to: vnic },
        Some(there) => Difference::Same(there),
    });
    unwanted.map(Difference::Unwanted).chain(of_wanted).collect()
}
