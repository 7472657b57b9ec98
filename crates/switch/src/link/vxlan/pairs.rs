//! Pairs of a vNIC of this host and one of another host, between which frames carry stamps.
//!
//! ```text
//!  sending:  segment, MACs ─▶ Outgoing: Td, key, next number ─▶ trailer behind the frame
//!  arrival:  trailer? ─▶ segment, source, peer ─▶ keys ─▶ valid? ─▶ pair: arrived before? ─▶ frame, stamp
//!                 └─ no ───────┴─ not registered ──────┴─ no ─▶ frame unchanged
//! ```
//!
//! The control plane makes both tables; a new one takes over the numbers and the windows of the former one.
//! All lookups are binary searches.

use super::pair_counts::PairCounts;
use crate::fdb::{PeerIndex, SegmentIndex};
use crate::sched::TokenBucket;
use crate::slots::Stamped;
use crate::stats::layout::Counter;
use std::sync::Arc;
use tidegate_contract::frame::SMALLEST_FRAME;
use tidegate_contract::{Bytes, Mac, Rate};
use tidegate_evidence::DropReason;
use tidegate_uplink::replay::{Arrival, Window};
use tidegate_uplink::stamp::{self, Key, KeyNumber, Keys, Stamp};

/// Most pairs of one uplink, each way.
pub const PAIRS: usize = 16_384;

/// A segment, the address of a vNIC of this host in it, and that of a vNIC of another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PairKey(u128);

/// A segment, and an address in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AddressKey(u64);

impl PairKey {
    /// Returns the key of a pair.
    #[inline]
    pub fn new(segment: SegmentIndex, local: Mac, remote: Mac) -> Self {
        Self(u128::from(segment.0) << 96 | u128::from(bits(local)) << 48 | u128::from(bits(remote)))
    }
}

impl AddressKey {
    /// Returns the key of an address.
    #[inline]
    pub fn new(segment: SegmentIndex, address: Mac) -> Self {
        Self(u64::from(segment.0) << 48 | bits(address))
    }
}

#[inline]
fn bits(mac: Mac) -> u64 {
    let Mac([a, b, c, d, e, f]) = mac;
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

/// The shares of a deadline that the ways beyond the sending host have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeShares {
    /// Declared latency of the network (ns).
    pub latency: u64,
    /// Arrival budget of the receiving host (ns).
    pub arrival: u64,
}

/// A pair towards which frames with a deadline are stamped.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// Which one.
    pub pair: PairKey,
    /// Td (us).
    pub deadline_us: u32,
    /// The key of its stamps.
    pub key: Key,
    /// That key's number.
    pub number: KeyNumber,
    /// Its lane, if it has one of its own.
    pub lane: Option<u8>,
    /// Its counters.
    pub counts: Arc<PairCounts>,
    /// Number of the next frame.
    pub(super) next: u32,
    /// Ts of the last frame (ns).
    pub(super) last_sent: u64,
}

impl Outgoing {
    /// Returns a pair that has sent nothing.
    pub fn new(
        pair: PairKey,
        deadline_us: u32,
        (number, key): (KeyNumber, Key),
        counts: Arc<PairCounts>,
    ) -> Self {
        Self { pair, deadline_us, key, number, lane: None, counts, next: 0, last_sent: 0 }
    }

    /// The same, whose frames leave by a lane of their own.
    pub fn with_lane(self, lane: Option<u8>) -> Self {
        Self { lane, ..self }
    }

    /// Writes a stamp behind the frame of `length` bytes at the beginning of `room`, which has 32 bytes more. `sent` is
    /// the frame's Ts, `now` the time (ns, raw).
    ///
    /// Numbers grow in the order of Ts: a frame that started before the one stamped last, from another queue of its
    /// vNIC, counts as started with that.
    #[inline]
    pub fn stamp(&mut self, room: &mut [u8], sent: u64, now: u64) {
        let Some(length) = room.len().checked_sub(stamp::LEN) else { return };
        let (frame, trailer) = room.split_at_mut(length);
        self.last_sent = self.last_sent.max(sent);
        let hold = now.saturating_sub(self.last_sent);
        let stamp = Stamp {
            key: self.number,
            deadline_us: self.deadline_us,
            sent_ns: self.last_sent,
            hold_ns: u32::try_from(hold).unwrap_or(u32::MAX),
            sequence: self.next,
        };
        self.next = self.next.wrapping_add(1);
        trailer.copy_from_slice(&stamp.trailer(&self.key, frame, length as u32));
        self.counts.sent.add(1);
    }
}

/// All pairs that send, of one uplink.
#[derive(Debug, Default)]
pub struct OutgoingPairs(Box<[Outgoing]>);

impl OutgoingPairs {
    /// Returns a table; of several entries of one pair, one counts.
    pub fn new(mut pairs: Vec<Outgoing>) -> Self {
        pairs.sort_by_key(|pair| pair.pair);
        pairs.dedup_by_key(|pair| pair.pair);
        Self(pairs.into())
    }

