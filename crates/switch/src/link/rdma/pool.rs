//! Send buffers: which are free, and which the device reads. Pure.
//!
//! ```text
//!        ┌──────────────── give ───────────────┐
//!        ▼                                     │
//!  free ─ take ─▶ taken: written, waits ─ posted ─▶ in flight: chains ─ complete ─▶ free
//!                                                   │ a ◀ b ◀ c │ its completion frees a, b and c
//! ```
//!
//! Only the last of a chain asks for a completion; an error completes each alone, and cuts it off with those before it.
//!
//! Best effort may use a part of all bytes and buffers, so that a frame with a deadline finds one, and waits behind no
//! more than that in the device. Once best effort has found no buffer, it finds none until a quarter of its part is free:
//! frames then leave by some at a time, while the device has the rest.

/// Bytes of best effort that wait or are in flight: a frame with a deadline waits for no more in the device.
pub const OTHERS: usize = 256 << 10;
/// Bytes of all frames.
pub const ALL: usize = 384 << 10;

/// No buffer.
const NONE: u16 = u16::MAX;

/// The pool's accounts of its buffers.
pub struct Pool {
    buffers: Box<[Buffer]>,
    free: Vec<u16>,
    /// Bytes and buffers in use: of best effort, and of frames with a deadline.
    used: [(usize, usize); 2],
    /// Best effort has found no buffer.
    refused: bool,
    /// Buffers in flight.
    in_flight: usize,
    /// Those among them that were posted before the last [`begin_epoch`](Self::begin_epoch).
    old: usize,
    epoch: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Taken,
    InFlight,
}

#[derive(Clone, Copy, Debug)]
struct Buffer {
    state: State,
    len: u32,
    is_urgent: bool,
    /// In flight: its neighbours in its chain.
    before: u16,
    behind: u16,
    epoch: u32,
}

impl Pool {
    /// Returns the accounts of `count` buffers, at most 65,535.
    pub fn new(count: u16) -> Self {
        let buffer =
            Buffer { state: State::Free, len: 0, is_urgent: false, before: NONE, behind: NONE, epoch: 0 };
        Self {
            buffers: vec![buffer; usize::from(count)].into(),
            free: (0..count).rev().collect(),
            used: [(0, 0); 2],
            refused: false,
            in_flight: 0,
            old: 0,
            epoch: 0,
        }
    }

    /// Takes a buffer for a datagram of `len` bytes; `None` without room.
    #[inline]
    pub fn take(&mut self, len: usize, is_urgent: bool) -> Option<u16> {
        let [(bytes, count), (urgent, _)] = self.used;
        let has_room = if is_urgent {
            bytes + urgent + len <= ALL
        } else {
            // Three quarters, after there was no room.
            let part = if self.refused { 3 } else { 4 };
            let most = self.buffers.len() * 3 / 4;
            self.refused = bytes + len > OTHERS / 4 * part || count >= most * part / 4;
            !self.refused && bytes + urgent + len <= ALL
        };
        let at = if has_room { self.free.pop() } else { None }?;
        let buffer = &mut self.buffers[usize::from(at)];
        (buffer.state, buffer.len, buffer.is_urgent) = (State::Taken, len as u32, is_urgent);
        let (bytes, count) = &mut self.used[usize::from(is_urgent)];
        (*bytes, *count) = (*bytes + len, *count + 1);
        Some(at)
    }

    /// Gives back a taken buffer that is not posted.
    pub fn give(&mut self, at: u16) {
        debug_assert!(self.is(at, State::Taken), "not posted");
        self.release(at);
    }

    /// Notes that a taken buffer was posted behind `before`, the one before it in its chain, if any.
    #[inline]
    pub fn post(&mut self, at: u16, before: Option<u16>) {
        debug_assert!(self.is(at, State::Taken), "posted once");
        self.in_flight += 1;
        let before = before.unwrap_or(NONE);
        let buffer = &mut self.buffers[usize::from(at)];
        (buffer.state, buffer.epoch) = (State::InFlight, self.epoch);
        (buffer.before, buffer.behind) = (before, NONE);
        if let Some(before) = self.buffers.get_mut(usize::from(before)) {
            before.behind = at;
        }
    }

