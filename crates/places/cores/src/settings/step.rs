//! From what is wanted, on record and found to what is done with one setting. Pure.
//!
//! ```text
//!  the kernel has     │ our value         the value before us       a value of another program
//!  ───────────────────┼────────────────────────────────────────────────────────────────────────────────────────────
//!  we want it         │ we do nothing     we note that, and set it  we set it again, three times; then we leave it
//!  we do not any more │ we put it back    we forget it              we forget it: the value is theirs now
//! ```
//!
//! A value of ours whose CPUs are all off is *void*: the kernel has put its own in its place, and that one counts as ours.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Repairs of a setting that another program changes; after these the agent leaves it.
pub const REPAIRS: u32 = 3;
/// After this time without a repair, those so far do not count any more.
pub const QUIET: Duration = Duration::from_secs(3600);

/// A setting of ours, on record before it is touched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedSetting {
    /// Interface index, which tells interfaces of one name apart; 0 for a setting of a CPU.
    pub index: u32,
    /// The value before the agent changed it.
    pub before: String,
    /// The value that the agent sets.
    pub ours: String,
    /// The value that the agent set before; still in force if the agent died between record and write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub earlier: Option<String>,
    /// Repairs since it was first wanted, or since the last quiet hour.
    #[serde(default)]
    pub repairs: u32,
    /// The boot in which it was set (`/proc/sys/kernel/random/boot_id`), if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<String>,
}

impl SavedSetting {
    /// Whether the agent wrote this value, or the kernel in its place.
    fn is_ours(&self, found: &Found, void: bool) -> bool {
        void || self.is_own_value(&found.value)
    }

    /// Whether the agent wrote this value.
    pub fn is_own_value(&self, value: &str) -> bool {
        self.ours == value || self.earlier.as_deref() == Some(value)
    }
}

/// A setting's present state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// As in [`SavedSetting::index`].
    pub index: u32,
    /// Its value.
    pub value: String,
}

/// The step for a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing: it has its value.
    Nothing,
    /// Records this, then writes its `ours` into the file.
    Set(SavedSetting),
    /// Writes this value into the file, then removes the record.
    PutBack(String),
    /// Removes the record.
    Forget,
    /// Leaves it: another program changes it after each repair.
    Leave,
}

