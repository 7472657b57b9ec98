//! Worked examples, and senders that may do all that contracts allow.

use super::*;
use crate::controller::Identity;
use crate::{Envelope, Host, Segment, Tx, UplinkKind, admit, testing};
use proptest::{collection::vec, option, prelude::*};

fn controller(uplinks: &[&str]) -> Controller {
    Controller {
        urls: vec!["http://127.0.0.1:6654".into()],
        host: "h1".into(),
        identity: Identity::Token { file: "/t".into() },
        uplinks: uplinks.iter().map(|name| (*name).into()).collect(),
    }
}

fn urgent(name: &str, deadline: &str, to: &[&str]) -> Vnic {
    let mut vnic = testing::vnic(name);
    vnic.tx = Tx { max: "12mbit".parse().ok(), burst: "6kB".parse().ok(), ..Tx::default() };
    vnic.deadline = deadline.parse().ok();
    vnic.to = to.iter().map(|to| (*to).into()).collect();
    vnic.mtu = 1418;
    vnic.check().expect("valid");
    vnic
}

fn asked() -> Uplink {
    Uplink { latency: None, controlled: true, ..testing::uplink("net0") }
}

fn of(vnics: &[Vnic], uplinks: &[Uplink], remotes: &[Remote]) -> NetworkPaths {
    let set = ContractSet { host: &Host::default(), vnics, uplinks, remotes };
    network_paths(&set, &controller(&["net0"]), |_| 0)
}

#[test]
fn a_path_by_hand() {
    // Td 2.5 ms less 0.5 ms there: 1 ms for the network, 1 ms here. 12 Mbit/s in 1 ms: 1,500 bytes more. Frames of 60
    // bytes are 142 on the wire: 7,500 bytes are 17,750.
    let found = of(&[urgent("plc1", "2500us", &["plc9"])], &[asked()], &[testing::remote("plc9")]);
    assert_eq!(found.faults, []);
    let [terms] = &found.terms[..] else { panic!("{found:?}") };
    assert_eq!(
        (terms.name().as_str(), terms.peer.as_str(), terms.uplink.as_str()),
        ("plc1>plc9", "host2", "net0")
    );
    assert_eq!((terms.here.get(), terms.budget.get(), terms.arrival.get()), (1_000_000, 1_000_000, 500_000));
    assert_eq!((terms.burst.get(), terms.rate.bits(), terms.dscp), (17_750, 28_400_000, 46));
    assert_eq!((terms.smallest_frame.get(), terms.largest_frame.get()), (142, 1514));
    let (source, target) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
    assert_eq!(terms.seen, Seen::Outer { source, target, target_port: 4789 });
    assert_eq!(terms.budget_with(Nanos::new(600_000)), Some(Nanos::new(900_000)));
    assert_eq!(terms.budget_with(Nanos::new(100_000)), Some(Nanos::new(1_000_000)));
    assert_eq!(terms.budget_with(Nanos::new(1_500_000)), None);
    let declared = Uplink { latency: "100us".parse().ok(), ..asked() };
    let found = of(&[urgent("plc1", "2500us", &["plc9"])], &[declared], &[testing::remote("plc9")]);
    assert_eq!((found.terms[0].here.get(), found.terms[0].budget.get()), (1_900_000, 100_000));
}

#[test]
fn what_cannot_be_keyed_is_refused_with_a_reason() {
    let why = |vnics: &[Vnic], uplinks: &[Uplink], remotes: &[Remote]| {
        let found = of(vnics, uplinks, remotes);
        assert_eq!(found.terms, []);
        found.faults.into_iter().map(|fault| fault.reason).collect::<Vec<_>>().join("\n")
    };
    let remotes = [testing::remote("plc9")];
    let plc1 = || urgent("plc1", "2500us", &["plc9"]);
    let vf = crate::Attach::Vf { pf: "eth0".into(), index: 0, options: Default::default() };
    assert!(
        why(&[Vnic { attach: vf, ..plc1() }], &[asked()], &remotes)
            .starts_with("frames of an attachment of kind vf")
    );
    let everywhere = urgent("plc1", "2500us", &["uplink"]);
    assert!(why(std::slice::from_ref(&everywhere), &[asked()], &[]).contains("name the receivers"));
    assert_eq!(of(&[everywhere], &[asked()], &remotes).terms.len(), 1, "with a remote it has a pair");
    let mut unstamped = asked();
    unstamped.peers[0].stamps = false;
    assert!(why(&[plc1()], &[unstamped], &remotes).contains("has stamps = false"));
    let none = Uplink { latency: Some(Nanos::new(0)), ..asked() };
    assert!(why(&[plc1()], &[none], &remotes).starts_with("nothing of its deadline of "));
    assert_eq!(
        why(&[plc1()], &[Uplink { name: "other".into(), ..asked() }], &remotes),
        "",
        "no controller there"
    );
    let elsewhere = Remote { segment: Segment::new(9).expect("in range"), ..testing::remote("far") };
    assert_eq!(
        why(&[urgent("plc1", "1ms", &["plc2"])], &[asked()], &[elsewhere]),
        "",
        "it stays on this host"
    );
}

