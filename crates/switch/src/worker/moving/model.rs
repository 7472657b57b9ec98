//! The protocol of moving a port, without a worker. The model tries every order of three workers' steps. In
//! none is a frame lost, doubled or overtaken, and no frame comes back to a worker without its source.
//!
//! ```text
//!  state ─▶ every step that some worker can take now ─▶ states ─▶ ... ─▶ no step is left: is everything where it belongs?
//! ```
//!
//! A step is one part of a worker's loop: one call, one frame or fate from another worker, one frame from a
//! guest, one frame to a receiver. Real loops take these steps in a fixed order; the model allows any.

use std::collections::{HashSet, VecDeque};

const WORKERS: usize = 3;
/// Frames of each flow.
const FRAMES: u8 = 2;
/// The other ends of the flows: one vNIC at each worker, which stays.
const STAYS: [usize; WORKERS] = [0, 1, 2];

/// Frames from one vNIC to another, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Flow {
    /// To the port that moves, from the vNIC at this worker.
    To(usize),
    /// From the port that moves to the vNIC at this worker.
    From(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Frame {
    flow: Flow,
    number: u8,
}

/// A request to a worker, between two loops.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Call {
    /// Take nothing from the port; hand it to this worker when others have taken its earlier frames.
    Pause { to: usize },
    /// The port will come here.
    Expect { from: usize },
    /// The port will be at worker `to`.
    Tell { from: usize, to: usize },
    /// Give the port to this worker.
    HandOver { to: usize },
    /// The port, with the frames that were under way to it.
    Arrive { under_way: Vec<Frame> },
}

/// A worker that waits for the port, or takes in frames that were under way to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Arrival {
    here: bool,
    frames: VecDeque<Frame>,
    fates: Vec<Frame>,
}

/// A rule that is left out, to see that the model finds out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// Frames that the port has sent to other workers are not waited for.
    SentIsNotWaitedFor,
    /// The new worker learns of the move together with the others.
    TheNewWorkerIsNotFirst,
    /// The third worker may learn of the move late.
    OthersAreNotWaitedFor,
    /// Frames that other workers have sent to the old worker stay in their rings, and are forwarded.
    UnderWayIsForwarded,
    /// The new worker cannot set aside frames that precede the port.
    NoPlaceBefore,
    /// Frames under way are queued behind later ones.
    UnderWayIsNotFirst,
    /// Fates are settled where the frames were taken.
    FatesStay,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    /// Where each worker believes the port to be.
    thinks: [usize; WORKERS],
    /// The port's worker; `None` during the hand-over.
    at: Option<usize>,
    /// Frames queued for the port. They move with it.
    queue: VecDeque<Frame>,
    /// The new worker of a paused port, before or during the move.
    paused: Option<usize>,
    /// Frames of the port without a fate yet. They move with it.
    in_flight: u8,
    arrivals: [Option<Arrival>; WORKERS],
    /// Frames under way, from worker to worker.
    rings: [[VecDeque<Frame>; WORKERS]; WORKERS],
    /// Fates under way.
    fates: [[VecDeque<Frame>; WORKERS]; WORKERS],
    calls: [VecDeque<Call>; WORKERS],
    /// Workers that do not know of the move yet.
    untold: usize,
    /// The next workers.
    moves: Vec<usize>,
    /// Frames sent and received, by flow.
    sent: Vec<u8>,
    received: Vec<u8>,
}

struct Model {
    flows: Vec<Flow>,
    fault: Fault,
}

/// A step's result, or its error.
type Next = Result<State, String>;

impl Model {
    fn start(&self, moves: &[usize]) -> State {
        State {
            thinks: [0; WORKERS],
            at: Some(0),
            queue: VecDeque::new(),
            paused: None,
            in_flight: 0,
            arrivals: Default::default(),
            rings: Default::default(),
            fates: Default::default(),
            calls: Default::default(),
            untold: 0,
            moves: moves.iter().rev().copied().collect(),
            sent: vec![0; self.flows.len()],
            received: vec![0; self.flows.len()],
        }
    }

