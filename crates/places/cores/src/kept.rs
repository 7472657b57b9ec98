//! The settings that are kept, and what readers see of them.

use crate::keep_off::KeepOff;
use crate::settings::files::{Files, Kernel};
use crate::settings::keeper::{Keeper, Outcome, Trouble};
use crate::settings::setting::Setting;
use crate::settings::step::SavedSetting;
use crate::settled::Settled;
use crate::target::Target;
use crate::threads::Threads;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;
use tidegate_cores::cpus::Cpus;
use tidegate_cores::directions::Directions;
use tidegate_durable::DurableError;
use tidegate_evidence::OwnCpus as View;
use tidegate_paths::Roots;

/// The consequence of halting workers' CPUs.
const LOST_TO_HALTS: &str =
    "an idle CPU wakes late, by milliseconds in a virtual machine, and real-time frames wait for it";

/// The consequence of a tap's softirqs on a worker.
const LOST_TO_SOFTIRQS: &str = "frames that the switch writes into these taps run the network stack on the worker, up \
    to 0.4 ms for 64 kB, and real-time frames wait for it";

/// Keeps the settings of a target.
#[derive(Debug)]
pub struct Kept {
    /// Whether the agent's threads leave the CPUs of a target.
    threads_leave: bool,
    /// Folders of network namespaces that contracts may name.
    roots: Roots,
    keeper: Keeper,
    threads: Threads,
    /// The last target.
    target: Target,
    /// When it was last settled.
    settled_at: Option<Instant>,
    view: View,
    /// Faults of stages' settings.
    faults: BTreeMap<Setting, String>,
}

impl Kept {
    /// Makes it with the record in `state`; `off` is the work that is kept off workers' CPUs. The second value describes damage.
    ///
    /// # Errors
    /// The record cannot be read, or a newer release wrote it.
    pub fn new(
        state: &Path,
        off: Option<KeepOff>,
        roots: Roots,
    ) -> Result<(Self, Option<String>), DurableError> {
        let (keeper, damage) = Keeper::new(state)?;
        let kept = Self {
            threads_leave: off.is_some_and(KeepOff::is_anything),
            roots,
            keeper,
            threads: Threads::default(),
            target: Target::default(),
            settled_at: None,
            view: View::default(),
            faults: BTreeMap::new(),
        };
        Ok((kept, damage))
    }

    /// Whether an earlier agent died while it kept a CPU from halting.
    pub fn keeps_awake(&self) -> bool {
        self.keeper.record().awake().next().is_some()
    }

    /// The settings on record: set by this agent, or by an earlier one.
    pub fn held(&self) -> &BTreeMap<Setting, SavedSetting> {
        self.keeper.record().entries()
    }

    /// What the switch is asked to do; `None` before the first settling: it goes on as an earlier agent asked.
    pub fn directions(&self) -> Option<&Directions> {
        self.settled_at.map(|_| &self.target.directions)
    }

    /// Work that is kept off CPUs, by the last settling.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Faults of the settings of stages, by the last settling.
    pub fn faults(&self) -> &BTreeMap<Setting, String> {
        &self.faults
    }

    /// Returns the last settling, at `now`.
    pub fn settled(&self, now: Instant) -> Settled {
        let ago = self.settled_at.map(|at| now.saturating_duration_since(at));
        let is_clean = self.keeper.record().settings().next().is_none() && self.view == View::default();
        Settled { target: self.target.clone(), ago, is_clean }
    }

    /// Brings the settings of a target about, and puts back all others.
    pub fn apply(&mut self, target: &Target) {
        let own = if self.threads_leave { &target.own } else { &Cpus::new() };
        let threads = self.threads.keep_off(own).err();
        let why = threads.map(|e| format!("the agent's threads may run on the workers' CPUs: {e}"));
        let roots = self.roots.clone();
        self.apply_to(&mut Kernel::new(&roots), target, why);
    }

    /// The same for settings alone, with a further problem.
    fn apply_to(&mut self, files: &mut impl Files, target: &Target, further: Option<String>) {
        (self.target, self.settled_at) = (target.clone(), Some(Instant::now()));
        self.keeper.correct(&self.target.before);
        let Outcome { set, mut trouble } = self.keeper.settle(files, &self.target.settings);
        self.view.steered = set.intersection(&self.target.taps).count();
        self.view.awake = set
            .iter()
            .filter_map(|s| if let Setting::Resume { cpu } = s { Some(*cpu) } else { None })
            .collect();
        let further = further.into_iter().chain(self.target.too_many.clone());
        trouble.extend(further.map(|why| Trouble { setting: None, why }));
        self.report(trouble);
    }

    /// Lets CPUs halt, those of an earlier agent included; returns the problems.
    fn let_halt(&mut self, files: &mut impl Files) -> Vec<String> {
        self.keeper.let_halt(files)
    }