/// Returns an uplink by a plain NIC, with the network behind it.
fn plain() -> Uplink {
    let mut uplink = Uplink { kind: UplinkKind::Packet, local: None, device: Some("eth0".into()), ..asked() };
    (uplink.peers[0].address, uplink.peers[0].stamps) = (None, false);
    uplink.peers[0].segments = Segment::new(1).map(|segment| vec![segment]);
    uplink.check().expect("valid");
    uplink
}

#[test]
fn a_path_of_a_plain_nic_by_hand() {
    // Frames have their tag, and no stamp: 64 bytes on the wire for 60. 7,500 bytes leave at once, that is 8,000.
    let vnic = Vnic { mtu: 1500, ..urgent("plc1", "2500us", &["plc9"]) };
    let (remote, uplink) = (testing::remote("plc9"), plain());
    let found = of(std::slice::from_ref(&vnic), std::slice::from_ref(&uplink), std::slice::from_ref(&remote));
    assert_eq!(found.faults, []);
    let [terms] = &found.terms[..] else { panic!("{found:?}") };
    assert_eq!(terms.seen, Seen::Tagged { vlan: 1, source_mac: vnic.mac, target_mac: remote.mac });
    assert!(terms.ends_at_nic());
    assert_eq!((terms.here.get(), terms.budget.get(), terms.arrival.get()), (1_000_000, 1_000_000, 500_000));
    assert_eq!((terms.burst.get(), terms.rate.bits(), terms.dscp), (8000, 12_800_000, 0));
    assert_eq!((terms.smallest_frame.get(), terms.largest_frame.get()), (64, 1518));
    let written = serde_json::to_value(terms).expect("serialises");
    assert_eq!(serde_json::from_value::<PathTerms>(written).expect("parses"), *terms);
    let none = Remote { segment: Segment::new(5000).expect("in range"), ..remote.clone() };
    assert!(seen(&vnic, &uplink, &none, &uplink.peers[0]).expect_err("no VLAN").contains("5000 is no VLAN"));
}

#[test]
fn terms_of_an_earlier_release_are_read() {
    let found = of(&[urgent("plc1", "2500us", &["plc9"])], &[asked()], &[testing::remote("plc9")]);
    let written = serde_json::to_value(&found.terms[0]).expect("serialises");
    assert_eq!((&written["source"], &written["target_port"]), (&"192.0.2.1".into(), &4789.into()));
    assert_eq!(serde_json::from_value::<PathTerms>(written).expect("parses"), found.terms[0]);
}

#[test]
fn more_pairs_than_ports_are_refused() {
    let vnics: Vec<Vnic> = (0..70).map(|n| urgent(&format!("v{n:02}"), "2500us", &["plc9"])).collect();
    let found = of(&vnics, &[asked()], &[testing::remote("plc9")]);
    assert_eq!((found.terms.len(), found.faults.len()), (MOST_PAIRS, 6));
    assert!(
        found.faults[0].vnic == "v64" && found.faults[0].reason.contains("more than 64 pairs"),
        "{found:?}"
    );
    // A new pair displaces none, whatever its name.
    let (uplinks, remotes) = ([asked()], [testing::remote("plc9")]);
    let set = ContractSet { host: &Host::default(), vnics: &vnics, uplinks: &uplinks, remotes: &remotes };
    let is_new = |terms: &PathTerms| u8::from(terms.vnic.as_str() < "v06");
    let found = network_paths(&set, &controller(&["net0"]), is_new);
    let refused: Vec<&str> = found.faults.iter().map(|fault| fault.vnic.as_str()).collect();
    assert_eq!(refused, ["v00", "v01", "v02", "v03", "v04", "v05"]);
}

