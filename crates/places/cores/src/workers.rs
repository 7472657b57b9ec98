//! The CPUs of the host switch's workers while a deadline is in force: kept free of other work, also without a plan. Pure.
//!
//! ```text
//!  contracts, stages of workers, CPUs that are online ─▶ Situation ─┬▶ own: CPUs that workers have for themselves
//!                                                                   └▶ target: taps' stacks and halts off these CPUs
//! ```
//!
//! The switch reports its workers' CPUs, and may lie: see [`situation`]. Deadlines, taps and queues are those of the contracts.

use crate::keep_off::KeepOff;
use crate::settings::setting::{NO_LATENCY, Setting};
use crate::target::Target;
use std::collections::BTreeMap;
use std::path::PathBuf;
use tidegate_contract::{Attach, Vnic};
use tidegate_cores::cpus::{self, Cpus};
use tidegate_cores::machine::Machine;
use tidegate_cores::stage::{Handle, Stage};

/// The deciding facts of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Situation {
    /// CPUs to which workers are bound.
    pub workers: Cpus,
    /// CPUs that may run other work: online, not set apart by the administrator (`isolcpus=`, `nohz_full=`), and no plan's own.
    pub others: Cpus,
    /// A deadline is in force.
    pub deadline: bool,
    /// Real-time frames passed the switch recently.
    pub flows: bool,
    /// The taps of the switch: namespace, interface, queues.
    pub taps: Vec<(Option<PathBuf>, String, u16)>,
    /// The switch claims so many CPUs that none is accepted as a worker's; the reason.
    pub too_many: Option<String>,
}

/// Makes the situation from the contracts that this agent gave to ports, and from the switch's answers. Its
/// claims on CPUs count only for existing CPUs, and for at most half of all; if they are more, those of a kept plan count, which gives
/// real-time stages the CPUs `planned`, and these are half at most. No other work goes to the CPUs `apart`.
pub fn situation<'a>(
    contracts: impl Iterator<Item = &'a Vnic>,
    stages: impl Iterator<Item = &'a Stage>,
    machine: &Machine,
    apart: &Cpus,
    planned: &Cpus,
    flows: bool,
) -> Situation {
    let online = machine.online();
    let bound = |stage: &Stage| match (&stage.handle, stage.present.len()) {
        (Handle::Worker(_), 1) => stage.present.first().copied(),
        _ => None,
    };
    let workers: Cpus = stages.filter_map(bound).filter(|cpu| online.contains(cpu)).collect();
    let count = workers.len();
    let of_plan: Cpus = workers.intersection(planned).copied().collect();
    let (workers, rest) = if count * 2 > online.len() { (of_plan, count) } else { (workers, 0) };
    let too_many = (rest > workers.len()).then(|| {
        let off = if workers.is_empty() { "them" } else { "those that are not the plan's own" };
        format!(
            "{count} of {} CPUs belong to workers, more than half: the agent keeps no other work off {off}, \
            and lets them halt",
            online.len()
        )
    });
    let isolated = machine.isolated();
    let mut situation = Situation {
        workers,
        others: online.into_iter().filter(|cpu| !isolated.contains(cpu) && !apart.contains(cpu)).collect(),
        flows,
        too_many,
        ..Situation::default()
    };
    for contract in contracts.filter(|contract| is_of_the_switch(contract)) {
        situation.deadline |= contract.deadline.is_some();
        if let Attach::Tap { name, netns } = &contract.attach {
            situation.taps.push((netns.clone(), name.clone(), contract.queues));
        }
    }
    situation
}

/// Whether the host switch carries the frames of a vNIC.
pub fn is_of_the_switch(vnic: &Vnic) -> bool {
    matches!(vnic.attach, Attach::VhostUser { .. } | Attach::Tap { .. })
}

