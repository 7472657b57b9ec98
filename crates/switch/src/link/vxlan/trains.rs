//! Datagrams that wait to be sent, in bounded own memory. Pure.
//!
//! ```text
//!  reserve ─▶ same destination, class and size as the last? ─┬▶ joins that train
//!                                                            └▶ begins a train
//!  first ─▶ │ train │ train │ train, open │ free ..... │  ─ the kernel takes them in order ─▶ taken
//! ```
//!
//! The kernel cuts a train to datagrams of one size, of which only the last may be shorter. So a shorter
//! datagram ends its train.

use super::sockets::{DATAGRAMS, MESSAGE_MAX, Train};
use crate::slots::NEVER;
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Trains in order of sending.
pub struct Trains {
    memory: Box<[u8]>,
    /// Their bytes in `memory`.
    start: usize,
    end: usize,
    queue: VecDeque<Entry>,
    /// Most trains.
    most: usize,
    /// Longest train of several datagrams (bytes).
    longest: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    to: SocketAddr,
    traffic_class: u8,
    /// Length of its datagrams but the last (bytes).
    size: usize,
    /// Bytes.
    len: usize,
    datagrams: u32,
    /// Another datagram may join.
    open: bool,
    /// When its last datagram must have left (ns), or [`NEVER`].
    deadline: u64,
    /// When the kernel first did not take it (ns); [`NEVER`] before.
    since: u64,
}