    /// Frees the buffer that a completion names, and those before it in its chain, each told by `free`; returns how many.
    /// `None` if that is not in flight: the device does not know what it says.
    #[inline]
    pub fn complete(&mut self, id: u64, mut free: impl FnMut(u16)) -> Option<usize> {
        let mut at = self.in_flight_at(id)?;
        let behind = self.buffers[usize::from(at)].behind;
        if let Some(behind) = self.buffers.get_mut(usize::from(behind)) {
            behind.before = NONE;
        }
        let mut freed = 0;
        while self.is(at, State::InFlight) {
            let Buffer { before, epoch, .. } = self.buffers[usize::from(at)];
            self.in_flight -= 1;
            self.old -= usize::from(epoch != self.epoch);
            self.release(at);
            free(at);
            (at, freed) = (before, freed + 1);
        }
        Some(freed)
    }

    /// Returns the buffer that a completion names, if it is in flight.
    #[inline]
    pub fn in_flight_at(&self, id: u64) -> Option<u16> {
        u16::try_from(id).ok().filter(|at| self.is(*at, State::InFlight))
    }

    /// Begins to count sends in flight as old, and returns how many there are.
    pub fn begin_epoch(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        self.old = self.in_flight;
    }

    /// Returns the sends in flight from before the last epoch.
    #[inline]
    pub fn old(&self) -> usize {
        self.old
    }

    /// Returns the buffers in flight.
    #[inline]
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Returns the free buffers.
    #[inline]
    pub fn free(&self) -> usize {
        self.free.len()
    }

    #[inline]
    fn is(&self, at: u16, state: State) -> bool {
        self.buffers.get(usize::from(at)).is_some_and(|buffer| buffer.state == state)
    }

