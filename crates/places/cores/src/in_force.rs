//! The placement that an earlier agent left: the first plan of this one goes on from there. Pure.
//!
//! ```text
//!  stages, settings on record, workers where the switch has them ─▶ Assignment
//! ```

use crate::placed;
use crate::settings::setting::Setting;
use crate::settings::step::SavedSetting;
use std::collections::BTreeMap;
use tidegate_cores::cpus::Cpus;
use tidegate_cores::problem::Assignment;
use tidegate_cores::stage::{Handle, Stage};

/// Returns the assignment that these settings are of; an empty one if they place no stage.
pub fn left(stages: &[Stage], held: &BTreeMap<Setting, SavedSetting>) -> Assignment {
    let mut left = Assignment::default();
    for Stage { handle, .. } in stages {
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
        let queue = |queue| Queue { netns: None, device: "t".into(), queue };
        let stack = |number| Stage { handle: Handle::Receive(queue(number)), ..worker(0, &[]) };
        let irq = |number| Stage { handle: Handle::Irq { number, name: String::new() }, ..worker(0, &[]) };
        let worker = Stage { vnics: vec!["a".into()], ..worker(1, &[2]) };
        let stages = [stack(0), stack(1), irq(8), irq(9), worker.clone()];
        let entry = |setting, ours: &str| {
            let (before, ours) = ("0".into(), ours.into());
            (setting, SavedSetting { index: 0, before, ours, earlier: None, repairs: 0, boot: None })
        };
        // The stack of queue 1 is kept off workers, without a plan.
        let off = entry(Setting::rps(&queue(1)), "d");
        let of_plan = [entry(Setting::rps(&queue(0)), "8"), entry(Setting::Irq { number: 9 }, "3")];
        let held = of_plan.into_iter().chain([off.clone()]).collect();
        let found = left(&stages, &held);
        let cpus = [(stages[0].handle.clone(), 3), (stages[3].handle.clone(), 3), (worker.handle, 2)];
        assert_eq!((found.cpus, found.workers), (cpus.into(), [("a".to_owned(), 1)].into()));
        assert_eq!(left(&stages, &[off].into()), Assignment::default());
    }
}
