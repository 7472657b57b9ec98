//! `[uplink.NAME]` and `[segment.ID]` tables to an [`Uplink`] and [`SegmentKeys`].

use super::{keys, reader::Table};
use crate::check::{UPLINK_MTU, without_effect};
use crate::uplink::{FIRST_PORT, default_arrival_budget, default_mtu, default_notice_port, default_port};
use crate::{Nanos, Peer, Rate, Segment, SegmentKeys, Uplink, UplinkKind};
use std::{net::IpAddr, ops::RangeInclusive, path::PathBuf, str::FromStr};

const PORT: RangeInclusive<u16> = FIRST_PORT..=u16::MAX;
const SEGMENT: RangeInclusive<u32> = 0..=(1 << 24) - 1;
const A_DURATION: &str = "a duration such as \"100us\"";
pub(super) const AN_ADDRESS: &str = "an IP address such as \"192.0.2.1\" or \"2001:db8::1\"";

pub(super) fn read(table: &Table<'_>, name: String) -> Uplink {
    table.check_known_keys(keys::UPLINK);
    let kind = table.text("kind", "\"vxlan\", \"packet\" or \"xdp\"", UplinkKind::Vxlan).unwrap_or_default();
    let (from, way) = if kind.is_vxlan() {
        ("local", "local = \"192.0.2.1\" (the address that this host sends from)")
    } else {
        ("device", "device = \"eth0\" (the NIC that frames leave by)")
    };
    for (key, example) in [(from, way), ("rate", "rate = \"10gbit\" (the capacity towards the network)")] {
        if !table.has(key) {
            table.report_missing(key, example);
        }
    }
    let peers = table.table("peer").map_or_else(Vec::new, |peers| {
        peers.tables().into_iter().filter_map(|(name, peer)| read_peer(&peer, name, kind)).collect()
    });
    let local = table.text::<Address>("local", AN_ADDRESS, Address(None)).and_then(|address| address.0);
    // An unreadable address is reported; a stand-in of the peers' family gives no second error.
    let placeholder = match peers.first().and_then(|peer| peer.address) {
        Some(IpAddr::V6(_)) => IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0]),
        _ => IpAddr::from([192, 0, 2, 0]),
    };
    for key in ["port", "notice-port"] {
        if !kind.is_vxlan() && table.has(key) {
            table.report(key, without_effect(kind));
        }
    }
    let port = |key, default| table.integer(key, &PORT).filter(|_| kind.is_vxlan()).unwrap_or(default);
    let device =
        table.text::<Text>("device", "an interface name", Text("stand-in".into())).map(|text| text.0);
    let uplink = Uplink {
        name,
        kind,
        local: if kind.is_vxlan() { Some(local.unwrap_or(placeholder)) } else { local },
        device: if kind.is_vxlan() { device } else { device.or_else(|| Some("stand-in".into())) },
        port: port("port", default_port()),
        notice_port: port("notice-port", default_notice_port()),
        rate: table.text("rate", "a rate such as \"10gbit\"", Rate::MAX).unwrap_or(Rate::MAX),
        mtu: table.integer("mtu", &UPLINK_MTU).unwrap_or(default_mtu()),
        latency: table.text("latency", A_DURATION, Nanos::new(0)),
        arrival_budget: table
            .text("arrival-budget", A_DURATION, default_arrival_budget())
            .unwrap_or(default_arrival_budget()),
        peers,
        rdma: table.text("rdma", "the name of an RDMA device", Text("stand-in".into())).map(|text| text.0),
        controlled: false,
    };
    table.report_problems(uplink.check());
    uplink
}

/// Returns `None` for a peer without a readable address, which is reported.
fn read_peer(table: &Table<'_>, name: String, kind: UplinkKind) -> Option<Peer> {
    table.check_known_keys(keys::PEER);
    if kind.is_vxlan() && !table.has("address") {
        table.report_missing("address", "address = \"192.0.2.2\" (the peer's, as this host reaches it)");
    }
    let listed: Vec<Segment> =
        table.integers("segments", &SEGMENT).into_iter().filter_map(Segment::new).collect();
    let peer = Peer {
        name,
        address: None,
        // An unreadable list is reported; it is no empty one.
        segments: Some(listed).filter(|listed| !listed.is_empty() || table.is_empty_list("segments")),
        latency: table.text("latency", A_DURATION, Nanos::new(0)),
        arrival_budget: table.text("arrival-budget", A_DURATION, default_arrival_budget()),
        stamps: table.boolean("stamps").unwrap_or(kind.is_vxlan()),
    };
    match table.text::<Address>("address", AN_ADDRESS, Address(None)) {
        Some(Address(address)) => Some(Peer { address: Some(address?), ..peer }),
        None if kind.is_vxlan() => None,
        None => Some(peer),
    }
}

