//! A place in less than 150 lines: it "enforces" a contract on a netdev by a file.
//!
//! ```text
//!  Attach::Netdev { name } ──▶ FOLDER/enforced/NAME: TOML       record: FOLDER/state/toy.json
//! ```
//!
//! Each place has such parts: an action, a plan by [`differences`], a record, steps at which the process
//! may die ([`cut::point`]).

use std::path::{Path, PathBuf};
use std::{collections::BTreeMap, fs};
use tidegate_contract::{Attach, Vnic, parse};
use tidegate_durable::{DurableError, Journal, cut};
use tidegate_evidence::Connection;
use tidegate_place::difference::{changes, differences};
use tidegate_place::host::Claim;
use tidegate_place::{
    Capabilities, ContractChange, Observed, ObservedVnic, Place, PlaceError, Plan, Refusal, Wanted,
};

/// The toy place.
#[derive(Debug)]
pub struct ToyPlace {
    /// Name, for tests with several places.
    pub name: &'static str,
    enforced: PathBuf,
    record: Journal<String, Vnic>,
    /// Host resources that the place claims.
    pub claims: Vec<Claim>,
}

impl ToyPlace {
    /// Makes the place in `folder`.
    ///
    /// # Errors
    /// The record cannot be read.
    ///
    /// # Panics
    /// The folder cannot be made.
    pub fn new(folder: &Path) -> Result<Self, DurableError> {
        let enforced = folder.join("enforced");
        fs::create_dir_all(&enforced).expect("a folder of this test");
        let (record, _) = Journal::load(folder.join("state/toy.json"))?;
        Ok(Self { name: "toy", enforced, record, claims: vec![] })
    }

    /// Returns the contracts in the files, by vNIC.
    ///
    /// # Panics
    /// A file holds no contract.
    pub fn in_force(&self) -> BTreeMap<String, Vnic> {
        let files = fs::read_dir(&self.enforced).expect("made by new").flatten();
        let vnics = files.map(|file| {
            let text = fs::read_to_string(file.path()).expect("a file of this place");
            parse(&text, "toy").expect("a contract").vnics.remove(0).value
        });
        vnics.map(|vnic| (vnic.name.clone(), vnic)).collect()
    }

    fn file(&self, vnic: &Vnic) -> Option<PathBuf> {
        if let Attach::Netdev { name } = &vnic.attach { Some(self.enforced.join(name)) } else { None }
    }

    fn enforce(&mut self, vnic: &Vnic) -> Result<(), PlaceError> {
        self.record.set(vnic.name.clone(), Some(vnic.clone()));
        self.record.save().map_err(failed)?;
        cut::point();
        let file = self.file(vnic).ok_or_else(|| failed("no netdev"))?;
        let new = self.enforced.with_extension("new");
        // A rename replaces all of the file or nothing.
        fs::write(&new, vnic.to_toml()).and_then(|()| fs::rename(&new, file)).map_err(failed)?;
        cut::point();
        Ok(())
    }

    fn release(&mut self, vnic: &Vnic) -> Result<(), PlaceError> {
        if let Some(file) = self.file(vnic).filter(|_| self.in_force().contains_key(&vnic.name)) {
            fs::remove_file(file).map_err(failed)?;
        }
        cut::point();
        self.record.set(vnic.name.clone(), None);
        self.record.save().map_err(failed)
    }
}

fn failed(error: impl ToString) -> PlaceError {
    PlaceError::Failed(error.to_string())
}

impl Place for ToyPlace {
    type Action = ContractChange;
    type Facts = ();

    fn name(&self) -> &'static str {
        self.name
    }

    fn unit(&self) -> &'static str {
        tidegate_place::AGENT
    }

    fn capabilities(&self, attach: &Attach) -> Option<Capabilities> {
        let ours = matches!(attach, Attach::Netdev { .. });
        ours.then(|| Capabilities { deadline: false, min: false, uplink: false, notes: vec![] })
    }

    fn notes(&self, _: &Vnic) -> Vec<String> {
        vec![]
    }

    fn plan(
        &self,
        wanted: &Wanted<'_>,
        observed: &Observed,
        (): &(),
    ) -> Result<Plan<ContractChange>, Vec<Refusal>> {
        let in_place = |from: &Vnic, to: &Vnic| from.attach == to.attach;
        let (removals, others) = changes(&differences(wanted.vnics, &observed.vnics, in_place));
        Ok(Plan { actions: [removals, others].concat(), claims: self.claims.clone() })
    }

    fn prepare(&mut self, _: &[&ContractChange]) -> Result<(), PlaceError> {
        Ok(())
    }

    fn apply(&mut self, action: &ContractChange) -> Result<(), PlaceError> {
        match action {
            ContractChange::Create(vnic) | ContractChange::Change { to: vnic, .. } => self.enforce(vnic),
            ContractChange::Remove(vnic) => self.release(vnic),
        }
    }

    fn accept(&mut self, _: &[Vnic]) {}

    fn observe(&mut self, _: &[Vnic]) -> Result<(Observed, ()), PlaceError> {
        let mut observed = Observed::nothing("files");
        let mut enforced = self.in_force();
        for (name, recorded) in self.record.entries() {
            let there = enforced.remove(name);
            let vnic = ObservedVnic::of(there.as_ref().unwrap_or(recorded), Connection::Up);
            observed.vnics.insert(name.clone(), ObservedVnic { present: there.is_some(), ..vnic });
        }
        Ok((observed, ()))
    }

    fn recorded(&self) -> Vec<Vnic> {
        self.record.entries().values().cloned().collect()
    }
}
