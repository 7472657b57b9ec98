//! A [`Problem`] in numbers: CPUs, stages and workers by index, so that the search looks nothing up.

use super::score::{HOUSEKEEPING, INTRUDES, MOST_LOAD, WHOLE};
use crate::cpus::Cpus;
use crate::machine::Distance;
use crate::problem::{Assignment, Problem};
use crate::stage::{Handle, Kind, Stage};
use std::collections::{BTreeMap, HashMap};

/// A CPU by its index in [`Model::cpus`]; a worker by its index in [`Model::workers`].
pub type Index = u16;

/// No CPU, no worker.
pub const NOWHERE: Index = Index::MAX;

/// The problem's numbers.
pub struct Model {
    /// The kernel's numbers of the online CPUs, ascending.
    pub cpus: Vec<usize>,
    /// The CPUs of each core.
    pub cores: Vec<Vec<Index>>,
    /// The core of each CPU, by index in `cores`.
    pub core: Vec<usize>,
    /// The NUMA node of each CPU.
    pub node: Vec<u32>,
    /// The last level of cache of each CPU.
    pub cache: Vec<u32>,
    /// Capacity of each CPU, millionths.
    pub capacity: Vec<i64>,
    /// Whether each CPU is for other work.
    pub housekeeping: Vec<bool>,
    /// Whether a stage that is left alone, and that [intrudes](intrudes), may run on each CPU beside those where it is counted.
    pub intruded: Vec<bool>,
    /// Whether each CPU is not set apart (`isolcpus=`), although other usable ones are.
    pub common: Vec<bool>,
    /// CPUs that stages may be given.
    pub usable: Vec<Index>,
    /// Real-time stages that may have a CPU for themselves.
    pub most_alone: usize,
    /// The stages, in the problem's order.
    pub stages: Vec<Item>,
    /// The stages that are workers.
    pub workers: Vec<usize>,
    /// All workers, by index: where a port may go.
    every_worker: Vec<Index>,
    /// Whether a worker is real-time because of its ports alone.
    pub ports_decide: bool,
    /// Links of each stage.
    pub links: Vec<Vec<End>>,
    /// Sharing, thousandths, by kinds.
    pub sharing: [[i64; KINDS]; KINDS],
    handover: [[[i64; DISTANCES]; KINDS]; KINDS],
    /// What a busy sibling takes, thousandths.
    pub sibling: i64,
    distance: Vec<u8>,
}

const KINDS: usize = Kind::ALL.len();
const DISTANCES: usize = Distance::ALL.len();
/// Of ports of one worker.
const WORKER: usize = Kind::Worker as usize;

/// One stage.
#[derive(Clone, Debug)]
pub struct Item {
    /// [`Kind`] by number.
    pub kind: usize,
    /// Millionths.
    pub load: i64,
    /// Whether a deadline depends on it.
    pub realtime: bool,
    /// The node of its NIC.
    pub node: Option<u32>,
    /// What is chosen for it.
    pub role: Role,
    /// Whether the plan chooses; a pinned port goes wherever its worker goes.
    pub movable: bool,
    /// Whether another program chose, and its choice stays.
    pub pinned: bool,
    /// Whether it disturbs a real-time stage on its CPU: all but stages that are left alone, have no deadline, and do nothing or hardly
    /// anything on each of several CPUs.
    pub counts: bool,
    /// Whether it may have a CPU for itself once it is real-time.
    pub may_be_alone: bool,
    /// Whether siblings of its CPU are to be idle once it is real-time.
    pub quiet: bool,
    /// Its place if it is not movable, or its place at present: a CPU, for a port its worker.
    pub present: Index,
    /// Its place in force.
    pub in_force: Index,
}

/// What is chosen for a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A CPU.
    Plain,
    /// A CPU, for it and its ports; its index among workers.
    Worker(Index),
    /// A worker.
    Port,
}

/// One end of a link.
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// The stage at the other end.
    pub other: usize,
    /// Frames a second.
    pub frames: i64,
}

