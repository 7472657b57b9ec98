//! A vhost-user port: the rings of a guest.

use super::arrivals::Arrivals;
use super::slots::{FrameRef, Slots};
use crate::fdb::PortIndex;
use crate::vhost_user::features::{
    F_EVENT_IDX, F_IN_ORDER, F_INDIRECT_DESC, F_RING_PACKED, NET_F_GUEST_CSUM, NET_F_GUEST_ECN,
    NET_F_GUEST_TSO4, NET_F_GUEST_TSO6, NET_F_GUEST_USO4, NET_F_GUEST_USO6, NET_F_MRG_RXBUF, header_len,
};
use crate::vhost_user::kick::Kick;
use crate::vhost_user::notifier::Call;
use crate::vhost_user::{VringSetup, used_bytes};
use crate::virtio::{DirtyLog, Features, GuestMemory, Queue, RingError, RingLayout};
use std::sync::Arc;

/// What a receiver takes as it is; the rest is finished for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Receiver {
    /// Unfinished checksums.
    pub csum: bool,
    /// TCP super-frames over IPv4.
    pub tso4: bool,
    /// TCP super-frames over IPv6.
    pub tso6: bool,
    /// Super-frames with congestion marks.
    pub ecn: bool,
    /// UDP super-frames over IPv4.
    pub uso4: bool,
    /// UDP super-frames over IPv6.
    pub uso6: bool,
    /// A frame over several buffers.
    pub mergeable: bool,
    /// Length of the virtio header, 10 or 12.
    pub header_len: usize,
}

impl Receiver {
    /// What negotiated features mean.
    pub fn negotiated(features: u64) -> Self {
        let has = |feature| features & feature != 0;
        Self {
            csum: has(NET_F_GUEST_CSUM),
            tso4: has(NET_F_GUEST_TSO4),
            tso6: has(NET_F_GUEST_TSO6),
            ecn: has(NET_F_GUEST_ECN),
            uso4: has(NET_F_GUEST_USO4),
            uso6: has(NET_F_GUEST_USO6),
            mergeable: has(NET_F_MRG_RXBUF),
            header_len: header_len(features),
        }
    }
}

/// One virtqueue and its notifications.
pub struct Ring {
    /// The ring.
    pub queue: Queue,
    /// The driver tells us.
    pub kick: Option<Kick>,
    /// We tell the driver.
    pub call: Option<Call>,
    /// SET_VRING_ENABLE.
    pub enabled: bool,
    /// Entries were completed and not yet published.
    pub dirty: bool,
    /// What of it is to be noted in the dirty log.
    pub written: Written,
}

/// What the device writes of a ring. Addresses of the front end, and bytes.
pub struct Written {
    /// The used ring, or the event suppression of a packed one.
    used: (u64, u64),
    /// The descriptors of a packed ring; no bytes otherwise.
    descriptors: (u64, u64),
    /// A guest address by which the front end wants the used ring noted too.
    pub used_log: Option<u64>,
}

impl Written {
    fn new(setup: &VringSetup, packed: bool) -> Self {
        let entries = if packed { setup.size } else { 0 };
        Self {
            used: (setup.used, used_bytes(packed, setup.size)),
            descriptors: (setup.desc, 16 * u64::from(entries)),
            used_log: setup.log,
        }
    }

    #[cold]
    fn mark(&self, log: &DirtyLog) {
        let Self { used, descriptors, used_log } = self;
        log.mark_user(used.0, used.1);
        log.mark_user(descriptors.0, descriptors.1);
        if let Some(at) = used_log {
            log.mark_guest(*at, used.1);
        }
    }
}

impl Ring {
    /// Shows the driver what was completed, and calls it if it asked for it.
    #[inline]
    pub fn flush(&mut self, log: Option<&DirtyLog>) {
        if !std::mem::take(&mut self.dirty) {
            return;
        }
        let wanted = self.queue.publish();
        if let Some(log) = log {
            self.mark(log);
        }
        if wanted && let Some(call) = &self.call {
            call.signal();
        }
    }

    /// Notes all of the ring that the device writes as written: few pages, and nothing to keep.
    pub fn mark(&self, log: &DirtyLog) {
        self.written.mark(log);
    }
}

/// What the VM sends, one queue of it.
pub struct TxQueue {
    /// The ring.
    pub ring: Ring,
    /// Frames in flight, see [`most_in_flight`].
    pub slots: Slots,
    /// When entries arrived.
    pub arrivals: Arrivals,
    /// The frame that waits for tokens, and how far it was cut.
    pub pending: Option<Pending>,
    /// How many frames are tried on the fast path.
    pub fast: u8,
}

