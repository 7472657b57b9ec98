//! The chains of a queue between the pop and the moment the driver sees them again.
//!
//! ```text
//!   take ──▶ in flight ──▶ complete ──┬── in any order ──────────────▶ given back ──▶ shown
//!    ▲           │                    └── in order: done ──▶ all ──▶─┘
//!    └─ forget ◀─┘                          older ones are done, too
//! ```
//!
//! A ring holds one [`Order`], chosen when its features are negotiated:
//!
//! | | split | packed |
//! |---|---|---|
//! | any order | [`AnyOrder`]: counts | [`ById`]: places of each id, and a journal |
//! | VIRTIO_F_IN_ORDER | [`InOrder<()>`](InOrder): 2 bytes an entry | [`InOrder<u16>`](InOrder): 4 |
//!
//! A receive queue in order stores the lengths as well, 4 bytes an entry.

mod any_order;
mod by_id;
mod in_order;
#[cfg(test)]
mod tests;

use super::Single;
use super::inflight::Record;
pub(super) use any_order::AnyOrder;
pub(super) use by_id::ById;
pub(super) use in_order::InOrder;

/// Progress of chains, modulo 2^16. For a split ring these are its indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) popped: u16,
    /// Completed together with all older ones.
    pub(super) returned: u16,
    /// Seen by the driver.
    pub(super) shown: u16,
}

impl Counts {
    /// Returns the counts of a queue at `at`: all earlier chains are shown, none later is popped.
    pub(super) fn at(at: u16) -> Self {
        Self { popped: at, returned: at, shown: at }
    }

    /// Returns the chains popped and not given back.
    #[inline]
    pub(super) fn in_flight(self) -> u16 {
        self.popped.wrapping_sub(self.returned)
    }

    /// Returns the chains given back and not shown.
    #[inline]
    pub(super) fn unshown(self) -> u16 {
        self.returned.wrapping_sub(self.shown)
    }

    /// Reverts the pops of the last `n` chains.
    ///
    /// # Panics
    /// If fewer are in flight.
    #[inline]
    fn forget(&mut self, n: u16) {
        assert!(n <= self.in_flight(), "rewinding {n} chains of {} in flight", self.in_flight());
        self.popped = self.popped.wrapping_sub(n);
    }
}

/// Tracks the chains of a queue that are popped and not shown yet.
pub(super) trait Order {
    /// Whether chains go back in the order they were popped (VIRTIO_F_IN_ORDER; virtio 1.2, 2.7.9 and 2.8.8).
    const IN_ORDER: bool;

    /// Returns the order of a ring of `size` entries that stands at `counts`. `transmit`: nothing is
    /// written to its buffers.
    fn new(size: u16, counts: Counts, transmit: bool) -> Self;

    fn counts(&self) -> Counts;

    fn counts_mut(&mut self) -> &mut Counts;

    /// Takes the chain with buffer `id` and `places` places of the ring into flight. Returns the token for
    /// [`complete`](Self::complete); `None` if no chain can have this id now.
    fn take(&mut self, id: u16, places: u16) -> Option<u16>;

    /// Like [`take`](Self::take), for a chain of one place, the `nth` since the last count; to be counted
    /// by [`count_singles`](Self::count_singles), and put back only by
    /// [`forget_singles`](Self::forget_singles).
    fn take_single(&mut self, nth: u16, id: u16) -> Option<u16>;

    /// Counts `n` singles as popped, together.
    #[inline]
    fn count_singles(&mut self, n: u16) {
        let counts = self.counts_mut();
        counts.popped = counts.popped.wrapping_add(n);
    }

    /// Takes the last `n` chains out of flight, the youngest first, and passes their ids to `id` if known;
    /// returns their places.
    ///
    /// # Panics
    /// If fewer are in flight.
    fn forget(&mut self, n: u16, id: impl FnMut(u16)) -> u16;

    /// Takes the last chains, which are singles, out of flight.
    ///
    /// # Panics
    /// If fewer are in flight.
    #[inline]
    fn forget_singles(&mut self, last: &[Single]) {
        self.counts_mut().forget(last.len() as u16);
    }

    /// Completes chains: tokens, and bytes written. Passes to `each` the chains given back by that.
    fn complete(&mut self, done: impl Iterator<Item = (u16, u32)>, each: impl FnMut(Record));

    /// Completes singles with the tokens `first`, `first + 1`, ... Returns whether exactly they are given
    /// back by that; if not, nothing has changed.
    #[inline]
    fn complete_run(&mut self, _first: u16, _n: u16) -> bool {
        false
    }

    /// Returns the id that stands for all chains given back and not shown: the last one's, of a transmit
    /// queue in order. `None` if the driver sees each.
    #[inline]
    fn id_for_all(&self) -> Option<u16> {
        None
    }

    /// Shows all chains given back.
    #[inline]
    fn show(&mut self) {
        self.counts_mut().shown = self.counts().returned;
    }

    /// In order: returns the token of the oldest chain in flight, and the number of done ones behind it.
    fn held_back(&self) -> Option<(u16, u16)> {
        None
    }

    /// The buffer id of a token.
    #[cfg(test)]
    fn id_of(&self, token: u16) -> u16 {
        token
    }
}

/// An [`Order`] that stores given-back chains until they are shown.
pub(super) trait Journal: Order {
    /// Chains that were given back and are not shown, as packed [`Record`]s.
    fn unshown(&self) -> impl ExactSizeIterator<Item = u64>;

    /// Adds a chain that a predecessor gave back and did not show.
    fn restore(&mut self, record: Record);
}
