//! Does the steps of all settings: each value before is on disk first, and a fault of one setting stops no other.

use crate::settings::files::Files;
use crate::settings::record::{Record, inherited};
use crate::settings::setting::Setting;
use crate::settings::step::{self, QUIET, Step};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Instant;
use tidegate_durable::{DurableError, cut};

/// Keeps settings, and puts back those that are not wanted any more.
#[derive(Debug)]
pub struct Keeper {
    record: Record,
    /// When settings that another program changes were last repaired; those of an earlier agent, at the first look.
    repaired: BTreeMap<Setting, Instant>,
}

/// The result of a settling.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The wanted settings that have their values.
    pub set: BTreeSet<Setting>,
    /// Faults.
    pub trouble: Vec<Trouble>,
}

/// A fault of a setting, or of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The setting; `None` if it concerns all.
    pub setting: Option<Setting>,
    /// The fault, in words.
    pub why: String,
}

impl Keeper {
    /// Makes it with the record in `state`. The second value describes damage.
    ///
    /// # Errors
    /// The record cannot be read, or a newer release wrote it.
    pub fn new(state: &Path) -> Result<(Self, Option<String>), DurableError> {
        let (record, damage) = Record::load(state)?;
        Ok((Self { record, repaired: BTreeMap::new() }, damage))
    }

    /// Our settings and the values before them.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Sets the values before ours of settings on record: another program chose them since. The next settling saves that.
    pub fn correct(&mut self, before: &BTreeMap<Setting, String>) {
        before.iter().for_each(|(setting, value)| self.record.correct(setting, value));
    }

    /// Brings the wanted settings about, and puts back all others on record.
    pub fn settle(&mut self, files: &mut impl Files, wanted: &BTreeMap<Setting, String>) -> Outcome {
        self.forgive(Instant::now());
        let settings = wanted.keys().chain(self.record.settings()).cloned().collect();
        self.settle_some(files, wanted, &settings)
    }

    /// Lets repairs before a quiet hour count no more: an incident of long ago is no program that always wins.
    fn forgive(&mut self, now: Instant) {
        let repaired: Vec<Setting> = self.record.repaired().cloned().collect();
        self.repaired.retain(|setting, _| repaired.contains(setting));
        for setting in repaired {
            let last = *self.repaired.entry(setting.clone()).or_insert(now);
            if now.saturating_duration_since(last) >= QUIET {
                self.repaired.remove(&setting);
                self.record.forgive(&setting);
            }
        }
    }

    /// Lets CPUs halt, those of an earlier agent included; returns the problems.
    pub fn let_halt(&mut self, files: &mut impl Files) -> Vec<String> {
        let awake: BTreeSet<Setting> = self.record.awake().cloned().collect();
        if awake.is_empty() {
            return Vec::new();
        }
        let Outcome { trouble, .. } = self.settle_some(files, &BTreeMap::new(), &awake);
        trouble.into_iter().map(|trouble| trouble.why).collect()
    }

    /// Does one step for each of these settings.
    fn settle_some(
        &mut self,
        files: &mut impl Files,
        all_wanted: &BTreeMap<Setting, String>,
        settings: &BTreeSet<Setting>,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        let mut coming = Vec::new();
        for setting in settings {
            let (wanted, saved) = (all_wanted.get(setting).map(String::as_str), self.record.get(setting));
            let found = match files.read(setting) {
                // A gone namespace has taken its interfaces with it.
                Err(_) if wanted.is_none() && files.is_gone(setting) => None,
                Err(why) => {
                    outcome.fails(setting, why);
                    continue;
                }
                Ok(found) => found,
            };
            match (wanted, &found) {
                (Some(_), Some(_)) => _ = outcome.set.insert(setting.clone()),
                (Some(_), None) if !setting.may_end() => {
                    outcome.fails(setting, format!("{setting}: sysfs has no such file"));
                }
                (Some(_) | None, _) => {}
            }
            match step::step(wanted, saved, found.as_ref()) {
                Step::Nothing => {}
                Step::Set(mut new_entry) => {
                    if saved.is_none()
                        && let Some(parent) = inherited(self.record.entries(), setting, &new_entry.before)
                    {
                        new_entry.before.clone_from(&parent.before);
                    }
                    coming.push((setting.clone(), saved.cloned(), new_entry));
                }
                Step::PutBack(value) => match files.write(setting, &value) {
                    Ok(()) => self.record.remove(setting),
                    Err(why) => outcome.fails(setting, why),
                },
                Step::Forget => self.record.remove(setting),
                Step::Leave => {
                    let why =
                        "another program changes it again after each repair; the agent leaves it as it is";
                    outcome.fails(setting, format!("{setting}: {why}"));
                }
            }
            cut::point();
        }
        let entries = coming.iter().map(|(setting, _, saved)| (setting.clone(), saved.clone())).collect();
        if let Err(e) = self.record.enter(entries) {
            outcome.trouble.push(Trouble { setting: None, why: format!("nothing is set: {e}") });
            for (setting, ..) in coming.drain(..) {
                outcome.set.remove(&setting);
            }
        }
        for (setting, before, saved) in coming {
            cut::point();
            if saved.repairs > before.as_ref().map_or(0, |before| before.repairs) {
                self.repaired.insert(setting.clone(), Instant::now());
                tracing::warn!(%setting, "drift: another program changed it; set to {} again", saved.ours);
            }
            if let Err(why) = files.write(&setting, &saved.ours) {
                outcome.fails(&setting, why);
                // The setting is unchanged, and the next try is no drift.
                self.record.set(&setting, before);
            }
        }
        cut::point();
        if let Err(e) = self.record.save() {
            outcome.trouble.push(Trouble { setting: None, why: e.to_string() });
        }
        outcome
    }
}

