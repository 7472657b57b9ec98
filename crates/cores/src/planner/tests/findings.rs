//! The findings of VSE's CPU allocation model, as inequalities of the cost of a flow's stages on CPUs.

use super::hosts::{machine, problem, receive, stage, thread};
use super::model;
use crate::machine::Machine;
use crate::stage::{Handle, Link, Stage, ThreadKind};

const FRAMES: u32 = 200_000;

/// The cost of stages on CPUs of one cache.
fn cost(stages: &[(Handle, usize)], links: &[(usize, usize)]) -> i64 {
    let all = stages
        .iter()
        .map(|(handle, cpu)| Stage { present: [*cpu].into(), ..stage(handle.clone(), "", 350_000) });
    let of = |at: usize| stages[at].0.clone();
    let links = links.iter().map(|(from, to)| Link { from: of(*from), to: of(*to), frames: FRAMES });
    let mut problem = problem(cores(), all.collect(), links.collect());
    problem.housekeeping = [7].into();
    let model = model(&problem);
    crate::planner::present(&model).cost
}

fn cores() -> Machine {
    machine(8, 1, 1)
}

fn irq(number: u32) -> Handle {
    Handle::Irq { number, name: "eth0-0".into() }
}

fn vhost(number: u32) -> Handle {
    thread(ThreadKind::Vhost, 100 + number)
}

fn vcpu(number: u32) -> Handle {
    thread(ThreadKind::Vcpu, 200 + number)
}

/// A flow's interrupt, softirq, vhost-net and vCPU on these CPUs.
fn flow([interrupt, softirq, net, vm]: [usize; 4]) -> i64 {
    let stages = [(irq(1), interrupt), (receive(0), softirq), (vhost(1), net), (vcpu(1), vm)];
    cost(&stages, &[(0, 1), (1, 2), (2, 3)])
}

#[test]
fn vhost_apart_from_interrupts_and_with_its_vm_is_fastest() {
    let best =
        (0..4_usize.pow(4)).map(|n| [n % 4, n / 4 % 4, n / 16 % 4, n / 64]).min_by_key(|cpus| flow(*cpus));
    let [interrupt, softirq, net, vm] = best.unwrap();
    assert_eq!(net, vm);
    assert!(net != interrupt && net != softirq);
}

#[test]
fn softirq_with_vhost_is_slower_and_with_the_vm_slowest() {
    let fastest = flow([0, 0, 1, 1]);
    let with_vhost = flow([0, 1, 1, 2]);
    let with_vm = flow([0, 1, 2, 1]);
    assert!(fastest < with_vhost, "{fastest} {with_vhost}");
    assert!(with_vhost < with_vm, "{with_vhost} {with_vm}");
    // Of all that share one CPU with one other stage, none is slower.
    for other in [[0, 1, 2, 2], [0, 0, 1, 2], [0, 1, 1, 2], [0, 1, 2, 0]] {
        assert!(flow(other) < with_vm, "{other:?}");
    }
}

#[test]
fn two_softirqs_on_a_cpu_hurt_more_than_two_vhosts() {
    let softirqs = cost(&[(receive(0), 1), (receive(1), 1), (vhost(1), 2), (vhost(2), 3)], &[(0, 2), (1, 3)]);
    let vhosts = cost(&[(receive(0), 1), (receive(1), 2), (vhost(1), 3), (vhost(2), 3)], &[(0, 2), (1, 3)]);
    assert!(vhosts < softirqs, "{vhosts} {softirqs}");
}

#[test]
fn two_flows_of_a_vm_on_two_cpus_do_no_harm() {
    let flows = |second: usize| {
        let stages = [(receive(0), 1), (receive(1), second), (vhost(1), 3), (vhost(2), 4), (vcpu(1), 5)];
        cost(&stages, &[(0, 2), (1, 3), (2, 4), (3, 4)])
    };
    assert!(flows(2) <= flows(1));
    let one = cost(&[(receive(0), 1), (vhost(1), 3)], &[(0, 1)]);
    let both = cost(&[(receive(0), 1), (vhost(1), 3), (receive(1), 2), (vhost(2), 4)], &[(0, 1), (2, 3)]);
    assert_eq!(both, 2 * one, "flows on CPUs of their own cost nothing together");
}

#[test]
fn a_worker_that_polls_is_worse_with_a_vcpu_than_any_other_pair() {
    let pair = |one: Handle, other: Handle| cost(&[(one, 1), (other, 1)], &[]);
    let worst = pair(Handle::Worker(0), vcpu(1));
    let apart = cost(&[(Handle::Worker(0), 1), (vcpu(1), 2)], &[(0, 1)]);
    assert!(apart < worst);
    for (one, other) in
        [(receive(0), vcpu(1)), (vhost(1), vcpu(1)), (receive(0), receive(1)), (Handle::Worker(0), vhost(1))]
    {
        assert!(pair(one, other) < worst);
    }
}
