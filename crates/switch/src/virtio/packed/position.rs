//! Places in a packed ring, and which round they belong to.

use super::{DESC_AVAIL, DESC_USED};
use crate::virtio::walker::DESC_WRITE;

/// A place in the ring, in one of two alternating rounds: the slot, and the wrap counter in bit 15, as
/// event structures and vhost-user write it. One number, since loading two recently stored pieces as a
/// whole is slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position(pub(super) u16);

impl Position {
    const WRAP: u16 = 1 << 15;

    /// Below the size.
    #[inline]
    pub(super) fn slot(self) -> u16 {
        self.0 & !Self::WRAP
    }

    #[inline]
    pub(super) fn wrap(self) -> bool {
        self.0 & Self::WRAP != 0
    }

    /// Returns the place `n` further, at most the size.
    #[inline]
    pub(super) fn forward(self, n: u16, size: u16) -> Self {
        let slot = self.slot() + n;
        let wrap = self.0 & Self::WRAP;
        if slot < size { Self(slot | wrap) } else { Self((slot - size) | (wrap ^ Self::WRAP)) }
    }

    /// Returns the place `n` before, at most the size.
    pub(super) fn back(self, n: u16, size: u16) -> Self {
        let wrap = self.0 & Self::WRAP;
        match self.slot().checked_sub(n) {
            Some(slot) => Self(slot | wrap),
            None => Self((self.slot() + size - n) | (wrap ^ Self::WRAP)),
        }
    }

    /// Returns the places from `before` to this one, if at most `size`.
    pub(super) fn since(self, before: Self, size: u16) -> Option<u16> {
        match self.wrap() == before.wrap() {
            true => self.slot().checked_sub(before.slot()),
            false => (self.slot() + size).checked_sub(before.slot()).filter(|&n| n <= size),
        }
    }

    /// Whether `flags`, found here, say that the driver made it available in this round.
    #[inline]
    pub(super) fn is_available(self, flags: u16) -> bool {
        flags & (DESC_AVAIL | DESC_USED) == self.available_flags()
    }

    #[inline]
    pub(super) fn available_flags(self) -> u16 {
        if self.wrap() { DESC_AVAIL } else { DESC_USED }
    }

    /// Returns the flags of a used descriptor here, in this round.
    #[inline]
    pub(super) fn used_flags(self) -> u16 {
        if self.wrap() { DESC_AVAIL | DESC_USED } else { 0 }
    }

    /// Whether `flags`, found here, say that the device wrote a used descriptor in this round. The
    /// driver may have made the place available again meanwhile, for the next round.
    pub(super) fn was_used(self, flags: u16) -> bool {
        (flags & DESC_USED != 0) == self.wrap()
    }
}

/// Returns length, id and flags of the used descriptor at `position`, for a packed
/// [`Record`](crate::virtio::inflight::Record).
#[inline]
pub(super) fn used_half(record: u64, place: Position) -> u64 {
    // A length counts only with this flag (2.8.4).
    let flags = if record as u32 > 0 { place.used_flags() | DESC_WRITE } else { place.used_flags() };
    record & (u64::MAX >> 16) | u64::from(flags) << 48
}
