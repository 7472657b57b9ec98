//! What is reserved at one link, and whether each level keeps its delay with it.
//!
//! Times are nanoseconds, rates bit/s, data bits; data in sums with rates is in nanobits (bit/s times ns).

use super::network::{Buffer, LEVELS, Link};
use super::refusal::Limit;
use super::request::Request;
use crate::frame::VLAN_TAG;
use crate::{Bytes, Nanos};

/// Nanobits in a bit.
pub(super) const NANO: u128 = 1_000_000_000;

/// Flows of one level at one link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flows {
    /// R, as on the wire.
    rate: u128,
    /// B, as on the wire.
    burst: u128,
    /// Most frames that arrive within the level's delay.
    frames: u128,
}

impl Flows {
    /// Returns one flow at a link that it reaches after delays of at most `jitter`, in a level with a fixed `delay` (ns).
    pub fn of(request: &Request, jitter: u64, delay: u64, link: &Link) -> Self {
        let (rate, burst) = (u128::from(request.rate.bits()), grown(request, jitter));
        let smallest = u128::from(request.smallest_frame.get());
        let on_wire =
            |data: u128| (data * (smallest + u128::from(VLAN_TAG + link.overhead.get()))).div_ceil(smallest);
        Self {
            rate: on_wire(rate),
            burst: on_wire(burst),
            frames: grown(request, jitter.saturating_add(delay)) / (smallest * 8),
        }
    }

    fn add(&mut self, other: &Self) {
        self.rate += other.rate;
        self.burst += other.burst;
        self.frames += other.frames;
    }

    fn remove(&mut self, other: &Self) {
        self.rate -= other.rate;
        self.burst -= other.burst;
        self.frames -= other.frames;
    }
}

/// Returns the burst (bits) of a flow after delays of at most `jitter`: b + r J, rounded up.
pub(super) fn grown(request: &Request, jitter: u64) -> u128 {
    let bunched = (u128::from(request.rate.bits()) * u128::from(jitter)).div_ceil(NANO);
    u128::from(request.burst.get()) * 8 + bunched
}

/// What is reserved at one link, by level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    levels: [Flows; LEVELS],
}

impl Load {
    pub fn add(&mut self, level: usize, flows: &Flows) {
        self.levels[level].add(flows);
    }

    pub fn remove(&mut self, level: usize, flows: &Flows) {
        self.levels[level].remove(flows);
    }

    /// Returns the sum of all rates (bit/s).
    pub fn rate(&self) -> u128 {
        self.levels.iter().map(|flows| flows.rate).sum()
    }

    /// Returns the first limit of the link that is exceeded.
    pub fn exceeded(&self, link: &Link) -> Option<Limit> {
        let (needed, available) = (self.rate(), link.reservable);
        if needed > u128::from(available.bits()) {
            let needed_bits = u64::try_from(needed).unwrap_or(u64::MAX);
            return Some(Limit::Rate { needed_bits, available });
        }
        (0..link.levels.len()).find_map(|level| self.exceeded_at(level, link))
    }

    fn exceeded_at(&self, at: usize, link: &Link) -> Option<Limit> {
        let (level, flows) = (&link.levels[at], &self.levels[at]);
        if flows.rate == 0 {
            return None;
        }
        let (needed, delay) = (self.needed(at, link), level.delay.get());
        if needed > delay {
            let needed = Nanos::new(needed);
            return Some(Limit::Delay { level: narrow(at), needed, delay: level.delay });
        }
        match level.buffer {
            Buffer::Bytes(available) => {
                let needed = self.backlog(at, link).div_ceil(8);
                let needed = Bytes::new(u64::try_from(needed).unwrap_or(u64::MAX));
                (needed > available).then_some(Limit::Buffer { level: narrow(at), needed, available })
            }
            Buffer::Frames(available) => {
                let needed = u64::try_from(flows.frames).unwrap_or(u64::MAX);
                (needed > available).then_some(Limit::Frames { level: narrow(at), needed, available })
            }
        }
    }

    /// Returns the longest delay of a level (ns, rounded up), while all rates are at most the capacity.
    pub fn needed(&self, level: usize, link: &Link) -> u64 {
        let (before, left) = self.waits(level, link);
        let data = before + self.levels[level].burst * NANO;
        u64::try_from(data.div_ceil(left)).unwrap_or(u64::MAX)
    }

    /// Returns the most data of a level that waits (bits, rounded up).
    fn backlog(&self, level: usize, link: &Link) -> u128 {
        let (before, left) = self.waits(level, link);
        let flows = &self.levels[level];
        flows.burst + (flows.rate * before).div_ceil(left * NANO)
    }

    /// Returns what a level waits for in any case (nanobits), and the rate that higher levels leave (bit/s).
    fn waits(&self, level: usize, link: &Link) -> (u128, u128) {
        let higher = &self.levels[..level];
        let capacity = u128::from(link.capacity.bits());
        let largest = u128::from(link.largest_frame.get() + link.overhead.get()) * 8;
        let bursts: u128 = higher.iter().map(|flows| flows.burst).sum();
        let rates: u128 = higher.iter().map(|flows| flows.rate).sum();
        // All rates together are at most the capacity, and this level has some, or is asked about by its own flow.
        let left = capacity.saturating_sub(rates).max(1);
        ((bursts + largest) * NANO + capacity * u128::from(link.latency.get()), left)
    }
}

fn narrow(level: usize) -> u8 {
    u8::try_from(level).unwrap_or(u8::MAX)
}
