//! The contracts this place was told to keep, over restarts: what is on a netdev of theirs is ours to put right.

use crate::durable::{Durable, DurableError};
use std::collections::BTreeMap;
use std::path::Path;
use tidegate_contract::Vnic;

/// By name.
#[derive(Debug)]
pub struct Record {
    told: BTreeMap<String, Vnic>,
    /// As it is on disk.
    saved: BTreeMap<String, Vnic>,
    file: Durable,
}

impl Record {
    /// Reads the record in the state directory; the second value is what was damaged.
    pub fn load(state: &Path) -> Result<(Self, Option<String>), DurableError> {
        let file = Durable::new(state.join("kernel.json"));
        let loaded = file.load::<BTreeMap<String, Vnic>>()?;
        let told = loaded.value.unwrap_or_default();
        Ok((Self { saved: told.clone(), told, file }, loaded.damage))
    }

    /// All of them, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Vnic> {
        self.told.values()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.told.is_empty()
    }

    /// Enters a contract, or strikes it out; what was there before. Saved with the next [`Record::save`].
    pub fn set(&mut self, name: &str, vnic: Option<Vnic>) -> Option<Vnic> {
        match vnic {
            Some(vnic) => self.told.insert(name.to_owned(), vnic),
            None => self.told.remove(name),
        }
    }

    /// Puts on disk what may be told next, beside what is there: a disk that is full is noticed before anything is touched.
    pub fn reserve<'a>(&mut self, vnics: impl Iterator<Item = &'a Vnic>) -> Result<(), DurableError> {
        let mut all = self.told.clone();
        for vnic in vnics {
            all.entry(vnic.name.clone()).or_insert_with(|| vnic.clone());
        }
        self.write(all)
    }

    /// Writes it to disk, where it changed or is gone from there.
    pub fn save(&mut self) -> Result<(), DurableError> {
        self.write(self.told.clone())
    }

    fn write(&mut self, all: BTreeMap<String, Vnic>) -> Result<(), DurableError> {
        if all != self.saved || (!all.is_empty() && !self.file.exists()) {
            self.file.save(&all)?;
            self.saved = all;
        }
        Ok(())
    }
}
