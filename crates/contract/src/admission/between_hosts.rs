//! Promises that leave this host, or come to it: worked examples, and a comparison with the sums of the definition.

use super::*;
use crate::{Envelope, Host, Peer, Rate, Remote, Segment, Tx, UPLINK, Uplink, Vnic, testing};
use proptest::{collection::vec, option, prelude::*};

/// Returns a real-time vNIC of 10 Mbit/s and 4,000 bytes.
fn urgent(name: &str, deadline: &str, to: &[&str]) -> Vnic {
    let mut vnic = testing::vnic(name);
    vnic.tx = Tx { max: "10mbit".parse().ok(), burst: "4kB".parse().ok(), ..Tx::default() };
    vnic.deadline = deadline.parse().ok();
    vnic.to = to.iter().map(|to| (*to).into()).collect();
    vnic.mtu = 1418;
    vnic.check().expect("valid");
    vnic
}

fn sending(name: &str, deadline: &str, to: &[&str]) -> Remote {
    let tx = Envelope { max: "10mbit".parse().ok(), burst: "4kB".parse().ok() };
    let to = to.iter().map(|to| (*to).into()).collect();
    let remote = Remote { tx, deadline: deadline.parse().ok(), to, ..testing::remote(name) };
    remote.check().expect("valid");
    remote
}

fn judge(vnics: &[Vnic], uplinks: &[Uplink], remotes: &[Remote]) -> Result<Admission, Vec<NotAdmissible>> {
    admit(&ContractSet { host: &Host::default(), vnics, uplinks, remotes })
}

fn refusals(vnics: &[Vnic], uplinks: &[Uplink]) -> Vec<String> {
    judge(vnics, uplinks, &[]).expect_err("refused").iter().map(ToString::to_string).collect()
}

fn peer(name: &str, host: u8) -> Peer {
    Peer {
        name: name.into(),
        address: Some([192, 0, 2, host].into()),
        ..testing::uplink("u").peers.remove(0)
    }
}

#[test]
fn a_deadline_over_an_uplink_by_hand() {
    // 1 ms less 100 us of network and 500 us there. Frames of 60 bytes are 142 on the wire: 4,000 bytes are 9,467.
    // L: 1,418 + 18 + 82 bytes, but the path's MTU allows 1,514. 75,734 + 12,112 bits at 10 Gbit/s: 8,785 ns.
    let admission =
        judge(&[urgent("plc1", "1ms", &["uplink"])], &[testing::uplink("net0")], &[]).expect("fits");
    assert_eq!(
        admission.bounds[0].to_string(),
        "\
plc1 to net0: at most 258785ns of 400us, margin 141215ns
  t      = 400us      the interval with the least slack
  demand = 9467B      real-time traffic that may be due within t
  L      = 1514B      the largest frame that may be under way
  C      = 10gbit     the capacity of the egress
  H      = 250us      the host's latency budget
  net    = 100us      the declared latency of the network to host2
  there  = 500us      the arrival budget of host2
  total  = 858785ns   of 1ms from host to host: bound + net + there
  bound  = deadline - (t - H - (demand + L) / C)"
    );
    let net0 = admission.egress("net0").expect("a summary");
    assert_eq!((net0.realtime_bits, net0.remaining_bits), (23_666_667, 10_000_000_000 - 23_666_667));
    assert_eq!(net0.vnics, ["plc1"]);
    let json = serde_json::to_string(&admission).expect("serialises");
    assert_eq!(serde_json::from_str::<Admission>(&json).expect("parses"), admission);
    let old = r#"{"vnic":"a","egress":"b","deadline":"1ms","bound":"1us","critical_t":"1ms","demand":"1B","capacity":"1bit","blocking":"1B","host_latency":"1us"}"#;
    assert_eq!(serde_json::from_str::<DelayBound>(old).expect("an older release's").beyond, None);
}