/// Senders in all sizes, as the controller's tests have them (`controller/tests/promised.json`): the controller checks that
/// a request is within the announcement, by the same rule.
#[test]
fn the_controller_has_the_same_rule() {
    let mut cases = Vec::new();
    let forms = [
        ("v4", None),
        ("v4", Some(70_001)),
        ("v6", None),
        ("v6", Some(1)),
        ("plain", None),
        ("plain", Some(70_001)),
    ];
    for (case, (form, latency)) in forms.into_iter().enumerate() {
        for (n, rate) in [1_000_003u64, 12_000_000, 999_999_937].into_iter().enumerate() {
            let deadline = 900_001 + 777_777 * (case + n) as u64;
            let mut vnic = urgent("plc1", &format!("{deadline}ns"), &["plc8", "plc9"]);
            let burst = vnic.largest_frame() + 997 * n as u64;
            vnic.tx = Tx { max: Rate::from_bits(rate), burst: Some(Bytes::new(burst)), ..Tx::default() };
            let mut uplink = Uplink { latency: latency.map(Nanos::new), ..asked() };
            let second = Peer {
                name: "host8".into(),
                arrival_budget: Some(Nanos::new(123_457)),
                ..uplink.peers[0].clone()
            };
            uplink.peers.push(second);
            if form == "plain" {
                (uplink.kind, uplink.local) = (UplinkKind::Packet, None);
                uplink.peers.iter_mut().for_each(|peer| (peer.address, peer.stamps) = (None, false));
            }
            if form == "v6" {
                uplink.local = "2001:db8::1".parse().ok();
                uplink.peers.iter_mut().for_each(|peer| peer.address = "2001:db8::2".parse().ok());
            }
            let remotes =
                [testing::remote("plc9"), Remote { peer: "host8".into(), ..testing::remote("plc8") }];
            for terms in of(std::slice::from_ref(&vnic), &[uplink], &remotes).terms {
                for more in [0, 100_003] {
                    // Behind a plain NIC there is no word about the arrival.
                    let arrival = if terms.ends_at_nic() { 0 } else { terms.arrival.get() + more };
                    let Some(budget) = terms.budget_with(Nanos::new(arrival)) else { continue };
                    let source = match terms.seen {
                        Seen::Outer { source, .. } => Some(source),
                        Seen::Tagged { .. } => None,
                    };
                    cases.push(serde_json::json!({
                        "announced": {"rate": rate, "burst": burst, "deadline": deadline}, "arrival": arrival,
                        "remote": terms.remote, "source": source, "rate": terms.rate.bits(), "burst": terms.burst.get(),
                        "smallest_frame": terms.smallest_frame.get(), "largest_frame": terms.largest_frame.get(),
                        "budget": budget.get(),
                    }));
                }
            }
        }
    }
    let lines: Vec<String> = cases.iter().map(ToString::to_string).collect();
    let found = format!("[\n{}\n]\n", lines.join(",\n"));
    let there = include_str!("../../../../controller/tests/promised.json");
    assert!(found == there, "controller/tests/promised.json is to have:\n{found}");
}

/// Frames as a sender may send them: payload, time until the next is wanted (ns), part of d that it is held (per mille).
type Frames = Vec<(u64, u64, u64)>;

/// Returns when each frame leaves (ns) and its bytes on the wire, by a token bucket in nanobits.
fn sent(vnic: &Vnic, added: u64, here: u64, frames: &Frames) -> Vec<(u64, u64)> {
    let rate = u128::from(vnic.tx.max.expect("a rate").bits());
    let full = u128::from(vnic.tx.burst.expect("a burst").get()) * 8 * 1_000_000_000;
    let (mut now, mut tokens) = (0u64, full);
    let mut left = Vec::new();
    for (size, pause, held) in frames {
        let size = 14 + size % (vnic.largest_frame() - 13);
        let needed = u128::from(size.max(SMALLEST_FRAME)) * 8 * 1_000_000_000;
        let wait = u64::try_from(needed.saturating_sub(tokens).div_ceil(rate)).expect("a short time");
        now += wait;
        tokens = full.min(tokens + rate * u128::from(wait)) - needed;
        left.push((now + here * (held % 1001) / 1000, size + added));
        now += pause;
        tokens = full.min(tokens + rate * u128::from(*pause));
    }
    left.sort_unstable();
    left
}

