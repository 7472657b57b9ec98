//! A worker's CPU is its own: other work is steered off the CPUs to which the switch's workers are pinned, while a
//! deadline is in force there.
//!
//! ```text
//!  observe: workers' CPUs, CPUs that are online ─▶ Facts ─┐
//!                                   contracts, taps ──────┴─▶ Target, if due
//!                                                                │
//!  apply: Target ─▶ settle: step by step ─▶ Files ─▶ sysfs of each namespace
//!                              │  ▲
//!                 Record, on disk  └─ the value now: drift
//! ```
//!
//! - `plan`: the wanted value of each setting, and the step to it (pure)
//! - `facts`: from a look to the next target (pure)
//! - `situation`: the deciding facts of the switch and the machine (pure)
//! - `record`: our settings, and the values before them
//! - `sysfs`: settings as files
//! - `threads`: the agent's own threads
//! - `keep_off`: the work that the agent keeps off workers' CPUs

mod facts;
mod keep_off;
mod plan;
mod record;
mod situation;
mod sysfs;
mod threads;

use facts::LOOK;
pub use facts::{Facts, Settled};
pub use keep_off::KeepOff;
pub use plan::Target;
use plan::{Setting, Step};
use record::Record;
use situation::Flow;
#[cfg(test)]
pub use situation::Machine;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;
use sysfs::{Files, Sysfs};
use threads::Threads;
use tidegate_cores::cpus::Cpus;
use tidegate_durable::DurableError;
use tidegate_durable::cut;
use tidegate_evidence::Evidence;
use tidegate_evidence::OwnCpus as View;
use tidegate_paths::Roots;

/// The consequence of halting workers' CPUs.
const LOST_TO_HALTS: &str =
    "an idle CPU wakes late, by milliseconds in a virtual machine, and real-time frames wait for it";

/// The consequence of a tap's softirqs on a worker.
const LOST_TO_SOFTIRQS: &str = "frames that the switch writes into these taps run the network stack on the worker, up \
    to 0.4 ms for 64 kB, and real-time frames wait for it";

/// Keeps other work off workers' CPUs.
pub struct OwnCpus {
    /// Work outside of it is put back if an earlier agent set it.
    off: KeepOff,
    /// Folders of network namespaces that contracts may name.
    roots: Roots,
    flow: Flow,
    record: Record,
    threads: Threads,
    /// The last target.
    target: Target,
    /// When it was last settled.
    settled_at: Option<Instant>,
    /// Since when the switch does not answer.
    silent_since: Option<Instant>,
    view: View,
}

impl OwnCpus {
    /// Makes it with the record in `state`. The second value describes damage.
    ///
    /// # Errors
    /// The record cannot be read, or a newer release wrote it.
    pub fn new(state: &Path, off: KeepOff, roots: Roots) -> Result<(Self, Option<String>), DurableError> {
        let (record, damage) = Record::load(state)?;
        // The agent before this one died while frames flowed.
        let flow = Flow::new(record.awake().next().map(|_| Instant::now()));
        let own = Self {
            off,
            roots,
            flow,
            record,
            threads: Threads::default(),
            target: Target::default(),
            settled_at: None,
            silent_since: None,
            view: View::default(),
        };
        Ok((own, damage))
    }

    /// Returns the facts for the next plan. Changes no setting.
    pub fn observe(&mut self, evidence: &Evidence) -> Facts {
        self.silent_since = None;
        let now = Instant::now();
        let flows = self.flow.see(now, evidence);
        Facts { off: self.off, machine: sysfs::machine(), flows, settled: self.settled(now) }
    }

    /// Work that is kept off, by the last settling.
    pub fn view(&self) -> &View {
        &self.view
    }

    fn settled(&self, now: Instant) -> Settled {
        let ago = self.settled_at.map(|at| now.saturating_duration_since(at));
        let is_clean = self.record.settings().next().is_none() && self.view == View::default();
        Settled { target: self.target.clone(), ago, is_clean }
    }

    /// Notes that the switch does not answer, so that nothing can be planned. If that lasts, all steering ends.
    pub fn without_switch(&mut self) {
        let now = Instant::now();
        if now.saturating_duration_since(*self.silent_since.get_or_insert(now)) >= LOOK
            && let Some(target) = self.settled(now).due(Target::default())
        {
            self.apply(&target);
        }
    }

