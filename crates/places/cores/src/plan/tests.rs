use super::*;
use crate::discover::Found;
use crate::keep_off::KeepOff;
use crate::settings::setting::NO_LATENCY;
use crate::settings::step::SavedSetting;
use crate::settled::{SHORTEST_PAUSE, Settled};
use crate::watched::Surveyed;
use crate::workers::tests::{machine, worker};
use tidegate_contract::{Host, Nanos};
use tidegate_cores::machine::Machine;
use tidegate_cores::problem::Plan as CpuPlan;
use tidegate_cores::stage::{Thread, ThreadKind};
use tidegate_evidence::{Evidence, VnicStats};
use tidegate_place::{Adopt, HostWork, Network};
use tidegate_testkit::contract::vnic;

const HALTS: KeepOff = KeepOff { softirqs: false, halts: true };

/// A host at one look.
struct Scene {
    host: Host,
    contracts: Vec<Vnic>,
    stages: Vec<Stage>,
    evidence: Evidence,
    claims: Vec<Claim>,
    facts: Facts,
}

fn deadline(vnic: Vnic) -> Vnic {
    Vnic { deadline: Some(Nanos::new(1_000_000)), ..vnic }
}

fn port(name: &str) -> Stage {
    Stage { handle: Handle::Port(name.into()), vnics: vec![name.into()], ..worker(0, &[]) }
}

fn thread(number: u32) -> Thread {
    Thread { process: 7, thread: number, started: 1 }
}

fn vcpu(number: u32, vnics: &[&str]) -> Stage {
    let handle = Handle::Thread { kind: ThreadKind::Vcpu, thread: thread(number), name: "CPU 0/KVM".into() };
    let vnics = vnics.iter().map(|v| (*v).to_owned()).collect();
    Stage { handle, vnics, realtime: false, ..worker(0, &[0, 1]) }
}

/// Four CPUs; one vNIC with a deadline, and a worker on CPU 2.
fn scene() -> Scene {
    let settled = Settled { is_clean: true, ago: Some(LOOK), ..Settled::default() };
    let seen = Some(Sight::Delivered(0));
    let facts = Facts {
        age: LOOK,
        off: Some(HALTS),
        machine: machine(4, &[]),
        settled,
        seen,
        flows: true,
        ..Facts::default()
    };
    Scene {
        host: Host::default(),
        contracts: vec![deadline(vnic("a", 1))],
        stages: vec![Stage { vnics: vec!["a".into()], ..worker(0, &[2]) }, port("a")],
        evidence: Evidence::empty("a test"),
        claims: vec![],
        facts,
    }
}

impl Scene {
    fn plan(&self) -> Plan<CoresAction> {
        let work = HostWork {
            contracts: self.contracts.iter().collect(),
            stages: self.stages.iter().collect(),
            evidence: vec![&self.evidence],
            ..HostWork::default()
        };
        let wanted = Wanted {
            host: &self.host,
            network: Network::NONE,
            vnics: &[],
            adopt: Adopt::No,
            claims: &self.claims,
            work: &work,
        };
        plan(&wanted, &self.facts)
    }

    fn target(&self) -> Option<Target> {
        self.plan().actions.into_iter().find_map(|action| match action {
            CoresAction::Keep(target) => Some(target),
            _ => None,
        })
    }

    fn question(&self) -> Option<Arc<Problem>> {
        self.plan().actions.into_iter().find_map(|action| match action {
            CoresAction::Consider(problem) => Some(problem),
            _ => None,
        })
    }

    /// Claimed CPUs.
    fn claims(&self) -> Vec<Resource> {
        self.plan().claims.into_iter().map(|claim| claim.resource).collect()
    }

    /// A look at the host found these stages, besides the reported ones.
    fn finds(&mut self, stages: &[Stage]) {
        let reported = self.stages.iter().filter(|stage| may_be_reported(stage));
        let all = reported.chain(stages).cloned().collect();
        let found = Found { stages: all, usable: (0..4).collect(), ..Found::default() };
        let scope = Scope { contracts: self.contracts.clone(), ..Scope::default() };
        self.facts.surveyed = Some(Arc::new(Surveyed { scope, not_followed: BTreeMap::new(), found }));
    }

    /// The planner's answer puts stages on these CPUs.
    fn planned(&mut self, cpus: &[(Handle, usize)], own: &[usize]) {
        let mut plan = CpuPlan { own: own.iter().copied().collect(), ..CpuPlan::default() };
        plan.assignment.cpus = cpus.iter().cloned().collect();
        let problem = self.question().unwrap();
        self.facts.planned = Some(Arc::new(Planned { problem, plan, took: Duration::ZERO }));
    }
}