    /// Tries all orders; returns the number of states.
    fn explore(&self, moves: &[usize]) -> Result<usize, String> {
        let start = self.start(moves);
        let mut seen = HashSet::from([start.clone()]);
        let mut left = vec![start];
        while let Some(state) = left.pop() {
            let steps = self.steps(&state);
            if steps.is_empty() {
                self.check_end(&state)?;
            }
            for next in steps {
                let next = next.map_err(|why| format!("{why}\nafter {state:?}"))?;
                if seen.insert(next.clone()) {
                    left.push(next);
                }
            }
        }
        Ok(seen.len())
    }

    fn steps(&self, state: &State) -> Vec<Next> {
        let mut steps = Vec::new();
        let mut step = |change: &dyn Fn(&mut State) -> Result<(), String>| {
            let mut next = state.clone();
            steps.push(change(&mut next).map(|()| next));
        };
        // The control thread: one move after the other, none to a worker that has not taken the last one
        // in.
        let is_moving = state.calls.iter().any(|calls| !calls.is_empty())
            || state.arrivals.iter().any(Option::is_some)
            || state.paused.is_some();
        if let (Some(to), Some(from), false) = (state.moves.last(), state.at, is_moving) {
            step(&|next| {
                next.moves.pop();
                next.calls[from].push_back(Call::Pause { to: *to });
                Ok(())
            });
        }
        if let (Some(to), Some(from)) = (state.paused, state.at)
            && state.thinks[to] != to
            && !state.calls.iter().flatten().any(|call| matches!(call, Call::Expect { .. }))
            && (self.fault == Fault::SentIsNotWaitedFor || !self.has_sent(state, from))
        {
            step(&|next| {
                next.calls[to].push_back(Call::Expect { from });
                next.untold = WORKERS - 2;
                if self.fault == Fault::TheNewWorkerIsNotFirst {
                    self.tell_others(next, from, to);
                }
                Ok(())
            });
        }
        for worker in 0..WORKERS {
            if !state.calls[worker].is_empty() {
                step(&|next| self.call(next, worker));
            }
            for other in 0..WORKERS {
                if !state.rings[other][worker].is_empty() {
                    step(&|next| {
                        let frame = next.rings[other][worker].pop_front().expect("there is one");
                        self.queue(next, worker, frame)
                    });
                }
                if !state.fates[other][worker].is_empty() {
                    step(&|next| {
                        let frame = next.fates[other][worker].pop_front().expect("there is one");
                        self.settle(next, worker, frame)
                    });
                }
            }
            for number in 0..self.flows.len() {
                if state.sent[number] < FRAMES && self.source(state, number) == Some(worker) {
                    step(&|next| self.send(next, worker, number));
                }
            }
            if state.at == Some(worker) && !state.queue.is_empty() {
                step(&|next| {
                    let frame = next.queue.pop_front().expect("there is one");
                    self.deliver(next, worker, frame)
                });
            }
            if state.arrivals[worker].as_ref().is_some_and(|arrival| arrival.here) {
                step(&|next| {
                    self.take_in(next, worker);
                    Ok(())
                });
            }
        }
        steps
    }

    /// Returns the worker that has a flow's source.
    fn source(&self, state: &State, flow: usize) -> Option<usize> {
        match self.flows[flow] {
            Flow::To(worker) => Some(STAYS[worker]),
            Flow::From(_) => state.at.filter(|_| state.paused.is_none()),
        }
    }

    /// Whether frames of the port are on their way from its worker to another one.
    fn has_sent(&self, state: &State, from: usize) -> bool {
        state.rings[from].iter().flatten().any(|frame| matches!(frame.flow, Flow::From(_)))
    }