impl Model {
    /// Translates a problem; `housekeeping` are the given or chosen CPUs for other work.
    pub fn new(problem: &Problem, housekeeping: &Cpus) -> Self {
        let machine = &problem.machine;
        let cpus: Vec<usize> = machine.cpus.keys().copied().take(usize::from(NOWHERE)).collect();
        let index: HashMap<usize, Index> =
            cpus.iter().enumerate().map(|(at, cpu)| (*cpu, at as Index)).collect();
        let mut by_core = BTreeMap::<u32, Vec<Index>>::new();
        for (at, cpu) in machine.cpus.values().enumerate().take(cpus.len()) {
            by_core.entry(cpu.core).or_default().push(at as Index);
        }
        let cores: Vec<_> = by_core.into_values().collect();
        let mut core = vec![0; cpus.len()];
        for (number, members) in cores.iter().enumerate() {
            members.iter().for_each(|cpu| core[usize::from(*cpu)] = number);
        }
        let of = |f: fn(&crate::machine::Cpu) -> u32| {
            cpus.iter().map(|cpu| f(&machine.cpus[cpu])).collect::<Vec<_>>()
        };
        let distance =
            cpus.iter().flat_map(|a| cpus.iter().map(|b| machine.distance(*a, *b) as u8)).collect::<Vec<_>>();
        let apart: Vec<bool> = cpus.iter().map(|cpu| housekeeping.contains(cpu)).collect();
        let mut model = Self {
            capacity: apart.iter().map(|h| if *h { HOUSEKEEPING } else { WHOLE }).collect(),
            housekeeping: apart,
            intruded: vec![false; cpus.len()],
            common: vec![false; cpus.len()],
            most_alone: 0,
            usable: problem.usable.iter().filter_map(|cpu| index.get(cpu).copied()).collect(),
            node: of(|cpu| cpu.node),
            cache: of(|cpu| cpu.cache),
            cpus,
            cores,
            core,
            stages: Vec::with_capacity(problem.stages.len()),
            workers: vec![],
            every_worker: vec![],
            ports_decide: problem.stages.iter().any(|stage| matches!(stage.handle, Handle::Port(_))),
            links: vec![vec![]; problem.stages.len()],
            sharing: [[0; KINDS]; KINDS],
            handover: [[[0; DISTANCES]; KINDS]; KINDS],
            sibling: i64::from(problem.costs.sibling.min(1000)),
            distance,
        };
        model.costs(problem);
        model.add_stages(problem, &index);
        model.add_links(problem);
        let apart = |cpu: &Index| machine.cpus[&model.cpus[usize::from(*cpu)]].isolated;
        if model.usable.iter().any(apart) {
            model.common = model.cpus.iter().map(|cpu| !machine.cpus[cpu].isolated).collect();
        }
        model.choose_alone();
        model
    }

    fn costs(&mut self, problem: &Problem) {
        for pair in &problem.costs.pairs {
            for (a, b) in [(pair.one, pair.other), (pair.other, pair.one)] {
                self.sharing[a as usize][b as usize] = i64::from(pair.sharing.min(10_000));
                self.handover[a as usize][b as usize] = pair.handover.map(i64::from);
            }
        }
    }

