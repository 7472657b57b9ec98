//! The rule against its exact model, and a worker that only takes frames in.

use super::*;
use crate::worker::budget;
use proptest::prelude::*;

/// Frames of one port.
#[derive(Clone, Copy, Debug)]
struct Load {
    weight: u32,
    /// Time of a frame (ns), and its bytes.
    cost: i64,
    bytes: u32,
    /// Time between two frames (ns); 0 if frames never run out.
    every: i64,
    /// Most frames in a loop.
    most: i64,
}

impl Load {
    fn endless(weight: u32, cost: i64, bytes: u32) -> Self {
        Self { weight, cost, bytes, every: 0, most: i64::MAX }
    }
}

/// Time of a loop besides frames (ns).
const OVERHEAD: i64 = 300;

struct Sender {
    port: PortIndex,
    load: Load,
    waiting: i64,
    due: i64,
    /// Time of its frames and its part of the loops' own time, and the longest turn (ns).
    used: i64,
    longest: i64,
}

/// A worker that only takes frames in: in turns, and within its budget of bytes.
struct Simulation {
    turns: Turns,
    /// Real-time ones first.
    senders: Vec<Sender>,
    realtime: usize,
    now: i64,
}

impl Simulation {
    fn new(loads: &[Load]) -> Self {
        Self::with_realtime(loads, 0)
    }

    /// The first `realtime` ports are real-time.
    fn with_realtime(loads: &[Load], realtime: PortIndex) -> Self {
        let mut turns = Turns::new(0);
        let ports = (0..).zip(loads);
        turns.divide(
            ports.clone().map(|(port, load)| Party { port, weight: load.weight, realtime: port < realtime }),
            loads.iter().map(|load| load.weight).max().unwrap(),
        );
        let sender = |(port, load): (PortIndex, &Load)| Sender {
            port,
            load: *load,
            waiting: 0,
            due: 0,
            used: 0,
            longest: 0,
        };
        Self { turns, senders: ports.map(sender).collect(), realtime: realtime.into(), now: 0 }
    }

    /// Runs one loop; whether frames were taken.
    fn turn(&mut self) -> bool {
        self.turns.begin(self.now as u64);
        self.now += OVERHEAD;
        self.turns.pass(self.now as u64);
        let (began, mut left) = (self.now - OVERHEAD, budget::QUANTUM);
        let mut takers = Vec::new();
        for i in 0..self.senders.len() {
            if i >= self.realtime && (left <= 0 || self.turns.is_long()) {
                let late: Vec<_> = self.senders[i..].iter().map(|sender| sender.port).collect();
                self.turns.break_off(&late);
                self.senders[self.realtime..].rotate_left(i - self.realtime);
                break;
            }
            let sender = &mut self.senders[i];
            let Load { cost, bytes, every, most, .. } = sender.load;
            while every > 0 && sender.due <= self.now {
                sender.due += every;
                sender.waiting = (sender.waiting + 1).min(256);
            }
            if !self.turns.is_due(sender.port) {
                continue;
            }
            let mut took = 0;
            let offered = if every > 0 { sender.waiting } else { most };
            while took < offered.min(self.turns.batch(sender.port) as i64) && left > 0 {
                left -= budget::queued(bytes);
                took += 1;
            }
            if took == 0 {
                self.now += LOOK;
                self.turns.note_empty();
                continue;
            }
            self.now += took * cost;
            sender.waiting -= took.min(sender.waiting);
            takers.push((sender.port, took * cost));
            self.turns.end(sender.port, self.now as u64);
        }
        self.turns.finish(self.now as u64);
        let besides = self.now - began - takers.iter().map(|(_, took)| took).sum::<i64>();
        for (port, took) in &takers {
            let took = took + besides / takers.len() as i64;
            let sender = self.senders.iter_mut().find(|sender| sender.port == *port).unwrap();
            sender.used += took;
            sender.longest = sender.longest.max(took);
        }
        !takers.is_empty()
    }