    fn call(&self, state: &mut State, worker: usize) -> Result<(), String> {
        match state.calls[worker].pop_front().expect("there is one") {
            Call::Pause { to } => state.paused = Some(to),
            Call::Expect { from } => {
                state.thinks[worker] = worker;
                state.arrivals[worker] = Some(Arrival::default());
                if self.fault != Fault::TheNewWorkerIsNotFirst {
                    self.tell_others(state, from, worker);
                }
                if self.fault == Fault::OthersAreNotWaitedFor {
                    state.calls[from].push_back(Call::HandOver { to: worker });
                }
            }
            Call::Tell { from, to } => {
                state.thinks[worker] = to;
                state.untold -= 1;
                // The worker that learns it last tells the worker that has the port.
                if state.untold == 0 && self.fault != Fault::OthersAreNotWaitedFor {
                    state.calls[from].push_back(Call::HandOver { to });
                }
            }
            Call::HandOver { to } => {
                let mut under_way = Vec::new();
                if self.fault != Fault::UnderWayIsForwarded {
                    for ring in state.rings.iter_mut().map(|to| &mut to[worker]) {
                        let is_to_port = |frame: &Frame| matches!(frame.flow, Flow::To(_));
                        under_way.extend(ring.iter().copied().filter(is_to_port));
                        ring.retain(|frame| !is_to_port(frame));
                    }
                }
                if state.at.take() != Some(worker) {
                    return Err(format!("{worker} gives away what it does not have"));
                }
                state.thinks[worker] = to;
                state.calls[to].push_back(Call::Arrive { under_way });
            }
            Call::Arrive { under_way } => {
                (state.at, state.paused) = (Some(worker), None);
                let mut arrival = state.arrivals[worker].take().unwrap_or_default();
                arrival.here = true;
                let later = std::mem::take(&mut arrival.frames);
                match self.fault {
                    Fault::UnderWayIsNotFirst => arrival.frames.extend(later.into_iter().chain(under_way)),
                    _ => arrival.frames.extend(under_way.into_iter().chain(later)),
                }
                let fates = std::mem::take(&mut arrival.fates);
                state.arrivals[worker] = Some(arrival);
                for fate in fates {
                    self.settle(state, worker, fate)?;
                }
            }
        }
        Ok(())
    }

    fn tell_others(&self, state: &mut State, from: usize, to: usize) {
        for (worker, calls) in state.calls.iter_mut().enumerate() {
            if worker != from && worker != to {
                calls.push_back(Call::Tell { from, to });
            }
        }
    }

    /// Takes in one frame that was under way; without one the port has arrived.
    fn take_in(&self, state: &mut State, worker: usize) {
        let frame = state.arrivals[worker].as_mut().and_then(|arrival| arrival.frames.pop_front());
        match frame {
            Some(frame) => state.queue.push_back(frame),
            None => state.arrivals[worker] = None,
        }
    }

    fn send(&self, state: &mut State, worker: usize, number: usize) -> Result<(), String> {
        let frame = Frame { flow: self.flows[number], number: state.sent[number] };
        state.sent[number] += 1;
        match frame.flow {
            Flow::From(to) => {
                state.in_flight += 1;
                match STAYS[to] == worker {
                    true => self.deliver(state, worker, frame),
                    false => {
                        state.rings[worker][STAYS[to]].push_back(frame);
                        Ok(())
                    }
                }
            }
            // The direct way, past the queue.
            Flow::To(_)
                if state.at == Some(worker) && state.queue.is_empty() && state.arrivals[worker].is_none() =>
            {
                self.deliver(state, worker, frame)
            }
            Flow::To(_) => self.queue(state, worker, frame),
        }
    }

