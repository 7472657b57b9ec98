//! The forwarding database: (segment, MAC) to port.
//!
//! ```text
//!  control ── pin, unpin ──▶ ┌──────────────────────┐
//!  workers ── learn ───────▶ │ 65,536 × (key, port) │ ──▶ lookup, by any worker
//!                            └──────────────────────┘
//! ```
//!
//! One table for all workers, without locks: open addressing over pairs of
//! atomics. A key is published by compare-and-swap and a reader checks it
//! again after reading the value, so it never sees another key's port.
//! A contract's own MACs are *pinned*: learning never moves or evicts them.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use tidegate_contract::Mac;

/// Index of a port; also of its statistics.
pub type PortIndex = u16;

const SLOTS: usize = 1 << 16;
/// Longest probe sequence; a lookup costs at most this many steps.
const PROBES: usize = 32;
/// Most MACs learned behind one port.
pub const LEARNED_PER_PORT: u32 = 8192;

const EMPTY: u64 = 0;
/// A removed entry: may be reused, does not end a probe sequence.
const GONE: u64 = u64::MAX;

const VALID: u64 = 1 << 63;
const PINNED: u64 = 1 << 62;

/// A tenant network as the switch numbers it: dense, unlike the segment id, so
/// that it fits into a key beside a MAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SegmentIndex(pub u16);

#[derive(Default)]
struct Entry {
    key: AtomicU64,
    /// VALID | PINNED | seconds (32 bits) << 16 | port
    value: AtomicU64,
}

/// The table.
pub struct Fdb {
    entries: Box<[Entry; SLOTS]>,
    learned: Box<[AtomicU32]>,
}

/// Why an address was not learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotLearned {
    /// The address belongs to another vNIC's contract.
    Pinned,
    /// The port has [`LEARNED_PER_PORT`] addresses, or the table is full around this one.
    Full,
}

#[inline]
fn key(segment: SegmentIndex, mac: Mac) -> u64 {
    let [a, b, c, d, e, f] = mac.0;
    let (low, high) = (u32::from_ne_bytes([a, b, c, d]), u16::from_ne_bytes([e, f]));
    // One more than the segment, so that no key is EMPTY; 0xffff + 1 never occurs.
    u64::from(segment.0 + 1) << 48 | u64::from(high) << 32 | u64::from(low)
}

#[inline]
fn slot(key: u64) -> usize {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as usize
}

/// The value of an entry, if it is this key's.
#[inline]
fn read(entry: &Entry, key: u64) -> Option<u64> {
    if entry.key.load(Ordering::Acquire) != key {
        return None;
    }
    let value = entry.value.load(Ordering::Acquire);
    // Another key may have taken the place meanwhile.
    (entry.key.load(Ordering::Acquire) == key).then_some(value)
}

fn port_of(value: u64) -> PortIndex {
    (value & 0xffff) as u16
}

fn seconds_of(value: u64) -> u32 {
    (value >> 16) as u32
}

impl Default for Fdb {
    fn default() -> Self {
        Self::new()
    }
}

