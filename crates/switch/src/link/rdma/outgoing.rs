//! The sending half: frames in send buffers, posted by one write per queue pair and flush.
//!
//! ```text
//!  way ─▶ Destined ─ room ─▶ buffer, written by the caller ─▶ waits ─ flush ─▶ post: urgent ones first ─▶ device
//!            └ no room: completions are looked for once a loop; then the frame waits                      │
//!  buffer free ◀─ collect ◀─────────────────────────── completions, of each 16th and the last of a post ◀─┘
//! ```
//!
//! A frame never waits for others to leave with it. While best effort finds no buffer, the device has enough to do; if it
//! completes nothing for [`STALL`], there is no way until it does: frames leave by other lanes.

use super::counters::Counters;
use super::members::{MemberEntry, Tables, handle};
use super::memory::Buffers;
use super::numbers::{Key, Numbers};
use super::pool::Pool;
use super::setup::{SENDS, Setup};
use super::waiting::{To, Waiting};
use crate::clock::clock;
use crate::fdb::{PeerIndex, PortIndex, SegmentIndex};
use smallvec::SmallVec;
use std::sync::Arc;
use tidegate_contract::Mac;
use tidegate_uplink::rdma::header;
use tidegate_verbs::{Address, BATCH, Completion, CompletionQueue, Piece, Send, Status};

/// Longest time without a completion for which frames without room wait (ns): as long as a socket may be full.
pub const STALL: u64 = 10_000_000;
/// Longest time for which a worker stays awake for the completions of replaced tables (ns).
const SETTLE: u64 = 1_000_000_000;
/// Each so many sends of a post ask for a completion.
const SIGNALLED: usize = 16;
/// Completions of one look.
const LOOK: usize = 32;

/// A lane's frames to members.
pub struct Outgoing {
    sends: Arc<CompletionQueue>,
    memory: Buffers,
    pool: Pool,
    waiting: Waiting,
    tables: Arc<Tables>,
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

/// What became of datagrams since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fate {
    /// Datagrams that the device took.
    pub sent: u64,
    /// Bytes of their frames.
    pub bytes: u64,
    /// Datagrams that it did not take, or could not send.
    pub unsent: u64,
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
}

/// Room for datagrams on a way.
pub struct Destined<'a> {
    lane: Lane<'a>,
    way: Way,
    handle: u8,
    is_urgent: bool,
}

/// The parts of a lane that are needed for room.
struct Lane<'a> {
    sends: &'a CompletionQueue,
    memory: &'a mut Buffers,
    pool: &'a mut Pool,
    waiting: &'a mut Waiting,
    tables: &'a Tables,
    counters: &'a Counters,
    is_full: &'a mut bool,
    full_since: &'a mut Option<u64>,
    fate: &'a mut Fate,
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
        (to.vni == pair.vni).then_some(Way { peer: to.peer, vni: to.vni, longest, pair: at, member, key })
    }

    /// Returns the room for datagrams on a way, and the number of the next one, which the writer of each raises.
    #[inline]
    pub fn destined(&mut self, way: Way, traffic_class: u8, is_urgent: bool) -> (Destined<'_>, &mut u32) {
        let (lane, numbers) = self.lane();
        (Destined { lane, way, handle: handle(traffic_class) as u8, is_urgent }, numbers.of(way.key))
    }

    /// Whether the device completes nothing for long, while frames find no room.
    #[inline]
    pub fn is_stalled(&self) -> bool {
        self.full_since.is_some_and(|since| clock().saturating_sub(since) > STALL)
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
            let (mut lane, _) = self.lane();
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
    fn lane(&mut self) -> (Lane<'_>, &mut Numbers<u32>) {
        let lane = Lane {
            sends: &self.sends,
            memory: &mut self.memory,
            pool: &mut self.pool,
            waiting: &mut self.waiting,
            tables: &self.tables,
            counters: &self.counters,
            is_full: &mut self.is_full,
            full_since: &mut self.full_since,
            fate: &mut self.fate,
        };
        (lane, &mut self.numbers)
    }
}

impl Destined<'_> {
    /// Returns room for the next datagram, of `len` bytes, all of which are then written; `None` without room.
    #[inline]
    pub fn room(&mut self, len: usize) -> Option<&mut [u8]> {
        let lane = &mut self.lane;
        if len > lane.memory.size() {
            return None;
        }
        let at = match lane.pool.take(len, self.is_urgent) {
            Some(at) => at,
            None => lane.make_room(len, self.is_urgent)?,
        };
        let to = To { member: self.way.member as u32, handle: self.handle, len: len as u32 };
        lane.waiting.push(self.way.pair, at, to, self.is_urgent);
        lane.counters.copied_out.add(len as u64);
        // SAFETY: the pool lends each buffer once, until it is free again; the bytes are written before the next room is
        // asked for, or a flush posts them.
        unsafe { lane.memory.bytes_mut(at, len) }
    }
}

