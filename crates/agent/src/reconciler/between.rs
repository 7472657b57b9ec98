//! Which promises between hosts cannot be kept: a place leads to no other host, or their frames would have no stamp.
//!
//! ```text
//!  vNIC ─ to: uplink, remote ─▶ place leads there? ─▶ deadline: peer takes stamps ─▶ segment has a key? ─▶ kept
//!  remote with a deadline ────────────────────────▶ its peer makes stamps? ───────▶ segment has a key? ─▶ kept
//! ```

use crate::store::Contracts;
use std::collections::{HashMap, HashSet};
use tidegate_contract::vnic::UPLINK;
use tidegate_contract::{GivenPeer, Located, Peer, Remote, Segment, SegmentKeys, Uplink, Vnic};
use tidegate_place::Capabilities;

/// Returns whether a vNIC has a promise for each place in its `to`.
pub(super) fn promises(vnic: &Vnic) -> bool {
    vnic.is_realtime() || vnic.tx.min.is_some()
}

/// What contracts say of other hosts.
pub(super) struct Between<'a> {
    remotes: HashMap<&'a str, &'a Remote>,
    peers: HashMap<&'a str, &'a Peer>,
    vnics: HashSet<&'a str>,
    with_key: HashSet<Segment>,
    /// Segments behind plain NICs: a vNIC that is still to be announced there needs no stamps.
    plain: HashSet<Segment>,
    /// Other hosts may still announce vNICs with names that no table has.
    has_controller: bool,
}

impl<'a> Between<'a> {
    pub(super) fn of(contracts: &'a Contracts) -> Self {
        let remotes = contracts.all::<Remote>().map(|(_, located)| &located.value);
        let uplinks = contracts.all::<Uplink>().map(|(_, located)| &located.value);
        let plain = contracts.all::<Uplink>().map(|(_, located)| &located.value);
        let plain = plain.filter(|uplink| uplink.is_plain()).flat_map(|uplink| &uplink.peers);
        let plain = plain.filter_map(|peer| peer.segments.as_deref()).flatten().copied().collect();
        let given = contracts.all::<GivenPeer>().map(|(_, located)| &located.value.peer);
        let peers = uplinks.flat_map(|uplink| &uplink.peers).chain(given);
        let vnics = contracts.vnics().map(|(_, located)| located.value.name.as_str());
        Self {
            remotes: remotes.map(|remote| (remote.name.as_str(), remote)).collect(),
            peers: peers.map(|peer| (peer.name.as_str(), peer)).collect(),
            vnics: vnics.collect(),
            plain,
            has_controller: contracts.controller().is_some(),
            with_key: contracts.all::<SegmentKeys>().map(|(_, located)| located.value.segment).collect(),
        }
    }

    /// Says which promise of a vNIC towards other hosts cannot be kept; `None` if all can, or if there are none.
    pub(super) fn refuses_vnic(
        &self,
        vnic: &Located<Vnic>,
        place: &str,
        capabilities: &Capabilities,
    ) -> Option<String> {
        let at = vnic.place();
        let vnic = &vnic.value;
        let is_unknown = |to: &str| self.has_controller && !self.vnics.contains(to);
        let is_away =
            |to: &&String| *to == UPLINK || self.remotes.contains_key(to.as_str()) || is_unknown(to);
        let to = vnic.to.iter().find(is_away)?;
        let receiver = |to: &str| {
            if to == UPLINK { "the uplink".into() } else { format!("{to}, a vNIC of another host") }
        };
        let name = &vnic.name;
        if promises(vnic) && !capabilities.uplink {
            return Some(format!(
                "vNIC {name} ({at}): place {place} keeps no promise towards {}; name vNICs of this host in `to`, \
                 or leave tx.min and deadline out",
                receiver(to)
            ));
        }
        if !vnic.is_realtime() || self.with_key.contains(&vnic.segment) {
            return None;
        }
        let takes_stamps = |to: &&String| match self.remotes.get(to.as_str()) {
            Some(remote) => self.peers.get(remote.peer.as_str()).is_some_and(|peer| peer.stamps),
            None if *to != UPLINK => is_unknown(to) && !self.plain.contains(&vnic.segment),
            None => self.peers.values().any(|peer| peer.stamps && peer.carries(vnic.segment)),
        };
        let to = vnic.to.iter().find(takes_stamps)?;
        let (receiver, remedy) = (receiver(to), remedy(vnic.segment));
        Some(format!("vNIC {name} ({at}): its deadline towards {receiver} needs stamps: {remedy}"))
    }

    /// Says why the deadline of a vNIC of another host cannot be kept here; `None` if it can, or if it has none.
    pub(super) fn refuses_remote(&self, remote: &Located<Remote>) -> Option<String> {
        let at = remote.place();
        let Remote { name, segment, peer, deadline, .. } = &remote.value;
        (*deadline)?;
        if self.peers.get(peer.as_str()).is_some_and(|peer| !peer.stamps) {
            return Some(format!(
                "remote {name} ({at}): its deadline needs stamps, and peer {peer} makes none (stamps = false); leave \
                 its deadline and `to` out"
            ));
        }
        let has_key = self.with_key.contains(segment);
        (!has_key).then(|| format!("remote {name} ({at}): its deadline needs stamps: {}", remedy(*segment)))
    }
}