#[test]
fn the_longest_way_counts_and_a_vnic_counts_once() {
    let mut net0 = testing::uplink("net0");
    net0.peers.push(Peer {
        arrival_budget: "300us".parse().ok(),
        latency: "350us".parse().ok(),
        ..peer("far", 3)
    });
    let elsewhere = Segment::new(9);
    net0.peers.push(Peer {
        latency: "900us".parse().ok(),
        segments: elsewhere.map(|s| vec![s]),
        ..peer("none", 4)
    });
    let net1 = Uplink { peers: vec![Peer { stamps: false, ..peer("gate", 5) }], ..testing::uplink("net1") };
    let remotes = [testing::remote("plc9"), Remote { peer: "gate".into(), ..testing::remote("printer") }];
    let ways = |to: &[&str]| {
        let vnics = [urgent("plc1", "2ms", to)];
        let admission = judge(&vnics, &[net0.clone(), net1.clone()], &remotes).expect("fits");
        let way = |b: &DelayBound| {
            let away = b.beyond.clone().expect("over an uplink");
            (b.egress.clone(), away.peer, b.deadline.get() / 1000, b.demand.get())
        };
        admission.bounds.iter().map(way).collect::<Vec<_>>()
    };
    let way = |egress: &str, peer: &str, left, demand| (egress.to_owned(), peer.to_owned(), left, demand);
    assert_eq!(ways(&["plc9"]), [way("net0", "host2", 1400, 9467)]);
    assert_eq!(ways(&["printer"]), [way("net1", "gate", 1400, 7334)], "no stamp: 110 bytes on the wire");
    let everywhere = [way("net0", "far", 1350, 9467), way("net1", "gate", 1400, 7334)];
    assert_eq!(ways(&["uplink"]), everywhere);
    assert_eq!(ways(&["plc9", "uplink", "printer"]), everywhere);
}

#[test]
fn refusals_say_what_is_missing() {
    let net0 = || testing::uplink("net0");
    let none = "egress uplink refuses plc1: no uplink takes their frames to another host; write [uplink.NAME] with a \
                peer that their segment reaches, or name vNICs of this host (an uplink serves vhost-user and tap \
                attachments)";
    let plc1 = |deadline| urgent("plc1", deadline, &["uplink"]);
    assert_eq!(refusals(&[plc1("1ms")], &[]), [none]);
    let mut other = net0();
    other.peers[0].segments = Segment::new(7).map(|segment| vec![segment]);
    assert_eq!(refusals(&[plc1("1ms")], &[other]), [none]);
    let attach = crate::Attach::Netdev { name: "vnet0".into() };
    assert_eq!(refusals(&[Vnic { attach, ..plc1("1ms") }], &[net0()]), [none]);

    let silent = Uplink { latency: None, ..net0() };
    assert_eq!(
        refusals(&[plc1("1ms"), urgent("plc2", "1ms", &["uplink"])], std::slice::from_ref(&silent)),
        [
            "egress net0 refuses plc1, plc2: the latency of its network is not declared, so no deadline can be promised \
          beyond it; set uplink.net0.latency"
        ]
    );
    let guaranteed =
        Vnic { deadline: None, tx: Tx { min: "1mbit".parse().ok(), ..Tx::default() }, ..plc1("1ms") };
    assert!(judge(&[guaranteed], &[silent], &[]).is_ok(), "a rate needs no latency");
    assert_eq!(
        refusals(&[plc1("600us")], &[net0()]),
        [
            "egress net0 refuses plc1: of the deadline of 600us, the network to host2 takes 100us and the arrival budget \
          of host2 500us, so nothing is left for this host; raise the deadline above 600us, or lower one of these"
        ]
    );
    // 151 us are left, and H are 250 us. With the 2 x 600 us away, the deadline of the suggestion is the contract's.
    let [late] = refusals(&[plc1("751us")], &[net0()]).try_into().expect("one");
    assert!(late.starts_with("egress net0 refuses plc1: within 151us, 10981B may be due"), "{late}");
    assert!(late.ends_with("the contracts would fit with vnic.plc1.deadline at least 859us"), "{late}");
    assert!(judge(&[plc1("859us")], &[net0()], &[]).is_ok());
    assert!(judge(&[plc1("858us")], &[net0()], &[]).is_err());

    let slow = Uplink { rate: Rate::from_bits(20_000_000).expect("in range"), ..net0() };
    assert_eq!(
        refusals(&[plc1("9s")], &[slow]),
        [
            "egress net0 refuses plc1: 23666667 bit/s are promised, 20000000 bit/s (20mbit) are available; the contracts would \
          fit with vnic.plc1.tx.max at most 8450kbit, or uplink.net0.rate at least 23667kbit"
        ]
    );
}

