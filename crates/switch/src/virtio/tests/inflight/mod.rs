//! Queues with an in-flight record, and a driver that checks them: every chain comes back exactly once, nothing
//! is sent twice, a received frame is whole.
//!
//! - `kills`: queues killed at any store
//! - `records`: other records that a queue finds at its start

mod kills;
mod records;

use super::super::{Chain, Features, GuestMemory, Inflight, Queue, RingLayout, Single};
use super::{GUEST_ADDR, layout, of_driver, spec};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tidegate_frontend::driver::{Buffer, DriverQueue};
use tidegate_frontend::memory::SharedMemory;

/// Virtqueue numbers of the protocol.
const RX: u16 = 0;
const TX: u16 = 1;

#[derive(Clone, Debug)]
enum Step {
    /// The driver adds a chain.
    Add {
        buffers: usize,
        indirect: bool,
    },
    /// The driver shows added chains.
    Show,
    /// The driver takes completed chains.
    Reap,
    Look,
    Pop,
    /// Pops singles and puts the last of them back.
    Singles {
        most: usize,
        back: usize,
    },
    Rewind(u16),
    /// Of a transmit queue: completes chains out of order. Of a receive queue: completes a frame in so many
    /// chains.
    Complete {
        which: Vec<usize>,
    },
    /// Of a transmit queue: completes the first of those that were popped together last.
    CompleteRun(usize),
    Publish,
    /// Of a receive queue in any order: keeps so many singles.
    Keep(usize),
    /// Completes kept chains out of order, as a frame.
    CompleteKept {
        which: Vec<usize>,
    },
}

fn driver_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => Just(Step::Add { buffers: 1, indirect: false }),
        2 => (1usize..4, any::<bool>()).prop_map(|(buffers, indirect)| Step::Add { buffers, indirect }),
        2 => Just(Step::Show),
        2 => Just(Step::Reap),
    ]
}

fn device_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => Just(Step::Look),
        2 => Just(Step::Pop),
        3 => (1usize..6, 0usize..6).prop_map(|(most, back)| Step::Singles { most, back }),
        1 => (1u16..4).prop_map(Step::Rewind),
        3 => prop::collection::vec(0usize..64, 1..4).prop_map(|which| Step::Complete { which }),
        3 => (1usize..6).prop_map(Step::CompleteRun),
        2 => Just(Step::Publish),
        2 => (1usize..5).prop_map(Step::Keep),
        3 => prop::collection::vec(0usize..64, 1..4).prop_map(|which| Step::CompleteKept { which }),
    ]
}

/// One side's state: a driver, and devices one after the other.
struct World {
    driver: DriverQueue,
    map: Arc<GuestMemory>,
    layout: RingLayout,
    features: Features,
    index: u16,
    region: Inflight,
    device: Option<Queue>,
    /// Chains that the driver gave and did not get back: their numbers, by head.
    given: BTreeMap<u16, u64>,
    next_chain: u64,
    /// Popped chains in order: their tokens; `None` if completed.
    popped: Vec<Option<u16>>,
    /// How many of the last were popped one by one, as `rewind` requires.
    one_by_one: usize,
    /// How many of the last were popped together as singles.
    together: usize,
    /// Chains whose frame was sent.
    sent: BTreeSet<u64>,
    next_frame: u32,
    /// The frame being received: its number, and the remaining chains.
    open: Option<(u32, u32, u32)>,
    /// Tokens of kept chains.
    kept: Vec<u16>,
    /// Chains that were kept: after a kill they may come back empty.
    may_be_empty: BTreeSet<u64>,
    /// The chain that came back last.
    last_back: u64,
}