    fn add_stages(&mut self, problem: &Problem, index: &HashMap<usize, Index>) {
        let nics = &problem.machine.nics;
        let worker_numbers: BTreeMap<usize, Index> = problem
            .stages
            .iter()
            .filter_map(|stage| if let Handle::Worker(number) = stage.handle { Some(number) } else { None })
            .zip(0..)
            .collect();
        // As a scheduler spreads threads: the largest first, each to the idlest of its CPUs.
        let mut busy = vec![0_i64; self.cpus.len()];
        let mut order: Vec<usize> = (0..problem.stages.len()).collect();
        order.sort_by_key(|at| {
            (problem.stages[*at].present.len(), std::cmp::Reverse(problem.stages[*at].load))
        });
        let mut spread = vec![NOWHERE; problem.stages.len()];
        for at in order {
            let stage = &problem.stages[at];
            let may = stage.present.iter().filter_map(|cpu| index.get(cpu).copied());
            if let Some(cpu) = may.min_by_key(|cpu| busy[usize::from(*cpu)]) {
                busy[usize::from(cpu)] += i64::from(stage.load.min(MOST_LOAD));
                spread[at] = cpu;
            }
        }
        for (stage, cpu) in problem.stages.iter().zip(spread) {
            let pinned = stage.pinned_by.is_some() && !problem.adopt;
            let (role, in_force) = match &stage.handle {
                Handle::Port(vnic) if !worker_numbers.is_empty() => {
                    let worker = problem.in_force.workers.get(vnic).and_then(|w| worker_numbers.get(w));
                    (Role::Port, worker.copied().unwrap_or(NOWHERE))
                }
                other => {
                    let cpu = problem.in_force.cpus.get(other).and_then(|cpu| index.get(cpu));
                    let cpu = cpu.copied().filter(|cpu| self.usable.contains(cpu)).unwrap_or(NOWHERE);
                    match other {
                        Handle::Worker(number) => (Role::Worker(worker_numbers[number]), cpu),
                        _ => (Role::Plain, cpu),
                    }
                }
            };
            if let Role::Worker(worker) = role {
                self.workers.push(self.stages.len());
                self.every_worker.push(worker);
            }
            // A port without workers, and all work without usable CPUs, is left alone.
            let movable = match (&stage.handle, role) {
                (Handle::Port(_), Role::Plain) => false,
                (_, Role::Port) => true,
                _ => !pinned && !self.usable.is_empty(),
            };
            let load = i64::from(stage.load.min(MOST_LOAD));
            let intrudes = intrudes(stage);
            if !movable && intrudes && role != Role::Port && stage.present.len() > 1 {
                for other in
                    stage.present.iter().filter_map(|cpu| index.get(cpu)).filter(|other| **other != cpu)
                {
                    self.intruded[usize::from(*other)] = true;
                }
            }
            self.stages.push(Item {
                kind: stage.handle.kind() as usize,
                load,
                realtime: stage.realtime,
                node: nic_of(&stage.handle, nics).copied(),
                role,
                movable,
                pinned,
                counts: movable || intrudes || stage.realtime || matches!(role, Role::Worker(_)),
                may_be_alone: false,
                quiet: false,
                present: cpu,
                in_force,
            });
        }
        self.place_ports_at_present(&problem.stages);
    }

    /// Chooses the stages that may have a CPU for themselves: so many that half of the usable CPUs are left to other work, siblings that
    /// are to be idle included.
    ///
    /// Those that have to be real-time come first: one worker, all other stages, further workers with pinned ports, of which the host
    /// switch tells. Workers to which real-time ports may go as well get whole cores, or nothing: ports would go to the cheapest.
    fn choose_alone(&mut self) {
        let realtime = |at: &usize| self.stages[*at].realtime;
        let is_port = |at: &usize| self.stages[*at].role == Role::Port && realtime(at);
        let ports: Vec<&Item> = (0..self.stages.len()).filter(is_port).map(|at| &self.stages[at]).collect();
        let wants = |at: &usize| if self.ports_decide { !ports.is_empty() } else { realtime(at) };
        let has_to = |at: &usize| {
            let has = |port: &&Item| port.pinned && self.stages[*at].role == Role::Worker(port.present);
            !self.ports_decide || ports.iter().any(has)
        };
        let workers = self.workers.iter().copied().filter(wants);
        let (mut pinned, mut others): (Vec<usize>, Vec<usize>) = workers.partition(has_to);
        if pinned.is_empty() && !others.is_empty() {
            pinned.push(others.remove(0));
        }
        let plain = (0..self.stages.len()).filter(|at| self.stages[*at].role == Role::Plain && realtime(at));
        let mut order: Vec<usize> = plain.collect();
        order.splice(0..0, pinned.first().copied());
        order.extend(pinned.iter().skip(1));
        let most = (self.usable.len() / 2).max(1);
        order.truncate(most);
        let beside = self.cores.iter().map(Vec::len).max().unwrap_or(1) - 1;
        let quiet = (most - order.len()).checked_div(beside).unwrap_or(most).min(order.len());
        let rest = most - order.len() - quiet * beside;
        let further = if quiet == order.len() { rest / (1 + beside) } else { 0 };
        self.most_alone = most;
        for (nth, at) in order.iter().enumerate() {
            self.stages[*at].may_be_alone = true;
            self.stages[*at].quiet = nth < quiet;
        }
        for at in others.into_iter().take(further) {
            self.stages[at].may_be_alone = true;
            self.stages[at].quiet = true;
        }
    }

    /// Finds the worker of each port at present: the one in force, else one with the CPUs of the port, else the first.
    fn place_ports_at_present(&mut self, stages: &[Stage]) {
        for at in 0..self.stages.len() {
            let item = &self.stages[at];
            if item.role == Role::Port {
                let same =
                    self.workers.iter().position(|worker| stages[*worker].present == stages[at].present);
                let worker =
                    if item.in_force == NOWHERE { same.unwrap_or(0) as Index } else { item.in_force };
                self.stages[at].present = worker;
            }
        }
    }

