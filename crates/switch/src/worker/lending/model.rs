//! The protocol of lending a receiving half, without a worker. The model tries every order of three
//! workers' steps. In none is a frame lost, doubled, overtaken or queued for ever, no worker writes into
//! memory that was taken away, and every half that a crossing frame asks for is lent in the end.
//!
//! ```text
//!  state ─▶ every step that some worker can take now ─▶ states ─▶ ... ─▶ no step is left: did everything arrive?
//! ```
//!
//! A step is one access to shared state, with its worker's own actions before and after it.

use std::collections::{HashSet, VecDeque};

/// The first worker owns the receiver. Each worker has a source that sends to it.
const WORKERS: usize = 3;
const OWNER: usize = 0;
/// Frames of each source.
const FRAMES: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Frame {
    source: usize,
    number: u8,
}

/// The state of a worker between two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Doing {
    Nothing,
    /// It saw the place open, and will take the half.
    Reaches,
    /// It has the half; its batch may send this many more frames.
    Has(u8),
}

/// A rule that is left out, to see that the model finds out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// Frames go directly while others of their source are under way.
    UnderWayIsNotWaitedFor,
    /// The owner serves its queue while the half is lent.
    ServedWhileLent,
    /// Memory is taken away while the half is lent.
    TakenAwayWhileLent,
    /// A request is forgotten while a queue or another worker is in the way.
    ForgottenWhileItWaits,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    doing: [Doing; WORKERS],
    /// The place: whether the half is in it, and whether other workers may take it.
    there: bool,
    open: bool,
    /// The owner has the half.
    home: bool,
    asked: bool,
    /// A frame came from another worker's ring.
    crossed: bool,
    queue: VecDeque<Frame>,
    /// Frames under way to the owner, and fates under way back.
    rings: [VecDeque<Frame>; WORKERS],
    fates: [u8; WORKERS],
    in_flight: [u8; WORKERS],
    sent: [u8; WORKERS],
    received: [u8; WORKERS],
    /// Removals of memory still to come, and whether the port is paused for one.
    removals: u8,
    paused: bool,
}

struct Model {
    fault: Fault,
}

/// A step's change, or its error.
type Change<'a> = &'a dyn Fn(&mut State) -> Result<(), String>;

impl Model {
    fn start(removals: u8) -> State {
        State {
            doing: [Doing::Nothing; WORKERS],
            there: false,
            open: false,
            home: true,
            asked: false,
            crossed: false,
            queue: VecDeque::new(),
            rings: Default::default(),
            fates: [0; WORKERS],
            in_flight: [0; WORKERS],
            sent: [0; WORKERS],
            received: [0; WORKERS],
            removals,
            paused: false,
        }
    }

