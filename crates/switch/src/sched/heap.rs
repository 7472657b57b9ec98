//! A heap of sources that knows each one's place.
//!
//! Every tier orders *sources* by a key of their head frames, never frames: a source's own frames leave in
//! order of arrival. When a head changes, its source is re-keyed in place, so the cost is O(log of the
//! sources with frames), and no entry is ever stale.

use super::source::SourceIndex;

const ABSENT: u32 = u32::MAX;
/// Children of a node. Four halve the depth of a binary heap and fill one cache line.
const ARITY: usize = 4;
/// Bits of an entry that hold the source; the rest is the key.
const SOURCE_BITS: u32 = SourceIndex::BITS;

/// Sources by key, least first; equal keys by index of the source. Keys are below 2^112.
///
/// Only [`SourceHeap::reserve`] allocates.
#[derive(Debug, Default)]
pub(super) struct SourceHeap {
    /// Key and source in one number: one comparison without a branch compares both.
    entries: Vec<u128>,
    /// The place of each source in `entries`.
    place: Vec<u32>,
}

/// The first source of a heap, and the next entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lead {
    first: SourceIndex,
    next: u128,
}

impl Lead {
    /// Whether the source would also be first with `key`.
    #[inline]
    pub(super) fn holds(self, key: u128) -> bool {
        entry(self.first, key) < self.next
    }
}

impl SourceHeap {
    /// Makes room for `source`. Must precede every other use of that source.
    pub(super) fn reserve(&mut self, source: SourceIndex) {
        let sources = usize::from(source) + 1;
        if self.place.len() < sources {
            self.place.resize(sources, ABSENT);
            let room = sources - self.entries.len();
            self.entries.reserve(room);
        }
    }

    #[inline]
    pub(super) fn first(&self) -> Option<SourceIndex> {
        self.entries.first().map(|&entry| source_of(entry))
    }

    /// Returns the least key, if it has 64 bits.
    #[inline]
    pub(super) fn first_key(&self) -> Option<u64> {
        let entry = self.entries.first()?;
        u64::try_from(entry >> SOURCE_BITS).ok()
    }

    /// Returns the first source's lead over the others; `None` if it is alone.
    #[inline]
    pub(super) fn lead(&self) -> Option<Lead> {
        let first = self.first()?;
        let next = self.entries[1..].iter().take(ARITY).min()?;
        Some(Lead { first, next: *next })
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    #[inline]
    pub(super) fn contains(&self, source: SourceIndex) -> bool {
        self.place[usize::from(source)] != ABSENT
    }

    /// Inserts `source` with `key`, or changes its key.
    #[inline]
    pub(super) fn set(&mut self, source: SourceIndex, key: u128) {
        let entry = entry(source, key);
        let at = self.place[usize::from(source)];
        if at == ABSENT {
            self.entries.push(entry);
            self.sift_up(self.entries.len() - 1, entry);
            return;
        }
        if let [only] = &mut self.entries[..] {
            *only = entry;
            return;
        }
        let at = at as usize;
        let old = self.entries[at];
        if entry < old {
            self.sift_up(at, entry);
        } else if entry > old {
            self.sift_down(at, entry);
        }
    }

    /// Removes `source`, if present.
    pub(super) fn remove(&mut self, source: SourceIndex) {
        let at = self.place[usize::from(source)];
        if at == ABSENT {
            return;
        }
        let at = at as usize;
        self.place[usize::from(source)] = ABSENT;
        let old = self.entries[at];
        let last = self.entries.pop().expect("holds the source");
        if last < old {
            self.sift_up(at, last);
        } else if last > old {
            self.sift_down(at, last);
        }
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.place.fill(ABSENT);
    }

    /// Puts `entry` at `at` or further up, where it belongs.
    fn sift_up(&mut self, mut at: usize, entry: u128) {
        while at > 0 {
            let parent = (at - 1) / ARITY;
            if self.entries[parent] <= entry {
                break;
            }
            self.put(at, self.entries[parent]);
            at = parent;
        }
        self.put(at, entry);
    }

    /// Puts `entry` at `at` or further down, where it belongs.
    fn sift_down(&mut self, mut at: usize, entry: u128) {
        loop {
            let first = at * ARITY + 1;
            let Some(rest) = self.entries.get(first..) else {
                break;
            };
            let children = &rest[..rest.len().min(ARITY)];
            let least = match *children {
                [a, b, c, d] => a.min(b).min(c.min(d)),
                _ => children.iter().copied().fold(u128::MAX, u128::min),
            };
            if entry <= least {
                break;
            }
            let child = self.place[usize::from(source_of(least))] as usize;
            self.put(at, least);
            at = child;
        }
        self.put(at, entry);
    }

    fn put(&mut self, at: usize, entry: u128) {
        self.entries[at] = entry;
        self.place[usize::from(source_of(entry))] = at as u32;
    }
}

fn entry(source: SourceIndex, key: u128) -> u128 {
    key << SOURCE_BITS | u128::from(source)
}

fn source_of(entry: u128) -> SourceIndex {
    (entry & u128::from(SourceIndex::MAX)) as SourceIndex
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn agrees_with_a_map_after_every_step(
            steps in prop::collection::vec((0..40u16, prop::option::weighted(0.7, prop_oneof![0..20u64, Just(u64::MAX)])), 1..300),
        ) {
            let mut heap = SourceHeap::default();
            let mut model = BTreeMap::new();
            for (source, key) in steps {
                heap.reserve(source);
                match key {
                    Some(key) => {
                        heap.set(source, key.into());
                        model.insert(source, key);
                    }
                    None => {
                        heap.remove(source);
                        model.remove(&source);
                    }
                }
                let least = model.iter().map(|(&s, &k)| (k, s)).min();
                prop_assert_eq!(heap.first_key().zip(heap.first()), least);
                prop_assert_eq!(heap.contains(source), model.contains_key(&source));
                prop_assert_eq!(heap.is_empty(), model.is_empty());
                prop_assert_eq!(heap.lead().is_some(), model.len() > 1);
                if let (Some((_, first)), Some(lead)) = (least, heap.lead()) {
                    for key in 0..22 {
                        let others = model.iter().filter(|(s, _)| **s != first).all(|(&s, &k)| (key, first) < (k, s));
                        prop_assert_eq!(lead.holds(key.into()), others);
                    }
                }
            }
            let mut drained = Vec::new();
            while let Some(source) = heap.first() {
                drained.push(source);
                heap.remove(source);
            }
            let mut sorted: Vec<_> = model.into_iter().map(|(s, k)| (k, s)).collect();
            sorted.sort();
            let sorted: Vec<_> = sorted.into_iter().map(|(_, s)| s).collect();
            prop_assert_eq!(drained, sorted);
        }
    }
}