    fn add_links(&mut self, problem: &Problem) {
        let at: HashMap<&Handle, usize> =
            problem.stages.iter().enumerate().map(|(at, stage)| (&stage.handle, at)).collect();
        for link in &problem.links {
            if let (Some(from), Some(to)) = (at.get(&link.from), at.get(&link.to))
                && from != to
            {
                let frames = i64::from(link.frames);
                self.links[*from].push(End { other: *to, frames });
                self.links[*to].push(End { other: *from, frames });
            }
        }
    }

    /// Returns the places among which the plan chooses for a stage: CPUs, for a port workers.
    pub fn places(&self, stage: usize) -> &[Index] {
        match self.stages[stage].role {
            Role::Port if self.stages[stage].pinned => std::slice::from_ref(&self.stages[stage].present),
            Role::Port => &self.every_worker,
            Role::Plain | Role::Worker(_) => &self.usable,
        }
    }

    /// Returns how far two CPUs are from each other.
    pub fn distance(&self, a: Index, b: Index) -> usize {
        usize::from(self.distance[usize::from(a) * self.cpus.len() + usize::from(b)])
    }

    /// Returns ns a second of a link between stages of two kinds at a distance.
    pub fn handover(&self, a: usize, b: usize, frames: i64, distance: usize) -> i64 {
        (frames * self.handover[a][b][distance]).min(super::score::MOST_LINK)
    }

    /// Returns the least ns a second of a link between stages of two kinds, if they may share a CPU for `sharing` ns a second.
    pub fn least_handover(&self, a: usize, b: usize, frames: i64, sharing: i64) -> i64 {
        let far = (1..DISTANCES).map(|distance| self.handover(a, b, frames, distance)).min().unwrap_or(0);
        let same = if a == WORKER && b == WORKER { 0 } else { sharing };
        far.min(self.handover(a, b, frames, 0) + same)
    }

    /// Returns whether both are kinds of a worker: stages of one worker do not share, and cross between two.
    pub fn of_workers(a: usize, b: usize) -> bool {
        a == WORKER && b == WORKER
    }

    /// Returns the number of the problem's worker.
    pub fn worker_number(stages: &[Stage], stage: usize) -> usize {
        if let Handle::Worker(number) = stages[stage].handle {
            number
        } else {
            unreachable!("an index of a worker")
        }
    }

    /// Returns places as the problem names them, of the stages that the plan chose for.
    pub fn assignment(&self, stages: &[Stage], places: &[Index], cpus: &[Index]) -> Assignment {
        let mut assignment = Assignment::default();
        let chosen = |at: usize| self.stages[at].movable && !self.stages[at].pinned;
        for (at, stage) in stages.iter().enumerate().filter(|(at, _)| chosen(*at)) {
            if let Some(cpu) = self.cpus.get(usize::from(cpus[at])) {
                assignment.cpus.insert(stage.handle.clone(), *cpu);
            }
            if let (Handle::Port(vnic), Some(worker)) =
                (&stage.handle, self.workers.get(usize::from(places[at])))
            {
                assignment.workers.insert(vnic.clone(), Self::worker_number(stages, *worker));
            }
        }
        assignment
    }
}

/// Returns whether a stage that is left alone is in the way of real-time stages: it has a load on the one CPU where it may run, or
/// enough for each of several.
pub fn intrudes(stage: &Stage) -> bool {
    let load = i64::from(stage.load.min(MOST_LOAD));
    match stage.present.len() {
        0 | 1 => load > 0,
        several => load / several as i64 >= INTRUDES,
    }
}

/// Finds the node of a stage's NIC.
fn nic_of<'a>(handle: &Handle, nics: &'a BTreeMap<String, u32>) -> Option<&'a u32> {
    match handle {
        Handle::Receive(queue) | Handle::Transmit(queue) => nics.get(&queue.device),
        Handle::Flow { device, .. } => nics.get(device),
        // `eth0-TxRx-3`: the longest interface that the name begins with, and that ends there.
        Handle::Irq { name, .. } => nics
            .iter()
            .filter(|(nic, _)| {
                name.strip_prefix(nic.as_str())
                    .is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric()))
            })
            .max_by_key(|(nic, _)| nic.len())
            .map(|(_, node)| node),
        _ => None,
    }
}
