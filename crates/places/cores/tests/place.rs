//! The place with its planner, on real threads of this process, which it is told of as another place's stages.

use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};
use tidegate_contract::{Host, Placement, Vnic};
use tidegate_cores::cpus::Cpus;
use tidegate_cores::directions::Directions;
use tidegate_cores::stage::{Handle, Stage, Thread, ThreadKind};
use tidegate_paths::Paths;
use tidegate_place::{Adopt, HostWork, Network, Observed, Place, Wanted};
use tidegate_place_cores::{CoresPlace, Options};
use tidegate_testkit::contract::vnic;

/// A thread that waits until this is dropped.
struct Waiting {
    thread: Thread,
    _ends: Sender<()>,
}

impl Waiting {
    fn start() -> Self {
        let (ends, end) = channel::<()>();
        let (tell, told) = channel();
        std::thread::spawn(move || {
            tell.send(gettid()).unwrap();
            let _ = end.recv();
        });
        let number = told.recv().unwrap().as_raw_nonzero().get().cast_unsigned();
        let stat = std::fs::read_to_string(format!("/proc/self/task/{number}/stat")).unwrap();
        let started = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap().parse().unwrap();
        Self { thread: Thread { process: std::process::id(), thread: number, started }, _ends: ends }
    }

    fn cpus(&self) -> Cpus {
        let set = sched_getaffinity(Pid::from_raw(self.thread.thread.cast_signed())).unwrap();
        (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
    }

    fn stage(&self, kind: ThreadKind, load: u32) -> Stage {
        Stage {
            handle: Handle::Thread { kind, thread: self.thread, name: "a test".into() },
            vnics: vec!["a".into()],
            realtime: kind == ThreadKind::Vhost,
            load,
            measured: true,
            present: self.cpus(),
            pinned_by: None,
        }
    }
}

/// An agent with one place.
struct Agent {
    place: CoresPlace,
    host: Host,
    contracts: Vec<Vnic>,
}

impl Agent {
    fn start(state: &std::path::Path, placement: Placement) -> Self {
        let namespaces = Paths::new(&[], &[]).unwrap().namespaces;
        let options = Options { own_cpus: None };
        let (place, damage) = CoresPlace::new(&options, state, namespaces).unwrap();
        assert_eq!(damage, []);
        let mut host = Host::default();
        host.cores.placement = placement;
        Self { place, host, contracts: vec![vnic("a", 1)] }
    }

    /// One look, and what it brings about.
    fn look(&mut self, stages: &[Stage]) -> Observed {
        let (observed, facts) = self.place.observe(&[]).unwrap();
        let work = HostWork {
            contracts: self.contracts.iter().collect(),
            stages: stages.iter().collect(),
            ..HostWork::default()
        };
        let wanted = Wanted {
            host: &self.host,
            network: Network::NONE,
            vnics: &[],
            adopt: Adopt::No,
            claims: &[],
            work: &work,
        };
        for action in Place::plan(&self.place, &wanted, &observed, &facts).unwrap().actions {
            self.place.apply(&action).unwrap();
        }
        observed
    }

    /// Looks until this holds of an observation.
    fn until(&mut self, stages: &[Stage], holds: impl Fn(&Observed) -> bool) -> Observed {
        let end = Instant::now() + Duration::from_secs(100);
        loop {
            let observed = self.look(stages);
            if holds(&observed) {
                return observed;
            }
            assert!(Instant::now() < end, "{observed:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

#[test]
fn threads_are_where_the_plan_puts_them_until_it_is_not_kept_any_more() {
    let threads = [Waiting::start(), Waiting::start()];
    let before = threads[0].cpus();
    if before.len() < 2 {
        return;
    }
    let stages = [threads[0].stage(ThreadKind::Vhost, 300_000), threads[1].stage(ThreadKind::Vcpu, 200_000)];
    let folder = tempfile::tempdir().unwrap();
    let mut agent = Agent::start(folder.path(), Placement::Off);
    // A plan is made, and nothing is set by it.
    let planned = |observed: &Observed| {
        let stages = &observed.cores.as_ref().unwrap().stages;
        stages.len() == 2 && stages.iter().all(|stage| stage.planned.len() == 1)
    };
    let observed = agent.until(&stages, planned);
    let report = observed.cores.unwrap();
    assert!(report.plan.is_some() && !report.kept && report.cpus.len() >= 2, "{report:?}");
    assert!(threads.iter().all(|thread| thread.cpus() == before));

    agent.host.cores.placement = Placement::Plan;
    let are_placed = || threads.iter().all(|thread| thread.cpus().len() == 1);
    let is_kept = |observed: &Observed| observed.cores.as_ref().unwrap().kept;
    let observed = agent.until(&stages, |observed| are_placed() && planned(observed) && is_kept(observed));
    let report = observed.cores.unwrap();
    for (thread, stage) in threads.iter().zip(&stages) {
        let reported = report.stages.iter().find(|it| it.stage == stage.handle.to_string()).unwrap();
        assert_eq!(thread.cpus(), reported.planned.iter().copied().collect());
    }
    // What the successor of an agent that dies finds is its own.
    std::mem::forget(agent);
    let mut agent = Agent::start(folder.path(), Placement::Plan);
    let placed = threads.each_ref().map(Waiting::cpus);
    let observed = agent.until(&stages, |observed| {
        assert_eq!(threads.each_ref().map(Waiting::cpus), placed, "in no look");
        planned(observed) && observed.directions.is_some()
    });
    assert_eq!(observed.directions, Some(Directions::default()));

    // The vNIC goes.
    let contracts = std::mem::take(&mut agent.contracts);
    agent.until(&stages, |_| threads.iter().all(|thread| thread.cpus() == before));
    agent.contracts = contracts;
    agent.until(&stages, |_| are_placed());
    agent.host.cores.placement = Placement::Off;
    agent.until(&stages, |_| threads.iter().all(|thread| thread.cpus() == before));
}
