//! CPUs and priorities of real threads of this process: set, repaired, left, put back, also by the successor of an agent that died.

use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_setaffinity};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use tidegate_cores::cpus::{self, Cpus};
use tidegate_cores::stage::Thread;
use tidegate_durable::cut::testing::dies_at;
use tidegate_place_cores::settings::files::{Files, Kernel};
use tidegate_place_cores::settings::keeper::{Keeper, Outcome};
use tidegate_place_cores::settings::setting::Setting;
use tidegate_place_cores::settings::step::REPAIRS;

/// A thread that waits until it is dropped.
struct Waiting {
    thread: Thread,
    ends: Option<Sender<()>>,
    handle: Option<JoinHandle<()>>,
}

impl Waiting {
    /// Starts it from this one, whose CPUs it inherits.
    fn start_below(&self) -> Self {
        let own = sched_getaffinity(None).unwrap();
        sched_setaffinity(None, &sched_getaffinity(self.pid()).unwrap()).unwrap();
        let child = Self::start();
        sched_setaffinity(None, &own).unwrap();
        child
    }

    fn start() -> Self {
        let (ends, end) = channel::<()>();
        let (tell, told) = channel();
        let handle = std::thread::spawn(move || {
            tell.send(gettid()).unwrap();
            let _ = end.recv();
        });
        let number = told.recv().unwrap().as_raw_nonzero().get().cast_unsigned();
        let stat = std::fs::read_to_string(format!("/proc/self/task/{number}/stat")).unwrap();
        let started = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap().parse().unwrap();
        let thread = Thread { process: std::process::id(), thread: number, started };
        Self { thread, ends: Some(ends), handle: Some(handle) }
    }

    fn pid(&self) -> Option<Pid> {
        Pid::from_raw(self.thread.thread.cast_signed())
    }

