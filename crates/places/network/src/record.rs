//! Paths on disk: wanted by contracts in force, or to be released.
//!
//! ```text
//!  accept ─▶ paths.json ─▶ the next agent: asks again on the same terms, without a change being refused, and
//!                          knows which pairs the network has room for
//! ```

use crate::book::{Book, Entry, WantedPath};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;
use tidegate_controller_api::PathRequest;
use tidegate_durable::{DurableError, Journal};

/// By name; `None`: to be released.
pub struct Record(Journal<String, Option<Kept>>);

/// A wanted path on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    #[serde(flatten)]
    wanted: WantedPath,
    /// What the network has for it.
    #[serde(default)]
    granted: Option<PathRequest>,
}

impl Record {
    /// Reads the record in the state folder. The second value describes damage.
    pub fn load(state: &Path) -> Result<(Self, Option<String>), DurableError> {
        let (journal, damage) = Journal::load(state.join("paths.json"))?;
        Ok((Self(journal), damage))
    }

    /// Returns the paths as they are asked for at `now`.
    pub fn book(&self, now: Instant) -> Book {
        let mut book = Book::default();
        for (name, kept) in self.0.entries() {
            let Some(Kept { wanted, granted }) = kept else {
                book.release(name, now);
                continue;
            };
            book.ask(wanted.clone(), now);
            if let Some(granted) = granted {
                book.had(&wanted.terms.name(), granted.clone());
            }
        }
        book
    }

    /// Writes the paths of a book, if they changed.
    pub fn keep(&mut self, book: &Book) -> Result<(), DurableError> {
        let kept = |entry: &Entry| Kept { wanted: entry.wanted.clone(), granted: entry.granted().cloned() };
        let wanted = book.entries().iter().map(|(name, entry)| (name.clone(), Some(kept(entry))));
        let all: BTreeMap<String, Option<Kept>> =
            wanted.chain(book.leaving().map(|name| (name.clone(), None))).collect();
        self.0.write(all)
    }
}