    /// Brings the settings of a target about, and puts back all others.
    pub fn apply(&mut self, target: &Target) {
        (self.target, self.settled_at) = (target.clone(), Some(Instant::now()));
        let settings = self.target.settings.keys().chain(self.record.settings()).cloned().collect();
        let roots = self.roots.clone();
        let mut trouble = self.settle(&mut Sysfs::new(&roots), settings);
        let threads_off = if self.off.is_anything() { &self.target.workers } else { &Cpus::new() };
        if let Err(e) = self.threads.keep_off(threads_off) {
            trouble.push(format!("the agent's threads may run on the workers' CPUs: {e}"));
        }
        trouble.extend(self.target.too_many.clone());
        self.report(trouble);
    }

    /// Does one step for each setting; returns the problems.
    fn settle(&mut self, files: &mut impl Files, settings: BTreeSet<Setting>) -> Vec<String> {
        let mut trouble = Vec::new();
        let mut set = BTreeSet::new();
        let mut coming = Vec::new();
        for setting in &settings {
            let (wanted, saved) =
                (self.target.settings.get(setting).map(String::as_str), self.record.get(setting));
            let found = match files.read(setting) {
                // A gone namespace has taken its taps with it.
                Err(_) if wanted.is_none() && files.is_gone(setting) => None,
                Err(why) => {
                    trouble.push(why);
                    continue;
                }
                Ok(found) => found,
            };
            match (wanted, &found) {
                (Some(_), Some(_)) => _ = set.insert(setting),
                (Some(_), None) => trouble.push(format!("{setting}: sysfs has no such file")),
                (None, _) => {}
            }
            match plan::step(wanted, saved, found.as_ref()) {
                Step::Nothing => {}
                Step::Set(new_entry) => coming.push((setting.clone(), saved.cloned(), new_entry)),
                Step::PutBack(value) => match files.write(setting, &value) {
                    Ok(()) => self.record.remove(setting),
                    Err(why) => trouble.push(why),
                },
                Step::Forget => self.record.remove(setting),
                Step::Leave => {
                    set.remove(setting);
                    trouble.push(format!(
                        "{setting}: another program changes it again after each repair; the agent leaves it as it is"
                    ));
                }
            }
            cut::point();
        }
        let entries = coming.iter().map(|(setting, _, saved)| (setting.clone(), saved.clone())).collect();
        if let Err(e) = self.record.enter(entries) {
            trouble.push(format!("nothing is set: {e}"));
            for (setting, ..) in coming.drain(..) {
                set.remove(&setting);
            }
        }
        for (setting, before, saved) in coming {
            cut::point();
            if saved.repairs > 0 {
                tracing::warn!(%setting, "drift: another program changed it; set to {} again", saved.ours);
            }
            if let Err(why) = files.write(&setting, &saved.ours) {
                trouble.push(why);
                set.remove(&setting);
                // The setting is unchanged, and the next try is no drift.
                self.record.set(&setting, before);
            }
        }
        cut::point();
        if let Err(e) = self.record.save() {
            trouble.push(e.to_string());
        }
        self.view.steered = set.iter().filter(|setting| matches!(setting, Setting::Rps { .. })).count();
        self.view.awake = set
            .iter()
            .filter_map(|s| if let Setting::Resume { cpu } = s { Some(*cpu) } else { None })
            .collect();
        trouble
    }

    /// Lets CPUs halt, those of an earlier agent included; returns the problems.
    fn let_halt(&mut self, files: &mut impl Files) -> Vec<String> {
        let awake: BTreeSet<Setting> = self.record.awake().cloned().collect();
        if awake.is_empty() {
            return Vec::new();
        }
        self.target.settings.clear();
        self.settle(files, awake)
    }