#[test]
fn a_wanted_deadline_claims_the_workers_cpus_before_they_are_taken() {
    let mut scene = scene();
    // No worker has a deadline yet.
    let idle = |number, cpu| Stage { realtime: false, ..worker(number, &[cpu]) };
    scene.stages = vec![idle(0, 2), idle(1, 3), port("a")];
    scene.contracts = vec![vnic("a", 1)];
    assert_eq!((scene.claims(), scene.target()), (vec![], None));
    scene.contracts = vec![deadline(vnic("a", 1))];
    let both = vec![Resource::Cpu(2), Resource::Cpu(3)];
    assert_eq!((scene.claims(), scene.target()), (both.clone(), None));
    scene.stages[0].realtime = true;
    let target = scene.target().unwrap();
    assert_eq!((scene.claims(), target.own), (both.clone(), [2].into()));
    assert!(target.settings.values().all(|value| value == NO_LATENCY));
    // All workers together would be too many.
    scene.stages.push(idle(2, 1));
    assert_eq!(scene.claims(), [Resource::Cpu(2)]);
    scene.stages.pop();
    // A vNIC that is still to come claims CPUs, and its settings follow.
    scene.stages.pop();
    assert_eq!((scene.claims(), scene.target()), (both, None));
    // The agent is not to keep anything off.
    scene.facts.off = None;
    assert_eq!((scene.claims(), scene.target()), (vec![], None));
}

#[test]
fn a_switch_that_is_started_anew_finds_its_cpus_still_free() {
    let mut scene = scene();
    scene.stages.clear();
    let target = Target { own: [2].into(), ..Target::default() };
    scene.facts.settled = Settled { target, ago: Some(LOOK), is_clean: false };
    scene.facts.seen = Some(Sight::Silence);
    for silent in [None, Some(SHORTEST_PAUSE)] {
        scene.facts.silent = silent;
        assert_eq!(scene.target(), None, "{silent:?}");
    }
    scene.facts.silent = Some(LOOK);
    assert_eq!(scene.target(), Some(Target::default()));
    // Nothing waits for it without a deadline.
    scene.facts.silent = None;
    scene.contracts = vec![vnic("a", 1)];
    assert_eq!(scene.target(), Some(Target::default()));
}

#[test]
fn frames_are_seen_if_halts_depend_on_them() {
    let mut scene = scene();
    let stats = VnicStats { realtime_delivered: 5, ..VnicStats::default() };
    scene.evidence.vnics.insert("a".into(), stats);
    let sees = |scene: &Scene| scene.plan().actions.iter().any(|a| matches!(a, CoresAction::See(_)));
    assert!(sees(&scene));
    scene.facts.seen = Some(Sight::Delivered(5));
    assert!(!sees(&scene));
    scene.facts.off = Some(KeepOff { softirqs: true, halts: false });
    scene.facts.seen = Some(Sight::Delivered(0));
    assert!(!sees(&scene));
}

#[test]
fn a_plan_is_made_always_and_kept_if_wanted() {
    let mut scene = scene();
    assert!(scene.question().is_none(), "not looked yet");
    scene.finds(&[vcpu(8, &["a"]), vcpu(9, &["gone"])]);
    let problem = scene.question().unwrap();
    assert_eq!(problem.stages.len(), 3, "a stage of no contract is not planned");
    let vcpu = vcpu(8, &["a"]).handle;
    scene.planned(&[(vcpu, 1), (Handle::Worker(0), 3)], &[3]);
    let off = scene.target().unwrap();
    assert_eq!((off.own, off.directions.workers), ([2].into(), BTreeMap::new()));
    assert!(!off.settings.contains_key(&Setting::Affinity(thread(8))));

    scene.host.cores.placement = Placement::Plan;
    let kept = scene.target().unwrap();
    assert_eq!((kept.own, kept.directions.workers), ([2, 3].into(), [(0, 3)].into()));
    assert_eq!(kept.settings[&Setting::Affinity(thread(8))], "1");
    assert_eq!(scene.claims(), [Resource::Cpu(2), Resource::Cpu(3)]);
    // The contract goes: nothing is set for its stages any more.
    scene.contracts.clear();
    assert_eq!(scene.target(), None);
    // So does the CPU.
    scene.contracts = vec![vnic("a", 1)];
    scene.facts.machine = machine(1, &[]);
    assert_eq!(scene.target(), None);
}

