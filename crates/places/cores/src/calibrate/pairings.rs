//! Which placements are compared on a machine, beside the original's findings. Pure.
//!
//! ```text
//!  machine, permitted CPUs ─▶ for each distance that it has: a pair of CPUs ─▶ pairings: two layouts each
//!                                                                       └─▶ those that it cannot have, and why
//! ```

use super::layout::{Flow, Layout, Window};
use std::collections::BTreeMap;
use tidegate_cores::cpus::Cpus;
use tidegate_cores::machine::{Distance, Machine};
use tidegate_cores::stage::Kind;

/// The part of a CPU's time beyond which other programs leave nothing to measure.
const FULL: f64 = 0.9;

/// Two placements to compare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pairing {
    /// The compared pair.
    pub pair: Pair,
    /// How far the stages are from each other in the second placement.
    pub distance: Distance,
    /// Both stages on one CPU.
    pub together: Layout,
    /// Each on its own.
    pub apart: Layout,
}

/// Pairs of stages, each with a question of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pair {
    /// The sender, and the stack that receives: a frame goes from one to the other.
    TransmitSoft,
    /// The stack, and the receiver that stands for a virtual CPU.
    SoftVcpu,
    /// The stack for two flows.
    SoftSoft,
    /// Two receivers.
    VcpuVcpu,
    /// A polling worker, and the receiver to which it hands frames.
    WorkerVcpu,
    /// Two polling workers, by a cache line that goes to and fro.
    WorkerWorker,
    /// A polling worker, and the stack.
    WorkerSoft,
    /// Two SMT siblings that copy; the first placement has both busy, the second one of them.
    Siblings,
}

/// The value that is compared; less is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// CPU time of all stages for a frame, ns.
    CpuOfFrame,
    /// Time from one frame to the next, ns.
    TimeOfFrame,
    /// Time of a round trip or a copy, ns.
    TimeOfTurn,
}

impl Pair {
    /// Returns the kinds of the two stages.
    pub fn kinds(self) -> [Kind; 2] {
        match self {
            Self::TransmitSoft => [Kind::Transmit, Kind::SoftIrq],
            Self::SoftVcpu => [Kind::SoftIrq, Kind::Vcpu],
            Self::SoftSoft => [Kind::SoftIrq, Kind::SoftIrq],
            Self::VcpuVcpu => [Kind::Vcpu, Kind::Vcpu],
            Self::WorkerVcpu => [Kind::Worker, Kind::Vcpu],
            Self::WorkerWorker | Self::Siblings => [Kind::Worker, Kind::Worker],
            Self::WorkerSoft => [Kind::Worker, Kind::SoftIrq],
        }
    }

    /// Returns the two stages in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::TransmitSoft => "transmission and softirq of a flow",
            Self::SoftVcpu => "softirq and vCPU of a flow",
            Self::SoftSoft => "softirqs of two flows",
            Self::VcpuVcpu => "vCPUs of two flows",
            Self::WorkerVcpu => "polling worker and vCPU",
            Self::WorkerWorker => "two polling workers",
            Self::WorkerSoft => "polling worker and softirq",
            Self::Siblings => "two SMT siblings busy",
        }
    }

    /// Returns what the paper on VSE's CPU allocation model found of the pair.
    pub fn finding(self) -> &'static str {
        match self {
            Self::SoftVcpu => "together: less than 5 Gbit/s of 40",
            Self::SoftSoft => "together: slower, worse than two vhost-nets; apart: no harm, also of one VM",
            _ => "none",
        }
    }

    /// Returns what is compared.
    pub fn value(self) -> Value {
        match self {
            Self::TransmitSoft | Self::SoftVcpu | Self::SoftSoft | Self::VcpuVcpu => Value::CpuOfFrame,
            Self::WorkerVcpu => Value::TimeOfFrame,
            Self::WorkerWorker | Self::WorkerSoft | Self::Siblings => Value::TimeOfTurn,
        }
    }

    /// Whether there are two placements to compare; of workers on one CPU there is no time to measure.
    pub fn is_compared(self) -> bool {
        self != Self::WorkerWorker
    }

    /// Whether a network is needed.
    pub fn needs_network(self) -> bool {
        matches!(self.value(), Value::CpuOfFrame) || self == Self::WorkerSoft
    }
}

