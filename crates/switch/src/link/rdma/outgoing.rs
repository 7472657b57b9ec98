//! The sending half: frames in send buffers, posted by one write per queue pair and flush.
//!
//! ```text
//!  way ─▶ Destined ─ room ─▶ buffer, written by the caller ─▶ waits ─ flush ─▶ post: urgent ones first ─▶ device
//!            │                        └ zero copy: its beginning; the guest's regions have the rest       │
//!            └ no room: completions are looked for once a loop; then the frame waits                      │
//!  buffer free ◀─ collect ◀─────────────────────────── completions, of each 16th and the last of a post ◀─┘
//! ```
//!
//! A frame of a vNIC with zero copy is held: its guest has it back when the device has read it. A device that does not is
//! no way after [`STALL`]; after [`GIVE_UP`] the queue pairs count as failed, and the control plane brings them to an end, by
//! which held frames come back; after [`LENT`] it is broken.
//!
//! A frame never waits for others to leave with it. While best effort finds no buffer, the device has enough to do; if it
//! completes nothing for [`STALL`], there is no way until it does: frames leave by other lanes.

use super::counters::Counters;
use super::gather::{Copied, Place, Places, gather};
use super::guest::GuestRegions;
use super::held::Held;
use super::members::{Tables, handle};
use super::memory::Buffers;
use super::numbers::{Key, Numbers};
use super::pool::Pool;
pub use super::posting::Fate;
use super::posting::Lane;
use super::setup::{PAIRS, SENDS, Setup};
use super::waiting::{To, Waiting};
use crate::clock::clock;
use crate::fdb::{PeerIndex, PortIndex, SegmentIndex};
use crate::virtio::Span;
use std::sync::Arc;
use tidegate_contract::Mac;
use tidegate_uplink::rdma::header;
use tidegate_verbs::CompletionQueue;

/// Longest time without a completion for which frames without room wait (ns): as long as a socket may be full.
pub const STALL: u64 = 10_000_000;
/// Longest time without a completion while frames are held (ns), before their queue pairs count as failed.
pub const GIVE_UP: u64 = 200_000_000;
/// Longest time for which frames are held (ns): as long as replaced tables wait for the device.
pub const LENT: u64 = 2_000_000_000;
/// Frames that are held.
pub const HELD: usize = SENDS as usize;
/// Longest time for which a worker stays awake for the completions of replaced tables (ns): as long as they wait for these.
const SETTLE: u64 = LENT;

/// A lane's frames to members.
pub struct Outgoing {
    sends: Arc<CompletionQueue>,
    memory: Buffers,
    pool: Pool,
    waiting: Waiting,
    tables: Arc<Tables>,
    /// By buffer: the rest of its datagram, if that is not in it.
    places: Box<[Places]>,
    held: Held,
    /// Since when nothing completes while the oldest held frame is looked for (ns); `None` without one.
    open_since: Option<u64>,
    /// That is longer than [`STALL`].
    is_late: bool,
    /// By queue pair: the region of its guest that was found last.
    found: [u16; PAIRS],
    /// Numbers of the next datagrams.
    numbers: Numbers<u32>,
    counters: Arc<Counters>,
    /// A frame found no room since the last flush.
    is_full: bool,
    /// Since when frames find none while nothing completes (ns); `None` if they do.
    full_since: Option<u64>,
    /// Until when completions of replaced tables are awaited (ns).
    settles: Option<u64>,
    fate: Fate,
}

/// The way of a vNIC's frames to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// The member's peer.
    pub peer: PeerIndex,
    /// The VNI of the segment of both, when the tables were made.
    pub vni: u32,
    /// Longest frame, with its stamp (bytes).
    pub longest: usize,
    /// Places of both in the tables.
    pair: usize,
    member: usize,
    key: Key,
    /// The number of the queue pair, and the most pieces of its sends.
    number: u32,
    pieces: usize,
}

/// Room for datagrams on a way.
pub struct Destined<'a> {
    lane: Lane<'a>,
    way: Way,
    handle: u8,
    is_urgent: bool,
    /// The memory of the sender's guest, if the device may read it.
    guest: Option<&'a GuestRegions>,
    found: &'a mut u16,
    /// A datagram of the frame reads it.
    holds: bool,
}

/// Room for the next datagram of a frame.
pub enum Gathered<'a> {
    /// For its beginning: as many first bytes as there are. The device reads the others.
    Begin(&'a mut [u8]),
    /// None.
    Full,
    /// It has to be [copied as a whole](Destined::room).
    Whole,
}

impl Outgoing {
    /// Returns the half of a lane that has sent nothing.
    pub fn new(setup: &Setup) -> Self {
        let memory = Buffers::new(setup.pool.clone(), setup.mtu as usize);
        let count = memory.count().min(SENDS as usize) as u16;
        Self {
            sends: setup.sends.clone(),
            memory,
            pool: Pool::new(count),
            waiting: Waiting::new(count),
            tables: Arc::default(),
            places: vec![Places::default(); usize::from(count)].into(),
            held: Held::new(count, HELD),
            open_since: None,
            is_late: false,
            found: [0; PAIRS],
            numbers: Numbers::default(),
            counters: setup.counters.clone(),
            is_full: false,
            full_since: None,
            settles: None,
            fate: Fate::default(),
        }
    }