#[test]
fn a_new_agent_leaves_all_as_it_is_until_its_first_plan_and_begins_there() {
    let mut scene = scene();
    scene.host.cores.placement = Placement::Plan;
    (scene.facts.settled, scene.facts.age) = (Settled::default(), Duration::ZERO);
    let (before, ours) = ("0-3".into(), "1".into());
    let saved = SavedSetting { index: 0, before, ours, earlier: None, repairs: 0, boot: None };
    scene.facts.held = [(Setting::Affinity(thread(8)), saved)].into();
    assert_eq!((scene.question(), scene.target()), (None, None), "the host was not looked at yet");
    // The look came before the switch's first answer.
    let reported = std::mem::take(&mut scene.stages);
    scene.finds(&[vcpu(8, &["a"])]);
    scene.facts.seen = Some(Sight::Silence);
    assert_eq!((scene.question(), scene.target()), (None, None));
    scene.stages = reported;
    scene.facts.seen = Some(Sight::Delivered(0));
    assert_eq!((scene.question(), scene.target()), (None, None));
    scene.finds(&[vcpu(8, &["a"])]);
    assert!(scene.question().is_none(), "loads are estimates");
    scene.facts.age = LOOK;
    let problem = scene.question().unwrap();
    let cpus = [(vcpu(8, &["a"]).handle, 1), (Handle::Worker(0), 2)];
    assert_eq!(problem.in_force.cpus, cpus.into());
    assert_eq!(problem.in_force.workers, [("a".to_owned(), 0)].into());
    assert_eq!(scene.target(), None);
    // No plan comes.
    scene.facts.age = FIRST_PLAN;
    assert_eq!(scene.target().unwrap().directions, Default::default());
    scene.facts.age = LOOK;
    scene.planned(&[(vcpu(8, &["a"]).handle, 1)], &[]);
    assert_eq!(scene.target().unwrap().settings[&Setting::Affinity(thread(8))], "1");
}

#[test]
fn work_that_another_program_moved_is_left_from_the_next_look_on() {
    let mut scene = scene();
    let by = "its CPU affinity, which another program set";
    let on = |cpu| Stage { present: [cpu].into(), pinned_by: Some(by.into()), ..vcpu(8, &["a"]) };
    let handle = on(1).handle;
    scene.host.cores.placement = Placement::Plan;
    let (before, ours) = ("0-3".into(), "1".into());
    let saved = SavedSetting { index: 0, before, ours, earlier: None, repairs: 0, boot: None };
    scene.facts.held = [(Setting::Affinity(thread(8)), saved)].into();
    let is_pinned = |scene: &Scene| {
        let problem = scene.question().unwrap();
        problem.stages.iter().find(|stage| stage.handle == handle).unwrap().pinned_by.is_some()
    };
    let is_set = |scene: &Scene| scene.target().unwrap().settings.contains_key(&Setting::Affinity(thread(8)));
    scene.finds(&[on(1)]);
    scene.planned(&[(handle.clone(), 1)], &[]);
    assert!(!is_pinned(&scene) && is_set(&scene));
    // Ports of a worker that keeps its CPU are placed all the same.
    scene.stages[0].pinned_by = Some("the option --cpus".into());
    let planned = scene.facts.planned.as_mut().and_then(Arc::get_mut).unwrap();
    planned.plan.assignment.workers = [("a".to_owned(), 0)].into();
    assert_eq!(scene.target().unwrap().directions.vnics["a"], 0);
    scene.finds(&[on(2)]);
    assert!(is_pinned(&scene) && !is_set(&scene));
    scene.host.cores.adopt = true;
    assert!(!is_pinned(&scene) && is_set(&scene));
}

#[test]
fn a_thread_that_libvirt_pinned_since_goes_back_to_libvirts_cpus() {
    let mut scene = scene();
    let (before, ours) = ("0-3".into(), "1".into());
    let saved = SavedSetting { index: 0, before, ours, earlier: None, repairs: 0, boot: None };
    scene.facts.held = [(Setting::Affinity(thread(8)), saved)].into();
    // As a repair before the look has it.
    let pinned = Stage { pinned_by: Some("libvirt's <vcpupin>".into()), ..vcpu(8, &["a"]) };
    scene.finds(&[pinned]);
    let found = &mut scene.facts.surveyed.as_mut().and_then(Arc::get_mut).unwrap().found;
    found.of_libvirt = [(thread(8), [2].into()), (thread(9), [3].into())].into();
    let before: BTreeMap<_, _> = [(Setting::Affinity(thread(8)), "2".to_owned())].into();
    // Also if the plan is not kept any more.
    for placement in [Placement::Plan, Placement::Off] {
        scene.host.cores.placement = placement;
        scene.facts.age = FIRST_PLAN;
        assert_eq!(scene.target().unwrap().before, before);
    }
    scene.facts.held.values_mut().for_each(|saved| saved.before = "2".into());
    assert!(scene.target().is_none_or(|target| target.before.is_empty()));
}