impl Outcome {
    fn fails(&mut self, setting: &Setting, why: String) {
        self.set.remove(setting);
        self.trouble.push(Trouble { setting: Some(setting.clone()), why });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::step::{Found, REPAIRS};

    /// A setting that another program changes back at once.
    #[derive(Default)]
    struct Contested {
        written: u32,
    }

    impl Files for Contested {
        fn read(&mut self, _: &Setting) -> Result<Option<Found>, String> {
            Ok(Some(Found { index: 1, value: "7".into() }))
        }

        fn write(&mut self, _: &Setting, _: &str) -> Result<(), String> {
            self.written += 1;
            Ok(())
        }
    }

    /// Settings in memory.
    struct There(BTreeMap<Setting, String>);

    impl Files for There {
        fn read(&mut self, setting: &Setting) -> Result<Option<Found>, String> {
            Ok(self.0.get(setting).map(|value| Found { index: 0, value: value.clone() }))
        }

        fn write(&mut self, setting: &Setting, value: &str) -> Result<(), String> {
            self.0.insert(setting.clone(), value.into());
            Ok(())
        }
    }

    #[test]
    fn a_setting_that_is_left_has_what_another_program_chose_since() {
        let setting = Setting::Irq { number: 7 };
        let wanted = [(setting.clone(), "1".to_owned())].into();
        // Ours, after a repair or since the other program chose the same; and the other program's.
        for present in ["1", "2"] {
            for chosen in ["1", "2"] {
                let folder = tempfile::tempdir().unwrap();
                let mut keeper = Keeper::new(folder.path()).unwrap().0;
                let mut there = There([(setting.clone(), "0-3".to_owned())].into());
                keeper.settle(&mut there, &wanted);
                there.0.insert(setting.clone(), present.into());
                keeper.correct(&[(setting.clone(), chosen.to_owned())].into());
                keeper.settle(&mut there, &BTreeMap::new());
                let expected = if present == "1" { chosen } else { "2" };
                assert_eq!((there.0[&setting].as_str(), keeper.record().entries().len()), (expected, 0));
            }
        }
    }

    #[test]
    fn repairs_of_an_hour_ago_do_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let (mut keeper, mut files) = (Keeper::new(folder.path()).unwrap().0, Contested::default());
        let wanted = [(Setting::Irq { number: 7 }, "1".to_owned())].into();
        for _ in 0..10 {
            keeper.settle(&mut files, &wanted);
        }
        assert_eq!(files.written, REPAIRS + 1);
        // The successor knows of them, and not when they were.
        let mut keeper = Keeper::new(folder.path()).unwrap().0;
        assert!(!keeper.settle(&mut files, &wanted).trouble.is_empty());
        keeper.forgive(Instant::now() + QUIET / 2);
        keeper.settle(&mut files, &wanted);
        assert_eq!(files.written, REPAIRS + 1);
        keeper.forgive(Instant::now() + QUIET);
        for _ in 0..10 {
            keeper.settle(&mut files, &wanted);
        }
        assert_eq!(files.written, REPAIRS * 2 + 1);
    }
}
