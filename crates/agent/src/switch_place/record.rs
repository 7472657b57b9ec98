//! What this agent made, kept over restarts: so that it removes what is its own and nothing else.

use super::socket::{Earlier, Inode};
use crate::durable::{Durable, DurableError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use tidegate_contract::Vnic;

/// One vNIC of ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    /// The contract it was last given.
    pub vnic: Vnic,
    /// Its socket file; `None` where it has none, or we died while making it.
    pub socket: Option<Inode>,
}

impl Made {
    /// What we know of the file at its socket path.
    pub fn earlier(&self) -> Earlier {
        self.socket.map_or(Earlier::Intended, Earlier::Made)
    }
}

/// All vNICs of ours.
#[derive(Debug)]
pub struct Record {
    made: BTreeMap<String, Made>,
    file: Durable,
    dirty: bool,
}

impl Record {
    /// Reads the record in the state directory; the second value is what was damaged.
    pub fn load(state: &Path) -> Result<(Self, Option<String>), DurableError> {
        let file = Durable::new(state.join("switch.json"));
        let loaded = file.load()?;
        Ok((Self { made: loaded.value.unwrap_or_default(), file, dirty: false }, loaded.damage))
    }

    /// One entry.
    pub fn get(&self, name: &str) -> Option<&Made> {
        self.made.get(name)
    }

    /// All entries.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Made)> {
        self.made.iter()
    }

    /// Enters a vNIC before it is made and saves, so that nothing we make is ever forgotten.
    pub fn intend(&mut self, vnic: &Vnic) -> Result<(), DurableError> {
        let socket =
            self.made.get(&vnic.name).filter(|m| m.vnic.attach == vnic.attach).and_then(|m| m.socket);
        self.put(vnic, socket);
        self.save()
    }

    /// Enters what is there now; saved with the next [`Record::save`].
    pub fn put(&mut self, vnic: &Vnic, socket: Option<Inode>) {
        self.made.insert(vnic.name.clone(), Made { vnic: vnic.clone(), socket });
        self.dirty = true;
    }

    /// Strikes an entry out; saved with the next [`Record::save`].
    pub fn remove(&mut self, name: &str) -> Option<Made> {
        self.dirty = true;
        self.made.remove(name)
    }

    /// Writes it to disk, where it changed.
    pub fn save(&mut self) -> Result<(), DurableError> {
        if self.dirty {
            self.file.save(&self.made)?;
            self.dirty = false;
        }
        Ok(())
    }
}
