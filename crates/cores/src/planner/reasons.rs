//! A plan in words: why each stage is where it is, and which deadlines' needs cannot be met.

use super::model::{Index, Model, NOWHERE, Role, intrudes};
use super::state::State;
use crate::cpus::Cpus;
use crate::machine::Distance;
use crate::problem::{Impossible, Plan, Problem};
use crate::stage::{Handle, Stage};
use std::collections::BTreeMap;

/// The plan of a host where nothing can be placed.
pub fn nothing(problem: &Problem, housekeeping: Cpus) -> Plan {
    let reason = match problem.machine.cpus.len() {
        0 => "no CPU of this machine is known",
        1 => "this machine has one CPU: nothing can be placed",
        _ => "no CPU may be used for stages ([host.cores] cpus, or other programs have them)",
    };
    let deadlines = problem.stages.iter().filter(|stage| stage.realtime).flat_map(|stage| &stage.vnics);
    let mut vnics: Vec<&String> = deadlines.collect();
    vnics.sort_unstable();
    vnics.dedup();
    let impossible = vnics.into_iter().map(|vnic| Impossible {
        vnic: vnic.clone(),
        reason: format!("{reason}; frames wait for other work on the same CPU, and can be late"),
    });
    Plan {
        reasons: problem
            .stages
            .iter()
            .map(|stage| (stage.handle.clone(), format!("left alone: {reason}")))
            .collect(),
        impossible: impossible.collect(),
        housekeeping,
        ..Plan::default()
    }
}

/// Returns the reason for each stage.
pub fn reasons(problem: &Problem, state: &State) -> BTreeMap<Handle, String> {
    let of = |at: usize, stage: &Stage| (stage.handle.clone(), reason(problem, state, at));
    problem.stages.iter().enumerate().map(|(at, stage)| of(at, stage)).collect()
}

fn reason(problem: &Problem, state: &State, at: usize) -> String {
    let model = state.model;
    let (item, stage) = (&model.stages[at], &problem.stages[at]);
    if item.pinned {
        let by = stage.pinned_by.as_deref().unwrap_or("another program");
        let number = stage.present.len();
        let keeps_off = if intrudes(stage) && number > 1 {
            format!("; its load may be on any of {number} CPUs, so none of them is a deadline's alone")
        } else {
            String::new()
        };
        return format!("left alone: pinned by {by}{keeps_off}");
    }
    if !item.movable {
        return "left alone: no worker of the host switch is known".into();
    }
    let cpu = state.cpus[at];
    if cpu == NOWHERE {
        return match item.role {
            Role::Port => "with its worker, whose CPU is unknown".into(),
            _ => "no CPU may be used for it".into(),
        };
    }
    match item.role {
        Role::Port => port(problem, state, at),
        Role::Worker(_) | Role::Plain if state.is_realtime(at) => {
            let whose = deadlines(problem, state, at);
            if state.alone(cpu) {
                format!("own CPU: deadline of {whose}")
            } else {
                format!("no CPU is left for the deadline of {whose} alone")
            }
        }
        _ => plain(problem, state, at, cpu),
    }
}

/// The vNICs whose deadlines depend on a stage; of a worker, those of its real-time ports.
fn deadlines(problem: &Problem, state: &State, at: usize) -> String {
    let ports = state.ports_of(at).into_iter().filter(|port| problem.stages[*port].realtime);
    let mut names: Vec<&String> = ports.chain([at]).flat_map(|at| &problem.stages[at].vnics).collect();
    if let Role::Worker(_) = state.model.stages[at].role
        && state.model.ports_decide
    {
        let ports = state.ports_of(at).into_iter().filter(|port| problem.stages[*port].realtime);
        names = ports.flat_map(|port| &problem.stages[port].vnics).collect();
    }
    names.sort_unstable();
    names.dedup();
    list(&names)
}

/// Up to three names, and how many more there are.
fn list(names: &[&String]) -> String {
    let shown = names.iter().take(3).map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
    match names.len() {
        0 => "a vNIC".into(),
        1..=3 => shown,
        more => format!("{shown} and {} more", more - 3),
    }
}

fn port(problem: &Problem, state: &State, at: usize) -> String {
    let model = state.model;
    let worker = state.worker[at];
    let is_port = |other: usize| model.stages[other].role == Role::Port;
    let links = &model.links[at];
    let together: Vec<&String> = links
        .iter()
        .filter(|end| is_port(end.other) && state.worker[end.other] == worker)
        .flat_map(|end| &problem.stages[end.other].vnics)
        .collect();
    let realtime = |wanted: bool| {
        (0..model.stages.len()).any(|other| {
            is_port(other) && state.worker[other] == worker && problem.stages[other].realtime == wanted
        })
    };
    if !together.is_empty() {
        return format!("with {}: frames between them stay on one worker", list(&together));
    }
    match (problem.stages[at].realtime, realtime(true), realtime(false)) {
        (true, _, true) => "beside best-effort vNICs: no other worker is left for the deadline".into(),
        (true, ..) => "on a worker without best-effort vNICs: its deadline".into(),
        (false, true, _) => "beside vNICs with deadlines: no other worker is left".into(),
        (false, ..) => "on a worker without deadlines".into(),
    }
}

