//! Whose choice the CPUs of a stage are: another program's, or the plan's. Pure.
//!
//! ```text
//!  discovery: what may have chosen the present CPUs ─┐
//!  record: CPUs that the agent set, those before ────┼─▶ another program's, or none ─▶ question, target, report
//!  [host.cores] adopt ───────────────────────────────┘
//! ```
//!
//! A thread that has the agent's CPUs is the agent's, and so is a later one of that process that inherited them. One with other CPUs was
//! moved since, and is left alone. Interrupts and queues are the agent's by the same rule. An element of libvirt's domain, and CPUs that Kubernetes gave to a container, hold in any case.

use crate::conflicts::pins;
use crate::placed;
use crate::settings::record::inherited;
use crate::settings::setting::Setting;
use crate::settings::step::SavedSetting;
use std::collections::BTreeMap;
use tidegate_contract::Host;
use tidegate_cores::cpus::{self, Cpus};
use tidegate_cores::machine::Machine;
use tidegate_cores::stage::Stage;

/// Whose choices count.
#[derive(Clone, Copy, Debug)]
pub struct Choices<'a> {
    /// The settings on record.
    pub held: &'a BTreeMap<Setting, SavedSetting>,
    /// The CPUs.
    pub machine: &'a Machine,
    /// Whether the plan may move what another program pinned.
    pub adopt: bool,
}

impl<'a> Choices<'a> {
    /// Of a host with these settings.
    pub fn new(host: &Host, machine: &'a Machine, held: &'a BTreeMap<Setting, SavedSetting>) -> Self {
        Self { held, machine, adopt: host.cores.adopt }
    }

