//! The receiving half: completions of receives, checked against the members.
//!
//! ```text
//!  completions ─▶ queue pair here, buffer ─▶ GRH: source ─▶ a member of its segment? ─▶ header ─▶ source address its own?
//!       ▲                    └──────────────────────┴───────────────┴─────────────────────┴─▶ refused, counted
//!       │                                                                                   │
//!     device ◀─ posted anew, some at a time ◀─ the next is taken ◀─ copied by the caller ◀─ Arrived
//! ```

use super::counters::Counters;
use super::grh::origin;
use super::members::Tables;
use super::numbers::{Key, Numbers};
use super::pair::{LocalPair, TOGETHER};
use super::setup::Setup;
use crate::fdb::{PeerIndex, SegmentIndex};
use crate::frame::VnetHdr;
use crate::frame::vnet_hdr::NEEDS_CSUM;
use smallvec::SmallVec;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use tidegate_evidence::DropReason;
use tidegate_uplink::rdma::{Checksum, Gaps, Header};
use tidegate_verbs::{Completion, CompletionQueue, GRH, Status};

/// Completions of one look.
const LOOK: usize = 32;
/// Least bytes of a frame: an Ethernet header.
const FRAME_MIN: usize = 14;

/// A lane's frames from members.
pub struct Incoming {
    receives: Arc<CompletionQueue>,
    local: IpAddr,
    tables: Arc<Tables>,
    completions: [Completion; LOOK],
    /// The next of these, and their end.
    next: usize,
    count: usize,
    /// Buffers that were read, of one queue pair (its number).
    read: (u32, SmallVec<[u16; TOGETHER]>),
    /// The numbers that arrived.
    numbers: Numbers<Gaps>,
    counters: Arc<Counters>,
    /// The next completion makes the descriptor readable, or has done so.
    is_armed: bool,
}

/// A frame that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived<'a> {
    /// The member's peer.
    pub peer: PeerIndex,
    /// Its segment, and that of the vNIC here.
    pub segment: SegmentIndex,
    /// The VNI of that, when the tables were made.
    pub vni: u32,
    /// DSCP and ECN, as they arrived.
    pub traffic_class: u8,
    /// The frame, with a stamp or without.
    pub bytes: &'a [u8],
    /// Its virtio header, to be checked against the frame.
    pub vnet: VnetHdr,
}

impl Incoming {
    /// Returns the half of a lane that has received nothing.
    pub fn new(setup: &Setup) -> Self {
        Self {
            receives: setup.receives.clone(),
            local: setup.local,
            tables: Arc::default(),
            completions: [Completion::default(); LOOK],
            next: 0,
            count: 0,
            read: (0, SmallVec::new()),
            numbers: Numbers::default(),
            counters: setup.counters.clone(),
            is_armed: false,
        }
    }