/// Returns `None` if `id` is no segment, which the caller reports.
pub(super) fn read_keys(table: &Table<'_>, id: &str) -> Option<SegmentKeys> {
    table.check_known_keys(keys::SEGMENT);
    if !table.has("key-file") && !table.has("key") {
        table.report_missing("key-file", "key-file = \"/etc/tidegate/keys/42\" (32 hex digits, mode 0600)");
    }
    let from_controller = table.text::<FromController>("key", "\"controller\"", FromController).is_some();
    if from_controller && table.has("key-file") {
        table.report("key", "key-file stands beside it, and a segment has its key from one source; keep one");
    }
    let path = |key| table.text::<PathBuf>(key, "an absolute path", "/stand-in".into());
    let keys = SegmentKeys {
        segment: id.parse().ok()?,
        key_file: if from_controller { None } else { path("key-file").or_else(|| Some("/stand-in".into())) },
        next_key_file: path("next-key-file"),
    };
    table.report_problems(keys.check());
    Some(keys)
}

/// The word for keys that the network's controller gives.
struct FromController;

impl FromStr for FromController {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let error = || format!("{text:?} gives no keys; write \"controller\", or key-file = FILE instead");
        (text == "controller").then_some(Self).ok_or_else(error)
    }
}

/// An IP address; `None` stands for an unreadable one.
pub(super) struct Address(pub Option<IpAddr>);

impl FromStr for Address {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let error =
            |_| format!("{text:?} is not an IP address; write one such as \"192.0.2.1\" or \"2001:db8::1\"");
        text.parse().map(|address| Self(Some(address))).map_err(error)
    }
}

impl FromStr for UplinkKind {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.iter().find(|(name, _)| *name == text);
        known
            .map(|(_, kind)| *kind)
            .ok_or_else(|| format!("{text:?} is no kind of uplink; write \"vxlan\", \"packet\" or \"xdp\""))
    }
}

struct Text(String);

