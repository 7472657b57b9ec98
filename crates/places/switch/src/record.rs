//! The record of this place: the vNICs that this agent, or a predecessor with the same state folder, made. The agent removes these
//! and no others.

use serde::{Deserialize, Serialize};
use std::path::Path;
use tidegate_contract::Vnic;
use tidegate_durable::{DurableError, Journal};
use tidegate_paths::Inode;
use tidegate_paths::socket::Earlier;

/// One vNIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its contract.
    pub vnic: Vnic,
    /// Its socket file; `None` if it has none, or the agent died while it made the file.
    pub socket: Option<Inode>,
    /// The contract of the agent that made it, until the change that adopts it is accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<Vnic>,
}

impl Entry {
    /// The file at its socket path; `None` if this agent did not make it.
    pub fn earlier(&self) -> Earlier {
        self.socket.map_or(Earlier::Intended, Earlier::Made)
    }

    /// Whether it records at least that this vNIC is ours, with this attachment.
    fn covers(&self, vnic: &Vnic) -> bool {
        self.vnic.attach == vnic.attach
    }
}

/// Entries by vNIC.
#[derive(Debug)]
pub struct Record(Journal<String, Entry>);

impl Record {
    /// Reads the record in the state folder. The second value describes damage.
    pub fn load(state: &Path) -> Result<(Self, Option<String>), DurableError> {
        let (journal, damage) = Journal::load(state.join("switch.json"))?;
        Ok((Self(journal), damage))
    }

    /// One entry.
    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.0.get(name)
    }

    /// All entries.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Entry)> {
        self.0.entries().iter()
    }

    /// Writes coming vNICs to disk, once for a whole change: a full disk is noticed before anything is touched.
    pub fn reserve<'a>(&mut self, vnics: impl Iterator<Item = &'a Vnic>) -> Result<(), DurableError> {
        let mut all = self.0.entries().clone();
        for vnic in vnics.filter(|v| self.get(&v.name).is_none()) {
            all.insert(vnic.name.clone(), Entry { vnic: vnic.clone(), socket: None, found: None });
        }
        self.0.write(all)
    }

    /// Enters a vNIC before it is made, and sees to it that it is on disk: a successor knows everything that this agent made.
    pub fn intend(&mut self, vnic: &Vnic) -> Result<(), DurableError> {
        let before = self.get(&vnic.name).cloned();
        let socket = before.as_ref().filter(|entry| entry.covers(vnic)).and_then(|entry| entry.socket);
        self.put(vnic, socket);
        self.write_unless_on_disk(vnic, before)
    }

    /// As [`Record::intend`], for a socket file that is about to be made anew: until the new file is entered, the file at the path may
    /// be either.
    pub fn intend_socket(&mut self, vnic: &Vnic) -> Result<(), DurableError> {
        let before = self.get(&vnic.name).cloned();
        self.put(vnic, None);
        if self.0.saved(&vnic.name).is_some_and(|saved| saved.covers(vnic) && saved.socket.is_none()) {
            return Ok(());
        }
        self.write_unless_on_disk(vnic, before)
    }

    fn write_unless_on_disk(&mut self, vnic: &Vnic, before: Option<Entry>) -> Result<(), DurableError> {
        let saved = self.0.saved(&vnic.name);
        let covered = saved.is_some_and(|saved| saved.covers(vnic));
        if covered && saved == self.get(&vnic.name) {
            return Ok(());
        }
        match self.save() {
            // The vNIC is ours by the entry on disk: a full disk must not break what was promised.
            Err(error) if covered => {
                tracing::warn!(vnic = vnic.name, %error, "cannot record its socket");
                Ok(())
            }
            Err(error) => {
                self.set(&vnic.name, before);
                Err(error)
            }
            Ok(()) => Ok(()),
        }
    }

    /// Enters the vNIC with its socket file; [`Record::save`] writes it.
    pub fn put(&mut self, vnic: &Vnic, socket: Option<Inode>) {
        let found = self.get(&vnic.name).and_then(|entry| entry.found.clone());
        self.0.set(vnic.name.clone(), Some(Entry { vnic: vnic.clone(), socket, found }));
    }

    /// Enters another agent's vNIC, which a change is about to adopt, and saves.
    pub fn find(&mut self, vnic: &Vnic, socket: Option<Inode>) -> Result<(), DurableError> {
        let found = Entry { vnic: vnic.clone(), socket, found: Some(vnic.clone()) };
        self.0.change(|all| drop(all.insert(vnic.name.clone(), found)))
    }

    /// An adopted vNIC is ours for good; [`Record::save`] writes it.
    pub fn own(&mut self, name: &str) {
        if let Some(entry) = self.0.entries_mut().get_mut(name) {
            entry.found = None;
        }
    }

    /// Sets or removes an entry; [`Record::save`] writes it.
    pub fn set(&mut self, name: &str, entry: Option<Entry>) {
        self.0.set(name.to_owned(), entry);
    }

    /// Removes an entry; [`Record::save`] writes it.
    pub fn remove(&mut self, name: &str) -> Option<Entry> {
        self.0.set(name.to_owned(), None)
    }

    /// Writes the record to disk, if it changed or the file is gone.
    pub fn save(&mut self) -> Result<(), DurableError> {
        self.0.save()
    }
}
