//! A table: which flows go where, and the CPUs for all others. Pure.
//!
//! Entries with equal masks, which compare the same fields, share one look-up. Exact entries come first, then masks: the one with more bits
//! first, of equal ones that of the earlier entry. So of two entries for a frame the more specific one holds.

use crate::key::{EXACT, Fields, LENGTH, Pattern, address};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tidegate_cores::cpus::Cpus;

/// Most masks: `MASKS` of `flow.h`.
pub const MASKS: usize = 8;
/// Length of a key of the map of peers, bytes.
pub(crate) const PEER: usize = 32;
/// UDP port of VXLAN (RFC 7348).
pub const VXLAN_PORT: u16 = 4789;

/// Frames of a flow that go to a CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// For messages and counters: the flow's or the vNIC's name. No other entry has it.
    pub name: String,
    /// Which frames.
    pub pattern: Pattern,
    /// The CPU that runs the kernel's stack for them.
    pub cpu: usize,
}

/// A table that a device can have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    pub(crate) entries: Vec<Entry>,
    /// In order, without that of exact entries.
    pub(crate) masks: Vec<Fields>,
    /// CPUs for frames without an entry; on the CPU of the interrupt if empty.
    pub(crate) spread: Cpus,
    pub(crate) vxlan_port: u16,
    /// Outer addresses of VXLAN, from and to, as the program has them.
    pub(crate) peers: BTreeSet<[u8; PEER]>,
}

/// A table that no device can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// More than [`MASKS`] sets of fields.
    #[error(
        "the flows compare {} different sets of fields, and at most {MASKS} are possible: {}: let some of them compare the same fields",
        .0.len(), .0.join("; ")
    )]
    Masks(Vec<String>),
    /// Two entries for the same frames.
    #[error("flows {0} and {1} are for the same frames: remove one of them")]
    Same(String, String),
    /// Two entries with the same name.
    #[error("two flows are named {0}: rename one of them")]
    Name(String),
    /// An entry without a field.
    #[error("flow {0} is for all frames: give id, vlan, mac, from, to, protocol or a port")]
    Everything(String),
}

impl Table {
    /// Makes a table of these entries; frames of other flows are spread over these CPUs, or stay on the CPU of the interrupt if there are
    /// none.
    ///
    /// # Errors
    /// Too many masks, two equal entries, or one without a field: their names.
    pub fn new(entries: Vec<Entry>, spread: Cpus, vxlan_port: u16) -> Result<Self, TableError> {
        let mut seen: BTreeMap<([u8; LENGTH], [u8; LENGTH]), &str> = BTreeMap::new();
        let mut names = BTreeSet::new();
        let mut masks: Vec<Fields> = vec![];
        for entry in &entries {
            let Pattern { flow, mask } = &entry.pattern;
            if !names.insert(&*entry.name) {
                return Err(TableError::Name(entry.name.clone()));
            }
            if entry.pattern.is_everything() {
                return Err(TableError::Everything(entry.name.clone()));
            }
            if let Some(first) = seen.insert((mask.key(0), flow.key(0)), &entry.name) {
                return Err(TableError::Same(first.into(), entry.name.clone()));
            }
            if *mask != EXACT && !masks.contains(mask) {
                masks.push(*mask);
            }
        }
        if masks.len() > MASKS {
            let described = masks.iter().map(|mask| {
                let with = entries.iter().filter(|entry| entry.pattern.mask == *mask);
                let names: Vec<&str> = with.clone().take(3).map(|entry| &*entry.name).collect();
                let more = if with.clone().count() > names.len() { ", ..." } else { "" };
                let compared = with.clone().next().map(|entry| entry.pattern.compared()).unwrap_or_default();
                format!("{compared} ({}{more})", names.join(", "))
            });
            return Err(TableError::Masks(described.collect()));
        }
        // Stable: of equal ones the earlier stays first.
        masks.sort_by_key(|mask| {
            std::cmp::Reverse(mask.key(0).iter().map(|byte| byte.count_ones()).sum::<u32>())
        });
        Ok(Self { entries, masks, spread, vxlan_port, peers: BTreeSet::new() })
    }