    /// Takes over the numbers of a former table.
    pub fn continue_from(&mut self, before: &Self) {
        let mut old = before.0.iter().peekable();
        for pair in &mut self.0 {
            while old.next_if(|old| old.pair < pair.pair).is_some() {}
            if let Some(old) = old.next_if(|old| old.pair == pair.pair) {
                (pair.next, pair.last_sent) = (old.next, old.last_sent);
            }
        }
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the pair of that key.
    #[inline]
    pub fn find(&mut self, pair: PairKey) -> Option<&mut Outgoing> {
        let at = self.0.binary_search_by_key(&pair, |pair| pair.pair).ok()?;
        self.0.get_mut(at)
    }
}

/// A registered vNIC of another host.
#[derive(Clone, Debug)]
pub struct Registered {
    /// Its segment and address.
    pub address: AddressKey,
    /// The peer where it is.
    pub peer: PeerIndex,
    /// The keys of its segment.
    pub keys: Keys,
    /// The envelope of its frames with a deadline, as they may arrive; `None` bounds nothing.
    pub envelope: Option<Envelope>,
}

/// A token bucket that frames with a deadline conform to when they arrive; others go as best effort.
#[derive(Clone, Debug)]
pub struct Envelope {
    limit: (Rate, Bytes),
    bucket: TokenBucket,
}

impl Envelope {
    /// Returns one with this rate and depth; it is full.
    pub fn new(rate: Rate, burst: Bytes) -> Self {
        Self { limit: (rate, burst), bucket: TokenBucket::new(rate, burst) }
    }

    /// Charges a frame that conforms at `now` (ns); otherwise returns `false`.
    #[inline]
    fn takes(&mut self, now: u64, bytes: usize) -> bool {
        let conforms = self.bucket.conforms_at(now, bytes as u64) <= now;
        if conforms {
            self.bucket.charge(now, bytes as u64);
        }
        conforms
    }
}

/// The clock of a sender's host: the time there (ns, raw), and its error (ns).
pub type SenderTime = (u64, u64);

/// Largest difference of Ts and the sender's clock (ns), beside its error: longer no network holds a frame back.
const PLAUSIBLE: u64 = 10_000_000_000;

/// A pair whose frames arrive with a deadline.
#[derive(Clone, Debug)]
pub struct Incoming {
    /// Which one.
    pub pair: PairKey,
    /// The host that sends them.
    pub peer: PeerIndex,
    /// The shares of its deadline.
    pub shares: TimeShares,
    /// Its counters.
    pub counts: Arc<PairCounts>,
    /// Which of its frames arrived.
    pub(super) window: Window,
}

impl Incoming {
    /// Returns a pair of which nothing arrived.
    pub fn new(pair: PairKey, peer: PeerIndex, shares: TimeShares, counts: Arc<PairCounts>) -> Self {
        Self { pair, peer, shares, counts, window: Window::default() }
    }

    /// Records an arrival. A Ts far from the sender's clock is a replay of an earlier start of its host, whose times
    /// begin anew; a window that such a frame led astray while the clock was not known is forgotten.
    fn arrive(&mut self, stamp: &Stamp, there: Option<SenderTime>) -> Arrival {
        if let Some((time, error)) = there {
            let slack = error.saturating_add(PLAUSIBLE);
            if stamp.sent_ns.abs_diff(time) > slack {
                return Arrival::TooOld;
            }
            if self.window.newest_sent().is_some_and(|newest| newest > time.saturating_add(slack)) {
                self.window = Window::default();
            }
        }
        self.window.arrive(stamp.sequence, stamp.sent_ns)
    }
}

/// Registered vNICs of other hosts, and all pairs that receive, of one uplink.
#[derive(Debug, Default)]
pub struct IncomingPairs {
    registered: Box<[Registered]>,
    pairs: Box<[Incoming]>,
    /// Trailers like stamps, of no pair.
    foreign: Arc<Counter>,
}

impl IncomingPairs {
    /// Returns a table; of several entries of one pair or address, one counts.
    pub fn new(mut registered: Vec<Registered>, mut pairs: Vec<Incoming>, foreign: Arc<Counter>) -> Self {
        registered.sort_by_key(|remote| remote.address);
        registered.dedup_by_key(|remote| remote.address);
        pairs.sort_by_key(|pair| pair.pair);
        pairs.dedup_by_key(|pair| pair.pair);
        Self { registered: registered.into(), pairs: pairs.into(), foreign }
    }

    /// Takes over the windows of a former table, and the levels of equal envelopes.
    pub fn continue_from(&mut self, before: &Self) {
        let mut old = before.pairs.iter().peekable();
        for pair in &mut self.pairs {
            while old.next_if(|old| old.pair < pair.pair).is_some() {}
            // Another host has another clock.
            if let Some(old) = old.next_if(|old| old.pair == pair.pair).filter(|old| old.peer == pair.peer) {
                pair.window = old.window.clone();
            }
        }
        let mut old = before.registered.iter().peekable();
        for remote in &mut self.registered {
            while old.next_if(|old| old.address < remote.address).is_some() {}
            let Some(old) = old.next_if(|old| old.address == remote.address) else { continue };
            if let (Some(new), Some(old)) = (&mut remote.envelope, &old.envelope)
                && new.limit == old.limit
            {
                *new = old.clone();
            }
        }
    }

