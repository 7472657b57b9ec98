//! Whatever happens, each request comes back once, in order, or the device still has it: a model that only counts.
//!
//! ```text
//!  random events ─▶ fabric ─▶ completions ─▶ Model: posted in order, done up to here, failed
//! ```

use super::*;
use crate::simulated::{Datagram, Fate};
use proptest::prelude::*;
use std::collections::VecDeque;

#[derive(Clone, Copy, Debug)]
enum Event {
    Send { from: usize, is_signalled: bool, key: u32 },
    Receive { at: usize },
    TakeSends { at: usize, most: usize },
    TakeReceives { at: usize, most: usize },
    Forge { to: usize, key: u32, source: u32 },
    Lose,
    Delay,
    Hold(bool),
    Release,
    Pause(usize),
    Run(usize),
    Resume(usize),
    Down(usize, bool),
    FailNextSend(usize),
    Break(usize),
}

fn event() -> impl Strategy<Value = Event> {
    let at = 0..2_usize;
    let key = prop_oneof![9 => Just(KEY), 1 => Just(KEY + 1)];
    prop_oneof![
        12 => (at.clone(), any::<bool>(), key.clone())
            .prop_map(|(from, is_signalled, key)| Event::Send { from, is_signalled, key }),
        12 => at.clone().prop_map(|at| Event::Receive { at }),
        6 => (at.clone(), 1..6_usize).prop_map(|(at, most)| Event::TakeSends { at, most }),
        6 => (at.clone(), 1..6_usize).prop_map(|(at, most)| Event::TakeReceives { at, most }),
        4 => (at.clone(), key, any::<u32>()).prop_map(|(to, key, source)| Event::Forge { to, key, source }),
        1 => Just(Event::Lose),
        1 => Just(Event::Delay),
        2 => any::<bool>().prop_map(Event::Hold),
        2 => Just(Event::Release),
        1 => at.clone().prop_map(Event::Pause),
        2 => at.clone().prop_map(Event::Run),
        2 => at.clone().prop_map(Event::Resume),
        1 => (at.clone(), any::<bool>()).prop_map(|(at, is_active)| Event::Down(at, is_active)),
        1 => at.clone().prop_map(Event::FailNextSend),
        1 => at.prop_map(Event::Break),
    ]
}

/// Requests of one direction of a queue pair that are not yet done, oldest first, as their user knows them.
#[derive(Default)]
struct Requests {
    open: VecDeque<(u64, bool)>,
    next: u64,
}

impl Requests {
    fn post(&mut self, is_signalled: bool) {
        self.open.push_back((self.next, is_signalled));
        self.next += 1;
    }

    /// A completion came: it is of the oldest that is to be told, or of one that failed before that.
    fn complete(&mut self, completion: &Completion) -> Result<(), TestCaseError> {
        while let Some((id, is_signalled)) = self.open.pop_front() {
            if id == completion.id {
                prop_assert!(is_signalled || completion.status != Status::Success, "not to be told: {id}");
                return Ok(());
            }
            prop_assert!(!is_signalled, "{completion:?} before {id}, which is to be told");
        }
        Err(TestCaseError::fail(format!("{completion:?} is of no request, or came twice")))
    }
}

struct Scene {
    fabric: Fabric,
    sides: [Side; 2],
    sends: [Requests; 2],
    receives: [Requests; 2],
    /// Datagrams that came, as the receivers were told.
    came: u64,
}

impl Scene {
    fn new() -> Self {
        let fabric = Fabric::new();
        let sides = ["192.0.2.1", "192.0.2.2"].map(|address| Side::new(&fabric, address));
        Self { fabric, sides, sends: Default::default(), receives: Default::default(), came: 0 }
    }

