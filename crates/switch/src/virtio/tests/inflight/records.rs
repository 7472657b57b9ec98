//! Records that a queue finds at its start: by front ends that lie, of other rings, of queues that stopped.

use super::*;
use crate::virtio::inflight::Record;
use crate::virtio::layout::Kind;
use crate::virtio::{QueueState, RingError};

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