    /// Returns the descriptor that becomes readable with the first completion after [`look`](Self::look) found none.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.receives.as_fd()
    }

    /// Whether all completions of the last look were taken.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.next == self.count
    }

    /// Looks for completions; `false` if there is none, and the next one makes the descriptor readable.
    pub fn look(&mut self) -> bool {
        if self.poll() > 0 {
            return true;
        }
        if std::mem::replace(&mut self.is_armed, true) {
            self.receives.take_events();
        }
        if self.receives.arm().is_err() {
            self.break_down();
            return false;
        }
        // One may have come before.
        self.poll() > 0
    }

    fn poll(&mut self) -> usize {
        let count = self.receives.poll(&mut self.completions);
        if count.is_err() {
            self.break_down();
        }
        (self.next, self.count) = (0, count.unwrap_or(0).min(LOOK));
        self.count
    }

    /// Takes the next completion; `None` without one. The buffer of the one before is no longer read.
    ///
    /// # Errors
    /// Why its datagram is refused.
    pub fn take_next(&mut self) -> Option<Result<Arrived<'_>, DropReason>> {
        loop {
            let Some(completion) = self.completions[..self.count].get(self.next).copied() else {
                post(&self.tables, &mut self.read, &self.counters);
                return None;
            };
            self.next += 1;
            // One that was replaced takes its buffers along.
            let Some(pair) = self.tables.by_number(completion.queue_pair) else { continue };
            if self.read.0 != completion.queue_pair || self.read.1.len() == TOGETHER {
                post(&self.tables, &mut self.read, &self.counters);
                self.read.0 = completion.queue_pair;
            }
            let Some(at) = pair.take_buffer(completion.id) else {
                self.counters.malformed.add(1);
                continue;
            };
            if completion.status != Status::Success {
                // It is in the error state, and takes no buffer any more.
                pair.note_failed(&self.counters);
                continue;
            }
            self.read.1.push(at);
            let datagram = pair.bytes(at, completion.bytes);
            let admitted = datagram
                .and_then(|datagram| admit(&self.tables, pair, (completion.source, datagram), self.local));
            return Some(admitted.map_or_else(
                |reason| {
                    self.counters.refuse(reason);
                    Err(reason)
                },
                |(arrived, sequence)| {
                    let key = Key::new(arrived.peer, completion.source, completion.queue_pair);
                    self.counters.arrive(arrived.bytes.len(), self.numbers.of(key).arrive(sequence));
                    Ok(arrived)
                },
            ));
        }
    }

    /// Notes that `bytes` bytes of a frame were copied.
    #[inline]
    pub fn note_copied(&self, bytes: u32) {
        self.counters.copied_in.add(bytes.into());
    }

    /// Replaces the tables. Of a queue pair that is in both, nothing is lost; a new one gets its buffers.
    pub fn set_tables(&mut self, tables: Arc<Tables>) {
        post(&self.tables, &mut self.read, &self.counters);
        self.tables = tables;
        for pair in self.tables.pairs().iter().filter(|pair| !pair.is_failed()) {
            if pair.post_all().is_err() {
                pair.note_failed(&self.counters);
            }
        }
    }

    /// Notes that completions are no longer told: nothing arrives until the link is made anew.
    #[cold]
    fn break_down(&self) {
        self.counters.broken.set(1);
        self.tables.pairs().iter().for_each(|pair| pair.note_failed(&self.counters));
    }
}

/// Posts buffers that were read anew.
#[inline]
fn post(tables: &Tables, (number, buffers): &mut (u32, SmallVec<[u16; TOGETHER]>), counters: &Counters) {
    if buffers.is_empty() {
        return;
    }
    if let Some(pair) = tables.by_number(*number).filter(|pair| !pair.is_failed())
        && pair.post(buffers).is_err()
    {
        pair.note_failed(counters);
    }
    buffers.clear();
}

/// Returns the frame of a datagram (with its GRH) that queue pair `source` sent to `pair`, and its number.
#[inline]
fn admit<'a>(
    tables: &Tables,
    pair: &LocalPair,
    (source, datagram): (u32, &'a [u8]),
    local: IpAddr,
) -> Result<(Arrived<'a>, u32), DropReason> {
    let (grh, datagram) = datagram.split_first_chunk::<GRH>().ok_or(DropReason::Malformed)?;
    let origin = origin(grh, local).ok_or(DropReason::UnknownPeer)?;
    let member = tables.sender(origin.source, source, pair.segment).filter(|member| member.vni == pair.vni);
    let member = member.ok_or(DropReason::UnknownPeer)?;
    let (header, bytes) = Header::read(datagram).map_err(|_| DropReason::Malformed)?;
    let addresses = bytes.first_chunk::<FRAME_MIN>().ok_or(DropReason::Malformed)?;
    if addresses[6..12] != member.mac.0 {
        return Err(DropReason::SourceMac);
    }
    let vnet = match header.checksum {
        Checksum::Partial { start, offset } => {
            VnetHdr { flags: NEEDS_CSUM, csum_start: start, csum_offset: offset, ..VnetHdr::default() }
        }
        Checksum::Complete | Checksum::Verified => VnetHdr::default(),
    };
    let arrived = Arrived {
        peer: member.peer,
        segment: member.segment,
        vni: member.vni,
        traffic_class: origin.traffic_class,
        bytes,
        vnet,
    };
    Ok((arrived, header.sequence))
}