    fn run(&mut self, ns: i64) {
        let until = self.now + ns;
        while self.now < until {
            self.turn();
        }
    }

    /// Returns the time of ports of this weight and cost (ns).
    fn used(&self, load: Load) -> i64 {
        let same = |sender: &&Sender| (sender.load.weight, sender.load.cost) == (load.weight, load.cost);
        self.senders.iter().filter(same).map(|sender| sender.used).sum()
    }
}

fn endless() -> impl Strategy<Value = Load> {
    (1u32..=20, 30i64..3_000, 60u32..9_014)
        .prop_map(|(weight, cost, bytes)| Load::endless(weight, cost, bytes))
}

proptest! {
    /// The exact model: in `n` rounds a port with frames gets `n` quanta and uses them, up to the rest of
    /// one and the excess of one turn.
    #[test]
    fn ports_with_frames_have_time_by_weight(loads in prop::collection::vec(endless(), 1..8), loops in 1usize..4_000) {
        let mut simulation = Simulation::new(&loads);
        (0..loops).for_each(|_| { simulation.turn(); });
        let rounds = simulation.turns.round as i64;
        for Sender { port, load, used, longest, .. } in &simulation.senders {
            let quantum = simulation.turns.accounts[usize::from(*port)].quantum;
            let given = rounds * quantum;
            // Where a turn takes longer than a quantum, the port is in debt for rounds.
            prop_assert!(*used >= given - quantum - 2 * longest, "{load:?} was given {given}, used {used}");
            prop_assert!(*used <= given + longest, "{load:?} was given {given}, used {used}");
        }
    }

    /// A loop without frames is followed by one with frames, if frames wait.
    #[test]
    fn no_worker_idles_while_frames_wait(loads in prop::collection::vec(endless(), 1..8), owed in 0i64..DEBT) {
        let mut simulation = Simulation::new(&loads);
        (0..loads.len()).for_each(|port| simulation.turns.charge(port as PortIndex, owed));
        let took: Vec<bool> = (0..1_000).map(|_| simulation.turn()).collect();
        prop_assert!(took.windows(2).all(|two| two[0] || two[1]));
        prop_assert!(took.iter().filter(|took| !**took).count() <= 1_000 / 3);
    }

    /// A port below its share gets all it needs; one above gets its share.
    #[test]
    fn a_victim_keeps_its_share(
        weight in prop::sample::select(vec![1u32, 9]), others in prop::sample::select(vec![1usize, 4]),
        dear in 1i64..100, most in prop::sample::select(vec![1, i64::MAX]), bytes in prop::sample::select(vec![60u32, 1518, 9014]), part in 1i64..40,
    ) {
        let hostile = Load { most, ..Load::endless(1, 60 * dear, 60) };
        let cost = 60 + i64::from(bytes) / 16;
        // It needs between a tenth of its share and four times that.
        let share = f64::from(weight) / f64::from(weight + others as u32);
        let need = share * part as f64 / 10.0;
        let victim = Load { every: ((cost as f64 / need) as i64).max(1), ..Load::endless(weight, cost, bytes) };
        let mut loads = vec![hostile; others];
        loads.insert(others / 2, victim);
        let mut simulation = Simulation::new(&loads);
        simulation.run(1_000_000);
        let (before, began) = (simulation.used(victim), simulation.now);
        simulation.run(20_000_000);
        let has = (simulation.used(victim) - before) as f64 / (simulation.now - began) as f64;
        prop_assert!(has >= 0.9 * need.min(share), "has {has:.3}, needs {need:.3}, share {share:.3}");
    }

    /// After any silence a port is ahead by one quantum and one turn at most.
    #[test]
    fn idling_saves_nothing_up(idle in 0i64..50_000_000, cost in 30i64..3_000) {
        let late = Load { every: i64::MAX / 2, ..Load::endless(1, cost, 60) };
        let busy = Load::endless(1, 100, 60);
        let mut simulation = Simulation::new(&[busy, late]);
        simulation.senders[1].due = i64::MAX / 2;
        simulation.run(idle);
        simulation.senders[1].load.every = 0;
        let before = simulation.senders[0].used;
        while simulation.senders[0].used == before {
            simulation.turn();
        }
        let [busy, late] = &simulation.senders[..] else { unreachable!() };
        prop_assert!(late.used <= QUANTUM + 2 * late.longest, "{} before {}", late.used, busy.used);
    }
}