impl Lane<'_> {
    /// Posts what waits, and takes a buffer that a completion freed.
    #[cold]
    fn make_room(&mut self, len: usize, is_urgent: bool) -> Option<u16> {
        if *self.is_full && !is_urgent {
            // One look a loop.
            return None;
        }
        self.post();
        self.collect();
        let at = self.pool.take(len, is_urgent);
        if at.is_none() {
            self.counters.no_buffers.add(1);
            *self.is_full = true;
            self.full_since.get_or_insert_with(clock);
        }
        at
    }

    /// Posts what waits, by one write per queue pair (each [`BATCH`] of its datagrams).
    fn post(&mut self) {
        while let Some(pair) = self.waiting.next_pair() {
            self.post_to(pair);
        }
    }

    /// Posts up to [`BATCH`] datagrams of a queue pair.
    fn post_to(&mut self, place: usize) {
        let mut buffers = SmallVec::<[u16; BATCH]>::new();
        let mut datagrams = SmallVec::<[(Piece<'_>, &Address, &MemberEntry); BATCH]>::new();
        let (tables, memory): (&Tables, &Buffers) = (self.tables, self.memory);
        let mut lost = 0;
        while buffers.len() < BATCH
            && let Some((at, to)) = self.waiting.pop(place)
        {
            let member = tables.at(to.member as usize);
            let Some((member, handle)) = member
                .and_then(|member| Some((member, member.handles.as_ref()?.get(usize::from(to.handle))?)))
            else {
                self.pool.give(at);
                lost += 1;
                continue;
            };
            buffers.push(at);
            let piece = Piece { region: memory.region(), from: memory.place(at), len: to.len };
            datagrams.push((piece, handle, member));
        }
        let last = buffers.len().saturating_sub(1);
        let mut sends = SmallVec::<[Send<'_>; BATCH]>::new();
        for (n, (piece, to, member)) in datagrams.iter().enumerate() {
            sends.push(Send {
                id: u64::from(buffers[n]),
                pieces: std::slice::from_ref(piece),
                is_signalled: (n + 1) % SIGNALLED == 0 || n == last,
                to,
                queue_pair: member.queue_pair,
                q_key: member.q_key,
            });
        }
        let pair = tables.pairs().get(place).filter(|pair| !pair.is_failed());
        let taken = match pair {
            // SAFETY: the pool keeps the buffers from the caller until their completion; the region lives as long as the
            // lane, and the handles as long as the tables, which the control plane retires.
            Some(pair) => match unsafe { pair.post_sends(&sends) } {
                Ok(()) => sends.len(),
                Err((taken, _)) => {
                    pair.note_failed(self.counters);
                    taken.min(sends.len())
                }
            },
            None => 0,
        };
        let (posted, left) = buffers.split_at(taken);
        let mut before = None;
        let mut bytes = 0;
        for ((at, send), (piece, ..)) in posted.iter().zip(&sends).zip(&datagrams) {
            self.pool.post(*at, before);
            before = (!send.is_signalled).then_some(*at);
            bytes += u64::from(piece.len).saturating_sub(header::LEN as u64);
        }
        self.fate.sent += taken as u64;
        self.fate.bytes += bytes;
        for at in left {
            self.pool.give(*at);
        }
        lost += left.len() as u64;
        self.fate.unsent += lost;
        self.counters.unsent.add(lost);
        self.counters.sent.add(taken as u64);
        self.counters.sent_bytes.add(bytes);
    }

    /// Frees the buffers of completed sends; returns how many.
    fn collect(&mut self) -> usize {
        let mut completions = [Completion::default(); LOOK];
        let mut freed = 0;
        loop {
            let Ok(count) = self.sends.poll(&mut completions) else {
                self.break_down();
                return freed;
            };
            for completion in completions.iter().take(count) {
                freed += self.complete(completion);
            }
            if count < LOOK {
                break;
            }
        }
        if freed > 0 {
            *self.full_since = None;
        }
        freed
    }

    #[inline]
    fn complete(&mut self, completion: &Completion) -> usize {
        let Some(freed) = self.pool.complete(completion.id) else {
            self.counters.malformed.add(1);
            return 0;
        };
        if completion.status != Status::Success {
            self.note_error(completion);
        }
        freed
    }

    /// Notes that a datagram was not sent: its queue pair failed, or was brought to fail.
    #[cold]
    fn note_error(&mut self, completion: &Completion) {
        self.fate.unsent += 1;
        self.counters.unsent.add(1);
        if let Some(pair) = self.tables.by_number(completion.queue_pair) {
            pair.note_failed(self.counters);
        }
    }

    /// Notes that completions are no longer told: all frames leave by VXLAN until the link is made anew.
    #[cold]
    fn break_down(&self) {
        self.counters.broken.set(1);
        self.tables.pairs().iter().for_each(|pair| pair.note_failed(self.counters));
    }
}
