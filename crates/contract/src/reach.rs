//! The peers that each segment reaches over one uplink: looked up for every vNIC, so not searched.

use crate::{Peer, Segment, Uplink};
use std::collections::HashMap;

pub(crate) struct Reach<'a> {
    pub uplink: &'a Uplink,
    /// Peers of all segments.
    all: Vec<&'a Peer>,
    /// Peers that list the segment.
    listed: HashMap<Segment, Vec<&'a Peer>>,
}

impl<'a> Reach<'a> {
    pub(crate) fn new(uplink: &'a Uplink) -> Self {
        let mut reach = Self { uplink, all: Vec::new(), listed: HashMap::new() };
        for peer in &uplink.peers {
            match &peer.segments {
                None => reach.all.push(peer),
                Some(segments) => {
                    for segment in segments {
                        reach.listed.entry(*segment).or_default().push(peer);
                    }
                }
            }
        }
        reach
    }

    pub(crate) fn peers(&self, segment: Segment) -> impl Iterator<Item = &'a Peer> {
        self.all.iter().chain(self.listed.get(&segment).into_iter().flatten()).copied()
    }

    pub(crate) fn carries(&self, segment: Segment) -> bool {
        self.peers(segment).next().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use proptest::{collection::vec, option, prelude::*};

    proptest! {
        #[test]
        fn equals_a_search(lists in vec(option::of(vec(0u32..5, 0..4)), 0..6)) {
            let mut uplink = testing::uplink("net0");
            let peer = uplink.peers.remove(0);
            let segment = |id: u32| Segment::new(id).expect("in range");
            for list in lists {
                let mut segments = list.map(|ids| ids.into_iter().map(segment).collect::<Vec<_>>());
                segments.iter_mut().for_each(|s| { s.sort(); s.dedup() });
                uplink.peers.push(Peer { name: format!("p{}", uplink.peers.len()), segments, ..peer.clone() });
            }
            let reach = Reach::new(&uplink);
            for id in 0..6 {
                let mut found: Vec<&str> = reach.peers(segment(id)).map(|p| p.name.as_str()).collect();
                found.sort_unstable();
                let searched: Vec<&str> =
                    uplink.peers.iter().filter(|p| p.carries(segment(id))).map(|p| p.name.as_str()).collect();
                prop_assert_eq!(reach.carries(segment(id)), !searched.is_empty());
                prop_assert_eq!(found, searched);
            }
        }
    }
}
