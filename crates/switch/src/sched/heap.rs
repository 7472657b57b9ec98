//! A heap of sources that knows where each one is.
//!
//! Every tier orders *sources*, by a key of each one's head frame, never frames:
//! a source's own frames leave in the order they came. When a head changes its
//! source is re-keyed in place, so the cost is O(log of the sources that have
//! frames) and nothing stale is ever stored.

use super::SourceId;

const ABSENT: u32 = u32::MAX;
/// Children of a node. Four halve the depth of a binary heap and lie in one or
/// two cache lines.
const ARITY: usize = 4;

/// Sources by key, least first; equal keys by source id.
///
/// Nothing allocates but [`SourceHeap::reserve`].
#[derive(Debug)]
pub(super) struct SourceHeap<K> {
    entries: Vec<(K, SourceId)>,
    /// Where in `entries` each source is.
    place: Vec<u32>,
}

impl<K> Default for SourceHeap<K> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            place: Vec::new(),
        }
    }
}

impl<K: Copy + Ord> SourceHeap<K> {
    /// Makes room for `source`. Must precede every other use of that source.
    pub(super) fn reserve(&mut self, source: SourceId) {
        let sources = usize::from(source) + 1;
        if self.place.len() < sources {
            self.place.resize(sources, ABSENT);
            let room = sources - self.entries.len();
            self.entries.reserve(room);
        }
    }

    pub(super) fn peek(&self) -> Option<(K, SourceId)> {
        self.entries.first().copied()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn contains(&self, source: SourceId) -> bool {
        self.place[usize::from(source)] != ABSENT
    }

    /// Puts `source` in with `key`, or gives it that key.
    pub(super) fn set(&mut self, source: SourceId, key: K) {
        let at = self.place[usize::from(source)];
        if at == ABSENT {
            self.entries.push((key, source));
            self.sift_up(self.entries.len() - 1);
            return;
        }
        let at = at as usize;
        let old = self.entries[at].0;
        if key == old {
            return;
        }
        self.entries[at].0 = key;
        if key < old {
            self.sift_up(at);
        } else {
            self.sift_down(at);
        }
    }

    /// Takes `source` out, if it is in.
    pub(super) fn remove(&mut self, source: SourceId) {
        let at = self.place[usize::from(source)];
        if at == ABSENT {
            return;
        }
        let at = at as usize;
        self.place[usize::from(source)] = ABSENT;
        let last = self.entries.pop().expect("holds the source");
        if at < self.entries.len() {
            self.entries[at] = last;
            self.sift_down(at);
            self.sift_up(self.place[usize::from(last.1)] as usize);
        }
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.place.fill(ABSENT);
    }

    fn sift_up(&mut self, mut at: usize) {
        let entry = self.entries[at];
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

    fn sift_down(&mut self, mut at: usize) {
        let entry = self.entries[at];
        loop {
            let first = at * ARITY + 1;
            let end = (first + ARITY).min(self.entries.len());
            let Some(child) = (first..end).min_by_key(|&i| self.entries[i]) else {
                break;
            };
            if entry <= self.entries[child] {
                break;
            }
            self.put(at, self.entries[child]);
            at = child;
        }
        self.put(at, entry);
    }

    fn put(&mut self, at: usize, entry: (K, SourceId)) {
        self.entries[at] = entry;
        self.place[usize::from(entry.1)] = at as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn agrees_with_a_map_after_every_step(
            steps in prop::collection::vec((0..40u16, prop::option::weighted(0.7, 0..20u32)), 1..300),
        ) {
            let mut heap = SourceHeap::default();
            let mut model = BTreeMap::new();
            for (source, key) in steps {
                heap.reserve(source);
                match key {
                    Some(key) => {
                        heap.set(source, key);
                        model.insert(source, key);
                    }
                    None => {
                        heap.remove(source);
                        model.remove(&source);
                    }
                }
                prop_assert_eq!(heap.peek(), model.iter().map(|(&s, &k)| (k, s)).min());
                prop_assert_eq!(heap.contains(source), model.contains_key(&source));
                prop_assert_eq!(heap.is_empty(), model.is_empty());
            }
            let mut drained = Vec::new();
            while let Some((key, source)) = heap.peek() {
                drained.push((key, source));
                heap.remove(source);
            }
            let mut sorted: Vec<_> = model.into_iter().map(|(s, k)| (k, s)).collect();
            sorted.sort();
            prop_assert_eq!(drained, sorted);
        }
    }
}
