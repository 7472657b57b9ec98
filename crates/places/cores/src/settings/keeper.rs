//! Does the steps of all settings: each value before is on disk first, and a fault of one setting stops no other.

use crate::settings::files::Files;
use crate::settings::record::{Record, inherited};
use crate::settings::setting::Setting;
use crate::settings::step::{self, Found, QUIET, SavedSetting, Step};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Instant;
use tidegate_cores::cpus::Cpus;
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
        let online = files.online();
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
            let void = saved.zip(found.as_ref()).zip(online.as_ref());
            let void = void.is_some_and(|((saved, found), online)| is_void(setting, saved, found, online));
            match step::step(wanted, saved, found.as_ref(), void) {
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
                    Ok(()) => {
                        let rest = saved.and_then(|saved| rest(files, setting, saved, online.as_ref()));
                        self.record.set(setting, rest);
                    }
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

/// Whether all CPUs of our value are off, and the kernel has let the work run elsewhere: on all that it had before, at least.
fn is_void(setting: &Setting, saved: &SavedSetting, found: &Found, online: &Cpus) -> bool {
    let [ours, before, found] = [&saved.ours, &saved.before, &found.value].map(|value| setting.cpus(value));
    let (Some(ours), Some(before), Some(found)) = (ours, before, found) else { return false };
    let is_moved = matches!(setting, Setting::Affinity(_) | Setting::Irq { .. });
    is_moved && ours.is_disjoint(online) && before.intersection(online).all(|cpu| found.contains(cpu))
}

/// Returns the entry that is left after a value was put back while some of its CPUs are off: the kernel leaves these out of a thread's
/// (sched_setaffinity(2)), and they are missing once they are back. So it is put back again.
fn rest(
    files: &mut impl Files,
    setting: &Setting,
    saved: &SavedSetting,
    online: Option<&Cpus>,
) -> Option<SavedSetting> {
    let (before, online) = (setting.cpus(&saved.before)?, online?);
    let found = files.read(setting).ok()??.value;
    let is_rest = !before.is_subset(online)
        && found != saved.before
        && setting.cpus(&found)? == before.intersection(online).copied().collect();
    is_rest.then(|| SavedSetting { ours: found, earlier: None, ..saved.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::step::REPAIRS;
    use tidegate_cores::cpus;
    use tidegate_cores::stage::Thread;

    /// A thread's CPUs as the kernel has them, and the CPUs that are online.
    struct Hotplug {
        allowed: Cpus,
        online: Cpus,
    }

    impl Hotplug {
        fn switch(&mut self, cpu: usize, on: bool) {
            if on {
                self.online.insert(cpu);
            } else {
                self.online.remove(&cpu);
                if self.allowed.is_disjoint(&self.online) {
                    self.allowed = self.online.clone();
                }
            }
        }
    }

    impl Files for Hotplug {
        fn read(&mut self, _: &Setting) -> Result<Option<Found>, String> {
            Ok(Some(Found { index: 0, value: cpus::list(&self.allowed) }))
        }

        fn write(&mut self, _: &Setting, value: &str) -> Result<(), String> {
            let wanted = cpus::from_list(value).unwrap();
            let allowed: Cpus = wanted.intersection(&self.online).copied().collect();
            if allowed.is_empty() {
                return Err("invalid".into());
            }
            self.allowed = allowed;
            Ok(())
        }

        fn online(&self) -> Option<Cpus> {
            Some(self.online.clone())
        }
    }

    #[test]
    fn a_cpu_that_goes_off_costs_no_value_before_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut keeper = Keeper::new(folder.path()).unwrap().0;
        let mut files = Hotplug { allowed: (0..8).collect(), online: (0..8).collect() };
        let setting = Setting::Affinity(Thread { process: 7, thread: 8, started: 9 });
        let on = |cpu: &str| BTreeMap::from([(setting.clone(), cpu.to_owned())]);
        keeper.settle(&mut files, &on("1"));
        files.switch(1, false);
        // The plan has no CPU for it; the next one has.
        for wanted in [BTreeMap::new(), on("6"), on("5")] {
            assert_eq!(keeper.settle(&mut files, &wanted).trouble, []);
            let saved = keeper.record().get(&setting).unwrap();
            assert_eq!((saved.before.as_str(), saved.repairs), ("0-7", 0), "{wanted:?}");
        }
        assert_eq!(cpus::list(&files.allowed), "5");
        // Another program pins it while its CPU is off.
        files.switch(5, false);
        files.allowed = [3].into();
        keeper.settle(&mut files, &on("6"));
        assert_eq!(keeper.record().get(&setting).map(|saved| saved.repairs), Some(1));
        files.switch(5, true);
        // It is not planned any more, and is given back all its CPUs when that one is there again.
        keeper.settle(&mut files, &BTreeMap::new());
        assert_eq!(cpus::list(&files.allowed), "0,2-7");
        files.switch(1, true);
        keeper.settle(&mut files, &BTreeMap::new());
        keeper.settle(&mut files, &BTreeMap::new());
        assert_eq!((cpus::list(&files.allowed).as_str(), keeper.record().get(&setting)), ("0-7", None));
    }

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
