//! From the work of the whole host to the next actions of the place. Pure.
//!
//! ```text
//!  Wanted: contracts, stages, evidence ─┬▶ See; Look, if due ─▶ discovery
//!                                       ├▶ question ─▶ Consider, if due ─▶ planner
//!  Facts: machine, stages, last plan ───┼▶ workers: CPUs of real-time workers ─┬▶ Target ─▶ Keep, if due
//!                                       └▶ placed: the plan, if it is kept ────┘
//!                                                        └▶ claims: CPUs that have one use
//! ```

use crate::action::CoresAction;
use crate::facts::{Asked, Facts};
use crate::planner::Planned;
use crate::question;
use crate::settled::LOOK;
use crate::sight::Sight;
use crate::steered::flows;
use crate::steered::tables::{self, Room};
use crate::target::Target;
use crate::watched::{Scope, Watched};
use crate::{placed, workers};
use std::sync::Arc;
use std::time::Duration;
use tidegate_contract::{Placement, Vnic};
use tidegate_cores::cpus::Cpus;
use tidegate_cores::stage::{Handle, Stage};
use tidegate_place::host::{Claim, Part, Resource};
use tidegate_place::{Plan, Wanted};

/// Interval of looks at the host while a plan is kept: work that comes and goes.
const LIVELY: Duration = Duration::from_secs(2);

/// See [`tidegate_place::Place::plan`].
pub fn plan(wanted: &Wanted<'_>, facts: &Facts) -> Plan<CoresAction> {
    let mut actions = Vec::new();
    let sight = Sight::of(wanted.work, facts.off.is_some_and(|off| off.halts));
    if facts.seen != Some(sight) {
        actions.push(CoresAction::See(sight));
    }
    let keeps = wanted.host.cores.placement == Placement::Plan;
    let scope = Scope::of(wanted);
    if is_look_due(&scope, facts.looked.as_ref(), keeps) {
        actions.push(CoresAction::Look(Box::new(Watched::new(scope, wanted.work, &facts.held))));
    }
    // A switch that is started anew goes on with its CPUs.
    let waits =
        sight == Sight::Silence && needs_switch(wanted, facts) && facts.silent.is_none_or(|time| time < LOOK);
    if !waits {
        let due = question::question(wanted, facts)
            .filter(|problem| question::is_due(problem, facts.considered.as_ref(), keeps));
        actions.extend(due.map(|problem| CoresAction::Consider(Arc::new(problem))));
        actions.extend(facts.settled.due(target(wanted, facts)).map(CoresAction::Keep));
    }
    Plan { actions, claims: claims(wanted, facts) }
}

/// Whether the host is to be looked at now.
fn is_look_due(scope: &Scope, last: Option<&Asked<Scope>>, keeps: bool) -> bool {
    let Some(last) = last else { return true };
    let pause = if keeps { LIVELY } else { LOOK };
    !last.open && (last.ago >= pause || *last.question != *scope)
}

/// Whether what is kept now depends on the switch.
fn needs_switch(wanted: &Wanted<'_>, facts: &Facts) -> bool {
    let has_deadline = |vnic: &&Vnic| vnic.deadline.is_some() && workers::is_of_the_switch(vnic);
    facts.settled.target.directions != Default::default() || wanted.work.contracts.iter().any(has_deadline)
}

/// Returns the target: the plan, if it is kept; and the CPUs of real-time workers free of other work, plan or not.
fn target(wanted: &Wanted<'_>, facts: &Facts) -> Target {
    let placed = placed(wanted, facts);
    let Some(off) = facts.off else { return placed };
    // Taps that are still to come have no settings.
    let is_here = |vnic: &&Vnic| {
        wanted.work.stages.iter().any(|s| matches!(&s.handle, Handle::Port(name) if *name == vnic.name))
    };
    let here = wanted.work.contracts.iter().copied().filter(is_here);
    let situation = workers::situation(here, &wanted.work.stages, &facts.machine, &placed.own, facts.flows);
    let mut target = workers::target(&situation, off);
    target.settings.extend(placed.settings);
    target.own.extend(placed.own);
    Target { directions: placed.directions, nics: placed.nics, ..target }
}

/// Returns the target of the plan, if it is kept.
fn placed(wanted: &Wanted<'_>, facts: &Facts) -> Target {
    // The switch's stages as of this look, all others as of the last look at the host.
    let of_switch = |stage: &&Stage| matches!(stage.handle, Handle::Worker(_) | Handle::Port(_));
    let found = facts.surveyed.iter().flat_map(|surveyed| &surveyed.found.stages);
    let stages = found.filter(|stage| !of_switch(stage)).chain(wanted.work.stages.iter().copied());
    let works = stages.filter(|stage| question::works(stage, wanted));
    let plan = facts.planned.as_ref().filter(|_| wanted.host.cores.placement == Placement::Plan);
    let Some(Planned { plan, .. }) = plan.map(|planned| &**planned) else { return Target::default() };
    let target = placed::target(plan, works, &facts.machine);
    let usable = question::usable(wanted, facts);
    let flows = flows::flows(&wanted.work.contracts, wanted.host, wanted.network);
    let online = facts.machine.online();
    let cpus = plan.assignment.cpus.iter().filter(|(_, cpu)| online.contains(cpu));
    let cpus = cpus.map(|(handle, cpu)| (handle.clone(), *cpu)).collect();
    let room = Room { usable: &usable, own: &target.own };
    let steer = &wanted.host.cores.steer;
    let nics = tables::tables(steer, &flows, &cpus, room, wanted.network);
    Target { nics, ..target }
}

