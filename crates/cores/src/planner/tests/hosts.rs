//! Random small hosts.

use crate::costs::Costs;
use crate::machine::{Cpu, Machine};
use crate::problem::{Assignment, Problem};
use crate::stage::{Handle, Link, Queue, Stage, Thread, ThreadKind};
use proptest::prelude::*;

/// A machine of `cores` cores of `threads` CPUs each, on one or two nodes.
pub fn machine(cores: usize, threads: usize, nodes: usize) -> Machine {
    let cpus = (0..cores * threads).map(|cpu| {
        let core = cpu % cores;
        let node = core * nodes / cores;
        (cpu, Cpu { core: core as u32, cache: node as u32, node: node as u32, isolated: false })
    });
    Machine { cpus: cpus.collect(), nics: [("eth0".into(), 0)].into() }
}

/// A stage without limits.
pub fn stage(handle: Handle, vnic: &str, load: u32) -> Stage {
    let vnics = if vnic.is_empty() { vec![] } else { vec![vnic.into()] };
    Stage { handle, vnics, realtime: false, load, measured: true, present: [].into(), pinned_by: None }
}

/// A thread.
pub fn thread(kind: ThreadKind, number: u32) -> Handle {
    Handle::Thread {
        kind,
        thread: Thread { process: 1, thread: number, started: 0 },
        name: format!("t{number}").into(),
    }
}

/// The receive stack of a queue of the NIC.
pub fn receive(queue: u16) -> Handle {
    Handle::Receive(Queue { device: "eth0".into(), queue })
}

/// A question without limits.
pub fn problem(machine: Machine, stages: Vec<Stage>, links: Vec<Link>) -> Problem {
    let usable = machine.online();
    Problem {
        machine,
        stages,
        links,
        costs: Costs::priors(),
        usable,
        housekeeping: [].into(),
        adopt: false,
        in_force: Assignment::default(),
    }
}

/// Kinds of random stages, by number; ports have vNICs `v0` and on.
fn handle(kind: u8, number: u32) -> Handle {
    match kind {
        0 => Handle::Irq { number, name: format!("eth0-rx-{number}") },
        1 => receive(number as u16),
        2 => thread(ThreadKind::Vhost, number),
        3 => thread(ThreadKind::Vcpu, number),
        4 => thread(ThreadKind::Emulator, number),
        5 => Handle::Worker(number as usize + 10),
        _ => Handle::Port(format!("v{number}")),
    }
}

/// A random stage: kind, load, whether real-time, present CPUs, whether pinned.
type Drawn = (u8, u32, bool, std::collections::BTreeSet<usize>, bool);

fn drawn() -> impl Strategy<Value = Drawn> {
    let load = prop_oneof![1 => Just(0), 4 => 0_u32..900_000];
    (
        0_u8..7,
        load,
        prop::bool::weighted(0.25),
        prop::collection::btree_set(0_usize..5, 0..3),
        prop::bool::weighted(0.15),
    )
}

/// Hosts of up to four CPUs and `most` stages.
pub fn host(most: usize) -> impl Strategy<Value = Problem> {
    let machines = prop_oneof![
        Just((1, 2, 1)),
        Just((2, 1, 1)),
        Just((2, 1, 2)),
        Just((3, 1, 1)),
        Just((2, 2, 1)),
        Just((2, 2, 2)),
        Just((4, 1, 2))
    ];
    let links = prop::collection::vec((0..most, 0..most, 0_u32..1_000_000), 0..most * 2);
    let usable = prop_oneof![3 => Just(0xff_u8), 1 => any::<u8>()];
    let isolated = prop::bool::weighted(0.2);
    (
        (machines, isolated),
        prop::collection::vec(drawn(), 1..=most),
        links,
        usable,
        prop::option::of(0_usize..4),
        any::<bool>(),
    )
        .prop_map(|(((cores, threads, nodes), isolated), drawn, links, usable, housekeeping, adopt)| {
            let stages: Vec<Stage> = (0..)
                .zip(drawn)
                .map(|(number, (kind, load, realtime, present, pinned))| {
                    let handle = handle(kind, number);
                    let pinned_by = pinned.then(|| "a test".into());
                    Stage { realtime, present, pinned_by, ..stage(handle, &format!("v{number}"), load) }
                })
                .collect();
            let at = |at: usize| stages[at % stages.len()].handle.clone();
            let links = links
                .into_iter()
                .map(|(from, to, frames)| Link { from: at(from), to: at(to), frames })
                .collect();
            let mut problem = problem(machine(cores, threads, nodes), stages, links);
            problem.machine.cpus.last_entry().expect("a CPU").get_mut().isolated = isolated;
            problem.usable.retain(|cpu| usable & (1 << cpu) != 0);
            problem.housekeeping = housekeeping.into_iter().collect();
            problem.adopt = adopt;
            problem
        })
}