    /// Returns the table with these outer addresses of VXLAN, from and to, for [`Pattern::of_peers`].
    #[must_use]
    pub fn with_peers(self, peers: &BTreeSet<(IpAddr, IpAddr)>) -> Self {
        let key = |(from, to): &(IpAddr, IpAddr)| {
            let mut key = [0; PEER];
            key[..16].copy_from_slice(&address(*from));
            key[16..].copy_from_slice(&address(*to));
            key
        };
        Self { peers: peers.iter().map(key).collect(), ..self }
    }

    /// Returns the CPUs that frames may go to.
    pub(crate) fn cpus(&self) -> Cpus {
        self.entries.iter().map(|entry| entry.cpu).chain(self.spread.iter().copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_contract::cores::{Flow, Tunnel};

    fn flow(change: impl FnOnce(&mut Flow)) -> Flow {
        let mut flow = Flow::new("eth0", Tunnel::Vxlan);
        change(&mut flow);
        flow
    }

    fn entry(name: &str, flow: &Flow) -> Entry {
        Entry { name: name.into(), pattern: flow.into(), cpu: 1 }
    }

    #[test]
    fn entries_that_compare_the_same_fields_share_a_mask_and_the_more_specific_mask_is_first() {
        let of = |id| flow(|flow| flow.id = Some(id));
        let port = flow(|flow| (flow.id, flow.to_port) = (Some(1), Some(80)));
        let entries = vec![entry("a", &of(1)), entry("b", &port), entry("c", &of(2))];
        let table = Table::new(entries, Cpus::from([3]), VXLAN_PORT).unwrap();
        assert_eq!(table.masks, [Pattern::from(&port).mask, Pattern::from(&of(1)).mask]);
        assert_eq!(table.cpus(), Cpus::from([1, 3]));
    }

    #[test]
    fn more_than_eight_masks_are_refused_with_names() {
        // Each has another set of fields.
        let entries = (0..9_u8).map(|n| {
            let flow = flow(|flow| {
                flow.id = (n & 1 != 0).then_some(7);
                flow.vlan = (n & 2 != 0).then_some(7);
                flow.protocol = (n & 4 != 0).then_some(7);
                flow.to_port = (n & 8 != 0).then_some(7);
            });
            entry(&format!("flow{n}"), &flow)
        });
        let entries: Vec<Entry> = entries.collect();
        Table::new(entries[1..].to_vec(), Cpus::new(), VXLAN_PORT).unwrap();
        let error = Table::new(entries, Cpus::new(), VXLAN_PORT).unwrap_err().to_string();
        assert!(error.contains("9 different") && error.contains("tunnel + id + vlan (flow3)"), "{error}");
    }

    #[test]
    fn equal_entries_and_empty_masks_are_refused() {
        let id = flow(|flow| flow.id = Some(1));
        let twice = Table::new(vec![entry("a", &id), entry("b", &id)], Cpus::new(), VXLAN_PORT);
        assert_eq!(twice, Err(TableError::Same("a".into(), "b".into())));
        let other = flow(|flow| flow.id = Some(2));
        let named = Table::new(vec![entry("a", &id), entry("a", &other)], Cpus::new(), VXLAN_PORT);
        assert_eq!(named, Err(TableError::Name("a".into())));
        let all = flow(|flow| flow.tunnel = Tunnel::None);
        let all = Table::new(vec![entry("a", &all)], Cpus::new(), VXLAN_PORT);
        assert_eq!(all, Err(TableError::Everything("a".into())));
        // All frames of a tunnel are some.
        Table::new(vec![entry("a", &flow(|_| ()))], Cpus::new(), VXLAN_PORT).unwrap();
    }
}
