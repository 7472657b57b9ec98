//! The placement that an earlier agent left: the first plan of this one goes on from there. Pure.
//!
//! ```text
//!  stages, settings and flows on record, workers where the switch has them ─▶ Assignment
//! ```

use crate::placed;
use crate::settings::setting::Setting;
use crate::settings::step::SavedSetting;
use std::collections::BTreeMap;
use tidegate_cores::cpus::Cpus;
use tidegate_cores::problem::Assignment;
use tidegate_cores::stage::{Handle, Stage};

/// Returns the assignment that these settings, and these CPUs of flows, are of; an empty one if they place no stage.
pub fn left(
    stages: &[Stage],
    held: &BTreeMap<Setting, SavedSetting>,
    flows: &BTreeMap<Handle, usize>,
) -> Assignment {
    let mut left = Assignment::default();
    for Stage { handle, .. } in stages {
        left.cpus.extend(flows.get(handle).map(|cpu| (handle.clone(), *cpu)));
        let saved = placed::setting(handle).and_then(|setting| Some((held.get(&setting)?, setting)));
        let cpus = saved.and_then(|(saved, setting)| setting.cpus(&saved.ours));
        left.cpus.extend(cpus.and_then(only).map(|cpu| (handle.clone(), cpu)));
    }
    if left.cpus.is_empty() {
        return left;
    }
    for stage in stages {
        let Handle::Worker(worker) = stage.handle else { continue };
        left.cpus.extend(only(stage.present.clone()).map(|cpu| (stage.handle.clone(), cpu)));
        left.workers.extend(stage.vnics.iter().map(|vnic| (vnic.clone(), worker)));
    }
    left
}

/// Returns the CPU of a set of one; a plan places no stage on several.
fn only(cpus: Cpus) -> Option<usize> {
    cpus.first().copied().filter(|_| cpus.len() == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workers::tests::worker;
    use tidegate_cores::stage::Queue;

    #[test]
    fn settings_of_a_plan_are_an_assignment_and_others_are_not() {
        let queue = |queue| Queue { device: "t".into(), queue };
        let stack = |number| Stage { handle: Handle::Receive(queue(number)), ..worker(0, &[]) };
        let irq = |number| Stage { handle: Handle::Irq { number, name: String::new() }, ..worker(0, &[]) };
        let worker = Stage { vnics: vec!["a".into()], ..worker(1, &[2]) };
        let flow = |name: &str| {
            let handle = Handle::Flow { device: "t".into(), name: name.into() };
            Stage { handle, ..worker.clone() }
        };
        let stages = [stack(0), stack(1), irq(8), irq(9), worker.clone(), flow("a"), flow("new")];
        let entry = |setting, ours: &str| {
            let (before, ours) = ("0".into(), ours.into());
            (setting, SavedSetting { index: 0, before, ours, earlier: None, repairs: 0, boot: None })
        };
        // The stack of queue 1 is kept off workers, without a plan.
        let off = entry(Setting::rps(&queue(1)), "d");
        let of_plan = [entry(Setting::rps(&queue(0)), "8"), entry(Setting::Irq { number: 9 }, "3")];
        let held = of_plan.into_iter().chain([off.clone()]).collect();
        let flows = [(flow("a").handle, 1), (flow("gone").handle, 1)].into();
        let found = left(&stages, &held, &flows);
        let at = |number: usize, cpu| (stages[number].handle.clone(), cpu);
        let cpus = [at(0, 3), at(3, 3), at(4, 2), at(5, 1)];
        assert_eq!((found.cpus, found.workers), (cpus.into(), [("a".to_owned(), 1)].into()));
        assert_eq!(left(&stages, &[off].into(), &BTreeMap::new()), Assignment::default());
    }
}