#[test]
fn stages_that_could_not_be_moved_are_planned_where_they_are() {
    let mut scene = scene();
    scene.host.cores.placement = Placement::Plan;
    scene.host.cores.adopt = true;
    scene.stages.push(worker(1, &[3]));
    scene.finds(&[vcpu(8, &["a"])]);
    let stuck = vcpu(8, &["a"]).handle;
    let cpus = [(stuck.clone(), 1), (Handle::Worker(0), 2), (Handle::Worker(1), 3)];
    scene.planned(&cpus, &[]);
    let planned = scene.facts.planned.as_mut().and_then(Arc::get_mut).unwrap();
    planned.plan.assignment.workers = [("a".to_owned(), 1)].into();
    let free = scene.question().unwrap();
    assert_eq!((free.in_force.cpus.len(), free.in_force.workers["a"]), (3, 1));
    assert!(free.stages.iter().all(|stage| stage.pinned_by.is_none()));
    scene.facts.immovable = [(stuck.clone(), "no right".to_owned()), (port("a").handle, "no".into())].into();
    let problem = scene.question().unwrap();
    for stage in &problem.stages {
        let is_stuck = stage.handle == stuck || stage.handle == port("a").handle;
        assert_eq!(stage.pinned_by.is_some(), is_stuck, "{stage:?}");
    }
    assert!(!problem.adopt, "a fault is not adopted");
    assert_eq!((problem.in_force.cpus.contains_key(&stuck), problem.in_force.workers["a"]), (false, 0));
    assert!(!question::is_same_work(&problem, &free), "it is asked soon");
}

#[test]
fn questions_leave_cpus_of_others_out_and_wait_for_answers() {
    let mut scene = scene();
    scene.finds(&[vcpu(8, &["a"])]);
    let part = Part::All;
    scene.claims = vec![Claim { resource: Resource::Cpu(1), part, vnic: None, purpose: "DPDK".into() }];
    scene.host.cores.housekeeping = Some([0, 9].into());
    let problem = scene.question().unwrap();
    assert_eq!((&problem.usable, &problem.housekeeping), (&[0, 2, 3].into(), &[0].into()));
    let due = |scene: &Scene, question: &Arc<Problem>, ago, open| {
        let considered = Some(Asked { question: Arc::clone(question), ago, open });
        let facts = Facts { considered, ..scene.facts.clone() };
        let scene = Scene {
            host: scene.host.clone(),
            contracts: scene.contracts.clone(),
            stages: scene.stages.clone(),
            evidence: scene.evidence.clone(),
            claims: scene.claims.clone(),
            facts,
        };
        scene.question().is_some()
    };
    assert!(!due(&scene, &problem, LOOK * 10, false), "the same question");
    let busier = vcpu(8, &["a"]);
    scene.finds(&[Stage { load: 500_000, ..busier }]);
    scene.host.cores.placement = Placement::Plan;
    assert!(due(&scene, &problem, LOOK, false) && !due(&scene, &problem, LOOK / 2, false));
    scene.host.cores.placement = Placement::Off;
    assert!(!due(&scene, &problem, LOOK, false), "nothing is set by it");
    scene.finds(&[vcpu(8, &["a"]), vcpu(9, &["a"])]);
    assert!(due(&scene, &problem, SHORTEST_PAUSE, false), "further work");
    assert!(!due(&scene, &problem, SHORTEST_PAUSE / 2, false) && !due(&scene, &problem, LOOK, true));
    scene.facts.machine =
        Machine { cpus: scene.facts.machine.cpus.into_iter().take(1).collect(), nics: BTreeMap::new() };
    assert!(scene.question().is_none(), "nothing to choose");
}

#[test]
fn the_host_is_looked_at_again_after_a_while_and_at_each_change() {
    let scene = scene();
    let scope = |contracts: &[Vnic]| Scope { contracts: contracts.to_vec(), ..Scope::default() };
    let question = Arc::new(scope(&scene.contracts));
    let last = |ago, open| Asked { question: Arc::clone(&question), ago, open };
    let same = &*question;
    assert!(is_look_due(same, None, false));
    assert!(!is_look_due(same, Some(&last(LOOK / 2, false)), false));
    assert!(is_look_due(same, Some(&last(LOOK / 2, false)), true));
    assert!(is_look_due(&scope(&[]), Some(&last(Duration::ZERO, false)), false));
    assert!(!is_look_due(&scope(&[]), Some(&last(LOOK, true)), true));
}

#[test]
fn no_place_reports_work_of_interfaces() {
    let mut scene = scene();
    scene.host.cores.placement = Placement::Plan;
    let queue = tidegate_cores::stage::Queue { device: "eth0".into(), queue: 0 };
    let stack = Stage { handle: Handle::Receive(queue), ..port("a") };
    scene.stages.push(stack.clone());
    scene.finds(&[]);
    scene.planned(&[(stack.handle, 1), (Handle::Worker(0), 3)], &[3]);
    let target = scene.target().unwrap();
    let settings: Vec<_> = target.settings.into_keys().collect();
    assert_eq!((settings, target.directions.workers), (vec![Setting::Resume { cpu: 2 }], [(0, 3)].into()));
}