/// A frame that was taken from its ring or tap and waits for tokens.
#[derive(Clone, Copy)]
pub struct Pending {
    /// The frame.
    pub frame: FrameRef,
    /// When it arrived, ns.
    pub arrival: u64,
    /// Payload bytes already sent in pieces.
    pub sent: u32,
}

/// Most frames of a ring that are in flight: half of it, and two at least: a frame that is cut and
/// its piece. More than a thousand are of no use, take the worker long to make room for, and
/// megabytes.
fn most_in_flight(ring: u16) -> u16 {
    (ring / 2).clamp(2, 1024)
}

/// A guest's rings.
#[derive(Default)]
pub struct VhostPort {
    /// Negotiated features.
    pub features: u64,
    /// What the guest takes as it is.
    pub receiver: Receiver,
    /// Transmit queues by queue pair.
    pub tx: Vec<Option<TxQueue>>,
    /// Receive queues by queue pair.
    pub rx: Vec<Option<Ring>>,
    /// The memory the rings lie in.
    pub memory: Option<Arc<GuestMemory>>,
    /// Where it is noted which pages we write, while the guest migrates.
    pub log: Option<DirtyLog>,
    /// Receive queues that are started and enabled, for spreading flows.
    pub rx_enabled: Vec<u16>,
}

impl VhostPort {
    /// The ring of protocol queue `index`: even is rx, odd tx (in the VM's view).
    pub fn ring(&mut self, index: u16) -> Option<&mut Ring> {
        let pair = usize::from(index / 2);
        if index.is_multiple_of(2) {
            self.rx.get_mut(pair)?.as_mut()
        } else {
            self.tx.get_mut(pair)?.as_mut().map(|tx| &mut tx.ring)
        }
    }

    /// Puts a queue into service. Returns how many frames were lost with the process before.
    pub fn start(
        &mut self,
        index: u16,
        setup: VringSetup,
        port: PortIndex,
        worker: u16,
        now: u64,
    ) -> Result<u16, RingError> {
        let memory = self.memory.clone().ok_or(RingError::NoMemory)?;
        let layout = RingLayout { size: setup.size, desc: setup.desc, avail: setup.avail, used: setup.used };
        let features = Features {
            packed: self.features & F_RING_PACKED != 0,
            event_idx: self.features & F_EVENT_IDX != 0,
            indirect: self.features & F_INDIRECT_DESC != 0,
            in_order: self.features & F_IN_ORDER != 0,
        };
        let written = Written::new(&setup, features.packed);
        let mut queue = Queue::with_inflight(memory, layout, setup.base, features, setup.inflight)?;
        queue.suppress_kicks();
        let recovered = queue.recovered();
        // A predecessor may have been killed between a completion and its interrupt.
        let dirty = recovered.is_some();
        let mut ring = Ring { queue, kick: setup.kick, call: setup.call, enabled: false, dirty, written };
        ring.flush(self.log.as_ref());
        let pair = usize::from(index / 2);
        if self.rx.len() <= pair {
            self.rx.resize_with(pair + 1, || None);
            self.tx.resize_with(pair + 1, || None);
        }
        if index.is_multiple_of(2) {
            self.rx[pair] = Some(ring);
        } else {
            self.tx[pair] = Some(TxQueue {
                slots: Slots::new(most_in_flight(setup.size), port, worker),
                arrivals: Arrivals::new(ring.queue.next_avail(), now),
                ring,
                pending: None,
                fast: u8::MAX,
            });
        }
        Ok(recovered.unwrap_or(0))
    }

    /// Takes stock of the receive queues in service.
    pub fn note_enabled(&mut self) {
        self.rx_enabled.clear();
        for (pair, ring) in self.rx.iter().enumerate() {
            if ring.as_ref().is_some_and(|r| r.enabled) {
                self.rx_enabled.push(pair as u16);
            }
        }
    }

    /// Shows the driver what was completed on all queues.
    pub fn flush(&mut self) {
        let log = self.log.as_ref();
        for tx in self.tx.iter_mut().flatten() {
            tx.ring.flush(log);
        }
        for rx in self.rx.iter_mut().flatten() {
            rx.flush(log);
        }
    }

    /// All rings in service.
    pub fn rings(&mut self) -> impl Iterator<Item = &mut Ring> {
        let tx = self.tx.iter_mut().flatten().map(|tx| &mut tx.ring);
        tx.chain(self.rx.iter_mut().flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_ring_is_in_flight_at_most() {
        let sizes = [1, 2, 4, 256, 1024, 2048, 32768];
        assert_eq!(sizes.map(most_in_flight), [2, 2, 2, 128, 512, 1024, 1024]);
    }
}
