//! What only one table may have, and the errors that name both places.

use crate::{Error, Located, Table};
use std::{collections::HashMap, hash::Hash};

/// The first table by each key that only one may have.
pub(super) struct FirstOwners<'a, K, T>(pub HashMap<K, &'a Located<T>>);

impl<K, T> Default for FirstOwners<'_, K, T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<'a, K: Eq + Hash, T> FirstOwners<'a, K, T> {
    /// Returns the table that has `key`; `None` if `table` is the first.
    pub(super) fn register(&mut self, key: K, table: &'a Located<T>) -> Option<&'a Located<T>> {
        match self.0.entry(key) {
            std::collections::hash_map::Entry::Occupied(first) => Some(first.get()),
            std::collections::hash_map::Entry::Vacant(free) => {
                free.insert(table);
                None
            }
        }
    }
}

/// Makes the error of one key of a table.
pub(super) fn error_at<T: Table>(table: &Located<T>, key: &str, message: String) -> Error {
    let separator = if key.is_empty() { "" } else { "." };
    Error {
        file: table.file.clone(),
        line: table.line,
        column: 0,
        key: format!("{}.{}{separator}{key}", T::KIND, table.value.name()),
        message,
        excerpt: None,
    }
}