/// Returns the step for one setting; `found` is `None` if the file is gone, and `void` says that all CPUs of our value are off.
pub fn step(wanted: Option<&str>, saved: Option<&SavedSetting>, found: Option<&Found>, void: bool) -> Step {
    let Some(found) = found else {
        return if saved.is_some() { Step::Forget } else { Step::Nothing };
    };
    // Another interface of the same name is not the one on record.
    let saved_here = saved.filter(|saved| saved.index == found.index);
    match (wanted, saved_here) {
        (None, None) if saved.is_some() => Step::Forget,
        (None, None) => Step::Nothing,
        (None, Some(saved)) if saved.is_ours(found, void) && found.value != saved.before => {
            Step::PutBack(saved.before.clone())
        }
        (None, Some(_)) => Step::Forget,
        (Some(wanted), None) => {
            let (before, ours) = (found.value.clone(), wanted.to_owned());
            Step::Set(SavedSetting {
                index: found.index,
                before,
                ours,
                earlier: None,
                repairs: 0,
                boot: None,
            })
        }
        (Some(wanted), Some(saved)) => {
            if found.value == saved.ours && saved.ours == wanted {
                return Step::Nothing;
            }
            let (ours, saved) = (wanted.to_owned(), saved.clone());
            if saved.is_ours(found, void) {
                return Step::Set(SavedSetting { ours, earlier: Some(found.value.clone()), ..saved });
            }
            if saved.repairs >= REPAIRS {
                return Step::Leave;
            }
            Step::Set(SavedSetting { ours, earlier: None, repairs: saved.repairs + 1, ..saved })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Event {
        /// The wanted value changes.
        Want(Option<&'static str>),
        /// Another program writes.
        Other(&'static str),
        /// The interface goes, and comes anew.
        Anew,
        /// The agent looks, and dies after so many of its writes, to disk or file; 2 are a whole step.
        Look(usize),
    }

    fn event() -> impl Strategy<Value = Event> {
        let value = prop::sample::select(vec!["1", "2", "3"]);
        prop_oneof![
            prop::option::of(prop::sample::select(vec!["e", "d"])).prop_map(Event::Want),
            value.prop_map(Event::Other),
            Just(Event::Anew),
            (0_usize..3).prop_map(Event::Look),
        ]
    }

    /// One file, the record, and its last foreign writer.
    #[derive(Debug)]
    struct World {
        found: Found,
        saved: Option<SavedSetting>,
        wanted: Option<&'static str>,
        /// The last foreign value, regardless of ours.
        foreign_value: String,
        /// Whether `foreign_value` is older than ours, or was written over ours.
        overwritten: bool,
    }

    impl World {
        fn look(&mut self, writes: usize) -> Step {
            let step = step(self.wanted, self.saved.as_ref(), Some(&self.found), false);
            match &step {
                Step::Set(saved) => {
                    if writes > 0 {
                        self.saved = Some(saved.clone());
                    }
                    if writes > 1 {
                        self.found.value.clone_from(&saved.ours);
                    }
                }
                Step::PutBack(value) => {
                    if writes > 0 {
                        self.found.value.clone_from(value);
                    }
                    if writes > 1 {
                        self.saved = None;
                    }
                }
                Step::Forget if writes > 0 => self.saved = None,
                Step::Forget | Step::Nothing | Step::Leave => {}
            }
            step
        }
    }

    proptest! {
        /// Wherever the agent dies: the wanted value is set, and later the file gets its foreign value
        /// back.
        #[test]
        fn the_foreign_value_is_restored_after_any_death_of_the_agent(events in prop::collection::vec(event(), 0..40)) {
            let found = Found { index: 1, value: "0".into() };
            let mut world = World { found, saved: None, wanted: None, foreign_value: "0".into(), overwritten: false };
            for event in events {
                match event {
                    Event::Want(wanted) => world.wanted = wanted,
                    Event::Other(value) => {
                        world.overwritten = world.saved.is_some();
                        world.found.value = value.into();
                        world.foreign_value = value.into();
                    }
                    Event::Anew => {
                        world.found = Found { index: world.found.index + 1, value: "0".into() };
                        world.foreign_value = "0".into();
                        world.overwritten = false;
                    }
                    Event::Look(writes) => {
                        let step = world.look(writes);
                        if let Some(saved) = &world.saved {
                            prop_assert!(saved.repairs <= REPAIRS);
                        }
                        if let (Some(wanted), 2) = (world.wanted, writes) {
                            prop_assert!(world.found.value == wanted || step == Step::Leave);
                        }
                    }
                }
            }
            world.wanted = None;
            while world.look(2) != Step::Nothing {}
            prop_assert_eq!(&world.saved, &None);
            // A foreign value written over ours, and then overwritten by us, is lost: the file has the
            // value before us.
            if !world.overwritten {
                prop_assert_eq!(&world.found.value, &world.foreign_value);
            }
            prop_assert!(!["d", "e"].contains(&world.found.value.as_str()), "ours is left");
        }

        /// However often another program writes, the agent stops writing.
        #[test]
        fn the_agent_stops_after_repeated_writes_of_another_program(others in 0_u32..20) {
            let mut saved = None;
            let mut sets = 0;
            for _ in 0..=others {
                let found = Found { index: 1, value: "7".into() };
                match step(Some("e"), saved.as_ref(), Some(&found), false) {
                    Step::Set(now) => { saved = Some(now); sets += 1; }
                    Step::Leave => {}
                    other => prop_assert!(false, "{:?}", other),
                }
            }
            prop_assert_eq!(sets, (others + 1).min(REPAIRS + 1));
        }
    }

    #[test]
    fn the_record_of_a_vanished_file_is_forgotten() {
        let saved = SavedSetting {
            index: 1,
            before: "0".into(),
            ours: "e".into(),
            earlier: None,
            repairs: 0,
            boot: None,
        };
        for wanted in [None, Some("e")] {
            assert_eq!(step(wanted, Some(&saved), None, false), Step::Forget);
            assert_eq!(step(wanted, None, None, false), Step::Nothing);
        }
    }

    #[test]
    fn the_kernels_value_for_work_whose_cpu_is_off_is_no_other_programs() {
        let saved = SavedSetting {
            index: 0,
            before: "0-7".into(),
            ours: "1".into(),
            earlier: None,
            repairs: 2,
            boot: None,
        };
        let found = |value: &str| Found { index: 0, value: value.into() };
        let step = |wanted, value| step(wanted, Some(&saved), Some(&found(value)), true);
        let moved = SavedSetting { ours: "6".into(), earlier: Some("0,2-7".into()), ..saved.clone() };
        assert_eq!(step(Some("6"), "0,2-7"), Step::Set(moved));
        assert_eq!(step(None, "0,2-7"), Step::PutBack("0-7".into()));
        assert_eq!(step(None, "0-7"), Step::Forget);
    }
}
