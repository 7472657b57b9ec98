//! The state of an uplink's RDMA, for the agent.
//!
//! ```text
//!  Lane: Shown, Counters of the link ─▶ RdmaStatus
//! ```

use crate::link::rdma::GuestCounters;
use crate::server::lane::Lane;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidegate_contract::Uplink;
use tidegate_evidence::{MemberStatus, RDMA_MEMBERS, RdmaCounts, RdmaStatus, ZeroCopyCounts};

/// Returns the state of an uplink's RDMA; `None` if it names no device.
pub(in crate::server) fn of(uplink: &Uplink, lane: Option<&Result<Arc<Lane>, String>>) -> Option<RdmaStatus> {
    match lane? {
        Ok(lane) => Some(of_lane(uplink, lane)),
        Err(why) => Some(RdmaStatus {
            device: uplink.rdma.clone().unwrap_or_default(),
            error: Some(why.clone()),
            ..RdmaStatus::default()
        }),
    }
}

fn of_lane(uplink: &Uplink, lane: &Lane) -> RdmaStatus {
    let counters = &lane.setup.counters;
    let counts = RdmaCounts {
        sent: counters.sent.get(),
        sent_bytes: counters.sent_bytes.get(),
        received: counters.received.get(),
        received_bytes: counters.received_bytes.get(),
        unsent: counters.unsent.get(),
        copied_out: counters.copied_out.get(),
        copied_in: counters.copied_in.get(),
        zero_copied_out: counters.zero_copied_out.get(),
        zero_copied_out_bytes: counters.zero_copied_out_bytes.get(),
        zero_copied_in: counters.zero_copied_in.get(),
        zero_copied_in_bytes: counters.zero_copied_in_bytes.get(),
        too_many_pieces: counters.too_many_pieces.get(),
        no_region: counters.no_region.get(),
        holes: counters.holes.get(),
        unknown_member: counters.unknown_member.get(),
        spoofed: counters.spoofed.get(),
        malformed: counters.malformed.get(),
        lost: counters.gaps.get(),
        no_buffers: counters.no_buffers.get(),
        failed_pairs: counters.failed_pairs.get(),
        undestroyed_pairs: counters.undestroyed_pairs.load(Ordering::Relaxed),
    };
    let shown = lane.shown();
    let mut pairs = shown.pairs.clone();
    for pair in &mut pairs {
        if let (Some(told), Some(counters)) = (&mut pair.zero_copy, shown.not_copied.get(&pair.vnic)) {
            told.counts = counts_of(counters);
        }
    }
    // The thread's view may be older than the contract: the agent takes no member of a peer that it does not declare.
    let is_declared = |member: &&MemberStatus| uplink.peers.iter().any(|peer| peer.name == member.peer);
    let members = shown.members.iter().filter(is_declared).take(RDMA_MEMBERS).cloned().collect();
    RdmaStatus {
        device: lane.device.clone(),
        error: shown.error.clone(),
        mtu: lane.setup.mtu,
        pairs,
        members,
        counts,
    }
}

fn counts_of(counters: &GuestCounters) -> ZeroCopyCounts {
    ZeroCopyCounts {
        sent: counters.sent.get(),
        sent_bytes: counters.sent_bytes.get(),
        received: counters.received.get(),
        received_bytes: counters.received_bytes.get(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_contract::testing;
    use tidegate_verbs::{Device, simulated};

    #[test]
    fn members_of_peers_that_left_are_not_told() {
        let uplink = Uplink {
            local: Some([192, 0, 2, 1].into()),
            rdma: Some("rxe0".into()),
            ..testing::uplink("net0")
        };
        let device = simulated::Device::new(&simulated::Fabric::new(), "rxe0", &[[192, 0, 2, 1].into()]);
        let device = Device::simulated(&device);
        let lane = Arc::new(Lane::of(&uplink, |_| Ok(&device)).unwrap().unwrap());
        let member = |peer: &str| MemberStatus {
            remote: None,
            segment: testing::vnic("a").segment,
            mac: tidegate_contract::Mac([2, 0, 0, 0, 0, 1]),
            peer: peer.into(),
            queue_pair: 17,
            longest: 1000,
            error: None,
        };
        let there = uplink.peers[0].name.clone();
        lane.shown().members = vec![member("gone"), member(&there)];
        let told = of(&uplink, Some(&Ok(lane))).unwrap().members;
        assert_eq!(told, [member(&there)]);
    }
}
