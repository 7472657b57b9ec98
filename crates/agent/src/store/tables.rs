//! Tables of one kind, by owner: vNICs, uplinks, remotes, keys of segments.

use super::Contracts;
use super::owner::{Owned, Owner};
use std::collections::{HashMap, HashSet};
use tidegate_contract::{Document, Located, Table};

impl Contracts {
    /// Adds and changes tables of `owner`; with `prune` removes its others of this kind.
    pub(super) fn merge_tables<T: Table + PartialEq + 'static>(
        &mut self,
        owner: &Owner,
        tables: Vec<Located<T>>,
        prune: bool,
    ) -> Result<(), Owned> {
        let named: HashMap<_, &T> = tables.iter().map(|new| (new.value.name(), &new.value)).collect();
        if prune {
            T::of_mut(self.document(owner)).retain(|old| named.contains_key(&old.value.name()));
        }
        // A contract that a file already has is no change.
        let mut unchanged = HashSet::new();
        for (other, there) in self.all::<T>().filter(|(other, _)| other != owner) {
            let name = there.value.name();
            match (named.get(&name), &other) {
                (None, _) => {}
                (Some(new), Owner::File(_)) if **new == there.value => {
                    unchanged.insert(name.into_owned());
                }
                (Some(_), _) => return Err(Owned { what: there.value.what(), owner: other }),
            }
        }
        let own = T::of_mut(self.document(owner));
        let mut places: HashMap<String, usize> =
            own.iter().enumerate().map(|(n, old)| (old.value.name().into_owned(), n)).collect();
        for table in tables {
            let name = table.value.name().into_owned();
            if unchanged.contains(&name) {
                continue;
            }
            match places.get(&name) {
                Some(place) => own[*place] = table,
                None => {
                    places.insert(name, own.len());
                    own.push(table);
                }
            }
        }
        Ok(())
    }
}

/// Takes from `others` the tables that `document` names, and adds their names to `taken_over`.
pub(super) fn take_over<T: Table>(others: &mut Document, document: &Document, taken_over: &mut Vec<String>) {
    let named: HashSet<_> = T::of(document).iter().map(|new| new.value.name()).collect();
    T::of_mut(others).retain(|old| {
        let keep = !named.contains(&old.value.name());
        if !keep {
            taken_over.push(old.value.what());
        }
        keep
    });
}