    #[inline]
    fn release(&mut self, at: u16) {
        let Some(buffer) = self.buffers.get_mut(usize::from(at)) else { return };
        buffer.state = State::Free;
        let (bytes, count) = &mut self.used[usize::from(buffer.is_urgent)];
        (*bytes, *count) = (*bytes - buffer.len as usize, *count - 1);
        self.free.push(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What is done to a pool.
    #[derive(Clone, Debug)]
    enum Step {
        Take {
            len: usize,
            is_urgent: bool,
        },
        Give,
        /// Posts so many taken ones as a chain.
        Post(usize),
        /// Completes one of those in flight, with those before it in its chain.
        Complete {
            which: prop::sample::Index,
            of: prop::sample::Index,
        },
        Epoch,
        /// A completion of any number.
        Wrong(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            6 => (1..4096usize, any::<bool>()).prop_map(|(len, is_urgent)| Step::Take { len, is_urgent }),
            1 => Just(Step::Give),
            3 => (1..20usize).prop_map(Step::Post),
            3 => (any::<prop::sample::Index>(), any::<prop::sample::Index>())
                .prop_map(|(which, of)| Step::Complete { which, of }),
            1 => Just(Step::Epoch),
            1 => prop_oneof![0..80u64, any::<u64>()].prop_map(Step::Wrong),
        ];
        prop::collection::vec(step, 1..400)
    }

    proptest! {
        /// Against lists of what is taken and what is in flight: each buffer is in one place.
        #[test]
        fn buffers_are_in_one_place(steps in steps()) {
            const COUNT: usize = 64;
            let mut pool = Pool::new(COUNT as u16);
            let mut taken: Vec<(u16, usize, bool)> = vec![];
            let mut chains: Vec<Vec<(u16, usize, bool, bool)>> = vec![];
            for step in steps {
                match step {
                    Step::Take { len, is_urgent } => {
                        let all = taken.iter().map(|(_, len, urgent)| (*len, *urgent));
                        let all = all.chain(chains.iter().flatten().map(|(_, len, urgent, _)| (*len, *urgent)));
                        let all: Vec<_> = all.collect();
                        let got = pool.take(len, is_urgent);
                        let bytes: usize = all.iter().map(|(len, _)| len).sum();
                        let others = all.iter().filter(|(_, urgent)| !urgent);
                        let (count, of_others) = (others.clone().count(), others.map(|(len, _)| len).sum::<usize>());
                        let fits = all.len() < COUNT && bytes + len <= ALL;
                        if is_urgent {
                            prop_assert_eq!(got.is_some(), fits);
                        } else {
                            prop_assert!(got.is_none() || fits && of_others + len <= OTHERS && count < COUNT * 3 / 4);
                            // Room for a quarter is enough after a refusal.
                            let quarter = of_others + len <= OTHERS / 4 * 3 && count < COUNT * 3 / 4 * 3 / 4;
                            prop_assert!(got.is_some() || !(fits && quarter));
                        }
                        if let Some(at) = got {
                            prop_assert!(taken.iter().all(|(other, ..)| *other != at));
                            prop_assert!(chains.iter().flatten().all(|(other, ..)| *other != at));
                            taken.push((at, len, is_urgent));
                        }
                    }
                    Step::Give => if let Some((at, ..)) = taken.pop() { pool.give(at) },
                    Step::Post(count) => {
                        let mut before = None;
                        let chain: Vec<_> = taken.drain(..count.min(taken.len())).collect();
                        for (at, ..) in &chain {
                            pool.post(*at, before);
                            before = Some(*at);
                        }
                        chains.push(chain.into_iter().map(|(at, len, urgent)| (at, len, urgent, false)).collect());
                    }
                    Step::Complete { which, of } => {
                        chains.retain(|chain| !chain.is_empty());
                        if chains.is_empty() { continue }
                        let chain = which.index(chains.len());
                        let last = of.index(chains[chain].len());
                        let id = u64::from(chains[chain][last].0);
                        let mut freed = vec![];
                        prop_assert_eq!(pool.complete(id, |at| freed.push(at)), Some(last + 1));
                        freed.reverse();
                        let expected: Vec<_> = chains[chain].drain(..=last).map(|(at, ..)| at).collect();
                        prop_assert_eq!(freed, expected);
                    }
                    Step::Epoch => {
                        pool.begin_epoch();
                        chains.iter_mut().flatten().for_each(|(.., old)| *old = true);
                    }
                    Step::Wrong(id) => {
                        let in_flight = chains.iter().flatten().any(|(at, ..)| u64::from(*at) == id);
                        if !in_flight {
                            prop_assert_eq!(pool.complete(id, |_| ()), None);
                        }
                    }
                }
                let in_flight = chains.iter().flatten().count();
                prop_assert_eq!(pool.in_flight(), in_flight);
                prop_assert_eq!(pool.free(), COUNT - in_flight - taken.len());
                prop_assert_eq!(pool.old(), chains.iter().flatten().filter(|(.., old)| *old).count());
            }
        }
    }

    #[test]
    fn best_effort_leaves_room_for_deadlines_and_comes_back_by_a_quarter() {
        let mut pool = Pool::new(512);
        let others: Vec<_> = std::iter::from_fn(|| pool.take(4096, false)).collect();
        assert_eq!(others.len(), OTHERS / 4096);
        others.iter().for_each(|at| pool.post(*at, None));
        let urgent: Vec<_> = std::iter::from_fn(|| pool.take(4096, true)).collect();
        assert_eq!(urgent.len(), (ALL - OTHERS) / 4096);
        urgent.into_iter().for_each(|at| pool.give(at));
        // 16 of 64 are a quarter: one more leaves room for one.
        for at in &others[..16] {
            assert_eq!(pool.take(4096, false), None);
            assert_eq!(pool.complete(u64::from(*at), |_| ()), Some(1));
        }
        assert_eq!(pool.take(4096, false), None);
        pool.complete(u64::from(others[16]), |_| ()).unwrap();
        assert_eq!(std::iter::from_fn(|| pool.take(4096, false)).count(), 17);
        // Of small frames, the number of buffers is the bound.
        let mut pool = Pool::new(512);
        assert_eq!(std::iter::from_fn(|| pool.take(64, false)).count(), 384);
        assert_eq!(std::iter::from_fn(|| pool.take(64, true)).count(), 128);
    }
}