impl Fdb {
    /// An empty table, about 1.3 MB.
    pub fn new() -> Self {
        let entries: Box<[Entry]> = (0..SLOTS).map(|_| Entry::default()).collect();
        Self {
            entries: entries.try_into().unwrap_or_else(|_| unreachable!("as many as there are slots")),
            learned: (0..=u16::MAX as usize).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// The port behind which `mac` lives.
    #[inline]
    pub fn lookup(&self, segment: SegmentIndex, mac: Mac) -> Option<PortIndex> {
        let key = key(segment, mac);
        // Nearly always it is the first that is looked at.
        let first = &self.entries[slot(key)];
        let value = match read(first, key) {
            Some(value) => value,
            None => self.find(key)?.1,
        };
        (value & VALID != 0).then(|| port_of(value))
    }

    /// The port whose contract an address belongs to, wherever frames to it go.
    pub fn pinned(&self, segment: SegmentIndex, mac: Mac) -> Option<PortIndex> {
        let (_, value) = self.find(key(segment, mac))?;
        (value & PINNED != 0).then(|| port_of(value))
    }

    /// Binds an address to its vNIC. Called by the control thread only, which
    /// has checked that no other vNIC owns it. What was learned makes room for it; `Err` where all
    /// around it are pinned.
    pub fn pin(&self, segment: SegmentIndex, mac: Mac, port: PortIndex) -> Result<(), NotLearned> {
        let key = key(segment, mac);
        let entry = self.claim(key).or_else(|| self.evict(key)).ok_or(NotLearned::Full)?;
        let before = entry.value.swap(VALID | PINNED | u64::from(port), Ordering::AcqRel);
        self.forget_learned(before);
        Ok(())
    }

    /// Removes an address bound by [`Fdb::pin`].
    pub fn unpin(&self, segment: SegmentIndex, mac: Mac) {
        if let Some((entry, _)) = self.find(key(segment, mac)) {
            self.clear(entry);
        }
    }

    /// Notes that `mac` was seen behind `port` at `now` seconds.
    #[inline]
    pub fn learn(
        &self,
        segment: SegmentIndex,
        mac: Mac,
        port: PortIndex,
        now: u32,
    ) -> Result<(), NotLearned> {
        let key = key(segment, mac);
        let fresh = VALID | u64::from(now) << 16 | u64::from(port);
        if let Some((entry, value)) = self.find(key)
            && value & VALID != 0
        {
            if value & PINNED != 0 {
                return if port_of(value) == port { Ok(()) } else { Err(NotLearned::Pinned) };
            }
            if port_of(value) == port {
                if seconds_of(value) != now {
                    let _ = entry.value.compare_exchange(value, fresh, Ordering::AcqRel, Ordering::Relaxed);
                }
                return Ok(());
            }
        }
        if self.learned[port as usize].load(Ordering::Relaxed) >= LEARNED_PER_PORT {
            return Err(NotLearned::Full);
        }
        let entry = self.claim(key).ok_or(NotLearned::Full)?;
        let before = entry.value.load(Ordering::Acquire);
        if before & PINNED != 0 {
            return Err(NotLearned::Pinned);
        }
        if entry.value.compare_exchange(before, fresh, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.forget_learned(before);
            self.learned[port as usize].fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Removes what was learned before `oldest` seconds, or behind `port`.
    pub fn sweep(&self, oldest: u32, port: Option<PortIndex>) {
        for entry in self.entries.iter() {
            let value = entry.value.load(Ordering::Acquire);
            let stale = seconds_of(value) < oldest || port == Some(port_of(value));
            if value & VALID != 0 && value & PINNED == 0 && stale {
                self.clear(entry);
            }
        }
    }

    /// Everything learned: segment, address, port, when it was seen last (seconds).
    pub fn learned_addresses(&self) -> Vec<(SegmentIndex, Mac, PortIndex, u32)> {
        let one = |entry: &Entry| {
            let key = entry.key.load(Ordering::Acquire);
            let value = read(entry, key)?;
            if key == EMPTY || key == GONE || value & VALID == 0 || value & PINNED != 0 {
                return None;
            }
            let ([a, b, c, d], [e, f]) = ((key as u32).to_ne_bytes(), ((key >> 32) as u16).to_ne_bytes());
            let segment = SegmentIndex((key >> 48) as u16 - 1);
            Some((segment, Mac([a, b, c, d, e, f]), port_of(value), seconds_of(value)))
        };
        self.entries.iter().filter_map(one).collect()
    }

    /// Addresses learned behind `port`.
    pub fn learned(&self, port: PortIndex) -> u32 {
        self.learned[port as usize].load(Ordering::Relaxed)
    }

    fn probes(&self, key: u64) -> impl Iterator<Item = &Entry> {
        let start = slot(key);
        (0..PROBES).map(move |i| &self.entries[(start + i) % SLOTS])
    }

    fn find(&self, key: u64) -> Option<(&Entry, u64)> {
        for entry in self.probes(key) {
            let found = entry.key.load(Ordering::Acquire);
            if found == key {
                let value = entry.value.load(Ordering::Acquire);
                return (entry.key.load(Ordering::Acquire) == key).then_some((entry, value));
            }
            if found == EMPTY {
                return None;
            }
        }
        None
    }

    fn claim(&self, key: u64) -> Option<&Entry> {
        if let Some((entry, _)) = self.find(key) {
            return Some(entry);
        }
        self.probes(key).find(|entry| {
            let found = entry.key.load(Ordering::Acquire);
            let free = found == EMPTY || found == GONE;
            let claim = |from| entry.key.compare_exchange(from, key, Ordering::AcqRel, Ordering::Acquire);
            free && claim(found).is_ok_and(|_| true) || entry.key.load(Ordering::Acquire) == key
        })
    }

    /// Clears learned addresses around `key` until it has a place.
    fn evict(&self, key: u64) -> Option<&Entry> {
        for entry in self.probes(key) {
            let value = entry.value.load(Ordering::Acquire);
            if value & VALID != 0 && value & PINNED == 0 {
                self.clear(entry);
                // Somebody may learn another into the gap; the next is tried then.
                if let Some(claimed) = self.claim(key) {
                    return Some(claimed);
                }
            }
        }
        None
    }

    fn clear(&self, entry: &Entry) {
        // The value goes first: a reader that still matches the key finds it invalid.
        let before = entry.value.swap(0, Ordering::AcqRel);
        entry.key.store(GONE, Ordering::Release);
        self.forget_learned(before);
    }

    fn forget_learned(&self, value: u64) {
        if value & VALID != 0 && value & PINNED == 0 {
            self.learned[port_of(value) as usize].fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn mac(n: u32) -> Mac {
        let b = n.to_be_bytes();
        Mac([0x02, 0, b[0], b[1], b[2], b[3]])
    }

    #[derive(Clone, Debug)]
    enum Step {
        Learn(u16, u32, u16),
        Lookup(u16, u32),
        Forget(u16),
    }

    fn step() -> impl Strategy<Value = Step> {
        // Forgetting goes through the whole table.
        prop_oneof![
            8 => (0u16..3, 0u32..50, 0u16..4).prop_map(|(s, m, p)| Step::Learn(s, m, p)),
            8 => (0u16..3, 0u32..50).prop_map(|(s, m)| Step::Lookup(s, m)),
            1 => (0u16..4).prop_map(Step::Forget),
        ]
    }

    proptest! {
        #[test]
        fn behaves_like_a_map(steps in prop::collection::vec(step(), 1..300)) {
            let fdb = Fdb::new();
            let mut model = HashMap::new();
            for step in steps {
                match step {
                    Step::Learn(s, m, p) => {
                        fdb.learn(SegmentIndex(s), mac(m), p, 1).unwrap();
                        model.insert((s, m), p);
                    }
                    Step::Lookup(s, m) => {
                        prop_assert_eq!(fdb.lookup(SegmentIndex(s), mac(m)), model.get(&(s, m)).copied());
                    }
                    Step::Forget(p) => {
                        fdb.sweep(0, Some(p));
                        model.retain(|_, port| *port != p);
                    }
                }
                for port in 0..4 {
                    let expected = model.values().filter(|p| **p == port).count() as u32;
                    prop_assert_eq!(fdb.learned(port), expected);
                }
            }
        }
    }

    #[test]
    fn a_segment_never_sees_another() {
        let fdb = Fdb::new();
        fdb.pin(SegmentIndex(0), mac(1), 5).unwrap();
        assert_eq!(fdb.lookup(SegmentIndex(0), mac(1)), Some(5));
        assert_eq!(fdb.lookup(SegmentIndex(1), mac(1)), None);
    }

    #[test]
    fn learning_never_moves_a_pinned_address() {
        let fdb = Fdb::new();
        fdb.pin(SegmentIndex(0), mac(1), 5).unwrap();
        assert_eq!(fdb.learn(SegmentIndex(0), mac(1), 6, 1), Err(NotLearned::Pinned));
        fdb.learn(SegmentIndex(0), mac(2), 6, 1).unwrap();
        let pinned = [1, 2, 3].map(|n| fdb.pinned(SegmentIndex(0), mac(n)));
        assert_eq!(pinned, [Some(5), None, None]);
        fdb.sweep(u32::MAX, None);
        assert_eq!(fdb.lookup(SegmentIndex(0), mac(1)), Some(5));
        fdb.unpin(SegmentIndex(0), mac(1));
        assert_eq!(fdb.lookup(SegmentIndex(0), mac(1)), None);
    }

    #[test]
    fn a_flood_of_addresses_is_bounded_and_leaves_others_alone() {
        let fdb = Fdb::new();
        fdb.pin(SegmentIndex(0), mac(1 << 24), 1).unwrap();
        let refused = (0..20_000u32).filter(|n| fdb.learn(SegmentIndex(0), mac(*n), 2, 1).is_err()).count();
        assert!(fdb.learned(2) <= LEARNED_PER_PORT && refused >= 20_000 - LEARNED_PER_PORT as usize);
        assert_eq!(fdb.lookup(SegmentIndex(0), mac(1 << 24)), Some(1));
        fdb.pin(SegmentIndex(0), mac(5 << 24), 3).unwrap();
        assert_eq!(fdb.lookup(SegmentIndex(0), mac(5 << 24)), Some(3));
    }

    #[test]
    fn what_was_learned_makes_room_for_a_contract() {
        let fdb = Fdb::new();
        let segment = SegmentIndex(0);
        let own = mac(7);
        // A guest behind a trunk fills every place the address could have.
        let around =
            |n: &u32| (slot(key(segment, mac(*n))) + SLOTS - slot(key(segment, own))) % SLOTS < PROBES;
        let chosen: Vec<u32> = (1 << 24..u32::MAX).filter(around).take(4 * PROBES).collect();
        for n in &chosen {
            let _ = fdb.learn(segment, mac(*n), 2, 1);
        }
        assert!(fdb.claim(key(segment, own)).is_none(), "not full around it");
        fdb.pin(segment, own, 5).unwrap();
        assert_eq!(fdb.lookup(segment, own), Some(5));
        let left = chosen.iter().filter(|n| fdb.lookup(segment, mac(**n)).is_some()).count();
        assert_eq!(left as u32, fdb.learned(2));
    }

    #[test]
    fn what_was_learned_can_be_told() {
        let fdb = Fdb::new();
        fdb.pin(SegmentIndex(0), mac(9), 1).unwrap();
        let known = [(SegmentIndex(0), mac(1), 2, 100), (SegmentIndex(7), mac(u32::MAX), 1023, 400)];
        for (segment, mac, port, seconds) in known {
            fdb.learn(segment, mac, port, seconds).unwrap();
        }
        fdb.learn(SegmentIndex(1), mac(5), 2, 1).unwrap();
        fdb.sweep(50, None);
        let mut told = fdb.learned_addresses();
        told.sort_by_key(|(segment, ..)| segment.0);
        assert_eq!(told, known);
    }

    #[test]
    fn what_is_not_seen_again_is_forgotten() {
        let fdb = Fdb::new();
        fdb.learn(SegmentIndex(0), mac(1), 2, 100).unwrap();
        fdb.learn(SegmentIndex(0), mac(2), 2, 100).unwrap();
        fdb.learn(SegmentIndex(0), mac(1), 2, 400).unwrap();
        fdb.sweep(200, None);
        assert_eq!(fdb.lookup(SegmentIndex(0), mac(1)), Some(2));
        assert_eq!(fdb.lookup(SegmentIndex(0), mac(2)), None);
        assert_eq!(fdb.learned(2), 1);
    }
}
