//! Paths on disk: wanted by contracts in force, or to be released.
//!
//! ```text
//!  accept ─▶ paths.json ─▶ the next agent: asks again on the same terms, without a change being refused
//! ```

use crate::book::{Book, WantedPath};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;
use tidegate_durable::{DurableError, Journal};

/// By name; `None`: to be released.
pub struct Record(Journal<String, Option<WantedPath>>);

impl Record {
    /// Reads the record in the state folder. The second value describes damage.
    pub fn load(state: &Path) -> Result<(Self, Option<String>), DurableError> {
        let (journal, damage) = Journal::load(state.join("paths.json"))?;
        Ok((Self(journal), damage))
    }

    /// Returns the paths as they are asked for at `now`.
    pub fn book(&self, now: Instant) -> Book {
        let mut book = Book::default();
        for (name, wanted) in self.0.entries() {
            match wanted {
                Some(wanted) => book.ask(wanted.clone(), now),
                None => book.release(name, now),
            }
        }
        book
    }

    /// Writes the paths of a book, if they changed.
    pub fn keep(&mut self, book: &Book) -> Result<(), DurableError> {
        let wanted = book.entries().iter().map(|(name, entry)| (name.clone(), Some(entry.wanted.clone())));
        let all: BTreeMap<String, Option<WantedPath>> =
            wanted.chain(book.leaving().map(|name| (name.clone(), None))).collect();
        self.0.write(all)
    }
}
