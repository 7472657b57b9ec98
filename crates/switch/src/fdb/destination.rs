//! The destination of frames to an address, in the 64 bits of its table entry.
//!
//! ```text
//!  63      62       61     60       48        16      0
//!  VALID │ PINNED │ PEER │ peer     │ seconds │ port │    behind a port; behind a peer of its link: PEER
//!  0     │ 0      │ 0    │ BUSY 0…  │ number         │    none: being removed, or how many were removed before
//! ```
//!
//! `port` is in both cases the port whose egress carries the frames, so a frame's path asks one question.

/// Index of a port; also of its statistics.
pub type PortIndex = u16;

/// Another host, numbered densely over all links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerIndex(u16);

impl PeerIndex {
    /// Largest number of peers.
    pub const MOST: u16 = 1 << 13;
    /// The first peer.
    pub const MIN: Self = Self(0);
    /// The last one.
    pub const MAX: Self = Self(Self::MOST - 1);

    /// Returns the peer of that number; `None` from [`PeerIndex::MOST`] on.
    pub const fn new(number: u16) -> Option<Self> {
        if number < Self::MOST { Some(Self(number)) } else { None }
    }

    /// Returns its number, below [`PeerIndex::MOST`].
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// The destination of frames to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Destination {
    /// The address is behind this port.
    Port(PortIndex),
    /// The address is behind another host.
    Peer {
        /// The port of the link to it.
        link: PortIndex,
        /// The host.
        peer: PeerIndex,
    },
}

impl Destination {
    /// The port whose egress carries the frames.
    #[inline]
    pub fn egress(self) -> PortIndex {
        match self {
            Self::Port(port) => port,
            Self::Peer { link, .. } => link,
        }
    }

    /// Returns the port in front of the address; `None` for a peer's.
    #[inline]
    pub fn port(self) -> Option<PortIndex> {
        match self {
            Self::Port(port) => Some(port),
            Self::Peer { .. } => None,
        }
    }
}

impl From<PortIndex> for Destination {
    #[inline]
    fn from(port: PortIndex) -> Self {
        Self::Port(port)
    }
}

const VALID: u64 = 1 << 63;
const PINNED: u64 = 1 << 62;
const PEER: u64 = 1 << 61;
const PEER_SHIFT: u32 = 48;
const BUSY: u64 = 1 << 60;
/// The bits that distinguish destinations.
const WHERE: u64 = VALID | PEER | (PeerIndex::MOST as u64 - 1) << PEER_SHIFT | 0xffff;

/// The value of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Value(pub(super) u64);

impl Value {
    /// The value of a shared address without a holder.
    pub(super) const NOWHERE: Self = Self(PINNED);
    /// The value of an entry during its removal.
    pub(super) const REMOVING: Self = Self(BUSY);

    #[inline]
    fn of(to: Destination) -> u64 {
        match to {
            Destination::Port(port) => VALID | u64::from(port),
            Destination::Peer { link, peer } => {
                VALID | PEER | u64::from(peer.0) << PEER_SHIFT | u64::from(link)
            }
        }
    }

    /// An address seen behind `to` at `seconds`.
    #[inline]
    pub(super) fn learned(to: Destination, seconds: u32) -> Self {
        Self(Self::of(to) | u64::from(seconds) << 16)
    }

    /// An address of a contract.
    pub(super) fn pinned(to: Destination) -> Self {
        Self(Self::of(to) | PINNED)
    }

    /// Returns the value of the `number`th removed entry, so that no two are equal.
    pub(super) fn removed(number: u64) -> Self {
        Self(number & (BUSY - 1))
    }

    /// The port whose egress carries the frames.
    #[inline]
    pub(super) fn egress(self) -> Option<PortIndex> {
        (self.0 & VALID != 0).then_some(self.0 as PortIndex)
    }

    /// Returns the destination.
    #[inline]
    pub(super) fn destination(self) -> Option<Destination> {
        let port = self.egress()?;
        let peer = PeerIndex((self.0 >> PEER_SHIFT) as u16 & (PeerIndex::MOST - 1));
        Some(if self.0 & PEER == 0 {
            Destination::Port(port)
        } else {
            Destination::Peer { link: port, peer }
        })
    }

    /// Whether it leads to `to`.
    #[inline]
    pub(super) fn is(self, to: Destination) -> bool {
        self.0 & WHERE == Self::of(to)
    }

    #[inline]
    pub(super) fn is_pinned(self) -> bool {
        self.0 & PINNED != 0
    }

    pub(super) fn is_learned(self) -> bool {
        self.egress().is_some() && !self.is_pinned()
    }

    /// Returns when the address was last seen (seconds).
    #[inline]
    pub(super) fn seconds(self) -> u32 {
        (self.0 >> 16) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_value_returns_its_content(
            port in any::<u16>(), peer in prop::option::of(0..PeerIndex::MOST), seconds in any::<u32>(),
            other in any::<u16>(),
        ) {
            let to = match peer.and_then(PeerIndex::new) {
                Some(peer) => Destination::Peer { link: port, peer },
                None => Destination::Port(port),
            };
            let learned = Value::learned(to, seconds);
            for value in [learned, Value::pinned(to)] {
                prop_assert_eq!((value.destination(), value.egress()), (Some(to), Some(to.egress())));
                prop_assert!(value.is(to));
                prop_assert_eq!(value.is(Destination::Port(other)), to == Destination::Port(other));
            }
            prop_assert_eq!((learned.seconds(), learned.is_pinned()), (seconds, false));
            prop_assert!(learned.is_learned() && !Value::pinned(to).is_learned());
        }

        #[test]
        fn a_removed_value_leads_nowhere(number in any::<u64>()) {
            for value in [Value::REMOVING, Value::removed(number)] {
                prop_assert_eq!((value.destination(), value.egress()), (None, None));
                prop_assert!(!value.is_pinned() && !value.is_learned());
            }
            prop_assert_ne!(Value::removed(number), Value::REMOVING);
        }
    }

    #[test]
    fn peers_are_numbered_below_a_bound() {
        assert_eq!(PeerIndex::new(PeerIndex::MOST - 1).map(PeerIndex::get), Some(PeerIndex::MOST - 1));
        assert_eq!(PeerIndex::new(PeerIndex::MOST), None);
    }
}
