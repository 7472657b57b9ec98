//! Single hosts, and the words about them.

use super::hosts::{machine, problem, receive, stage, thread};
use super::{EFFORT, model};
use crate::planner::greedy::groups;
use crate::planner::state::State;
use crate::planner::{Effort, greedy, housekeeping, plan, searched};
use crate::stage::{Handle, Link, Stage, ThreadKind};

fn realtime(stage: Stage) -> Stage {
    Stage { realtime: true, ..stage }
}

fn port(vnic: &str, load: u32) -> Stage {
    stage(Handle::Port(vnic.into()), vnic, load)
}

fn worker(number: usize) -> Stage {
    stage(Handle::Worker(number), "", 10_000)
}

#[test]
fn one_cpu_gets_no_plan_but_a_reason() {
    let stages = vec![realtime(port("plc1", 1_000)), worker(0)];
    let plan = plan(&problem(machine(1, 1, 1), stages, vec![]), Effort::default());
    assert!(plan.assignment.cpus.is_empty() && plan.own.is_empty());
    assert!(plan.reasons[&Handle::Worker(0)].contains("one CPU"));
    assert_eq!(plan.impossible[0].vnic, "plc1");
    assert!(plan.impossible[0].reason.contains("can be late"));
}

#[test]
fn no_cpu_no_stage_and_no_usable_cpu_are_no_panic() {
    for (cores, usable) in [(0, false), (0, true), (4, false), (4, true)] {
        for stages in [vec![], vec![worker(0), port("a", 5), stage(receive(0), "", 5)]] {
            let mut problem = problem(machine(cores, 1, 1), stages.clone(), vec![]);
            if !usable {
                problem.usable.clear();
            }
            let plan = plan(&problem, Effort { steps: 1000 });
            assert_eq!(plan.reasons.len(), stages.len());
            assert_eq!(plan.assignment.cpus.is_empty(), stages.is_empty() || !usable || cores == 0);
        }
    }
}

#[test]
fn a_deadline_gets_its_own_cpu_before_affinity() {
    let vhost = thread(ThreadKind::Vhost, 1);
    let vcpu = thread(ThreadKind::Vcpu, 2);
    let links = vec![Link { from: vhost.clone(), to: vcpu.clone(), frames: 300_000 }];
    let together = plan(
        &problem(
            machine(4, 1, 1),
            vec![stage(vhost.clone(), "vm", 300_000), stage(vcpu.clone(), "vm", 300_000)],
            links.clone(),
        ),
        Effort::default(),
    );
    assert_eq!(together.assignment.cpus[&vhost], together.assignment.cpus[&vcpu]);
    assert!(together.reasons[&vhost].contains("on the CPU of its vCPU thread 2"), "{:?}", together.reasons);
    assert!(together.reasons[&vhost].contains("ns less than from another core"), "{:?}", together.reasons);
    let stages = vec![realtime(stage(vhost.clone(), "vm", 300_000)), stage(vcpu.clone(), "vm", 300_000)];
    let apart = plan(&problem(machine(4, 1, 1), stages, links), Effort::default());
    let cpu = apart.assignment.cpus[&vhost];
    assert_ne!(cpu, apart.assignment.cpus[&vcpu]);
    assert_eq!((apart.own, apart.housekeeping), ([cpu].into(), [0].into()));
    assert_eq!(apart.reasons[&vhost], "own CPU: deadline of vm");
    assert!(apart.impossible.is_empty());
}

#[test]
fn more_deadlines_than_cpus_are_said_to_be_impossible() {
    let stages: Vec<Stage> =
        (0..3).map(|n| realtime(stage(thread(ThreadKind::Vhost, n), &format!("vm{n}"), 100_000))).collect();
    for (cores, cpus) in [(3, 1), (4, 2), (5, 2), (6, 3)] {
        let plan = plan(&problem(machine(cores, 1, 1), stages.clone(), vec![]), Effort::default());
        assert_eq!((plan.own.len(), plan.impossible.len()), (cpus, 3 - cpus), "{cores} CPUs");
        let wants = format!("3 real-time stages want one each, and {cpus} can have one: at most half");
        assert!(plan.impossible.iter().all(|it| it.reason.contains(&wants)), "{:?}", plan.impossible);
    }
    let mut few = problem(machine(4, 1, 1), stages, vec![]);
    few.housekeeping = [0, 1, 2].into();
    let plan = plan(&few, Effort::default());
    assert_eq!((plan.own, plan.impossible.len()), ([3].into(), 2));
    let said = &plan.impossible[0].reason;
    assert!(said.contains("and 1 can have one") && said.contains("behind "), "{said}");
}

/// Workers with one pinned real-time port each, and vCPUs.
fn host_of(workers: usize, load: u32, vcpus: u32) -> Vec<Stage> {
    let mut stages = vec![];
    for number in 0..workers {
        let at = [number + 1].into();
        stages.push(Stage { load, present: at, ..worker(number) });
    }
    for number in 0..workers {
        let port = realtime(port(&format!("plc{number}"), 0));
        let pinned_by = Some("--placement".into());
        stages.push(Stage { present: [number + 1].into(), pinned_by, ..port });
    }
    stages.extend((0..vcpus).map(|number| stage(thread(ThreadKind::Vcpu, number), "vm", 300_000)));
    stages
}