    fn apply(&mut self, event: Event) -> Result<(), TestCaseError> {
        match event {
            Event::Send { from, is_signalled, key } => {
                let (side, to) = (&self.sides[from], &self.sides[1 - from]);
                let handle = side.to(to);
                let send = Send {
                    id: self.sends[from].next,
                    pieces: &[Piece { region: &side.region, from: 0, len: 8 }],
                    is_signalled,
                    to: &handle,
                    queue_pair: to.pair.number(),
                    q_key: key,
                };
                let has_place = self.sends[from].open.len() < DEPTHS.send as usize;
                // SAFETY: the test writes to no memory.
                let posted = unsafe { side.pair.post_send(&[send]) };
                prop_assert_eq!(posted.is_ok(), has_place);
                if has_place {
                    self.sends[from].post(is_signalled);
                }
            }
            Event::Receive { at } => {
                let side = &self.sides[at];
                let id = self.receives[at].next;
                let from = (BUFFERS + id as usize % BUFFERS) * BUFFER as usize;
                let has_place = self.receives[at].open.len() < DEPTHS.receive as usize;
                let pieces = &[Piece { region: &side.region, from, len: BUFFER }];
                // SAFETY: the test reads no memory.
                let posted = unsafe { side.pair.post_receive(&[Receive { id, pieces }]) };
                prop_assert_eq!(posted.is_ok(), has_place);
                if has_place {
                    self.receives[at].post(true);
                }
            }
            Event::TakeSends { at, most } => _ = self.take(at, most, false)?,
            Event::TakeReceives { at, most } => _ = self.take(at, most, true)?,
            Event::Forge { to, key, source } => {
                let side = &self.sides[to];
                self.fabric.forge(Datagram {
                    from: self.sides[1 - to].address,
                    source,
                    to: side.address,
                    queue_pair: side.pair.number(),
                    q_key: key,
                    traffic_class: 0,
                    bytes: vec![0; 8],
                });
            }
            Event::Lose => self.fabric.lose(0),
            Event::Delay => self.fabric.delay(0),
            Event::Hold(holds) => self.fabric.hold(holds),
            Event::Release => drop(self.fabric.release(2)),
            Event::Pause(at) => self.sides[at].orders.pause(),
            Event::Run(at) => drop(self.sides[at].orders.run(1)),
            Event::Resume(at) => self.sides[at].orders.resume(),
            Event::Down(at, is_active) => self.sides[at].orders.set_active(is_active),
            Event::FailNextSend(at) => {
                let number = self.sides[at].pair.number();
                assert!(self.sides[at].orders.fail_next_send(number, Status::Failed(9)));
            }
            Event::Break(at) => {
                assert!(self.sides[at].orders.break_queue_pair(self.sides[at].pair.number()));
            }
        }
        Ok(())
    }

    fn take(&mut self, at: usize, most: usize, is_receive: bool) -> Result<usize, TestCaseError> {
        let (queue, requests) = match is_receive {
            true => (&self.sides[at].receives, &mut self.receives[at]),
            false => (&self.sides[at].sends, &mut self.sends[at]),
        };
        let mut completions = [Completion::default(); 8];
        let count = queue.poll(&mut completions[..most]).unwrap();
        for completion in &completions[..count] {
            prop_assert_eq!(completion.is_receive, is_receive && completion.status == Status::Success);
            requests.complete(completion)?;
            self.came += u64::from(is_receive && completion.status == Status::Success);
        }
        Ok(count)
    }

    /// Breaks the queue pairs: all that is open comes back.
    fn end(&mut self) -> Result<(), TestCaseError> {
        for at in 0..2 {
            self.apply(Event::Break(at))?;
            for is_receive in [false, true] {
                while self.take(at, 8, is_receive)? > 0 {}
            }
            // Sends that were not told, and were done before the last that was, have no completion of their own.
            let untold = self.sends[at].open.iter().all(|(_, is_signalled)| !is_signalled);
            prop_assert!(untold && self.receives[at].open.is_empty());
            prop_assert_eq!(self.sides[at].orders.posted(self.sides[at].pair.number()), Some((0, 0)));
        }
        prop_assert_eq!(self.came, self.fabric.fates().of(Fate::Delivered));
        Ok(())
    }
}

proptest! {
    #[test]
    fn requests_come_back_once_and_in_order(events in proptest::collection::vec(event(), 0..120)) {
        let mut scene = Scene::new();
        for event in events {
            scene.apply(event)?;
        }
        scene.end()?;
    }
}
