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
//! **Sharing** of CPUs has the bound of [`super::crowding`].
//!
//! Both meet: a core whose one CPU idles loses nothing to siblings, and shares more. For 0 ≤ λ ≤ 4, 4 max(0, z) ≥ λz, so a core costs at
//! least λ(L − K) + (2σ − λ(1 − σ)) min(a, b). Its second half is the price of siblings' time in the sharing part; several λ are tried.
//!
//! Two linked stages that share a CPU pay for sharing, too. For each pair of kinds it is counted either here or there, whichever gives the
//! larger sum. Stages of workers are left out of sharing.
//!
//! **Locality** costs at least the least over the usable CPUs' nodes.

use super::crowding::{Crowd, Room};
use super::model::{Item, Model, NOWHERE, Role};
use super::score::{AWAY, OVERLOAD, WHOLE};
use crate::stage::Kind;
use std::collections::BTreeSet;

const WORKER: usize = Kind::Worker as usize;

/// Returns the bound for assignments with these deadlines' numbers.
pub fn lower(model: &Model, deadlines: [i64; 3]) -> u64 {
    let scene = Scene::new(model, deadlines);
    let crowd = scene.crowd();
    let plain = Room::Cpus(scene.cpus);
    let with = |counted: &Kinds| crowd.least(plain, counted) + scene.links(counted);
    // Pairs of kinds whose links pay for sharing.
    let mut counted = Kinds::new();
    let mut sharing = with(&counted);
    for pair in scene.linked_kinds() {
        counted.insert(pair);
        let sum = with(&counted);
        if sum > sharing {
            sharing = sum;
        } else {
            counted.remove(&pair);
        }
    }
    let mut best = scene.overload() + sharing as f64;
    for (price, core) in scene.prices() {
        let together = crowd.least(Room::Cores(scene.cores, price), &counted) + scene.links(&counted);
        best = best.max(core + together as f64);
    }
    // Rounding errors of sums of thousands of terms are far smaller.
    let sum = (best + scene.locality()) * (1.0 - 1.0e-9) - 1.0;
    sum.max(0.0) as u64
}

/// Pairs of kinds, the smaller number first.
type Kinds = BTreeSet<(usize, usize)>;

struct Scene<'a> {
    model: &'a Model,
    /// Whether real-time stages are alone, and have no stage beside them.
    alone: bool,
    beside: bool,
    cores: i64,
    cpus: i64,
    /// Stages that are placed and not real-time.
    ordinary: Vec<usize>,
}

impl<'a> Scene<'a> {
    fn new(model: &'a Model, deadlines: [i64; 3]) -> Self {
        let alone = deadlines[0] == 0 && deadlines[1] == 0;
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
        // Any worker may be the one with the real-time ports.
        let apart = |at: usize| realtime(at) || ports && matches!(model.stages[at].role, Role::Worker(_));
        // Stages that may be alone, but not in a quiet core, do not count as beside another.
        let is_quiet = |item: &Item| item.role == Role::Port || !item.may_be_alone || item.quiet;
        let beside = alone
            && deadlines[2] == 0
            && stages.clone().filter(|at| apart(*at)).all(|at| is_quiet(&model.stages[at]));
        let ordinary: Vec<usize> = stages.filter(|at| !(alone && apart(*at))).collect();
        // A core of a real-time stage that has nothing beside it is whole.
        let of = |core: &usize| model.cores[*core].iter().filter(|cpu| cpus.contains(cpu)).count();
        let taken = if beside { cores.iter().map(of).min().unwrap_or(1) } else { 1 };
        Self {
            model,
            alone,
            beside,
            cores: cores.len().saturating_sub(if beside { units } else { 0 }).max(1) as i64,
            cpus: cpus.len().saturating_sub(units * taken).max(1) as i64,
            ordinary,
        }
    }

    /// Siblings' loss and overload, by themselves.
    fn overload(&self) -> f64 {
        let total: i64 = self.ordinary.iter().map(|at| self.model.stages[*at].load).sum();
        let load = total as f64 / self.cores as f64;
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
        each * self.cores as f64
    }

    /// Prices of siblings' time for the sharing part, and what cores cost beside that.
    fn prices(&self) -> Vec<(i64, f64)> {
        if self.model.cores.iter().map(Vec::len).max() != Some(2) {
            return vec![];
        }
        let total: i64 = self.ordinary.iter().map(|at| self.model.stages[*at].load).sum();
        let (twice, loss) = (2.0 * self.model.sibling as f64, self.model.sibling as f64 / 1000.0);
        let beyond = (total - WHOLE * self.cores) as f64;
        let of = |part: i32| {
            let full = twice / (1.0 - loss).max(1.0e-6);
            let over = (full * f64::from(part) / 8.0).min(f64::from(OVERLOAD as u32) * 1000.0);
            let price = (twice - over * (1.0 - loss)).max(0.0).floor() as i64;
            (price, over * beyond)
        };
        (0..=8).map(of).collect()
    }

    /// Handovers at their least, with what sharing a CPU costs those kinds for which it is counted here.
    fn links(&self, counted: &Kinds) -> i64 {
        let model = self.model;
        let mut sum = 0;
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
                // Several links of one pair would count its sharing more than once.
                let once = ends.iter().filter(|same| same.other == end.other).count() == 1;
                let here = once && counted.contains(&(one.kind.min(other.kind), one.kind.max(other.kind)));
                let sharing =
                    if here { model.sharing[one.kind][other.kind] * one.load.min(other.load) } else { 0 };
                let at = |distance| model.handover(one.kind, other.kind, end.frames, distance);
                let each =
                    (nearest..5).map(|distance| at(distance) + if distance == 0 { sharing } else { 0 });
                sum += each.min().unwrap_or(0);
            }
        }
        sum
    }

    /// Pairs of kinds with links, but for those of workers.
    fn linked_kinds(&self) -> Kinds {
        let model = self.model;
        let all = model.links.iter().enumerate().flat_map(|(stage, ends)| {
            let kind = model.stages[stage].kind;
            ends.iter().map(move |end| (kind, model.stages[end.other].kind))
        });
        all.filter(|(one, other)| one < other && *one != WORKER && *other != WORKER).collect()
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

    /// The stages that share CPUs: not those of workers.
    fn crowd(&self) -> Crowd<'a> {
        let stages =
            self.ordinary.iter().map(|at| &self.model.stages[*at]).filter(|item| item.kind != WORKER);
        Crowd::new(stages.map(|item| (item.load, item.kind)).collect(), &self.model.sharing)
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