    /// What readers see; what is missing is logged once.
    fn report(&mut self, trouble: Vec<String>) {
        let queues =
            self.target.settings.keys().filter(|setting| matches!(setting, Setting::Rps { .. })).count();
        let View { steered, awake, .. } = &self.view;
        let consequences = [
            (*steered < queues).then_some(LOST_TO_SOFTIRQS),
            (awake.len() < self.target.settings.len() - queues).then_some(LOST_TO_HALTS),
        ];
        let missing = trouble.first().map(|first| {
            let more =
                if trouble.len() > 1 { format!(" (and {} more)", trouble.len() - 1) } else { String::new() };
            let consequences: String =
                consequences.into_iter().flatten().map(|consequences| format!("; {consequences}")).collect();
            format!("{first}{more}{consequences}")
        });
        if missing != self.view.missing
            && let Some(missing) = &missing
        {
            tracing::warn!("other work may run on workers' CPUs: {missing}");
        }
        self.view.cpus = self.target.workers.iter().copied().collect();
        (self.view.queues, self.view.missing) = (queues, missing);
    }
}

/// An agent that ends leaves taps as they are, for the next one; but no CPU goes on without halting while no agent looks
/// whether frames flow.
impl Drop for OwnCpus {
    fn drop(&mut self) {
        let roots = self.roots.clone();
        for trouble in self.let_halt(&mut Sysfs::new(&roots)) {
            tracing::warn!("a CPU still does not halt: {trouble}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::plan::{Found, Situation};
    use super::*;
    use std::collections::BTreeMap;
    use std::mem::ManuallyDrop;

    const BOTH: KeepOff = KeepOff { softirqs: true, halts: true };

    /// Files as they would be in sysfs, and those that cannot be written.
    #[derive(Default)]
    struct There {
        values: BTreeMap<Setting, String>,
        refused: BTreeSet<Setting>,
        written: usize,
    }

    impl Files for There {
        fn read(&mut self, setting: &Setting) -> Result<Option<Found>, String> {
            Ok(self.values.get(setting).map(|value| Found { index: 1, value: value.clone() }))
        }

        fn write(&mut self, setting: &Setting, value: &str) -> Result<(), String> {
            if self.refused.contains(setting) {
                return Err(format!("{setting}: not permitted"));
            }
            self.written += 1;
            self.values.insert(setting.clone(), value.into());
            Ok(())
        }
    }

    fn tap(queue: u16) -> Setting {
        Setting::Rps { netns: None, device: "a".into(), queue }
    }

    fn there() -> There {
        let values =
            [(tap(0), "0".to_owned()), (tap(1), "7".into()), (Setting::Resume { cpu: 1 }, "0".into())];
        There { values: values.into(), ..There::default() }
    }

    fn situation() -> Situation {
        Situation {
            workers: [1].into(),
            others: (0..4).collect(),
            deadline: true,
            flows: true,
            taps: vec![(None, "a".into(), 2)],
            too_many: None,
        }
    }

    /// It is not dropped: what is real is not touched.
    fn agent(state: &Path) -> ManuallyDrop<OwnCpus> {
        let roots = tidegate_paths::Paths::new(&[], &[]).unwrap().namespaces;
        ManuallyDrop::new(OwnCpus::new(state, BOTH, roots).unwrap().0)
    }

    /// A look; what is told then.
    fn look(own: &mut OwnCpus, there: &mut There, situation: &Situation) -> View {
        own.target = plan::target(situation, own.off);
        let settings = own.target.settings.keys().chain(own.record.settings()).cloned().collect();
        let trouble = own.settle(there, settings);
        own.report(trouble);
        own.view.clone()
    }

    #[test]
    fn the_next_agent_restores_the_original_values() {
        let folder = tempfile::tempdir().unwrap();
        let (mut there, before) = (there(), there().values);
        let view = look(&mut agent(folder.path()), &mut there, &situation());
        assert_eq!((view.queues, view.steered, view.awake, view.missing), (2, 2, vec![1], None));
        assert_eq!(there.values.values().collect::<Vec<_>>(), ["d", "d", plan::NO_LATENCY]);

        let mut next = agent(folder.path());
        look(&mut next, &mut there, &situation());
        assert_eq!(there.written, 3, "all was as it shall be");
        look(&mut next, &mut there, &Situation { flows: false, ..situation() });
        assert_eq!(there.values[&Setting::Resume { cpu: 1 }], "0");
        look(&mut next, &mut there, &Situation { deadline: false, ..situation() });
        assert_eq!(there.values, before);
        assert_eq!(agent(folder.path()).record.settings().next(), None);
    }

    #[test]
    fn a_denied_setting_is_reported_and_the_others_are_still_set() {
        let folder = tempfile::tempdir().unwrap();
        let mut there = There { refused: [tap(0)].into(), ..there() };
        let mut own = agent(folder.path());
        // However often it is tried, the other program's value stays.
        for _ in 0..10 {
            let view = look(&mut own, &mut there, &situation());
            assert_eq!((view.queues, view.steered), (2, 1));
            let missing = view.missing.unwrap();
            assert!(
                missing.contains("queue 0 of a: not permitted; frames that the switch writes"),
                "{missing}"
            );
        }
        there.refused.clear();
        assert_eq!(look(&mut own, &mut there, &situation()).steered, 2);
    }

    #[test]
    fn too_many_cpus_are_reported_while_a_deadline_is_wanted() {
        let folder = tempfile::tempdir().unwrap();
        let mut own = agent(folder.path());
        let mut look = |deadline| {
            let too_many = Some("3 of 4 CPUs belong to workers".into());
            own.apply(&plan::target(&Situation { deadline, too_many, ..Situation::default() }, BOTH));
            own.view.clone()
        };
        let view = look(true);
        assert_eq!((view.cpus, view.missing.as_deref()), (vec![], Some("3 of 4 CPUs belong to workers")));
        assert_eq!(look(false).missing, None);
    }

    /// By the files of this machine, where there is no such interface, and no such CPU.
    #[test]
    fn a_look_changes_no_setting() {
        let folder = tempfile::tempdir().unwrap();
        let mut own = agent(folder.path());
        own.off.halts = false;
        let evidence = tidegate_evidence::Evidence::empty("a test");
        assert!(own.observe(&evidence).settled.is_clean);
        let taps = vec![(None, "tidegate-none".into(), 1)];
        let target = plan::target(&Situation { workers: [8000].into(), taps, ..situation() }, own.off);
        own.apply(&target);
        let settled = own.observe(&evidence).settled;
        assert_eq!((settled.target, settled.is_clean), (target, false));
        assert_eq!((own.view().queues, own.view().steered), (1, 0));
    }

    #[test]
    fn a_missing_file_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let mut there = there();
        there.values.remove(&tap(1));
        let mut own = agent(folder.path());
        let view = look(&mut own, &mut there, &situation());
        assert_eq!((view.queues, view.steered, view.awake), (2, 1, vec![1]));
        let missing = view.missing.unwrap();
        assert!(
            missing.starts_with("rps_cpus of queue 1 of a: sysfs has no such file; frames that the switch")
        );
        assert!(!missing.contains(LOST_TO_HALTS), "{missing}");
        there.values.remove(&Setting::Resume { cpu: 1 });
        let view = look(&mut own, &mut there, &situation());
        assert_eq!((view.steered, view.awake), (1, vec![]));
        let missing = view.missing.unwrap();
        assert!(missing.contains("(and 1 more); ") && missing.ends_with(LOST_TO_HALTS), "{missing}");
        // A setting that is not wanted may be missing.
        assert_eq!(look(&mut own, &mut there, &Situation::default()).missing, None);
    }

    #[test]
    fn an_agent_that_ends_before_its_first_look_lets_cpus_halt() {
        let folder = tempfile::tempdir().unwrap();
        let (mut there, halts) = (there(), Setting::Resume { cpu: 1 });
        look(&mut agent(folder.path()), &mut there, &situation());
        assert_eq!(there.values[&halts], plan::NO_LATENCY);
        let mut next = agent(folder.path());
        assert_eq!(next.let_halt(&mut there), Vec::<String>::new());
        assert_eq!(there.values[&halts], "0");
        assert_eq!(there.values[&tap(0)], "d", "taps are left to the next agent");
        assert_eq!(agent(folder.path()).record.awake().next(), None);
    }

    #[test]
    fn without_a_written_record_no_setting_changes() {
        let folder = tempfile::tempdir().unwrap();
        let (mut there, mut own) = (there(), agent(folder.path()));
        // Its new file cannot be made where a folder is.
        std::fs::create_dir(folder.path().join("own-cpus.json.new")).unwrap();
        let view = look(&mut own, &mut there, &situation());
        assert_eq!((view.steered, there.written), (0, 0), "{:?}", view.missing);
        assert!(view.missing.unwrap().starts_with("nothing is set: "));
    }
}
