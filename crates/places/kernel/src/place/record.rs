//! The record of this place: the contracts that it enforces, and what it took over for them.
//!
//! ```text
//!  set ──▶ entries ──────────┬─▶ on disk: both, joined          accept ──▶ former is empty
//!   └─ the entry before ─▶ former ┘
//! ```
//!
//! The entry before a change stays on record until the change is accepted. So a successor of an agent that died during the change, and
//! a change that is undone, find the foreign objects that were taken over.

use crate::foreign::{BridgePort, TakenOver};
use crate::tc::{Ends, Ways};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use tidegate_contract::{Attach, Vnic};
use tidegate_durable::{DurableError, Journal};

/// One contract.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The contract.
    pub vnic: Vnic,
    /// The directions in which only this place sets qdiscs and filters on its netdev.
    #[serde(rename = "held")]
    pub owned: Ways,
    /// Foreign objects that were there before, to be restored.
    #[serde(default, rename = "theirs", skip_serializing_if = "TakenOver::is_empty")]
    pub taken_over: TakenOver,
    /// The former VLANs of its bridge port, to be restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<BridgePort>,
    /// Interface indices of its devices at the last look.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<u32>,
}

type Entries = BTreeMap<String, Entry>;

/// Entries by vNIC.
#[derive(Debug)]
pub struct Record {
    journal: Journal<String, Entry>,
    /// The entries before the change that is under way.
    former: Entries,
}

impl Entry {
    /// The union with another entry: what either owns, and what either remembers.
    fn with(mut self, other: &Self) -> Self {
        self.owned = self.owned.or(other.owned);
        if self.taken_over.is_empty() {
            self.taken_over = other.taken_over.clone();
        } else if self.taken_over.index == other.taken_over.index {
            self.taken_over.add(&other.taken_over, Ends::BOTH);
        }
        self.port = self.port.or_else(|| other.port.clone());
        if self.devices.is_empty() {
            self.devices.clone_from(&other.devices);
        }
        self
    }
}

impl Record {
    /// Reads the record in the state folder. The second value describes damage.
    pub fn load(state: &Path) -> Result<(Self, Option<String>), DurableError> {
        let (journal, damage) = Journal::load(state.join("kernel.json"))?;
        Ok((Self { journal, former: Entries::new() }, damage))
    }

