//! Names of culprits. Pure.

use super::attribute::{Rank, Span};
use crate::culprit::noise::Interval;
use crate::culprit::noise::Noise;
use std::collections::BTreeMap;
use tidegate_evidence::{Culprit, CulpritKind};
use tidegate_switch::stats::{LongLoop, LoopPart};

/// An activity; equal ones count together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum What<'a> {
    /// A CPU was taken from a worker.
    Noise(u32, &'a Noise),
    /// The worker was in a loop.
    Loop(&'a LongLoop),
}

impl<'a> What<'a> {
    /// Returns the span of an interval.
    pub fn of_noise(interval: &'a Interval) -> Span<Self> {
        let rank = match &interval.noise {
            Noise::Task(_) | Noise::Idle => Rank::Task,
            Noise::Softirq { .. } | Noise::Interrupt(_) => Rank::Softirq,
            Noise::Stolen => Rank::Host,
        };
        let what = Self::Noise(interval.cpu, &interval.noise);
        Span { from: interval.from, to: interval.to, rank, what }
    }

    /// Returns the span of a worker's loop.
    pub fn of_loop(one: &'a LongLoop) -> Span<Self> {
        Span { from: one.began, to: one.ended, rank: Rank::Loop, what: Self::Loop(one) }
    }

    fn kind(self) -> CulpritKind {
        match self {
            Self::Loop(_) => CulpritKind::OwnLoop,
            Self::Noise(_, Noise::Task(_)) => CulpritKind::Task,
            Self::Noise(_, Noise::Idle) => CulpritKind::Idle,
            Self::Noise(_, Noise::Softirq { .. }) => CulpritKind::Softirq,
            Self::Noise(_, Noise::Interrupt(_)) => CulpritKind::Interrupt,
            Self::Noise(_, Noise::Stolen) => CulpritKind::Stolen,
        }
    }

    fn words(self) -> String {
        match self {
            Self::Noise(cpu, Noise::Task(task)) => format!("task {} ({}) on CPU {cpu}", task.name, task.pid),
            Self::Noise(cpu, Noise::Idle) => format!("idle CPU {cpu}, woken late,"),
            Self::Noise(cpu, Noise::Softirq { name, task: None }) => {
                format!("{name} in the worker's own time on CPU {cpu}")
            }
            // A kernel thread's name tells its CPU.
            Self::Noise(_, Noise::Softirq { name, task: Some(task) })
                if task.name.starts_with("ksoftirqd/") =>
            {
                format!("{} {name}", task.name)
            }
            Self::Noise(cpu, Noise::Softirq { name, .. }) => format!("{name} on CPU {cpu}"),
            Self::Noise(cpu, Noise::Interrupt(name)) => format!("interrupt {name} on CPU {cpu}"),
            Self::Noise(cpu, Noise::Stolen) => format!("the host, which had CPU {cpu},"),
            Self::Loop(one) => words_of_loop(one),
        }
    }
}

fn words_of_loop(one: &LongLoop) -> String {
    let port = one.port.as_deref().unwrap_or("a vNIC that is gone");
    let share = duration(one.share);
    let part = match one.part {
        LoopPart::Ingress => format!("{share} for frames of {port}"),
        LoopPart::Egress if one.bytes > 0 => format!("{share} for {} into {port}", bytes(one.bytes)),
        LoopPart::Egress => format!("{share} for frames into {port}"),
        LoopPart::Change => format!("{share} for changes of ports"),
        LoopPart::Crossing => format!("{share} for frames of other workers"),
        LoopPart::Completion => format!("{share} for completed frames"),
        LoopPart::Other => "no part of it was long".into(),
    };
    format!("own loop of {} ({part})", duration(one.ended.saturating_sub(one.began)))
}

/// Returns the culprit: the kind with the longest total time, by the name of its longest activity. `None`
/// without any time.
pub fn culprit(shares: &BTreeMap<Option<&What<'_>>, u64>) -> Option<Culprit> {
    let mut kinds = BTreeMap::<CulpritKind, (u64, Vec<(u64, Option<What<'_>>)>)>::new();
    for (what, ns) in shares {
        let what = what.copied();
        let (total, all) = kinds.entry(what.map_or(CulpritKind::Unexplained, What::kind)).or_default();
        *total += ns;
        all.push((*ns, what));
    }
    // Of equal ones the explained: it comes before.
    let (kind, (took, all)) = kinds.into_iter().rev().max_by_key(|(_, (total, _))| *total)?;
    let others = if all.len() > 1 { " and others" } else { "" };
    let (_, what) = all.into_iter().max()?;
    let what = what.map_or_else(|| "what is not explained".into(), |what| what.words() + others);
    Some(Culprit { kind: kind.label().into(), what, took })
}

/// Formats a time with three digits at most.
pub fn duration(ns: u64) -> String {
    match ns {
        0..10_000_000 => format!("{} us", ns / 1_000),
        _ => format!("{} ms", ns / 1_000_000),
    }
}

fn bytes(bytes: u64) -> String {
    if bytes < 10_000 { format!("{bytes} B") } else { format!("{} kB", bytes / 1_000) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::culprit::noise::Task;

    fn own_loop(number: u64) -> LongLoop {
        LongLoop {
            number,
            began: 100_000,
            ended: 512_000,
            part: LoopPart::Egress,
            port: Some("web".into()),
            share: 400_000,
            bytes: 64_999,
        }
    }

    #[test]
    fn culprits_are_called_by_their_names() {
        let words = |noise| What::Noise(2, &noise).words();
        let task = |name: &str| Task { pid: 7, name: name.into() };
        assert_eq!(words(Noise::Task(task("stress-ng"))), "task stress-ng (7) on CPU 2");
        let softirq = |task| words(Noise::Softirq { name: "NET_RX", task });
        assert_eq!(softirq(Some(task("ksoftirqd/2"))), "ksoftirqd/2 NET_RX");
        assert_eq!(softirq(Some(task("iperf"))), "NET_RX on CPU 2");
        assert_eq!(softirq(None), "NET_RX in the worker's own time on CPU 2");
        let own = own_loop(1);
        assert_eq!(What::Loop(&own).words(), "own loop of 412 us (400 us for 64 kB into web)");
    }

    #[test]
    fn the_culprit_is_the_kind_that_took_longest_in_total() {
        let (one, other, host) = (own_loop(1), own_loop(2), Noise::Stolen);
        let (one, other, host) = (What::Loop(&one), What::Loop(&other), What::Noise(3, &host));
        let of = |shares: &[(Option<&What<'_>>, u64)]| {
            let culprit = culprit(&shares.iter().copied().collect())?;
            Some((culprit.kind, culprit.what, culprit.took))
        };
        let (kind, what, took) =
            of(&[(Some(&one), 300), (Some(&other), 200), (Some(&host), 400), (None, 100)]).unwrap();
        assert_eq!((kind.as_str(), took), ("own_loop", 500));
        assert!(what.ends_with("into web) and others"), "{what}");
        let stolen = of(&[(Some(&host), 100), (None, 100)]).unwrap();
        assert_eq!(stolen, ("stolen".into(), "the host, which had CPU 3,".into(), 100));
        let unexplained = of(&[(Some(&host), 99), (None, 100)]).unwrap();
        assert_eq!((unexplained.0.as_str(), unexplained.2), ("unexplained", 100));
        assert_eq!(of(&[]), None);
    }
}