impl World {
    fn new(size: u16, features: Features, index: u16, base: u16) -> Self {
        let base = if features.packed { (base & 0x8000) | ((base & 0x7fff) % size) } else { base };
        let memory = Arc::new(SharedMemory::new(GUEST_ADDR, 1 << 20).unwrap());
        let map = Arc::new(GuestMemory::map(vec![spec(&memory)]).unwrap());
        let driver = DriverQueue::starting_at(&memory, size, of_driver(features), base);
        let layout = layout(&driver, &memory);
        let mut world = Self {
            driver,
            map,
            layout,
            features,
            index,
            region: Inflight::create(2, size).unwrap(),
            device: None,
            given: BTreeMap::new(),
            next_chain: 0,
            popped: Vec::new(),
            one_by_one: 0,
            together: 0,
            sent: BTreeSet::new(),
            next_frame: 0,
            open: None,
            kept: Vec::new(),
            may_be_empty: BTreeSet::new(),
            last_back: 0,
        };
        let device = world.start(world.driver.base());
        assert_eq!(device.recovered(), None);
        world.device = Some(device);
        world
    }

    /// Starts a new process: it has only the descriptors of memory and region.
    fn start(&self, base: u32) -> Queue {
        let region = Inflight::open(self.region.fd().try_clone_to_owned().unwrap()).unwrap();
        let inflight = region.queue(self.index);
        Queue::with_inflight(Arc::clone(&self.map), self.layout, base, self.features, inflight).unwrap()
    }

    fn driver_does(&mut self, step: &Step) {
        match step {
            Step::Add { buffers, indirect } => {
                let write = self.index == RX;
                let chain: Vec<Buffer> = (0..*buffers as u64)
                    .map(|i| Buffer { addr: GUEST_ADDR + i * 64, len: 64, writable: write })
                    .collect();
                let head =
                    match *indirect && self.features.indirect && *buffers <= usize::from(self.layout.size) {
                        true => self.driver.add_indirect(&chain),
                        false => self.driver.add(&chain),
                    };
                if let Some(head) = head {
                    assert_eq!(self.given.insert(head, self.next_chain), None);
                    self.next_chain += 1;
                }
            }
            Step::Show => {
                let _ = self.driver.publish();
            }
            Step::Reap => {
                while let Some(used) = self.driver.reap() {
                    let chain = self.given.remove(&used.head);
                    assert!(chain.is_some(), "{} came back twice", used.head);
                    if self.features.in_order {
                        let before = self.given.values().filter(|other| chain > Some(**other)).count();
                        assert_eq!(before, 0, "chains came back before older ones");
                    }
                    if self.index == RX {
                        self.last_back = chain.unwrap();
                        self.receive(used.len);
                    }
                }
            }
            _ => unreachable!("no step of the driver"),
        }
    }

    /// Receives one buffer of a frame: its length encodes which, and of how many.
    fn receive(&mut self, len: u32) {
        if len == 0 && self.may_be_empty.contains(&self.last_back) {
            return assert_eq!(self.open, None, "a frame with an empty buffer");
        }
        assert_ne!(len, 0, "an empty receive buffer");
        let (frame, chains, which) = (len >> 8, len >> 4 & 15, len & 15);
        assert_eq!(self.open.unwrap_or((frame, chains, 0)), (frame, chains, which), "a frame in pieces");
        self.open = (which + 1 < chains).then_some((frame, chains, which + 1));
    }

