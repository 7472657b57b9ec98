//! What the agent set, and what each setting was before, over restarts.
//!
//! ```text
//!  enter: on disk before the file is touched ─▶ set ─▶ put back ─▶ strike, saved with the next save
//! ```

use super::plan::{Kept, Setting};
use crate::durable::{Durable, DurableError};
use std::collections::BTreeMap;
use std::path::Path;

type All = BTreeMap<Setting, Kept>;

/// By setting.
#[derive(Debug)]
pub struct Record {
    kept: All,
    /// As it is on disk.
    saved: All,
    file: Durable,
}

impl Record {
    /// Reads the record in the state directory; the second value is what was damaged.
    ///
    /// # Errors
    /// It cannot be read, or a newer release wrote it.
    pub fn load(state: &Path) -> Result<(Self, Option<String>), DurableError> {
        let file = Durable::new(state.join("own-cpus.json"));
        // As pairs: what names a setting is no text.
        let loaded = file.load::<Vec<(Setting, Kept)>>()?;
        let kept: All = loaded.value.unwrap_or_default().into_iter().collect();
        Ok((Self { saved: kept.clone(), kept, file }, loaded.damage))
    }

    /// What is known of a setting.
    pub fn get(&self, setting: &Setting) -> Option<&Kept> {
        self.kept.get(setting)
    }

    /// All settings on record.
    pub fn settings(&self) -> impl Iterator<Item = &Setting> {
        self.kept.keys()
    }

    /// Those of CPUs that are kept from halting.
    pub fn awake(&self) -> impl Iterator<Item = &Setting> {
        self.settings().filter(|setting| matches!(setting, Setting::Resume { .. }))
    }

    /// Enters settings that are about to be set, all at once, and saves.
    ///
    /// # Errors
    /// It cannot be saved; the record is as it was.
    pub fn enter(&mut self, coming: Vec<(Setting, Kept)>) -> Result<(), DurableError> {
        let before = self.kept.clone();
        self.kept.extend(coming);
        self.save().inspect_err(|_| self.kept = before)
    }

    /// Sets an entry back to what it was; saved with the next [`Record::save`].
    pub fn set(&mut self, setting: &Setting, kept: Option<Kept>) {
        match kept {
            Some(kept) => self.kept.insert(setting.clone(), kept),
            None => self.kept.remove(setting),
        };
    }

    /// Strikes a setting out; saved with the next [`Record::save`].
    pub fn strike(&mut self, setting: &Setting) {
        self.kept.remove(setting);
    }

    /// Writes it to disk, where it changed or is gone from there.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn save(&mut self) -> Result<(), DurableError> {
        if self.kept != self.saved || (!self.kept.is_empty() && !self.file.exists()) {
            self.file.save(&self.kept.iter().collect::<Vec<_>>())?;
            self.saved = self.kept.clone();
        }
        Ok(())
    }
}