impl Value {
    /// Returns the value of a window, less what `background`, part of each CPU's time, used anyway; `None` if nothing was measured.
    pub fn of(self, window: &Window, background: &BTreeMap<usize, f64>) -> Option<f64> {
        let each = |what: f64, number: f64| (number > 0.0).then(|| what / number);
        match self {
            // Of a CPU that other programs fill, its used time says nothing.
            Self::CpuOfFrame if window.used.keys().any(|cpu| background.get(cpu) > Some(&FULL)) => None,
            Self::CpuOfFrame => each(used(window, background, window.used.keys()), window.frames),
            Self::TimeOfFrame => each(window.span, window.frames),
            Self::TimeOfTurn => each(window.span, window.turns),
        }
    }
}

/// Returns the CPU time that a window used on some CPUs, less the background, ns.
pub fn used<'a>(
    window: &Window,
    background: &BTreeMap<usize, f64>,
    cpus: impl IntoIterator<Item = &'a usize>,
) -> f64 {
    let of = |cpu: &usize| {
        let used = window.used.get(cpu).copied().unwrap_or(0.0);
        (used - background.get(cpu).copied().unwrap_or(0.0) * window.span).max(0.0)
    };
    cpus.into_iter().map(of).sum()
}

/// The machine's pairings, and the pairs that cannot be measured there, with the reason.
pub fn pairings(machine: &Machine, permitted: &Cpus) -> (Vec<Pairing>, Vec<(Pair, String)>) {
    let cpus: Vec<usize> = machine.cpus.keys().copied().filter(|cpu| permitted.contains(cpu)).collect();
    let mut found = vec![];
    let mut missing = vec![];
    for distance in [Distance::Sibling, Distance::Cache, Distance::Node, Distance::Remote] {
        let Some((a, b)) = pair_at(machine, &cpus, distance) else { continue };
        // A third CPU for what is not compared, as far from the first as the second if there is one.
        let mut others = cpus.iter().copied().filter(|cpu| ![a, b].contains(cpu));
        let third = others.clone().find(|cpu| machine.distance(b, *cpu) == distance);
        let third = third.or_else(|| others.next());
        let flow = |transmit, soft, receiver| Flow { transmit, soft, receiver };
        let one = |of| Layout::flows(&[of]);
        found.push(Pairing {
            pair: Pair::TransmitSoft,
            distance,
            together: one(flow(a, a, a)),
            apart: one(flow(a, b, b)),
        });
        found.push(Pairing {
            pair: Pair::SoftVcpu,
            distance,
            together: one(flow(third.unwrap_or(b), a, a)),
            apart: one(flow(third.unwrap_or(b), a, b)),
        });
        found.push(Pairing {
            pair: Pair::WorkerVcpu,
            distance,
            together: Layout { handed: Some((a, a)), ..Layout::default() },
            apart: Layout { handed: Some((a, b)), ..Layout::default() },
        });
        let line = Layout { line: Some((a, b)), ..Layout::default() };
        found.push(Pairing { pair: Pair::WorkerWorker, distance, together: line.clone(), apart: line });
        if distance == Distance::Sibling {
            let copies = |copies: &[usize]| Layout { copies: copies.to_vec(), ..Layout::default() };
            found.push(Pairing {
                pair: Pair::Siblings,
                distance,
                together: copies(&[a, b]),
                apart: copies(&[a]),
            });
        }
        // Sharing does not depend on the distance: once, at the nearest that is not one core.
        let Some(c) = third.filter(|_| distance != Distance::Sibling) else { continue };
        if found.iter().any(|pairing| pairing.pair == Pair::SoftSoft) {
            continue;
        }
        let two = |one, other| Layout::flows(&[one, other]);
        found.push(Pairing {
            pair: Pair::SoftSoft,
            distance,
            together: two(flow(c, a, c), flow(c, a, c)),
            apart: two(flow(c, a, c), flow(c, b, c)),
        });
        found.push(Pairing {
            pair: Pair::VcpuVcpu,
            distance,
            together: two(flow(c, c, a), flow(c, c, a)),
            apart: two(flow(c, c, a), flow(c, c, b)),
        });
        let beside = |cpu| Layout { copies: vec![cpu], ..Layout::flows(&[flow(c, a, c)]) };
        found.push(Pairing { pair: Pair::WorkerSoft, distance, together: beside(a), apart: beside(b) });
    }
    for pair in [Pair::SoftSoft, Pair::VcpuVcpu, Pair::WorkerSoft] {
        if !found.iter().any(|pairing| pairing.pair == pair) {
            let reason =
                "it takes three CPUs: two for the pair, and one for the other stages of both placements";
            missing.push((pair, reason.to_owned()));
        }
    }
    (found, missing)
}

