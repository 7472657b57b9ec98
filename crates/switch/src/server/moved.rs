//! Remotes that are at another host than their contract names: their host has announced them.
//!
//! ```text
//!  Moved: segment, MAC, peer, since ─▶ a remote's? its peer carries the segment? later than the last one?
//!                                        └─▶ pin leads to that peer, until the contract names another one
//! ```

use super::Switch;
use super::moves::MovedRemote;
use super::table::Table;
use super::uplink::KnownSegments;
use crate::fdb::{Destination, PeerIndex, SegmentIndex};
use crate::hosts::notices::Moved;
use std::collections::BTreeMap;
use std::time::Duration;
use tidegate_contract::{Mac, Segment};

/// Pause after a move: all pairs are told to the links, so a host that moves vNICs without end must not keep workers busy.
const PAUSE: Duration = Duration::from_millis(20);

impl Switch {
    /// Leads frames to the host that has announced a remote. Announcements of other addresses change nothing: those of
    /// vNICs here stay here, and unknown ones are learned from their frames.
    pub(super) fn remote_moved(&self, Moved { segment, mac, peer, since }: Moved) {
        let mut table = self.lock();
        let known = table.known_segments();
        let Some(index) = known.iter().find(|(_, id)| *id == segment).map(|(index, _)| *index) else {
            return;
        };
        let (Some(to), Some(declared)) = (table.carrier(peer, segment), table.declared_at(segment, mac))
        else {
            return;
        };
        let key = (index, mac);
        if table.moved.get(&key).is_some_and(|before| before.since >= since) {
            return;
        }
        let before = self.fdb.pinned(index, mac);
        if before.is_none_or(|at| at.port().is_some()) {
            return;
        }
        table.moved.insert(key, MovedRemote { declared, to, since });
        if before != Some(to) {
            let (segment, peer) = (segment.id(), table.peer_name(peer));
            tracing::info!(%mac, segment, peer, "remote vNIC moved to another host");
            self.publish_uplinks(&mut table);
            drop(table);
            std::thread::sleep(PAUSE);
        }
    }
}

impl Table {
    /// Forgets remotes that moved and that are declared elsewhere by now, or whose peer has gone. Returns where the FDB
    /// leads for them.
    pub(super) fn forget_moved(&mut self, known: &KnownSegments) -> Vec<((SegmentIndex, Mac), Destination)> {
        let ids: BTreeMap<SegmentIndex, Segment> = known.iter().copied().collect();
        let before = std::mem::take(&mut self.moved);
        let mut left = Vec::new();
        for (key, moved) in before {
            let (index, mac) = key;
            let stays = ids.get(&index).is_some_and(|segment| {
                let leads = match moved.to {
                    Destination::Peer { peer, .. } => self.carrier(peer, *segment),
                    Destination::Port(_) => None,
                };
                self.declared_at(*segment, mac) == Some(moved.declared) && leads == Some(moved.to)
            });
            if stays {
                self.moved.insert(key, moved);
            } else {
                left.push((key, moved.to));
            }
        }
        left
    }

    /// Returns how frames of a segment reach a peer; `None` if there is no such peer, or it does not carry the segment.
    fn carrier(&self, peer: PeerIndex, segment: Segment) -> Option<Destination> {
        self.uplinks
            .values()
            .map(|entry| (entry, entry.peer(peer)))
            .find_map(|(entry, to)| entry.peer_at(to).filter(|peer| peer.carries(segment)).map(|_| to))
    }

    /// Returns the peer at which a contract declares a remote.
    fn declared_at(&self, segment: Segment, mac: Mac) -> Option<PeerIndex> {
        self.uplinks.values().find_map(|entry| {
            let remote =
                entry.remotes.iter().find(|remote| (remote.segment, remote.mac) == (segment, mac))?;
            let peer = entry.uplink.peers.iter().find(|peer| peer.name == remote.peer)?;
            entry.number(peer)
        })
    }