/// Returns the claims on CPUs that have one use.
fn claims(wanted: &Wanted<'_>, facts: &Facts) -> Vec<Claim> {
    let plan = placed(wanted, facts).own;
    let contracts = wanted.work.contracts.iter().copied();
    let situation =
        workers::situation(contracts, &wanted.work.stages, &facts.machine, &Cpus::new(), facts.flows);
    let workers = facts.off.map(|off| workers::own(&situation, off)).unwrap_or_default();
    let claim = |(cpu, purpose): (usize, &str)| Claim {
        resource: Resource::Cpu(cpu),
        part: Part::All,
        vnic: None,
        purpose: purpose.into(),
    };
    let of_plan = plan.difference(&workers).map(|cpu| (*cpu, "a real-time stage of the plan of CPUs"));
    let of_workers = workers.iter().map(|cpu| (*cpu, "a worker of the switch that has real-time vNICs"));
    of_workers.chain(of_plan).map(claim).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discover::Found;
    use crate::keep_off::KeepOff;
    use crate::settings::setting::{NO_LATENCY, Setting};
    use crate::settings::step::SavedSetting;
    use crate::settled::{SHORTEST_PAUSE, Settled};
    use crate::watched::Surveyed;
    use crate::workers::tests::{machine, worker};
    use std::collections::BTreeMap;
    use tidegate_contract::{Attach, Host, Nanos};
    use tidegate_cores::machine::Machine;
    use tidegate_cores::problem::{Plan as CpuPlan, Problem};
    use tidegate_cores::stage::{Thread, ThreadKind};
    use tidegate_evidence::{Evidence, VnicStats};
    use tidegate_place::{Adopt, HostWork, Network};
    use tidegate_testkit::contract::{tap, vnic};

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
        let handle =
            Handle::Thread { kind: ThreadKind::Vcpu, thread: thread(number), name: "CPU 0/KVM".into() };
        let vnics = vnics.iter().map(|v| (*v).to_owned()).collect();
        Stage { handle, vnics, realtime: false, ..worker(0, &[0, 1]) }
    }

    /// Four CPUs; one vNIC with a deadline, and a worker on CPU 2.
    fn scene() -> Scene {
        let settled = Settled { is_clean: true, ..Settled::default() };
        let seen = Some(Sight::Delivered(0));
        let facts = Facts {
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
            let all = self.stages.iter().chain(stages).cloned().collect();
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
        scene.stages = vec![worker(0, &[2]), worker(1, &[3]), port("a")];
        scene.contracts = vec![vnic("a", 1)];
        assert_eq!((scene.claims(), scene.target()), (vec![], None));
        scene.contracts = vec![deadline(vnic("a", 1))];
        let both = vec![Resource::Cpu(2), Resource::Cpu(3)];
        assert_eq!(scene.claims(), both);
        let target = scene.target().unwrap();
        assert_eq!(target.own, [2, 3].into());
        assert!(target.settings.values().all(|value| value == NO_LATENCY));
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
    fn work_that_the_agent_placed_is_no_other_programs() {
        let mut scene = scene();
        let pinned = Stage { pinned_by: Some("its CPU affinity".into()), ..vcpu(8, &["a"]) };
        scene.finds(std::slice::from_ref(&pinned));
        let is_pinned = |scene: &Scene| {
            let problem = scene.question().unwrap();
            problem.stages.iter().find(|stage| stage.handle == pinned.handle).unwrap().pinned_by.is_some()
        };
        assert!(is_pinned(&scene));
        let held = |number, before: &str| {
            let (before, ours) = (before.into(), "0-1".into());
            [(
                Setting::Affinity(thread(number)),
                SavedSetting { index: 0, before, ours, earlier: None, repairs: 0 },
            )]
        };
        scene.facts.held = held(8, "0-3").into();
        assert!(!is_pinned(&scene));
        // The thread that started it was placed.
        scene.facts.held = held(9, "0-3").into();
        assert!(!is_pinned(&scene));
        // Another program had pinned it: it gets that back unless the plan may adopt it.
        scene.facts.held = held(8, "2").into();
        assert!(is_pinned(&scene));
        scene.host.cores.adopt = true;
        assert!(!is_pinned(&scene));
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
    fn taps_go_where_the_plan_puts_them_and_else_off_the_workers() {
        let mut scene = scene();
        scene.facts.off = Some(KeepOff { softirqs: true, halts: false });
        let two = Vnic { attach: tap("t"), queues: 2, ..deadline(vnic("a", 1)) };
        assert!(matches!(two.attach, Attach::Tap { .. }));
        scene.contracts = vec![two];
        let queue = |queue| tidegate_cores::stage::Queue { netns: None, device: "t".into(), queue };
        let receive = Stage { handle: Handle::Receive(queue(0)), ..port("a") };
        scene.stages.push(receive.clone());
        scene.finds(&[]);
        scene.planned(&[(receive.handle, 1), (Handle::Worker(0), 3)], &[3]);
        scene.host.cores.placement = Placement::Plan;
        let settings = scene.target().unwrap().settings;
        // CPU 2 is the worker's, and 3 the plan's own.
        let masks = [(Setting::rps(&queue(0)), "2".to_owned()), (Setting::rps(&queue(1)), "3".into())];
        assert_eq!(settings, masks.into());
    }
}
