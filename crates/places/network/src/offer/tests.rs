use super::*;
use proptest::prelude::*;
use tidegate_contract::controller::Identity;
use tidegate_contract::{merge, testing};

fn controller() -> Controller {
    Controller {
        urls: vec!["http://127.0.0.1:6654".into()],
        host: "h1".into(),
        identity: Identity::Token { file: "/etc/token".into() },
        uplinks: vec!["net0".into()],
    }
}

fn uplink() -> Uplink {
    Uplink { peers: vec![], controlled: true, ..testing::uplink("net0") }
}

fn host(name: &str, address: &str) -> api::Peer {
    let (host, address) = (name.to_owned(), address.parse().expect("an address"));
    api::Peer { host, address, port: 4789, segments: vec![1], arrival_budget: 500_000 }
}

fn vnic(name: &str, number: u8, to: &[&str]) -> api::Remote {
    let vnic = Announced {
        name: name.into(),
        mac: format!("52:54:00:00:00:{number:02x}"),
        segment: 1,
        addresses: vec![],
        rate: Some(10_000_000),
        burst: Some(4000),
        deadline: (!to.is_empty()).then_some(2_000_000),
        to: to.iter().map(|to| (*to).to_owned()).collect(),
    };
    api::Remote { vnic, host: "h2".into(), plain: false }
}

fn view(peers: Vec<api::Peer>, remotes: Vec<api::Remote>) -> View {
    View { version: 1, term: 1, lease: 1, peers, remotes, paths: vec![], refused: vec![] }
}

fn told(view: &View) -> (Document, BTreeMap<String, String>) {
    let sink = testing::vnic("sink");
    let offer = offer(view, true, &controller(), &[uplink()], &[&sink]);
    (offer.document, offer.left_out)
}

#[test]
fn hosts_are_peers_and_their_vnics_remotes() {
    let view = view(
        vec![host("h2", "192.0.2.9")],
        vec![vnic("b1", 1, &["sink", "elsewhere"]), vnic("b0", 2, &["elsewhere"])],
    );
    let (document, left_out) = told(&view);
    assert_eq!(left_out, BTreeMap::new());
    let GivenPeer { uplink, peer } = &document.peers[0].value;
    assert_eq!((uplink.as_str(), peer.name.as_str(), peer.stamps), ("net0", "h2", true));
    let [b0, b1] = document.remotes.as_slice() else { panic!("two remotes: {document:?}") };
    assert_eq!((b0.value.name.as_str(), b0.value.deadline, b0.value.tx), ("b0", None, Envelope::default()));
    assert_eq!((b1.value.to.as_slice(), b1.value.peer.as_str()), (&["sink".to_owned()][..], "h2"));
    assert_eq!(b1.value.deadline, Some(Nanos::new(2_000_000)));
}