impl FromStr for Text {
    type Err = std::convert::Infallible;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bytes, Document, Envelope, Errors, parse};

    fn messages(text: &str) -> Vec<String> {
        let Errors(errors) = parse(text, "t.toml").expect_err(text);
        errors.iter().map(|e| format!("{}: {}", e.key, e.message)).collect()
    }

    #[test]
    fn reads_uplinks_remotes_and_keys() {
        let text = r#"
[uplink.net0]
local   = "192.0.2.1"
device  = "eth0"
port    = 4790
notice-port = 4791
rate    = "10gbit"
mtu     = 9000
latency = "100us"
arrival-budget = "400us"

[uplink.net0.peer."host.2"]
address = "192.0.2.2"
segments = [42, 43]
latency = "150us"
arrival-budget = "300us"
stamps = false

[uplink.net6]
local = "2001:db8::1"
rate = "1gbit"
peer.host3.address = "2001:db8::3"

[remote.plc9]
mac = "52:54:00:00:00:09"
segment = 42
peer = "host.2"
tx = { max = "10mbit", burst = "4kB" }
deadline = "500us"
to = ["plc1"]

[segment.42]
key-file = "/etc/tidegate/keys/42"
next-key-file = "/etc/tidegate/keys/42.next"
"#;
        let document = parse(text, "net.toml").unwrap_or_else(|errors| panic!("{errors}"));
        let [net0, net6] = document.uplinks.as_slice() else { panic!("two uplinks") };
        let segment = |id| Segment::new(id).expect("in range");
        let us = |us: u64| Nanos::new(us * 1000);
        let host2 = Peer {
            name: "host.2".into(),
            address: Some([192, 0, 2, 2].into()),
            segments: Some(vec![segment(42), segment(43)]),
            latency: Some(us(150)),
            arrival_budget: Some(us(300)),
            stamps: false,
        };
        let wanted = Uplink {
            name: "net0".into(),
            kind: UplinkKind::Vxlan,
            local: Some([192, 0, 2, 1].into()),
            device: Some("eth0".into()),
            port: 4790,
            notice_port: 4791,
            rate: Rate::from_bits(10_000_000_000).expect("in range"),
            mtu: 9000,
            latency: Some(us(100)),
            arrival_budget: us(400),
            peers: vec![host2],
            rdma: None,
            controlled: false,
        };
        assert_eq!((net0.line, &net0.value), (2, &wanted));
        let Uplink { device, port, mtu, latency, arrival_budget, peers, .. } = &net6.value;
        assert_eq!((device, *port, *mtu, latency, *arrival_budget), (&None, 4789, 1500, &None, us(500)));
        assert_eq!((peers[0].segments.as_ref(), peers[0].latency, peers[0].stamps), (None, None, true));
        let remote = &document.remotes[0];
        let tx = Envelope { max: Rate::from_bits(10_000_000), burst: Some(Bytes::new(4000)) };
        assert_eq!((remote.place().as_str(), remote.value.tx), ("net.toml:24", tx));
        assert_eq!(
            (remote.value.deadline, remote.value.to.as_slice()),
            (Some(us(500)), &["plc1".to_owned()][..])
        );
        let keys = &document.segments[0].value;
        assert_eq!(
            (keys.segment, keys.key_file.as_deref()),
            (segment(42), Some(std::path::Path::new("/etc/tidegate/keys/42")))
        );
        let json = serde_json::to_string(&document).expect("serialises");
        assert_eq!(serde_json::from_str::<Document>(&json).expect("parses"), document);
        let old = r#"{"host":null,"vnics":[]}"#;
        assert_eq!(serde_json::from_str::<Document>(old).expect("an older release's"), Document::default());
        assert_eq!(
            serde_json::to_string(&Document::default()).expect("serialises"),
            old,
            "and it reads ours"
        );
    }

    #[test]
    fn reads_plain_nics() {
        let text = "[uplink.net0]\nkind = \"packet\"\ndevice = \"eth0\"\nrate = \"10gbit\"\npeer.lan.segments = [1, 4094]\n\
                    [uplink.net1]\nkind = \"xdp\"\ndevice = \"eth1\"\nrate = \"10gbit\"\npeer.lan1.segments = [42]\n";
        let document = parse(text, "net.toml").unwrap_or_else(|errors| panic!("{errors}"));
        let kinds = document.uplinks.iter().map(|uplink| uplink.value.kind);
        assert_eq!(kinds.collect::<Vec<_>>(), [UplinkKind::Packet, UplinkKind::Xdp]);
        let Uplink { local, device, peers, .. } = &document.uplinks[0].value;
        assert_eq!((local, device.as_deref()), (&None, Some("eth0")));
        assert_eq!((peers[0].name.as_str(), peers[0].address, peers[0].stamps), ("lan", None, false));
        let json = serde_json::to_string(&document).expect("serialises");
        assert_eq!(serde_json::from_str::<Document>(&json).expect("parses"), document);
    }

    /// Bad uplinks, remotes and keys: each line, and its one error.
    #[test]
    fn refuses_bad_uplinks_and_remotes() {
        let peer = "[uplink.net0.peer.b]\n";
        let v4 = "[uplink.net0]\nlocal = \"192.0.2.1\"\nrate = \"1gbit\"\n";
        let v6 = "[uplink.net0]\nlocal = \"2001:db8::1\"\nrate = \"1gbit\"\n";
        let b = "[uplink.net0.peer.b]\naddress = \"192.0.2.2\"\n";
        let remote = "[remote.r]\nmac = \"52:54:00:00:00:09\"\nsegment = 1\npeer = \"b\"\n";
        let keys = "[segment.42]\n";
        let nic = "[uplink.net0]\nkind = \"packet\"\ndevice = \"eth0\"\nrate = \"1gbit\"\n";
        let lan = "[uplink.net0.peer.lan]\nsegments = [42]\n";
        let in_lan = format!("{nic}{lan}");
        let cases = [
            (v4, "kind = \"vlan\"", "uplink.net0.kind: \"vlan\" is no kind of uplink"),
            (nic, "", "uplink.net0.peer: a plain NIC has one peer"),
            (
                &format!("{in_lan}[uplink.net0.peer.b]\n"),
                "segments = [43]",
                "uplink.net0.peer: a plain NIC has one",
            ),
            (nic, "peer.lan = {}", "uplink.net0.peer.lan.segments: missing"),
            (nic, "peer.lan.segments = [4095]", "uplink.net0.peer.lan.segments: 4095 is no VLAN; 1 to 4094"),
            (nic, "peer.lan.segments = [0]", "uplink.net0.peer.lan.segments: 0 is no VLAN; 1 to 4094"),
            (
                &in_lan,
                "address = \"192.0.2.2\"",
                "uplink.net0.peer.lan.address: has no effect with kind = \"packet\"",
            ),
            (
                &in_lan,
                "stamps = true",
                "uplink.net0.peer.lan.stamps: frames that leave by a plain NIC carry no stamp",
            ),
            (
                &in_lan.replace("\"packet\"", "\"xdp\"").replace("rate", "mtu = 3501\nrate"),
                "",
                "uplink.net0.mtu: 3501 is out of range; 576 to 3500",
            ),
            (nic, "port = 4789\npeer.lan.segments = [42]", "uplink.net0.port: has no effect with kind"),
            (
                nic,
                "local = \"192.0.2.1\"\npeer.lan.segments = [42]",
                "uplink.net0.local: has no effect with kind",
            ),
            (
                "[uplink.net0]\nkind = \"xdp\"\nrate = \"1gbit\"\npeer.lan.segments = [42]",
                "",
                "uplink.net0.device: missing; write device = \"eth0\"",
            ),
            (
                "[uplink.net0]\nrate = \"1gbit\"",
                "",
                "uplink.net0.local: missing; write local = \"192.0.2.1\"",
            ),
            (
                "[uplink.net0]\nlocal = \"192.0.2.1\"",
                "",
                "uplink.net0.rate: missing; write rate = \"10gbit\"",
            ),
            (
                "[uplink.net0]\nlocal = \"eth0\"\nrate = \"1gbit\"",
                "",
                "uplink.net0.local: \"eth0\" is not an IP address",
            ),
            (
                "[uplink.net0]\nlocal = \"224.0.0.1\"\nrate = \"1gbit\"",
                "",
                "uplink.net0.local: 224.0.0.1 is not the address of one host",
            ),
            (
                "[uplink.host]\nlocal = \"192.0.2.1\"\nrate = \"1gbit\"",
                "",
                "uplink.host.name: the name \"host\" is reserved",
            ),
            (
                "[uplink.uplink]\nlocal = \"192.0.2.1\"\nrate = \"1gbit\"",
                "",
                "uplink.uplink.name: the name \"uplink\" is reserved",
            ),
            (v4, "latancy = \"1us\"", "uplink.net0.latancy: unknown key; did you mean \"latency\"?"),
            (v4, "latency = \"2s\"", "uplink.net0.latency: 2s is out of range; 0ns to 1s"),
            (v4, "arrival-budget = \"9us\"", "uplink.net0.arrival-budget: 9us is out of range; 10us to 1s"),
            (v4, "mtu = 575", "uplink.net0.mtu: 575 is out of range; 576 to 9216"),
            (v4, "mtu = 9217", "uplink.net0.mtu: 9217 is out of range; 576 to 9216"),
            (v6, "mtu = 1279", "uplink.net0.mtu: 1279 is out of range; 1280 to 9216"),
            (v4, "port = 0", "uplink.net0.port: 0 is out of range; 1024 to 65535"),
            (v4, "notice-port = 0", "uplink.net0.notice-port: 0 is out of range; 1024 to 65535"),
            (
                v4,
                "notice-port = 4789",
                "uplink.net0.notice-port: 4789 is port, too; notices need another one",
            ),
            (v4, "device = \"a/b\"", "uplink.net0.device: \"a/b\" is not an interface name"),
            (v4, "peer = \"host2\"", "uplink.net0.peer: expected a table, found string"),
            (
                v4,
                "[uplink.net0.peer.b]",
                "uplink.net0.peer.b.address: missing; write address = \"192.0.2.2\"",
            ),
            (
                v4,
                "peer.b.address = \"192.0.2.1\"",
                "uplink.net0.peer.b.address: 192.0.2.1 is this host's own",
            ),
            (
                v4,
                "peer.b.address = \"2001:db8::2\"",
                "uplink.net0.peer.b.address: 2001:db8::2 is an IPv6 address and local 192.0.2.1 an IPv4 one",
            ),
            (
                v6,
                "peer.b.address = \"192.0.2.2\"",
                "uplink.net0.peer.b.address: 192.0.2.2 is an IPv4 address and local 2001:db8::1 an IPv6 one",
            ),
            (
                v4,
                "peer.\"b.c\".address = \"0.0.0.0\"",
                "uplink.net0.peer.b.c.address: 0.0.0.0 is not the address of one host",
            ),
            (
                v4,
                "peer.b.address = \"192.0.2.2\"\npeer.c.address = \"192.0.2.2\"",
                "uplink.net0.peer.c.address: 192.0.2.2 is another peer's",
            ),
            (
                v4,
                "peer._b.address = \"192.0.2.2\"",
                "uplink.net0.peer._b.name: \"_b\" is not a valid name of a peer",
            ),
            (
                &format!("{v4}{b}"),
                "segments = []",
                "uplink.net0.peer.b.segments: no segment is listed; leave it out",
            ),
            (&format!("{v4}{b}"), "segments = [7, 7]", "uplink.net0.peer.b.segments: 7 is listed twice"),
            (
                &format!("{v4}{b}"),
                "segments = [16777216]",
                "uplink.net0.peer.b.segments: 16777216 is out of range",
            ),
            (
                &format!("{v4}{b}"),
                "stamp = true",
                "uplink.net0.peer.b.stamp: unknown key; did you mean \"stamps\"?",
            ),
            (
                &format!("{v4}{b}"),
                "latency = \"1001ms\"",
                "uplink.net0.peer.b.latency: 1001ms is out of range",
            ),
            (remote, "macc = 1", "remote.r.macc: unknown key; did you mean \"mac\"?"),
            (remote, "tx.min = \"1mbit\"", "remote.r.tx.min: unknown key"),
            (remote, "to = [\"a\"]", "remote.r.to: only a deadline holds somewhere"),
            (
                remote,
                "deadline = \"1ms\"\ntx = { max = \"1mbit\", burst = \"2kB\" }",
                "remote.r.deadline: a deadline needs `to`",
            ),
            (
                remote,
                "deadline = \"1ms\"\ntx = { max = \"1mbit\" }\nto = [\"a\"]",
                "remote.r.deadline: a deadline needs `tx.burst`",
            ),
            (
                remote,
                "deadline = \"1ms\"\ntx = { burst = \"2kB\" }\nto = [\"a\"]",
                "remote.r.deadline: a deadline needs `tx.max`",
            ),
            (
                remote,
                "deadline = \"9us\"\ntx = { max = \"1mbit\", burst = \"2kB\" }\nto = [\"a\"]",
                "remote.r.deadline: 9us is out of range",
            ),
            (
                "[remote.r]\nmac = \"52:54:00:00:00:09\"\nsegment = 1",
                "",
                "remote.r.peer: missing; write peer = \"host2\"",
            ),
            (keys, "", "segment.42.key-file: missing; write key-file"),
            (
                keys,
                "key = \"00112233445566778899aabbccddeef0\"",
                "segment.42.key: \"00112233445566778899aabbccddeef0\" gives no keys",
            ),
            (
                keys,
                "key = \"controller\"\nkey-file = \"/keys/42\"",
                "segment.42.key: key-file stands beside it",
            ),
            (
                keys,
                "key = \"controller\"\nnext-key-file = \"/keys/43\"",
                "segment.42.next-key-file: the controller gives the next key, too",
            ),
            (keys, "key-file = \"keys/42\"", "segment.42.key-file: expected the absolute path of a file"),
            (keys, "key-file = \"/keys/../42\"", "segment.42.key-file: write the path without"),
            (
                keys,
                "key-file = \"/keys/42\"\nnext-key-file = \"/keys/42\"",
                "segment.42.next-key-file: this is key-file, too",
            ),
            (
                "[segment.16777216]",
                "key-file = \"/keys/42\"",
                "segment.16777216: segment 16777216 is out of range",
            ),
            ("[segment.x]", "key-file = \"/keys/42\"", "segment.x: \"x\" is not a segment"),
            ("[uplinks.net0]", "", "uplinks: unknown key; did you mean \"uplink\"?"),
        ];
        for (before, line, wanted) in cases {
            let text = format!("{before}\n{line}");
            let found = messages(&text);
            assert!(found.len() == 1 && found[0].starts_with(wanted), "{text}: {found:#?}");
        }
        let many: String = (0..65).map(|n| format!("peer.p{n}.address = \"192.0.2.{}\"\n", n + 2)).collect();
        assert_eq!(messages(&format!("{v4}{many}")), ["uplink.net0.peer: 65 are listed; at most 64"]);
        assert_eq!(messages(&format!("{peer}address = \"x\"")).len(), 3, "local and rate are missing, too");
        let error = parse(&format!("{v4}\n{b}segments = [7, 7]"), "net.toml").expect_err("twice").to_string();
        assert!(error.starts_with("net.toml:7:12: uplink.net0.peer.b.segments: "), "{error}");
    }
}
