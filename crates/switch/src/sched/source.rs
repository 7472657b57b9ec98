//! Sources of an egress, and their numbers.
//!
//! ```text
//!  Port(7)    ─┐
//!  Remote(0)  ─┼▶ SourceIndexes ──▶ 0, 1, 2, …   indexes of the egress's arrays and heaps
//!  Remote(90) ─┘
//! ```
//!
//! A vNIC of this host is identified by its port. Remote vNICs come over one link, a single port: their frames with
//! a deadline are a source of their own beside its other frames. All frames with a deadline that an uplink brings have
//! the same relative deadline, so [one source](SourceId::arrivals) orders them as many would. A source's state takes
//! hundreds of bytes, and few sources send to one egress, so the egress numbers those that do.

use crate::fdb::PortIndex;

/// A vNIC of another host, numbered densely over all links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RemoteVnic(u16);

impl RemoteVnic {
    /// Largest number of remote vNICs.
    pub const MOST: u16 = 1 << 15;

    /// Returns the remote vNIC of that number; `None` from [`RemoteVnic::MOST`] on.
    pub const fn new(number: u16) -> Option<Self> {
        if number < Self::MOST { Some(Self(number)) } else { None }
    }
}

/// A source of an egress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourceId {
    /// The vNIC of this port.
    Port(PortIndex),
    /// A vNIC of another host.
    Remote(RemoteVnic),
}

impl SourceId {
    /// Returns the source of frames with a deadline that an uplink brings.
    #[inline]
    pub const fn arrivals(uplink: PortIndex) -> Self {
        // Ports are fewer than remote vNICs.
        Self::Remote(RemoteVnic(uplink % RemoteVnic::MOST))
    }
}

impl From<PortIndex> for SourceId {
    #[inline]
    fn from(port: PortIndex) -> Self {
        Self::Port(port)
    }
}

/// The dense number of a source at one egress.
pub(super) type SourceIndex = u16;

const NONE: SourceIndex = SourceIndex::MAX;

/// The numbers of an egress's sources. Takes two bytes for each number of a port, and of a remote vNIC, up
/// to the largest in use.
#[derive(Debug, Default)]
pub(super) struct SourceIndexes {
    ports: Vec<SourceIndex>,
    remotes: Vec<SourceIndex>,
    /// Returned numbers: the last one is used first.
    free: Vec<SourceIndex>,
    /// Numbers used so far.
    used: SourceIndex,
}

impl SourceIndexes {
    /// Returns the index of a source, if it has one.
    #[inline]
    pub(super) fn get(&self, id: SourceId) -> Option<SourceIndex> {
        let index = match id {
            SourceId::Port(port) => self.ports.get(usize::from(port)),
            SourceId::Remote(vnic) => self.remotes.get(usize::from(vnic.0)),
        };
        index.copied().filter(|index| *index != NONE)
    }

    /// Returns the index of a source, a new one if necessary.
    ///
    /// # Panics
    /// With 2^16 - 1 sources; ports and remote vNICs together are fewer.
    pub(super) fn get_or_insert(&mut self, id: SourceId) -> SourceIndex {
        let (indexes, at) = self.place(id);
        if indexes.len() <= at {
            indexes.resize(at + 1, NONE);
        }
        if indexes[at] != NONE {
            return indexes[at];
        }
        let index = self.free.pop().unwrap_or_else(|| {
            assert!(self.used != NONE, "an egress has no room for a further source");
            self.used += 1;
            self.used - 1
        });
        let (indexes, at) = self.place(id);
        indexes[at] = index;
        index
    }

    /// Removes a source; returns its index.
    pub(super) fn remove(&mut self, id: SourceId) -> Option<SourceIndex> {
        let index = self.get(id)?;
        let (indexes, at) = self.place(id);
        indexes[at] = NONE;
        self.free.push(index);
        Some(index)
    }

    fn place(&mut self, id: SourceId) -> (&mut Vec<SourceIndex>, usize) {
        match id {
            SourceId::Port(port) => (&mut self.ports, usize::from(port)),
            SourceId::Remote(vnic) => (&mut self.remotes, usize::from(vnic.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn source() -> impl Strategy<Value = SourceId> {
        // Far apart, like ports and remote vNICs of different links.
        prop_oneof![
            prop_oneof![0..8u16, 1000..1008u16].prop_map(SourceId::Port),
            prop_oneof![0..8u16, RemoteVnic::MOST - 8..RemoteVnic::MOST]
                .prop_map(|number| SourceId::Remote(RemoteVnic::new(number).expect("below"))),
        ]
    }

    proptest! {
        #[test]
        fn each_source_has_an_index_of_its_own_and_they_stay_dense(
            steps in prop::collection::vec((source(), any::<bool>()), 1..200),
        ) {
            let mut indexes = SourceIndexes::default();
            let mut model = BTreeMap::new();
            let mut most = 0;
            for (id, present) in steps {
                if present {
                    let index = indexes.get_or_insert(id);
                    prop_assert_eq!(*model.entry(id).or_insert(index), index, "it stays");
                } else {
                    prop_assert_eq!(indexes.remove(id), model.remove(&id));
                }
                most = most.max(model.len());
                prop_assert_eq!(indexes.get(id), model.get(&id).copied());
                let mut given: Vec<_> = model.values().copied().collect();
                given.sort_unstable();
                prop_assert!(given.windows(2).all(|pair| pair[0] < pair[1]), "{given:?}");
                prop_assert!(given.last().is_none_or(|last| usize::from(*last) < most));
            }
        }
    }

    #[test]
    fn remote_vnics_are_numbered_below_a_bound() {
        assert!(RemoteVnic::new(RemoteVnic::MOST - 1).is_some());
        assert_eq!(RemoteVnic::new(RemoteVnic::MOST), None);
    }
}