/// A case, what it changes in a View, the table that is left out, and the reason.
type Case = (&'static str, fn(&mut View), &'static str, &'static str);

#[test]
fn one_that_is_wrong_is_left_out_and_stops_no_other() {
    let good = || view(vec![host("h2", "192.0.2.9")], vec![vnic("b1", 1, &["sink"])]);
    let cases: [Case; 13] = [
        ("own address", |v| v.peers.push(host("h3", "192.0.2.1")), "[peer.h3]", "is this host's own"),
        (
            "family",
            |v| v.peers.push(host("h3", "2001:db8::1")),
            "[peer.h3]",
            "no uplink of [controller] has an IPv6",
        ),
        ("a group", |v| v.peers.push(host("h3", "224.0.0.1")), "[peer.h3]", "is not the address of one host"),
        ("a name", |v| v.peers.push(host("h 3\n", "192.0.2.8")), "[peer.h 3\n]", "is not a valid name"),
        (
            "a port",
            |v| v.peers.push(api::Peer { port: 1, ..host("h3", "192.0.2.8") }),
            "[peer.h3]",
            "UDP port 1",
        ),
        (
            "a budget",
            |v| v.peers.push(api::Peer { arrival_budget: u64::MAX, ..host("h3", "192.0.2.8") }),
            "[peer.h3]",
            "arrival-budget",
        ),
        (
            "no segment",
            |v| v.peers.push(api::Peer { segments: vec![], ..host("h3", "192.0.2.8") }),
            "[peer.h3]",
            "segments",
        ),
        ("twice", |v| v.peers.push(host("h2", "192.0.2.8")), "[peer.h2]", "told twice"),
        ("an own vNIC", |v| v.remotes.push(vnic("sink", 9, &[])), "[remote.sink]", "is a vNIC of this host"),
        (
            "no host",
            |v| v.remotes.push(api::Remote { host: "h9".into(), ..vnic("c1", 9, &[]) }),
            "[remote.c1]",
            "its host h9 is no peer",
        ),
        ("a name", |v| v.remotes.push(vnic("uplink", 9, &[])), "[remote.uplink]", "reserved"),
        (
            "a MAC",
            |v| {
                v.remotes.push(vnic("c1", 9, &[]));
                v.remotes[1].vnic.mac = "01:00:5e:00:00:01".into();
            },
            "[remote.c1]",
            "mac",
        ),
        (
            "a deadline without a rate",
            |v| {
                v.remotes.push(vnic("c1", 9, &["sink"]));
                v.remotes[1].vnic.rate = None;
            },
            "[remote.c1]",
            "a deadline needs `tx.max`",
        ),
    ];
    for (case, change, what, wanted) in cases {
        let mut view = good();
        change(&mut view);
        let (document, left_out) = told(&view);
        assert_eq!((document.peers.len(), document.remotes.len()), (1, 1), "{case}: {document:?}");
        assert!(left_out.get(what).is_some_and(|why| why.contains(wanted)), "{case}: {left_out:?}");
    }
}

prop_compose! {
    fn any_view()(
        peers in prop::collection::vec((any::<[u8; 4]>(), "[a-z\\.\n]{0,4}", any::<u16>(), prop::collection::vec(any::<u32>(), 0..3), any::<u64>()), 0..80),
        remotes in prop::collection::vec(("[a-z_]{0,3}", "([0-9a-f]{2}:){5}[0-9a-f]{2}|x", 0u32..3, any::<(Option<u64>, Option<u64>, Option<u64>)>(),
            prop::collection::vec("sink|[a-z]{1,2}", 0..3)), 0..20),
    ) -> View {
        let peers = peers.into_iter().map(|(address, host, port, segments, arrival_budget)| {
            api::Peer { host, address: address.into(), port: if port % 2 == 0 { 4789 } else { port }, segments, arrival_budget }
        }).chain([host("h2", "192.0.2.9")]).collect();
        let remotes = remotes.into_iter().map(|(name, mac, segment, (rate, burst, deadline), to)| {
            let vnic = Announced { name, mac, segment, addresses: vec![], rate, burst, deadline, to };
            api::Remote { vnic, host: "h2".into(), plain: false }
        }).collect();
        view(peers, remotes)
    }
}

proptest! {
    /// Whatever a controller says: each table that is offered keeps the rules of tables, and none is one of this host.
    #[test]
    fn what_is_offered_keeps_the_rules(view in any_view()) {
        let (document, _) = told(&view);
        prop_assert!(document.peers.len() <= PEERS);
        for located in &document.remotes {
            prop_assert_eq!(located.value.check(), Ok(()));
            prop_assert_ne!(&located.value.name, "sink");
            prop_assert!(located.value.to.iter().all(|to| to == "sink"));
        }
        for located in &document.peers {
            let mut uplink = uplink();
            uplink.peers.push(located.value.peer.clone());
            prop_assert_eq!(uplink.check(), Ok(()));
        }
        let again = told(&View { peers: view.peers.iter().rev().cloned().collect(), ..view.clone() });
        let names = |document: &Document| document.peers.iter().map(|p| p.value.peer.name.clone()).collect::<Vec<_>>();
        if view.peers.len() <= PEERS {
            prop_assert_eq!(names(&document), names(&again.0));
        }
        // One by itself never needs another.
        for located in document.peers {
            let own = Document { uplinks: vec![Located::without_line(uplink(), "a")], ..Document::default() };
            let one = Document { peers: vec![located], ..Document::default() };
            prop_assert!(merge(vec![own, one]).is_ok());
        }
    }
}

#[test]
fn a_remote_behind_a_plain_nic_promises_nothing_here() {
    let mut lan =
        Uplink { kind: tidegate_contract::UplinkKind::Packet, local: None, ..testing::uplink("net0") };
    (lan.peers[0].address, lan.peers[0].stamps) = (None, false);
    lan.peers[0].segments = Segment::new(1).map(|segment| vec![segment]);
    let sink = testing::vnic("sink");
    let there = api::Remote { plain: true, ..vnic("b1", 1, &["sink"]) };
    let of = |there: &api::Remote, uplink: &Uplink| {
        let offer = offer(
            &view(vec![], vec![there.clone()]),
            true,
            &controller(),
            std::slice::from_ref(uplink),
            &[&sink],
        );
        (offer.document.remotes, offer.left_out)
    };
    let (remotes, left_out) = of(&there, &lan);
    assert_eq!(left_out, BTreeMap::new());
    let Remote { peer, deadline, to, .. } = &remotes[0].value;
    assert_eq!((peer, *deadline, to.len()), (&lan.peers[0].name, None, 0));
    for (there, uplink) in [(&there, uplink()), (&there, Uplink { name: "other".into(), ..lan.clone() })] {
        let (remotes, left_out) = of(there, &uplink);
        assert!(
            remotes.is_empty() && left_out["[remote.b1]"].contains("none of [controller] here has VLAN 1")
        );
    }
    let mut other = there;
    other.vnic.segment = 2;
    assert!(of(&other, &lan).1["[remote.b1]"].contains("has VLAN 2"));
}
