//! Refusals of uplinks, peers and remotes, and what is not refused.

use crate::{Document, Located, check_set, merge, parse};

const NET: &str = "\
[uplink.net0]
local = \"192.0.2.1\"
rate = \"10gbit\"
latency = \"100us\"
peer.host2 = { address = \"192.0.2.2\", segments = [42, 43] }

[remote.plc9]
mac = \"52:54:00:00:00:09\"
segment = 42
peer = \"host2\"
tx = { max = \"10mbit\", burst = \"4kB\" }
deadline = \"2ms\"
to = [\"plc1\"]

[segment.42]
key-file = \"/etc/tidegate/keys/42\"
";
const VNIC: &str = "\
[vnic.plc1]
attach = { vhost-user = \"/run/tidegate/vm/plc1.sock\" }
mac = \"52:54:00:00:00:01\"
segment = 42
tx = { max = \"10mbit\", burst = \"4kB\" }
deadline = \"2ms\"
to = [\"plc9\", \"uplink\"]
mtu = 1418
";

/// Merges two files, after a replacement in each.
fn merged(net: (&str, &str), vnic: (&str, &str)) -> Result<Document, String> {
    assert!(NET.contains(net.0) && VNIC.contains(vnic.0), "{net:?} {vnic:?}");
    let net = parse(&NET.replace(net.0, net.1), "net.toml").map_err(|e| format!("unparsed: {e}"))?;
    let vnic = parse(&VNIC.replace(vnic.0, vnic.1), "plc.toml").map_err(|e| format!("unparsed: {e}"))?;
    merge(vec![net, vnic]).map_err(|e| e.to_string())
}

#[test]
fn what_stands_in_two_files_is_checked_together() {
    let all = merged(("", ""), ("", "")).expect("valid");
    assert_eq!((all.uplinks.len(), all.remotes.len(), all.segments.len(), all.vnics.len()), (1, 1, 1, 1));
    let document = parse(NET, "net.toml").expect("valid");
    let refused = check_set(&document).expect_err("plc1 is missing").to_string();
    assert_eq!(refused, "net.toml:7: remote.plc9.to: there is no vNIC \"plc1\" on this host");
}

#[test]
fn refusals_name_both_places_and_the_remedy() {
    let none = ("", "");
    for (net, vnic, wanted) in [
        (
            none,
            ("[vnic.plc1]", "[vnic.net0]"),
            "net.toml:1: uplink.net0: the name net0 is taken by vNIC net0 at plc.toml:1; vNICs, uplinks and remotes",
        ),
        (
            ("[remote.plc9]", "[remote.net0]"),
            none,
            "net.toml:7: remote.net0: the name net0 is taken by [uplink.net0] at net.toml:1",
        ),
        (
            ("peer = \"host2\"", "peer = \"host3\""),
            none,
            "net.toml:7: remote.plc9.peer: no uplink has a peer \"host3\"; did you mean \"host2\"?",
        ),
        (
            ("[42, 43]", "[43]"),
            none,
            "net.toml:7: remote.plc9.peer: segment 42 does not reach peer host2 of uplink net0 at net.toml:1, \
                 whose segments are 43; add it there",
        ),
        (
            ("\"52:54:00:00:00:09\"", "\"52:54:00:00:00:01\""),
            none,
            "net.toml:7: remote.plc9.mac: 52:54:00:00:00:01 is already taken in segment 42, by vNIC plc1 at \
                 plc.toml:1; a MAC may appear once in a segment, on all hosts",
        ),
        (
            none,
            ("mtu = 1418", "mtu = 1418\nallowed.macs = [\"52:54:00:00:00:09\"]"),
            "net.toml:7: remote.plc9.mac: 52:54:00:00:00:09 is already taken in segment 42, by vNIC plc1",
        ),
        (
            ("deadline = \"2ms\"", "deadline = \"500us\""),
            none,
            "net.toml:7: remote.plc9.deadline: 500us is not more than the arrival-budget of 500us of uplink net0",
        ),
        (
            ("[\"plc1\"]", "[\"plc11\"]"),
            none,
            "net.toml:7: remote.plc9.to: there is no vNIC \"plc11\" on this host; did you mean \"plc1\"?",
        ),
        (
            none,
            ("segment = 42", "segment = 43"),
            "net.toml:7: remote.plc9.to: plc1 is in segment 43 and this remote in segment 42",
        ),
        (
            none,
            ("segment = 42", "segment = 43"),
            "plc.toml:1: vnic.plc1.to: plc9 is in segment 42 and this vNIC in segment 43; frames never cross",
        ),
        (
            none,
            ("{ vhost-user = \"/run/tidegate/vm/plc1.sock\" }", "{ netdev = \"eth0\" }"),
            "plc.toml:1: vnic.plc1.to: plc9 is on another host, which vhost-user and tap attachments reach",
        ),
        (
            none,
            ("{ vhost-user = \"/run/tidegate/vm/plc1.sock\" }", "{ netdev = \"eth0\" }"),
            "net.toml:7: remote.plc9.to: plc1 is no vhost-user or tap attachment",
        ),
        (
            none,
            ("\"plc9\"", "\"plc8\""),
            "plc.toml:1: vnic.plc1.to: there is no vNIC or remote \"plc8\"; did you mean \"plc9\"?",
        ),
        (
            none,
            ("\"plc9\"", "\"net0\""),
            "plc.toml:1: vnic.plc1.to: net0 is an uplink; write \"uplink\" for every host",
        ),
        (
            none,
            ("mtu = 1418", "mtu = 1419"),
            "plc.toml:1: vnic.plc1.mtu: 1419 does not fit uplink net0 at net.toml:1, which carries packets of 1500 \
                 bytes, 82 of them around the guest's (20 IPv4, 8 UDP, 8 VXLAN, 14 Ethernet, 32 stamp): write \
                 mtu = 1418 here and set it in the guest, or mtu = 1501 there if the path carries that",
        ),
        (
            none,
            ("mtu = 1418", "mtu = 1415\nallowed.vlans = [7]"),
            "plc.toml:1: vnic.plc1.mtu: 1415 does not fit uplink net0 at net.toml:1, which carries packets of 1500 \
                 bytes, 86 of them around the guest's (20 IPv4, 8 UDP, 8 VXLAN, 14 Ethernet, 4 VLAN tag, 32 stamp)",
        ),
    ] {
        let refused = merged(net, vnic).expect_err(wanted);
        assert!(refused.contains(wanted), "{wanted}\n{refused}");
    }
    // Only to a peer that stamps, of its own segment, at the host switch, a frame grows by a stamp.
    for (net, vnic, fits) in
        [(("[42, 43] }", "[42, 43], stamps = false }"), "", 1450), (("", ""), "\nqueues = 1", 1418)]
    {
        for (mtu, is_fitting) in [(fits, true), (fits + 1, false)] {
            let merged = merged(net, ("mtu = 1418", &format!("mtu = {mtu}{vnic}")));
            assert_eq!(merged.is_ok(), is_fitting, "{mtu}: {merged:?}");
        }
    }
    assert!(merged(("segments = [42, 43]", "segments = [43]"), ("mtu = 1418", "mtu = 9000")).is_err());
}

#[test]
fn of_plain_nics() {
    let nic = |name: &str, vlan| {
        format!(
            "[uplink.{name}]\nkind = \"packet\"\ndevice = \"eth0\"\nrate = \"1gbit\"\n\
                 peer.lan-{name} = {{ segments = [{vlan}] }}\n"
        )
    };
    let refused = |text: &str| {
        let document = parse(text, "t.toml").unwrap_or_else(|e| panic!("{e}"));
        check_set(&document).expect_err("refused").to_string()
    };
    let device = refused(&format!("{}{}", nic("net0", 42), nic("net1", 43)));
    let wanted =
        "t.toml:6: uplink.net1.device: eth0 already belongs to uplink net0 at t.toml:1; list all VLANs";
    assert!(device.contains(wanted), "{device}");
    let vnic =
        "[vnic.a]\nattach.tap = \"t\"\nmac = \"52:54:00:00:00:01\"\nsegment = 42\nallowed.vlans = [7]\n";
    let tagged = refused(&format!("{}{vnic}", nic("net0", 42)));
    assert!(tagged.contains("vnic.a.allowed.vlans: uplink net0 at t.toml:1 tags frames"), "{tagged}");
    let elsewhere = parse(&format!("{}{vnic}", nic("net0", 43)), "t.toml").expect("parses");
    assert_eq!(check_set(&elsewhere), Ok(()));
}

#[test]
fn of_two_uplinks() {
    let twice = |from: &str, to: &str| {
        let text =
            format!("{NET}{}", NET.split("[remote").next().expect("an uplink").replace("net0", "net1"));
        let second = text.rfind(from).expect(from);
        let text = format!("{}{to}{}", &text[..second], &text[second + from.len()..]);
        let document = parse(&format!("{text}{VNIC}"), "t.toml").unwrap_or_else(|e| panic!("{e}"));
        check_set(&document).expect_err("refused").to_string()
    };
    let port =
        "t.toml:17: uplink.net1.port: UDP port 4789 of 192.0.2.1 already belongs to uplink net0 at t.toml:1";
    let notices = "uplink.net1.notice-port: UDP port 29796 of 192.0.2.1 already belongs to uplink net0";
    assert!(twice("peer.host2", "peer.host3").contains(notices), "{}", twice("peer.host2", "peer.host3"));
    let peer = "t.toml:17: uplink.net1.peer.host2: peer host2 is already one of uplink net0 at t.toml:1";
    assert!(twice("peer.host2", "peer.host3").contains(port), "{}", twice("peer.host2", "peer.host3"));
    assert!(
        twice("\"192.0.2.1\"", "\"192.0.2.7\"").contains(peer),
        "{}",
        twice("\"192.0.2.1\"", "\"192.0.2.7\"")
    );
    let document = parse(NET, "net.toml").expect("valid");
    let uplink = document.uplinks[0].clone();
    let many = Document { uplinks: vec![uplink; 17], ..Document::default() };
    assert!(
        check_set(&many).expect_err("too many").to_string().contains("17 uplinks are defined; at most 16")
    );
    let keys = Document { segments: vec![document.segments[0].clone(); 2], ..Document::default() };
    let refused = check_set(&keys).expect_err("twice").to_string();
    assert_eq!(refused, "net.toml:15: segment.42: this segment is already defined at net.toml:15");
    let remotes = vec![document.remotes[0].clone(), Located { line: 99, ..document.remotes[0].clone() }];
    let refused = check_set(&Document { remotes, ..Document::default() }).expect_err("twice").to_string();
    assert!(
        refused.contains("net.toml:99: remote.plc9.mac: 52:54:00:00:00:09 is already taken"),
        "{refused}"
    );
}

/// The largest set is checked at once: a search for each name took minutes.
#[test]
fn the_most_remotes_and_names_are_checked_at_once() {
    let document = parse(NET, "net.toml").expect("valid");
    let remote = |i: u32| {
        let mut remote = document.remotes[0].clone();
        (remote.value.name, remote.value.to, remote.value.deadline) = (format!("r{i}"), Vec::new(), None);
        let [_, a, b, c] = i.to_be_bytes();
        remote.value.mac = crate::Mac([2, 0, 0, a, b, c]);
        remote
    };
    let vnic = |i: usize| {
        let mut vnic = crate::testing::vnic(&format!("v{i}"));
        (vnic.segment, vnic.mtu) = (document.remotes[0].value.segment, 1400);
        vnic.to = (0..64).map(|n| format!("r{}", 16_000 + n)).collect();
        Located { value: vnic, file: "many.toml".into(), line: i }
    };
    let many = Document {
        remotes: (0..16_384).map(remote).collect(),
        vnics: (0..8_192).map(vnic).collect(),
        ..document.clone()
    };
    let begin = std::time::Instant::now();
    check_set(&many).expect("valid");
    assert!(begin.elapsed().as_secs() < 30, "{:?}", begin.elapsed());
}
