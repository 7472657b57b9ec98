//! The record of this place: the contract of each function, and the function's settings before its first contract.
//!
//! ```text
//!  reserve: on disk before the function is touched ─▶ enter ─▶ strike ─▶ without contract ─▶ restored ─▶ no entry
//! ```
//!
//! An entry belongs to a function, not to a contract: the settings before the first contract stay on record while the function goes
//! from contract to contract, and are restored when the last one goes.

use crate::device::Function;
use serde::{Deserialize, Serialize};
use std::path::Path;
use tidegate_contract::{Attach, Vnic};
use tidegate_durable::{DurableError, Journal};

/// One function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its contract; `None` before the contract is in force, and after it went until `before` is restored.
    pub vnic: Option<Vnic>,
    /// Its settings before any contract.
    pub before: Function,
}

/// Entries by function, as `PF/INDEX`.
#[derive(Debug)]
pub struct Record(Journal<String, Entry>);

impl Record {
    /// Reads the record in the state folder. The second value describes damage.
    pub fn load(state: &Path) -> Result<(Self, Option<String>), DurableError> {
        let (journal, damage) = Journal::load(state.join("nic.json"))?;
        Ok((Self(journal), damage))
    }

    /// All contracts, in the order of their functions.
    pub fn vnics(&self) -> impl Iterator<Item = &Vnic> {
        self.0.entries().values().filter_map(|entry| entry.vnic.as_ref())
    }

    /// The settings of a function before any contract.
    pub fn before(&self, attach: &Attach) -> Option<&Function> {
        self.0.get(&key(attach)?).map(|entry| &entry.before)
    }

    /// The function has this contract now. Its former settings were reserved.
    pub fn enter(&mut self, vnic: &Vnic) {
        if let Some(entry) = self.entry(vnic) {
            entry.vnic = Some(vnic.clone());
        }
    }

    /// The function has no contract any more; its entry stays until its former settings are restored.
    pub fn strike(&mut self, vnic: &Vnic) {
        let has_it = |entry: &&mut Entry| entry.vnic.as_ref().is_some_and(|v| v.name == vnic.name);
        if let Some(entry) = self.entry(vnic).filter(has_it) {
            entry.vnic = None;
        }
    }

    fn entry(&mut self, vnic: &Vnic) -> Option<&mut Entry> {
        self.0.entries_mut().get_mut(&key(&vnic.attach)?)
    }

    /// Functions without a contract: NIC, and the settings to restore.
    pub fn to_restore(&self) -> Vec<(String, Function)> {
        let entries = self.0.entries().iter().filter(|(_, entry)| entry.vnic.is_none());
        entries
            .filter_map(|(key, entry)| Some((key.rsplit_once('/')?.0.to_owned(), entry.before.clone())))
            .collect()
    }

    /// The former settings of a function are restored.
    pub fn restored(&mut self, pf: &str, index: u16) {
        let restored = format!("{pf}/{index}");
        self.0.entries_mut().retain(|key, entry| entry.vnic.is_some() || *key != restored);
    }

    /// Writes the former settings of functions to disk before the functions are touched.
    ///
    /// # Errors
    /// The file cannot be written; the record is unchanged.
    pub fn reserve<'a>(
        &mut self,
        coming: impl Iterator<Item = (&'a Attach, Function)>,
    ) -> Result<(), DurableError> {
        let coming = coming.filter_map(|(attach, before)| Some((key(attach)?, before)));
        self.0.change(|all| {
            for (key, before) in coming {
                all.entry(key).or_insert(Entry { vnic: None, before });
            }
        })
    }

    /// Writes the record to disk, if it changed or the file is gone.
    pub fn save(&mut self) -> Result<(), DurableError> {
        self.0.save()
    }
}

fn key(attach: &Attach) -> Option<String> {
    match attach {
        Attach::Vf { pf, index, .. } => Some(format!("{pf}/{index}")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_testkit::contract::vf;

    #[test]
    fn the_settings_of_a_function_stay_on_record_until_its_last_contract_goes() {
        let folder = tempfile::tempdir().expect("a folder");
        let load = || Record::load(folder.path()).expect("it loads").0;
        let mut record = load();
        let (a, b) = (vf("a", 1, "eth1", 2), vf("b", 2, "eth1", 2));
        let before = Function { index: 2, vlan: Some(7), ..Function::default() };
        record.reserve([(&a.attach, before.clone())].into_iter()).expect("saved");
        assert_eq!(load().before(&a.attach), Some(&before), "an agent that died here");
        assert_eq!(load().vnics().next(), None);

        record.enter(&a);
        // The function goes from one VM to another in one change, and was `a`'s when `b` was looked at.
        record.strike(&a);
        record.reserve([(&b.attach, Function::default())].into_iter()).expect("saved");
        record.enter(&b);
        record.strike(&a);
        assert_eq!(record.to_restore(), []);
        record.save().expect("saved");
        let mut record = load();
        assert_eq!(record.vnics().collect::<Vec<_>>(), [&b]);
        assert_eq!(record.before(&b.attach), Some(&before));
        record.strike(&b);
        assert_eq!(record.before(&b.attach), Some(&before), "for one that takes it back");
        record.save().expect("saved");
        let mut record = load();
        assert_eq!(
            record.to_restore(),
            [("eth1".into(), before)],
            "an agent that died before it restored them"
        );
        record.restored("eth1", 2);
        record.save().expect("saved");
        assert_eq!(load().before(&b.attach), None);
    }
}
