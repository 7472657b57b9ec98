//! The flow or host of a key: a set-associative table, as in caches.
//!
//! ```text
//!   key ──▶ its set: 8 ways [ key ▸ entry | key ▸ entry | ... ]
//! ```
//!
//! A key takes a free way, or one with an idle entry. If all eight are busy the table doubles, up to 1024
//! entries; after that the key shares one of them, and stays there while such frames wait, so that none
//! overtakes another of its flow. With 1024 busy flows that is one new flow in two; with 100, none in a
//! million. Keys are [hashes that no sender can choose](crate::frame::FlowKey).

/// An entry's number.
pub(super) type Index = u16;
/// No entry.
pub(super) const NONE: Index = Index::MAX;

/// Ways of a set: a cache line.
const WAYS: usize = 8;
/// Most entries.
pub(super) const MOST: usize = 1024;
/// Sets from the start.
const SETS: usize = 2;

/// A key and its entry.
#[derive(Clone, Copy, Debug)]
struct Way {
    key: u32,
    index: Index,
}

const FREE: Way = Way { key: 0, index: NONE };

/// The table.
#[derive(Debug)]
pub(super) struct Ways {
    /// A power of two.
    sets: Vec<[Way; WAYS]>,
}

/// The place of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lookup {
    /// It was present.
    Known(Index),
    /// It shares another key's entry.
    Shared(Index),
    /// It takes over an idle entry.
    Reused(Index),
    /// A new entry with the given next number.
    New,
}

impl Ways {
    pub(super) fn new() -> Self {
        Self { sets: vec![[FREE; WAYS]; SETS] }
    }

    /// Places a key if it is not present. `next`: the number of a new entry; `is_shared`: whether frames of
    /// keys that shared an entry wait.
    #[inline]
    pub(super) fn place(
        &mut self,
        key: u32,
        next: Index,
        is_idle: impl Fn(Index) -> bool,
        is_shared: impl Fn(Index) -> bool,
    ) -> Lookup {
        let mask = self.sets.len() - 1;
        let set = &self.sets[key as usize & mask];
        match set.iter().find(|way| way.index != NONE && way.key == key) {
            Some(way) => Lookup::Known(way.index),
            None => self.place_new(key, next, is_idle, is_shared),
        }
    }

    fn place_new(
        &mut self,
        key: u32,
        next: Index,
        is_idle: impl Fn(Index) -> bool,
        is_shared: impl Fn(Index) -> bool,
    ) -> Lookup {
        loop {
            let sets = self.sets.len();
            let set = &mut self.sets[key as usize & (sets - 1)];
            // The one that it shares if necessary.
            let shared = set[(key >> 24) as usize % WAYS].index;
            if shared != NONE && is_shared(shared) {
                return Lookup::Shared(shared);
            }
            // A new entry first: an idle one still has its flow's CoDel state.
            if let Some(way) = set.iter_mut().find(|way| way.index == NONE) {
                *way = Way { key, index: next };
                return Lookup::New;
            }
            if let Some(way) = set.iter_mut().find(|way| is_idle(way.index)) {
                way.key = key;
                return Lookup::Reused(way.index);
            }
            if sets * WAYS >= MOST {
                return Lookup::Shared(shared);
            }
            self.double();
        }
    }

    /// Splits each set in two by one more bit of the keys: none has more entries than before.
    fn double(&mut self) {
        let sets = self.sets.len();
        self.sets.extend_from_within(..);
        let (low, high) = self.sets.split_at_mut(sets);
        for (low, high) in low.iter_mut().zip(high) {
            for (low, high) in low.iter_mut().zip(high) {
                let goes = if low.key as usize & sets == 0 { high } else { low };
                *goes = FREE;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    /// Whether each of so many keys shares an entry, if all before it are busy.
    fn shared(keys: u32, random: &mut impl FnMut() -> u32) -> impl Iterator<Item = bool> {
        let (mut ways, mut entries) = (Ways::new(), 0);
        (0..keys).map(move |_| {
            let place = ways.place(random(), entries, |_| false, |_| false);
            entries += Index::from(place == Lookup::New);
            place != Lookup::New
        })
    }

    /// A million keys beside up to 99 busy ones, and a thousand beside 1024.
    #[test]
    fn few_keys_share_an_entry() {
        let mut state = 0u64;
        let mut random = move || {
            // SplitMix64.
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            ((mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 32) as u32
        };
        let few: usize = (0..10_000).map(|_| shared(100, &mut random).filter(|shares| *shares).count()).sum();
        assert_eq!(few, 0);
        let many = (0..1000).filter(|_| shared(1025, &mut random).last() == Some(true)).count();
        assert!((450..650).contains(&many), "{many} of 1000");
    }

    proptest! {
        /// Nothing is idle: a key keeps its entry, alone until the table is full.
        #[test]
        fn busy_keys_keep_their_entries(keys in prop::collection::vec(any::<u32>(), 1..3000)) {
            let mut ways = Ways::new();
            let mut known: HashMap<u32, Index> = HashMap::new();
            let mut shared = 0;
            let mut entries = 0;
            for key in keys {
                match ways.place(key, entries, |_| false, |_| false) {
                    Lookup::Known(index) | Lookup::Shared(index) => {
                        prop_assert!(index < entries);
                        shared += usize::from(!known.contains_key(&key));
                        if let Some(was) = known.get(&key) {
                            prop_assert_eq!(index, *was);
                        }
                    }
                    Lookup::New => {
                        prop_assert_eq!(known.insert(key, entries), None);
                        entries += 1;
                    }
                    Lookup::Reused(_) => prop_assert!(false, "nothing is idle"),
                }
            }
            prop_assert!(usize::from(entries) <= MOST && ways.sets.len() * WAYS <= MOST);
            prop_assert!(shared == 0 || ways.sets.len() * WAYS == MOST);
        }

        /// All is idle at once: two sets always suffice.
        #[test]
        fn idle_entries_are_used_again(keys in prop::collection::vec(any::<u32>(), 1..3000)) {
            let mut ways = Ways::new();
            let mut entries = 0;
            for key in keys {
                entries += Index::from(ways.place(key, entries, |_| true, |_| false) == Lookup::New);
            }
            prop_assert!(usize::from(entries) <= SETS * WAYS);
        }
    }
}
