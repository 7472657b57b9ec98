//! Which way frames of a vNIC go to vNICs of other hosts. Pure.
//!
//! ```text
//!  queue pairs, members of its segment (evidence) ─┬▶ by RDMA
//!  remotes that contracts declare ─────────────────┴▶ as VXLAN, and why
//! ```

use crate::views::{RdmaWay, VnicQueuePair, VnicRdma};
use std::collections::BTreeMap;
use tidegate_contract::{Remote, Transport, Vnic};
use tidegate_evidence::{MemberStatus, RdmaStatus};

/// Returns the queue pairs and ways of a vNIC; `None` without RDMA.
pub(super) fn of_vnic<'a, R: Iterator<Item = &'a Remote>>(
    vnic: &Vnic,
    uplinks: &BTreeMap<String, RdmaStatus>,
    remotes: impl FnOnce() -> R,
) -> Option<VnicRdma> {
    if vnic.transport != Transport::Rdma {
        return None;
    }
    let mut pairs = Vec::new();
    let mut ways: Vec<RdmaWay> = Vec::new();
    for (uplink, status) in uplinks {
        let Some(pair) = status.pairs.iter().find(|pair| pair.vnic == vnic.name) else { continue };
        let error = status.error.clone().or_else(|| pair.error.clone());
        let way = |member: &MemberStatus| RdmaWay {
            remote: member.remote.clone(),
            mac: member.mac,
            peer: member.peer.clone(),
            vxlan_because: error.clone().or_else(|| member.error.clone()),
        };
        ways.extend(status.members.iter().filter(|member| member.segment == vnic.segment).map(way));
        pairs.push(VnicQueuePair {
            uplink: uplink.clone(),
            device: status.device.clone(),
            number: pair.queue_pair,
            error,
            failures: pair.failures,
        });
    }
    let known: Vec<_> = ways.iter().map(|way| way.mac).collect();
    let declared = remotes()
        .filter(|remote| remote.segment == vnic.segment && !known.contains(&remote.mac))
        .map(|remote| RdmaWay {
            remote: Some(remote.name.clone()),
            mac: remote.mac,
            peer: remote.peer.clone(),
            vxlan_because: Some("its host has announced no queue pair of it".into()),
        });
    ways.extend(declared);
    ways.sort_by_key(|way| way.mac);
    Some(VnicRdma { pairs, ways })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_contract::Mac;
    use tidegate_evidence::QueuePairStatus;

    #[test]
    fn members_go_by_rdma_and_other_remotes_by_vxlan() {
        let mut vnic = tidegate_testkit::contract::vnic("a", 1);
        assert_eq!(of_vnic(&vnic, &BTreeMap::new(), std::iter::empty), None);
        vnic.transport = Transport::Rdma;
        let mac = |last| Mac([2, 0, 0, 0, 0, last]);
        let member = |last, error: Option<&str>| MemberStatus {
            remote: None,
            segment: vnic.segment,
            mac: mac(last),
            peer: "b".into(),
            queue_pair: 17,
            longest: 1000,
            error: error.map(Into::into),
        };
        let pair = QueuePairStatus { vnic: "a".into(), queue_pair: Some(18), ..QueuePairStatus::default() };
        let status = RdmaStatus {
            device: "rxe0".into(),
            pairs: vec![pair],
            members: vec![member(3, None), member(2, Some("no route"))],
            ..RdmaStatus::default()
        };
        let remote = |last| Remote {
            name: "r".into(),
            mac: mac(last),
            segment: vnic.segment,
            peer: "b".into(),
            addresses: vec![],
            tx: Default::default(),
            deadline: None,
            to: vec![],
        };
        let remotes = [remote(2), remote(4)];
        let uplinks = BTreeMap::from([("net0".to_owned(), status)]);
        let rdma = of_vnic(&vnic, &uplinks, || remotes.iter()).expect("it has RDMA");
        assert_eq!(rdma.pairs[0].number, Some(18));
        let ways: Vec<_> = rdma.ways.iter().map(|way| (way.mac, way.vxlan_because.as_deref())).collect();
        assert_eq!(
            ways,
            [
                (mac(2), Some("no route")),
                (mac(3), None),
                (mac(4), Some("its host has announced no queue pair of it"))
            ]
        );
    }
}
