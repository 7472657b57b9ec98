//! The contracts this place was told to keep, over restarts, and what their functions were before.
//!
//! ```text
//!  reserve: on disk before anything is touched ─▶ enter ─▶ kept ─▶ strike ─▶ left ── gave back ─▶ gone
//! ```
//!
//! By function, not by contract: what one was before its first contract stays on record while it goes from contract to
//! contract. It is what the function is given back when the last one goes.

use crate::durable::{Durable, DurableError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use tidegate_contract::{Attach, Vnic};
use tidegate_nic::Function;

/// One function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Its contract; none once that has gone, or before it is there, until what was before is given back.
    pub vnic: Option<Vnic>,
    /// What it was before any contract.
    pub before: Function,
}

type All = BTreeMap<String, Held>;

/// By function, as `PF/INDEX`.
#[derive(Debug)]
pub struct Record {
    held: All,
    saved: All,
    file: Durable,
}

impl Record {
    /// Reads the record in the state directory; the second value is what was damaged.
    pub fn load(state: &Path) -> Result<(Self, Option<String>), DurableError> {
        let file = Durable::new(state.join("nic.json"));
        let loaded = file.load::<All>()?;
        let held = loaded.value.unwrap_or_default();
        Ok((Self { saved: held.clone(), held, file }, loaded.damage))
    }

    /// All contracts, in the order of their functions.
    pub fn vnics(&self) -> impl Iterator<Item = &Vnic> {
        self.held.values().filter_map(|held| held.vnic.as_ref())
    }

    /// What a function was before any contract.
    pub fn before(&self, attach: &Attach) -> Option<&Function> {
        self.held.get(&key(attach)?).map(|held| &held.before)
    }

    /// Its function has this contract now. What it was before was reserved.
    pub fn enter(&mut self, vnic: &Vnic) {
        let held = key(&vnic.attach).and_then(|key| self.held.get_mut(&key));
        if let Some(held) = held {
            held.vnic = Some(vnic.clone());
        }
    }

    /// Its function has no contract any more, and is on record until it has got back what it was.
    pub fn strike(&mut self, vnic: &Vnic) {
        let held = key(&vnic.attach).and_then(|key| self.held.get_mut(&key));
        if let Some(held) = held.filter(|held| held.vnic.as_ref().is_some_and(|v| v.name == vnic.name)) {
            held.vnic = None;
        }
    }

    /// What functions were that have no contract: to be given back, by their NIC.
    pub fn left(&self) -> Vec<(String, Function)> {
        let left = self.held.iter().filter(|(_, held)| held.vnic.is_none());
        left.filter_map(|(key, held)| Some((key.rsplit_once('/')?.0.to_owned(), held.before.clone())))
            .collect()
    }

    /// A function has got back what it was.
    pub fn gave_back(&mut self, pf: &str, index: u16) {
        self.held.retain(|key, held| held.vnic.is_some() || *key != format!("{pf}/{index}"));
    }

    /// Puts what functions are on disk before anything of them is touched.
    ///
    /// # Errors
    /// It cannot; nothing is on record then either.
    pub fn reserve<'a>(
        &mut self,
        coming: impl Iterator<Item = (&'a Attach, Function)>,
    ) -> Result<(), DurableError> {
        let known = self.held.clone();
        for (attach, before) in coming {
            if let Some(key) = key(attach) {
                self.held.entry(key).or_insert(Held { vnic: None, before });
            }
        }
        self.save().inspect_err(|_| self.held = known)
    }

    /// Writes it to disk, where it changed or is gone from there.
    pub fn save(&mut self) -> Result<(), DurableError> {
        if self.held != self.saved || (!self.held.is_empty() && !self.file.exists()) {
            self.file.save(&self.held)?;
            self.saved = self.held.clone();
        }
        Ok(())
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
    use crate::testing::vf;

    #[test]
    fn what_a_function_was_stays_until_its_last_contract_goes() {
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
        assert_eq!(record.left(), []);
        record.save().expect("saved");
        let mut record = load();
        assert_eq!(record.vnics().collect::<Vec<_>>(), [&b]);
        assert_eq!(record.before(&b.attach), Some(&before));
        record.strike(&b);
        assert_eq!(record.before(&b.attach), Some(&before), "for one that takes it back");
        record.save().expect("saved");
        let mut record = load();
        assert_eq!(record.left(), [("eth1".into(), before)], "an agent that died before it gave back");
        record.gave_back("eth1", 2);
        record.save().expect("saved");
        assert_eq!(load().before(&b.attach), None);
    }
}
