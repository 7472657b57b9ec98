//! Queues killed at any store to memory that outlives them.
//!
//! ```text
//!   steps ──▶ device ──cut after n stores──▶ gone       guest memory and region: as they were
//!                                              │
//!   driver goes on ◀── recovery (cut as well) ◀┘
//! ```

use super::*;
use crate::virtio::QueueState;
use crate::virtio::inflight::cut;

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

impl World {
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