/// Datagrams that left the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// How many.
    pub datagrams: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Trains {
    /// Returns room for `bytes` bytes in `most` trains. Trains of several datagrams have at most `longest`
    /// bytes, so that a more urgent one waits for no more.
    pub fn new(bytes: usize, most: usize, longest: usize) -> Self {
        Self {
            memory: vec![0; bytes].into(),
            start: 0,
            end: 0,
            queue: VecDeque::with_capacity(most),
            most,
            longest: longest.min(MESSAGE_MAX),
        }
    }

    /// Returns room at the end for a datagram of `len` bytes, at most [`MESSAGE_MAX`]: the caller fills all of
    /// it. `None` if there is none. It has to leave by `deadline` (ns).
    pub fn reserve(
        &mut self,
        to: SocketAddr,
        traffic_class: u8,
        len: usize,
        deadline: u64,
    ) -> Option<&mut [u8]> {
        debug_assert!((1..=MESSAGE_MAX).contains(&len), "no datagram has {len} bytes");
        let joins = self.joins(&to, traffic_class, len);
        if !self.fits(joins, len) {
            return None;
        }
        if self.memory.len() - self.end < len {
            self.memory.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        match self.queue.back_mut() {
            Some(last) if joins => {
                last.len += len;
                last.datagrams += 1;
                last.open = len == last.size;
                last.deadline = last.deadline.max(deadline);
            }
            _ => self.queue.push_back(Entry {
                to,
                traffic_class,
                size: len,
                len,
                datagrams: 1,
                open: true,
                deadline,
                since: NEVER,
            }),
        }
        let from = self.end;
        self.end += len;
        Some(&mut self.memory[from..self.end])
    }

    /// Whether there is room for such a datagram.
    #[inline]
    pub fn has_room(&self, to: &SocketAddr, traffic_class: u8, len: usize) -> bool {
        self.fits(self.joins(to, traffic_class, len), len)
    }

    /// Whether a datagram joins the last train.
    #[inline]
    fn joins(&self, to: &SocketAddr, traffic_class: u8, len: usize) -> bool {
        self.queue.back().is_some_and(|last| {
            last.open
                && len <= last.size
                && (&last.to, last.traffic_class) == (to, traffic_class)
                && last.len + len <= self.longest
                && last.datagrams < DATAGRAMS as u32
        })
    }

    #[inline]
    fn fits(&self, joins: bool, len: usize) -> bool {
        (joins || self.queue.len() < self.most) && self.memory.len() - (self.end - self.start) >= len
    }

    /// Returns the trains, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = Train<'_>> {
        let mut rest = &self.memory[self.start..self.end];
        self.queue.iter().map(move |entry| {
            let bytes;
            (bytes, rest) = rest.split_at(entry.len);
            Train { to: entry.to, bytes, size: entry.size, traffic_class: entry.traffic_class }
        })
    }

    /// Returns the bytes of all trains.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.end - self.start
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Removes the first `count` trains: the kernel took them, or they are dropped.
    pub fn remove(&mut self, count: usize) -> Left {
        let mut left = Left::default();
        for entry in self.queue.drain(..count.min(self.queue.len())) {
            left.datagrams += u64::from(entry.datagrams);
            left.bytes += entry.len as u64;
        }
        self.advance(left.bytes as usize);
        left
    }

    /// Removes the first trains that the kernel did not take for `age` ns up to `now`, or whose deadlines are
    /// over. The time of the others begins, if this is the first call with them.
    pub fn expire(&mut self, now: u64, age: u64) -> Left {
        self.queue.iter_mut().rev().take_while(|entry| entry.since == NEVER).for_each(|entry| {
            entry.since = now;
        });
        let is_over = |entry: &&Entry| now.saturating_sub(entry.since) >= age || entry.deadline < now;
        let count = self.queue.iter().take_while(is_over).count();
        self.remove(count)
    }

    /// Removes the longest datagrams of the first train: all but a shorter last one.
    pub fn remove_longest(&mut self) -> Left {
        let Some(first) = self.queue.front_mut() else { return Left::default() };
        let last = first.len - first.size * (first.datagrams as usize - 1);
        if last == first.size {
            return self.remove(1);
        }
        let left = Left { datagrams: u64::from(first.datagrams) - 1, bytes: (first.len - last) as u64 };
        (first.size, first.len, first.datagrams, first.open) = (last, last, 1, false);
        self.advance(left.bytes as usize);
        left
    }

    /// Makes a train of each datagram, now and later.
    pub fn break_up(&mut self) {
        self.longest = 0;
        for entry in std::mem::take(&mut self.queue) {
            let mut left = entry.len;
            while left > 0 {
                let len = left.min(entry.size);
                self.queue.push_back(Entry { size: len, len, datagrams: 1, open: false, ..entry });
                left -= len;
            }
        }
    }

    fn advance(&mut self, bytes: usize) {
        self.start += bytes;
        if self.start == self.end {
            // The same memory again, which is still in the cache.
            (self.start, self.end) = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Add { to: u16, class: u8, len: usize, times: usize },
        Remove(usize),
        RemoveLongest,
        BreakUp,
    }

    fn step() -> impl Strategy<Value = Step> {
        let len = prop_oneof![4 => 1..200usize, 1 => 1..3000usize, 1 => Just(100)];
        prop_oneof![
            6 => (0..2u16, 0..2u8, len, 1..80usize).prop_map(|(to, class, len, times)| Step::Add { to, class, len, times }),
            1 => (0..6usize).prop_map(Step::Remove),
            2 => Just(Step::RemoveLongest),
            1 => Just(Step::BreakUp),
        ]
    }

    /// Returns the datagrams of a train, as the kernel cuts them.
    fn cut(train: &Train<'_>) -> Vec<(u16, u8, Vec<u8>)> {
        let parts = train.bytes.chunks(train.size);
        parts.map(|part| (train.to.port(), train.traffic_class, part.to_vec())).collect()
    }

    proptest! {
        /// The model is a list of datagrams: the kernel's cut of all trains is equal to it.
        #[test]
        fn trains_are_cut_to_the_datagrams_that_were_added(steps in prop::collection::vec(step(), 1..60)) {
            const BYTES: usize = 20_000;
            const LONGEST: usize = 4000;
            let mut trains = Trains::new(BYTES, 16, LONGEST);
            let mut model: VecDeque<(u16, u8, Vec<u8>)> = VecDeque::new();
            let (mut number, mut is_broken_up) = (0u8, false);
            for step in steps {
                match step {
                    Step::Add { to, class, len, times } => {
                        for _ in 0..times {
                            let before = trains.iter().count();
                            number = number.wrapping_add(1);
                            match trains.reserve(([127, 0, 0, 1], to).into(), class, len, NEVER) {
                                Some(room) => {
                                    prop_assert_eq!(room.len(), len);
                                    room.fill(number);
                                    model.push_back((to, class, vec![number; len]));
                                }
                                None => {
                                    let used: usize = model.iter().map(|one| one.2.len()).sum();
                                    prop_assert!(before >= 16 || used + len > BYTES);
                                }
                            }
                        }
                    }
                    Step::Remove(count) => {
                        let removed: Vec<_> = trains.iter().take(count).flat_map(|train| cut(&train)).collect();
                        let left = trains.remove(count);
                        prop_assert_eq!(left.datagrams, removed.len() as u64);
                        prop_assert_eq!(left.bytes, removed.iter().map(|one| one.2.len() as u64).sum::<u64>());
                        model.drain(..removed.len());
                    }
                    Step::BreakUp => {
                        trains.break_up();
                        is_broken_up = true;
                    }
                    Step::RemoveLongest => {
                        let first = trains.iter().next().map(|train| cut(&train)).unwrap_or_default();
                        let size = first.first().map_or(0, |one| one.2.len());
                        let longest = first.iter().filter(|one| one.2.len() == size).count();
                        prop_assert_eq!(trains.remove_longest().datagrams, longest as u64);
                        model.drain(..longest);
                    }
                }
                if is_broken_up {
                    prop_assert!(trains.iter().all(|train| train.bytes.len() == train.size));
                }
                let all: Vec<_> = trains.iter().flat_map(|train| cut(&train)).collect();
                prop_assert_eq!(&all, model.make_contiguous());
                for train in trains.iter() {
                    let datagrams = train.bytes.len().div_ceil(train.size);
                    prop_assert!(datagrams <= DATAGRAMS && (datagrams == 1 || train.bytes.len() <= LONGEST));
                }
                prop_assert_eq!(trains.is_empty(), model.is_empty());
            }
        }
    }

    #[test]
    fn equal_datagrams_share_a_train_and_a_shorter_one_ends_it() {
        let to = ([127, 0, 0, 1], 9).into();
        let mut trains = Trains::new(1 << 18, 64, MESSAGE_MAX);
        let lens = |trains: &Trains| trains.iter().map(|train| train.bytes.len()).collect::<Vec<_>>();
        for len in [100, 100, 50, 50, 60, 100] {
            trains.reserve(to, 0, len, NEVER).unwrap();
        }
        assert_eq!(lens(&trains), [250, 50, 60, 100]);
        trains.remove(4);
        (0..65).for_each(|_| _ = trains.reserve(to, 0, 100, NEVER).unwrap());
        assert_eq!(lens(&trains), [6400, 100]);
    }

    #[test]
    fn a_train_grows_old_or_late() {
        let to = ([127, 0, 0, 1], 9).into();
        let mut trains = Trains::new(1 << 18, 64, MESSAGE_MAX);
        let add = |trains: &mut Trains, len, deadline| {
            trains.reserve(to, 0, len, deadline).unwrap();
        };
        let left = |datagrams, bytes| Left { datagrams, bytes };
        add(&mut trains, 100, NEVER);
        assert_eq!(trains.expire(1000, 10), left(0, 0), "its time begins");
        add(&mut trains, 200, NEVER);
        assert_eq!(trains.expire(1009, 10), left(0, 0));
        assert_eq!(trains.expire(1010, 10), left(1, 100));
        assert_eq!(trains.expire(1018, 10), left(0, 0));
        assert_eq!(trains.expire(1019, 10), left(1, 200));
        // The latest deadline of a train counts.
        add(&mut trains, 100, 2000);
        add(&mut trains, 100, 2010);
        assert_eq!(trains.expire(2010, NEVER), left(0, 0));
        assert_eq!(trains.expire(2011, NEVER), left(2, 200));
        assert!(trains.is_empty());
    }
}
