//! The comparison of wanted and observed vNICs that all places share. Pure.
//!
//! ```text
//!                     observed          not observed
//!  wanted      Same, Changed, Moved       Missing
//!  not wanted        Unwanted                -
//! ```

use crate::{ContractChange, ObservedVnic};
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

/// The changes that end the differences: removals, which make room, and all others. A broken vNIC is changed to the contract that it
/// has.
pub fn changes(differences: &[Difference<'_>]) -> (Vec<ContractChange>, Vec<ContractChange>) {
    let (mut removals, mut others) = (Vec::new(), Vec::new());
    let remove = |there: &ObservedVnic| ContractChange::Remove(there.vnic.clone());
    let create = |vnic: &Vnic| ContractChange::Create(vnic.clone());
    let change = |from: &Vnic, to: &Vnic| ContractChange::Change { from: from.clone(), to: to.clone() };
    for difference in differences {
        match *difference {
            Difference::Missing(vnic) => others.push(create(vnic)),
            Difference::Moved { from, to } => {
                removals.push(remove(from));
                others.push(create(to));
            }
            Difference::Changed { from, to } => others.push(change(&from.vnic, to)),
            Difference::Same(there) if there.broken.is_some() => {
                others.push(change(&there.vnic, &there.vnic));
            }
            Difference::Same(_) => {}
            Difference::Unwanted(there) => removals.push(remove(there)),
        }
    }
    (removals, others)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tidegate_contract::parse;
    use tidegate_evidence::Connection;

    fn vnic(name: u8, netdev: u8, weight: u32) -> Vnic {
        let text = format!(
            "[vnic.v{name}]\nattach = {{ netdev = \"n{netdev}\" }}\nmac = \"52:54:00:00:00:01\"\nsegment = 0\nweight = {weight}\n"
        );
        parse(&text, "test").unwrap().vnics.remove(0).value
    }

    fn set() -> impl Strategy<Value = BTreeMap<String, Vnic>> {
        let vnics = prop::collection::vec((0u8..5, 0u8..3, 1u32..3), 0..5);
        vnics.prop_map(|all| {
            let vnics = all.into_iter().map(|(name, netdev, weight)| vnic(name, netdev, weight));
            vnics.map(|vnic| (vnic.name.clone(), vnic)).collect()
        })
    }

    proptest! {
        /// Against a model: a map of contracts, to which the changes are applied.
        #[test]
        fn the_changes_lead_from_observed_to_wanted(wanted in set(), there in set(), broken in prop::collection::vec(any::<bool>(), 5)) {
            let mut observed = BTreeMap::new();
            for ((name, vnic), broken) in there.iter().zip(broken) {
                let broken = broken.then(|| "changed by another program".to_owned());
                observed.insert(name.clone(), ObservedVnic { broken, ..ObservedVnic::of(vnic, Connection::Up) });
            }
            let wanted: Vec<Vnic> = wanted.into_values().collect();
            let differences = differences(&wanted, &observed, |from, to| from.attach == to.attach);
            let (removals, others) = changes(&differences);
            let mut model = there;
            let mut repaired = Vec::new();
            for change in removals.iter().chain(&others) {
                match change {
                    ContractChange::Create(vnic) => prop_assert!(model.insert(vnic.name.clone(), vnic.clone()).is_none()),
                    ContractChange::Remove(vnic) => prop_assert_eq!(model.remove(&vnic.name), Some(vnic.clone())),
                    ContractChange::Change { from, to } => {
                        prop_assert_eq!(&from.attach, &to.attach);
                        repaired.push(to.name.clone());
                        prop_assert_eq!(model.insert(to.name.clone(), to.clone()), Some(from.clone()));
                    }
                }
            }
            prop_assert_eq!(model.into_values().collect::<Vec<_>>(), wanted.clone());
            for vnic in &wanted {
                let is_broken = observed.get(&vnic.name).is_some_and(|o| o.broken.is_some() && o.vnic.attach == vnic.attach);
                prop_assert!(!is_broken || repaired.contains(&vnic.name), "{} is still broken", vnic.name);
            }
        }
    }
}