/// Returns the target in a situation.
pub fn target(situation: &Situation, off: KeepOff) -> Target {
    let settings = wanted(situation, off);
    let taps = settings.keys().filter(|setting| matches!(setting, Setting::Rps { .. })).cloned().collect();
    let own = if settings.is_empty() { Cpus::new() } else { situation.workers.clone() };
    let too_many = situation.too_many.clone().filter(|_| situation.deadline && off.is_anything());
    Target { settings, taps, own, too_many, ..Target::default() }
}

/// Returns the CPUs that workers have for themselves while there is a deadline; none without another CPU for other work.
pub fn own(situation: &Situation, off: KeepOff) -> Cpus {
    let Situation { workers, others, deadline, .. } = situation;
    let is_possible = others.difference(workers).next().is_some();
    if *deadline && off.is_anything() && is_possible { workers.clone() } else { Cpus::new() }
}

/// Returns the wanted settings; none without a CPU to steer to.
fn wanted(situation: &Situation, off: KeepOff) -> BTreeMap<Setting, String> {
    let Situation { workers, others, deadline, flows, taps, .. } = situation;
    let to: Cpus = others.difference(workers).copied().collect();
    if !deadline || workers.is_empty() || to.is_empty() {
        return BTreeMap::new();
    }
    let to = cpus::mask(&to);
    let queue = |(netns, device, queues): &(Option<PathBuf>, String, u16)| {
        let (netns, device, to) = (netns.clone(), device.clone(), to.clone());
        (0..*queues).map(move |queue| {
            (Setting::Rps { netns: netns.clone(), device: device.clone(), queue }, to.clone())
        })
    };
    let resume = workers.iter().filter(|_| *flows && off.halts);
    let resume = resume.map(|cpu| (Setting::Resume { cpu: *cpu }, NO_LATENCY.to_owned()));
    taps.iter().filter(|_| off.softirqs).flat_map(queue).chain(resume).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use tidegate_contract::Nanos;
    use tidegate_cores::machine::Cpu;
    use tidegate_testkit::contract::{tap, vnic};

    fn cpus(all: &[usize]) -> Cpus {
        all.iter().copied().collect()
    }

    /// So many CPUs, of which some were set apart at boot.
    pub fn machine(online: usize, isolated: &[usize]) -> Machine {
        let cpu = |number: usize| {
            let core = u32::try_from(number).unwrap();
            (number, Cpu { core, isolated: isolated.contains(&number), ..Cpu::default() })
        };
        Machine { cpus: (0..online).map(cpu).collect(), ..Machine::default() }
    }

    /// A worker that is bound to these CPUs.
    pub fn worker(index: usize, present: &[usize]) -> Stage {
        Stage {
            handle: Handle::Worker(index),
            vnics: vec![],
            realtime: true,
            load: 0,
            measured: true,
            present: cpus(present),
            pinned_by: None,
        }
    }

    pub fn in_situation() -> Situation {
        Situation {
            workers: cpus(&[1]),
            others: cpus(&[0, 1, 2, 3]),
            deadline: true,
            flows: true,
            taps: vec![(None, "a".into(), 2), (Some("/run/netns/b".into()), "b".into(), 1)],
            too_many: None,
        }
    }

    #[test]
    fn taps_are_steered_off_the_workers_while_a_deadline_is_in_force() {
        let both = KeepOff { softirqs: true, halts: true };
        let wanted = |situation: &Situation| wanted(situation, both);
        let all = wanted(&in_situation());
        let masks: Vec<&str> = all.values().map(String::as_str).collect();
        assert_eq!(masks, ["d", "d", "d", NO_LATENCY]);
        let none = |situation: Situation| assert_eq!(wanted(&situation), BTreeMap::new(), "{situation:?}");
        none(Situation { deadline: false, ..in_situation() });
        none(Situation { workers: cpus(&[]), ..in_situation() });
        // One CPU only; a worker on each; all others are set apart.
        none(Situation { others: cpus(&[1]), ..in_situation() });
        none(Situation { workers: cpus(&[0, 1, 2, 3]), ..in_situation() });
        assert_eq!(wanted(&Situation { flows: false, ..in_situation() }).len(), 3);
        assert_eq!(super::wanted(&in_situation(), KeepOff { halts: false, ..both }).len(), 3);
        assert_eq!(super::wanted(&in_situation(), KeepOff { softirqs: false, ..both }).len(), 1);
    }

    #[test]
    fn workers_have_their_cpus_for_a_deadline_also_while_nothing_flows() {
        let both = KeepOff { softirqs: true, halts: true };
        let quiet = Situation { flows: false, taps: vec![], ..in_situation() };
        assert_eq!((own(&quiet, both), target(&quiet, both)), (cpus(&[1]), Target::default()));
        assert_eq!(target(&in_situation(), both).own, cpus(&[1]));
        for none in [
            Situation { deadline: false, ..in_situation() },
            Situation { others: cpus(&[1]), ..in_situation() },
            Situation { workers: cpus(&[]), ..in_situation() },
        ] {
            assert_eq!(own(&none, both), cpus(&[]), "{none:?}");
        }
        assert_eq!(own(&in_situation(), KeepOff { softirqs: false, halts: false }), cpus(&[]));
    }

    #[test]
    fn taps_deadlines_and_cpus_that_run_count() {
        let machine = machine(4, &[2]);
        let workers = [worker(0, &[1]), worker(1, &[2]), worker(2, &[9]), worker(3, &[]), worker(4, &[0, 1])];
        let situation = |contracts: &[Vnic]| {
            super::situation(contracts.iter(), workers.iter(), &machine, &cpus(&[3]), &cpus(&[]), true)
        };
        let mut contracts = vec![Vnic { attach: tap("a"), queues: 2, ..vnic("a", 1) }, vnic("b", 2)];
        let expected = Situation {
            workers: cpus(&[1, 2]),
            others: cpus(&[0, 1]),
            deadline: false,
            flows: true,
            taps: vec![(None, "a".into(), 2)],
            too_many: None,
        };
        assert_eq!(situation(&contracts), expected);
        let deadline = Some(Nanos::new(1_000_000));
        // A device of the kernel has no worker.
        contracts.push(Vnic { deadline, attach: Attach::Netdev { name: "d".into() }, ..vnic("d", 3) });
        assert_eq!(situation(&contracts), expected);
        contracts.push(Vnic { deadline, ..vnic("c", 3) });
        assert_eq!(situation(&contracts), Situation { deadline: true, ..expected });
    }

    #[test]
    fn a_switch_cannot_claim_all_cpus_for_its_workers() {
        let of_planned = |workers: usize, online: usize, planned: &[usize]| {
            let workers: Vec<Stage> = (0..workers).map(|cpu| worker(cpu, &[cpu])).collect();
            let (none, planned) = (Cpus::new(), cpus(planned));
            situation(std::iter::empty(), workers.iter(), &machine(online, &[]), &none, &planned, true)
        };
        let of = |workers, online| of_planned(workers, online, &[]);
        for (workers, online) in [(0, 0), (1, 2), (2, 4), (2, 5), (8, 64)] {
            let situation = of(workers, online);
            assert_eq!((situation.workers.len(), situation.too_many), (workers, None));
        }
        // A plan of ours put them there.
        let situation = of_planned(3, 4, &[0, 2, 3]);
        assert_eq!(situation.workers, cpus(&[0, 2]));
        assert!(situation.too_many.unwrap().contains("off those that are not the plan's own"));
        assert_eq!(of_planned(2, 3, &[0, 1]).too_many, None);
        for (workers, online) in [(1, 1), (3, 4), (3, 5), (64, 64)] {
            let situation = of(workers, online);
            assert_eq!(situation.workers, Cpus::new());
            let why = situation.too_many.unwrap();
            assert!(why.starts_with(&format!("{workers} of {online} CPUs belong to workers, more")), "{why}");
        }
    }
}
