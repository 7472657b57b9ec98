//! A lower bound: no assignment with the same isolation of deadlines costs less.
//!
//! The cost is a sum of parts; each part has a least value over *all* assignments, so their sum is a bound. In the parts, N is the number
//! of cores and C the number of CPUs that have stages; if the plan gives every real-time stage a CPU for itself, its work and its CPU
//! are left out of both, and it has no link within a CPU.
//!
//! **Core.** Two siblings with loads a ≥ b, capacity K and loss σ: the cost is 2σb + 4o, where the overload o is at least a + σb − K, and
//! at least a + b + 2σb − 2K. So a core of load L costs at least
//! g(L) = min over b of 2σb + 4 max(0, L − K − (1 − σ)b, L − 2K + 2σb). It is the value of a linear program, so g is convex in L, and N cores
//! with total load T cost at least N g(T / N).
//!
//! **Links.** Each link costs at least its frames at the best distance.
//!
//! **Sharing.** Of n stages with a load above x, some share a CPU (pigeonhole), and min(l, l') = ∫ [l > x][l' > x] dx. So a bound for each x
//! is integrated over x. Let n count the stages by kind, and W' be a positive semidefinite matrix nowhere above the costs of sharing W.
//! Then ½ Σ CPUs (mᵀW'm − Σ W'ₖₖmₖ) is convex in the numbers m on each CPU, and least if each has n / C of them. Another bound for each x is
//! the sum over kinds of the pairs that n stages of one kind have to form on C CPUs. The larger one counts.
//!
//! Two linked stages that share a CPU pay for sharing: it is counted either in the sharing part or in the links part, whichever gives
//! the larger sum. Stages of workers are left out of sharing.
//!
//! **Locality** costs at least the least over the usable CPUs' nodes.

use super::model::{Item, Model, NOWHERE, Role};
use super::score::{AWAY, OVERLOAD, WHOLE};
use crate::stage::Kind;
use std::collections::BTreeSet;

const KINDS: usize = Kind::ALL.len();

/// Returns the bound for assignments with these deadlines' numbers.
pub fn lower(model: &Model, deadlines: [i64; 3]) -> u64 {
    let scene = Scene::new(model, deadlines);
    let core = scene.cores();
    let sharing = scene.sharing();
    let [with, without] = scene.links();
    let linked = scene.linked_sharing();
    let (mut all, mut others) = (0.0, 0.0);
    for (level, linked) in sharing.iter().zip(&linked) {
        all += level.max(0.0);
        others += (level - linked).max(0.0);
    }
    let best = (without + all).max(with + others);
    // Rounding errors of sums of thousands of terms are far smaller.
    let sum = (core + best + scene.locality()) * (1.0 - 1.0e-9) - 1.0;
    sum.max(0.0) as u64
}

struct Scene<'a> {
    model: &'a Model,
    /// Whether real-time stages are alone, and have no stage beside them.
    alone: bool,
    beside: bool,
    cores: f64,
    cpus: f64,
    /// Stages that are placed and not real-time.
    ordinary: Vec<usize>,
    /// Loads at which the number of stages changes, descending, with the width to the next lower one.
    levels: Vec<(i64, f64)>,
}

impl<'a> Scene<'a> {
    fn new(model: &'a Model, deadlines: [i64; 3]) -> Self {
        let alone = deadlines[0] == 0 && deadlines[1] == 0;
        let beside = alone && deadlines[2] == 0;
        let placed = |at: &usize| {
            let item = &model.stages[*at];
            (item.movable || item.present != NOWHERE) && (item.role != Role::Port || !adrift(model))
        };
        let realtime = |at: usize| is_realtime(model, at);
        let stages = (0..model.stages.len()).filter(placed);
        let mut cpus: BTreeSet<_> = model.usable.iter().copied().collect();
        let fixed = |at: &usize| !model.stages[*at].movable && model.stages[*at].role != Role::Port;
        cpus.extend(stages.clone().filter(fixed).map(|at| model.stages[at].present));
        let cores: BTreeSet<_> = cpus.iter().map(|cpu| model.core[usize::from(*cpu)]).collect();
        let units = stages.clone().filter(|at| realtime(*at) && model.stages[*at].role != Role::Port).count();
        let ports = stages.clone().any(|at| realtime(at) && model.stages[at].role == Role::Port);
        let units = if alone { units + usize::from(ports) } else { 0 };
        let ordinary: Vec<usize> = stages.filter(|at| !(alone && realtime(*at))).collect();
        let mut loads: Vec<i64> =
            ordinary.iter().map(|at| model.stages[*at].load).filter(|load| *load > 0).collect();
        loads.sort_unstable();
        loads.dedup();
        let levels = (0..loads.len())
            .map(|at| (loads[at], (loads[at] - if at == 0 { 0 } else { loads[at - 1] }) as f64));
        Self {
            model,
            alone,
            beside,
            cores: cores.len().saturating_sub(if beside { units } else { 0 }).max(1) as f64,
            cpus: cpus.len().saturating_sub(units).max(1) as f64,
            ordinary,
            levels: levels.collect(),
        }
    }

