//! The queue pair of a vNIC of this host, and its receive buffers.
//!
//! ```text
//!  Region │ buffer │ buffer │ ... │      each: GRH, datagram;  Region of the lane │ rest of a datagram that is too long │
//!            in force: posted ─▶ device ─▶ completion: buffer, bytes ─▶ read ─▶ posted anew
//! ```
//!
//! One worker reads and posts; the control plane makes it, changes its Q_Key, and destroys it by its drop. With a
//! [landing](super::landing) the port's worker posts buffers of the guest as well, and those of the region fill up what the
//! guest has too few of.

use super::counters::Counters;
use super::gather;
use super::guest::GuestRegions;
use super::landing::{self, Landing};
use super::memory::Buffers;
use super::over::Over;
use super::setup::{LONGEST, PAIRS, Place, RECEIVES, SENDS, Setup};
use crate::fdb::{PortIndex, SegmentIndex};
use crate::virtio::{Single, Span};
use smallvec::SmallVec;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use tidegate_contract::Mac;
use tidegate_evidence::DropReason;
use tidegate_verbs::{Depths, Error, GRH, Piece, QueuePair, Receive, Region, Send};

/// Most buffers that are posted at once.
pub const TOGETHER: usize = 16;
/// With a landing, so many buffers are posted at least: those of the region fill up.
pub(super) const LEAST: u32 = 32;
/// And so many for each frame that landed and is under way: those that wait for their receiver's rate hold slots, which others, that do not
/// wait, would lack.
const BESIDE: u32 = 3;
/// Pieces of a slot's request: scratch, buffers, and the overflow.
const OF_SLOT: u32 = 1 + landing::BUFFERS as u32 + 1;
/// Most pieces of a request, if the device takes as many.
const PIECES: u32 = if OF_SLOT > OF_SEND { OF_SLOT } else { OF_SEND };
const OF_SEND: u32 = 1 + gather::MOST as u32;

/// Returns how many buffers, with the landing's, are posted beside frames that landed and are under way: no more than fit if the port's
/// worker posts all other slots at the same time.
const fn beside(under_way: u32) -> u32 {
    let (wanted, fit) = (BESIDE * under_way, RECEIVES - landing::SLOTS as u32 + under_way);
    let most = if fit < RECEIVES - LEAST { fit } else { RECEIVES - LEAST };
    let wanted = if wanted < most { wanted } else { most };
    if wanted < LEAST { LEAST } else { wanted }
}

/// A queue pair. Its drop destroys it, which is no work for a worker.
#[derive(Debug)]
pub struct LocalPair {
    /// The vNIC's port.
    pub port: PortIndex,
    /// Its segment.
    pub segment: SegmentIndex,
    /// That one's VNI, as a [member](super::MemberEntry) has it.
    pub vni: u32,
    /// Its address: frames from others do not leave by it, since they would be refused.
    pub mac: Mac,
    /// Most pieces of a send.
    pub(super) pieces: usize,
    queue_pair: QueuePair,
    buffers: Buffers,
    /// Takes the rest of datagrams that are longer than a buffer. Never read.
    overflow: Option<Arc<Region>>,
    /// A bit for each: the device has it. Written by its worker alone, after it was made.
    posted: [AtomicU64; RECEIVES as usize / 64],
    failed: AtomicBool,
    /// Begins the ids of its receives: a completion of an earlier queue pair with this number is none of this one.
    tag: u64,
    /// Buffers of the region that the device has. Written by the worker that notes them.
    has: AtomicU32,
    landing: OnceLock<Arc<Landing>>,
    /// After the queue pair: told when the device has destroyed that.
    over: Over,
}

impl Setup {
    /// Makes the queue pair of a vNIC in `segment` (with its VNI), with that address, and with receive buffers (1 MiB): datagrams
    /// with `q_key` arrive as soon as it is in the [tables](super::Tables) in force.
    ///
    /// # Errors
    /// There are [as many as can be](PAIRS), or the device has no more.
    pub fn pair(
        &self,
        port: PortIndex,
        segment: (SegmentIndex, u32),
        mac: Mac,
        q_key: u32,
    ) -> Result<Arc<LocalPair>, Error> {
        let Some(place) = self.place(port) else {
            let what = format!("{PAIRS} vNICs of {} have queue pairs: no more can", self.device.name());
            return Err(Error::Call { call: "queue pair", error: std::io::Error::other(what) });
        };
        LocalPair::new(self, port, (segment, mac), q_key, place).map(Arc::new)
    }
}

