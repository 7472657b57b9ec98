//! A journal: a place's entries by key, in memory and on disk.
//!
//! ```text
//!  reserve ─▶ on disk: present and coming entries ─▶ the place acts ─▶ insert, remove: in memory ─▶ save ─▶ on disk
//! ```
//!
//! An entry is on disk before the place does the first thing that the entry describes. So a successor knows everything that its
//! predecessor made, and at most a few things more.

use crate::{DurableError, StateFile};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Entries by key.
#[derive(Debug)]
pub struct Journal<K, E> {
    entries: BTreeMap<K, E>,
    saved: BTreeMap<K, E>,
    file: StateFile,
    write: fn(&StateFile, &BTreeMap<K, E>) -> Result<(), DurableError>,
}

impl<E: Clone + PartialEq + Serialize + DeserializeOwned> Journal<String, E> {
    /// Reads a journal that is a JSON object on disk. The second value describes damage.
    ///
    /// # Errors
    /// As [`StateFile::load`].
    pub fn load(path: PathBuf) -> Result<(Self, Option<String>), DurableError> {
        let file = StateFile::new(path);
        let loaded = file.load()?;
        Ok((Self::with(file, loaded.value.unwrap_or_default(), |file, all| file.save(all)), loaded.damage))
    }
}

impl<K, E> Journal<K, E>
where
    K: Clone + Ord + Serialize + for<'de> Deserialize<'de>,
    E: Clone + PartialEq + Serialize + DeserializeOwned,
{
    /// As [`Journal::load`], of a journal that is a list of pairs on disk, because its keys are no strings.
    ///
    /// # Errors
    /// As [`StateFile::load`].
    pub fn load_pairs(path: PathBuf) -> Result<(Self, Option<String>), DurableError> {
        let file = StateFile::new(path);
        let loaded = file.load::<Vec<(K, E)>>()?;
        let entries = loaded.value.unwrap_or_default().into_iter().collect();
        let write =
            |file: &StateFile, all: &BTreeMap<K, E>| file.save(&all.iter().collect::<Vec<(&K, &E)>>());
        Ok((Self::with(file, entries, write), loaded.damage))
    }
}

impl<K: Clone + Ord, E: Clone + PartialEq> Journal<K, E> {
    fn with(
        file: StateFile,
        entries: BTreeMap<K, E>,
        write: fn(&StateFile, &BTreeMap<K, E>) -> Result<(), DurableError>,
    ) -> Self {
        Self { saved: entries.clone(), entries, file, write }
    }

    /// The entries in memory.
    pub fn entries(&self) -> &BTreeMap<K, E> {
        &self.entries
    }

    /// The entries in memory, to be changed; [`Self::save`] writes them.
    pub fn entries_mut(&mut self) -> &mut BTreeMap<K, E> {
        &mut self.entries
    }

    /// The entry of a key, in memory.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&E>
    where
        K: Borrow<Q>,
    {
        self.entries.get(key)
    }

    /// The entry of a key as it was last written; another program may have removed the file since.
    pub fn saved<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&E>
    where
        K: Borrow<Q>,
    {
        self.saved.get(key)
    }

    /// The entry of a key as a successor would read it; `None` also if the file is gone.
    pub fn on_disk<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&E>
    where
        K: Borrow<Q>,
    {
        self.saved(key).filter(|_| self.file.exists())
    }

    /// Sets or removes an entry in memory; returns the previous one.
    pub fn set(&mut self, key: K, entry: Option<E>) -> Option<E> {
        match entry {
            Some(entry) => self.entries.insert(key, entry),
            None => self.entries.remove(&key),
        }
    }

    /// Writes `all` to disk; the entries in memory are unchanged. Does nothing if `all` is on disk already.
    ///
    /// # Errors
    /// The file cannot be written; the one on disk is unchanged.
    pub fn write(&mut self, all: BTreeMap<K, E>) -> Result<(), DurableError> {
        if all != self.saved || (!all.is_empty() && !self.file.exists()) {
            (self.write)(&self.file, &all)?;
            self.saved = all;
        }
        Ok(())
    }

    /// Writes the entries in memory to disk, if they are not there.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn save(&mut self) -> Result<(), DurableError> {
        self.write(self.entries.clone())
    }

    /// Changes entries in memory and on disk, or neither.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn change(&mut self, change: impl FnOnce(&mut BTreeMap<K, E>)) -> Result<(), DurableError> {
        let mut all = self.entries.clone();
        change(&mut all);
        self.write(all.clone())?;
        self.entries = all;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cut::testing::dies_at;
    use proptest::prelude::*;

    type Letters = Journal<String, u32>;

    fn open(folder: &tempfile::TempDir) -> Letters {
        let (journal, damage) = Letters::load(folder.path().join("letters.json")).unwrap();
        assert_eq!(damage, None);
        journal
    }

    #[test]
    fn a_change_that_cannot_be_written_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = open(&folder);
        journal.change(|all| all.extend([("a".into(), 1)])).unwrap();
        // A folder at the name of the new file stands for a disk that is full.
        std::fs::create_dir(folder.path().join("letters.json.new")).unwrap();
        assert!(journal.change(|all| all.extend([("b".into(), 2)])).is_err());
        assert_eq!((journal.get("b"), journal.on_disk("b")), (None, None));
        assert_eq!(open(&folder).get("a"), Some(&1));
    }

    #[test]
    fn a_removed_journal_file_is_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = open(&folder);
        journal.set("a".into(), Some(1));
        journal.save().unwrap();
        for entry in std::fs::read_dir(folder.path()).unwrap().flatten() {
            std::fs::remove_file(entry.path()).unwrap();
        }
        assert_eq!(journal.on_disk("a"), None);
        journal.save().unwrap();
        assert_eq!(open(&folder).get("a"), Some(&1));
    }

    #[test]
    fn keys_that_are_no_strings_are_pairs() {
        let folder = tempfile::tempdir().unwrap();
        let load = || Journal::<(u8, bool), u32>::load_pairs(folder.path().join("pairs.json")).unwrap().0;
        let mut journal = load();
        journal.change(|all| all.extend([((1, true), 10), ((2, false), 20)])).unwrap();
        assert_eq!(load().entries(), journal.entries());
    }

    proptest! {
        /// Each step reserves, then changes; the process dies at any point of it.
        #[test]
        fn a_successor_knows_every_entry_that_was_acted_on(
            steps in prop::collection::vec((0u8..4, prop::option::of(0u32..4)), 1..6), at in 0u32..40
        ) {
            let folder = tempfile::tempdir().unwrap();
            let mut acted: Vec<String> = Vec::new();
            let mut journal = open(&folder);
            dies_at(at, || {
                for (key, entry) in steps {
                    let key = char::from(b'a' + key).to_string();
                    let mut all = journal.entries().clone();
                    if let Some(entry) = entry {
                        all.insert(key.clone(), entry);
                    }
                    journal.write(all).unwrap();
                    acted = journal.entries().keys().filter(|k| **k != key).cloned().collect();
                    journal.set(key, entry);
                    journal.save().unwrap();
                }
            });
            let successor = open(&folder);
            for key in acted {
                prop_assert!(successor.get(&key).is_some(), "{} is not known", key);
            }
        }
    }
}
