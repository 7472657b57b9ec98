//! Datagrams that wait for the next write to the device. Pure.
//!
//! ```text
//!  push ─▶ queue pair 0: urgent ▪▪   others ▪▪▪ ─┐
//!          queue pair 1:             others ▪    ├─ next_pair: with urgent ones first ─ pop: urgent ones first
//!          ...                                  ─┘
//! ```

use super::setup::PAIRS;

/// The end of a list.
const NONE: u16 = u16::MAX;

/// Where a datagram goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct To {
    /// Place of the member in the tables.
    pub member: u32,
    /// Place of its address handle.
    pub handle: u8,
    /// Bytes of the datagram.
    pub len: u32,
    /// Those in the buffer: all, or its beginning.
    pub copied: u32,
}

/// Lists of buffers, by queue pair.
pub struct Waiting {
    lists: Box<[[List; 2]]>,
    /// By buffer: the next one in its list.
    next: Box<[(u16, To)]>,
    /// Queue pairs with datagrams, and with urgent ones.
    pairs: u64,
    urgent: u64,
}

#[derive(Clone, Copy, Debug)]
struct List {
    first: u16,
    last: u16,
}

const EMPTY: List = List { first: NONE, last: NONE };
const _: () = assert!(PAIRS <= u64::BITS as usize, "a bit each");

impl Waiting {
    /// Returns empty lists for buffers below `count`.
    pub fn new(count: u16) -> Self {
        Self {
            lists: vec![[EMPTY; 2]; PAIRS].into(),
            next: vec![(NONE, To::default()); usize::from(count)].into(),
            pairs: 0,
            urgent: 0,
        }
    }

    /// Whether none waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.pairs == 0
    }

    /// Lets a buffer that waits nowhere wait for the queue pair at place `pair`.
    ///
    /// # Panics
    /// If there is no such queue pair or buffer.
    #[inline]
    pub fn push(&mut self, pair: usize, at: u16, to: To, is_urgent: bool) {
        let list = &mut self.lists[pair][usize::from(!is_urgent)];
        self.next[usize::from(at)] = (NONE, to);
        match self.next.get_mut(usize::from(list.last)) {
            Some((next, _)) => *next = at,
            None => list.first = at,
        }
        list.last = at;
        self.pairs |= 1 << pair;
        self.urgent |= u64::from(is_urgent) << pair;
    }

    /// Returns the place of the queue pair that is to be written to next.
    #[inline]
    pub fn next_pair(&self) -> Option<usize> {
        let these = if self.urgent != 0 { self.urgent } else { self.pairs };
        (these != 0).then(|| these.trailing_zeros() as usize)
    }

    /// Takes a queue pair's next buffer; `None` if it has none, or none that is urgent while others have.
    #[inline]
    pub fn pop(&mut self, pair: usize) -> Option<(u16, To)> {
        if self.urgent != 0 && self.urgent.checked_shr(pair as u32).is_none_or(|bits| bits & 1 == 0) {
            return None;
        }
        let lists = self.lists.get_mut(pair)?;
        let list = lists.iter_mut().find(|list| list.first != NONE)?;
        let at = list.first;
        let (next, to) = self.next[usize::from(at)];
        list.first = next;
        if next == NONE {
            list.last = NONE;
        }
        let [urgent, others] = lists.map(|list| list.first != NONE);
        self.urgent &= !(u64::from(!urgent) << pair);
        self.pairs &= !(u64::from(!(urgent || others)) << pair);
        Some((at, to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against lists: each queue pair's urgent ones first, each class in order; queue pairs with urgent ones first.
        #[test]
        fn all_leave_in_order(steps in prop::collection::vec((0..PAIRS, any::<bool>(), any::<bool>()), 0..200)) {
            let mut waiting = Waiting::new(200);
            let mut model: Vec<(usize, bool, u16)> = vec![];
            for (at, (pair, is_urgent, pops)) in (0..).zip(steps) {
                waiting.push(pair, at, To { len: u32::from(at), ..To::default() }, is_urgent);
                model.push((pair, is_urgent, at));
                if !pops {
                    continue;
                }
                let pair = waiting.next_pair().unwrap();
                let urgent = model.iter().any(|(_, urgent, _)| *urgent);
                prop_assert_eq!(urgent, model.iter().any(|(of, urgent, _)| *of == pair && *urgent));
                let of_pair = |(of, urgent, _): &(usize, bool, u16)| *of == pair && *urgent == urgent_first(&model, pair);
                let first = model.iter().position(of_pair).unwrap();
                let (_, _, at) = model.remove(first);
                prop_assert_eq!(waiting.pop(pair).map(|(at, to)| (at, to.len)), Some((at, u32::from(at))));
                prop_assert_eq!(waiting.is_empty(), model.is_empty());
            }
            let mut left = 0;
            while let Some(pair) = waiting.next_pair() {
                left += usize::from(waiting.pop(pair).is_some());
            }
            prop_assert_eq!(left, model.len());
            prop_assert!(waiting.is_empty() && waiting.pop(0).is_none() && waiting.pop(PAIRS).is_none());
        }
    }

    #[test]
    fn urgent_ones_of_all_queue_pairs_leave_first() {
        let mut waiting = Waiting::new(8);
        for (at, pair) in (0..).zip([0, 1, 0, 1]) {
            waiting.push(pair, at, To::default(), at >= 2);
        }
        let mut order = vec![];
        while let Some(pair) = waiting.next_pair() {
            while let Some((at, _)) = waiting.pop(pair) {
                order.push((pair, at));
            }
        }
        assert_eq!(order, [(0, 2), (1, 3), (1, 1), (0, 0)]);
    }

    fn urgent_first(model: &[(usize, bool, u16)], pair: usize) -> bool {
        model.iter().any(|(of, urgent, _)| *of == pair && *urgent)
    }
}