/// A switch that an intruder took over reports a real-time worker for each CPU.
#[test]
fn deadlines_leave_half_of_the_cpus_to_other_work() {
    for (cores, threads) in [(16, 1), (8, 2)] {
        let problem = problem(machine(cores, threads, 1), host_of(15, 200_000, 16), vec![]);
        let plan = plan(&problem, EFFORT);
        assert!((4..=8).contains(&plan.own.len()), "{:?}", plan.own);
        assert!(plan.impossible.len() >= 7, "{:?}", plan.impossible);
        let of_vcpus = |(handle, _): &(&Handle, &usize)| handle.kind() == crate::stage::Kind::Vcpu;
        let cpus: std::collections::BTreeSet<usize> =
            plan.assignment.cpus.iter().filter(of_vcpus).map(|(_, cpu)| *cpu).collect();
        assert!(cpus.len() >= 7, "vCPUs are on {cpus:?}");
    }
}

#[test]
fn idle_workers_with_pinned_real_time_ports_have_their_own_cpus() {
    let mut problem = problem(machine(16, 1, 1), host_of(4, 0, 30), vec![]);
    let first = plan(&problem, EFFORT);
    assert_eq!((first.own.len(), first.impossible.len()), (4, 0), "{:?}", first.impossible);
    problem.in_force = first.assignment.clone();
    assert_eq!(plan(&problem, EFFORT).assignment, first.assignment);
}

#[test]
fn a_stage_left_alone_keeps_deadlines_off_only_with_a_load() {
    let name = thread(ThreadKind::Vcpu, 99);
    let intruder = |load| Stage {
        present: (1..16).collect(),
        pinned_by: Some("its affinity".into()),
        ..stage(name.clone(), "vm", load)
    };
    for (load, own) in [(1, 4), (140_000, 4), (150_000, 0)] {
        let mut stages = host_of(0, 0, 8);
        stages.extend((0..4).map(|n| realtime(stage(receive(n), "plc", 10_000))));
        stages.push(intruder(load));
        let plan = plan(&problem(machine(16, 1, 1), stages, vec![]), EFFORT);
        assert_eq!(plan.own.len(), own, "load {load}");
        let said = plan.impossible.first().map(|it| it.reason.clone()).unwrap_or_default();
        let named = said.contains("vCPU thread 99 (t99) of process 1, which another program lets run there");
        assert_eq!(named, own == 0, "{said}");
        assert_eq!(plan.reasons[&name].contains("may be on any of 15 CPUs"), own == 0);
    }
}

#[test]
fn deadlines_prefer_cpus_that_are_set_apart() {
    let stages = vec![realtime(stage(receive(0), "plc", 10_000)), stage(receive(1), "", 10_000)];
    let mut problem = problem(machine(6, 1, 1), stages, vec![]);
    problem.machine.cpus.get_mut(&4).unwrap().isolated = true;
    assert_eq!(plan(&problem, EFFORT).own, [4].into());
}

#[test]
fn stages_visited_are_steps() {
    let stages: Vec<Stage> = (0..65).map(|n| stage(thread(ThreadKind::Vcpu, n), "vm", 1)).collect();
    let model = model(&problem(machine(2, 1, 1), stages, vec![]));
    let mut state = State::new(&model);
    (0..64).for_each(|at| state.insert(at, 1));
    let before = state.steps;
    state.insertion(64, 1);
    assert_eq!(state.steps - before, 5, "64 stages are there");
    state.insertion(64, 0);
    assert_eq!(state.steps - before, 6);
}

#[test]
fn a_search_ends_with_its_steps_on_crowded_cpus() {
    let stages =
        (0..600).map(|n| stage(thread(ThreadKind::Vcpu, n), &format!("vm{n}"), 1_000 + n * 7919 % 5_000));
    let problem = problem(machine(2, 1, 1), stages.collect(), vec![]);
    let model = model(&problem);
    let groups = groups(&model, &problem.stages);
    let first = greedy::first(&model, &groups).steps;
    // A change in reach takes some hundred steps.
    let most = first + 2 * 1_000 + 300;
    assert!((first..=most).contains(&searched(&model, &groups, 1_000).steps));
}

#[test]
fn a_sibling_stays_idle_where_that_is_possible() {
    let stages =
        vec![realtime(stage(receive(0), "vm", 100_000)), stage(thread(ThreadKind::Vcpu, 1), "vm", 100_000)];
    let plan = plan(&problem(machine(2, 2, 1), stages, vec![]), Effort::default());
    let cpus: Vec<usize> = plan.assignment.cpus.values().copied().collect();
    assert_ne!(cpus[0] % 2, cpus[1] % 2, "{cpus:?}: CPUs n and n + 2 are siblings");
}

