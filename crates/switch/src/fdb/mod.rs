//! The forwarding database: (segment, MAC) to the port or other host in front of it.
//!
//! ```text
//!  control ── pin, unpin ──▶ ┌─────────────────────────────┐
//!  workers ── learn ───────▶ │ 65,536 × (key, destination) │ ──▶ lookup, by any worker
//!                            └─────────────────────────────┘
//! ```
//!
//! One table for all workers, without locks: open addressing over pairs of atomics. A key is published by
//! compare-and-swap, and a reader checks it once more after reading the value, so it never sees another
//! key's destination.
//!
//! - A contract's own MACs are *pinned*: learning never moves or evicts them. A contract of this host
//!   outranks other hosts: its address is never pinned to a peer, and replaces one that is.
//! - A MAC shared by vNICs is *reserved*: it is never learned, and leads to the vNIC that [holds
//!   it](crate::holder), or nowhere.
//! - Other addresses are *learned* from frames, behind a port or a [peer](Destination::Peer), and move with
//!   them: a VM may have moved to another host. They are forgotten when unseen for some time, or when their
//!   port or peer goes.
//! - The learned addresses of each port, of each peer in each segment, of each peer, and of each link with
//!   its peers are bounded, so none fills the table: a guest of many addresses uses up no other segment's.
//!
//! [`destination`]: the contents of an entry

mod destination;
#[cfg(test)]
mod tests;

pub use destination::{Destination, PeerIndex, PortIndex};

use destination::Value;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use tidegate_contract::Mac;

const SLOTS: usize = 1 << 16;
/// Longest probe sequence; a lookup costs at most this many steps.
const PROBES: usize = 32;
/// Most MACs learned behind one port.
pub const LEARNED_PER_PORT: u32 = 8192;
/// Most MACs learned behind one peer.
pub const LEARNED_PER_PEER: u32 = 8192;
/// Most MACs of one segment learned behind one peer: one segment's guests leave room for seven others.
pub const LEARNED_PER_PEER_AND_SEGMENT: u16 = LEARNED_PER_PEER as u16 / 8;
/// Most MACs learned behind one link with all its peers: half the table.
pub const LEARNED_PER_LINK: u32 = SLOTS as u32 / 2;

/// Counts of pairs of a peer and a segment.
const PAIRS: usize = 1 << 18;

const EMPTY: u64 = 0;
/// A removed entry: reusable, and does not end a probe sequence.
const GONE: u64 = u64::MAX;

/// A tenant network, numbered densely, unlike the segment id, so that it fits into a key beside a MAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentIndex(pub u16);

impl SegmentIndex {
    /// Stands for the segment of an uplink's port, whose frames each name their own. No segment has this
    /// index.
    pub const OF_EACH_FRAME: Self = Self(u16::MAX - 1);
}

/// A key and its destination. The key changes only while the value leads nowhere, and no such value occurs
/// twice.
#[derive(Default)]
struct Entry {
    key: AtomicU64,
    value: AtomicU64,
}

/// The table.
pub struct Fdb {
    entries: Box<[Entry; SLOTS]>,
    /// Addresses learned behind each port, with the peers of its link.
    ports: Box<[AtomicU32]>,
    /// Addresses learned behind each peer.
    peers: Box<[AtomicU32]>,
    /// Addresses of each segment learned behind each peer. All segments of one peer have counts of their
    /// own; pairs of different peers may share one, and then its bound.
    pairs: Box<[AtomicU16]>,
    /// Entries removed so far.
    removed: AtomicU64,
}

/// Why an address was not learned or pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotLearned {
    /// The address belongs to another vNIC's contract.
    Pinned,
    /// The place has its most learned addresses, or the table is full around this one.
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
fn segment_of(key: u64) -> SegmentIndex {
    SegmentIndex((key >> 48) as u16 - 1)
}

/// Returns the place of a pair's count.
#[inline]
fn pair(peer: PeerIndex, segment: SegmentIndex) -> usize {
    // An odd factor, so that few pairs of two peers have one place.
    (usize::from(peer.get()).wrapping_mul(0x9e37_79b1) + usize::from(segment.0)) % PAIRS
}

#[inline]
fn slot(key: u64) -> usize {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as usize
}

impl Entry {
    #[inline]
    fn value(&self) -> Value {
        Value(self.value.load(Ordering::Acquire))
    }

