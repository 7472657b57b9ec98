//! Makes completed chains available again, unchanged.
//!
//! A generator resends its frames, and a sink gives its buffers back. The descriptors are in the table
//! already, so a chain costs one read of a used entry and one write of an available entry.

use super::SplitDriver;
use crate::driver::Used;
use std::sync::atomic::Ordering;

impl SplitDriver {
    /// Makes up to `max` completed chains available again, each whole and unchanged, after a call of
    /// `visit`. The device sees them after [`publish`](Self::publish). Returns their number.
    ///
    /// # Panics
    /// The device completed a chain that is not in flight.
    #[inline]
    pub fn recycle(&mut self, max: u16, mut visit: impl FnMut(Used)) -> u16 {
        let index = u16::from_le(self.memory.word(self.used + 2).load(Ordering::Acquire));
        let count = index.wrapping_sub(self.next_used).min(max);
        let mask = self.size - 1;
        for _ in 0..count {
            let mut entry = [0; 8];
            self.memory.read(self.used + 4 + 8 * u64::from(self.next_used & mask), &mut entry);
            let (head, len) = entry.split_at(4);
            let [head, len] = [head, len].map(|half| u32::from_le_bytes(std::array::from_fn(|i| half[i])));
            let known = self.chain_len.get(head as usize).copied().unwrap_or(0);
            assert!(known > 0, "the device completed chain {head}, which is not in flight");
            let head = head as u16;
            visit(Used { head, len });
            let slot = self.next_avail & mask;
            let entry = self.memory.word(self.avail + 4 + 2 * u64::from(slot));
            entry.store(head.to_le(), Ordering::Relaxed);
            self.next_avail = self.next_avail.wrapping_add(1);
            self.next_used = self.next_used.wrapping_add(1);
        }
        count
    }

    /// Counts the completed chains that wait.
    #[inline]
    pub fn completed(&self) -> u16 {
        let index = u16::from_le(self.memory.word(self.used + 2).load(Ordering::Acquire));
        index.wrapping_sub(self.next_used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{Buffer, DriverFeatures};
    use crate::memory::SharedMemory;
    use std::sync::Arc;

    fn complete(memory: &SharedMemory, queue: &SplitDriver, index: u16, head: u16, len: u32) {
        let slot = u64::from(index & (queue.size() - 1));
        memory.write(queue.used_addr() + 4 + 8 * slot, &u32::from(head).to_le_bytes());
        memory.write(queue.used_addr() + 8 + 8 * slot, &len.to_le_bytes());
        memory.word(queue.used_addr() + 2).store(index.wrapping_add(1), Ordering::Release);
    }

    fn available(memory: &SharedMemory, queue: &SplitDriver, index: u16) -> u16 {
        let slot = u64::from(index & (queue.size() - 1));
        memory.word(queue.avail_addr() + 4 + 2 * slot).load(Ordering::Relaxed)
    }

    #[test]
    fn chains_are_recycled_in_the_order_of_their_completion() {
        let memory = Arc::new(SharedMemory::new(0, 0x10000).unwrap());
        // The indices wrap during the test.
        let mut queue = SplitDriver::starting_at(&memory, 4, DriverFeatures::default(), u16::MAX - 2);
        let chain = [Buffer::readable(0x40, 12), Buffer::readable(0x80, 60)];
        let (a, b) = (queue.add(&chain).unwrap(), queue.add(&chain).unwrap());
        assert!(queue.publish());
        assert_eq!(queue.recycle(9, |_| unreachable!()), 0);
        let mut seen = Vec::new();
        let mut index = u16::MAX - 2;
        for (first, second) in [(b, a), (a, b), (b, a)] {
            complete(&memory, &queue, index, first, 7);
            complete(&memory, &queue, index.wrapping_add(1), second, 8);
            assert_eq!(queue.completed(), 2);
            assert_eq!(queue.recycle(1, |used| seen.push(used)), 1);
            assert_eq!(queue.recycle(9, |used| seen.push(used)), 1);
            assert_eq!(seen.split_off(0), [Used { head: first, len: 7 }, Used { head: second, len: 8 }]);
            // `add` made two available, and `recycle` two more.
            index = index.wrapping_add(2);
            assert_eq!(available(&memory, &queue, index), first);
            assert_eq!(available(&memory, &queue, index.wrapping_add(1)), second);
            assert!(queue.publish());
            assert_eq!(memory.word(queue.avail_addr() + 2).load(Ordering::Relaxed), index.wrapping_add(2));
        }
        assert_eq!(queue.free(), 0);
    }

    #[test]
    #[should_panic(expected = "not in flight")]
    fn a_chain_that_was_not_in_flight_is_not_recycled() {
        let memory = Arc::new(SharedMemory::new(0, 0x10000).unwrap());
        let mut queue = SplitDriver::starting_at(&memory, 4, DriverFeatures::default(), 0);
        queue.add(&[Buffer::readable(0, 1)]).unwrap();
        complete(&memory, &queue, 0, 3, 0);
        queue.recycle(1, |_| ());
    }
}
