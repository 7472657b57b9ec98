//! What of the switch decides whether CPUs are steered off, and which. Pure.

use super::cpus::Cpus;
use super::plan::Situation;
use crate::place::{Evidence, ObservedVnic};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tidegate_contract::Attach;
use tidegate_switch::stats::total;

/// Real-time traffic that was seen is taken to go on for so long: a guest with a pause in its traffic now and then must
/// not make the agent write to disk each time.
const GOES_ON: Duration = Duration::from_secs(10);

/// The CPUs of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// Those that run.
    pub online: Cpus,
    /// Those that were set apart when the machine started (`isolcpus=`, `nohz_full=`): they get no work by themselves.
    pub apart: Cpus,
}

/// Whether real-time frames go through the switch.
#[derive(Debug)]
pub struct Flow {
    /// Real-time frames delivered so far; `None` before the first look, which cannot tell when they were.
    delivered: Option<u64>,
    /// When that was last seen to grow.
    grew: Option<Instant>,
}

impl Flow {
    /// Before the first look; frames are taken to have flowed `at` that time, where it is known that they did.
    pub fn new(at: Option<Instant>) -> Self {
        Self { delivered: None, grew: at }
    }

    /// Looks at `now`.
    pub fn see(&mut self, now: Instant, evidence: &Evidence) -> bool {
        let delivered = total(evidence.vnics.values().map(|stats| stats.realtime_delivered));
        if self.delivered.replace(delivered).is_some_and(|before| delivered > before) {
            self.grew = Some(now);
        }
        self.grew.is_some_and(|grew| now.saturating_duration_since(grew) < GOES_ON)
    }
}

/// From what the switch says, whose word on CPUs is believed only where such a CPU is there, and what is ours of it.
pub fn situation(
    vnics: &BTreeMap<String, ObservedVnic>,
    evidence: &Evidence,
    machine: &Machine,
    flows: bool,
) -> Situation {
    let pinned = evidence.workers.iter().filter_map(|worker| usize::try_from(worker.cpu?).ok());
    let there = || vnics.values().filter(|there| there.present);
    let taps = there().filter(|there| there.ours).filter_map(|there| match &there.vnic.attach {
        Attach::Tap { name, netns } => Some((netns.clone(), name.clone(), there.vnic.queues)),
        _ => None,
    });
    Situation {
        workers: pinned.filter(|cpu| machine.online.contains(cpu)).collect(),
        deadline: there().any(|there| there.vnic.deadline.is_some()),
        others: machine.online.difference(&machine.apart).copied().collect(),
        flows,
        taps: taps.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Observed;
    use crate::testing::{tap, vnic};
    use tidegate_contract::{Nanos, Vnic};
    use tidegate_switch::control::Connection;
    use tidegate_switch::stats::{VnicStats, WorkerStats};

    #[test]
    fn only_taps_of_ours_and_cpus_that_run_count() {
        let machine = Machine { online: (0..4).collect(), apart: [2].into() };
        let mut evidence = Observed::nothing("a test").evidence;
        evidence.workers = [Some(1), Some(2), Some(9), Some(u64::MAX), None]
            .map(|cpu| WorkerStats { cpu, ..WorkerStats::default() })
            .into();
        let of = |vnic: Vnic| ObservedVnic::of(&vnic, Connection::Up);
        let ours = of(Vnic { attach: tap("a"), queues: 2, ..vnic("a", 1) });
        let theirs = ObservedVnic { ours: false, ..of(Vnic { attach: tap("b"), ..vnic("b", 2) }) };
        let mut vnics: BTreeMap<String, ObservedVnic> = [("a".into(), ours), ("b".into(), theirs)].into();
        let expected = Situation {
            workers: [1, 2].into(),
            others: [0, 1, 3].into(),
            deadline: false,
            flows: true,
            taps: vec![(None, "a".into(), 2)],
        };
        assert_eq!(situation(&vnics, &evidence, &machine, true), expected);
        let guest = Vnic { deadline: Some(Nanos::new(1_000_000)), ..vnic("c", 3) };
        vnics.insert("c".into(), ObservedVnic { present: false, ..of(guest.clone()) });
        assert!(!situation(&vnics, &evidence, &machine, true).deadline, "it is gone");
        vnics.insert("c".into(), of(guest));
        assert!(situation(&vnics, &evidence, &machine, true).deadline);
    }

    #[test]
    fn traffic_goes_on_for_a_while_after_it_was_seen() {
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
        assert!(flow.see(begin + GOES_ON / 2, &evidence(5)));
        assert!(!flow.see(begin + GOES_ON, &evidence(5)));
        // A switch that starts anew counts from 0.
        assert!(!flow.see(begin + GOES_ON, &evidence(0)));
        assert!(flow.see(begin + GOES_ON, &evidence(1)));
        // The agent before this one saw them.
        let mut flow = Flow::new(Some(begin));
        assert!(flow.see(begin, &evidence(5)));
        assert!(!flow.see(begin + GOES_ON, &evidence(5)));
    }
}
