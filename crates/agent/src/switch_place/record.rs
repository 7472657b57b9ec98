//! What this agent made, kept over restarts: so that it removes what is its own and nothing else.

use super::socket::Earlier;
use crate::durable::{Durable, DurableError};
use crate::paths::Inode;
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
    /// As it was found, while the change that takes it over from somebody else is not accepted yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<Vnic>,
}

impl Made {
    /// What we know of the file at its socket path.
    pub fn earlier(&self) -> Earlier {
        self.socket.map_or(Earlier::Intended, Earlier::Made)
    }

    /// Whether it says at least that this vNIC is ours, with this attachment.
    fn covers(&self, vnic: &Vnic) -> bool {
        self.vnic.attach == vnic.attach
    }
}

/// All vNICs of ours.
#[derive(Debug)]
pub struct Record {
    made: BTreeMap<String, Made>,
    /// As it is on disk.
    saved: BTreeMap<String, Made>,
    file: Durable,
}

impl Record {
    /// Reads the record in the state directory; the second value is what was damaged.
    pub fn load(state: &Path) -> Result<(Self, Option<String>), DurableError> {
        let file = Durable::new(state.join("switch.json"));
        let loaded = file.load::<BTreeMap<String, Made>>()?;
        let made = loaded.value.unwrap_or_default();
        Ok((Self { saved: made.clone(), made, file }, loaded.damage))
    }

    /// One entry.
    pub fn get(&self, name: &str) -> Option<&Made> {
        self.made.get(name)
    }

    /// All entries.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Made)> {
        self.made.iter()
    }

    /// Puts vNICs on disk that may be made next, all at once: a disk that is full is noticed before anything is
    /// touched.
    pub fn reserve<'a>(&mut self, vnics: impl Iterator<Item = &'a Vnic>) -> Result<(), DurableError> {
        let mut all = self.made.clone();
        for vnic in vnics.filter(|v| !self.made.contains_key(&v.name)) {
            all.insert(vnic.name.clone(), Made { vnic: vnic.clone(), socket: None, found: None });
        }
        self.write(all)
    }

    /// Enters a vNIC before it is made, and sees to it that it is on disk, so that nothing we make is ever
    /// forgotten.
    pub fn intend(&mut self, vnic: &Vnic) -> Result<(), DurableError> {
        let before = self.made.get(&vnic.name).cloned();
        let socket = before.as_ref().filter(|made| made.covers(vnic)).and_then(|made| made.socket);
        self.put(vnic, socket);
        self.on_disk(vnic, before)
    }

    /// As [`Record::intend`], for a socket file that is about to be made anew: until it is entered, the one there
    /// may be the one before or the new one.
    pub fn intend_socket(&mut self, vnic: &Vnic) -> Result<(), DurableError> {
        let before = self.made.get(&vnic.name).cloned();
        self.put(vnic, None);
        if self.saved.get(&vnic.name).is_some_and(|saved| saved.covers(vnic) && saved.socket.is_none()) {
            return Ok(());
        }
        self.on_disk(vnic, before)
    }

    fn on_disk(&mut self, vnic: &Vnic, before: Option<Made>) -> Result<(), DurableError> {
        let known = self.saved.get(&vnic.name).is_some_and(|saved| saved.covers(vnic));
        if known && self.saved.get(&vnic.name) == self.made.get(&vnic.name) {
            return Ok(());
        }
        match self.save() {
            // It is ours by what is on disk: a full disk must not keep what was promised away.
            Err(error) if known => {
                tracing::warn!(vnic = vnic.name, %error, "cannot note its socket");
                Ok(())
            }
            Err(error) => {
                self.set(&vnic.name, before);
                Err(error)
            }
            Ok(()) => Ok(()),
        }
    }

    /// Enters what is there now; saved with the next [`Record::save`].
    pub fn put(&mut self, vnic: &Vnic, socket: Option<Inode>) {
        let found = self.made.get(&vnic.name).and_then(|made| made.found.clone());
        self.made.insert(vnic.name.clone(), Made { vnic: vnic.clone(), socket, found });
    }

    /// Enters a vNIC of somebody else, which a change is about to take over, and saves.
    pub fn find(&mut self, vnic: &Vnic, socket: Option<Inode>) -> Result<(), DurableError> {
        let before = self.made.get(&vnic.name).cloned();
        let found = Made { vnic: vnic.clone(), socket, found: Some(vnic.clone()) };
        self.made.insert(vnic.name.clone(), found);
        self.save().inspect_err(|_| self.set(&vnic.name, before))
    }

    /// What was taken over is ours for good.
    pub fn own(&mut self, name: &str) -> Result<(), DurableError> {
        if let Some(made) = self.made.get_mut(name) {
            made.found = None;
        }
        self.save()
    }

    /// Sets an entry back to what it was.
    pub fn set(&mut self, name: &str, made: Option<Made>) {
        match made {
            Some(made) => self.made.insert(name.to_owned(), made),
            None => self.made.remove(name),
        };
    }

    /// Strikes an entry out; saved with the next [`Record::save`].
    pub fn remove(&mut self, name: &str) -> Option<Made> {
        self.made.remove(name)
    }

    /// Writes it to disk, where it changed or is gone from there.
    pub fn save(&mut self) -> Result<(), DurableError> {
        self.write(self.made.clone())
    }

    fn write(&mut self, all: BTreeMap<String, Made>) -> Result<(), DurableError> {
        if all != self.saved || (!all.is_empty() && !self.file.exists()) {
            self.file.save(&all)?;
            self.saved = all;
        }
        Ok(())
    }
}
