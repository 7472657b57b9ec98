//! How soon frames between two workers go directly with full rings: at the beginning, and after a stall.
//!
//! ```text
//!  senders of worker 0 ─┬─ cross ──▶ worker 1 ─┬▶ receivers
//!                       └─ directly ───────────┘
//!                           └ per loop: which senders have frames under way to worker 1
//! ```

use super::*;

/// Length of a loop of the senders' worker (ns).
const LOOP: u64 = 10_000;
/// Longest time that frames cross at the beginning, and after a stall (ns).
const SOON: u64 = 6_000_000;

/// Speeds, in loops of the senders' worker.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// The receivers' worker has one loop in so many.
    owner: u64,
    /// A driver looks at its rings once in so many; a slow one leaves no buffers for a while.
    drivers: u64,
    /// Senders per receiver.
    senders: usize,
}

struct Between {
    switch: Switch,
    pace: Pace,
    /// Loops so far.
    loops: u64,
    crossing: Vec<Crossing>,
}

/// One sender since the last [look](Between::look): loops in a row with frames under way to the other
/// worker, now and at most.
#[derive(Clone, Copy, Default)]
struct Crossing {
    loops: u64,
    most: u64,
}

impl Between {
    fn new(scene: &Scene, pace: Pace) -> Self {
        let switch = Switch::new(scene);
        let crossing = vec![Crossing::default(); scene.pairs];
        let mut between = Self { switch, pace, loops: 0, crossing };
        for pair in 0..scene.pairs {
            let to = between.receiver(pair) as u16;
            between.switch.guests[2 * pair].send_to(to);
        }
        between
    }

    /// Returns the port that a sender sends to.
    fn receiver(&self, pair: usize) -> usize {
        2 * (pair - pair % self.pace.senders) + 1
    }

    /// Runs loops for so many ns; `stalled` takes nothing meanwhile.
    fn run(&mut self, ns: u64, stalled: Option<usize>) {
        for _ in 0..ns / LOOP {
            self.loops += 1;
            self.switch.now += LOOP;
            testing::set_time(self.switch.now);
            for (index, guest) in self.switch.guests.iter_mut().enumerate() {
                match index % 2 {
                    0 => guest.send(),
                    // Not all at the same time.
                    _ if !(self.loops + index as u64 / 2).is_multiple_of(self.pace.drivers) => {}
                    _ if Some(index) == stalled => {}
                    _ => guest.receive(),
                }
            }
            self.switch.workers[0].work();
            if self.loops.is_multiple_of(self.pace.owner) {
                self.switch.workers[1].work();
            }
            for (pair, crossing) in self.crossing.iter_mut().enumerate() {
                let sender = self.switch.workers[0].ports[2 * pair].as_ref().unwrap();
                if sender.in_flight_to.iter().any(|frames| *frames > 0) {
                    crossing.loops += 1;
                    crossing.most = crossing.most.max(crossing.loops);
                } else {
                    crossing.loops = 0;
                }
            }
        }
    }

    /// Returns how long one sender's frames crossed at most since the last look (ns): those to `stalled`,
    /// and the others.
    fn look(&mut self, stalled: usize) -> [u64; 2] {
        let mut longest = [0; 2];
        for pair in 0..self.crossing.len() {
            let longest = &mut longest[usize::from(self.receiver(pair) != stalled)];
            *longest = (*longest).max(std::mem::take(&mut self.crossing[pair]).most * LOOP);
        }
        longest
    }
}

fn pace() -> impl Strategy<Value = Pace> {
    let senders = prop_oneof![2 => Just(1usize), 1 => Just(2), 1 => Just(4)];
    (1u64..=4, 1u64..=8, senders).prop_map(|(owner, drivers, senders)| Pace { owner, drivers, senders })
}

fn begin_stall_and_go_on(scene: &Scene, pace: Pace) -> Result<(), TestCaseError> {
    let mut between = Between::new(scene, pace);
    between.run(SOON + 1_000_000, None);
    let at_begin = between.look(1);
    between.run(5_000_000, Some(1));
    let in_stall = between.look(1)[1];
    between.run(SOON + 1_000_000, None);
    let after = between.look(1);
    between.switch.end();
    for (when, longest) in [("begin", at_begin), ("stall of others", [0, in_stall]), ("stall", after)] {
        prop_assert!(longest.iter().all(|ns| *ns < SOON), "after the {}, ns: {:?}", when, longest);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn every_pair_is_lent_soon(mut scene in scene(), pace in pace()) {
        scene.workers = 2;
        if pace.senders > 1 {
            // The queues of four full rings take longer to copy.
            scene.shape.ring = scene.shape.ring.min(256);
        }
        begin_stall_and_go_on(&scene, pace)?;
    }
}

/// The ring between the workers holds frames of all of them, each of which came too late.
#[test]
fn eight_pairs_are_lent_soon_by_a_slower_worker() {
    for (size, pairs) in [(1518, 8), (4096, 4), (64, 8)] {
        by_a_slower_worker(size, pairs, 1);
    }
}

#[test]
fn four_senders_to_one_receiver_are_lent_soon_by_a_slower_worker() {
    by_a_slower_worker(1518, 4, 4);
}

fn by_a_slower_worker(size: u32, pairs: usize, senders: usize) {
    let scene = Scene { pairs, shape: Shape { size, ring: 256, packed: false }, workers: 2 };
    begin_stall_and_go_on(&scene, Pace { owner: 3, drivers: 4, senders }).unwrap();
}