    /// Returns the way from a port's vNIC with address `src` to the vNIC with `dst`; `None` if one of them has no queue pair,
    /// if the way to its host is not known, or if the device stalls.
    #[inline]
    pub fn way(&self, port: PortIndex, segment: SegmentIndex, src: Mac, dst: Mac) -> Option<Way> {
        if self.is_stalled() {
            return None;
        }
        let at = self.tables.pair_place(port)?;
        let pair = self.tables.pairs().get(at)?;
        if pair.is_failed() || pair.segment != segment || pair.mac != src {
            return None;
        }
        let member = self.tables.place(segment, dst)?;
        let to = self.tables.at(member).filter(|to| to.handles.is_some())?;
        let longest = (to.longest as usize).min(self.memory.size().saturating_sub(header::LEN));
        let key = Key::new(to.peer, to.queue_pair, pair.number());
        let (number, pieces) = (pair.number(), pair.pieces);
        let way = Way { peer: to.peer, vni: to.vni, longest, pair: at, member, key, number, pieces };
        (to.vni == pair.vni).then_some(way)
    }

    /// Returns the room for datagrams of a port on a way, and the number of the next one, which the writer of each raises.
    #[inline]
    pub fn destined(
        &mut self,
        port: PortIndex,
        way: Way,
        traffic_class: u8,
        is_urgent: bool,
    ) -> (Destined<'_>, &mut u32) {
        let (lane, numbers, found) = self.lane();
        let tables = lane.tables;
        let guest = if is_urgent { None } else { tables.guest(port).map(Arc::as_ref) };
        let handle = handle(traffic_class) as u8;
        let found = &mut found[way.pair];
        (Destined { lane, way, handle, is_urgent, guest, found, holds: false }, numbers.of(way.key))
    }

    /// Whether frames of a port without a deadline may be held.
    #[inline]
    pub fn may_hold(&self, port: PortIndex) -> bool {
        self.tables.guest(port).is_some()
    }

    /// Whether the device completes nothing for long, while frames find no room, or are held.
    #[inline]
    pub fn is_stalled(&self) -> bool {
        self.is_late || self.full_since.is_some_and(|since| clock().saturating_sub(since) > STALL)
    }

    /// Whether the oldest held frame has ended.
    pub fn has_completed(&mut self) -> bool {
        if !self.held.is_empty() && !self.held.is_over() {
            self.look_for_held();
        }
        self.held.is_over()
    }

    /// Takes the end of the oldest held frame: whether a datagram of it was lost. `None` while that is open.
    pub fn completed(&mut self) -> Option<bool> {
        let is_lost = self.has_completed().then(|| self.held.take()).flatten();
        if is_lost.is_some() && self.pool.in_flight() == 0 {
            // It was lost before the device had it: no completion would end this time, nor a stall.
            (self.open_since, self.is_late) = (None, false);
        }
        is_lost
    }

    fn look_for_held(&mut self) {
        let (mut lane, ..) = self.lane();
        if lane.collect() > 0 {
            self.is_full = false;
            return;
        }
        let now = clock();
        let open = now.saturating_sub(*self.open_since.get_or_insert(now));
        self.is_late = open > STALL;
        if open > GIVE_UP {
            self.fail_held();
        }
    }

    /// Notes that the queue pairs of held frames failed.
    #[cold]
    fn fail_held(&self) {
        for pair in self.held.pairs().filter_map(|number| self.tables.by_number(number)) {
            pair.note_failed(&self.counters);
        }
    }

    /// Forgets all held frames. The device may still read those that it has: their queue pairs count as failed, and none of
    /// those that wait here is posted.
    #[cold]
    pub fn give_up(&mut self) {
        self.fail_held();
        if self.open_since.is_some_and(|since| clock().saturating_sub(since) > GIVE_UP) {
            // It does not even end what failed.
            self.lane().0.break_down();
        }
        self.held.give_up();
        (self.open_since, self.is_late) = (None, false);
    }

