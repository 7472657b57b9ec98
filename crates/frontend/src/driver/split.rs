//! The driver's side of a split virtqueue (virtio 1.2, 2.7).
//!
//! ```text
//!   add ─▶ descriptors, available entry        device        used entry ─▶ reap
//!   publish ─▶ available index ─▶ kick?  ──▶  ........  ──▶  interrupt
//! ```

mod recycle;

use super::in_order::InOrder;
use super::{Buffer, DriverFeatures, INDIRECT, MAX_INDIRECT, Used};
use crate::memory::SharedMemory;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

const NO_INTERRUPT: u16 = 1;
const NO_NOTIFY: u16 = 1;

/// The driver's side of one split virtqueue, in memory shared with the device.
#[derive(Debug)]
pub struct SplitDriver {
    memory: Arc<SharedMemory>,
    size: u16,
    features: DriverFeatures,
    desc: u64,
    avail: u64,
    used: u64,
    /// Guest address of the indirect tables, one per descriptor; 0 without the feature.
    tables: u64,
    /// First free descriptor; the others follow by `next`.
    first_free: u16,
    free: u16,
    next: Vec<u16>,
    /// Descriptors of the chain in flight under each head, 0 for none.
    chain_len: Vec<u16>,
    /// Next available index, and the published one.
    next_avail: u16,
    published: u16,
    next_used: u16,
    /// With VIRTIO_F_IN_ORDER: the chains in flight.
    order: InOrder,
}

impl SplitDriver {
    /// Makes an empty queue with all indices at `base`.
    ///
    /// # Panics
    /// The size is not a power of two, or the memory is full.
    pub fn starting_at(memory: &Arc<SharedMemory>, size: u16, features: DriverFeatures, base: u16) -> Self {
        assert!(size.is_power_of_two(), "a ring of {size} entries");
        let entries = u64::from(size);
        let desc = memory.alloc(16 * entries, 16);
        let avail = memory.alloc(6 + 2 * entries, 64);
        let used = memory.alloc(6 + 8 * entries, 64);
        let tables = if features.indirect { memory.alloc(entries * 16 * MAX_INDIRECT as u64, 16) } else { 0 };
        let queue = Self {
            memory: Arc::clone(memory),
            size,
            features,
            desc,
            avail,
            used,
            tables,
            first_free: 0,
            free: size,
            next: (1..=size).map(|i| i % size).collect(),
            chain_len: vec![0; usize::from(size)],
            next_avail: base,
            published: base,
            next_used: base,
            order: InOrder::default(),
        };
        queue.memory.word(avail + 2).store(base.to_le(), Ordering::Relaxed);
        queue.memory.word(used + 2).store(base.to_le(), Ordering::Relaxed);
        queue.memory.word(queue.used_event()).store(base.to_le(), Ordering::Relaxed);
        queue.memory.word(queue.avail_event()).store(base.to_le(), Ordering::Relaxed);
        queue
    }

    /// Returns the entries of the ring.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Returns the guest address of the descriptor table.
    pub fn desc_addr(&self) -> u64 {
        self.desc
    }

    /// Returns the guest address of the available ring.
    pub fn avail_addr(&self) -> u64 {
        self.avail
    }

    /// Returns the guest address of the used ring.
    pub fn used_addr(&self) -> u64 {
        self.used
    }

    /// Returns the number of descriptors not in use.
    pub fn free(&self) -> u16 {
        self.free
    }

    /// See [`DriverQueue::base`](super::DriverQueue::base).
    pub fn base(&self) -> u32 {
        u16::from_le(self.memory.word(self.used + 2).load(Ordering::Acquire)).into()
    }

    /// See [`DriverQueue::add`](super::DriverQueue::add).
    #[inline]
    pub fn add(&mut self, buffers: &[Buffer]) -> Option<u16> {
        if buffers.len() > usize::from(self.free) {
            return None;
        }
        let head = self.first_free;
        let mut index = head;
        for (i, buffer) in buffers.iter().enumerate() {
            let next = self.next[usize::from(index)];
            let last = i + 1 == buffers.len();
            self.write_desc(self.desc, index, *buffer, if last { None } else { Some(next) });
            index = next;
        }
        self.mark_taken(head, index, buffers.len() as u16);
        Some(head)
    }

