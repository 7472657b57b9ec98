//! Peers that another owner gives to an uplink: the network's controller knows the hosts, a file the uplink.
//!
//! ```text
//!  Uplink, with the peers of its table ─┐
//!  GivenPeer ───────────────────────────┴▶ give ─▶ Uplink with all of its peers
//! ```

use crate::{Peer, Uplink};
use serde::{Deserialize, Serialize};

/// A peer of an uplink that another owner has. It has no form in TOML.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GivenPeer {
    /// The uplink.
    pub uplink: String,
    /// The peer.
    pub peer: Peer,
}

/// Adds peers to their uplinks, as [`crate::merge`] does when it checks them.
pub fn give<'a>(uplinks: &mut [Uplink], peers: impl IntoIterator<Item = &'a GivenPeer>) {
    for given in peers {
        if let Some(uplink) = uplinks.iter_mut().find(|uplink| uplink.name == given.uplink) {
            uplink.peers.push(given.peer.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Document, Located, check::merge, testing};

    fn given(uplink: &str, name: &str, address: [u8; 4]) -> Located<GivenPeer> {
        let peer = Peer {
            name: name.into(),
            address: Some(address.into()),
            ..testing::uplink("x").peers[0].clone()
        };
        Located::without_line(GivenPeer { uplink: uplink.into(), peer }, "the network's controller")
    }

    fn merged(peers: Vec<Located<GivenPeer>>) -> Result<Document, String> {
        let uplinks = vec![Located::without_line(testing::uplink("net0"), "a.toml")];
        let own = Document { uplinks, ..Document::default() };
        merge(vec![own, Document { peers, ..Document::default() }]).map_err(|errors| errors.to_string())
    }

    #[test]
    fn peers_of_two_owners_are_checked_as_those_of_one() {
        let all = merged(vec![given("net0", "h7", [192, 0, 2, 77])]).expect("they differ");
        assert!(all.peers.is_empty());
        let names: Vec<_> = all.uplinks[0].value.peers.iter().map(|peer| peer.name.as_str()).collect();
        assert_eq!(names.last(), Some(&"h7"));
        let own = testing::uplink("net0");
        let local = own.local.expect("an address").to_string();
        let octets: Vec<u8> = local.split('.').map(|part| part.parse().expect("IPv4")).collect();
        for (bad, wanted) in [
            (given("net1", "h7", [192, 0, 2, 77]), "peer.h7.uplink: there is no uplink \"net1\""),
            (given("net0", &own.peers[0].name, [192, 0, 2, 77]), "stands twice"),
            (given("net0", "h7", octets.try_into().expect("four")), "is this host's own"),
            (given("net0", "h7", [224, 0, 0, 1]), "is not the address of one host"),
            (given("net0", "_", [192, 0, 2, 77]), "is not a valid name"),
        ] {
            let said = merged(vec![bad]).expect_err(wanted);
            assert!(
                said.starts_with("the network's controller: ") && said.contains(wanted),
                "{wanted}: {said}"
            );
        }
    }
}
