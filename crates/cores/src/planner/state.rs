//! An assignment that is being built or changed, and its score, kept current with each stage that is placed or taken away.

use super::model::{Index, Model, NOWHERE, Role};
use super::score::{AWAY, OVERLOAD, Score};

/// Places of stages.
#[derive(Clone)]
pub struct State<'a> {
    /// The numbers.
    pub model: &'a Model,
    /// The place of each stage: a CPU, of a port its worker; [`NOWHERE`] if it is not placed.
    pub places: Vec<Index>,
    /// The CPU of each stage.
    pub cpus: Vec<Index>,
    /// The worker of each stage that is one, or a port of one.
    pub worker: Vec<Index>,
    /// The stages on each CPU.
    pub members: Vec<Vec<u32>>,
    /// Load of each CPU, millionths.
    pub load: Vec<i64>,
    /// The score of what is placed.
    pub score: Score,
    /// Insertions that were evaluated, each counted once for every [`VISITS`] stages on its CPU, and links.
    pub steps: u64,
    slot: Vec<u32>,
    units: Vec<i64>,
    realtime: Vec<Realtime>,
    ports: Vec<Ports>,
}

/// Counts real-time stages of a CPU: all, those that may be alone, and those whose siblings are to be idle.
type Realtime = [i64; 3];

/// A step visits up to so many other stages.
const VISITS: usize = 16;

/// The ports of a worker.
#[derive(Clone, Copy, Default)]
struct Ports {
    realtime: i64,
    other: i64,
}

impl Ports {
    /// Best-effort ports beside real-time ones.
    fn not_apart(self) -> i64 {
        if self.realtime > 0 { self.other } else { 0 }
    }
}

impl<'a> State<'a> {
    /// Nothing placed but the stages that are left alone.
    pub fn new(model: &'a Model) -> Self {
        let (cpus, stages) = (model.cpus.len(), model.stages.len());
        let mut state = Self {
            model,
            places: vec![NOWHERE; stages],
            cpus: vec![NOWHERE; stages],
            worker: vec![NOWHERE; stages],
            members: vec![vec![]; cpus],
            load: vec![0; cpus],
            score: Score::default(),
            steps: 0,
            slot: vec![0; stages],
            units: vec![0; cpus],
            realtime: vec![[0; 3]; cpus],
            ports: vec![Ports::default(); model.workers.len()],
        };
        for (at, stage) in model.stages.iter().enumerate() {
            if let Role::Worker(worker) = stage.role {
                state.worker[at] = worker;
            }
        }
        for (at, stage) in model.stages.iter().enumerate() {
            if !stage.movable && stage.present != NOWHERE {
                state.insert(at, stage.present);
            }
        }
        state
    }

    /// Returns whether all stages that the plan chooses for are placed.
    #[cfg(test)]
    pub fn complete(&self) -> bool {
        self.model.stages.iter().zip(&self.places).all(|(stage, place)| !stage.movable || *place != NOWHERE)
    }

    /// Returns the CPU that a place means for a stage.
    pub fn cpu_at(&self, stage: usize, place: Index) -> Index {
        match self.model.stages[stage].role {
            Role::Port => self.cpus[self.model.workers[usize::from(place)]],
            Role::Plain | Role::Worker(_) => place,
        }
    }

    /// Returns whether the stage, placed, would be a real-time stage with a CPU of its own wanted: a port is not, its worker is.
    pub fn is_realtime(&self, stage: usize) -> bool {
        let item = &self.model.stages[stage];
        match item.role {
            Role::Plain => item.realtime,
            Role::Port => false,
            Role::Worker(_) if !self.model.ports_decide => item.realtime,
            Role::Worker(worker) => self.ports[usize::from(worker)].realtime > 0,
        }
    }

    /// Returns what a stage counts once it is real-time.
    fn needs(&self, stage: usize) -> Realtime {
        let item = &self.model.stages[stage];
        [1, i64::from(item.may_be_alone), i64::from(item.quiet)]
    }

    /// Counts the steps of an evaluation of a stage on a CPU.
    fn step(&mut self, stage: usize, cpu: Index) {
        let members = self.members.get(usize::from(cpu)).map_or(0, Vec::len);
        self.steps += 1 + ((members + self.model.links[stage].len()) / VISITS) as u64;
    }

