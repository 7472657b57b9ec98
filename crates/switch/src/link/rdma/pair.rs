//! The queue pair of a vNIC of this host, and its receive buffers.
//!
//! ```text
//!  Region │ buffer │ buffer │ ... │      each: GRH, datagram
//!            posted ─▶ device ─▶ completion: buffer, bytes ─▶ read ─▶ posted anew
//! ```
//!
//! One worker reads and posts; the control plane makes it, changes its Q_Key, and destroys it by its drop.

use super::setup::{Place, Setup};
use crate::fdb::{PortIndex, SegmentIndex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tidegate_contract::Mac;
use tidegate_verbs::queue_pair::{Depths, Receive};
use tidegate_verbs::{Error, GRH, QueuePair, Region};

/// Receive buffers of a queue pair: a burst of so many datagrams, while its worker has other work.
pub const RECEIVES: u32 = 256;
/// Most buffers that are posted at once.
pub const TOGETHER: usize = 16;

/// A queue pair. Its drop destroys it, which is no work for a worker.
#[derive(Debug)]
pub struct LocalPair {
    /// The vNIC's port.
    pub port: PortIndex,
    /// Its segment.
    pub segment: SegmentIndex,
    /// Its address: frames from others do not leave by it, since they would be refused.
    pub mac: Mac,
    queue_pair: QueuePair,
    buffers: Arc<Region>,
    /// Bytes of a buffer.
    size: usize,
    failed: AtomicBool,
    _place: Place,
}

impl LocalPair {
    /// Makes one with all its buffers posted.
    pub(super) fn new(
        setup: &Setup,
        port: PortIndex,
        (segment, mac): (SegmentIndex, Mac),
        q_key: u32,
        place: Place,
    ) -> Result<Self, Error> {
        // Each buffer begins at a line of the cache.
        let size = (GRH + setup.mtu as usize).next_multiple_of(64);
        let buffers = Region::new(&setup.device, RECEIVES as usize * size)?;
        let depths = Depths { send: super::setup::SENDS, receive: RECEIVES };
        let queue_pair = QueuePair::new(&setup.device, &setup.sends, &setup.receives, depths, q_key)?;
        let pair = Self {
            port,
            segment,
            mac,
            queue_pair,
            buffers,
            size,
            failed: AtomicBool::new(false),
            _place: place,
        };
        let all: Vec<u16> = (0..RECEIVES as u16).collect();
        all.chunks(TOGETHER).try_for_each(|some| pair.post(some))?;
        Ok(pair)
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

    /// Notes that it failed; returns whether that is new.
    pub(super) fn note_failed(&self) -> bool {
        !self.failed.swap(true, Ordering::Relaxed)
    }

    /// Posts receive buffers, by one write to the device.
    fn post(&self, buffers: &[u16]) -> Result<(), Error> {
        let _ = (buffers, Receive { id: 0, region: &self.buffers, from: 0, len: 0 }, self.size);
        todo!()
    }
}