    /// Returns the value, if it is this key's.
    #[inline]
    fn read(&self, key: u64) -> Option<Value> {
        if self.key.load(Ordering::Acquire) != key {
            return None;
        }
        let value = self.value();
        // Another key may have taken the entry meanwhile.
        (self.key.load(Ordering::Acquire) == key).then_some(value)
    }

    /// Changes the value from `before` to `after`; whether it was `before`.
    fn replace(&self, before: Value, after: Value) -> bool {
        self.value.compare_exchange(before.0, after.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

impl Default for Fdb {
    fn default() -> Self {
        Self::new()
    }
}

impl Fdb {
    /// An empty table, about 1.9 MB.
    pub fn new() -> Self {
        let entries: Box<[Entry]> = (0..SLOTS).map(|_| Entry::default()).collect();
        let counts = |many: usize| (0..many).map(|_| AtomicU32::new(0)).collect();
        Self {
            entries: entries.try_into().unwrap_or_else(|_| unreachable!("as many as there are slots")),
            ports: counts(usize::from(PortIndex::MAX) + 1),
            peers: counts(usize::from(PeerIndex::MOST)),
            pairs: (0..PAIRS).map(|_| AtomicU16::new(0)).collect(),
            removed: AtomicU64::new(0),
        }
    }

    /// Returns the port whose egress carries frames to `mac`: the one in front of it, or the link to its
    /// host.
    #[inline]
    pub fn lookup(&self, segment: SegmentIndex, mac: Mac) -> Option<PortIndex> {
        self.value(key(segment, mac))?.egress()
    }

    /// Returns the destination of `mac`.
    #[inline]
    pub fn destination(&self, segment: SegmentIndex, mac: Mac) -> Option<Destination> {
        self.value(key(segment, mac))?.destination()
    }

    #[inline]
    fn value(&self, key: u64) -> Option<Value> {
        // Nearly always the first entry matches.
        match self.entries[slot(key)].read(key) {
            Some(value) => Some(value),
            None => Some(self.find(key)?.1),
        }
    }

    /// Returns the destination of the vNIC whose contract has this address.
    pub fn pinned(&self, segment: SegmentIndex, mac: Mac) -> Option<Destination> {
        let (_, value) = self.find(key(segment, mac))?;
        value.destination().filter(|_| value.is_pinned())
    }

    /// Pins an address to its vNIC. Only the control thread calls this, after checking that no other vNIC
    /// of this host owns it. Learned addresses make room for it.
    ///
    /// # Errors
    /// [`NotLearned::Full`] if all entries around it are pinned; [`NotLearned::Pinned`] for a peer, if a
    /// vNIC of this host has the address.
    pub fn pin(&self, segment: SegmentIndex, mac: Mac, to: impl Into<Destination>) -> Result<(), NotLearned> {
        let to = to.into();
        self.bind(key(segment, mac), Value::pinned(to), to.port().is_some())
    }

    /// Reserves an address for vNICs that share it: it is not learned, and leads nowhere until
    /// [`lead`](Self::lead). Only the control thread calls this, after checking that it is no vNIC's own.
    ///
    /// # Errors
    /// [`NotLearned::Full`] if all entries around it are pinned.
    pub fn reserve(&self, segment: SegmentIndex, mac: Mac) -> Result<(), NotLearned> {
        self.bind(key(segment, mac), Value::NOWHERE, true)
    }

    /// Leads a [reserved](Self::reserve) address to a port, or nowhere. Any thread may call this.
    pub fn lead(&self, segment: SegmentIndex, mac: Mac, to: Option<PortIndex>) {
        let key = key(segment, mac);
        let after = to.map_or(Value::NOWHERE, |port| Value::pinned(port.into()));
        if let Some((entry, before)) = self.find(key)
            && before.is_pinned()
            && before != after
        {
            self.set(entry, key, before, after);
        }
    }

    /// Ends the reservation of an address. Only the control thread calls this, when no worker leads the
    /// address any more.
    pub fn unreserve(&self, segment: SegmentIndex, mac: Mac) {
        if let Some((entry, value)) = self.find(key(segment, mac))
            && value.is_pinned()
        {
            self.remove(entry, value);
        }
    }

    /// Gives an address a pinned value in place of a learned one.
    fn bind(&self, key: u64, after: Value, is_ours: bool) -> Result<(), NotLearned> {
        let entry = loop {
            let entry = self.claim(key).or_else(|| self.evict(key)).ok_or(NotLearned::Full)?;
            let Some(before) = entry.read(key) else { continue };
            let was_ours = before.is_pinned() && before.destination().is_none_or(|at| at.port().is_some());
            if was_ours && !is_ours {
                return Err(NotLearned::Pinned);
            }
            // Not during a removal, which takes two stores.
            if before != Value::REMOVING && self.set(entry, key, before, after) {
                self.count_out(key, before);
                break entry;
            }
            std::thread::yield_now();
        };
        // A worker may have learned it in another entry meanwhile.
        let others = self.probes(key).filter(|other| !std::ptr::eq(*other, entry));
        for (other, value) in others.filter_map(|other| Some((other, other.read(key)?))) {
            if value.is_learned() {
                self.remove(other, value);
            }
        }
        Ok(())
    }

    /// Removes an address that [`Fdb::pin`] bound to `to`; one that is bound elsewhere stays.
    pub fn unpin(&self, segment: SegmentIndex, mac: Mac, to: impl Into<Destination>) {
        if let Some((entry, value)) = self.find(key(segment, mac))
            && value == Value::pinned(to.into())
        {
            self.remove(entry, value);
        }
    }

    /// Notes that `mac` was seen behind `from` at `now` seconds.
    ///
    /// # Errors
    /// [`NotLearned::Pinned`] if its contract places it elsewhere; [`NotLearned::Full`].
    #[inline]
    pub fn learn(
        &self,
        segment: SegmentIndex,
        mac: Mac,
        from: impl Into<Destination>,
        now: u32,
    ) -> Result<(), NotLearned> {
        let (key, from) = (key(segment, mac), from.into());
        let fresh = Value::learned(from, now);
        if let Some((entry, value)) = self.find(key) {
            if value.is(from) {
                if value.seconds() != now && !value.is_pinned() {
                    entry.replace(value, fresh);
                }
                return Ok(());
            }
            if value.is_pinned() {
                return Err(NotLearned::Pinned);
            }
        }
        self.learn_anew(key, from, fresh)
    }

    fn learn_anew(&self, key: u64, from: Destination, fresh: Value) -> Result<(), NotLearned> {
        if !self.has_room(segment_of(key), from) {
            return Err(NotLearned::Full);
        }
        let entry = self.claim(key).ok_or(NotLearned::Full)?;
        // Another thread may be first, or be removing it: the next frame repeats this.
        let Some(before) = entry.read(key).filter(|value| *value != Value::REMOVING) else { return Ok(()) };
        if before.is_pinned() {
            return Err(NotLearned::Pinned);
        }
        // Counted first, so that it is never counted out before.
        self.count_in(key, from);
        let learned = self.set(entry, key, before, fresh);
        self.count_out(key, if learned { before } else { fresh });
        Ok(())
    }

    /// Removes addresses last seen before `oldest` seconds.
    pub fn sweep(&self, oldest: u32) {
        self.remove_learned(|_, value| value.seconds() < oldest);
    }

    /// Removes addresses learned behind a port, with the peers of its link; or behind one peer.
    pub fn forget(&self, gone: impl Into<Destination>) {
        match gone.into() {
            Destination::Port(port) => self.remove_learned(|_, value| value.egress() == Some(port)),
            peer @ Destination::Peer { .. } => self.remove_learned(|_, value| value.is(peer)),
        }
    }

    /// Removes the addresses learned in a segment, behind ports and peers: before its index becomes another
    /// segment's. Goes through the whole table; not for workers.
    pub fn forget_segment(&self, segment: SegmentIndex) {
        self.remove_learned(|key, _| segment_of(key) == segment);
    }

    /// Returns all learned addresses: segment, address, destination, and when last seen (seconds).
    pub fn learned_addresses(&self) -> Vec<(SegmentIndex, Mac, Destination, u32)> {
        let one = |entry: &Entry| {
            let key = entry.key.load(Ordering::Acquire);
            let value = entry.read(key)?;
            if key == EMPTY || key == GONE || value.is_pinned() {
                return None;
            }
            let ([a, b, c, d], [e, f]) = ((key as u32).to_ne_bytes(), ((key >> 32) as u16).to_ne_bytes());
            Some((segment_of(key), Mac([a, b, c, d, e, f]), value.destination()?, value.seconds()))
        };
        self.entries.iter().filter_map(one).collect()
    }

    /// Returns the number of addresses learned behind a port, with the peers of its link; or behind one
    /// peer.
    pub fn learned(&self, behind: impl Into<Destination>) -> u32 {
        match behind.into() {
            Destination::Port(port) => self.ports[usize::from(port)].load(Ordering::Relaxed),
            Destination::Peer { peer, .. } => self.peers[usize::from(peer.get())].load(Ordering::Relaxed),
        }
    }

    fn probes(&self, key: u64) -> impl Iterator<Item = &Entry> {
        let start = slot(key);
        (0..PROBES).map(move |i| &self.entries[(start + i) % SLOTS])
    }

    /// Out of line: a lookup rarely needs it.
    #[inline(never)]
    fn find(&self, key: u64) -> Option<(&Entry, Value)> {
        for entry in self.probes(key) {
            let found = entry.key.load(Ordering::Acquire);
            if found == key {
                let value = entry.value();
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
            let value = entry.value();
            if value.is_learned() && self.remove(entry, value) {
                // Another thread may learn an address into the gap; then the next is tried.
                if let Some(claimed) = self.claim(key) {
                    return Some(claimed);
                }
            }
        }
        None
    }

    fn remove_learned(&self, which: impl Fn(u64, Value) -> bool) {
        self.entries.iter().for_each(|entry| self.remove_if_learned(entry, &which));
    }

    fn remove_if_learned(&self, entry: &Entry, which: impl Fn(u64, Value) -> bool) {
        let key = entry.key.load(Ordering::Acquire);
        let value = entry.value();
        if key != EMPTY && key != GONE && value.is_learned() && which(key, value) {
            self.remove(entry, value);
        }
    }

    /// Removes an entry if it has this value.
    fn remove(&self, entry: &Entry, value: Value) -> bool {
        // The value first: a reader that still matches the key finds that it leads nowhere.
        let removed = entry.replace(value, Value::REMOVING);
        if removed {
            // It stays until this thread replaces it.
            let key = entry.key.load(Ordering::Acquire);
            entry.key.store(GONE, Ordering::Release);
            let number = self.removed.fetch_add(1, Ordering::Relaxed) + 1;
            entry.value.store(Value::removed(number).0, Ordering::Release);
            self.count_out(key, value);
        }
        removed
    }

    /// Changes the value of `key`'s entry from `before`, which was read from it.
    fn set(&self, entry: &Entry, key: u64, before: Value, after: Value) -> bool {
        // Another key may have taken the entry, learned behind the same port in the same second: it gets
        // its value back. If that fails, this one was there, and is already gone.
        let is_ours = || entry.key.load(Ordering::Acquire) == key || !entry.replace(after, before);
        entry.replace(before, after) && is_ours()
    }

    fn has_room(&self, segment: SegmentIndex, from: Destination) -> bool {
        let link = self.learned(from.egress());
        match from {
            Destination::Port(_) => link < LEARNED_PER_PORT,
            Destination::Peer { peer, .. } => {
                link < LEARNED_PER_LINK
                    && self.learned(from) < LEARNED_PER_PEER
                    && self.pairs[pair(peer, segment)].load(Ordering::Relaxed) < LEARNED_PER_PEER_AND_SEGMENT
            }
        }
    }

    fn count_in(&self, key: u64, to: Destination) {
        self.counts(to).for_each(|count| _ = count.fetch_add(1, Ordering::Relaxed));
        if let Destination::Peer { peer, .. } = to {
            self.pairs[pair(peer, segment_of(key))].fetch_add(1, Ordering::Relaxed);
        }
    }

    fn count_out(&self, key: u64, value: Value) {
        let Some(to) = value.destination().filter(|_| !value.is_pinned()) else { return };
        self.counts(to).for_each(|count| _ = count.fetch_sub(1, Ordering::Relaxed));
        if let Destination::Peer { peer, .. } = to {
            self.pairs[pair(peer, segment_of(key))].fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn counts(&self, to: Destination) -> impl Iterator<Item = &AtomicU32> {
        let peer = match to {
            Destination::Port(_) => None,
            Destination::Peer { peer, .. } => Some(&self.peers[usize::from(peer.get())]),
        };
        std::iter::once(&self.ports[usize::from(to.egress())]).chain(peer)
    }
}