    /// All entries, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.journal.entries().values()
    }

    /// All contracts, and those before the change that is under way.
    pub fn with_former(&self) -> impl Iterator<Item = &Vnic> {
        self.iter().chain(self.former.values()).map(|entry| &entry.vnic)
    }

    /// The union of the entries with this attachment, now and before the change that is under way.
    pub fn known(&self, attach: &Attach) -> Option<Entry> {
        let there = self.iter().chain(self.former.values()).filter(|entry| entry.vnic.attach == *attach);
        there.cloned().reduce(|a, b| a.with(&b))
    }

    /// A contract, now and before the change that is under way.
    pub fn versions(&self, name: &str) -> impl Iterator<Item = &Vnic> {
        [self.journal.get(name), self.former.get(name)].into_iter().flatten().map(|entry| &entry.vnic)
    }

    /// All entries, to be changed in place.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.journal.entries_mut().values_mut()
    }

    /// One entry, to be changed in place.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Entry> {
        self.journal.entries_mut().get_mut(name)
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.journal.entries().is_empty()
    }

    /// Sets or removes an entry in memory; returns the entry before. [`Record::save`] writes it.
    pub fn set(&mut self, name: &str, entry: Option<Entry>) -> Option<Entry> {
        let before = self.journal.set(name.to_owned(), entry);
        if let Some(before) = &before {
            self.former.entry(name.to_owned()).or_insert_with(|| before.clone());
        }
        before
    }

    /// The change is accepted: the entries before it are not needed any more.
    pub fn accept(&mut self) {
        self.former.clear();
    }

    /// Writes coming contracts to disk, beside the entries in force: once for a whole change, so that a full disk is noticed before
    /// anything is touched.
    pub fn reserve<'a>(
        &mut self,
        coming: impl Iterator<Item = (&'a Vnic, Ways, Option<BridgePort>)>,
    ) -> Result<(), DurableError> {
        let mut all = self.all();
        for (vnic, owned, port) in coming {
            let new =
                Entry { vnic: vnic.clone(), owned, taken_over: TakenOver::default(), port, devices: vec![] };
            let known = all.remove(&vnic.name).filter(|known| known.vnic.attach == vnic.attach);
            all.insert(
                vnic.name.clone(),
                known.map_or_else(|| new.clone(), |known| new.clone().with(&known)),
            );
        }
        self.journal.write(all)
    }

    /// Writes the record if a successor would not find on disk what it must know of one contract: its attachment, the directions
    /// that are owned, and what was taken over. The rates on disk may be older or newer.
    pub fn note(&mut self, name: &str) -> Result<(), DurableError> {
        let on_disk = |entry: Entry| {
            self.journal.on_disk(name).is_some_and(|saved| {
                saved.vnic.attach == entry.vnic.attach
                    && saved.owned.or(entry.owned) == saved.owned
                    && saved.taken_over == entry.taken_over
                    && saved.port == entry.port
            })
        };
        if self.joined(name).is_none_or(on_disk) { Ok(()) } else { self.save() }
    }

    /// Writes the record to disk, if it changed or the file is gone.
    pub fn save(&mut self) -> Result<(), DurableError> {
        let all = self.all();
        self.journal.write(all)
    }

    fn all(&self) -> Entries {
        let mut all = self.journal.entries().clone();
        all.extend(self.former.keys().filter_map(|name| Some((name.clone(), self.joined(name)?))));
        all
    }

    /// One entry, joined with the one before the change that is under way.
    fn joined(&self, name: &str) -> Option<Entry> {
        match (self.journal.get(name).cloned(), self.former.get(name)) {
            (Some(entry), Some(former)) if entry.vnic.attach == former.vnic.attach => {
                Some(entry.with(former))
            }
            (entry, former) => entry.or_else(|| former.cloned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foreign::{Layer, Object};
    use crate::handle::Handle;
    use crate::tc::Vlans;
    use tidegate_testkit::contract::netdev;

    fn entry(name: &str, owned: Ways, taken_over: bool) -> Entry {
        let root = Object {
            layer: Layer::Qdisc,
            handle: Handle::new(1, 0),
            parent: Handle::ROOT,
            info: 0,
            kind: "tbf".into(),
            options: Some(vec![1, 2, 3]),
            chain: None,
        };
        let egress = if taken_over { vec![root] } else { vec![] };
        let taken_over = TakenOver { index: 7, egress, ..TakenOver::default() };
        let port = owned.segment.then(|| BridgePort { index: 7, bridge: 9, vlans: Vlans::access(1) });
        Entry { vnic: netdev(name, 1, "vnet3"), owned, taken_over, port, devices: vec![7] }
    }

    #[test]
    fn foreign_objects_stay_on_disk_until_the_change_is_accepted() {
        let folder = tempfile::tempdir().expect("a folder");
        let load = || Record::load(folder.path()).expect("it loads").0;
        let full = entry("web", Ways::BOTH, true);
        let (mut record, _) = Record::load(folder.path()).expect("nothing there");
        record.set("web", Some(full.clone()));
        record.save().expect("saved");

        // Its rx has no limit any more, it has no segment, and its netdev gets another name.
        record.set("web", Some(entry("web", Ways { tx: true, ..Ways::NONE }, false)));
        record.save().expect("saved");
        assert_eq!(load().known(&full.vnic.attach), Some(full.clone()), "an agent that died here");
        record.set("web", None);
        record.save().expect("saved");
        assert_eq!(load().known(&full.vnic.attach), Some(full.clone()));
        assert!(record.is_empty());
        assert_eq!(record.known(&full.vnic.attach), Some(full.clone()), "for one that takes it back");

        record.accept();
        record.save().expect("saved");
        assert!(load().is_empty());
        assert_eq!(record.known(&full.vnic.attach), None);
    }

    #[test]
    fn the_vlans_of_a_port_are_on_disk_before_the_port_changes() {
        let folder = tempfile::tempdir().expect("a folder");
        let load = || Record::load(folder.path()).expect("it loads").0;
        let Entry { vnic, owned, port, .. } = entry("web", Ways::BOTH, false);
        let on_disk = || load().known(&vnic.attach).and_then(|entry| entry.port);
        let (mut record, _) = Record::load(folder.path()).expect("nothing there");
        record.reserve([(&vnic, owned, port.clone())].into_iter()).expect("saved");
        assert_eq!(on_disk(), port, "an agent that died here");

        // The contract is in force, and the port is on another bridge.
        record.set("web", Some(entry("web", Ways::BOTH, false)));
        let moved = Some(BridgePort { index: 7, bridge: 10, vlans: Vlans::access(5) });
        record.get_mut("web").expect("there").port = moved.clone();
        record.note("web").expect("saved");
        assert_eq!(on_disk(), moved);
    }
}