#[test]
fn a_remote_by_hand() {
    // 1 Mbit/s to 2 ms less 500 us: within 1.5 ms, 10 Mbit/s may bunch to 1,875 bytes more. L is the largest frame of
    // the uplink, 1,464 bytes, where the vNIC is alone. H + 7,339 bytes at 1 Gbit/s: 308.712 us.
    let mut sink = testing::vnic("sink");
    sink.rx.max = "1gbit".parse().ok();
    let sets = |remote: Remote, sink: &Vnic| {
        judge(std::slice::from_ref(sink), &[testing::uplink("net0")], &[remote])
    };
    let admission = sets(sending("plc9", "2ms", &["sink"]), &sink).expect("fits");
    let DelayBound { vnic, egress, deadline, bound, demand, blocking, beyond, .. } = &admission.bounds[0];
    assert_eq!((vnic.as_str(), egress.as_str(), deadline.get(), beyond), ("plc9", "sink", 500_000, &None));
    assert_eq!((demand.get(), blocking.get(), bound.get()), (5875, 1464, 308_712));
    assert_eq!(admission.egress("sink").expect("a summary").realtime_bits, 10_000_000);
    assert_eq!(admission.bounds_of("plc9").count(), 1);

    sink.rx.max = "20mbit".parse().ok();
    let refused = sets(sending("plc9", "2ms", &["sink"]), &sink).expect_err("too slow");
    let text = refused[0].to_string();
    assert!(text.starts_with("egress sink refuses plc9: within 500us, 7339B may be due"), "{text}");
    assert!(text.contains("vnic.sink.rx.max at least") && !text.contains("remote.plc9.deadline"), "{text}");
    sink.rx.max = None;
    let refused = sets(sending("plc9", "2ms", &["sink"]), &sink).expect_err("no capacity");
    assert!(refused[0].to_string().ends_with("set vnic.sink.rx.max"), "{refused:?}");
    let lost = Remote { peer: "host7".into(), ..sending("plc9", "2ms", &["sink"]) };
    assert!(matches!(sets(lost, &sink).expect_err("unchecked")[..], [NotAdmissible::NoUplink { .. }]));
    let bare = Remote { tx: Envelope::default(), ..sending("plc9", "2ms", &["sink"]) };
    assert!(matches!(
        sets(bare, &Vnic { rx: crate::Rx { max: "1gbit".parse().ok(), ..Default::default() }, ..sink })
            .expect_err("unchecked")[..],
        [NotAdmissible::NoEnvelope { .. }]
    ));
}

#[test]
fn frames_of_other_hosts_block_where_they_can_come() {
    let plc2 = || Vnic { mtu: 1000, ..urgent("plc2", "5ms", &["sink"]) };
    let sink = || Vnic {
        rx: crate::Rx { max: "1gbit".parse().ok(), ..Default::default() },
        ..testing::vnic("sink")
    };
    let blocking =
        |vnics: &[Vnic], uplink: Uplink| judge(vnics, &[uplink], &[]).expect("fits").bounds[0].blocking.get();
    let jumbo = || Uplink { mtu: 9000, ..testing::uplink("net0") };
    assert_eq!(blocking(&[plc2(), sink()], jumbo()), 8964);
    let mut elsewhere = jumbo();
    elsewhere.peers[0].segments = Segment::new(7).map(|segment| vec![segment]);
    assert_eq!(blocking(&[plc2(), sink()], elsewhere), 1018);
    let kernel = |vnic: Vnic| Vnic { attach: crate::Attach::Netdev { name: vnic.name.clone() }, ..vnic };
    assert_eq!(blocking(&[kernel(plc2()), kernel(sink())], jumbo()), crate::frame::SUPER_FRAME_IPV4);
}