    /// Whether datagrams wait for a flush.
    #[inline]
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether another flush is needed soon: for datagrams, for room, or for the completions of replaced tables.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        self.has_waiting() || self.is_full || self.settles.is_some()
    }

    /// Posts what waits, and looks for completions.
    #[inline]
    pub fn flush(&mut self) {
        if self.waiting.is_empty() && self.pool.in_flight() == 0 {
            (self.is_full, self.full_since) = (false, None);
        } else {
            let (mut lane, ..) = self.lane();
            lane.post();
            let freed = lane.collect();
            self.is_full &= freed == 0;
        }
        if self.counters.replaced.get() > 0 || self.settles.is_some() {
            self.settle();
        }
    }

    /// Returns what became of datagrams since the last call.
    #[inline]
    pub fn take_fate(&mut self) -> Fate {
        std::mem::take(&mut self.fate)
    }

    /// Replaces the tables, and returns those before. Datagrams that wait leave by those.
    pub fn set_tables(&mut self, tables: Arc<Tables>) -> Arc<Tables> {
        self.flush();
        self.pool.begin_epoch();
        let old = std::mem::replace(&mut self.tables, tables);
        self.settles = Some(clock() + SETTLE);
        self.settle();
        old
    }

    /// Tells how many sends of replaced tables are under way.
    #[cold]
    fn settle(&mut self) {
        let old = self.pool.old();
        self.counters.replaced.set(old as u64);
        if old == 0 || self.settles.is_some_and(|until| clock() > until) {
            self.settles = None;
        }
    }

    #[inline]
    fn lane(&mut self) -> (Lane<'_>, &mut Numbers<u32>, &mut [u16; PAIRS]) {
        let lane = Lane {
            sends: &self.sends,
            memory: &mut self.memory,
            pool: &mut self.pool,
            waiting: &mut self.waiting,
            tables: &self.tables,
            places: &mut self.places,
            held: &mut self.held,
            open_since: &mut self.open_since,
            is_late: &mut self.is_late,
            counters: &self.counters,
            is_full: &mut self.is_full,
            full_since: &mut self.full_since,
            fate: &mut self.fate,
        };
        (lane, &mut self.numbers, &mut self.found)
    }
}

impl Destined<'_> {
    /// Returns room for the next datagram, of `len` bytes, all of which are then written; `None` without room.
    #[inline]
    pub fn room(&mut self, len: usize) -> Option<&mut [u8]> {
        let at = self.take(len, len)?;
        // SAFETY: the pool lends each buffer once, until it is free again; the bytes are written before the next room is
        // asked for, or a flush posts them.
        unsafe { self.lane.memory.bytes_mut(at, len) }
    }

    /// Returns room for the beginning of the next datagram, all of which is then written, if the device can read the rest out
    /// of the guest's memory: `head` bytes, and perhaps some of the body, whose `len` bytes are in `body`.
    #[inline]
    pub fn gather(&mut self, head: usize, body: &[Span], len: usize) -> Gathered<'_> {
        match self.guest {
            Some(guest) => self.gather_from(guest, head, (body, len)),
            None => Gathered::Whole,
        }
    }

    fn gather_from(
        &mut self,
        guest: &GuestRegions,
        head: usize,
        (body, len): (&[Span], usize),
    ) -> Gathered<'_> {
        let mut places = Places::default();
        let find = |span: &Span| {
            let (region, from) = guest.locate(span, *self.found)?;
            *self.found = region;
            Some(Place { from, len: span.len, region })
        };
        let counters = self.lane.counters;
        let more = match gather(body, &mut places, find) {
            Ok(more) if places.as_slice().len() < self.way.pieces => more,
            Ok(_) | Err(Copied::Scattered) => {
                counters.too_many_pieces.add(1);
                return Gathered::Whole;
            }
            Err(Copied::Elsewhere) => {
                counters.no_region.add(1);
                return Gathered::Whole;
            }
            Err(Copied::Short) => return Gathered::Whole,
        };
        if !self.holds && !self.lane.held.has_room() {
            return Gathered::Whole;
        }
        let begin = head + more;
        let Some(at) = self.take(head + len, begin) else { return Gathered::Full };
        let lane = &mut self.lane;
        if !std::mem::replace(&mut self.holds, true) {
            lane.held.begin(self.way.number);
        }
        lane.held.add(at);
        lane.places[usize::from(at)] = places;
        counters.zero_copied_out.add(1);
        counters.zero_copied_out_bytes.add((len - more) as u64);
        guest.counters().sent.add(1);
        guest.counters().sent_bytes.add((len - more) as u64);
        // SAFETY: as in `room`.
        unsafe { lane.memory.bytes_mut(at, begin) }.map_or(Gathered::Full, Gathered::Begin)
    }

    /// Whether the frame is held.
    #[inline]
    pub fn holds(&self) -> bool {
        self.holds
    }

    /// Takes a buffer for a datagram of `len` bytes, `copied` of which are in it.
    #[inline]
    fn take(&mut self, len: usize, copied: usize) -> Option<u16> {
        let lane = &mut self.lane;
        if len > lane.memory.size() {
            return None;
        }
        let at = match lane.pool.take(len, self.is_urgent) {
            Some(at) => at,
            None => lane.make_room(len, self.is_urgent)?,
        };
        let to = To {
            member: self.way.member as u32,
            handle: self.handle,
            len: len as u32,
            copied: copied as u32,
        };
        lane.waiting.push(self.way.pair, at, to, self.is_urgent);
        lane.counters.copied_out.add(copied as u64);
        Some(at)
    }
}
