//! The bounds of a View, as `controller/openapi.json` has them. A controller that exceeds them is not believed.
//!
//! ```text
//!  View ─▶ counts, names, MACs, numbers ─▶ within, or what is beyond
//! ```

use tidegate_controller_api::{Announced, Key, Path, Peer, View};
use tidegate_visible::{beginning, visible};

/// Most items of the lists.
const PEERS: usize = 2048;
const REMOTES: usize = 65_536;
const PATHS: usize = 4096;
const REFUSED: usize = 4096;
const SEGMENTS: usize = 4096;
const ADDRESSES: usize = 16;
const RECEIVERS: usize = 64;
/// Longest name (bytes).
const NAME: usize = 63;
/// Greatest segment, a VNI (RFC 7348).
const SEGMENT: u32 = (1 << 24) - 1;
/// Greatest number of an answer: what JSON carries exactly (RFC 8259, section 6).
const NUMBER: u64 = (1 << 53) - 1;
/// How much of a wrong name is shown (bytes).
const SHOWN: usize = 80;

/// Says what of a View is beyond the API's bounds; `None` if nothing is.
pub fn beyond(view: &View) -> Option<String> {
    let counts = [
        ("peers", view.peers.len(), PEERS),
        ("remotes", view.remotes.len(), REMOTES),
        ("paths", view.paths.len(), PATHS),
        ("refused", view.refused.len(), REFUSED),
    ];
    counts
        .into_iter()
        .find_map(|(what, count, most)| too_many(what, count, most))
        .or_else(|| too_great("term", view.term).or_else(|| too_great("version", view.version)))
        .or_else(|| view.peers.iter().find_map(of_peer))
        .or_else(|| view.remotes.iter().find_map(|there| name(&there.host).or_else(|| of_vnic(&there.vnic))))
        .or_else(|| view.paths.iter().find_map(of_path))
}

fn too_many(what: &str, count: usize, most: usize) -> Option<String> {
    (count > most).then(|| format!("{count} {what}, and at most {most} are possible"))
}

fn too_great(what: &str, number: u64) -> Option<String> {
    (number > NUMBER).then(|| format!("{what} is {number}, and at most {NUMBER} is possible"))
}

/// Says why a name is none: letters, digits, `.`, `_` and `-`, the first one a letter or digit.
fn name(text: &str) -> Option<String> {
    let is_name = (1..=NAME).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        && text.as_bytes()[0].is_ascii_alphanumeric();
    (!is_name).then(|| format!("{:?} is no name", visible(beginning(text, SHOWN))))
}

fn segment(number: u32) -> Option<String> {
    (!(1..=SEGMENT).contains(&number)).then(|| format!("segment {number} is none of 1 to {SEGMENT}"))
}

fn of_peer(peer: &Peer) -> Option<String> {
    name(&peer.host)
        .or_else(|| (peer.port == 0).then(|| format!("peer {} has port 0", peer.host)))
        .or_else(|| too_many("segments of a peer", peer.segments.len(), SEGMENTS))
        .or_else(|| peer.segments.iter().copied().find_map(segment))
}

fn of_vnic(vnic: &Announced) -> Option<String> {
    name(&vnic.name)
        .or_else(|| mac(&vnic.mac))
        .or_else(|| segment(vnic.segment))
        .or_else(|| too_many("addresses of a vNIC", vnic.addresses.len(), ADDRESSES))
        .or_else(|| too_many("receivers of a vNIC", vnic.to.len(), RECEIVERS))
        .or_else(|| vnic.to.iter().find_map(|to| name(to)))
}

fn mac(text: &str) -> Option<String> {
    let is_byte = |part: &str| {
        part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    };
    let is_mac = text.len() == 17 && text.split(':').count() == 6 && text.split(':').all(is_byte);
    (!is_mac).then(|| format!("{:?} is no MAC", visible(beginning(text, SHOWN))))
}

fn of_path(path: &Path) -> Option<String> {
    let request = &path.request;
    [&request.vnic, &request.remote, &request.source, &request.target]
        .into_iter()
        .find_map(|text| name(text))
        .or_else(|| {
            (path.name != request.name()).then(|| {
                format!(
                    "{:?} is another name than that of its request",
                    visible(beginning(&path.name, SHOWN))
                )
            })
        })
        .or_else(|| too_great("generation", path.generation))
        .or_else(|| match &request.key {
            Key::Udp(_) => None,
            Key::Ethernet(key) => mac(&key.source_mac).or_else(|| mac(&key.target_mac)),
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn view() -> Value {
        let text = include_str!("../../../../controller/openapi.json");
        let definition: Value = serde_json::from_str(text).unwrap();
        definition["components"]["schemas"]["View"]["examples"][0].clone()
    }

    #[test]
    fn what_is_beyond_the_definition_is_refused() {
        let read = |value: &Value| serde_json::from_value::<View>(value.clone()).unwrap();
        assert_eq!(beyond(&read(&view())), None);
        let cases = [
            ("/term", json!(u64::MAX), "term is 18446744073709551615"),
            ("/peers/0/host", json!("a\u{1b}[2J"), "is no name"),
            ("/peers/0/port", json!(0), "has port 0"),
            ("/peers/0/segments", json!([0]), "segment 0 is none of 1 to 16777215"),
            ("/remotes/0/host", json!("x".repeat(64)), "is no name"),
            ("/remotes/0/vnic/name", json!(""), "\"\" is no name"),
            ("/remotes/0/vnic/mac", json!("02:00:00:00:0A:01"), "is no MAC"),
            ("/remotes/0/vnic/mac", json!("02:00:00:00:001:1"), "is no MAC"),
            ("/remotes/0/vnic/to", json!(vec!["b"; 65]), "65 receivers of a vNIC, and at most 64"),
            ("/remotes/0/vnic/to", json!(["-b"]), "is no name"),
            ("/paths/0/name", json!("a1>b2"), "another name"),
            ("/paths/0/request/vnic", json!("a>1"), "is no name"),
            (
                "/paths/0/request/key",
                json!({"vlan": 1, "priority": 5, "source_mac": "02:00:00:00:0a:01", "target_mac": "\u{1b}[2J"}),
                "is no MAC",
            ),
        ];
        for (place, value, wanted) in cases {
            let mut changed = view();
            *changed.pointer_mut(place).unwrap() = value;
            let why = beyond(&read(&changed)).unwrap_or_default();
            assert!(why.contains(wanted) && why.is_ascii(), "{place}: {why}");
        }
        let mut many = read(&view());
        many.peers = vec![many.peers[0].clone(); PEERS + 1];
        assert_eq!(beyond(&many), Some("2049 peers, and at most 2048 are possible".into()));
    }
}
