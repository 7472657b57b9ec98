//! The record of our settings for CPUs, and of each value before. The file is named `own-cpus.json` since its first settings, those of
//! workers' own CPUs; interrupts and threads are in it, too.
//!
//! ```text
//!  enter: on disk before the file is touched ─▶ set ─▶ restored ─▶ remove, saved with the next save
//! ```

use crate::roots::text;
use crate::settings::setting::Setting;
use crate::settings::step::SavedSetting;
use std::collections::BTreeMap;
use std::path::Path;
use tidegate_durable::{DurableError, Journal};

/// Entries by setting.
#[derive(Debug)]
pub struct Record {
    journal: Journal<Setting, SavedSetting>,
    /// This boot, if known.
    boot: Option<String>,
}

impl Record {
    /// Reads the record in the state folder. The second value describes damage. Entries of an earlier boot are dropped: their settings
    /// ended with that, and numbers of interrupts, interfaces and threads mean others now.
    ///
    /// # Errors
    /// It cannot be read, or a newer release wrote it.
    pub fn load(state: &Path) -> Result<(Self, Option<String>), DurableError> {
        Self::of_boot(state, text("/proc/sys/kernel/random/boot_id"))
    }

    fn of_boot(state: &Path, boot: Option<String>) -> Result<(Self, Option<String>), DurableError> {
        let (mut journal, damage) = Journal::load_pairs(state.join("own-cpus.json"))?;
        let entries: &mut BTreeMap<Setting, SavedSetting> = journal.entries_mut();
        if boot.is_some() {
            entries.retain(|_, saved| saved.boot.is_none() || saved.boot == boot);
            // Those of an earlier release count for this boot.
            entries.values_mut().for_each(|saved| saved.boot.clone_from(&boot));
        }
        Ok((Self { journal, boot }, damage))
    }

    /// The entry of a setting.
    pub fn get(&self, setting: &Setting) -> Option<&SavedSetting> {
        self.journal.get(setting)
    }

    /// All entries.
    pub fn entries(&self) -> &BTreeMap<Setting, SavedSetting> {
        self.journal.entries()
    }

    /// All settings on record.
    pub fn settings(&self) -> impl Iterator<Item = &Setting> {
        self.journal.entries().keys()
    }

    /// The settings of CPUs that must not halt.
    pub fn awake(&self) -> impl Iterator<Item = &Setting> {
        self.settings().filter(|setting| matches!(setting, Setting::Resume { .. }))
    }

    /// The settings that were repaired.
    pub fn repaired(&self) -> impl Iterator<Item = &Setting> {
        self.journal.entries().iter().filter(|(_, saved)| saved.repairs > 0).map(|(setting, _)| setting)
    }

    /// Forgets the repairs of a setting; [`Record::save`] writes that.
    pub fn forgive(&mut self, setting: &Setting) {
        if let Some(saved) = self.journal.entries_mut().get_mut(setting) {
            saved.repairs = 0;
        }
    }

    /// Sets the value before ours, of a setting on record; [`Record::save`] writes that.
    pub fn correct(&mut self, setting: &Setting, before: &str) {
        if self.get(setting).is_some_and(|saved| saved.before != before)
            && let Some(saved) = self.journal.entries_mut().get_mut(setting)
        {
            before.clone_into(&mut saved.before);
        }
    }

    /// Enters settings that are about to be set, all at once, and saves.
    ///
    /// # Errors
    /// It cannot be saved; the record is unchanged.
    pub fn enter(&mut self, coming: Vec<(Setting, SavedSetting)>) -> Result<(), DurableError> {
        let boot = &self.boot;
        let of_this_boot = |(setting, saved)| (setting, SavedSetting { boot: boot.clone(), ..saved });
        self.journal.change(|all| all.extend(coming.into_iter().map(of_this_boot)))
    }

    /// Sets or removes an entry; [`Record::save`] writes it.
    pub fn set(&mut self, setting: &Setting, entry: Option<SavedSetting>) {
        self.journal.set(setting.clone(), entry);
    }

    /// Removes an entry; [`Record::save`] writes it.
    pub fn remove(&mut self, setting: &Setting) {
        self.journal.set(setting.clone(), None);
    }

    /// Writes the record to disk, if it changed or the file is gone.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn save(&mut self) -> Result<(), DurableError> {
        self.journal.save()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_an_earlier_boot_are_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let load = |boot: Option<&str>| Record::of_boot(folder.path(), boot.map(str::to_owned)).unwrap().0;
        let (before, ours) = ("0-3".to_owned(), "1".to_owned());
        let saved = SavedSetting { index: 0, before, ours, earlier: None, repairs: 0, boot: None };
        let entry = |number| (Setting::Irq { number }, saved.clone());
        // Where the boot is unknown, entries stay, and count for the first one that is known.
        load(None).enter(vec![entry(7)]).unwrap();
        let mut first = load(Some("first"));
        first.enter(vec![entry(8)]).unwrap();
        for boot in [Some("first"), None] {
            assert_eq!(load(boot).settings().count(), 2, "{boot:?}");
        }
        assert_eq!(load(Some("second")).settings().count(), 0);
    }
}