impl LocalPair {
    /// Makes one that has no buffer posted: a worker gives them back only once its tables are in force.
    fn new(
        setup: &Setup,
        port: PortIndex,
        ((segment, vni), mac): ((SegmentIndex, u32), Mac),
        q_key: u32,
        place: Place,
    ) -> Result<Self, Error> {
        // Each buffer begins at a line of the cache.
        let size = (GRH + LONGEST).next_multiple_of(64);
        let buffers = Region::new(&setup.device, RECEIVES as usize * size)?;
        let overflow = setup.overflow.clone();
        let pieces = setup.device.pieces().clamp(1, PIECES);
        let depths = Depths { send: SENDS, receive: RECEIVES, pieces };
        let queue_pair = QueuePair::new(&setup.device, &setup.sends, &setup.receives, depths, q_key)?;
        let tag = place.tag() << u16::BITS;
        let over = Over::new(setup, &queue_pair, &buffers, place);
        Ok(Self {
            port,
            segment,
            vni,
            mac,
            pieces: pieces as usize,
            queue_pair,
            buffers: Buffers::new(buffers, size),
            overflow,
            posted: Default::default(),
            failed: AtomicBool::new(false),
            tag,
            has: AtomicU32::new(0),
            landing: OnceLock::new(),
            over,
        })
    }

    /// Returns its number: 24 bits.
    pub fn number(&self) -> u32 {
        self.queue_pair.number()
    }

    /// Changes the key of datagrams that it receives.
    ///
    /// # Errors
    /// It has failed.
    pub fn set_q_key(&self, q_key: u32) -> Result<(), Error> {
        self.queue_pair.set_q_key(q_key)
    }

    /// Brings it into the error state: what is posted comes back.
    ///
    /// # Errors
    /// The device is gone.
    pub fn fail(&self) -> Result<(), Error> {
        self.queue_pair.fail()
    }

    /// Whether it failed: its vNIC's frames leave by VXLAN, and nothing arrives by it, until the control plane has
    /// replaced it.
    #[inline]
    pub fn is_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Notes that it failed.
    #[cold]
    pub(super) fn note_failed(&self, counters: &Counters) {
        if !self.failed.swap(true, Ordering::Relaxed) {
            counters.failed_pairs.add(1);
        }
    }

