//! A front end's changes of a guest's rings.

use super::arrivals::Arrivals;
use super::land::Land;
use super::ring::Written;
use super::{LookAheadLimits, Receiver, Ring, Rx, Tx, TxQueue};
use crate::fdb::PortIndex;
use crate::link::rdma::{Feed, Landing, PortHalf};
use crate::slots::Slots;
use crate::vhost_user::VringSetup;
use crate::vhost_user::features::{F_EVENT_IDX, F_IN_ORDER, F_INDIRECT_DESC, F_RING_PACKED};
use crate::virtio::{DirtyLog, Features, GuestMemory, Queue, RingError, RingLayout};
use std::sync::Arc;

/// Both halves, for a front end's changes.
pub struct Control<'a> {
    /// Frames that the guest sends.
    pub tx: &'a mut Tx,
    /// Frames that the guest receives.
    pub rx: &'a mut Rx,
}

/// Objects that a link gave up: unmapping them takes long.
pub struct ReleasedHalves {
    tx: Tx,
    rx: Rx,
}

/// Half of a ring, and at least two: a cut frame and its piece.
fn half(ring: u16) -> u16 {
    (ring / 2).max(2)
}

/// More than a thousand frames of a ring are useless, and cost the worker much time and megabytes.
const MOST: u16 = 1024;

/// Most frames that all rings of a port look ahead to: putting them back or dropping them, when the guest
/// resets its device, must take less than a millisecond.
const MOST_OF_PORT: u16 = 4096;

/// Most sent frames of a ring that are not completed, pieces included: half of the ring, at most `MOST`.
fn most_sent(ring: u16) -> u16 {
    half(ring).min(MOST)
}

/// Returns the limits of looking ahead in a ring of so many entries.
fn look_ahead(ring: u16, in_order: bool) -> LookAheadLimits {
    let sent = most_sent(ring);
    LookAheadLimits {
        // A driver that relies on order sees no completion behind the oldest.
        popped: if in_order { half(ring) } else { u16::MAX },
        frames: if in_order { sent } else { ring.clamp(sent, MOST) },
        share: MOST_OF_PORT,
        pieces: sent - (sent / 8).max(1),
    }
}

