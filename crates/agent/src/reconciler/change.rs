//! Changes by the API: a text of contracts, single keys, a removal.
//!
//! ```text
//!  wanted: a copy of the contracts, changed ─▶ enact ─▶ in force, saved, shown ─▶ what changed
//!                                        └──▶ dry run ───────────────────────────┘
//! ```

use super::{Reconciler, check, diff};
use crate::commands::ApplyError;
use crate::store::{Contracts, Owned, Owner};
use crate::views::{PlanView, VnicChange};
use std::collections::BTreeSet;
use std::path::Path;
use tidegate_contract::{Errors, Located, Remote, Table, Vnic, parse, set_key};
use tidegate_place::Adopt;

impl Reconciler {
    pub fn apply(
        &mut self,
        text: &str,
        origin: &str,
        owner: &Owner,
        prune: bool,
        adopt: Adopt,
        dry_run: bool,
    ) -> Result<PlanView, ApplyError> {
        let document = parse(text, origin).map_err(ApplyError::Invalid)?;
        // Too many vNICs are refused before any comparison.
        match check::within("vNICs", document.vnics.len(), check::MOST_VNICS) {
            Some(why) if dry_run => return Ok(PlanView { refusals: vec![why], ..PlanView::default() }),
            Some(why) => return Err(ApplyError::Refused(vec![why])),
            None => {}
        }
        let named: BTreeSet<String> = document.vnics.iter().map(|v| v.value.name.clone()).collect();
        let mut wanted = self.contracts.clone();
        let file = Path::new(origin);
        let merged = if dry_run && *owner == Owner::Api && self.files.reads(file) {
            // Plans as if the file had this text: its vNICs are its own.
            wanted.set_file(file, Some(document));
            Ok(())
        } else {
            wanted.merge(owner, document, prune).map_err(ApplyError::from)
        };
        let mut vnics = diff::vnics(&self.contracts, &wanted, &named);
        let host = diff::host(&self.contracts, &wanted);
        let tables = diff::tables(&self.contracts, &wanted);
        let mut hints = Vec::new();
        let outcome = merged.and_then(|()| {
            if dry_run { self.dry_run(&wanted, adopt, &mut hints) } else { self.enact(wanted, adopt) }
        });
        // The answer shows promises and states after the change.
        if !dry_run && outcome.is_ok() {
            self.changed();
        }
        let (admission, refusals) = match outcome {
            Ok(checked) => {
                hints.extend(checked.unread_keys);
                for (vnic, notes) in checked.notes.iter().filter(|(name, _)| named.contains(*name)) {
                    hints.extend(notes.iter().map(|n| format!("{vnic}: {n}")));
                }
                (self.admission_view(&checked.admission), vec![])
            }
            Err(e) if !dry_run => return Err(e),
            Err(ApplyError::Refused(why) | ApplyError::Failed(why)) => (Default::default(), why),
            Err(ApplyError::Invalid(Errors(errors))) => {
                (Default::default(), errors.iter().map(ToString::to_string).collect())
            }
            Err(e) => (Default::default(), vec![e.to_string()]),
        };
        self.add_what_is_not_in_force(&mut vnics, dry_run);
        Ok(PlanView {
            applied: !dry_run,
            admissible: refusals.is_empty(),
            refusals,
            vnics,
            host,
            tables,
            admission,
            notes: hints,
        })
    }

    pub(super) fn set(&mut self, name: &str, keys: &[(String, String)]) -> Result<VnicChange, ApplyError> {
        let old = self.contracts.vnic(name).ok_or_else(|| self.no_contract(name))?;
        let new = set_key(old, keys).map_err(ApplyError::Invalid)?;
        self.change(name, |wanted| wanted.set(&Owner::Api, Located::without_line(new, "API")))
    }

    pub(super) fn remove(&mut self, name: &str) -> Result<VnicChange, ApplyError> {
        self.contracts.vnic(name).ok_or_else(|| self.no_contract(name))?;
        let naming = self.naming_tables(name);
        let removed = self.change(name, |wanted| wanted.remove_api(name).map(drop));
        removed.map_err(|error| match (error, naming) {
            // The broken rule says where, and not what to do.
            (ApplyError::Invalid(_), Some(naming)) => ApplyError::Needed(naming),
            (error, _) => error,
        })
    }

    /// Says which vNICs and remotes name `name` in their `to`, and what to do first; `None` if none does.
    fn naming_tables(&self, name: &str) -> Option<String> {
        fn naming<T: Table>(
            name: &str,
            to: &[String],
            (owner, table): (Owner, &Located<T>),
        ) -> Option<String> {
            let other = table.value.name();
            (other != name && to.iter().any(|to| to == name)).then(|| match owner {
                Owner::File(_) => format!("{other} ({})", table.place()),
                _ => other.into_owned(),
            })
        }
        let vnics = self.contracts.all::<Vnic>().filter_map(|(o, v)| naming(name, &v.value.to, (o, v)));
        let remotes = self.contracts.all::<Remote>().filter_map(|(o, r)| naming(name, &r.value.to, (o, r)));
        let mut others: Vec<String> = vnics.chain(remotes).collect();
        others.sort();
        match &others[..] {
            [] => None,
            [one] => Some(format!(
                "{one} names {name} in its \"to\": remove {one} first, or take {name} out of its \"to\""
            )),
            several => Some(format!(
                "{} name {name} in their \"to\": remove these vNICs first, or take {name} out of their \"to\"",
                several.join(", ")
            )),
        }
    }

    /// Returns the error for a name without a contract, which a refused file may name.
    pub(super) fn no_contract(&self, name: &str) -> ApplyError {
        match self.refused_vnics().remove(name) {
            Some((by, _)) => {
                Owned { what: format!("vNIC {name}"), owner: Owner::File(by.file.into()) }.into()
            }
            None => ApplyError::NoVnic(name.into()),
        }
    }

    fn change(
        &mut self,
        name: &str,
        change: impl FnOnce(&mut Contracts) -> Result<(), Owned>,
    ) -> Result<VnicChange, ApplyError> {
        let mut wanted = self.contracts.clone();
        change(&mut wanted)?;
        let mut changes = diff::vnics(&self.contracts, &wanted, &[name.to_owned()].into());
        self.enact(wanted, Adopt::No)?;
        self.changed();
        self.add_what_is_not_in_force(&mut changes, false);
        changes.into_iter().next().ok_or_else(|| ApplyError::NoVnic(name.into()))
    }

    /// Follows a change: retries refused files, which may fit now, and publishes the new state at once.
    pub(super) fn changed(&mut self) {
        self.problem("state", None);
        self.retry_files();
        self.observe();
        self.publish();
    }
}