    /// Posts datagrams, by one write to the device.
    ///
    /// # Safety
    /// As for [`QueuePair::post_send`].
    ///
    /// # Errors
    /// The same.
    #[inline]
    pub(super) unsafe fn post_sends(&self, sends: &[Send<'_>]) -> Result<(), (usize, Error)> {
        // SAFETY: the caller's.
        unsafe { self.queue_pair.post_send(sends) }
    }

    /// Takes the receive buffer of a completion from the device; `None` if the device did not have it.
    #[inline]
    pub(super) fn take_buffer(&self, id: u64) -> Option<u16> {
        let at = u16::try_from(id.checked_sub(self.tag)?).ok()?;
        let (word, bit) = self.posted_bit(at)?;
        let before = word.load(Ordering::Relaxed);
        word.store(before & !bit, Ordering::Relaxed);
        (before & bit != 0).then(|| {
            self.has.store(self.has.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
            at
        })
    }

    /// Returns the slot of a completion, if that is one of a landing's.
    #[inline]
    pub(super) fn slot_of(&self, id: u64) -> Option<(&Arc<Landing>, u16)> {
        let at = id.checked_sub(self.tag)?.checked_sub(RECEIVES.into())?;
        Some((self.landing.get()?, u16::try_from(at).ok()?))
    }

    /// Returns its landing.
    #[inline]
    pub(super) fn landing(&self) -> Option<&Arc<Landing>> {
        self.landing.get()
    }

    /// Lets frames land, for as long as it is there; by the worker that posts its buffers. Returns whether it had no landing.
    pub(super) fn set_landing(&self, landing: Arc<Landing>) -> bool {
        self.landing.set(landing).is_ok()
    }

    /// Whether it may have a landing: it had none, and its device takes requests of enough pieces.
    pub fn may_land(&self) -> bool {
        self.landing.get().is_none() && self.pieces >= OF_SLOT as usize && !self.is_failed()
    }

    /// Returns how many pieces its requests may have, and how many a landing needs.
    pub fn pieces(&self) -> (usize, usize) {
        (self.pieces, OF_SLOT as usize)
    }

    /// Returns what is set when the device has destroyed it, and what if it does not.
    pub(super) fn over(&self) -> [Arc<AtomicBool>; 2] {
        self.over.flags()
    }

    /// Keeps what frames land in until the device has destroyed it.
    pub(super) fn keep(&self, landing: &Arc<Landing>, guest: &Arc<GuestRegions>) {
        self.over.keep(landing, guest);
    }

    /// Returns how many slots may be posted, of which `posted` are: as long as the region's buffers are posted, fewer.
    #[inline]
    pub(super) fn room_for_landing(&self, posted: u32) -> usize {
        if self.is_failed() {
            return 0;
        }
        (RECEIVES - LEAST).saturating_sub(self.has.load(Ordering::Relaxed) + posted) as usize
    }

    /// Posts slots of its landing, whose buffers `chains` returns, by one write to the device.
    ///
    /// # Safety
    /// Scratch and buffers of the slots are the device's until their completion.
    ///
    /// # Errors
    /// How many were taken before the queue pair failed, or a buffer was not in the memory.
    pub(super) unsafe fn post_landing<'a>(
        &self,
        scratch: &'a Buffers,
        guest: &'a GuestRegions,
        slots: &[u16],
        chains: impl Fn(u16) -> &'a [Single],
    ) -> Result<(), usize> {
        let mut pieces = SmallVec::<[SmallVec<[Piece<'_>; OF_SLOT as usize]>; TOGETHER]>::new();
        for at in slots.iter().take(TOGETHER) {
            let own =
                Piece { region: scratch.region(), from: scratch.place(*at), len: landing::SCRATCH as u32 };
            let mut of_slot = SmallVec::from_slice(&[own]);
            // No more than a datagram that is read: the rest of a longer one goes into the overflow.
            let (mut left, mut skip) = (landing::LONGEST as u32, landing::VIRTIO as u32);
            for single in chains(*at) {
                let len = single.len.saturating_sub(skip).min(left);
                let span = Span { ptr: single.ptr.wrapping_add(skip as usize), len };
                skip = 0;
                if len == 0 {
                    continue;
                }
                let Some((region, from)) = guest.find(&span) else { return Err(0) };
                of_slot.push(Piece { region, from, len });
                left -= len;
            }
            if let Some(region) = self.overflow.as_deref() {
                of_slot.push(Piece { region, from: 0, len: region.len() as u32 });
            }
            pieces.push(of_slot);
        }
        let id = |at: &u16| self.tag | (u64::from(RECEIVES) + u64::from(*at));
        let receives: SmallVec<[Receive<'_>; TOGETHER]> =
            slots.iter().zip(&pieces).map(|(at, pieces)| Receive { id: id(at), pieces }).collect();
        // SAFETY: the caller's.
        unsafe { self.queue_pair.post_receive(&receives) }.map_err(|(taken, _)| taken)
    }

    /// Posts buffers of the region until the device has as many, with the landing's, as [`beside`] wants for the frames under way.
    ///
    /// # Errors
    /// As for [`post`](Self::post).
    pub(super) fn fill_up(&self) -> Result<(), Error> {
        let (of_landing, under_way) =
            self.landing.get().map_or((0, 0), |landing| (landing.posted(), landing.under_way()));
        let posted = self.has.load(Ordering::Relaxed) + of_landing;
        let mut missing = beside(under_way).saturating_sub(posted) as usize;
        for (word, first) in self.posted.iter().zip((0u16..).step_by(64)) {
            if missing == 0 {
                break;
            }
            let mut free = !word.load(Ordering::Relaxed);
            while free != 0 && missing > 0 {
                let mut some = SmallVec::<[u16; TOGETHER]>::new();
                while free != 0 && some.len() < missing.min(TOGETHER) {
                    some.push(first + free.trailing_zeros() as u16);
                    free &= free - 1;
                }
                missing -= some.len();
                self.post(&some)?;
            }
        }
        Ok(())
    }

    /// Returns the bytes of a buffer that was taken, `bytes` with the GRH.
    ///
    /// # Errors
    /// It has fewer.
    #[inline]
    pub(super) fn bytes(&self, at: u16, bytes: u32) -> Result<&[u8], DropReason> {
        let is_taken = self.posted_bit(at).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit == 0);
        debug_assert!(is_taken, "taken from the device");
        // SAFETY: the device does not have it. The worker, which alone posts buffers, reads this one before that.
        let bytes = unsafe { self.buffers.bytes(at, bytes as usize) };
        bytes.filter(|_| is_taken).ok_or(DropReason::Malformed)
    }

    /// Posts all receive buffers that the device does not have, as its tables come into force.
    ///
    /// # Errors
    /// As for [`post`](Self::post).
    pub(super) fn post_all(&self) -> Result<(), Error> {
        (0..RECEIVES as u16).step_by(TOGETHER).try_for_each(|first| {
            let some: [u16; TOGETHER] = std::array::from_fn(|at| first + at as u16);
            self.post(&some)
        })
    }

    /// Posts receive buffers that the device does not have, by one write to it.
    ///
    /// # Errors
    /// The queue pair is in the error state, or the device is gone.
    pub(super) fn post(&self, buffers: &[u16]) -> Result<(), Error> {
        let rest = self.overflow.as_deref();
        let rest = rest.map(|region| Piece { region, from: 0, len: region.len() as u32 });
        let mut taken = SmallVec::<[(u64, [Piece<'_>; 2]); TOGETHER]>::new();
        for at in buffers.iter().take(TOGETHER) {
            let Some((word, bit)) = self.posted_bit(*at) else { continue };
            let before = word.load(Ordering::Relaxed);
            word.store(before | bit, Ordering::Relaxed);
            if before & bit == 0 {
                let (from, len) = (self.buffers.place(*at), self.buffers.size() as u32);
                let buffer = Piece { region: self.buffers.region(), from, len };
                taken.push((self.tag | u64::from(*at), [buffer, rest.unwrap_or(buffer)]));
            }
        }
        let receives: SmallVec<[Receive<'_>; TOGETHER]> = taken
            .iter()
            .map(|(id, pieces)| Receive { id: *id, pieces: &pieces[..1 + usize::from(rest.is_some())] })
            .collect();
        if receives.is_empty() {
            return Ok(());
        }
        self.has.store(self.has.load(Ordering::Relaxed) + receives.len() as u32, Ordering::Relaxed);
        // SAFETY: nothing reads or writes a buffer that is noted as posted, nor the overflow at any time, and the regions live as long
        // as the queue pair.
        unsafe { self.queue_pair.post_receive(&receives) }.map_err(|(_, error)| error)
    }

    /// Returns the note of a buffer.
    #[inline]
    fn posted_bit(&self, at: u16) -> Option<(&AtomicU64, u64)> {
        let word = self.posted.get(usize::from(at) / 64)?;
        Some((word, 1 << (at % 64)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each worker may see what the other one has posted too late.
    #[test]
    fn what_both_workers_post_at_once_fits_into_the_queue_pair() {
        for under_way in 0..=landing::SLOTS.into() {
            let slots = u32::from(landing::SLOTS) - under_way;
            let of_region = beside(under_way);
            assert!(
                of_region + slots <= RECEIVES,
                "{of_region} beside {under_way} that landed, and {slots} slots"
            );
            assert!(of_region >= (2 * under_way).clamp(LEAST, RECEIVES - LEAST - 32), "{under_way}");
        }
    }
}