impl<'a> Control<'a> {
    /// The ring of protocol queue `index`: even is rx, odd tx (in the VM's view).
    pub fn ring(self, index: u16) -> Option<&'a mut Ring> {
        ring(self.tx, self.rx, index)
    }

    /// Sets negotiated features.
    pub fn set_features(&mut self, features: u64) {
        self.tx.features = features;
        self.rx.receiver = Receiver::negotiated(features);
        self.tx.header_len = self.rx.receiver.header_len;
    }

    /// Sets another memory table, in which the rings continue. Returns the one before.
    ///
    /// # Errors
    /// A ring, or the log, is not in it.
    pub fn set_memory(&mut self, memory: &Arc<GuestMemory>) -> Result<Option<Arc<GuestMemory>>, String> {
        if let Some(log) = &self.tx.log {
            let log = log.with_memory(memory.clone()).map_err(|error| error.to_string())?;
            self.set_log(Some(log));
        }
        self.rx.lose_landing();
        for ring in rings(self.tx, self.rx) {
            ring.queue.remap(memory.clone()).map_err(|error| error.to_string())?;
        }
        Ok(self.tx.memory.replace(memory.clone()))
    }

    /// Begins or ends noting written pages. Returns the log before.
    pub fn set_log(&mut self, log: Option<DirtyLog>) -> Option<DirtyLog> {
        let before = std::mem::replace(&mut self.rx.log, log.clone());
        // The same log: the returned one keeps it mapped.
        self.tx.log = log;
        before
    }

    /// Whether there is a memory table.
    #[cfg(test)]
    pub fn has_memory(&self) -> bool {
        self.tx.memory.is_some()
    }

    /// Puts a queue into service, for port `port` of `worker`. Returns the number of frames lost with the
    /// process before.
    ///
    /// # Errors
    /// No memory, or the ring is not in it, or the in-flight record and the ring contradict each other.
    pub fn start(
        &mut self,
        index: u16,
        setup: VringSetup,
        port: PortIndex,
        worker: u16,
        now: u64,
    ) -> Result<u16, RingError> {
        let memory = self.tx.memory.clone().ok_or(RingError::NoMemory)?;
        let layout = RingLayout { size: setup.size, desc: setup.desc, avail: setup.avail, used: setup.used };
        let has = |feature| self.tx.features & feature != 0;
        let features = Features {
            packed: has(F_RING_PACKED),
            event_idx: has(F_EVENT_IDX),
            indirect: has(F_INDIRECT_DESC),
            in_order: has(F_IN_ORDER),
        };
        let written = Box::new(Written::new(&setup, features.packed));
        let mut queue = Queue::with_inflight(memory, layout, setup.base, features, setup.inflight)?;
        queue.suppress_kicks();
        let recovered = queue.recovered();
        // A predecessor may have been killed between a completion and its interrupt.
        let dirty = recovered.is_some();
        let mut ring = Ring { queue, kick: setup.kick, call: setup.call, enabled: false, dirty, written };
        ring.flush(self.tx.log.as_ref());
        let pair = usize::from(index / 2);
        if self.rx.rings.len() <= pair {
            self.rx.rings.resize_with(pair + 1, || None);
            self.tx.queues.resize_with(pair + 1, || None);
        }
        if index.is_multiple_of(2) {
            self.rx.rings[pair] = Some(ring);
        } else {
            self.tx.queues[pair] = Some(TxQueue {
                slots: Slots::new(most_sent(setup.size), port, worker),
                limits: look_ahead(setup.size, features.in_order),
                arrivals: Arrivals::new(ring.queue.next_avail(), now),
                ring,
                pending: None,
                direct: u8::MAX,
                taken: 0,
            });
        }
        Ok(recovered.unwrap_or(0))
    }

    /// Takes a queue out of service after showing completions. Returns the ring.
    pub fn stop(&mut self, index: u16) -> Option<Ring> {
        let log = self.tx.log.clone();
        if index == super::land::QUEUE {
            self.rx.lose_landing();
        }
        let ring = ring(self.tx, self.rx, index)?;
        ring.flush(log.as_ref());
        if let Some(log) = &log {
            // Also the request for kicks written to it.
            ring.mark(log);
        }
        let pair = usize::from(index / 2);
        let ring = if index.is_multiple_of(2) {
            self.rx.rings[pair].take()
        } else {
            self.tx.queues[pair].take().map(|tx| tx.ring)
        };
        self.note_enabled();
        ring
    }

    /// SET_VRING_ENABLE, at `now`. Returns whether the guest has an enabled receive queue.
    pub fn enable(&mut self, index: u16, enabled: bool, now: u64) -> bool {
        if let Some(ring) = ring(self.tx, self.rx, index) {
            ring.enabled = enabled;
        }
        self.note_enabled();
        if enabled && let Some(tx) = self.tx.queue(usize::from(index / 2)) {
            // A guest fills a disabled queue, then enables it.
            tx.arrivals.restart(now);
        }
        !self.rx.enabled.is_empty()
    }

    /// Updates the list of enabled queues.
    fn note_enabled(&mut self) {
        let Rx { rings, enabled, .. } = &mut *self.rx;
        let in_service = |pair: &u16| rings[usize::from(*pair)].as_ref().is_some_and(|ring| ring.enabled);
        enabled.clear();
        enabled.extend((0..rings.len() as u16).filter(in_service));
        let sending = self.tx.queues.iter().flatten().filter(|tx| tx.ring.enabled).count();
        let share = MOST_OF_PORT / (sending as u16).max(1);
        self.tx.queues.iter_mut().flatten().for_each(|tx| tx.limits.share = share);
    }

    /// Whether an RDMA device may fill receive buffers.
    ///
    /// # Errors
    /// Why not.
    pub fn can_land(&self) -> Result<(), &'static str> {
        self.rx.can_land()
    }

    /// Begins to let an RDMA device fill receive buffers.
    ///
    /// # Errors
    /// The half, if a device does already, or there is no ring.
    pub fn land(&mut self, half: PortHalf) -> Result<(), PortHalf> {
        self.rx.land(half)
    }

    /// Gives an RDMA device no receive buffers any more, and returns by which it had them, for the caller to drop.
    pub fn close_landing(&mut self) -> Option<Feed> {
        self.rx.close_landing()
    }

    /// Shows the driver the buffers that an RDMA device had; returns what is left for the caller to drop, once the device is done with
    /// them, and their frames are back.
    pub fn end_landing(&mut self) -> Option<Box<Land>> {
        self.rx.end_landing()
    }

    /// Returns the landing that it has.
    pub fn landing(&self) -> Option<&Arc<Landing>> {
        self.rx.land.as_ref().map(|land| land.landing())
    }

    /// Gives up rings and memory.
    pub fn disconnect(&mut self) -> ReleasedHalves {
        ReleasedHalves { tx: std::mem::take(self.tx), rx: std::mem::take(self.rx) }
    }
}

impl ReleasedHalves {
    /// Returns all rings that were in service.
    pub fn rings(&mut self) -> impl Iterator<Item = &mut Ring> {
        rings(&mut self.tx, &mut self.rx)
    }
}

fn ring<'a>(tx: &'a mut Tx, rx: &'a mut Rx, index: u16) -> Option<&'a mut Ring> {
    let pair = usize::from(index / 2);
    if index.is_multiple_of(2) {
        rx.rings.get_mut(pair)?.as_mut()
    } else {
        tx.queue(pair).map(|tx| &mut tx.ring)
    }
}

/// Returns all rings in service.
fn rings<'a>(tx: &'a mut Tx, rx: &'a mut Rx) -> impl Iterator<Item = &'a mut Ring> {
    let tx = tx.queues.iter_mut().flatten().map(|tx| &mut tx.ring);
    tx.chain(rx.rings.iter_mut().flatten())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::Frame;

    #[test]
    fn half_a_ring_is_sent_at_most_and_all_of_it_is_looked_at() {
        let sizes = [1, 2, 4, 256, 1024, 2048, 32768];
        assert_eq!(sizes.map(most_sent), [2, 2, 2, 128, 512, 1024, 1024]);
        let ahead = |in_order| sizes.map(|size| look_ahead(size, in_order));
        assert_eq!(ahead(false).map(|ahead| ahead.frames), [2, 2, 4, 256, 1024, 1024, 1024]);
        assert_eq!(ahead(true).map(|ahead| ahead.frames), [2, 2, 2, 128, 512, 1024, 1024]);
        for ahead in [ahead(false), ahead(true)] {
            assert_eq!(ahead.map(|ahead| ahead.pieces), [1, 1, 1, 112, 448, 896, 896]);
        }
        // The documentation's figures for memory rely on it.
        assert!(size_of::<Frame>() <= 1400, "{} bytes", size_of::<Frame>());
    }
}