    /// See [`DriverQueue::add_indirect`](super::DriverQueue::add_indirect).
    ///
    /// # Panics
    /// The feature was not negotiated.
    pub fn add_indirect(&mut self, buffers: &[Buffer]) -> Option<u16> {
        assert!(self.features.indirect, "indirect descriptors were not negotiated");
        if self.free == 0 {
            return None;
        }
        let head = self.first_free;
        let table = self.tables + u64::from(head) * 16 * MAX_INDIRECT as u64;
        for (i, buffer) in (0u16..).zip(buffers) {
            let last = usize::from(i) + 1 == buffers.len();
            self.write_desc(table, i, *buffer, if last { None } else { Some(i + 1) });
        }
        self.write_raw_desc(self.desc, head, table, 16 * buffers.len() as u32, INDIRECT, 0);
        self.mark_taken(head, self.next[usize::from(head)], 1);
        Some(head)
    }

    /// See [`DriverQueue::offer_raw`](super::DriverQueue::offer_raw).
    pub fn offer_raw(&mut self, addr: u64, len: u32, flags: u16, next: u16) {
        self.write_raw_desc(self.desc, 0, addr, len, flags, next);
        let index = self.next_avail;
        let slot = u64::from(index & (self.size - 1));
        self.memory.word(self.avail + 4 + 2 * slot).store(0, Ordering::Relaxed);
        self.next_avail = index.wrapping_add(1);
        self.memory.word(self.avail + 2).store(self.next_avail.to_le(), Ordering::Release);
    }

    /// See [`DriverQueue::publish`](super::DriverQueue::publish).
    #[inline]
    pub fn publish(&mut self) -> bool {
        let (old, new) = (self.published, self.next_avail);
        if old == new {
            return false;
        }
        self.memory.word(self.avail + 2).store(new.to_le(), Ordering::Release);
        self.published = new;
        // The device enables kicks, then looks at the driver's index; the driver moves it, then looks for
        // enabled kicks.
        fence(Ordering::SeqCst);
        if self.features.event_idx {
            let event = u16::from_le(self.memory.word(self.avail_event()).load(Ordering::Relaxed));
            new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
        } else {
            u16::from_le(self.memory.word(self.used).load(Ordering::Relaxed)) & NO_NOTIFY == 0
        }
    }

    /// See [`DriverQueue::reap`](super::DriverQueue::reap).
    ///
    /// # Panics
    /// The device completed a chain that is not in flight.
    #[inline]
    pub fn reap(&mut self) -> Option<Used> {
        let next = match self.features.in_order {
            true => match self.order.take() {
                Some(next) => next,
                None => {
                    let Used { head, len } = self.used_entry()?;
                    self.order.used_up_to(head, len);
                    self.order.take()?
                }
            },
            false => self.used_entry()?,
        };
        self.free_chain(next.head);
        Some(next)
    }

    /// Reads the next used entry, unchecked.
    #[inline]
    fn used_entry(&self) -> Option<Used> {
        let index = u16::from_le(self.memory.word(self.used + 2).load(Ordering::Acquire));
        if index == self.next_used {
            return None;
        }
        let mut entry = [0; 8];
        self.memory.read(self.used + 4 + 8 * u64::from(self.next_used & (self.size - 1)), &mut entry);
        let [head, len] = [0, 4].map(|at| u32::from_le_bytes(std::array::from_fn(|i| entry[at + i])));
        let count = self.chain_len.get(head as usize).copied().unwrap_or(0);
        assert!(count > 0, "the device completed chain {head}, which is not in flight");
        Some(Used { head: head as u16, len })
    }

    #[inline]
    fn free_chain(&mut self, head: u16) {
        let count = std::mem::take(&mut self.chain_len[usize::from(head)]);
        // The chain is still linked through `next`; it goes before the free descriptors.
        let mut last = head;
        for _ in 1..count {
            last = self.next[usize::from(last)];
        }
        self.next[usize::from(last)] = self.first_free;
        self.first_free = head;
        self.free += count;
        self.next_used = self.next_used.wrapping_add(1);
    }

    /// See [`DriverQueue::disable_interrupts`](super::DriverQueue::disable_interrupts).
    pub fn disable_interrupts(&mut self) {
        if self.features.event_idx {
            let behind = self.next_used.wrapping_sub(1);
            self.memory.word(self.used_event()).store(behind.to_le(), Ordering::Relaxed);
        } else {
            self.memory.word(self.avail).store(NO_INTERRUPT.to_le(), Ordering::Relaxed);
        }
    }