/// A loop is bounded in time, whatever a frame costs.
#[test]
fn a_turn_becomes_as_short_as_a_slice() {
    for cost in [50, 500, 2_000, 50_000] {
        let mut simulation = Simulation::new(&[Load::endless(1, cost, 60); 3]);
        simulation.run(10_000_000);
        simulation.senders.iter_mut().for_each(|sender| sender.longest = 0);
        simulation.run(10_000_000);
        let longest = simulation.senders.iter().map(|sender| sender.longest).max().unwrap();
        assert!(longest <= (2 * SLICE).max(cost + OVERHEAD), "{longest} at {cost}");
    }
}

/// On a slow CPU, whose host latency says so, a loop has more than a frame, and ports still share the time.
#[test]
fn a_longer_host_latency_makes_longer_turns() {
    let slow = Load::endless(1, 50_000, 60);
    let frames_a_turn = |host_latency: u64| {
        let mut simulation = Simulation::new(&[slow; 2]);
        simulation.turns.set_host_latency(host_latency);
        simulation.run(100_000_000);
        simulation.senders.iter_mut().for_each(|sender| sender.longest = 0);
        simulation.run(400_000_000);
        let [one, other] = &simulation.senders[..] else { unreachable!() };
        let apart = (one.used - other.used).abs();
        assert!(apart <= 2 * (simulation.turns.times.quantum + one.longest.max(other.longest)), "{apart}");
        one.longest / slow.cost
    };
    let some = [100_000, HOST_LATENCY, 10 * HOST_LATENCY, 20 * HOST_LATENCY, u64::MAX].map(frames_a_turn);
    assert_eq!(some, [1, 1, 2, 4, 8]);
}

#[test]
fn the_times_are_for_the_default_host_latency() {
    assert_eq!(HOST_LATENCY, tidegate_contract::Host::default().host_latency.get());
}

/// Debts and savings stay, but no more is saved up than the new quantum.
#[test]
fn a_changed_host_latency_keeps_the_shares() {
    let mut turns = two();
    turns.divide((0..2).map(|port| Party { port, weight: 1 + u32::from(port), realtime: false }), 2);
    turns.charge(0, 3 * QUANTUM);
    let quanta = |turns: &Turns| [0, 1].map(|port| turns.accounts[port].quantum);
    let before = (quanta(&turns), turns.accounts[0].remaining);
    turns.set_host_latency(4 * HOST_LATENCY);
    assert_eq!(quanta(&turns), before.0.map(|quantum| 4 * quantum));
    assert_eq!(turns.accounts[0].remaining, before.1);
    turns.charge(1, -4 * QUANTUM);
    turns.set_host_latency(0);
    assert_eq!((quanta(&turns), turns.accounts[0].remaining), before);
    assert!(turns.accounts[1].remaining <= before.0[1]);
}

#[test]
fn real_time_ports_go_first_for_half_of_the_time() {
    let (promised, heavy) = (Load::endless(1, 100, 60), Load::endless(9, 101, 60));
    let share = |promised: Load, ports: usize| {
        let mut loads = vec![promised; ports];
        loads.push(heavy);
        let mut simulation = Simulation::with_realtime(&loads, ports as PortIndex);
        simulation.run(20_000_000);
        let (first, other) = (simulation.used(promised) as f64, simulation.used(heavy) as f64);
        first / (first + other)
    };
    // By weight they have 3 in 12, and by turns 3 in 4.
    let endless = share(promised, 3);
    assert!((0.45..0.55).contains(&endless), "{endless}");
    let enough = share(Load { every: 800, ..promised }, 3);
    assert!((0.35..0.45).contains(&enough), "each needs an eighth, and its part of the loops: {enough}");
}

