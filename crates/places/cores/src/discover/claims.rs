//! The one process of each vNIC. Pure.
//!
//! ```text
//!  holders of its key ─┐
//!  libvirt's domains ──┼─▶ one process: its VM
//!  holders of KVM ─────┘   several: none, and a note
//! ```

use super::key::Key;
use super::table::Holders;
use std::collections::{BTreeMap, BTreeSet};
use tidegate_contract::{Attach, Vnic};
use tidegate_libvirt::running::Running;

/// Names that a note has at most.
const MOST_NAMED: usize = 4;

/// Returns the processes of vNICs, each with those that are its own. Notes say of which vNICs none is known, or too many are.
pub fn processes<'a>(
    contracts: &[&'a Vnic],
    keys: &BTreeMap<&str, Vec<Key>>,
    holders: &Holders,
    domains: &BTreeMap<u32, &Running>,
    notes: &mut Vec<String>,
) -> BTreeMap<u32, Vec<&'a Vnic>> {
    let mut found = BTreeMap::<u32, Vec<&Vnic>>::new();
    let (mut missing, mut contested) = (vec![], vec![]);
    for vnic in contracts {
        let of_keys = || keys.get(vnic.name.as_str()).into_iter().flatten();
        let claimants: BTreeSet<u32> =
            of_keys().filter_map(|key| holders.by_key.get(key)).flatten().copied().collect();
        let is_named = |process: &u32| domains.get(process).is_some_and(|domain| has(domain, vnic));
        let claimants: BTreeSet<u32> = match claimants.len() {
            // libvirt knows the process also where descriptors may not be read.
            0 => domains.keys().copied().filter(is_named).collect(),
            1 => claimants,
            // Descriptors can be sent to any process.
            _ if claimants.iter().any(is_named) => claimants.into_iter().filter(is_named).collect(),
            _ => match claimants.intersection(&holders.kvm).copied().collect::<BTreeSet<_>>() {
                vms if vms.is_empty() => claimants,
                vms => vms,
            },
        };
        let expected = !matches!(vnic.attach, Attach::Tap { .. }) && of_keys().next().is_some();
        match claimants.first() {
            Some(process) if claimants.len() == 1 => found.entry(*process).or_default().push(vnic),
            None if expected && holders.unreadable > 0 => missing.push(vnic.name.as_str()),
            None => {}
            Some(_) => contested.push(vnic.name.as_str()),
        }
    }
    if let Some(some) = named(&missing) {
        notes.push(format!(
            "the threads of {some} are not planned: their processes were not found, and the agent may not see the \
            descriptors of {} processes (CAP_SYS_PTRACE)",
            holders.unreadable
        ));
    }
    if let Some(some) = named(&contested) {
        notes.push(format!(
            "the threads of {some} are not planned: several processes hold their device or socket, and one alone can be the VM"
        ));
    }
    found
}

/// Returns processes in words; `None` if there are none.
pub fn some(processes: &[u32]) -> Option<String> {
    let numbers: Vec<String> = processes.iter().map(u32::to_string).collect();
    let numbers: Vec<&str> = numbers.iter().map(String::as_str).collect();
    Some(format!("processes {}", named(&numbers)?))
}

/// Returns names in words, some of many; `None` if there are none.
fn named(names: &[&str]) -> Option<String> {
    let (shown, more) = names.split_at(names.len().min(MOST_NAMED));
    let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
    (!shown.is_empty()).then(|| format!("{}{more}", shown.join(", ")))
}

/// Whether a vNIC is one of a domain.
fn has(domain: &Running, vnic: &Vnic) -> bool {
    match &vnic.attach {
        Attach::Netdev { name } => domain.interfaces.contains(name),
        Attach::VhostUser { path, .. } => domain.sockets.contains(path),
        _ => false,
    }
}