    /// See [`DriverQueue::enable_interrupts`](super::DriverQueue::enable_interrupts).
    pub fn enable_interrupts(&mut self) -> bool {
        if self.features.event_idx {
            self.memory.word(self.used_event()).store(self.next_used.to_le(), Ordering::Relaxed);
        } else {
            self.memory.word(self.avail).store(0, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
        u16::from_le(self.memory.word(self.used + 2).load(Ordering::Relaxed)) != self.next_used
    }

    /// See [`DriverQueue::write_raw_desc`](super::DriverQueue::write_raw_desc).
    pub fn write_raw_desc(&self, table: u64, index: u16, addr: u64, len: u32, flags: u16, next: u16) {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&addr.to_le_bytes());
        bytes[8..12].copy_from_slice(&len.to_le_bytes());
        bytes[12..14].copy_from_slice(&flags.to_le_bytes());
        bytes[14..].copy_from_slice(&next.to_le_bytes());
        self.memory.write(table + 16 * u64::from(index), &bytes);
    }

    fn write_desc(&self, table: u64, index: u16, buffer: Buffer, next: Option<u16>) {
        let flags = buffer.flags(next.is_some());
        self.write_raw_desc(table, index, buffer.addr, buffer.len, flags, next.unwrap_or(0));
    }

    /// Makes an available chain of the first `count` free descriptors, `head` to before `rest`.
    fn mark_taken(&mut self, head: u16, rest: u16, count: u16) {
        if self.features.in_order {
            self.order.add(head);
        }
        self.chain_len[usize::from(head)] = count;
        self.first_free = rest;
        self.free -= count;
        let slot = self.next_avail & (self.size - 1);
        self.memory.word(self.avail + 4 + 2 * u64::from(slot)).store(head.to_le(), Ordering::Relaxed);
        self.next_avail = self.next_avail.wrapping_add(1);
    }

    fn used_event(&self) -> u64 {
        self.avail + 4 + 2 * u64::from(self.size)
    }

    fn avail_event(&self) -> u64 {
        self.used + 4 + 8 * u64::from(self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(size: u16) -> (Arc<SharedMemory>, SplitDriver) {
        let memory = Arc::new(SharedMemory::new(0, 0x10000).unwrap());
        let queue = SplitDriver::starting_at(&memory, size, DriverFeatures::default(), 0);
        (memory, queue)
    }

    /// Completes a chain as a device does, unchecked.
    fn complete(memory: &SharedMemory, queue: &SplitDriver, index: u16, head: u16, len: u32) {
        let slot = u64::from(index & (queue.size() - 1));
        memory.write(queue.used_addr() + 4 + 8 * slot, &u32::from(head).to_le_bytes());
        memory.write(queue.used_addr() + 8 + 8 * slot, &len.to_le_bytes());
        memory.word(queue.used_addr() + 2).store(index.wrapping_add(1), Ordering::Release);
    }

    #[test]
    fn a_chain_is_laid_out_as_the_standard_says() {
        let (memory, mut queue) = queue(4);
        let head = queue.add(&[Buffer::readable(0x1122, 12), Buffer::writable(0x3344, 5)]).unwrap();
        assert_eq!(
            memory.bytes(queue.desc_addr(), 16),
            [0x22, 0x11, 0, 0, 0, 0, 0, 0, 12, 0, 0, 0, 1, 0, 1, 0]
        );
        assert_eq!(
            memory.bytes(queue.desc_addr() + 16, 14),
            [0x44, 0x33, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 2, 0]
        );
        assert_eq!(memory.bytes(queue.avail_addr(), 6), [0, 0, 0, 0, 0, 0], "not published yet");
        assert!(queue.publish(), "the device did not say it polls");
        assert_eq!(memory.bytes(queue.avail_addr(), 6), [0, 0, 1, 0, head as u8, 0]);
    }

    #[test]
    fn descriptors_come_back_with_their_chain() {
        let (memory, mut queue) = queue(4);
        let buffer = Buffer::readable(0, 1);
        let a = queue.add(&[buffer; 3]).unwrap();
        assert_eq!(queue.add(&[buffer; 2]), None, "one is free");
        let b = queue.add(&[buffer]).unwrap();
        assert!(queue.publish());
        assert_eq!(queue.reap(), None);
        complete(&memory, &queue, 0, b, 0);
        complete(&memory, &queue, 1, a, 7);
        assert_eq!(queue.reap(), Some(Used { head: b, len: 0 }));
        assert_eq!(queue.reap(), Some(Used { head: a, len: 7 }));
        assert_eq!(queue.free(), 4);
        assert!(queue.add(&[buffer; 4]).is_some());
    }

    #[test]
    #[should_panic(expected = "not in flight")]
    fn completing_twice_is_noticed() {
        let (memory, mut queue) = queue(4);
        let head = queue.add(&[Buffer::readable(0, 1)]).unwrap();
        complete(&memory, &queue, 0, head, 0);
        complete(&memory, &queue, 1, head, 0);
        queue.reap();
        queue.reap();
    }
}
