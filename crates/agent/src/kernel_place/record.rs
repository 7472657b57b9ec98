//! The contracts this place was told to keep, over restarts: what is on a netdev of theirs is ours to put right.
//!
//! ```text
//!  set ──▶ told ─────────────┬─▶ on disk: both, as one          accepted ──▶ leaving is empty
//!   └─ what it was before ─▶ leaving ┘
//! ```
//!
//! What was told before stays on record until the change is accepted: an agent that dies in between, or a change that
//! is taken back, finds what was taken over of others.

use crate::durable::{Durable, DurableError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use tidegate_contract::{Attach, Vnic};
use tidegate_kernel::{Ends, Port, Theirs, Ways};

/// One contract.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// As told.
    pub vnic: Vnic,
    /// The directions in which others have nothing to say on its netdev.
    pub held: Ways,
    /// What others made there before, and gets back.
    #[serde(default, skip_serializing_if = "Theirs::is_empty")]
    pub theirs: Theirs,
    /// The VLANs that its bridge port had before it had those of a segment, and gets back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<Port>,
    /// Interface indices of its devices, when they were last seen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<u32>,
}

type All = BTreeMap<String, Told>;

/// By name.
#[derive(Debug)]
pub struct Record {
    told: All,
    leaving: All,
    /// As it is on disk.
    saved: All,
    file: Durable,
}

impl Told {
    /// With what is held, and remembered, by either.
    fn with(mut self, other: &Self) -> Self {
        self.held = self.held.or(other.held);
        if self.theirs.is_empty() {
            self.theirs = other.theirs.clone();
        } else if self.theirs.index == other.theirs.index {
            self.theirs.add(&other.theirs, Ends::BOTH);
        }
        self.port = self.port.or_else(|| other.port.clone());
        if self.devices.is_empty() {
            self.devices.clone_from(&other.devices);
        }
        self
    }
}

impl Record {
    /// Reads the record in the state directory; the second value is what was damaged.
    pub fn load(state: &Path) -> Result<(Self, Option<String>), DurableError> {
        let file = Durable::new(state.join("kernel.json"));
        let loaded = file.load::<All>()?;
        let told = loaded.value.unwrap_or_default();
        Ok((Self { saved: told.clone(), told, leaving: All::new(), file }, loaded.damage))
    }