    /// Returns the pair of that key.
    #[inline]
    pub fn find(&self, pair: PairKey) -> Option<&Incoming> {
        let at = self.pairs.binary_search_by_key(&pair, |pair| pair.pair).ok()?;
        self.pairs.get(at)
    }

    /// Whether a frame with this head may have a stamp: its source is registered.
    #[inline]
    pub fn may_be_stamped(&self, segment: SegmentIndex, head: &[u8]) -> bool {
        let Some([.., s0, s1, s2, s3, s4, s5]) = head.first_chunk::<12>() else { return false };
        let address = AddressKey::new(segment, Mac([*s0, *s1, *s2, *s3, *s4, *s5]));
        self.registered.binary_search_by_key(&address, |remote| remote.address).is_ok()
    }

    /// Reads the stamp of a frame that `peer` sent in `segment`, at `now` (ns); `there` tells the time of its clock, if known.
    /// Returns the frame without it; and the stamp if the frame has a deadline here. A frame without a valid stamp of a
    /// registered vNIC is unchanged.
    ///
    /// # Errors
    /// The frame has arrived before, or is too old to tell.
    #[inline]
    pub fn open<'a>(
        &mut self,
        segment: SegmentIndex,
        peer: PeerIndex,
        frame: &'a [u8],
        now: u64,
        there: impl FnOnce() -> Option<SenderTime>,
    ) -> Result<(&'a [u8], Option<Stamped>), DropReason> {
        if self.registered.is_empty() || !stamp::is_alike(frame) {
            return Ok((frame, None));
        }
        self.open_alike(segment, peer, frame, now, there())
    }

    fn open_alike<'a>(
        &mut self,
        segment: SegmentIndex,
        peer: PeerIndex,
        frame: &'a [u8],
        now: u64,
        there: Option<SenderTime>,
    ) -> Result<(&'a [u8], Option<Stamped>), DropReason> {
        let unchanged = Ok((frame, None));
        let Some(([dst, src], inner)) = addresses(frame) else { return unchanged };
        let at =
            self.registered.binary_search_by_key(&AddressKey::new(segment, src), |remote| remote.address);
        let mut remote = at.ok().map(|at| &mut self.registered[at]).filter(|remote| remote.peer == peer);
        let pair = PairKey::new(segment, dst, src);
        let pair =
            self.pairs.binary_search_by_key(&pair, |pair| pair.pair).ok().map(|at| &mut self.pairs[at]);
        let Some(stamp) = remote.as_ref().and_then(|remote| Stamp::read(frame, &remote.keys)) else {
            match pair {
                Some(pair) => pair.counts.forged.add(1),
                None => self.foreign.add(1),
            }
            return unchanged;
        };
        // No promise holds for another receiver: the frame is one without a stamp.
        let Some(pair) = pair else { return Ok((inner, None)) };
        let arrival = pair.arrive(&stamp, there);
        pair.counts.arrived(arrival, pair.window.lost());
        match arrival {
            Arrival::InOrder | Arrival::Reordered | Arrival::Restarted => {
                let envelope = remote.as_mut().and_then(|remote| remote.envelope.as_mut());
                let conforms = envelope
                    .is_none_or(|envelope| envelope.takes(now, inner.len().max(SMALLEST_FRAME as usize)));
                if !conforms {
                    pair.counts.excess.add(1);
                }
                Ok((inner, Some(Stamped { stamp, conforms })))
            }
            Arrival::Replayed | Arrival::TooOld | Arrival::Contradiction => Err(DropReason::Replayed),
        }
    }
}

impl IncomingPairs {
    /// Counts an accepted frame, without its trailer, that this host drops.
    #[cold]
    pub fn note_dropped(&self, segment: SegmentIndex, frame: &[u8]) {
        let Some(([dst, src], _)) = frame.split_first_chunk::<12>().map(|(addresses, rest)| {
            let [a, b, c, d, e, f, g, h, i, j, k, l] = *addresses;
            ([Mac([a, b, c, d, e, f]), Mac([g, h, i, j, k, l])], rest)
        }) else {
            return;
        };
        if let Some(pair) = self.find(PairKey::new(segment, dst, src)) {
            pair.counts.dropped.add(1);
        }
    }
}

/// Returns the addresses of a stamped frame, destination first, and the frame without its trailer; `None` if that is
/// shorter than an Ethernet header.
#[inline]
fn addresses(frame: &[u8]) -> Option<([Mac; 2], &[u8])> {
    let (inner, _) = frame.split_last_chunk::<{ stamp::LEN }>()?;
    let (dst, rest) = inner.split_first_chunk::<6>()?;
    let (src, rest) = rest.split_first_chunk::<6>()?;
    (rest.len() >= 2).then_some(([Mac(*dst), Mac(*src)], inner))
}
