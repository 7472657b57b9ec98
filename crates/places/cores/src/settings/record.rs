//! The record of our settings for CPUs, and of each value before. The file is named `own-cpus.json` since its first settings, those of
//! workers' own CPUs; interrupts and threads are in it, too.
//!
//! ```text
//!  enter: on disk before the file is touched ─▶ set ─▶ restored ─▶ remove, saved with the next save
//! ```

use crate::settings::setting::Setting;
use crate::settings::step::SavedSetting;
use std::collections::BTreeMap;
use std::path::Path;
use tidegate_durable::{DurableError, Journal};

/// Entries by setting.
#[derive(Debug)]
pub struct Record(Journal<Setting, SavedSetting>);

impl Record {
    /// Reads the record in the state folder. The second value describes damage.
    ///
    /// # Errors
    /// It cannot be read, or a newer release wrote it.
    pub fn load(state: &Path) -> Result<(Self, Option<String>), DurableError> {
        let (journal, damage) = Journal::load_pairs(state.join("own-cpus.json"))?;
        Ok((Self(journal), damage))
    }

    /// The entry of a setting.
    pub fn get(&self, setting: &Setting) -> Option<&SavedSetting> {
        self.0.get(setting)
    }

    /// All entries.
    pub fn entries(&self) -> &BTreeMap<Setting, SavedSetting> {
        self.0.entries()
    }

    /// All settings on record.
    pub fn settings(&self) -> impl Iterator<Item = &Setting> {
        self.0.entries().keys()
    }

    /// The settings of CPUs that must not halt.
    pub fn awake(&self) -> impl Iterator<Item = &Setting> {
        self.settings().filter(|setting| matches!(setting, Setting::Resume { .. }))
    }

    /// Enters settings that are about to be set, all at once, and saves.
    ///
    /// # Errors
    /// It cannot be saved; the record is unchanged.
    pub fn enter(&mut self, coming: Vec<(Setting, SavedSetting)>) -> Result<(), DurableError> {
        self.0.change(|all| all.extend(coming))
    }

    /// Sets or removes an entry; [`Record::save`] writes it.
    pub fn set(&mut self, setting: &Setting, entry: Option<SavedSetting>) {
        self.0.set(setting.clone(), entry);
    }

    /// Removes an entry; [`Record::save`] writes it.
    pub fn remove(&mut self, setting: &Setting) {
        self.0.set(setting.clone(), None);
    }

    /// Writes the record to disk, if it changed or the file is gone.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn save(&mut self) -> Result<(), DurableError> {
        self.0.save()
    }
}

/// Returns the entry from which a thread has its CPUs, if it has them from a thread that the agent placed: a new thread begins with the
/// CPUs of the one that starts it (sched_setaffinity(2)).
pub fn inherited<'a>(
    entries: &'a BTreeMap<Setting, SavedSetting>,
    setting: &Setting,
    value: &str,
) -> Option<&'a SavedSetting> {
    let Setting::Affinity(thread) = setting else { return None };
    let is_parent = |(other, saved): &(&Setting, &SavedSetting)| {
        matches!(other, Setting::Affinity(parent) if parent.process == thread.process && parent != thread)
            && saved.ours == value
    };
    entries.iter().find(is_parent).map(|(_, saved)| saved)
}