/// A stage without a deadline: the link that gains most from this CPU, else the load.
fn plain(problem: &Problem, state: &State, at: usize, cpu: Index) -> String {
    let model = state.model;
    let item = &model.stages[at];
    let saved = model.links[at].iter().filter(|end| state.cpus[end.other] != NOWHERE).map(|end| {
        let kind = model.stages[end.other].kind;
        let one = state.worker[at] == state.worker[end.other];
        let distance = state.distance(cpu, state.cpus[end.other], item.kind, kind, one);
        let ns = |distance| model.handover(item.kind, kind, 1, distance);
        // Compared with the next distance on this machine that costs more; with another core rather than the sibling.
        let there =
            |far: &usize| (0..model.cpus.len()).any(|other| model.distance(cpu, other as Index) == *far);
        let dearer =
            || (distance + 1..Distance::ALL.len()).filter(there).filter(|far| ns(*far) > ns(distance));
        let far = dearer().find(|far| *far > Distance::Sibling as usize).or_else(|| dearer().next());
        let (gain, far) = far.map_or((0, 0), |far| (ns(far) - ns(distance), far));
        (gain * end.frames, gain, distance, far, end.other)
    });
    let node = item.node.filter(|node| *node == model.node[usize::from(cpu)]);
    match saved.max().filter(|best| best.0 > 0) {
        Some((_, gain, distance, far, other)) => {
            let place =
                ["on the CPU of", "on the sibling of", "on a core near", "on the node of"][distance.min(3)];
            let from = ["", "its sibling", "another core", "another cache", "another node"][far];
            let own = problem.stages[other].vnics == problem.stages[at].vnics;
            let peer = &problem.stages[other].handle;
            let whose = if own { format!("its {peer}") } else { peer.to_string() };
            format!("{place} {whose}: a frame costs {gain} ns less than from {from}")
        }
        None if node.is_some() => "on the node of its NIC".into(),
        None if state.members[usize::from(cpu)].len() == 1 => "alone on its CPU".into(),
        None => "where it disturbs other work least".into(),
    }
}

/// Returns deadlines whose needs are not met, with the missing thing.
pub fn impossible(problem: &Problem, state: &State) -> Vec<Impossible> {
    let model = state.model;
    let mut missing = BTreeMap::<&str, String>::new();
    let units: Vec<usize> = (0..model.stages.len())
        .filter(|at| {
            model.stages[*at].role != Role::Port && state.cpus[*at] != NOWHERE && state.is_realtime(*at)
        })
        .collect();
    let free = model.usable.iter().filter(|cpu| !model.housekeeping[usize::from(**cpu)]).count();
    let free = free.min(model.most_alone);
    for at in units.iter().copied().filter(|at| !state.alone(state.cpus[*at])) {
        let stage = &problem.stages[at];
        let cpu = state.cpus[at];
        let number = model.cpus[usize::from(cpu)];
        let ports: Vec<usize> =
            state.ports_of(at).into_iter().filter(|port| problem.stages[*port].realtime).collect();
        let vnics = ports.iter().copied().chain([at]).flat_map(|at| &problem.stages[at].vnics);
        let others = others(problem, state, at, cpu);
        let wanted = units.len();
        let waits = match others {
            Some(others) => format!("On CPU {number} its frames wait behind {others}"),
            None => format!("CPU {number} is not kept free, so its frames may wait there"),
        };
        let reason = format!(
            "{} needs a CPU for itself; {wanted} real-time stages want one each, and {free} can have one: at most half \
             of the usable CPUs are given so, and none for housekeeping. {waits}, and can be late",
            stage.handle
        );
        for vnic in vnics {
            missing.entry(vnic).or_insert_with(|| reason.clone());
        }
    }
    for at in (0..model.stages.len()).filter(|at| problem.stages[*at].realtime && state.cpus[*at] == NOWHERE)
    {
        for vnic in &problem.stages[at].vnics {
            let reason = format!(
                "the CPU of {} is unknown, so no CPU can be kept free for it",
                problem.stages[at].handle
            );
            missing.entry(vnic).or_insert(reason);
        }
    }
    missing.into_iter().map(|(vnic, reason)| Impossible { vnic: vnic.into(), reason }).collect()
}

/// The other work on a real-time stage's CPU; `None` if there is none.
fn others(problem: &Problem, state: &State, at: usize, cpu: Index) -> Option<String> {
    let model: &Model = state.model;
    let worker = state.worker[at];
    let own = |other: usize| other == at || worker != NOWHERE && state.worker[other] == worker;
    let mut others: Vec<String> = state.members[usize::from(cpu)]
        .iter()
        .map(|other| *other as usize)
        .filter(|other| !own(*other) && model.stages[*other].counts)
        .map(|other| problem.stages[other].handle.to_string())
        .collect();
    if model.housekeeping[usize::from(cpu)] {
        others.push("all other work of the host".into());
    }
    if model.intruded[usize::from(cpu)] {
        let may_run = |stage: &usize| {
            let (item, stage) = (&model.stages[*stage], &problem.stages[*stage]);
            !item.movable && intrudes(stage) && stage.present.contains(&model.cpus[usize::from(cpu)])
        };
        let elsewhere = (0..model.stages.len()).filter(|other| state.cpus[*other] != cpu);
        for handle in elsewhere.filter(may_run).map(|other| &problem.stages[other].handle) {
            let process = match handle {
                Handle::Thread { thread, .. } => format!(" of process {}", thread.process),
                _ => String::new(),
            };
            others.push(format!("{handle}{process}, which another program lets run there"));
        }
    }
    let names: Vec<&String> = others.iter().collect();
    (!names.is_empty()).then(|| list(&names))
}