    /// Returns by how much the score grows if a stage that is not placed goes to a place.
    pub fn insertion(&mut self, stage: usize, place: Index) -> Score {
        self.step(stage, self.cpu_at(stage, place));
        let item = &self.model.stages[stage];
        let mut delta = Score {
            moves: i64::from(item.movable && item.in_force != NOWHERE && item.in_force != place),
            ..Score::default()
        };
        let cpu = self.cpu_at(stage, place);
        let worker = if item.role == Role::Port { place } else { self.worker[stage] };
        let mut units = 0;
        let mut realtime = [0; 3];
        match item.role {
            Role::Port => {
                let ports = self.ports[usize::from(place)];
                let after = ports.with(item.realtime, 1);
                delta.deadlines[1] = after.not_apart() - ports.not_apart();
                if ports.realtime == 0 && item.realtime {
                    realtime = self.needs(self.model.workers[usize::from(place)]);
                }
            }
            Role::Plain | Role::Worker(_) => {
                units = i64::from(item.counts);
                if self.is_realtime(stage) {
                    realtime = self.needs(stage);
                }
            }
        }
        if cpu == NOWHERE {
            return delta;
        }
        if (units, realtime) != (0, [0; 3]) {
            let [alone, beside] = self.deadlines_of_core(cpu, units, realtime);
            let [was_alone, was_beside] = self.deadlines_of_core(cpu, 0, [0; 3]);
            delta.deadlines[0] = alone - was_alone;
            delta.deadlines[2] = beside - was_beside;
        }
        delta.cost = if self.model.common[usize::from(cpu)] { realtime[1] } else { 0 };
        delta.cost += self.pairs(stage, cpu, worker) + self.core(cpu, item.load) - self.core(cpu, 0);
        delta
    }

    /// Returns the part of an insertion's cost that only grows while further stages are placed, without workers' ports.
    pub fn insertion_at_least(&mut self, stage: usize, place: Index) -> i64 {
        let cpu = self.cpu_at(stage, place);
        self.step(stage, cpu);
        if cpu == NOWHERE {
            return 0;
        }
        let item = &self.model.stages[stage];
        let worker = if item.role == Role::Port { place } else { self.worker[stage] };
        let (load, capacity) = (self.load[usize::from(cpu)], self.model.capacity[usize::from(cpu)]);
        let over = (load + item.load - capacity).max(0) - (load - capacity).max(0);
        self.pairs(stage, cpu, worker) + OVERLOAD * 1000 * over
    }

    /// Sharing, handover and locality of a stage on a CPU.
    fn pairs(&self, stage: usize, cpu: Index, worker: Index) -> i64 {
        let model = self.model;
        let item = &model.stages[stage];
        let sharing = &model.sharing[item.kind];
        let mut cost = 0;
        for other in &self.members[usize::from(cpu)] {
            let other = *other as usize;
            if worker == NOWHERE || self.worker[other] != worker {
                let beside = &model.stages[other];
                cost += sharing[beside.kind] * item.load.min(beside.load);
            }
        }
        for end in &model.links[stage] {
            let to = self.cpus[end.other];
            if to != NOWHERE {
                let kind = model.stages[end.other].kind;
                let distance = self.distance(cpu, to, item.kind, kind, worker == self.worker[end.other]);
                cost += model.handover(item.kind, kind, end.frames, distance);
            }
        }
        cost + self.locality(stage, cpu)
    }

    /// Returns the distance of two stages; two workers on one CPU are no nearer than siblings.
    pub fn distance(&self, cpu: Index, to: Index, kind: usize, other: usize, one_worker: bool) -> usize {
        let distance = self.model.distance(cpu, to);
        if distance == 0 && Model::of_workers(kind, other) && !one_worker { 1 } else { distance }
    }

    /// Returns the cost of a stage away from its NIC.
    pub fn locality(&self, stage: usize, cpu: Index) -> i64 {
        let item = &self.model.stages[stage];
        let away = item.node.is_some_and(|node| node != self.model.node[usize::from(cpu)]);
        if away { AWAY * item.load } else { 0 }
    }

    /// Siblings' loss and overload of the core of a CPU, with more load on that CPU.
    fn core(&self, cpu: Index, more: i64) -> i64 {
        let core = &self.model.cores[self.model.core[usize::from(cpu)]];
        core_cost(self.model, core, |at| self.load[usize::from(at)] + if at == cpu { more } else { 0 })
    }

    /// Real-time stages that are not alone, and those beside a sibling that is not idle, on the core of a CPU, with more stages and
    /// real-time stages on that CPU.
    fn deadlines_of_core(&self, cpu: Index, units: i64, realtime: Realtime) -> [i64; 2] {
        let model = self.model;
        let core = &model.cores[model.core[usize::from(cpu)]];
        let units_at = |at: Index| self.units[usize::from(at)] + if at == cpu { units } else { 0 };
        let mut sums = [0, 0];
        for at in core {
            let mut here = self.realtime[usize::from(*at)];
            if *at == cpu {
                here = add(here, realtime, 1);
            }
            let [all, may, quiet] = here;
            if all > 0 {
                sums[0] += if self.disturbed(*at, units_at(*at)) { all } else { all - may };
                if core.iter().any(|other| other != at && units_at(*other) > 0) {
                    sums[1] += quiet;
                }
            }
        }
        sums
    }

    fn disturbed(&self, cpu: Index, units: i64) -> bool {
        units > 1 || self.model.housekeeping[usize::from(cpu)] || self.model.intruded[usize::from(cpu)]
    }

