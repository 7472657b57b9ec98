use super::*;
use crate::slots::{Owner, Slots};
use crate::worker::testing;

/// Workers that know each other, each with a port of its number.
struct Scene {
    workers: Vec<Worker>,
    handles: Arc<[WorkerHandle]>,
}

impl Scene {
    fn new(count: usize) -> Self {
        let (mut workers, handles): (Vec<_>, Vec<_>) = testing::workers(count).into_iter().unzip();
        for index in 0..count {
            let info = testing::add_port_with(&mut workers[index], index as PortIndex, "");
            for worker in &mut workers {
                worker.set_info(index as PortIndex, Some(info.clone()));
            }
        }
        Self { workers, handles: handles.into() }
    }

    fn begin(&self, port: PortIndex, from: usize, to: usize) -> Receiver<Outcome> {
        begin(&self.handles, port, (from, to), Vec::new(), 10_000_000)
    }

    /// Runs turns until a move is over.
    fn finish(&mut self, outcome: &Receiver<Outcome>) -> Outcome {
        loop {
            for worker in &mut self.workers {
                worker.work();
            }
            if let Ok(outcome) = outcome.try_recv() {
                return outcome;
            }
        }
    }

    fn move_now(&mut self, port: PortIndex, from: usize, to: usize) {
        let outcome = self.begin(port, from, to);
        self.finish(&outcome).unwrap();
    }
}

/// Its driver may have kicked while neither worker had it.
#[test]
fn a_quiet_port_is_polled_where_it_arrives() {
    let mut scene = Scene::new(3);
    scene.workers[0].ports[0].as_mut().unwrap().quiet = true;
    scene.workers[0].polled.clear();
    scene.move_now(0, 0, 1);
    let [from, to, other] = &scene.workers[..] else { unreachable!() };
    assert_eq!((&to.polled[..], to.realtime), (&[1, 0][..], 0));
    assert!(!to.ports[0].as_ref().unwrap().quiet && to.ports[0].as_ref().unwrap().pauses == 0);
    assert!(from.ports[0].is_none() && from.owned.is_empty() && from.polled.is_empty());
    assert_eq!([from, to, other].map(|worker| worker.infos[0].as_ref().unwrap().worker), [1; 3]);
}

/// Its frames from the new worker would overtake frames that the others have not taken.
#[test]
fn a_port_stays_if_other_workers_do_not_take_its_frames() {
    let mut scene = Scene::new(2);
    let mut slots = Slots::new(2, 0, 0);
    let frame = slots.take().unwrap();
    (frame.get_mut().source, frame.get_mut().wire_bytes) = (0, 100);
    scene.workers[0].route(1, &[frame]);
    let outcome = begin(&scene.handles, 0, (0, 1), Vec::new(), 1_000_000);
    let error = loop {
        scene.workers[0].work();
        if let Ok(outcome) = outcome.try_recv() {
            break outcome.unwrap_err();
        }
    };
    assert!(error.contains("did not take the port's frames"), "{error}");
    assert_eq!(scene.workers[0].ports[0].as_ref().unwrap().pauses, 0);
    assert!(scene.workers[0].is_settled());
    scene.workers[1].work();
    let fate = scene.workers[0].peers[1].as_mut().unwrap().0.receive_fate().unwrap();
    slots.give(fate.frame);
}

/// More is under way than a loop takes in; later frames stay behind.
#[test]
fn frames_under_way_are_taken_in_first_and_within_the_budget() {
    const FRAMES: u32 = 60;
    let mut scene = Scene::new(3);
    let mut slots = Slots::new(256, 2, 2);
    let frame = |slots: &mut Slots, number| {
        let reference = slots.take().unwrap();
        let frame = reference.get_mut();
        (frame.source, frame.worker, frame.owner) = (2, 2, Owner::Ring { queue: 0, head: 0 });
        (frame.len, frame.wire_bytes) = (number, 9000);
        reference
    };
    // Half of them go to the old worker, which does not reach them, the others to the new one.
    for number in 0..FRAMES / 2 {
        let frame = frame(&mut slots, number);
        scene.workers[2].route(0, &[frame]);
    }
    let outcome = scene.begin(0, 0, 1);
    scene.workers[0].inbox.next().unwrap()(&mut scene.workers[0]);
    assert!(scene.workers[0].try_to_leave());
    scene.workers[1].inbox.next().unwrap()(&mut scene.workers[1]);
    scene.workers[2].inbox.next().unwrap()(&mut scene.workers[2]);
    for number in FRAMES / 2..FRAMES {
        let frame = frame(&mut slots, number);
        scene.workers[2].route(0, &[frame]);
    }
    scene.workers[0].inbox.next().unwrap()(&mut scene.workers[0]);
    let to = &mut scene.workers[1];
    let mut budget = i64::MAX;
    to.crossings(&mut budget);
    assert!(to.is_arriving(0) && to.ports[0].is_none());
    to.inbox.next().unwrap()(to);
    outcome.try_recv().unwrap().unwrap();
    let mut loops = 0;
    while to.is_arriving(0) {
        let mut budget = budget::QUANTUM;
        to.take_in_arrived(&mut budget);
        assert!(budget > -budget::queued(9000), "{budget}");
        loops += 1;
    }
    assert!(loops > 5 && to.is_settled(), "{loops} loops");
    let port = to.ports[0].as_mut().unwrap();
    let queued = std::iter::from_fn(|| port.egress.scheduler.take(0)).map(|(_, _, queued)| queued.frame);
    let queued: Vec<_> = queued.collect();
    assert!(queued.iter().map(|frame| frame.get().len).eq(0..FRAMES));
    queued.into_iter().for_each(|frame| slots.give(frame));
    port.egress.active = false;
    to.active.clear();
}