    /// Returns the program or setting that chose a stage's CPUs; `None` if the plan did, or none.
    pub fn other<'s>(&self, stage: &'s Stage) -> Option<&'s str> {
        stage.pinned_by.as_deref().filter(|by| pins::is_certain(by) || !self.is_ours(stage))
    }

    /// Returns the one whose choice the plan has to leave.
    pub fn holds<'s>(&self, stage: &'s Stage) -> Option<&'s str> {
        let adopts = |by: &str| self.adopt && placed::setting(&stage.handle).is_some() && pins::movable(by);
        self.other(stage).filter(|by| !adopts(by))
    }

    /// Returns the stage with the program or setting that chose its CPUs.
    pub fn with_other(&self, stage: &Stage) -> Stage {
        Stage { pinned_by: self.other(stage).map(str::to_owned), ..stage.clone() }
    }

    /// Whether a thread may run on all CPUs but those that the agent set: the kernel lets it run so when they go off, also once they are
    /// back.
    fn is_rest(&self, setting: &Setting, saved: &SavedSetting, present: &Cpus) -> bool {
        let Setting::Affinity(_) = setting else { return false };
        let ours = setting.cpus(&saved.ours).unwrap_or_default();
        let isolated = self.machine.isolated();
        let is_covered = |cpu: &usize| present.contains(cpu) || ours.contains(cpu) || isolated.contains(cpu);
        self.machine.online().iter().all(is_covered)
    }

    /// Whether a stage has CPUs that the agent set for it or for the thread that started it, and had a free choice before.
    fn is_ours(&self, stage: &Stage) -> bool {
        let Some(setting) = placed::setting(&stage.handle) else { return false };
        let present = placed::value(&setting, &stage.present);
        let own = self.held.get(&setting);
        let own =
            own.filter(|saved| saved.is_own_value(&present) || self.is_rest(&setting, saved, &stage.present));
        let saved = own.or_else(|| inherited(self.held, &setting, &present));
        let isolated = self.machine.isolated();
        let was_free = |before: &str| match setting {
            Setting::Affinity(_) => {
                let before = cpus::from_list(before).unwrap_or_default();
                self.machine.online().iter().all(|cpu| before.contains(cpu) || isolated.contains(cpu))
            }
            Setting::Rps { .. } => cpus::from_mask(before).is_none_or(|before| before.is_empty()),
            // CPUs of drivers are free, too, and are not told from others any more.
            _ => true,
        };
        saved.is_some_and(|saved| was_free(&saved.before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workers::tests::{machine, worker};
    use tidegate_cores::stage::{Handle, Queue, Thread, ThreadKind};

    const AFFINITY: &str = "its CPU affinity, which another program set";
    const LIBVIRT: &str = "libvirt's <vcpupin>";

    fn thread(number: u32) -> Thread {
        Thread { process: 7, thread: number, started: 1 }
    }

    /// A virtual CPU with these CPUs, chosen by this as discovery has it.
    fn vcpu(present: usize, by: &str) -> Stage {
        let handle = Handle::Thread { kind: ThreadKind::Vcpu, thread: thread(8), name: "CPU 0/KVM".into() };
        Stage { handle, pinned_by: Some(by.into()), ..worker(0, &[present]) }
    }

    fn held(number: u32, before: &str) -> BTreeMap<Setting, SavedSetting> {
        let (before, ours, earlier) = (before.into(), "1".into(), Some("0".into()));
        let saved = SavedSetting { index: 0, before, ours, earlier, repairs: 0, boot: None };
        [(Setting::Affinity(thread(number)), saved)].into()
    }

    #[test]
    fn threads_with_the_agents_cpus_are_the_agents_and_others_are_not() {
        let machine = machine(4, &[]);
        let other = |held, stage: &Stage| {
            let choices = Choices { held: &held, machine: &machine, adopt: false };
            assert_eq!(choices.other(stage), choices.holds(stage));
            choices.other(stage).map(str::to_owned)
        };
        let theirs = Some(AFFINITY.to_owned());
        assert_eq!(other(BTreeMap::new(), &vcpu(1, AFFINITY)), theirs);
        assert_eq!(other(held(8, "0-3"), &vcpu(1, AFFINITY)), None);
        assert_eq!(other(held(8, "0-3"), &vcpu(0, AFFINITY)), None, "it is about to be moved");
        assert_eq!(other(held(9, "0-3"), &vcpu(1, AFFINITY)), None, "the thread that started it was placed");
        // Another program moved it since, or had pinned it before: adopted, and to be given back.
        assert_eq!(other(held(8, "0-3"), &vcpu(2, AFFINITY)), theirs);
        assert_eq!(other(held(8, "2"), &vcpu(1, AFFINITY)), theirs);
        // Its CPU went off and came back.
        let rest = Stage { present: [0, 2, 3].into(), ..vcpu(0, AFFINITY) };
        assert_eq!(other(held(8, "0-3"), &rest), None);
        assert_eq!(other(held(8, "0-3"), &Stage { present: [0, 2].into(), ..rest.clone() }), theirs);
        assert_eq!(other(BTreeMap::new(), &rest), theirs);
        // virsh vcpupin, before or after.
        for present in [1, 2] {
            assert_eq!(other(held(8, "0-3"), &vcpu(present, LIBVIRT)), Some(LIBVIRT.to_owned()));
        }
    }

    #[test]
    fn queues_and_interrupts_with_the_agents_cpus_are_the_agents() {
        let machine = machine(4, &[]);
        let queue = Queue { device: "eth0".into(), queue: 0 };
        let irq = Handle::Irq { number: 30, name: "eth0-rx-0".into() };
        // CPU 1 as the agent writes it; CPUs of a driver before.
        let cases = [
            (Handle::Receive(queue.clone()), "2", "0", "4"),
            (Handle::Transmit(queue), "2", "4", "4"),
            (irq, "1", "3", "3"),
        ];
        for (handle, ours, before, driver) in cases {
            let saved = |before: &str| SavedSetting {
                index: 1,
                before: before.into(),
                ours: ours.into(),
                earlier: None,
                repairs: 0,
                boot: None,
            };
            let other = |present: usize, before: &str| {
                let held = [(placed::setting(&handle).unwrap(), saved(before))].into();
                let stage = Stage {
                    handle: handle.clone(),
                    pinned_by: Some("another program".into()),
                    ..worker(0, &[present])
                };
                Choices { held: &held, machine: &machine, adopt: false }.other(&stage).is_some()
            };
            assert!(!other(1, before) && other(2, before), "{handle}");
            // Only another program steers a queue that is received from.
            assert_eq!(other(1, driver), matches!(handle, Handle::Receive(_)), "{handle}");
        }
    }

    #[test]
    fn the_plan_adopts_what_it_can_move() {
        let (machine, held) = (machine(4, &[]), BTreeMap::new());
        let choices = Choices { held: &held, machine: &machine, adopt: true };
        for by in [AFFINITY, LIBVIRT] {
            assert_eq!((choices.other(&vcpu(2, by)), choices.holds(&vcpu(2, by))), (Some(by), None));
        }
        for by in ["Kubernetes' CPU manager", "the cpuset of its cgroup /a"] {
            assert_eq!(choices.holds(&vcpu(2, by)), Some(by));
        }
        let worker = Stage { pinned_by: Some("the option --cpus".into()), ..worker(0, &[2]) };
        assert!(choices.holds(&worker).is_some(), "it has no setting");
    }
}