    /// Returns whether a real-time stage has the CPU for itself.
    pub fn alone(&self, cpu: Index) -> bool {
        self.realtime[usize::from(cpu)][1] > 0 && !self.disturbed(cpu, self.units[usize::from(cpu)])
    }

    /// Places a stage that is not placed.
    pub fn insert(&mut self, stage: usize, place: Index) {
        let delta = self.insertion(stage, place);
        self.insert_known(stage, place, delta);
    }

    /// Places a stage that is not placed, with the score that [`State::insertion`] found since the last change.
    pub fn insert_known(&mut self, stage: usize, place: Index, delta: Score) {
        self.score += delta;
        self.count(stage, place, 1);
        let cpu = self.cpu_at(stage, place);
        self.places[stage] = place;
        self.cpus[stage] = cpu;
        if cpu != NOWHERE {
            let members = &mut self.members[usize::from(cpu)];
            self.slot[stage] = members.len() as u32;
            members.push(stage as u32);
            self.load[usize::from(cpu)] += self.model.stages[stage].load;
        }
    }

    /// Takes a stage away, and returns by how much the score fell. A worker's ports have to be taken away before.
    pub fn remove(&mut self, stage: usize) -> Score {
        let (place, cpu) = (self.places[stage], self.cpus[stage]);
        debug_assert!(place != NOWHERE, "only a stage that is placed can be taken away");
        if cpu != NOWHERE {
            let members = &mut self.members[usize::from(cpu)];
            let slot = self.slot[stage];
            members.swap_remove(slot as usize);
            if let Some(moved) = members.get(slot as usize) {
                self.slot[*moved as usize] = slot;
            }
            self.load[usize::from(cpu)] -= self.model.stages[stage].load;
        }
        self.count(stage, place, -1);
        self.places[stage] = NOWHERE;
        self.cpus[stage] = NOWHERE;
        let delta = self.insertion(stage, place);
        self.score -= delta;
        delta
    }

    fn count(&mut self, stage: usize, place: Index, by: i64) {
        let item = &self.model.stages[stage];
        let cpu = self.cpu_at(stage, place);
        match item.role {
            Role::Port => {
                let ports = &mut self.ports[usize::from(place)];
                let was = ports.realtime > 0;
                *ports = ports.with(item.realtime, by);
                let is = ports.realtime > 0;
                self.worker[stage] = if by > 0 { place } else { NOWHERE };
                if cpu != NOWHERE && is != was {
                    let needs = self.needs(self.model.workers[usize::from(place)]);
                    let realtime = &mut self.realtime[usize::from(cpu)];
                    *realtime = add(*realtime, needs, by);
                }
            }
            Role::Plain | Role::Worker(_) => {
                self.units[usize::from(cpu)] += by * i64::from(item.counts);
                if self.is_realtime(stage) {
                    let needs = self.needs(stage);
                    let realtime = &mut self.realtime[usize::from(cpu)];
                    *realtime = add(*realtime, needs, by);
                }
            }
        }
    }

    /// Returns the ports of a worker that is placed.
    pub fn ports_of(&self, stage: usize) -> Vec<usize> {
        let Role::Worker(worker) = self.model.stages[stage].role else { return vec![] };
        let ports = (0..self.places.len()).filter(|at| self.model.stages[*at].role == Role::Port);
        ports.filter(|at| self.places[*at] == worker).collect()
    }

    /// Moves a stage, a worker with its ports, and returns the score's difference.
    pub fn shift(&mut self, stage: usize, to: Index) -> Score {
        let before = self.score;
        if let Role::Worker(_) = self.model.stages[stage].role {
            self.steps += (self.places.len() / VISITS) as u64;
        }
        let ports = self.ports_of(stage);
        let from: Vec<Index> = ports.iter().map(|port| self.places[*port]).collect();
        ports.iter().for_each(|port| _ = self.remove(*port));
        if self.places[stage] != NOWHERE {
            self.remove(stage);
        }
        if to != NOWHERE {
            self.insert(stage, to);
        }
        ports.iter().zip(from).for_each(|(port, worker)| self.insert(*port, worker));
        self.score - before
    }
}

impl Ports {
    fn with(self, realtime: bool, by: i64) -> Self {
        if realtime {
            Self { realtime: self.realtime + by, ..self }
        } else {
            Self { other: self.other + by, ..self }
        }
    }
}

fn add(to: Realtime, what: Realtime, by: i64) -> Realtime {
    std::array::from_fn(|at| to[at] + by * what[at])
}

/// Returns the siblings' loss and the overload of one core, ns a second.
pub fn core_cost(model: &Model, core: &[Index], load: impl Fn(Index) -> i64) -> i64 {
    let mut cost = 0;
    for at in core {
        let own = load(*at);
        let busiest = core.iter().filter(|other| *other != at).map(|other| load(*other)).max().unwrap_or(0);
        let lost = model.sibling * own.min(busiest);
        let over = (own - model.capacity[usize::from(*at)]) * 1000 + lost;
        cost += lost + OVERLOAD * over.max(0);
    }
    cost
}