    fn peer_name(&self, number: PeerIndex) -> &str {
        let peer = self.uplinks.values().find_map(|entry| entry.peer_at(entry.peer(number)));
        peer.map_or("", |peer| &peer.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::ports::Connect;
    use crate::server::uplinks::Sockets;
    use std::net::UdpSocket;
    use std::sync::Arc;
    use tidegate_contract::{Peer, Remote, Uplink, testing};

    /// An uplink to hosts 2 and 3, with sockets of the loopback device.
    fn uplink() -> (Uplink, Sockets) {
        let mut uplink = Uplink { local: Some([127, 0, 0, 1].into()), ..testing::uplink("net0") };
        uplink.peers.push(Peer {
            name: "host3".into(),
            address: Some([192, 0, 2, 3].into()),
            ..uplink.peers[0].clone()
        });
        let socket = || UdpSocket::bind("127.0.0.1:0").unwrap().into();
        (
            uplink,
            Sockets {
                receive: vec![socket()],
                send: vec![socket()],
                pairs: vec![],
                ports: vec![],
                notices: None,
            },
        )
    }

    fn peer_of(switch: &Switch, name: &str) -> PeerIndex {
        let table = switch.lock();
        let entry = &table.uplinks["net0"];
        entry.uplink.peers.iter().find(|peer| peer.name == name).and_then(|peer| entry.number(peer)).unwrap()
    }

    fn leads(switch: &Switch, remote: &Remote) -> Option<PeerIndex> {
        let index = switch.lock().segment(remote.segment);
        match switch.fdb.destination(index, remote.mac)? {
            Destination::Peer { peer, .. } => Some(peer),
            Destination::Port(_) => None,
        }
    }

    fn start() -> (Arc<Switch>, Uplink, Remote) {
        let switch = Switch::start(1, &[], None).unwrap();
        switch.set_port(testing::vnic("plc1"), Connect::NoFrontEnd).unwrap();
        let (uplink, sockets) = uplink();
        let remote = testing::remote("plc9");
        switch
            .set_uplink(uplink.clone(), (vec![remote.clone()], vec![], Default::default()), Some(sockets))
            .unwrap();
        (switch, uplink, remote)
    }

    #[test]
    fn frames_follow_a_remote_to_the_host_that_announces_it_last() {
        let (switch, uplink, remote) = start();
        let [two, three] = ["host2", "host3"].map(|name| peer_of(&switch, name));
        let says = |peer, since| {
            switch.remote_moved(Moved { segment: remote.segment, mac: remote.mac, peer, since });
            leads(&switch, &remote)
        };
        assert_eq!(leads(&switch, &remote), Some(two));
        assert_eq!(says(two, 5), Some(two));
        assert_eq!(says(three, 4), Some(two), "an earlier one");
        assert_eq!(says(three, 9), Some(three));
        assert_eq!(says(two, 5), Some(three), "told again");
        assert_eq!(says(two, -7), Some(three), "before this host's clock began");
        // Another vNIC's change publishes all pins anew.
        switch.set_port(testing::vnic("plc2"), Connect::NoFrontEnd).unwrap();
        assert_eq!(leads(&switch, &remote), Some(three));
        switch.set_uplink(uplink.clone(), (vec![remote.clone()], vec![], Default::default()), None).unwrap();
        assert_eq!(leads(&switch, &remote), Some(three), "the contract says what it said");
        let at_three = Remote { peer: "host3".into(), ..remote.clone() };
        switch.set_uplink(uplink.clone(), (vec![at_three], vec![], Default::default()), None).unwrap();
        assert_eq!(leads(&switch, &remote), Some(three));
        assert!(switch.lock().moved.is_empty());
        switch.set_uplink(uplink, (vec![remote.clone()], vec![], Default::default()), None).unwrap();
        assert_eq!(leads(&switch, &remote), Some(two));
    }

    #[test]
    fn a_moved_remote_leaves_with_its_peer_its_contract_and_its_uplink() {
        let (switch, uplink, remote) = start();
        let three = peer_of(&switch, "host3");
        let moved = Moved { segment: remote.segment, mac: remote.mac, peer: three, since: 1 };
        switch.remote_moved(moved);
        let mut alone = uplink.clone();
        alone.peers.pop();
        switch.set_uplink(alone, (vec![remote.clone()], vec![], Default::default()), None).unwrap();
        assert_eq!(leads(&switch, &remote), Some(peer_of(&switch, "host2")), "its new host has gone");
        switch.set_uplink(uplink, (vec![remote.clone()], vec![], Default::default()), None).unwrap();
        switch.remote_moved(Moved { peer: peer_of(&switch, "host3"), ..moved });
        assert_eq!(leads(&switch, &remote), Some(peer_of(&switch, "host3")));
        switch.remove_uplink("net0").unwrap();
        assert_eq!(leads(&switch, &remote), None);
    }

    #[test]
    fn only_a_remote_moves_and_only_to_a_peer_of_its_segment() {
        let (switch, mut uplink, remote) = start();
        let (two, three) = (peer_of(&switch, "host2"), peer_of(&switch, "host3"));
        uplink.peers[1].segments = Some(vec![Segment::new(77).unwrap()]);
        switch.set_uplink(uplink, (vec![remote.clone()], vec![], Default::default()), None).unwrap();
        let moved = Moved { segment: remote.segment, mac: remote.mac, peer: three, since: 1 };
        switch.remote_moved(moved);
        assert_eq!(leads(&switch, &remote), Some(two));
        let here = testing::vnic("plc1");
        switch.remote_moved(Moved { segment: here.segment, mac: here.mac, peer: two, ..moved });
        let index = switch.lock().segment(here.segment);
        assert!(matches!(switch.fdb.destination(index, here.mac), Some(Destination::Port(_))));
        switch.remote_moved(Moved { mac: Mac([2, 9, 9, 9, 9, 9]), peer: two, ..moved });
        assert_eq!(switch.fdb.destination(index, Mac([2, 9, 9, 9, 9, 9])), None);
    }
}
