//! The queue pair of a vNIC of this host, and its receive buffers.
//!
//! ```text
//!  Region │ buffer │ buffer │ ... │      each: GRH, datagram;  Region of the lane │ rest of a datagram that is too long │
//!            in force: posted ─▶ device ─▶ completion: buffer, bytes ─▶ read ─▶ posted anew
//! ```
//!
//! One worker reads and posts; the control plane makes it, changes its Q_Key, and destroys it by its drop.

use super::counters::Counters;
use super::gather;
use super::memory::Buffers;
use super::setup::{PAIRS, Place, RECEIVES, SENDS, Setup};
use crate::fdb::{PortIndex, SegmentIndex};
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tidegate_contract::Mac;
use tidegate_evidence::DropReason;
use tidegate_verbs::{Depths, Error, GRH, Piece, QueuePair, Receive, Region, Send};

/// Most buffers that are posted at once.
pub const TOGETHER: usize = 16;
/// Longest datagram (bytes) that is read, whatever the port's MTU is: the largest MTU of RoCE. The port's MTU may be raised, or be
/// smaller than the sender's.
const LONGEST: usize = 4096;

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
    _place: Place,
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
        let pieces = setup.device.pieces().clamp(1, 1 + gather::MOST as u32);
        let depths = Depths { send: SENDS, receive: RECEIVES, pieces };
        let queue_pair = QueuePair::new(&setup.device, &setup.sends, &setup.receives, depths, q_key)?;
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
            tag: place.tag() << u16::BITS,
            _place: place,
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
        (before & bit != 0).then_some(at)
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
