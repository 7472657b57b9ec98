//! The facts of the switch that decide whether CPUs are steered off, and which. Pure.

use super::plan::Situation;
use std::time::{Duration, Instant};
use tidegate_contract::{Attach, Vnic};
use tidegate_cores::cpus::Cpus;
use tidegate_evidence::Evidence;
use tidegate_evidence::total;

/// Real-time traffic counts as present for this long: a guest with pauses must not make the agent write to
/// disk each time.
const TRAFFIC_LASTS: Duration = Duration::from_secs(10);

/// The CPUs of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// Those that run.
    pub online: Cpus,
    /// Those set apart at boot (`isolcpus=`, `nohz_full=`): the kernel gives them no work by itself.
    pub isolated: Cpus,
}

/// Whether real-time frames go through the switch.
#[derive(Debug)]
pub struct Flow {
    /// Real-time frames delivered so far; `None` before the first look, which cannot date them.
    delivered: Option<u64>,
    /// When the number last grew.
    grew: Option<Instant>,
}

impl Flow {
    /// Returns the state before the first look; frames flowed `at` that time, if known.
    pub fn new(at: Option<Instant>) -> Self {
        Self { delivered: None, grew: at }
    }

    /// Updates it at `now`; whether frames flow.
    pub fn see(&mut self, now: Instant, evidence: &Evidence) -> bool {
        let delivered = total(evidence.vnics.values().map(|stats| stats.realtime_delivered));
        if self.delivered.replace(delivered).is_some_and(|before| delivered > before) {
            self.grew = Some(now);
        }
        self.grew.is_some_and(|grew| now.saturating_duration_since(grew) < TRAFFIC_LASTS)
    }
}

/// Makes the situation from the contracts that this agent gave to ports, and from the switch's answers. Its
/// claims on CPUs count only for existing CPUs, and for at most half of all.
pub fn situation<'a>(
    contracts: impl Iterator<Item = &'a Vnic>,
    evidence: &Evidence,
    machine: &Machine,
    flows: bool,
) -> Situation {
    let pinned = evidence.workers.iter().filter_map(|worker| usize::try_from(worker.cpu?).ok());
    let workers: Cpus = pinned.filter(|cpu| machine.online.contains(cpu)).collect();
    let (count, online) = (workers.len(), machine.online.len());
    let too_many = (count * 2 > online).then(|| {
        format!("{count} of {online} CPUs belong to workers, more than half: the agent keeps no other work off them, \
            and lets them halt")
    });
    let mut situation = Situation {
        workers: if too_many.is_none() { workers } else { Cpus::new() },
        others: machine.online.difference(&machine.isolated).copied().collect(),
        flows,
        too_many,
        ..Situation::default()
    };
    for contract in contracts {
        situation.deadline |= contract.deadline.is_some();
        if let Attach::Tap { name, netns } = &contract.attach {
            situation.taps.push((netns.clone(), name.clone(), contract.queues));
        }
    }
    situation
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_contract::Nanos;
    use tidegate_evidence::{VnicStats, WorkerStats};
    use tidegate_place::Observed;
    use tidegate_testkit::contract::{tap, vnic};

    fn evidence(cpus: &[Option<u64>]) -> Evidence {
        let mut evidence = Observed::nothing("a test").evidence;
        evidence.workers =
            cpus.iter().map(|cpu| WorkerStats { cpu: *cpu, ..WorkerStats::default() }).collect();
        evidence
    }

    #[test]
    fn taps_deadlines_and_cpus_that_run_count() {
        let machine = Machine { online: (0..4).collect(), isolated: [2].into() };
        let evidence = evidence(&[Some(1), Some(2), Some(9), Some(u64::MAX), None]);
        let mut contracts = vec![Vnic { attach: tap("a"), queues: 2, ..vnic("a", 1) }, vnic("b", 2)];
        let expected = Situation {
            workers: [1, 2].into(),
            others: [0, 1, 3].into(),
            deadline: false,
            flows: true,
            taps: vec![(None, "a".into(), 2)],
            too_many: None,
        };
        assert_eq!(situation(contracts.iter(), &evidence, &machine, true), expected);
        contracts.push(Vnic { deadline: Some(Nanos::new(1_000_000)), ..vnic("c", 3) });
        let expected = Situation { deadline: true, ..expected };
        assert_eq!(situation(contracts.iter(), &evidence, &machine, true), expected);
    }

    #[test]
    fn a_switch_cannot_claim_all_cpus_for_its_workers() {
        let of = |workers: usize, online: usize| {
            let machine = Machine { online: (0..online).collect(), isolated: Cpus::new() };
            let cpus: Vec<_> = (0..workers as u64).map(Some).collect();
            situation(std::iter::empty(), &evidence(&cpus), &machine, true)
        };
        for (workers, online) in [(0, 0), (1, 2), (2, 4), (2, 5), (8, 64)] {
            let situation = of(workers, online);
            assert_eq!((situation.workers.len(), situation.too_many), (workers, None));
        }
        for (workers, online) in [(1, 1), (3, 4), (3, 5), (64, 64)] {
            let situation = of(workers, online);
            assert_eq!(situation.workers, Cpus::new());
            let why = situation.too_many.unwrap();
            assert!(why.starts_with(&format!("{workers} of {online} CPUs belong to workers, more")), "{why}");
        }
    }

    #[test]
    fn traffic_counts_for_some_seconds_after_its_last_frame() {
        let (mut flow, begin) = (Flow::new(None), Instant::now());
        let evidence = |delivered| {
            let mut evidence = Observed::nothing("a test").evidence;
            evidence
                .vnics
                .insert("a".into(), VnicStats { realtime_delivered: delivered, ..VnicStats::default() });
            evidence
        };
        assert!(!flow.see(begin, &evidence(4)), "they may have been long ago");
        assert!(flow.see(begin, &evidence(5)));
        assert!(flow.see(begin + TRAFFIC_LASTS / 2, &evidence(5)));
        assert!(!flow.see(begin + TRAFFIC_LASTS, &evidence(5)));
        // A restarted switch counts from 0.
        assert!(!flow.see(begin + TRAFFIC_LASTS, &evidence(0)));
        assert!(flow.see(begin + TRAFFIC_LASTS, &evidence(1)));
        // The earlier agent saw them.
        let mut flow = Flow::new(Some(begin));
        assert!(flow.see(begin, &evidence(5)));
        assert!(!flow.see(begin + TRAFFIC_LASTS, &evidence(5)));
    }
}