/// Also beside loops that best effort fills, whose length depends on the host latency.
#[test]
fn real_time_ports_go_first_for_half_of_the_time_with_any_host_latency() {
    for scale in [1, SCALE] {
        let load = |weight, cost| Load::endless(weight, cost * scale as i64, 60);
        let (promised, heavy) = (load(1, 1_000), load(9, 1_001));
        let loads = [promised, promised, promised, heavy, heavy, heavy, heavy];
        let mut simulation = Simulation::with_realtime(&loads, 3);
        simulation.turns.set_host_latency(HOST_LATENCY * scale);
        simulation.run(100_000_000 * scale as i64);
        let (first, other) = (simulation.used(promised) as f64, simulation.used(heavy) as f64);
        let share = first / (first + other);
        assert!((0.45..0.55).contains(&share), "{share} at {scale} times the host latency");
    }
}

/// What a port's frames cost is not forgiven earlier where all takes longer.
#[test]
fn the_largest_debt_is_as_many_rounds_with_any_host_latency() {
    let rounds = |host_latency: u64| {
        let mut turns = two();
        turns.set_host_latency(host_latency);
        turns.charge(0, i64::MAX / 2);
        -turns.accounts[0].remaining / turns.accounts[0].quantum
    };
    assert_eq!(two().accounts[0].quantum, QUANTUM);
    assert_eq!([HOST_LATENCY, 4 * HOST_LATENCY, u64::MAX].map(rounds), [DEBT / QUANTUM; 3]);
}

fn two() -> Turns {
    let mut turns = Turns::new(1_000);
    turns.divide((0..2).map(|port| Party { port, weight: 1, realtime: false }), 1);
    turns.begin(1_000);
    turns
}

#[test]
fn time_that_is_no_work_is_not_charged() {
    let mut turns = two();
    (0..100).for_each(|_| turns.note_empty());
    assert_eq!(turns.end(0, 1_000 + 100 * LOOK as u64 + 5_000), 5_000);
    (0..100).for_each(|_| turns.note_empty());
    assert_eq!(turns.end(0, turns.charged + 2_000), 1_000, "half of it at least");
    // The worker lost its CPU.
    assert_eq!(turns.end(0, turns.charged + 50_000_000), LONGEST);
}

#[test]
fn a_receiver_waits_if_its_buffers_used_up_its_time() {
    let mut turns = two();
    turns.charge(0, QUANTUM);
    assert!(!turns.holds(0) && !turns.is_held(0), "what it receives is not what it is charged for");
    turns.charge_buffers(1, QUANTUM / 10, QUANTUM);
    assert!(!turns.holds(1) && !turns.is_held(1), "some buffers more for a long frame");
    turns.charge_buffers(1, QUANTUM, QUANTUM);
    assert!(turns.holds(1) && turns.is_held(1));
    turns.begin(2_000);
    assert!(!turns.holds(1) && !turns.is_held(1), "a new round");
}

/// Frames that may leave count as waiting.
#[test]
fn a_real_time_receiver_does_not_wait_while_there_is_reserved_time() {
    let mut turns = Turns::new(1_000);
    turns.divide((0..2).map(|port| Party { port, weight: 1, realtime: port == 1 }), 1);
    turns.begin(1_000);
    turns.charge_buffers(1, QUANTUM, QUANTUM);
    assert!(turns.realtime > 0 && !turns.holds(1) && !turns.is_held(1));
    turns.realtime = 0;
    assert!(turns.holds(1) && turns.is_held(1));
}

#[test]
fn a_port_of_an_index_that_another_had_owes_nothing() {
    let mut turns = two();
    turns.charge(0, DEBT);
    let party = Party { port: 1, weight: 1, realtime: false };
    turns.divide([party].into_iter(), 1);
    turns.divide([Party { port: 0, ..party }, party].into_iter(), 1);
    turns.begin(2_000);
    assert!(turns.is_due(0));
}