    /// Siblings' loss and overload.
    fn cores(&self) -> f64 {
        let total: i64 = self.ordinary.iter().map(|at| self.model.stages[*at].load).sum();
        let load = total as f64 / self.cores;
        let over = f64::from(OVERLOAD as u32) * 1000.0;
        let (whole, taken) = (WHOLE as f64, self.model.sibling as f64);
        let loss = taken / 1000.0;
        let widest = self.model.cores.iter().map(Vec::len).max().unwrap_or(1);
        let each = match widest {
            0 | 1 => over * (load - whole).max(0.0),
            2 => {
                let cost = |b: f64| {
                    let most = (load - whole - (1.0 - loss) * b).max(load - 2.0 * whole + 2.0 * loss * b);
                    2.0 * taken * b + over * most.max(0.0)
                };
                // The least of a convex function of straight pieces is at a corner.
                let corners = [
                    0.0,
                    (load - whole) / (1.0 - loss).max(1.0e-6),
                    whole / (1.0 + loss),
                    (2.0 * whole - load) / (2.0 * loss).max(1.0e-6),
                ];
                corners.into_iter().filter(|b| *b >= 0.0).map(cost).fold(f64::INFINITY, f64::min)
            }
            _ => taken.min(over) * (load - whole).max(0.0),
        };
        each * self.cores
    }

    /// Handovers at their least, with and without what sharing a CPU costs.
    fn links(&self) -> [f64; 2] {
        let model = self.model;
        let mut sums = [0.0, 0.0];
        let adrift = adrift(model);
        for (stage, ends) in model.links.iter().enumerate() {
            let one = &model.stages[stage];
            for end in ends.iter().filter(|end| end.other > stage) {
                let other = &model.stages[end.other];
                let unknown = |item: &Item| !item.movable && item.present == NOWHERE;
                if unknown(one) || unknown(other) {
                    continue;
                }
                // A port is wherever its worker is, and that may be unknown.
                let workers = Model::of_workers(one.kind, other.kind);
                if adrift && (one.role == Role::Port || other.role == Role::Port) {
                    continue;
                }
                let realtime = is_realtime(model, stage) || is_realtime(model, end.other);
                let counts = |item: &Item| item.counts || item.role == Role::Port;
                let apart = self.alone && realtime && !workers && counts(one) && counts(other);
                let nearest = match (apart, self.beside) {
                    (false, _) => 0,
                    (true, false) => 1,
                    (true, true) => 2,
                };
                let sharing =
                    if workers { 0 } else { model.sharing[one.kind][other.kind] * one.load.min(other.load) };
                let at = |distance| model.handover(one.kind, other.kind, end.frames, distance);
                let least = |same: i64| {
                    (nearest..5)
                        .map(|distance| at(distance) + if distance == 0 { same } else { 0 })
                        .min()
                        .unwrap_or(0)
                };
                // Several links of one pair would count its sharing more than once.
                let twice = ends.iter().filter(|same| same.other == end.other).count() > 1;
                sums[0] += least(if twice { 0 } else { sharing }) as f64;
                sums[1] += least(0) as f64;
            }
        }
        sums
    }

    fn locality(&self) -> f64 {
        let model = self.model;
        let nodes: BTreeSet<u32> = model.usable.iter().map(|cpu| model.node[usize::from(*cpu)]).collect();
        let away = model.stages.iter().filter(|item| {
            let at = |node: u32| if item.movable { nodes.contains(&node) } else { false };
            item.movable && item.role == Role::Plain && item.node.is_some_and(|node| !at(node))
        });
        away.map(|item| (AWAY * item.load) as f64).sum()
    }

    /// The stages that count for sharing: not those of workers.
    fn sharers(&self) -> impl Iterator<Item = usize> {
        self.ordinary.iter().copied().filter(|at| self.model.stages[*at].kind != Kind::Worker as usize)
    }