prop_compose! {
    fn any_vnic()(
        max in 1_000_000u64..500_000_000, min in option::of(1u64..400_000_000), burst in 1500u64..20_000,
        deadline in option::of(100_000u64..20_000_000), mtu in 68u16..1400, segment in 0u32..3, kernel in any::<bool>(),
        to in vec(0usize..4, 1..4), by_rdma in any::<bool>(),
    ) -> Vnic {
        let names = [UPLINK, "r0", "r1", "r2"];
        let mut vnic = testing::vnic("v");
        vnic.tx = Tx {
            max: Rate::from_bits(max), min: min.and_then(Rate::from_bits), burst: Some(Bytes::new(burst)), ..Tx::default()
        };
        (vnic.deadline, vnic.mtu) = (deadline.map(Nanos::new), mtu);
        vnic.segment = Segment::new(segment).expect("in range");
        if by_rdma {
            vnic.transport = crate::Transport::Rdma;
        }
        if kernel {
            vnic.attach = crate::Attach::Netdev { name: "vnet0".into() };
        }
        vnic.to = to.into_iter().map(|i| names[i].into()).collect();
        vnic
    }
}

prop_compose! {
    fn any_uplink()(
        rate in 1_000_000u64..2_000_000_000, latency in option::of(0u64..1_000_000), budget in 10_000u64..1_000_000,
        v6 in any::<bool>(), rdma in any::<bool>(),
        peers in vec((option::of(vec(0u32..3, 1..3)), option::of(0u64..2_000_000), option::of(10_000u64..900_000), any::<bool>()), 1..4),
    ) -> Uplink {
        let mut uplink = testing::uplink("net");
        uplink.rate = Rate::from_bits(rate).expect("in range");
        uplink.rdma = rdma.then(|| "rxe0".into());
        (uplink.latency, uplink.arrival_budget) = (latency.map(Nanos::new), Nanos::new(budget));
        if v6 {
            uplink.local = Some("2001:db8::1".parse().expect("an address"));
        }
        let peer = uplink.peers.remove(0);
        uplink.peers = peers.into_iter().map(|(segments, latency, budget, stamps)| Peer {
            segments: segments.map(|ids| ids.into_iter().filter_map(Segment::new).collect()),
            latency: latency.map(Nanos::new), arrival_budget: budget.map(Nanos::new), stamps, ..peer.clone()
        }).collect();
        uplink
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Compares what is admitted over uplinks with the definition, vNIC by vNIC and peer by peer.
    #[test]
    fn admitted_is_what_the_definition_admits(
        mut vnics in vec(any_vnic(), 1..6), mut uplinks in vec(any_uplink(), 0..3), host_latency in 0u64..500_000,
    ) {
        for (i, vnic) in vnics.iter_mut().enumerate() {
            vnic.name = format!("v{i}");
        }
        let mut remotes: Vec<Remote> = ["r0", "r1", "r2"].map(testing::remote).into();
        for (i, uplink) in uplinks.iter_mut().enumerate() {
            uplink.name = format!("net{i}");
            for (j, peer) in uplink.peers.iter_mut().enumerate() {
                peer.name = format!("p{i}{j}");
            }
        }
        let names: Vec<String> = uplinks.iter().flat_map(|u| u.peers.iter().map(|p| p.name.clone())).collect();
        for (i, remote) in remotes.iter_mut().enumerate() {
            remote.peer = names.get(i % names.len().max(1)).cloned().unwrap_or_else(|| "gone".into());
        }
        let host = Host { host_latency: Nanos::new(host_latency), ..Host::default() };
        let judged = admit(&ContractSet { host: &host, vnics: &vnics, uplinks: &uplinks, remotes: &remotes });
        let expected = model(&host, &vnics, &uplinks, &remotes);
        match (judged, expected) {
            (Ok(admission), Some(bounds)) => {
                let of = |b: &DelayBound| (b.egress.clone(), b.vnic.clone(), b.bound.get());
                prop_assert_eq!(admission.bounds.iter().map(of).collect::<Vec<_>>(), bounds);
            }
            (Err(_), None) => {}
            (judged, expected) => prop_assert!(false, "{judged:?}, expected {expected:?}"),
        }
    }
}

/// Computes the bounds over uplinks from the definition; `None` if something does not fit.
fn model(
    host: &Host,
    vnics: &[Vnic],
    uplinks: &[Uplink],
    remotes: &[Remote],
) -> Option<Vec<(String, String, u64)>> {
    const NANO: i128 = 1_000_000_000;
    let mut bounds = Vec::new();
    let promising = |v: &&Vnic| v.deadline.is_some() || v.tx.min.is_some();
    for vnic in vnics.iter().filter(promising) {
        for to in &vnic.to {
            let reached = uplinks.iter().flat_map(|u| &u.peers).any(|peer| {
                match remotes.iter().find(|r| r.name == *to) {
                    Some(remote) => remote.peer == peer.name,
                    None => peer.carries(vnic.segment),
                }
            });
            if !reached || !vnic.uses_uplinks() {
                return None;
            }
        }
    }
    for uplink in uplinks {
        // (name, burst, rate, deadline), bits and nanoseconds, on the wire.
        let (mut sources, mut minima, mut largest) = (Vec::new(), 0i128, 0u64);
        for vnic in vnics.iter().filter(|v| v.uses_uplinks()) {
            let sends_to = |peer: &&Peer| {
                let is_it = |to: &String| match remotes.iter().find(|r| r.name == *to) {
                    Some(remote) => remote.peer == peer.name,
                    None => peer.carries(vnic.segment),
                };
                vnic.to.iter().any(is_it)
            };
            let to: Vec<&Peer> = uplink.peers.iter().filter(sends_to).collect();
            let around = if uplink.is_ipv6() { 70u64 } else { 50 };
            let stamp = if vnic.deadline.is_some() && to.iter().any(|p| p.stamps) { 32 } else { 0 };
            // BTH, DETH, the header of the lane, ICRC and 3 bytes of padding, less VXLAN's header.
            let by_rdma = uplink.rdma.is_some() && vnic.transport == crate::Transport::Rdma;
            let more = if by_rdma { 12 + 8 + 32 + 4 + 3 - 8 } else { 0 };
            if uplink.peers.iter().any(|p| p.carries(vnic.segment)) {
                largest = largest.max((u64::from(vnic.mtu) + 18 + around + stamp).min(1514) + more);
            }
            let around = around + more;
            let up = |n: u64, added: u64| i128::from((n * (60 + added)).div_ceil(60));
            match (vnic.deadline, vnic.tx.min) {
                _ if to.is_empty() => {}
                (None, None) => {}
                (None, Some(min)) => minima += up(min.bits(), around),
                (Some(deadline), _) => {
                    let mut away = 0;
                    for peer in to {
                        let latency = peer.latency.or(uplink.latency)?.get();
                        away = away.max(latency + peer.arrival_budget.unwrap_or(uplink.arrival_budget).get());
                    }
                    let left = deadline.get().checked_sub(away).filter(|left| *left > 0)?;
                    let burst = up(vnic.tx.burst.expect("has one").get() * 8, around + stamp);
                    let rate = up(vnic.tx.max.expect("has one").bits(), around + stamp);
                    sources.push((vnic.name.clone(), burst, rate, i128::from(left)));
                }
            }
        }
        let capacity = i128::from(uplink.rate.bits());
        if sources.iter().map(|s| s.2).sum::<i128>() + minima > capacity {
            return None;
        }
        let slack = |t: i128| {
            let due = sources.iter().filter(|s| s.3 <= t);
            let demand: i128 = due.map(|s| s.1 * NANO + s.2 * (t - s.3)).sum();
            capacity * (t - i128::from(host.host_latency.get())) - demand - i128::from(largest) * 8 * NANO
        };
        for (name, _, _, deadline) in &sources {
            let least =
                sources.iter().filter(|s| s.3 >= *deadline).map(|s| slack(s.3)).min().expect("its own");
            if least < 0 {
                return None;
            }
            bounds.push((uplink.name.clone(), name.clone(), (deadline - least / capacity) as u64));
        }
    }
    Some(bounds)
}