proptest! {
    /// The parts never exceed Td, and what admission gives this host is d.
    #[test]
    fn the_parts_never_exceed_the_deadline(
        deadlines in vec(10_000u64..20_000_000, 1..4),
        latency in option::of(0u64..3_000_000),
        peers in vec((option::of(0u64..3_000_000), option::of(10_000u64..3_000_000), any::<bool>()), 1..4),
        everywhere: bool,
        far in 10_000u64..4_000_000,
    ) {
        let mut uplink = Uplink { latency: latency.map(Nanos::new), ..asked() };
        let pattern = uplink.peers.remove(0);
        let mut remotes = Vec::new();
        for (n, (latency, arrival, stamps)) in peers.into_iter().enumerate() {
            let name = format!("host{n}");
            remotes.push(Remote { peer: name.clone(), ..testing::remote(&format!("far{n}")) });
            uplink.peers.push(Peer {
                name, stamps, latency: latency.map(Nanos::new), arrival_budget: arrival.map(Nanos::new),
                address: Some([192, 0, 2, 10 + n as u8].into()), ..pattern.clone()
            });
        }
        let to: Vec<&str> = if everywhere { vec!["uplink"] } else { remotes.iter().map(|r| r.name.as_str()).collect() };
        let vnics: Vec<Vnic> = deadlines.iter().enumerate()
            .map(|(n, deadline)| urgent(&format!("v{n}"), &format!("{deadline}ns"), &to)).collect();
        let uplinks = [uplink];
        let set = ContractSet { host: &Host::default(), vnics: &vnics, uplinks: &uplinks, remotes: &remotes };
        let found = network_paths(&set, &controller(&["net0"]), |_| 0);
        for terms in &found.terms {
            let Some(budget) = terms.budget_with(Nanos::new(far)) else { continue };
            let arrival = far.max(terms.arrival.get());
            prop_assert!(terms.here.get() + budget.get() + arrival <= terms.deadline.get(), "{:?}", terms);
            prop_assert!(budget <= terms.budget && terms.largest_frame <= terms.burst);
        }
        if let Ok(admission) = admit(&set) {
            for bound in &admission.bounds {
                let of_it = found.terms.iter().filter(|terms| terms.vnic == bound.vnic);
                prop_assert!(of_it.clone().all(|terms| terms.here == bound.deadline && bound.bound <= terms.here));
                prop_assert_eq!(of_it.count() + found.faults.iter().filter(|f| f.vnic == bound.vnic).count(), remotes.len());
            }
        }
    }

    /// In no window does a sender put more on the wire than rate and burst of its path.
    #[test]
    fn no_sender_exceeds_the_terms_of_its_path(
        rate in 100_000u64..400_000_000, burst in 0u64..20_000, deadline in 800_000u64..20_000_000, mtu in 68u16..1399,
        ipv6: bool,
        frames in vec((0u64..3000, prop_oneof![3 => Just(0), 1 => 0u64..3_000_000], 0u64..1001), 1..80),
    ) {
        let mut uplink = asked();
        if ipv6 {
            uplink.local = "2001:db8::1".parse().ok();
            uplink.peers[0].address = "2001:db8::2".parse().ok();
        }
        let added = uplink.encapsulation() + STAMP;
        let mut vnic = urgent("plc1", &format!("{deadline}ns"), &["plc9"]);
        // Headers of IPv6 leave less of the path's MTU.
        vnic.mtu = mtu.min(uplink.guest_mtu(false, true));
        vnic.tx = Tx { max: Rate::from_bits(rate), burst: Some(Bytes::new(vnic.largest_frame() + burst)), ..Tx::default() };
        let remote = Remote { tx: Envelope::default(), ..testing::remote("plc9") };
        let found = of(std::slice::from_ref(&vnic), &[uplink], &[remote]);
        let terms = &found.terms[0];
        let sent = sent(&vnic, added, terms.here.get(), &frames);
        for (first, (begin, _)) in sent.iter().enumerate() {
            let mut bytes = 0;
            for (end, size) in &sent[first..] {
                bytes += size;
                prop_assert!(*size <= terms.largest_frame.get());
                let within = u128::from(terms.rate.bits()) * u128::from(end - begin);
                let most = u128::from(terms.burst.get()) * 8 * 1_000_000_000 + within;
                prop_assert!(u128::from(bytes) * 8 * 1_000_000_000 <= most, "{bytes} within {}", end - begin);
            }
        }
    }
}
