//! Queues killed at any store to memory that outlives them, against the driver's expectations: every chain
//! comes back exactly once, nothing is sent twice, a received frame is whole.
//!
//! ```text
//!   steps ──▶ device ──cut after n stores──▶ gone       guest memory and region: as they were
//!                                              │
//!   driver goes on ◀── recovery (cut as well) ◀┘
//! ```

use super::super::inflight::{Record, cut};
use super::super::layout::Kind;
use super::super::{
    Chain, Features, GuestMemory, Inflight, Queue, QueueState, RingError, RingLayout, Single,
};
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

/// Ends a device during `step`, after so many stores, or right after it.
#[derive(Clone, Debug)]
struct Kill {
    step: Step,
    stores: u32,
    /// The driver's steps meanwhile.
    meanwhile: Vec<Step>,
    /// Recoveries that are killed too: their stores.
    again: Vec<u32>,
}

/// A driver that reuses completed chains at once.
fn take_and_give(chains: usize) -> Vec<Step> {
    let add = vec![Step::Add { buffers: 1, indirect: false }; chains];
    [vec![Step::Reap], add, vec![Step::Show]].concat()
}

fn kill() -> impl Strategy<Value = Kill> {
    let meanwhile =
        prop_oneof![prop::collection::vec(driver_step(), 0..4), (1usize..4).prop_map(take_and_give),];
    let again = prop_oneof![2 => Just(Vec::new()), 1 => prop::collection::vec(0u32..24, 1..3)];
    (device_step(), 0u32..16, meanwhile, again).prop_map(|(step, stores, meanwhile, again)| Kill {
        step,
        stores,
        meanwhile,
        again,
    })
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

    /// Returns whether the step was cut.
    fn kill(&mut self, kill: &Kill) -> bool {
        let whole = cut::after(kill.stores, || self.device_does(&kill.step));
        self.device = None;
        self.popped.clear();
        self.kept.clear();
        (self.one_by_one, self.together) = (0, 0);
        kill.meanwhile.iter().for_each(|step| self.driver_does(step));
        assert_eq!(self.region.queue(self.index).unwrap().state(), QueueState::InService);
        // An old base, which means nothing.
        for stores in &kill.again {
            let _ = cut::after(*stores, || self.start(0));
        }
        let mut device = self.start(0);
        assert!(device.recovered().is_some());
        assert_eq!(device.in_flight(), 0);
        assert!(device.publish(), "the driver may be owed an interrupt");
        self.device = Some(device);
        whole.is_none()
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

fn is_drivers(step: &Step) -> bool {
    matches!(step, Step::Add { .. } | Step::Show | Step::Reap)
}

#[derive(Clone, Debug)]
enum Event {
    Step(Step),
    Kill(Kill),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        12 => driver_step().prop_map(Event::Step),
        12 => device_step().prop_map(Event::Step),
        1 => kill().prop_map(Event::Kill),
    ]
}

fn run(world: &mut World, events: &[Event]) {
    for event in events {
        match event {
            Event::Step(step) if is_drivers(step) => world.driver_does(step),
            Event::Step(step) => world.device_does(step),
            Event::Kill(kill) => {
                world.kill(kill);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn a_kill_at_any_store_strands_nothing_and_repeats_nothing(
        events in prop::collection::vec(event(), 1..300),
        (packed, size) in prop_oneof![
            (0u32..5).prop_map(|log| (false, 1u16 << log)),
            (1u16..=16).prop_map(|size| (true, size)),
        ],
        in_order in any::<bool>(),
        index in prop_oneof![Just(RX), Just(TX)],
        base in prop_oneof![Just(0u16), 65500u16..=65535, any::<u16>()],
        event_idx in any::<bool>(),
        indirect in any::<bool>(),
    ) {
        let mut world = World::new(size, Features { packed, event_idx, indirect, in_order }, index, base);
        run(&mut world, &events);
        world.drain();
    }

}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// One busy queue, cut at each of the stores of each of its steps in turn.
    #[test]
    fn every_store_of_a_step_is_a_good_one_to_be_killed_at(
        before in prop::collection::vec(
            prop_oneof![driver_step().prop_map(Event::Step), device_step().prop_map(Event::Step)], 0..40),
        offered in 0usize..8,
        last in prop::collection::vec(device_step(), 0..3),
        chains in 1usize..4,
        (packed, size) in prop_oneof![Just((false, 8u16)), Just((true, 7)), Just((true, 8))],
        in_order in any::<bool>(),
        index in prop_oneof![Just(RX), Just(TX)],
    ) {
        let offer = [vec![Step::Add { buffers: 1, indirect: false }; offered], vec![Step::Show, Step::Look]];
        let before: Vec<_> = before.into_iter().chain(offer.concat().into_iter().map(Event::Step))
            .chain(last.into_iter().map(Event::Step)).collect();
        for step in [
            Step::Singles { most: 5, back: 5 },
            Step::Singles { most: 5, back: 3 },
            Step::Pop,
            Step::Rewind(3),
            Step::Complete { which: vec![2, 1, 0] },
            Step::CompleteRun(5),
            Step::Publish,
            Step::Keep(3),
            Step::CompleteKept { which: vec![2, 0, 1] },
        ] {
            for stores in 0.. {
                let features = Features { packed, event_idx: true, indirect: true, in_order };
                let mut world = World::new(size, features, index, 0x8000);
                run(&mut world, &before);
                let again = if stores % 2 == 1 { vec![stores / 2] } else { Vec::new() };
                let meanwhile = take_and_give(chains);
                let kill = Kill { step: step.clone(), stores, meanwhile, again };
                let cut = world.kill(&kill);
                world.drain();
                if !cut {
                    break;
                }
            }
        }
    }
}

/// Possible contents of a region by a front end.
#[derive(Clone, Debug)]
struct Nonsense {
    packed: bool,
    commit: (u16, u16, u16),
    lost: u16,
    /// By id.
    places: Vec<(u16, u16)>,
    /// As long as the ring.
    journal: Vec<u64>,
}

fn nonsense(packed: bool, size: u16) -> impl Strategy<Value = Nonsense> {
    let number = || prop_oneof![4 => 0u16..20, 1 => 0x8000u16..0x8014, 1 => any::<u16>()];
    let record = (number(), 0u16..4, prop_oneof![Just(0u32), any::<u32>()]);
    let record = prop_oneof![
        8 => record.prop_map(|(id, places, len)| Record { id, places, len }.pack()),
        1 => any::<u64>(),
    ];
    let places = prop_oneof![6 => Just(1u16), 1 => 0u16..4, 1 => any::<u16>()];
    let words = (
        (number(), number(), number()),
        prop_oneof![4 => Just(0u16), 1 => number()],
        prop::collection::vec((0..size, places), 0..6),
        prop::collection::vec(record, size as usize),
    );
    words.prop_map(move |(commit, lost, places, journal)| Nonsense { packed, commit, lost, places, journal })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// Whatever it says: a queue that works in its own ring, or an error with the reason.
    #[test]
    fn a_region_that_lies_harms_no_memory(
        nonsense in prop_oneof![nonsense(false, 8), nonsense(true, 13)],
        index in prop_oneof![Just(RX), Just(TX)],
        in_order in any::<bool>(),
        steps in prop::collection::vec(prop_oneof![driver_step(), device_step()], 0..60),
    ) {
        let Nonsense { packed, commit, lost, places, journal } = nonsense;
        let size = journal.len() as u16;
        let mut world = World::new(size, Features { packed, event_idx: true, indirect: true, in_order }, index, 0);
        world.device = None;
        for step in &steps {
            if let Step::Add { .. } | Step::Show = step {
                world.driver_does(step);
            }
        }
        let region = world.region.queue(index).unwrap();
        region.enter(&world.layout, Kind { packed, in_order }, commit, lost);
        places.into_iter().for_each(|(id, places)| region.mark(id, places));
        (0..).zip(journal).for_each(|(n, record)| region.log(n, record));
        let memory = Arc::clone(&world.map);
        let Ok(mut device) = Queue::with_inflight(memory, world.layout, 0, world.features, Some(region)) else {
            return Ok(());
        };
        let mut chain = Chain::new();
        let mut singles = [Single::EMPTY; 4];
        for _ in 0..40 {
            if device.available().is_err() {
                break;
            }
            let popped = if index == TX {
                device.pop_singles::<false>(&mut singles)
            } else {
                device.pop_singles::<true>(&mut singles)
            };
            device.complete_all(singles[..popped].iter().map(|single| (single.head, 1)));
            let one = if index == TX { device.pop_readable(&mut chain) } else { device.pop_writable(&mut chain) };
            match one {
                Ok(true) => device.complete(chain.head(), 1),
                Ok(false) => {}
                Err(_) => break,
            }
            let _ = device.publish();
        }
    }
}

/// Chains in flight come back or are popped again, so no such ring has lost any.
#[test]
fn in_order_no_lost_chain_is_believed() {
    for (packed, index) in [(false, TX), (false, RX), (true, TX), (true, RX)] {
        let features = Features { packed, in_order: true, ..Features::default() };
        let mut world = World::new(8, features, index, 0);
        world.device = None;
        let region = world.region.queue(index).unwrap();
        let first = Queue::first_base(packed) as u16;
        let commit = (first, if index == TX { first } else { 0 }, first);
        for (lost, taken) in [(0, true), (1, false)] {
            region.enter(&world.layout, Kind { packed, in_order: true }, commit, lost);
            let queue =
                Queue::with_inflight(Arc::clone(&world.map), world.layout, 0, features, Some(region.clone()));
            assert_eq!(queue.is_ok(), taken, "packed: {packed}, queue {index}, {lost} lost");
        }
    }
}

#[test]
fn a_queue_stopped_in_order_says_where_and_is_not_recovered() {
    for (packed, in_order) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut world = World::new(8, Features { packed, in_order, ..Features::default() }, TX, 0);
        world.driver_does(&Step::Add { buffers: 1, indirect: false });
        world.driver_does(&Step::Show);
        for step in [Step::Look, Step::Pop, Step::Complete { which: vec![0] }, Step::Publish] {
            world.device_does(&step);
        }
        let region = world.region.queue(TX).unwrap();
        assert_eq!(region.state(), QueueState::InService);
        assert_eq!(world.region.queue(RX).unwrap().state(), QueueState::Unused);
        let base = world.device.take().unwrap().retire();
        assert_eq!(region.state(), QueueState::Stopped(base));
        world.driver_does(&Step::Reap);
        assert_eq!(world.driver.base(), base);
        // At the front end's base, not the last one's stop.
        let device = world.start(base);
        assert_eq!((device.recovered(), device.base()), (None, base));
        world.device = Some(device);
        world.drain();
    }
}

#[test]
fn the_record_of_another_ring_is_not_recovered() {
    let world = World::new(8, Features::default(), TX, 0);
    let region = || world.region.queue(TX);
    let start = |layout, features| {
        Queue::with_inflight(Arc::clone(&world.map), layout, 0, features, region()).unwrap().recovered()
    };
    let layout = world.layout;
    assert_eq!(start(layout, Features::default()), Some(0));
    assert_eq!(start(RingLayout { size: 4, ..layout }, Features::default()), None);
    assert_eq!(start(RingLayout { size: 4, ..layout }, Features::default()), Some(0));
    assert_eq!(start(RingLayout { size: 4, desc: layout.desc + 16, ..layout }, Features::default()), None);
    assert_eq!(start(layout, Features { packed: true, ..Features::default() }), None);
    assert_eq!(start(layout, Features { in_order: true, ..Features::default() }), None);
    let large = RingLayout { size: 16, ..layout };
    let error = Queue::with_inflight(Arc::clone(&world.map), large, 0, Features::default(), region());
    assert_eq!(error.map(|_| ()), Err(RingError::Inflight("the region is for fewer entries")));
}

#[test]
fn a_region_is_of_a_size_and_for_so_many_queues() {
    for (queues, entries) in [(0, 8), (257, 8), (2, 0), (2, 32769)] {
        let error = Inflight::create(queues, entries).expect_err("refused");
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{error}");
    }
    let region = Inflight::create(256, 32768).unwrap();
    assert!(region.queue(255).is_some() && region.queue(256).is_none());
    let again = Inflight::open(region.fd().try_clone_to_owned().unwrap()).unwrap();
    assert_eq!((again.queues(), again.entries(), again.bytes()), (256, 32768, region.bytes()));
    // Both place the last entry of the last queue in the file, and equally.
    let layout = RingLayout { size: 32768, desc: 0, avail: 0, used: 0 };
    let kind = Kind { packed: true, in_order: false };
    region.queue(255).unwrap().enter(&layout, kind, (0, 0, 0), 0);
    region.queue(255).unwrap().mark(32767, 9);
    region.queue(255).unwrap().log(32767, 7);
    let left = again.queue(255).unwrap().snapshot(&layout, kind).unwrap().unwrap();
    assert_eq!((left.places[32767], left.journal[32767].pack()), (9, 7));
}