    /// Tries all orders; returns the number of states.
    fn explore(&self, removals: u8) -> Result<usize, String> {
        let start = Self::start(removals);
        let mut seen = HashSet::from([start.clone()]);
        let mut left = vec![start];
        while let Some(state) = left.pop() {
            let steps = self.steps(&state);
            let is_done = state.received == [FRAMES; WORKERS] && state.in_flight == [0; WORKERS];
            // A half that was taken back for a change is not lent before another frame asks.
            let is_lent = state.open || !state.crossed || removals > 0;
            if steps.is_empty() && !(is_done && is_lent) {
                return Err(format!("it ends with {state:?}"));
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

    fn steps(&self, state: &State) -> Vec<Result<State, String>> {
        let mut steps = Vec::new();
        let mut step = |change: Change<'_>| {
            let mut next = state.clone();
            steps.push(change(&mut next).map(|()| next));
        };
        for worker in 0..WORKERS {
            let sends = state.sent[worker] < FRAMES;
            match state.doing[worker] {
                Doing::Nothing if sends => {
                    let is_free = state.in_flight[worker] == 0 || self.fault == Fault::UnderWayIsNotWaitedFor;
                    let is_idle = worker != OWNER || state.queue.is_empty();
                    if state.open && is_free && is_idle {
                        step(&|next| {
                            next.doing[worker] = Doing::Reaches;
                            Ok(())
                        });
                    } else {
                        // It may wait for a while; the model ignores how long.
                        step(&|next| self.send_otherwise(next, worker));
                    }
                }
                Doing::Reaches if state.there => step(&|next| {
                    next.there = false;
                    next.doing[worker] = Doing::Has(2);
                    Ok(())
                }),
                Doing::Reaches => step(&|next| {
                    next.doing[worker] = Doing::Nothing;
                    self.send_otherwise(next, worker)
                }),
                Doing::Has(left) => {
                    if left > 0 && sends {
                        step(&|next| {
                            next.doing[worker] = Doing::Has(left - 1);
                            let frame = Self::take(next, worker);
                            Self::receive(next, frame)
                        });
                    }
                    step(&|next| {
                        next.there = true;
                        next.doing[worker] = Doing::Nothing;
                        Ok(())
                    });
                }
                Doing::Nothing => {}
            }
            if state.fates[worker] > 0 {
                step(&|next| {
                    next.fates[worker] -= 1;
                    next.in_flight[worker] -= 1;
                    Ok(())
                });
            }
        }
        // The owner does the rest between its own batches.
        if state.doing[OWNER] == Doing::Nothing {
            self.owner(state, &mut step);
        }
        steps
    }

    fn owner(&self, state: &State, step: &mut dyn FnMut(Change<'_>)) {
        for other in 1..WORKERS {
            if !state.rings[other].is_empty() {
                step(&|next| {
                    let frame = next.rings[other].pop_front().expect("there is one");
                    next.queue.push_back(frame);
                    (next.asked, next.crossed) = (true, true);
                    Ok(())
                });
            }
        }
        let uses_anyway = self.fault == Fault::ServedWhileLent;
        if !state.queue.is_empty() {
            if state.home || uses_anyway {
                step(&|next| {
                    let frame = next.queue.pop_front().expect("there is one");
                    next.fates[frame.source] += 1;
                    if !next.home && next.doing.iter().any(|doing| matches!(doing, Doing::Has(_))) {
                        return Err("two write into one ring".into());
                    }
                    Self::receive(next, frame)
                });
            } else if state.open || state.there {
                step(&|next| {
                    next.asked |= self.fault != Fault::ForgottenWhileItWaits;
                    Self::take_back(next)
                });
            }
        }
        // Otherwise the owner tries when that is over.
        let is_in_the_way = !state.queue.is_empty() || !(state.home || state.open || state.there);
        if state.asked && (!is_in_the_way || self.fault == Fault::ForgottenWhileItWaits) {
            step(&|next| {
                if !next.home {
                    Self::take_back(next)?;
                }
                next.asked = !next.home && self.fault != Fault::ForgottenWhileItWaits;
                if next.home && next.queue.is_empty() && !next.paused {
                    (next.home, next.there) = (false, true);
                    next.open = true;
                }
                Ok(())
            });
        }
        if state.removals > 0 && !state.paused {
            step(&|next| {
                next.paused = true;
                Ok(())
            });
        }
        if state.paused {
            let anyway = self.fault == Fault::TakenAwayWhileLent;
            if state.home || anyway {
                step(&|next| {
                    if next.doing.iter().any(|doing| matches!(doing, Doing::Has(_))) || next.there {
                        return Err("memory was taken away that is lent".into());
                    }
                    (next.paused, next.removals) = (false, next.removals - 1);
                    Ok(())
                });
            } else if state.open || state.there {
                step(&|next| Self::take_back(next));
            }
        }
    }

    /// Closes the place first, so that no other worker takes the half; the owner gets it now or after a
    /// batch.
    fn take_back(next: &mut State) -> Result<(), String> {
        next.open = false;
        if std::mem::take(&mut next.there) {
            next.home = true;
        }
        Ok(())
    }

    fn take(next: &mut State, worker: usize) -> Frame {
        next.sent[worker] += 1;
        Frame { source: worker, number: next.sent[worker] }
    }

    /// Sends a frame that cannot go directly: by crossing, or at the owner at once or by its queue.
    fn send_otherwise(&self, next: &mut State, worker: usize) -> Result<(), String> {
        let frame = Self::take(next, worker);
        if worker == OWNER && next.home && next.queue.is_empty() {
            return Self::receive(next, frame);
        }
        next.in_flight[worker] += 1;
        if worker == OWNER {
            next.queue.push_back(frame);
        } else {
            next.rings[worker].push_back(frame);
        }
        Ok(())
    }

    fn receive(next: &mut State, frame: Frame) -> Result<(), String> {
        next.received[frame.source] += 1;
        let expected = next.received[frame.source];
        (frame.number == expected).then_some(()).ok_or_else(|| format!("{frame:?} came as number {expected}"))
    }
}

#[test]
fn in_every_order_each_frame_arrives_once_and_in_its_turn() {
    Model { fault: Fault::None }.explore(0).unwrap();
    let states = Model { fault: Fault::None }.explore(2).unwrap();
    assert!(states > 10_000, "{states}");
}

#[test]
fn each_part_of_the_protocol_is_needed() {
    for fault in [Fault::UnderWayIsNotWaitedFor, Fault::ServedWhileLent, Fault::TakenAwayWhileLent] {
        assert!(Model { fault }.explore(1).is_err(), "{fault:?}");
    }
    assert!(Model { fault: Fault::ForgottenWhileItWaits }.explore(0).is_err());
}
