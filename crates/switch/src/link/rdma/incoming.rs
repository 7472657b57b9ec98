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
use super::landing::{Landing, Taken};
use super::members::Tables;
use super::numbers::{Key, Numbers};
use super::pair::{LocalPair, TOGETHER};
use super::setup::{PAIRS, Setup};
use crate::fdb::{PeerIndex, PortIndex, SegmentIndex};
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
    /// Where frames land, as long as some may be under way.
    landings: Vec<Arc<Landing>>,
    /// The numbers that arrived.
    numbers: Numbers<Gaps>,
    counters: Arc<Counters>,
    /// The next completion makes the descriptor readable, or has done so.
    is_armed: bool,
}

/// A frame that arrived.
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
    pub bytes: Bytes<'a>,
    /// Its virtio header, to be checked against the frame.
    pub vnet: VnetHdr,
}

/// Where a frame is.
pub enum Bytes<'a> {
    /// In a receive buffer, until the next one is taken.
    Buffer(&'a [u8]),
    /// In its guest's buffers. Its destination is that guest.
    Landed(Taken<'a>),
}

impl Bytes<'_> {
    /// Returns its length.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Self::Buffer(bytes) => bytes.len(),
            Self::Landed(taken) => taken.len() as usize,
        }
    }

    /// Whether it has no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns its first bytes: all, or the copied ones.
    #[inline]
    pub fn head(&self) -> &[u8] {
        match self {
            Self::Buffer(bytes) => bytes,
            Self::Landed(taken) => taken.head(),
        }
    }
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
            landings: Vec::with_capacity(PAIRS + 1),
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
            self.receives.take_event();
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
            let from = (&*self.tables, &**pair, completion.source, self.local);
            let admitted = if let Some((landing, at)) = pair.slot_of(completion.id) {
                let taken = match completion.status {
                    Status::Success => landing.take(at, completion.bytes),
                    _ => {
                        if landing.flush(at) {
                            pair.note_failed(&self.counters);
                        }
                        continue;
                    }
                };
                let Some(taken) = taken else {
                    self.counters.malformed.add(1);
                    continue;
                };
                admit_landed(from, taken)
            } else {
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
                pair.bytes(at, completion.bytes).and_then(|datagram| admit_copied(from, datagram))
            };
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

    /// Lets frames of a port land; `false` if the port has another queue pair by now, or that has a landing.
    pub fn set_landing(&mut self, landing: &Arc<Landing>, number: u32) -> bool {
        let pair = self.tables.pair(landing.port).filter(|pair| pair.number() == number && pair.may_land());
        let is_set = pair.is_some_and(|pair| pair.set_landing(landing.clone()));
        if is_set {
            self.landings.push(landing.clone());
        }
        is_set
    }

    /// Forgets a landing that [is over](Landing::is_over), and returns it for the caller to drop.
    pub fn forget_landing(&mut self, number: u32) -> Option<Arc<Landing>> {
        let at = self.landings.iter().position(|landing| landing.number == number && landing.is_over())?;
        Some(self.landings.swap_remove(at))
    }

    /// Returns the port of a landing.
    #[inline]
    pub fn port_of_landing(&self, number: u32) -> Option<PortIndex> {
        self.landings.iter().find(|landing| landing.number == number).map(|landing| landing.port)
    }

    /// Notes that a frame that landed is back.
    #[inline]
    pub fn come_back(&mut self, number: u32, at: u16) {
        let landing = self.landings.iter().find(|landing| landing.number == number);
        debug_assert!(landing.is_some(), "a landing is forgotten once its frames are back");
        if let Some(len) = landing.and_then(|landing| landing.come_back(at)) {
            self.counters.zero_copied_in.add(1);
            self.counters.zero_copied_in_bytes.add(len.into());
        }
    }

    /// Replaces the tables. Of a queue pair that is in both, nothing is lost; a new one gets its buffers.
    pub fn set_tables(&mut self, tables: Arc<Tables>) {
        post(&self.tables, &mut self.read, &self.counters);
        self.tables = tables;
        for pair in self.tables.pairs().iter().filter(|pair| !pair.is_failed()) {
            let posted = if pair.landing().is_some() { pair.fill_up() } else { pair.post_all() };
            if posted.is_err() {
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
    if buffers.is_empty() && *number == 0 {
        return;
    }
    if let Some(pair) = tables.by_number(*number).filter(|pair| !pair.is_failed()) {
        let posted = if pair.landing().is_some() { pair.fill_up() } else { pair.post(buffers) };
        if posted.is_err() {
            pair.note_failed(counters);
        }
    }
    // Queue pairs 0 and 1 are no datagrams'.
    *number = 0;
    buffers.clear();
}

/// Where a datagram came from: the tables, the queue pair here, the number there, and this host's address.
type From<'a> = (&'a Tables, &'a LocalPair, u32, IpAddr);

/// Returns the frame of a datagram (with its GRH) in a receive buffer, and its number.
#[inline]
fn admit_copied<'a>(from: From<'_>, datagram: &'a [u8]) -> Result<(Arrived<'a>, u32), DropReason> {
    let (grh, datagram) = datagram.split_first_chunk::<GRH>().ok_or(DropReason::Malformed)?;
    admit(from, grh, Header::read(datagram).map(|(header, bytes)| (header, Bytes::Buffer(bytes))).ok())
}

/// The same of one that landed.
///
/// # Errors
/// Also if it is for another than the guest in whose memory it lies: that may have written any address there, and would send in
/// the member's name.
#[inline]
fn admit_landed<'a>(from: From<'_>, taken: Result<Taken<'a>, ()>) -> Result<(Arrived<'a>, u32), DropReason> {
    let taken = taken.map_err(|()| DropReason::Malformed)?;
    let before = taken.before();
    let (grh, datagram) = before.split_first_chunk::<GRH>().ok_or(DropReason::Malformed)?;
    if taken.head().first_chunk() != Some(&from.1.mac.0) {
        return Err(DropReason::Malformed);
    }
    admit(from, grh, Header::read(datagram).map(|(header, _)| (header, Bytes::Landed(taken))).ok())
}

/// Returns the frame of a datagram by its GRH, its header and its bytes, if these are valid; and its number.
#[inline]
fn admit<'a>(
    (tables, pair, source, local): From<'_>,
    grh: &[u8; GRH],
    read: Option<(Header, Bytes<'a>)>,
) -> Result<(Arrived<'a>, u32), DropReason> {
    let origin = origin(grh, local).ok_or(DropReason::UnknownPeer)?;
    let member = tables.sender(origin.source, source, pair.segment).filter(|member| member.vni == pair.vni);
    let member = member.ok_or(DropReason::UnknownPeer)?;
    let (header, bytes) = read.ok_or(DropReason::Malformed)?;
    let addresses = bytes.head().first_chunk::<FRAME_MIN>().ok_or(DropReason::Malformed)?;
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
