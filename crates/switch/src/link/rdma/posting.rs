//! Posts of datagrams to the device, and what it says of them.
//!
//! ```text
//!  waiting ─ post ─▶ pieces: buffer, places in a guest's memory ─▶ one write per queue pair ─▶ device
//!  pool, held ◀─ collect ◀─ completions, of each 16th and the last of a post ◀──────────────────┘
//! ```

use super::counters::Counters;
use super::gather::{Place, Places};
use super::held::Held;
use super::members::{MemberEntry, Tables};
use super::memory::Buffers;
use super::pair::LocalPair;
use super::pool::Pool;
use super::waiting::Waiting;
use crate::clock::clock;
use smallvec::SmallVec;
use std::sync::Arc;
use tidegate_uplink::rdma::header;
use tidegate_verbs::{Address, BATCH, Completion, CompletionQueue, ELEMENTS, Piece, Send, Status};

/// Each so many sends of a post ask for a completion.
const SIGNALLED: usize = 16;
/// Completions of one look.
const LOOK: usize = 32;

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

/// The parts of a lane that are needed for room, for posts, and for completions.
pub(super) struct Lane<'a> {
    pub(super) sends: &'a CompletionQueue,
    pub(super) memory: &'a mut Buffers,
    pub(super) pool: &'a mut Pool,
    pub(super) waiting: &'a mut Waiting,
    pub(super) tables: &'a Tables,
    pub(super) places: &'a mut [Places],
    pub(super) held: &'a mut Held,
    pub(super) open_since: &'a mut Option<u64>,
    pub(super) is_late: &'a mut bool,
    pub(super) counters: &'a Counters,
    pub(super) is_full: &'a mut bool,
    pub(super) full_since: &'a mut Option<u64>,
    pub(super) fate: &'a mut Fate,
}

impl Lane<'_> {
    /// Posts what waits, and takes a buffer that a completion freed.
    #[cold]
    pub(super) fn make_room(&mut self, len: usize, is_urgent: bool) -> Option<u16> {
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
    pub(super) fn post(&mut self) {
        while let Some(pair) = self.waiting.next_pair() {
            self.post_to(pair);
        }
    }

    /// Posts up to [`BATCH`] datagrams of a queue pair.
    fn post_to(&mut self, place: usize) {
        let mut buffers = SmallVec::<[u16; BATCH]>::new();
        let mut pieces = SmallVec::<[Piece<'_>; ELEMENTS]>::new();
        let mut datagrams = SmallVec::<[Datagram<'_>; BATCH]>::new();
        let (tables, memory): (&Tables, &Buffers) = (self.tables, self.memory);
        let pair = tables.pairs().get(place).filter(|pair| !pair.is_failed());
        let mut lost = 0;
        while buffers.len() < BATCH
            && let Some((at, to)) = self.waiting.pop(place)
        {
            let from = pieces.len();
            pieces.push(Piece { region: memory.region(), from: memory.place(at), len: to.copied });
            let whole = to.copied == to.len
                || add_places(&mut pieces, tables, pair, self.places[usize::from(at)].as_slice());
            let member = tables.at(to.member as usize).filter(|_| whole);
            let Some((member, handle)) = member
                .and_then(|member| Some((member, member.handles.as_ref()?.get(usize::from(to.handle))?)))
            else {
                pieces.truncate(from);
                lost += lose(self.pool, self.held, self.counters, at);
                continue;
            };
            buffers.push(at);
            datagrams.push(Datagram { pieces: pieces.len(), len: to.len, handle, member });
        }
        let last = buffers.len().saturating_sub(1);
        let mut sends = SmallVec::<[Send<'_>; BATCH]>::new();
        let mut from = 0;
        for (n, datagram) in datagrams.iter().enumerate() {
            sends.push(Send {
                id: u64::from(buffers[n]),
                pieces: &pieces[from..datagram.pieces],
                is_signalled: (n + 1) % SIGNALLED == 0 || n == last,
                to: datagram.handle,
                queue_pair: datagram.member.queue_pair,
                q_key: datagram.member.q_key,
            });
            from = datagram.pieces;
        }
        let taken = match pair {
            // SAFETY: the pool keeps the buffers from the caller until their completion; the region lives as long as the
            // lane, and the handles and a guest's regions as long as the tables, which the control plane retires. The guest
            // may write to its memory: what is sent of that was not checked, and need not be.
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
        for ((at, send), datagram) in posted.iter().zip(&sends).zip(&datagrams) {
            self.pool.post(*at, before);
            before = (!send.is_signalled).then_some(*at);
            bytes += u64::from(datagram.len).saturating_sub(header::LEN as u64);
        }
        self.fate.sent += taken as u64;
        self.fate.bytes += bytes;
        for at in left {
            lost += lose(self.pool, self.held, self.counters, *at);
        }
        self.fate.unsent += lost;
        self.counters.sent.add(taken as u64);
        self.counters.sent_bytes.add(bytes);
    }

    /// Frees the buffers of completed sends; returns how many.
    pub(super) fn collect(&mut self) -> usize {
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
            (*self.full_since, *self.open_since, *self.is_late) = (None, None, false);
        }
        freed
    }

    #[inline]
    fn complete(&mut self, completion: &Completion) -> usize {
        if completion.status != Status::Success {
            self.note_error(completion);
        }
        let held = &mut *self.held;
        let freed = if held.is_empty() {
            self.pool.complete(completion.id, |_| ())
        } else {
            self.pool.complete(completion.id, |at| held.release(at))
        };
        if freed.is_none() {
            self.counters.malformed.add(1);
        }
        freed.unwrap_or(0)
    }

    /// Notes that a datagram was not sent: its queue pair failed, or was brought to fail.
    #[cold]
    fn note_error(&mut self, completion: &Completion) {
        let Some(at) = self.pool.in_flight_at(completion.id) else { return };
        self.fate.unsent += u64::from(!self.held.note_lost(at));
        self.counters.unsent.add(1);
        if let Some(pair) = self.tables.by_number(completion.queue_pair) {
            pair.note_failed(self.counters);
        }
    }

    /// Notes that completions are no longer told: all frames leave by VXLAN until the link is made anew.
    #[cold]
    pub(super) fn break_down(&self) {
        self.counters.broken.set(1);
        self.tables.pairs().iter().for_each(|pair| pair.note_failed(self.counters));
    }
}

/// Gives back the buffer of a datagram that is not posted; returns 1 if its frame is not held, and the link counts it.
#[cold]
fn lose(pool: &mut Pool, held: &mut Held, counters: &Counters, at: u16) -> u64 {
    counters.unsent.add(1);
    pool.give(at);
    let is_held = held.note_lost(at);
    held.release(at);
    u64::from(!is_held)
}

/// A datagram of a post.
struct Datagram<'a> {
    /// End of its pieces among those of the post.
    pieces: usize,
    len: u32,
    handle: &'a Address,
    member: &'a MemberEntry,
}

/// Adds a datagram's places in the memory of a queue pair's guest; `false` if that is not there.
#[inline(never)]
fn add_places<'a>(
    pieces: &mut SmallVec<[Piece<'a>; ELEMENTS]>,
    tables: &'a Tables,
    pair: Option<&Arc<LocalPair>>,
    places: &[Place],
) -> bool {
    let Some(guest) = pair.and_then(|pair| tables.guest(pair.port)) else { return false };
    places.iter().all(|place| {
        let region = guest.region(place.region);
        region.map(|region| pieces.push(Piece { region, from: place.from, len: place.len })).is_some()
    })
}