#[test]
fn ports_that_talk_share_a_worker_and_deadlines_keep_apart() {
    let names = ["a", "b", "plc1", "plc2"];
    let mut stages = vec![worker(0), worker(1)];
    stages.extend(names.map(|name| Stage { realtime: name.starts_with("plc"), ..port(name, 50_000) }));
    let link = |from: &str, to: &str| Link {
        from: Handle::Port(from.into()),
        to: Handle::Port(to.into()),
        frames: 100_000,
    };
    let links = vec![link("a", "b"), link("plc1", "plc2"), link("a", "plc1")];
    let plan = plan(&problem(machine(4, 1, 1), stages, links), Effort::default());
    let workers = &plan.assignment.workers;
    assert_eq!((workers["a"], workers["plc1"]), (workers["b"], workers["plc2"]));
    assert_ne!(workers["a"], workers["plc1"]);
    assert_eq!(plan.own, [plan.assignment.cpus[&Handle::Worker(workers["plc1"])]].into());
    assert_eq!(plan.reasons[&Handle::Port("a".into())], "with b: frames between them stay on one worker");
    assert_eq!(plan.reasons[&Handle::Worker(workers["plc1"])], "own CPU: deadline of plc1, plc2");
}

#[test]
fn pinned_stages_stay_unless_adopted() {
    let vcpu = thread(ThreadKind::Vcpu, 1);
    let pinned = Stage {
        pinned_by: Some("libvirt's <vcpupin>".into()),
        present: [3].into(),
        ..stage(vcpu.clone(), "vm", 9)
    };
    let mut problem = problem(machine(4, 1, 1), vec![pinned], vec![]);
    let left = plan(&problem, Effort::default());
    assert!(left.assignment.cpus.is_empty());
    assert_eq!(left.reasons[&vcpu], "left alone: pinned by libvirt's <vcpupin>");
    problem.adopt = true;
    assert!(plan(&problem, Effort::default()).assignment.cpus.contains_key(&vcpu));
}

#[test]
fn a_stage_of_a_nic_goes_to_the_node_of_the_nic() {
    let mut problem = problem(machine(4, 1, 2), vec![stage(receive(0), "", 100_000)], vec![]);
    problem.machine.nics.insert("eth0".into(), 1);
    let plan = plan(&problem, Effort::default());
    assert!(plan.assignment.cpus[&receive(0)] >= 2);
    assert_eq!(plan.reasons[&receive(0)], "on the node of its NIC");
}

#[test]
fn housekeeping_is_cpu_0_if_that_is_no_other_programs_and_not_set_apart() {
    let mut problem = problem(machine(4, 1, 1), vec![], vec![]);
    assert_eq!(housekeeping(&problem), [0].into());
    problem.machine.cpus.get_mut(&0).unwrap().isolated = true;
    assert_eq!(housekeeping(&problem), [1].into());
    problem.usable = [1].into();
    assert_eq!(housekeeping(&problem), [2].into());
    problem.housekeeping = [3].into();
    assert_eq!(housekeeping(&problem), [3].into());
}

/// A host too large for the proof: the plan stays for loads that are a little different, and is above its bound.
#[test]
fn a_larger_host_stays_as_planned() {
    let mut stages = vec![];
    let mut links = vec![];
    for vm in 0..24_u32 {
        let (vhost, vcpu) = (thread(ThreadKind::Vhost, vm), thread(ThreadKind::Vcpu, 100 + vm));
        links.push(Link { from: vhost.clone(), to: vcpu.clone(), frames: 20_000 + 3_000 * vm });
        links.push(Link { from: receive((vm % 4) as u16), to: vhost.clone(), frames: 10_000 });
        stages.push(stage(vhost, &format!("vm{vm}"), 50_000 + 4_000 * vm));
        stages.push(stage(vcpu, &format!("vm{vm}"), 100_000 + 5_000 * (vm % 7)));
    }
    stages.extend((0..4).map(|queue| stage(receive(queue), "", 200_000)));
    let mut problem = problem(machine(8, 2, 2), stages, links);
    let all = problem.usable.clone();
    problem.stages.iter_mut().for_each(|stage| stage.present = all.clone());
    let first = plan(&problem, EFFORT);
    assert!(
        !first.exact
            && 0 < first.lower_bound
            && first.lower_bound <= first.cost
            && first.cost < first.present_cost
    );
    assert_eq!(plan(&problem, EFFORT), first, "equal questions get equal answers");
    problem.in_force = first.assignment.clone();
    for (nth, stage) in problem.stages.iter_mut().enumerate() {
        stage.load = stage.load / 100 * (98 + nth as u32 * 7 % 5);
    }
    assert_eq!(plan(&problem, EFFORT).assignment, first.assignment);
    // A VM that comes is placed; the others stay.
    problem.stages.push(stage(thread(ThreadKind::Vcpu, 999), "new", 50_000));
    let with = plan(&problem, EFFORT).assignment;
    assert!(with.cpus.contains_key(&thread(ThreadKind::Vcpu, 999)));
    let moved = first.assignment.cpus.iter().filter(|(handle, cpu)| with.cpus[*handle] != **cpu).count();
    assert!(moved <= 2, "{moved} stages moved for one that came");
    assert!(!groups(&model(&problem), &problem.stages).is_empty());
}
