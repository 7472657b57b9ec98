//! Who has the slots of frames that land in a guest's buffers. Pure.
//!
//! ```text
//!           ┌────────────────── come_back ───────────────────┐
//!           ▼                                                │
//!  Free ─ post ─▶ Posted ─ take ─▶ Taken ─ land ─▶ Landed ─ deliver ─▶ Delivered
//!    ▲             ▲ │ flush         │ refuse         │ come_back
//!    │             │ ▼               ▼                ▼
//!    └─ collect ─ Returned ◀──────────────────────────┘
//! ```
//!
//! A slot's stage is one atomic byte, and each stage belongs to one side: free and returned ones to the port (the worker with
//! its receiving half), posted ones to the device, taken ones to the uplink's worker, landed ones to the worker that
//! has the frame. So each change is one store or exchange, and what a side wrote before it is seen by the next.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

/// Where a slot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    /// It has no frame. Its buffers are the port's.
    Free,
    /// The device may write to its buffers.
    Posted,
    /// The uplink's worker looks at what the device wrote.
    Taken,
    /// A frame lies in it, and is on its way.
    Landed,
    /// The guest has its buffers, and its frame is on the way back.
    Delivered,
    /// Its buffers are the port's, with bytes that no driver is shown.
    Returned,
}

impl Stage {
    const ALL: [Self; 6] =
        [Self::Free, Self::Posted, Self::Taken, Self::Landed, Self::Delivered, Self::Returned];
}

/// The stages of some slots.
#[derive(Debug)]
pub struct Stages {
    stages: Box<[AtomicU8]>,
    posted: AtomicU32,
    /// Written by the uplink's worker alone.
    out: AtomicU32,
}

impl Stages {
    /// Returns those of `count` free slots.
    pub fn new(count: u16) -> Self {
        let free = |_| AtomicU8::new(Stage::Free as u8);
        Self { stages: (0..count).map(free).collect(), posted: AtomicU32::new(0), out: AtomicU32::new(0) }
    }

    /// Returns how many slots there are.
    pub fn count(&self) -> u16 {
        self.stages.len() as u16
    }

    /// Returns how many slots the device has.
    #[inline]
    pub fn posted(&self) -> u32 {
        self.posted.load(Ordering::Relaxed)
    }

    /// Returns how many slots are neither the port's nor the device's, as the uplink's worker sees it.
    #[inline]
    pub fn out(&self) -> u32 {
        self.out.load(Ordering::Relaxed)
    }

    /// Returns a slot's stage; `None` if there is no such slot.
    #[inline]
    pub fn stage(&self, at: u16) -> Option<Stage> {
        let stage = self.stages.get(usize::from(at))?.load(Ordering::Acquire);
        Stage::ALL.get(usize::from(stage)).copied()
    }

    /// Returns whether some slots are neither the port's nor the device's.
    pub fn are_out(&self) -> bool {
        let is_out = |at| matches!(self.stage(at), Some(Stage::Taken | Stage::Landed | Stage::Delivered));
        (0..self.count()).any(is_out)
    }

    /// The port gives a slot to the device, before it tells that. Returns whether the slot was the port's.
    #[inline]
    pub fn post(&self, at: u16) -> bool {
        let done =
            self.change(at, Stage::Free, Stage::Posted) || self.change(at, Stage::Returned, Stage::Posted);
        if done {
            self.posted.fetch_add(1, Ordering::Relaxed);
        }
        done
    }

    /// The device did not take a slot, or is done with it without a datagram. Returns whether it had the slot.
    #[inline]
    pub fn flush(&self, at: u16) -> bool {
        self.leave_device(at, Stage::Returned)
    }

    /// The uplink's worker takes a slot that the device filled. Returns whether the device had it.
    #[inline]
    pub fn take(&self, at: u16) -> bool {
        let done = self.leave_device(at, Stage::Taken);
        if done {
            self.out.store(self.out() + 1, Ordering::Relaxed);
        }
        done
    }

    #[inline]
    fn leave_device(&self, at: u16, to: Stage) -> bool {
        let done = self.change(at, Stage::Posted, to);
        if done {
            self.posted.fetch_sub(1, Ordering::Relaxed);
        }
        done
    }

    /// A taken slot's datagram is none for the guest, or was copied.
    #[inline]
    pub fn refuse(&self, at: u16) -> bool {
        let done = self.change(at, Stage::Taken, Stage::Returned);
        self.note_back(done);
        done
    }

    /// A taken slot's datagram is a frame, and goes its way.
    #[inline]
    pub fn land(&self, at: u16) -> bool {
        self.change(at, Stage::Taken, Stage::Landed)
    }

