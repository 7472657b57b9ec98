//! The addresses of vNICs of other hosts, as contracts declare them.
//!
//! ```text
//!  [remote.NAME] addresses ─▶ (segment, IP address) ─▶ MAC ─▶ worker/answer
//! ```

use crate::fdb::SegmentIndex;
use std::collections::HashMap;
use std::net::IpAddr;
use tidegate_contract::Mac;

/// The MACs of remotes, by segment and address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Neighbours(HashMap<(SegmentIndex, IpAddr), Mac>);

impl Neighbours {
    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the MAC of an address.
    pub fn mac(&self, segment: SegmentIndex, ip: IpAddr) -> Option<Mac> {
        self.0.get(&(segment, ip)).copied()
    }
}

impl FromIterator<((SegmentIndex, IpAddr), Mac)> for Neighbours {
    fn from_iter<T: IntoIterator<Item = ((SegmentIndex, IpAddr), Mac)>>(all: T) -> Self {
        Self(all.into_iter().collect())
    }
}