    fn cpus(&self) -> Cpus {
        let set = sched_getaffinity(self.pid()).unwrap();
        (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
    }

    /// As another program, or the thread itself, would.
    fn goes_to(&self, cpus: &Cpus) {
        let mut set = CpuSet::new();
        cpus.iter().for_each(|cpu| set.set(*cpu));
        sched_setaffinity(self.pid(), &set).unwrap();
    }

    fn affinity(&self) -> Setting {
        Setting::Affinity(self.thread)
    }

    fn end(&mut self) {
        drop(self.ends.take());
        self.handle.take().map(JoinHandle::join);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.end();
    }
}

fn settle(keeper: &mut Keeper, wanted: &BTreeMap<Setting, String>) -> Outcome {
    let roots = tidegate_paths::Paths::new(&[], &[]).unwrap().namespaces;
    keeper.settle(&mut Kernel::new(&roots), wanted)
}

fn keeper(state: &Path) -> Keeper {
    let (keeper, damage) = Keeper::new(state).unwrap();
    assert_eq!(damage, None);
    keeper
}

/// The last CPU, if there is another one.
fn last_of_several(thread: &Waiting) -> Option<usize> {
    let cpus = thread.cpus();
    cpus.last().copied().filter(|_| cpus.len() > 1)
}

#[test]
fn a_thread_gets_its_cpu_and_later_its_former_ones() {
    let (folder, thread) = (tempfile::tempdir().unwrap(), Waiting::start());
    let Some(last) = last_of_several(&thread) else { return };
    let before = thread.cpus();
    let wanted = [(thread.affinity(), last.to_string()), (Setting::Nice(thread.thread), "5".into())].into();
    let outcome = settle(&mut keeper(folder.path()), &wanted);
    assert_eq!((outcome.set.len(), outcome.trouble), (2, vec![]));
    assert_eq!(thread.cpus(), [last].into());
    // The next agent.
    assert_eq!(settle(&mut keeper(folder.path()), &BTreeMap::new()).trouble, vec![]);
    assert_eq!(thread.cpus(), before);
    let roots = tidegate_paths::Paths::new(&[], &[]).unwrap().namespaces;
    let nice = Kernel::new(&roots).read(&Setting::Nice(thread.thread)).unwrap().unwrap();
    // Without the right to raise it again it stays.
    assert!(["0", "5"].contains(&nice.value.as_str()));
    assert_eq!(keeper(folder.path()).record().settings().count(), usize::from(nice.value == "5"));
}

#[test]
fn a_thread_that_resets_its_cpus_is_repaired_three_times_then_left_and_named() {
    let (folder, thread) = (tempfile::tempdir().unwrap(), Waiting::start());
    let Some(last) = last_of_several(&thread) else { return };
    let before = thread.cpus();
    let wanted = [(thread.affinity(), last.to_string())].into();
    let mut keeper = keeper(folder.path());
    settle(&mut keeper, &wanted);
    for _ in 0..REPAIRS {
        thread.goes_to(&before);
        assert_eq!(settle(&mut keeper, &wanted).trouble, vec![]);
        assert_eq!(thread.cpus(), [last].into());
    }
    thread.goes_to(&before);
    for _ in 0..3 {
        let Outcome { set, trouble } = settle(&mut keeper, &wanted);
        assert_eq!((set.len(), trouble.len(), thread.cpus()), (0, 1, before.clone()));
        assert_eq!(trouble[0].setting, Some(thread.affinity()));
        assert!(trouble[0].why.contains("the agent leaves it as it is"), "{}", trouble[0].why);
    }
    assert_eq!(settle(&mut keeper, &BTreeMap::new()).trouble, vec![]);
    assert_eq!((thread.cpus(), keeper.record().settings().next()), (before, None));
}

#[test]
fn another_thread_of_the_same_number_is_not_touched() {
    let (folder, mut thread) = (tempfile::tempdir().unwrap(), Waiting::start());
    let Some(last) = last_of_several(&thread) else { return };
    let before = thread.cpus();
    let mut keeper = keeper(folder.path());
    let earlier = Thread { started: thread.thread.started - 1, ..thread.thread };
    let wanted =
        [(Setting::Affinity(earlier), last.to_string()), (Setting::Nice(earlier), "7".into())].into();
    let outcome = settle(&mut keeper, &wanted);
    assert_eq!((outcome.set.len(), outcome.trouble), (0, vec![]), "gone, which is no fault");
    assert_eq!(thread.cpus(), before);
    let roots = tidegate_paths::Paths::new(&[], &[]).unwrap().namespaces;
    // It ended between the look and the write.
    Kernel::new(&roots).write(&Setting::Affinity(earlier), &last.to_string()).unwrap();
    assert_eq!(thread.cpus(), before);
    // One that ends is forgotten.
    let affinity = thread.affinity();
    settle(&mut keeper, &[(affinity.clone(), last.to_string())].into());
    assert_eq!(keeper.record().settings().next(), Some(&affinity));
    thread.end();
    let outcome = settle(&mut keeper, &[(affinity, last.to_string())].into());
    assert_eq!((outcome.trouble, keeper.record().settings().next()), (vec![], None));
}

#[test]
fn a_thread_that_a_placed_one_starts_gets_that_ones_former_cpus() {
    let (folder, thread) = (tempfile::tempdir().unwrap(), Waiting::start());
    let Some(last) = last_of_several(&thread) else { return };
    let before = thread.cpus();
    let mut keeper = keeper(folder.path());
    let mut wanted: BTreeMap<_, _> = [(thread.affinity(), last.to_string())].into();
    settle(&mut keeper, &wanted);
    let child = thread.start_below();
    assert_eq!(child.cpus(), [last].into());
    wanted.insert(child.affinity(), before.first().unwrap().to_string());
    assert_eq!(settle(&mut keeper, &wanted).trouble, vec![]);
    assert_eq!(settle(&mut keeper, &BTreeMap::new()).trouble, vec![]);
    assert_eq!([thread.cpus(), child.cpus()], [before.clone(), before]);
}

#[test]
fn a_cpu_that_is_offline_is_reported_and_is_no_drift() {
    let (folder, thread) = (tempfile::tempdir().unwrap(), Waiting::start());
    let before = thread.cpus();
    let mut keeper = keeper(folder.path());
    for _ in 0..=REPAIRS {
        let Outcome { set, trouble } = settle(&mut keeper, &[(thread.affinity(), "1000".to_owned())].into());
        assert_eq!((set.len(), trouble.len(), thread.cpus()), (0, 1, before.clone()));
        assert!(trouble[0].why.contains("(the CPU is offline)"), "{}", trouble[0].why);
    }
    assert_eq!(keeper.record().settings().next(), None);
    let Outcome { trouble, .. } = settle(&mut keeper, &[(thread.affinity(), "1024".to_owned())].into());
    assert!(trouble[0].why.contains("CPUs of threads are set up to 1023"), "{}", trouble[0].why);
}

/// Wherever an agent dies while it sets CPUs or puts them back: its successor sets them, and puts back those before.
#[test]
fn a_death_of_the_agent_at_any_point_loses_no_former_cpus() {
    let threads = [Waiting::start(), Waiting::start()];
    let Some(last) = last_of_several(&threads[0]) else { return };
    let before = threads[0].cpus();
    let other: Cpus = [*before.first().unwrap()].into();
    threads[1].goes_to(&other);
    let formers = [before, other];
    let wanted: BTreeMap<_, _> = threads.iter().map(|t| (t.affinity(), last.to_string())).collect();
    let mut deaths = 0;
    for (from, to) in [(&BTreeMap::new(), &wanted), (&wanted, &BTreeMap::new())] {
        for at in 0.. {
            let folder = tempfile::tempdir().unwrap();
            settle(&mut keeper(folder.path()), from);
            let ended = dies_at(at, || settle(&mut keeper(folder.path()), to));
            if at % 2 == 0 {
                let outcome = settle(&mut keeper(folder.path()), &wanted);
                assert_eq!((outcome.set.len(), outcome.trouble), (2, vec![]));
                assert!(threads.iter().all(|thread| thread.cpus() == [last].into()));
            }
            assert_eq!(settle(&mut keeper(folder.path()), &BTreeMap::new()).trouble, vec![]);
            for (thread, former) in threads.iter().zip(&formers) {
                assert_eq!(cpus::list(&thread.cpus()), cpus::list(former));
            }
            assert_eq!(keeper(folder.path()).record().settings().next(), None);
            if ended.is_some() {
                break;
            }
            deaths += 1;
        }
    }
    assert!(deaths >= 8, "few points: {deaths}");
}
