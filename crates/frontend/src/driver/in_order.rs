//! Completion in order, for VIRTIO_F_IN_ORDER (virtio 1.2, 2.7.9 and 2.8.8).
//!
//! ```text
//!   add ─▶ a b c d ─▶ used: c, 0 bytes ─▶ a, b, c came back, one `take` each
//! ```

use super::Used;
use std::collections::VecDeque;

/// The chains in flight and the completed ones.
#[derive(Debug, Default)]
pub(super) struct InOrder {
    /// Heads, oldest first.
    in_flight: VecDeque<u16>,
    /// Completed chains at the front.
    completed: usize,
    /// Bytes that the device wrote into the last completed chain.
    len: u32,
}

impl InOrder {
    pub(super) fn add(&mut self, head: u16) {
        self.in_flight.push_back(head);
    }

    /// Records that the device used all chains up to `head`, with `len` bytes in the last.
    ///
    /// # Panics
    /// `head` is not in flight, or completed chains were not taken.
    pub(super) fn used_up_to(&mut self, head: u16, len: u32) {
        assert_eq!(self.completed, 0, "completed chains were not taken");
        let at = self.in_flight.iter().position(|in_flight| *in_flight == head);
        let at = at.unwrap_or_else(|| panic!("the device completed chain {head}, which is not in flight"));
        (self.completed, self.len) = (at + 1, len);
    }

    /// Takes the next completed chain. Only the last of a batch has a length.
    pub(super) fn take(&mut self) -> Option<Used> {
        self.completed = self.completed.checked_sub(1)?;
        let head = self.in_flight.pop_front()?;
        Some(Used { head, len: if self.completed == 0 { self.len } else { 0 } })
    }

    pub(super) fn up_to(&self, head: u16) -> impl Iterator<Item = u16> {
        let at = self
            .in_flight
            .iter()
            .skip(self.completed)
            .position(|in_flight| *in_flight == head)
            .map_or(0, |at| at + 1);
        self.in_flight.iter().skip(self.completed).take(at).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_completion_stands_for_all_earlier_chains() {
        let mut order = InOrder::default();
        (0..4).for_each(|head| order.add(head));
        assert_eq!(order.take(), None);
        assert!(order.up_to(2).eq([0, 1, 2]));
        order.used_up_to(2, 9);
        let taken: Vec<_> = std::iter::from_fn(|| order.take()).collect();
        assert_eq!(taken, [(0, 0), (1, 0), (2, 9)].map(|(head, len)| Used { head, len }));
        order.used_up_to(3, 0);
        assert_eq!(order.take(), Some(Used { head: 3, len: 0 }));
    }

    #[test]
    #[should_panic(expected = "not in flight")]
    fn completing_twice_is_noticed() {
        let mut order = InOrder::default();
        order.add(1);
        order.used_up_to(1, 0);
        order.take();
        order.used_up_to(1, 0);
    }
}