fn remedy(segment: Segment) -> String {
    format!(
        "add [segment.{segment}] with key-file = \"/etc/tidegate/segment-{segment}.key\", here and at the other host, \
         and write one key to that file of both, mode 0600 (openssl rand -hex 16)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Owner;
    use tidegate_contract::Document;

    const NET: &str = r#"
[uplink.net0]
local = "192.0.2.1"
rate = "1gbit"
latency = "100us"
peer.host2.address = "192.0.2.2"
peer.host3 = { address = "192.0.2.3", stamps = false }

[remote.plc9]
mac = "52:54:00:00:00:09"
segment = 1
peer = "host2"

[remote.old]
mac = "52:54:00:00:00:08"
segment = 1
peer = "host3"
"#;

    const KEY: &str = "[segment.1]\nkey-file = \"/k\"\n";

    fn parsed(text: &str) -> Document {
        tidegate_contract::parse(text, "t.toml").unwrap_or_else(|errors| panic!("{errors}"))
    }

    fn contracts(text: &str) -> Contracts {
        let mut contracts = Contracts::default();
        contracts.merge(&Owner::Api, parsed(text), false).unwrap();
        contracts
    }

    /// Returns the refusal of a vNIC whose table has also `lines`, beside the tables of `others`.
    fn refusal(others: &str, lines: &str, capabilities: &Capabilities) -> Option<String> {
        let vnic =
            "[vnic.a]\nattach = { vhost-user = \"/run/a.sock\" }\nmac = \"52:54:00:00:00:01\"\nsegment = 1\n";
        let document = parsed(&format!("{vnic}{lines}"));
        let contracts = contracts(&format!("{NET}{others}"));
        Between::of(&contracts).refuses_vnic(&document.vnics[0], "switch", capabilities)
    }

    const ALL: Capabilities = Capabilities { deadline: true, min: true, uplink: true, notes: vec![] };
    const DEADLINE: &str = "deadline = \"1ms\"";

    fn with(to: &str, deadline: &str) -> String {
        let tx = "tx = { max = \"2mbit\", min = \"1mbit\", burst = \"2kB\" }";
        format!("{tx}\n{deadline}\nto = [{to}]\n")
    }

    #[test]
    fn a_deadline_towards_another_host_needs_a_key() {
        assert_eq!(
            refusal("", &with("\"b\", \"plc9\"", DEADLINE), &ALL).as_deref(),
            Some(
                "vNIC a (t.toml:1): its deadline towards plc9, a vNIC of another host needs stamps: add [segment.1] \
                 with key-file = \"/etc/tidegate/segment-1.key\", here and at the other host, and write one key to that \
                 file of both, mode 0600 (openssl rand -hex 16)"
            )
        );
        let towards_uplink = refusal("", &with("\"uplink\"", DEADLINE), &ALL).unwrap();
        assert!(towards_uplink.contains("its deadline towards the uplink needs stamps"), "{towards_uplink}");
        let kept = ["\"uplink\"", "\"plc9\"", "\"b\""].map(|to| with(to, ""));
        let kept = kept.into_iter().chain([with("\"b\"", DEADLINE), with("\"old\"", DEADLINE)]);
        for kept in kept {
            assert_eq!(refusal("", &kept, &ALL), None, "{kept}");
        }
        for to in ["\"uplink\"", "\"plc9\""] {
            assert_eq!(refusal(KEY, &with(to, DEADLINE), &ALL), None);
        }
        let kernel = Capabilities { uplink: false, ..ALL };
        for line in ["", DEADLINE] {
            let text = refusal(KEY, &with("\"uplink\"", line), &kernel).unwrap();
            assert!(text.contains("place switch keeps no promise towards the uplink; name vNICs"), "{text}");
        }
        assert_eq!(refusal("", "to = [\"uplink\"]", &kernel), None, "it promises nothing");
    }

    #[test]
    fn a_vnic_to_come_behind_a_plain_nic_needs_no_key() {
        let controller = "[controller]\nurl = [\"http://127.0.0.1:6654\"]\nhost = \"h1\"\ntoken-file = \"/t\"\n\
                          uplinks = [\"net0\"]\n";
        let to = with("\"later\"", DEADLINE);
        let text = refusal(controller, &to, &ALL).unwrap();
        assert!(text.contains("its deadline towards later, a vNIC of another host needs stamps"), "{text}");
        let lan = |segment: u32| {
            format!(
                "{controller}\n[uplink.lan0]\nkind = \"packet\"\ndevice = \"eth1\"\nrate = \"1gbit\"\n\
                 peer.lan.segments = [{segment}]\n"
            )
        };
        assert_eq!(refusal(&lan(1), &to, &ALL), None);
        assert!(refusal(&lan(2), &to, &ALL).is_some());
    }

    #[test]
    fn a_deadline_of_a_remote_needs_stamps_and_a_key() {
        let tx = "tx = { max = \"1mbit\", burst = \"2kB\" }\ndeadline = \"1ms\"\nto = [\"a\"]\n";
        let remote = |peer: &str| {
            let text =
                format!("[remote.x]\nmac = \"52:54:00:00:00:07\"\nsegment = 1\npeer = \"{peer}\"\n{tx}");
            parsed(&text).remotes.remove(0)
        };
        let refusal = |keys: &str, peer: &str| {
            let contracts = contracts(&format!("{NET}{keys}"));
            Between::of(&contracts).refuses_remote(&remote(peer))
        };
        assert_eq!(refusal(KEY, "host2"), None);
        let why = refusal("", "host2").unwrap();
        assert!(
            why.starts_with("remote x (t.toml:1): its deadline needs stamps: add [segment.1] with"),
            "{why}"
        );
        let why = refusal(KEY, "host3").unwrap();
        assert!(why.contains("peer host3 makes none (stamps = false); leave its deadline"), "{why}");
        let contracts = contracts(NET);
        let without = &parsed(NET).remotes[0];
        assert_eq!(Between::of(&contracts).refuses_remote(without), None, "it has no deadline");
    }
}