    /// Queues a frame that a guest of this worker, or another worker, has sent.
    fn queue(&self, state: &mut State, worker: usize, frame: Frame) -> Result<(), String> {
        if let Flow::From(to) = frame.flow {
            assert_eq!(STAYS[to], worker);
            return self.deliver(state, worker, frame);
        }
        let to = state.thinks[worker];
        if to != worker {
            state.rings[worker][to].push_back(frame);
        } else if let Some(arrival) = state.arrivals[worker].as_mut() {
            if self.fault == Fault::NoPlaceBefore && !arrival.here {
                return Err(format!("{frame:?} is lost"));
            }
            arrival.frames.push_back(frame);
        } else if state.at == Some(worker) {
            state.queue.push_back(frame);
        } else {
            return Err(format!("{frame:?} is at {worker}, which has neither the port nor waits for it"));
        }
        Ok(())
    }

    fn deliver(&self, state: &mut State, worker: usize, frame: Frame) -> Result<(), String> {
        let number = self.flows.iter().position(|flow| *flow == frame.flow).expect("a flow of this model");
        if state.received[number] != frame.number {
            return Err(format!("{frame:?} is received as number {}", state.received[number]));
        }
        state.received[number] += 1;
        match frame.flow {
            Flow::To(from) if STAYS[from] != worker => state.fates[worker][STAYS[from]].push_back(frame),
            Flow::To(_) => {}
            Flow::From(_) => self.settle(state, worker, frame)?,
        }
        Ok(())
    }

    fn settle(&self, state: &mut State, worker: usize, frame: Frame) -> Result<(), String> {
        if let Flow::To(from) = frame.flow {
            assert_eq!(STAYS[from], worker);
            return Ok(());
        }
        if state.at == Some(worker) {
            state.in_flight -= 1;
            return Ok(());
        }
        let home = state.thinks[worker];
        if home != worker && self.fault != Fault::FatesStay {
            state.fates[worker][home].push_back(frame);
            return Ok(());
        }
        match &mut state.arrivals[worker] {
            Some(arrival) => arrival.fates.push(frame),
            None => return Err(format!("{frame:?} comes back to {worker}, which does not have its source")),
        }
        Ok(())
    }

    fn check_end(&self, state: &State) -> Result<(), String> {
        let all = state.received.iter().all(|received| *received == FRAMES);
        let empty = state.queue.is_empty() && state.arrivals.iter().all(Option::is_none);
        match all && empty && state.in_flight == 0 && state.moves.is_empty() && state.at.is_some() {
            true => Ok(()),
            false => Err(format!("it ends with {state:?}")),
        }
    }
}

/// Flows to and from the port, at its old worker, its new one, and the third.
const LOADS: [&[Flow]; 6] = [
    &[Flow::To(0), Flow::To(1)],
    &[Flow::To(1), Flow::To(2)],
    &[Flow::To(2), Flow::From(2)],
    &[Flow::From(0), Flow::From(1)],
    &[Flow::To(1), Flow::From(2)],
    &[Flow::To(0), Flow::From(1)],
];

#[test]
fn in_every_order_each_frame_arrives_once_in_order_and_comes_back() {
    let mut states = 0;
    for flows in LOADS {
        for moves in [&[1][..], &[1, 0], &[1, 2]] {
            let model = Model { flows: flows.to_vec(), fault: Fault::None };
            states += model.explore(moves).unwrap_or_else(|why| panic!("{flows:?}, {moves:?}: {why}"));
        }
    }
    assert!(states > 60_000, "{states}");
}

#[test]
fn without_any_part_of_the_protocol_some_order_goes_wrong() {
    let faults = [
        Fault::SentIsNotWaitedFor,
        Fault::TheNewWorkerIsNotFirst,
        Fault::OthersAreNotWaitedFor,
        Fault::UnderWayIsForwarded,
        Fault::NoPlaceBefore,
        Fault::UnderWayIsNotFirst,
        Fault::FatesStay,
    ];
    for fault in faults {
        let found = LOADS.iter().find_map(|flows| Model { flows: flows.to_vec(), fault }.explore(&[1]).err());
        assert!(found.is_some(), "{fault:?} harms no frame");
    }
}