    /// Makes what readers see; what is missing is logged once.
    fn report(&mut self, trouble: Vec<Trouble>) {
        let queues = self.target.taps.len();
        let awake = self.target.settings.keys().filter(|s| matches!(s, Setting::Resume { .. })).count();
        let is_of_stage = |setting: &Setting| {
            self.target.settings.contains_key(setting)
                && !matches!(setting, Setting::Resume { .. })
                && !self.target.taps.contains(setting)
        };
        let (of_stages, others): (Vec<_>, Vec<_>) =
            trouble.into_iter().partition(|trouble| trouble.setting.as_ref().is_some_and(is_of_stage));
        let consequences = [
            (self.view.steered < queues).then_some(LOST_TO_SOFTIRQS),
            (self.view.awake.len() < awake).then_some(LOST_TO_HALTS),
        ];
        let missing = others.first().map(|Trouble { why: first, .. }| {
            let more =
                if others.len() > 1 { format!(" (and {} more)", others.len() - 1) } else { String::new() };
            let consequences: String =
                consequences.into_iter().flatten().map(|consequences| format!("; {consequences}")).collect();
            format!("{first}{more}{consequences}")
        });
        if missing != self.view.missing
            && let Some(missing) = &missing
        {
            tracing::warn!("other work may run on workers' CPUs: {missing}");
        }
        let faults: BTreeMap<Setting, String> =
            of_stages.into_iter().filter_map(|trouble| Some((trouble.setting?, trouble.why))).collect();
        for (setting, why) in &faults {
            if self.faults.get(setting) != Some(why) {
                tracing::warn!("a stage of the plan of CPUs is not where it shall be: {why}");
            }
        }
        self.faults = faults;
        self.view.cpus = self.target.own.iter().copied().collect();
        (self.view.queues, self.view.missing) = (queues, missing);
    }
}

/// An agent that ends leaves settings as they are, for the next one; but no CPU goes on without halting while no agent looks
/// whether frames flow.
impl Drop for Kept {
    fn drop(&mut self) {
        let roots = self.roots.clone();
        for trouble in self.let_halt(&mut Kernel::new(&roots)) {
            tracing::warn!("a CPU still does not halt: {trouble}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::setting::NO_LATENCY;
    use crate::settings::step::Found;
    use crate::workers::{self, Situation};
    use std::collections::BTreeSet;
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
    fn agent(state: &Path) -> ManuallyDrop<Kept> {
        let roots = tidegate_paths::Paths::new(&[], &[]).unwrap().namespaces;
        ManuallyDrop::new(Kept::new(state, Some(BOTH), roots).unwrap().0)
    }

    /// A look; what is told then.
    fn look(kept: &mut Kept, there: &mut There, situation: &Situation) -> View {
        kept.apply_to(there, &workers::target(situation, BOTH), None);
        kept.view.clone()
    }

    #[test]
    fn the_next_agent_restores_the_original_values() {
        let folder = tempfile::tempdir().unwrap();
        let (mut there, before) = (there(), there().values);
        let view = look(&mut agent(folder.path()), &mut there, &situation());
        assert_eq!((view.queues, view.steered, view.awake, view.missing), (2, 2, vec![1], None));
        assert_eq!(there.values.values().collect::<Vec<_>>(), ["d", "d", NO_LATENCY]);

        let mut next = agent(folder.path());
        look(&mut next, &mut there, &situation());
        assert_eq!(there.written, 3, "all was as it shall be");
        look(&mut next, &mut there, &Situation { flows: false, ..situation() });
        assert_eq!(there.values[&Setting::Resume { cpu: 1 }], "0");
        look(&mut next, &mut there, &Situation { deadline: false, ..situation() });
        assert_eq!(there.values, before);
        assert_eq!(agent(folder.path()).keeper.record().settings().next(), None);
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
    fn queues_that_a_plan_places_are_no_work_on_a_workers_cpu() {
        let folder = tempfile::tempdir().unwrap();
        let mut there = There { refused: [tap(1)].into(), ..there() };
        let mut own = agent(folder.path());
        let settings = [(tap(0), "2".to_owned()), (tap(1), "4".to_owned())].into();
        own.apply_to(&mut there, &Target { settings, ..Target::default() }, None);
        assert_eq!((&own.view, own.faults().len()), (&View::default(), 1));
    }

    #[test]
    fn too_many_cpus_are_reported_while_a_deadline_is_wanted() {
        let folder = tempfile::tempdir().unwrap();
        let mut own = agent(folder.path());
        let mut look = |deadline| {
            let too_many = Some("3 of 4 CPUs belong to workers".into());
            own.apply(&workers::target(&Situation { deadline, too_many, ..Situation::default() }, BOTH));
            own.view.clone()
        };
        let view = look(true);
        assert_eq!((view.cpus, view.missing.as_deref()), (vec![], Some("3 of 4 CPUs belong to workers")));
        assert_eq!(look(false).missing, None);
    }

    /// By the files of this machine, where there is no such interface.
    #[test]
    fn a_settling_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let mut kept = agent(folder.path());
        assert!(kept.settled(Instant::now()).is_clean);
        let taps = vec![(None, "tidegate-none".into(), 1)];
        let off = KeepOff { halts: false, ..BOTH };
        let target = workers::target(&Situation { workers: [8000].into(), taps, ..situation() }, off);
        kept.apply(&target);
        let settled = kept.settled(Instant::now());
        assert_eq!((settled.target, settled.is_clean), (target, false));
        assert_eq!((kept.view().queues, kept.view().steered), (1, 0));
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
        assert_eq!(there.values[&halts], NO_LATENCY);
        let mut next = agent(folder.path());
        assert_eq!(next.let_halt(&mut there), Vec::<String>::new());
        assert_eq!(there.values[&halts], "0");
        assert_eq!(there.values[&tap(0)], "d", "taps are left to the next agent");
        assert_eq!(agent(folder.path()).keeper.record().awake().next(), None);
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
