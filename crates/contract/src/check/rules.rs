//! The rules that a table breaks, as they are found.

use serde::{Deserialize, Serialize};
use std::{collections::HashSet, fmt, hash::Hash, ops::RangeInclusive};

/// A rule that a contract breaks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{key}: {message}")]
pub struct Problem {
    /// The key, from the contract's table on, such as `tx.min`.
    pub key: String,
    /// What was wrong, what was expected, what to do.
    pub message: String,
}

/// The broken rules of one table.
#[derive(Default)]
pub(super) struct Rules(Vec<Problem>);

impl Rules {
    pub(super) fn add_problem(&mut self, key: &str, message: impl ToString) {
        self.0.push(Problem { key: key.into(), message: message.to_string() });
    }

    pub(super) fn check_range<T: PartialOrd + fmt::Display>(
        &mut self,
        key: &str,
        value: T,
        range: RangeInclusive<T>,
    ) {
        if !range.contains(&value) {
            let (min, max) = (range.start(), range.end());
            self.add_problem(key, format!("{value} is out of range; {min} to {max}"));
        }
    }

    /// Requires at most `most` items, and none twice.
    pub(super) fn check_distinct<T: Eq + Hash + fmt::Display>(
        &mut self,
        key: &str,
        items: &[T],
        most: usize,
    ) {
        if items.len() > most {
            self.add_problem(key, format!("{} are listed; at most {most}", items.len()));
            return;
        }
        let mut seen = HashSet::new();
        for item in items {
            if !seen.insert(item) {
                self.add_problem(key, format!("{item} is listed twice"));
            }
        }
    }

    pub(super) fn result(self) -> Result<(), Vec<Problem>> {
        if self.0.is_empty() { Ok(()) } else { Err(self.0) }
    }
}