    /// The port gives a landed frame's buffers to the guest. Returns whether the slot had one.
    #[inline]
    pub fn deliver(&self, at: u16) -> bool {
        self.change(at, Stage::Landed, Stage::Delivered)
    }

    /// A landed frame is back at the uplink's worker; returns whether the guest has its buffers. `None` if the slot has none.
    #[inline]
    pub fn come_back(&self, at: u16) -> Option<bool> {
        let delivered = self.change(at, Stage::Delivered, Stage::Free);
        let done = delivered || self.change(at, Stage::Landed, Stage::Returned);
        self.note_back(done);
        done.then_some(delivered)
    }

    #[inline]
    fn note_back(&self, is_back: bool) {
        if is_back {
            self.out.store(self.out().saturating_sub(1), Ordering::Relaxed);
        }
    }

    /// The port takes a slot from the device, which is over, or its own one. Returns whether the slot is now free.
    pub fn collect(&self, at: u16) -> bool {
        self.leave_device(at, Stage::Free)
            || self.change(at, Stage::Returned, Stage::Free)
            || self.stage(at) == Some(Stage::Free)
    }

    #[inline]
    fn change(&self, at: u16, from: Stage, to: Stage) -> bool {
        let Some(stage) = self.stages.get(usize::from(at)) else { return false };
        stage.compare_exchange(from as u8, to as u8, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    const SLOTS: u16 = 4;

    /// What either side, the device and a hostile completion may do next.
    #[derive(Clone, Debug)]
    enum Step {
        /// The port gives the device a slot, with chains that it has, or takes from the ring.
        Post(u16),
        /// The device tells of a slot, whether it has that or not.
        Complete(u16, bool),
        Refuse(u16),
        Land(u16),
        /// The frame of a slot is at its port, or a frame that never was claims so.
        Deliver(u16),
        ComeBack(u16),
        /// The device is over.
        End,
        /// The port wants all chains back.
        Collect,
    }

    fn step() -> impl Strategy<Value = Step> {
        let at = || 0..SLOTS + 1;
        prop_oneof![
            8 => at().prop_map(Step::Post),
            8 => (at(), prop::bool::weighted(0.8)).prop_map(|(at, good)| Step::Complete(at, good)),
            2 => at().prop_map(Step::Refuse),
            6 => at().prop_map(Step::Land),
            6 => at().prop_map(Step::Deliver),
            8 => at().prop_map(Step::ComeBack),
            1 => Just(Step::End),
            1 => Just(Step::Collect),
        ]
    }

    /// The exact model: each chain is in one place.
    #[derive(Default)]
    struct Model {
        /// The next chain of the ring.
        next: u32,
        /// Chains with the port, by slot.
        port: BTreeMap<u16, Vec<u32>>,
        device: BTreeMap<u16, Vec<u32>>,
        taken: BTreeMap<u16, Vec<u32>>,
        landed: BTreeMap<u16, Vec<u32>>,
        delivered: BTreeSet<u16>,
        guest: Vec<u32>,
        over: bool,
    }

    impl Model {
        fn stage(&self, at: u16) -> Option<Stage> {
            Some(match at {
                SLOTS.. => return None,
                at if self.device.contains_key(&at) => Stage::Posted,
                at if self.taken.contains_key(&at) => Stage::Taken,
                at if self.landed.contains_key(&at) => Stage::Landed,
                at if self.delivered.contains(&at) => Stage::Delivered,
                at if self.port.contains_key(&at) => Stage::Returned,
                _ => Stage::Free,
            })
        }
    }

    proptest! {
        /// In any order of both sides' steps: no chain is in two places, none is lost.
        #[test]
        fn each_chain_is_in_one_place(steps in prop::collection::vec(step(), 1..200)) {
            let (stages, mut model) = (Stages::new(SLOTS), Model::default());
            for step in steps {
                match step {
                    Step::Post(at) => {
                        let is_free = matches!(model.stage(at), Some(Stage::Free | Stage::Returned));
                        if model.over {
                            continue;
                        }
                        prop_assert_eq!(stages.post(at), is_free);
                        if is_free {
                            let next = model.next;
                            let chains = model.port.remove(&at).unwrap_or_else(|| vec![next, next + 1]);
                            model.next += if chains[0] == next { 2 } else { 0 };
                            model.device.insert(at, chains);
                        }
                    }
                    Step::Complete(at, good) => {
                        if model.over {
                            continue;
                        }
                        let chains = model.device.remove(&at);
                        let done = if good { stages.take(at) } else { stages.flush(at) };
                        prop_assert_eq!(done, chains.is_some());
                        if let Some(chains) = chains {
                            (if good { &mut model.taken } else { &mut model.port }).insert(at, chains);
                        }
                    }
                    Step::Refuse(at) => {
                        let chains = model.taken.remove(&at);
                        prop_assert_eq!(stages.refuse(at), chains.is_some());
                        model.port.extend(chains.map(|chains| (at, chains)));
                    }
                    Step::Land(at) => {
                        let chains = model.taken.remove(&at);
                        prop_assert_eq!(stages.land(at), chains.is_some());
                        model.landed.extend(chains.map(|chains| (at, chains)));
                    }
                    Step::Deliver(at) => {
                        let chains = model.landed.remove(&at);
                        prop_assert_eq!(stages.deliver(at), chains.is_some());
                        if let Some(chains) = chains {
                            model.guest.extend(chains);
                            model.delivered.insert(at);
                        }
                    }
                    Step::ComeBack(at) => {
                        let chains = model.landed.remove(&at);
                        let expected = if model.delivered.remove(&at) { Some(true) } else { chains.as_ref().map(|_| false) };
                        prop_assert_eq!(stages.come_back(at), expected);
                        model.port.extend(chains.map(|chains| (at, chains)));
                    }
                    Step::End => model.over = true,
                    Step::Collect if model.over => for at in 0..SLOTS {
                        let mine = matches!(model.stage(at), Some(Stage::Free | Stage::Posted | Stage::Returned));
                        prop_assert_eq!(stages.collect(at), mine);
                        let chains = model.device.remove(&at).or_else(|| model.port.remove(&at));
                        model.guest.extend(chains.into_iter().flatten());
                    },
                    Step::Collect => {}
                }
                for at in 0..=SLOTS {
                    prop_assert_eq!(stages.stage(at), model.stage(at));
                }
                prop_assert_eq!(stages.posted() as usize, model.device.len());
                let out = model.taken.len() + model.landed.len() + model.delivered.len();
                prop_assert_eq!((stages.are_out(), stages.out() as usize), (out > 0, out));
                let places = [&model.port, &model.device, &model.taken, &model.landed];
                let mut all: Vec<u32> = places.iter().flat_map(|place| place.values().flatten().copied()).collect();
                all.extend(&model.guest);
                all.sort_unstable();
                prop_assert_eq!(all, (0..model.next).collect::<Vec<_>>());
            }
        }
    }

    /// Three threads on the same slots: what one wrote before it gave a slot on is what the next one sees.
    #[test]
    fn threads_see_what_was_written_before() {
        use std::cell::UnsafeCell;
        struct Cells(Vec<UnsafeCell<u32>>);
        // SAFETY: a cell is used by the thread alone to whose side its stage belongs.
        unsafe impl Sync for Cells {}
        impl Cells {
            fn add(&self, at: u16) {
                // SAFETY: as above.
                unsafe { *self.0[usize::from(at)].get() += 1 };
            }
        }
        let (stages, cells) = (Stages::new(SLOTS), Cells((0..SLOTS).map(|_| UnsafeCell::new(0)).collect()));
        let rounds = 20_000;
        std::thread::scope(|scope| {
            let (stages, cells) = (&stages, &cells);
            // The uplink's worker: odd rounds are refused.
            scope.spawn(move || {
                let (mut taken, mut back) = (0, 0);
                while back < rounds {
                    for at in 0..SLOTS {
                        if taken < rounds && stages.take(at) {
                            cells.add(at);
                            taken += 1;
                            if taken % 2 == 1 {
                                assert!(stages.refuse(at));
                                back += 1;
                            } else {
                                assert!(stages.land(at));
                            }
                        }
                        if stages.stage(at) == Some(Stage::Delivered) {
                            cells.add(at);
                            assert_eq!(stages.come_back(at), Some(true));
                            back += 1;
                        }
                    }
                    std::thread::yield_now();
                }
            });
            let mut posted = 0;
            let is_mine = |at| matches!(stages.stage(at), Some(Stage::Free | Stage::Returned));
            while posted < rounds || !(0..SLOTS).all(is_mine) {
                for at in 0..SLOTS {
                    match stages.stage(at) {
                        Some(Stage::Free | Stage::Returned) if posted < rounds => {
                            cells.add(at);
                            assert!(stages.post(at));
                            posted += 1;
                        }
                        Some(Stage::Landed) => {
                            cells.add(at);
                            assert!(stages.deliver(at));
                        }
                        _ => {}
                    }
                }
                std::thread::yield_now();
            }
        });
        let sum: u32 = cells.0.into_iter().map(UnsafeCell::into_inner).sum();
        assert_eq!(sum, rounds + rounds + rounds / 2 + rounds / 2);
    }
}
