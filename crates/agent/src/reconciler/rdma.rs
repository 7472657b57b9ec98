//! Which way frames of a vNIC go to vNICs of other hosts. Pure.
//!
//! ```text
//!  queue pairs, members of its segment (evidence) ─┬▶ by RDMA
//!  remotes that contracts declare ─────────────────┴▶ as VXLAN, and why
//! ```

use crate::views::{RdmaWay, VnicQueuePair, VnicRdma};
use std::collections::{BTreeMap, HashSet};
use tidegate_contract::{Remote, Transport, Uplink, Vnic, rdma};
use tidegate_evidence::{MemberStatus, QueuePairStatus, RDMA_MEMBERS, RdmaStatus, ZeroCopyStatus};

/// Returns the queue pairs and ways of a vNIC over these uplinks, which have a device; `None` without RDMA.
pub(super) fn of_vnic<'a, R: Iterator<Item = &'a Remote>>(
    vnic: &Vnic,
    (uplinks, of_uplinks): (impl Iterator<Item = &'a Uplink>, &BTreeMap<String, RdmaStatus>),
    remotes: impl FnOnce() -> R,
) -> Option<VnicRdma> {
    if vnic.transport != Transport::Rdma {
        return None;
    }
    let (mut pairs, mut ways, mut cut) = (Vec::new(), Vec::<RdmaWay>::new(), false);
    // Peers behind a device that is of no use, with the reason.
    let mut unserved = BTreeMap::<&str, String>::new();
    for uplink in uplinks.filter(|uplink| uplink.peers.iter().any(|peer| peer.carries(vnic.segment))) {
        let Some(status) = of_uplinks.get(&uplink.name) else { continue };
        // While the device is of no use, no vNIC is listed.
        let pair = status.pairs.iter().find(|pair| pair.vnic == vnic.name);
        let number = pair.and_then(|pair| pair.queue_pair);
        let error = status.error.clone().or_else(|| pair?.error.clone());
        let unmade = || number.is_none().then(|| "the switch has made no queue pair yet".to_owned());
        let why_not = error.clone().or_else(unmade);
        if let Some(why) = &why_not {
            unserved.extend(uplink.peers.iter().map(|peer| (peer.name.as_str(), why.clone())));
        }
        let way = |member: &MemberStatus| RdmaWay {
            remote: member.remote.clone(),
            mac: member.mac,
            peer: member.peer.clone(),
            vxlan_because: why_not.clone().or_else(|| member.error.clone()),
            longest: Some(rdma::longest_packet(vnic, member.longest)).filter(|longest| *longest < vnic.mtu),
        };
        ways.extend(status.members.iter().filter(|member| member.segment == vnic.segment).map(way));
        cut |= status.members.len() >= RDMA_MEMBERS;
        pairs.push(VnicQueuePair {
            uplink: uplink.name.clone(),
            device: status.device.clone(),
            number,
            error,
            failures: pair.map_or(0, |pair| pair.failures),
            zero_copy: pair.filter(|_| vnic.zero_copy && number.is_some()).map(zero_copy),
            counts: vnic.zero_copy.then_some(status.counts),
        });
    }
    let known: HashSet<_> = ways.iter().map(|way| way.mac).collect();
    // Of a list that is cut, nothing follows for those that are not on it.
    let declared =
        remotes().filter(|remote| remote.segment == vnic.segment && !known.contains(&remote.mac) && !cut);
    ways.extend(declared.map(|remote| {
        let why = unserved.get(remote.peer.as_str()).cloned();
        RdmaWay {
            remote: Some(remote.name.clone()),
            mac: remote.mac,
            peer: remote.peer.clone(),
            vxlan_because: why.or_else(|| Some("its host has announced no queue pair of it".into())),
            longest: None,
        }
    }));
    ways.sort_by_key(|way| way.mac);
    Some(VnicRdma { pairs, ways, cut })
}

/// Returns the zero copy of a vNIC that asks for it.
fn zero_copy(pair: &QueuePairStatus) -> ZeroCopyStatus {
    pair.zero_copy.clone().unwrap_or_else(|| ZeroCopyStatus {
        copied_because: Some(
            "this switch is of an earlier release, which copies all frames: upgrade it".into(),
        ),
        ..ZeroCopyStatus::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_contract::Mac;

    const MAC: fn(u8) -> Mac = |last| Mac([2, 0, 0, 0, 0, last]);

    /// Returns the ways of a vNIC of MTU 1500 to two remotes, of addresses 2 and 4, while the switch says `status`.
    fn said(status: RdmaStatus) -> VnicRdma {
        said_of(status, false)
    }

    /// The same of a vNIC with this `zero-copy`.
    fn said_of(status: RdmaStatus, zero_copy: bool) -> VnicRdma {
        let mut vnic = tidegate_testkit::contract::vnic("a", 1);
        assert_eq!(of_vnic(&vnic, ([].iter(), &BTreeMap::new()), std::iter::empty), None);
        (vnic.transport, vnic.zero_copy) = (Transport::Rdma, zero_copy);
        let remote = |last| Remote {
            name: "r".into(),
            mac: MAC(last),
            segment: vnic.segment,
            peer: "b".into(),
            addresses: vec![],
            tx: Default::default(),
            deadline: None,
            to: vec![],
        };
        let uplink = |name: &str, peers: &str| -> Uplink {
            let text = format!(
                r#"{{"name":"{name}","local":"192.0.2.1","rate":"10gbit","rdma":"rxe0","peers":[{peers}]}}"#
            );
            serde_json::from_str(&text).unwrap()
        };
        let uplinks = [
            uplink("net0", r#"{"name":"b","address":"192.0.2.2"}"#),
            uplink("net1", r#"{"name":"c","address":"192.0.2.3","segments":[7]}"#),
        ];
        let elsewhere = RdmaStatus { error: Some("of no use".into()), ..RdmaStatus::default() };
        let of_uplinks = BTreeMap::from([("net0".to_owned(), status), ("net1".to_owned(), elsewhere)]);
        let remotes = [remote(2), remote(4)];
        of_vnic(&vnic, (uplinks.iter(), &of_uplinks), || remotes.iter()).expect("it has RDMA")
    }

    fn member(last: u8, longest: u32, error: Option<&str>) -> MemberStatus {
        MemberStatus {
            remote: None,
            segment: tidegate_testkit::contract::vnic("a", 1).segment,
            mac: MAC(last),
            peer: "b".into(),
            queue_pair: 17,
            longest,
            error: error.map(Into::into),
        }
    }

    fn with_pair(members: Vec<MemberStatus>) -> RdmaStatus {
        let pair = QueuePairStatus { vnic: "a".into(), queue_pair: Some(18), ..QueuePairStatus::default() };
        RdmaStatus { device: "rxe0".into(), pairs: vec![pair], members, ..RdmaStatus::default() }
    }

    fn ways(rdma: &VnicRdma) -> Vec<(Mac, Option<&str>, Option<u16>)> {
        rdma.ways.iter().map(|way| (way.mac, way.vxlan_because.as_deref(), way.longest)).collect()
    }

    const UNANNOUNCED: &str = "its host has announced no queue pair of it";

    #[test]
    fn members_go_by_rdma_and_other_remotes_by_vxlan() {
        let rdma = said(with_pair(vec![member(3, 1514, None), member(2, 1514, Some("no route"))]));
        assert_eq!((rdma.pairs.len(), rdma.pairs[0].number), (1, Some(18)), "net1 has another segment");
        let expected =
            [(MAC(2), Some("no route"), None), (MAC(3), None, None), (MAC(4), Some(UNANNOUNCED), None)];
        assert_eq!(ways(&rdma), expected);
    }

    #[test]
    fn a_member_that_takes_shorter_frames_says_how_long_they_may_be() {
        let rdma = said(with_pair(vec![member(2, 1513, None)]));
        assert_eq!(ways(&rdma)[0], (MAC(2), None, Some(1499)));
    }

    #[test]
    fn a_device_of_no_use_is_the_reason_of_all() {
        let why = Some("the device has no GID of 192.0.2.1");
        let rdma = said(RdmaStatus { error: why.map(Into::into), ..RdmaStatus::default() });
        assert_eq!((rdma.pairs.len(), rdma.pairs[0].error.as_deref()), (1, why));
        assert_eq!(ways(&rdma), [(MAC(2), why, None), (MAC(4), why, None)]);
    }

    #[test]
    fn zero_copy_is_told_where_it_is_asked_for_and_has_a_queue_pair() {
        let there = ZeroCopyStatus { registered: 1 << 30, ..ZeroCopyStatus::default() };
        let mut status = with_pair(vec![]);
        status.pairs[0].zero_copy = Some(there.clone());
        status.counts.zero_copied_out = 7;
        let pair = |status: &RdmaStatus, asks| said_of(status.clone(), asks).pairs.remove(0);
        assert_eq!((pair(&status, false).zero_copy, pair(&status, false).counts), (None, None));
        assert_eq!(pair(&status, true).zero_copy, Some(there));
        assert_eq!(pair(&status, true).counts.map(|counts| counts.zero_copied_out), Some(7));
        // An earlier release says nothing of it.
        status.pairs[0].zero_copy = None;
        let why = pair(&status, true).zero_copy.and_then(|zero_copy| zero_copy.copied_because);
        assert!(why.is_some_and(|why| why.contains("earlier release")));
        // The queue pair comes first.
        status.pairs[0].queue_pair = None;
        assert_eq!(pair(&status, true).zero_copy, None);
    }

    #[test]
    fn nothing_is_said_of_remotes_beyond_a_list_that_is_cut() {
        let mut all = vec![member(2, 1514, None); RDMA_MEMBERS];
        all.iter_mut()
            .skip(1)
            .for_each(|member| member.segment = tidegate_contract::Segment::new(7).unwrap());
        let rdma = said(with_pair(all));
        assert!(rdma.cut);
        assert_eq!(ways(&rdma), [(MAC(2), None, None)]);
    }
}