    /// All of them, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Told> {
        self.told.values()
    }

    /// All contracts, and those that they were before this change.
    pub fn with_leaving(&self) -> impl Iterator<Item = &Vnic> {
        self.told.values().chain(self.leaving.values()).map(|told| &told.vnic)
    }

    /// What is held and remembered where `attach` is, or was before this change.
    pub fn known(&self, attach: &Attach) -> Option<Told> {
        let there = self.told.values().chain(self.leaving.values()).filter(|t| t.vnic.attach == *attach);
        there.cloned().reduce(|a, b| a.with(&b))
    }

    /// A contract, and what it was before this change.
    pub fn versions(&self, name: &str) -> impl Iterator<Item = &Vnic> {
        [self.told.get(name), self.leaving.get(name)].into_iter().flatten().map(|told| &told.vnic)
    }

    /// All of them, to be changed in place.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Told> {
        self.told.values_mut()
    }

    /// One of them.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Told> {
        self.told.get_mut(name)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.told.is_empty()
    }

    /// Enters a contract, or strikes it out; what was there before. Saved with the next [`Record::save`].
    pub fn set(&mut self, name: &str, told: Option<Told>) -> Option<Told> {
        let before = match told {
            Some(told) => self.told.insert(name.to_owned(), told),
            None => self.told.remove(name),
        };
        if let Some(before) = &before {
            self.leaving.entry(name.to_owned()).or_insert_with(|| before.clone());
        }
        before
    }

    /// No change is under way.
    pub fn accepted(&mut self) {
        self.leaving.clear();
    }

    /// Puts on disk what may be told next, beside the record that is in force: once for all of a change, however many contracts it
    /// has; and a disk that is full is noticed before anything is touched.
    pub fn reserve<'a>(
        &mut self,
        coming: impl Iterator<Item = (&'a Vnic, Ways, Option<Port>)>,
    ) -> Result<(), DurableError> {
        let mut all = self.all();
        for (vnic, held, port) in coming {
            let new = Told { vnic: vnic.clone(), held, theirs: Theirs::default(), port, devices: vec![] };
            let known = all.remove(&vnic.name).filter(|known| known.vnic.attach == vnic.attach);
            all.insert(
                vnic.name.clone(),
                known.map_or_else(|| new.clone(), |known| new.clone().with(&known)),
            );
        }
        self.write(all)
    }

    /// Sees that a successor would find on disk all that it has to know of one contract: where we have something, what is
    /// held there, and what others had. What it says of rates may be older or newer.
    pub fn note(&mut self, name: &str) -> Result<(), DurableError> {
        let on_disk = |told: Told| {
            self.saved.get(name).is_some_and(|saved| {
                saved.vnic.attach == told.vnic.attach
                    && saved.held.or(told.held) == saved.held
                    && saved.theirs == told.theirs
                    && saved.port == told.port
            })
        };
        if self.file.exists() && self.joined(name).is_none_or(on_disk) { Ok(()) } else { self.save() }
    }

    /// Writes it to disk, where it changed or is gone from there.
    pub fn save(&mut self) -> Result<(), DurableError> {
        self.write(self.all())
    }

    fn all(&self) -> All {
        let mut all = self.told.clone();
        all.extend(self.leaving.keys().filter_map(|name| Some((name.clone(), self.joined(name)?))));
        all
    }

    /// One of them, with what it was before this change.
    fn joined(&self, name: &str) -> Option<Told> {
        match (self.told.get(name).cloned(), self.leaving.get(name)) {
            (Some(told), Some(leaving)) if told.vnic.attach == leaving.vnic.attach => {
                Some(told.with(leaving))
            }
            (told, leaving) => told.or_else(|| leaving.cloned()),
        }
    }

    fn write(&mut self, all: All) -> Result<(), DurableError> {
        if all != self.saved || (!all.is_empty() && !self.file.exists()) {
            self.file.save(&all)?;
            self.saved = all;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::netdev;
    use tidegate_kernel::Vlans;
    use tidegate_kernel::handle::Handle;
    use tidegate_kernel::theirs::{Layer, Object};

    fn told(name: &str, held: Ways, theirs: bool) -> Told {
        let root = Object {
            layer: Layer::Qdisc,
            handle: Handle::new(1, 0),
            parent: Handle::ROOT,
            info: 0,
            kind: "tbf".into(),
            options: Some(vec![1, 2, 3]),
            chain: None,
        };
        let egress = if theirs { vec![root] } else { vec![] };
        let theirs = Theirs { index: 7, egress, ..Theirs::default() };
        let port = held.segment.then(|| Port { index: 7, bridge: 9, vlans: Vlans::access(1) });
        Told { vnic: netdev(name, 1, "vnet3"), held, theirs, port, devices: vec![7] }
    }

    #[test]
    fn what_was_taken_over_is_on_disk_until_the_change_is_accepted() {
        let folder = tempfile::tempdir().expect("a folder");
        let load = || Record::load(folder.path()).expect("it loads").0;
        let full = told("web", Ways::BOTH, true);
        let (mut record, _) = Record::load(folder.path()).expect("nothing there");
        record.set("web", Some(full.clone()));
        record.save().expect("saved");

        // Its rx has no limit any more, it has no segment, and its netdev gets another name.
        record.set("web", Some(told("web", Ways { tx: true, ..Ways::NONE }, false)));
        record.save().expect("saved");
        assert_eq!(load().known(&full.vnic.attach), Some(full.clone()), "an agent that died here");
        record.set("web", None);
        record.save().expect("saved");
        assert_eq!(load().known(&full.vnic.attach), Some(full.clone()));
        assert!(record.is_empty());
        assert_eq!(record.known(&full.vnic.attach), Some(full.clone()), "for one that takes it back");

        record.accepted();
        record.save().expect("saved");
        assert!(load().is_empty());
        assert_eq!(record.known(&full.vnic.attach), None);
    }

    #[test]
    fn what_a_port_had_is_on_disk_before_it_is_touched() {
        let folder = tempfile::tempdir().expect("a folder");
        let load = || Record::load(folder.path()).expect("it loads").0;
        let Told { vnic, held, port, .. } = told("web", Ways::BOTH, false);
        let on_disk = || load().known(&vnic.attach).and_then(|told| told.port);
        let (mut record, _) = Record::load(folder.path()).expect("nothing there");
        record.reserve([(&vnic, held, port.clone())].into_iter()).expect("saved");
        assert_eq!(on_disk(), port, "an agent that died here");

        // It is told, and found on another bridge.
        record.set("web", Some(told("web", Ways::BOTH, false)));
        let moved = Some(Port { index: 7, bridge: 10, vlans: Vlans::access(5) });
        record.get_mut("web").expect("there").port = moved.clone();
        record.note("web").expect("saved");
        assert_eq!(on_disk(), moved);
    }
}