    /// The sharing part of each level.
    fn sharing(&self) -> Vec<f64> {
        let (below, cpus) = (self.semidefinite(), self.cpus);
        let mut by_level = vec![0.0; self.levels.len()];
        let mut count = [0.0_f64; KINDS];
        let mut sorted: Vec<usize> = self.sharers().collect();
        sorted.sort_unstable_by_key(|at| std::cmp::Reverse(self.model.stages[*at].load));
        let mut next = sorted.into_iter().peekable();
        for (level, (load, width)) in self.levels.iter().enumerate().rev() {
            while let Some(at) = next.next_if(|at| self.model.stages[*at].load >= *load) {
                count[self.model.stages[at].kind] += 1.0;
            }
            let mut square = 0.0;
            let mut kinds = 0.0;
            for one in 0..KINDS {
                for other in 0..KINDS {
                    square += below[one][other] * count[one] * count[other];
                }
                square -= below[one][one] * count[one] * cpus;
                let each = (count[one] / cpus).floor();
                let rest = count[one] - each * cpus;
                let pairs = cpus * each * (each - 1.0) / 2.0 + rest * each;
                kinds += self.model.sharing[one][one] as f64 * pairs;
            }
            by_level[level] = width * (square / (2.0 * cpus)).max(kinds).max(0.0);
        }
        by_level
    }

    /// What linked stages may have of the sharing part of each level.
    fn linked_sharing(&self) -> Vec<f64> {
        let model = self.model;
        let ordinary: BTreeSet<usize> = self.sharers().collect();
        let mut by_level = vec![0.0; self.levels.len()];
        for stage in &ordinary {
            let mut others: Vec<usize> = model.links[*stage].iter().map(|end| end.other).collect();
            others.sort_unstable();
            others.dedup();
            for other in others.into_iter().filter(|other| other > stage && ordinary.contains(other)) {
                let (one, other) = (&model.stages[*stage], &model.stages[other]);
                let load = one.load.min(other.load);
                if let Some(level) = self.levels.iter().position(|(at, _)| *at == load) {
                    by_level[level] += model.sharing[one.kind][other.kind] as f64;
                }
            }
        }
        // A pair counts in each level up to the smaller load.
        let mut sum = 0.0;
        for (level, (_, width)) in self.levels.iter().enumerate().rev() {
            sum += by_level[level];
            by_level[level] = sum * width;
        }
        by_level
    }

    /// A positive semidefinite matrix nowhere above the costs of sharing.
    fn semidefinite(&self) -> [[f64; KINDS]; KINDS] {
        let sharing = |one: usize, other: usize| self.model.sharing[one][other] as f64;
        let scaled = |part: f64| {
            let mut matrix = [[0.0; KINDS]; KINDS];
            for (one, row) in matrix.iter_mut().enumerate() {
                for (other, cell) in row.iter_mut().enumerate() {
                    let most = (sharing(one, one) * sharing(other, other)).sqrt();
                    *cell =
                        if one == other { sharing(one, one) } else { part * sharing(one, other).min(most) };
                }
            }
            matrix
        };
        (0..=100).rev().map(|part| scaled(f64::from(part) / 100.0)).find(is_semidefinite).unwrap_or_default()
    }
}

/// Whether a worker's CPU is unknown.
fn adrift(model: &Model) -> bool {
    model.workers.iter().any(|at| !model.stages[*at].movable && model.stages[*at].present == NOWHERE)
}

/// Whether a stage is real-time by itself; of a worker, ports decide.
fn is_realtime(model: &Model, stage: usize) -> bool {
    let item = &model.stages[stage];
    item.realtime && (!model.ports_decide || !matches!(item.role, Role::Worker(_)))
}

/// Decides by elimination; rows of zeros pass.
fn is_semidefinite(matrix: &[[f64; KINDS]; KINDS]) -> bool {
    let mut rest = *matrix;
    for pivot in 0..KINDS {
        if rest[pivot][pivot] < 1.0e-6 {
            if rest[pivot].iter().skip(pivot).any(|cell| cell.abs() > 1.0e-9) {
                return false;
            }
            continue;
        }
        for row in pivot + 1..KINDS {
            let factor = rest[row][pivot] / rest[pivot][pivot];
            for column in pivot..KINDS {
                rest[row][column] -= factor * rest[pivot][column];
            }
        }
    }
    true
}