/// Two CPUs at a distance; not CPU 0, where the kernel works, if there are others.
fn pair_at(machine: &Machine, cpus: &[usize], distance: Distance) -> Option<(usize, usize)> {
    let pairs = cpus.iter().flat_map(|a| cpus.iter().map(move |b| (*a, *b)));
    let mut fitting = pairs.filter(|(a, b)| a < b && machine.distance(*a, *b) == distance);
    let first = fitting.next();
    fitting.find(|(a, _)| *a != 0).or(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_cores::machine::Cpu;

    fn machine(cpus: &[(u32, u32, u32)]) -> Machine {
        let cpu = |(core, cache, node): &(u32, u32, u32)| Cpu {
            core: *core,
            cache: *cache,
            node: *node,
            isolated: false,
        };
        Machine { cpus: cpus.iter().map(cpu).enumerate().collect(), ..Machine::default() }
    }

    fn pairs(found: &[Pairing]) -> Vec<(Pair, Distance)> {
        found.iter().map(|p| (p.pair, p.distance)).collect()
    }

    #[test]
    fn two_cpus_cannot_share_and_stay_apart() {
        let two = machine(&[(0, 0, 0), (1, 0, 0)]);
        let (found, missing) = pairings(&two, &two.online());
        let here = [Pair::TransmitSoft, Pair::SoftVcpu, Pair::WorkerVcpu, Pair::WorkerWorker];
        assert_eq!(pairs(&found), here.map(|pair| (pair, Distance::Cache)));
        assert_eq!(missing.len(), 3);
        assert!(missing.iter().all(|(_, reason)| reason.contains("three CPUs")));
        let (none, _) = pairings(&machine(&[(0, 0, 0)]), &Cpus::from([0]));
        assert!(none.is_empty());
        assert!(pairings(&two, &Cpus::from([1])).0.is_empty(), "a CPU that may not be used");
    }

    #[test]
    fn each_distance_of_the_machine_is_measured() {
        // Two nodes, of two caches each, of two cores each, of two siblings each.
        let all: Vec<_> = (0..16).map(|cpu| (cpu / 2, cpu / 4, cpu / 8)).collect();
        let machine = machine(&all);
        let (found, missing) = pairings(&machine, &machine.online());
        assert!(missing.is_empty());
        for distance in [Distance::Sibling, Distance::Cache, Distance::Node, Distance::Remote] {
            let at = found.iter().filter(|pairing| pairing.distance == distance);
            let (flows, others): (Vec<_>, Vec<_>) = at.partition(|pairing| pairing.pair.needs_network());
            assert!(flows.len() >= 2 && others.len() >= 2, "{distance:?}");
        }
        assert!(pairs(&found).contains(&(Pair::Siblings, Distance::Sibling)));
        assert_eq!(found.iter().filter(|pairing| pairing.pair == Pair::SoftSoft).count(), 1);
        for pairing in &found {
            for flow in pairing.apart.flows.iter().filter(|_| pairing.pair == Pair::SoftVcpu) {
                assert_eq!(machine.distance(flow.soft, flow.receiver), pairing.distance);
            }
        }
    }

    #[test]
    fn the_background_is_not_the_flow_s() {
        let used = BTreeMap::from([(0, 600.0), (1, 300.0)]);
        let window = Window { span: 1_000.0, frames: 2.0, used, ..Window::default() };
        let background = BTreeMap::from([(0, 0.1), (1, 0.9)]);
        assert_eq!(Value::CpuOfFrame.of(&window, &background), Some(250.0));
        assert_eq!(Value::TimeOfFrame.of(&window, &background), Some(500.0));
        assert_eq!(Value::TimeOfTurn.of(&window, &background), None, "nothing turned");
    }
}