    fn device_does(&mut self, step: &Step) {
        let transmit = self.index == TX;
        let mut chain = Chain::new();
        let device = self.device.as_mut().unwrap();
        match step {
            Step::Look => {
                device.available().unwrap();
            }
            Step::Pop => {
                let popped =
                    if transmit { device.pop_readable(&mut chain) } else { device.pop_writable(&mut chain) };
                if popped.unwrap() {
                    self.popped.push(Some(chain.head()));
                    self.one_by_one += 1;
                    self.together = 0;
                }
            }
            Step::Singles { most, back } => {
                let mut singles = vec![Single::EMPTY; *most];
                let popped = match transmit {
                    true => device.pop_singles::<false>(&mut singles),
                    false => device.pop_singles::<true>(&mut singles),
                };
                let (kept, back) = singles[..popped].split_at(popped - popped.min(*back));
                device.put_back(back);
                if !kept.is_empty() {
                    self.one_by_one = 0;
                }
                self.together = kept.len();
                self.popped.extend(kept.iter().map(|single| Some(single.head)));
            }
            Step::Rewind(n) => {
                let most = self.one_by_one.min((*n).into());
                let last = self.popped.iter().rev().take(most).take_while(|head| head.is_some()).count();
                self.one_by_one -= last;
                device.rewind(last as u16);
                self.popped.truncate(self.popped.len() - last);
            }
            Step::Complete { which } if transmit => {
                let mut done = Vec::new();
                for which in which {
                    let mut open: Vec<_> = self.popped.iter_mut().filter(|head| head.is_some()).collect();
                    if !open.is_empty() {
                        let which = which % open.len();
                        done.extend(open[which].take());
                    }
                }
                for token in &done {
                    let chain = self.given[&device.head_of(*token)];
                    assert!(self.sent.insert(chain), "sent twice");
                }
                device.complete_all(done.into_iter().map(|head| (head, 0)));
            }
            Step::CompleteRun(most) if transmit => {
                // Like the direct way: the last that were popped together, from the first of them on.
                let first = self.popped.len() - self.together.min(self.popped.len());
                let run: Vec<u16> =
                    self.popped[first..].iter_mut().take(*most).map_while(Option::take).collect();
                for token in &run {
                    let chain = self.given[&device.head_of(*token)];
                    assert!(self.sent.insert(chain), "sent twice");
                }
                let run: Vec<_> = run.iter().map(|head| Single { head: *head, ..Single::EMPTY }).collect();
                device.complete_singles(&run);
                self.together = 0;
            }
            Step::CompleteRun(_) => {}
            Step::Complete { which } => {
                let mut open: Vec<_> = self.popped.iter_mut().filter(|head| head.is_some()).collect();
                let chains = which.len().min(open.len()) as u32;
                let frame = self.next_frame;
                self.next_frame += 1;
                let done: Vec<_> =
                    open.iter_mut().take(chains as usize).map(|head| head.take().unwrap()).collect();
                let lengths = (0..chains).map(|i| (frame + 1) << 8 | chains << 4 | i);
                device.complete_all(done.into_iter().zip(lengths));
            }
            Step::Publish => {
                let _ = device.publish();
            }
            Step::Keep(most) => {
                // No others are open, as between two posts.
                if transmit || self.features.in_order || self.popped.iter().any(Option::is_some) {
                    return;
                }
                let mut singles = vec![Single::EMPTY; *most];
                // A driver's chain may be marked before a cut.
                self.may_be_empty.extend(self.given.values());
                let count = device.pop_singles::<true>(&mut singles);
                device.keep(&singles[..count]);
                self.kept.extend(singles[..count].iter().map(|single| single.head));
                (self.one_by_one, self.together) = (0, 0);
            }
            Step::CompleteKept { which } => {
                if self.kept.is_empty() || self.popped.iter().any(Option::is_some) {
                    return;
                }
                let chains = which.len().min(self.kept.len()) as u32;
                let frame = self.next_frame;
                self.next_frame += 1;
                let done: Vec<_> = which[..chains as usize]
                    .iter()
                    .zip(0..)
                    .map(|(which, i): (_, u32)| {
                        let head = self.kept.swap_remove(which % self.kept.len());
                        (head, (frame + 1) << 8 | chains << 4 | i)
                    })
                    .collect();
                device.complete_kept(done.into_iter());
            }
            _ => unreachable!("no step of the device"),
        }
    }

    /// Gets all chains back.
    fn drain(mut self) {
        for _ in 0..100_000 {
            self.driver_does(&Step::Show);
            self.driver_does(&Step::Reap);
            if self.given.is_empty() {
                assert_eq!(self.open, None, "half a frame was received");
                assert_eq!(self.driver.free(), self.layout.size);
                return;
            }
            let open = self.popped.iter().flatten().count();
            if open == 0 && !self.kept.is_empty() {
                self.device_does(&Step::CompleteKept { which: vec![0; self.kept.len().min(15)] });
            }
            if open > 0 {
                self.device_does(&Step::Complete { which: vec![0; open.min(15)] });
            }
            self.device_does(&Step::Publish);
            self.device_does(&Step::Look);
            self.device_does(&Step::Pop);
        }
        panic!("stranded: {:?}", self.given);
    }
}
