//! From a plan to the settings that carry it out. Pure.
//!
//! ```text
//!  stage            setting
//!  thread           its affinity; if a deadline depends on it, its nice value
//!  interrupt        its affinity
//!  receive queue    rps_cpus
//!  transmit queue   xps_cpus
//!  worker, port     none: the host switch is asked
//!  flow             none: the NIC's frames are steered
//! ```

use crate::settings::setting::Setting;
use crate::target::Target;
use std::collections::BTreeMap;
use tidegate_cores::cpus::{self, Cpus};
use tidegate_cores::machine::Machine;
use tidegate_cores::problem::Plan;
use tidegate_cores::stage::{Handle, Stage};

/// The nice value of real-time threads: they go before others that come to their CPU, and starve none, as SCHED_FIFO would.
const NICE: &str = "-11";

/// Returns the setting that places a stage; `None` if another part places it.
pub fn setting(handle: &Handle) -> Option<Setting> {
    match handle {
        Handle::Thread { thread, .. } => Some(Setting::Affinity(*thread)),
        Handle::Irq { number, .. } => Some(Setting::Irq { number: *number }),
        Handle::Receive(queue) => Some(Setting::rps(queue)),
        Handle::Transmit(queue) => Some(Setting::xps(queue)),
        Handle::Flow { .. } | Handle::Worker(_) | Handle::Port(_) => None,
    }
}

/// Returns the value of a stage's setting for CPUs.
pub fn value(setting: &Setting, cpus: &Cpus) -> String {
    match setting {
        Setting::Rps { .. } | Setting::Xps { .. } => cpus::mask(cpus),
        _ => cpus::list(cpus),
    }
}

/// Returns the target of a plan for the stages that there are now. A CPU that is offline is no target: the work there is planned anew.
pub fn target<'a>(plan: &Plan, stages: impl Iterator<Item = &'a Stage>, machine: &Machine) -> Target {
    let online = machine.online();
    let mut target = Target::default();
    let present: BTreeMap<&Handle, &Stage> = stages.map(|stage| (&stage.handle, stage)).collect();
    let is_there = |(handle, cpu): &(&Handle, &usize)| present.contains_key(handle) && online.contains(cpu);
    for (handle, cpu) in plan.assignment.cpus.iter().filter(is_there) {
        target.own.extend(plan.own.get(cpu));
        if let Handle::Worker(worker) = handle {
            target.directions.workers.insert(*worker, *cpu);
        }
        if let Some(setting) = setting(handle) {
            let value = value(&setting, &[*cpu].into());
            target.settings.insert(setting, value);
        }
        if present[handle].realtime
            && let Handle::Thread { thread, .. } = handle
        {
            target.settings.insert(Setting::Nice(*thread), NICE.into());
        }
    }
    let is_there = |(vnic, worker): &(&String, &usize)| {
        let [port, worker] = [Handle::Port((*vnic).clone()), Handle::Worker(**worker)];
        present.contains_key(&port) && present.contains_key(&worker)
    };
    leave_one(&mut target.directions.workers, plan, &online);
    let workers = plan.assignment.workers.iter().filter(is_there);
    target.directions.vnics.extend(workers.map(|(vnic, worker)| (vnic.clone(), *worker)));
    target
}

/// Leaves the workers of one CPU without a direction if all CPUs together have workers: the switch keeps one for its other threads. Workers
/// that it binds to no CPU run there as well, so they are where the plan has them.
fn leave_one(workers: &mut BTreeMap<usize, usize>, plan: &Plan, online: &Cpus) {
    let taken: Cpus = workers.values().copied().collect();
    if taken.len() < online.len() {
        return;
    }
    let last = taken.iter().min_by_key(|cpu| (plan.own.contains(cpu), !plan.housekeeping.contains(cpu)));
    workers.retain(|_, cpu| Some(&*cpu) != last);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workers::tests::{machine, worker};
    use tidegate_cores::stage::{Queue, Thread, ThreadKind};

    #[test]
    fn each_stage_that_is_there_has_a_setting_or_a_direction() {
        let thread = Thread { process: 7, thread: 8, started: 9 };
        let vcpu = Handle::Thread { kind: ThreadKind::Vcpu, thread, name: "CPU 0/KVM".into() };
        let queue = |queue| Queue { device: "eth0".into(), queue };
        let irq = Handle::Irq { number: 30, name: "eth0-rx-0".into() };
        let handles = [
            vcpu,
            irq.clone(),
            Handle::Receive(queue(0)),
            Handle::Transmit(queue(1)),
            Handle::Port("a".into()),
            Handle::Flow { device: "eth0".into(), name: "f".into() },
        ];
        let mut stages: Vec<Stage> =
            handles.iter().map(|handle| Stage { handle: handle.clone(), ..worker(0, &[]) }).collect();
        stages.push(worker(0, &[1]));
        let mut plan = Plan { own: [1, 9].into(), ..Plan::default() };
        plan.assignment.cpus = stages.iter().map(|stage| (stage.handle.clone(), 1)).collect();
        plan.assignment.cpus.insert(Handle::Worker(5), 1);
        plan.assignment.workers = [("a".to_owned(), 0), ("b".to_owned(), 0)].into();
        let all = target(&plan, stages.iter(), &machine(2, &[]));
        let settings = [
            (Setting::Affinity(thread), "1".to_owned()),
            (Setting::Nice(thread), NICE.into()),
            (Setting::Irq { number: 30 }, "1".to_owned()),
            (Setting::rps(&queue(0)), "2".to_owned()),
            (Setting::xps(&queue(1)), "2".to_owned()),
        ];
        assert_eq!((all.settings, all.own), (settings.into(), [1].into()));
        assert_eq!(
            (all.directions.workers, all.directions.vnics),
            ([(0, 1)].into(), [("a".to_owned(), 0)].into())
        );
        // The stage is gone; the CPU is offline.
        let gone = target(&plan, stages.iter().filter(|stage| stage.handle != irq), &machine(2, &[]));
        assert!(!gone.settings.contains_key(&Setting::Irq { number: 30 }));
        assert_eq!(target(&plan, stages.iter(), &machine(1, &[])).settings, Default::default());
    }

    #[test]
    fn the_switch_is_left_a_cpu_that_no_worker_has() {
        let directed = |cpus: &[usize], online| {
            let stages: Vec<Stage> = (0..cpus.len()).map(|number| worker(number, &[])).collect();
            let mut plan = Plan { own: [1].into(), housekeeping: [2].into(), ..Plan::default() };
            plan.assignment.cpus =
                stages.iter().map(|s| s.handle.clone()).zip(cpus.iter().copied()).collect();
            let target = target(&plan, stages.iter(), &machine(online, &[]));
            target.directions.workers.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(directed(&[1, 0], 2), [(0, 1)]);
        assert_eq!(directed(&[0, 2, 1, 2], 3), [(0, 0), (2, 1)]);
        assert_eq!(directed(&[1, 0], 3), [(0, 1), (1, 0)]);
        assert_eq!(directed(&[1, 1], 2), [(0, 1), (1, 1)]);
    }
}
