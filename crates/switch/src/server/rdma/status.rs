//! The state of an uplink's RDMA, for the agent.
//!
//! ```text
//!  Lane: Shown, Counters of the link ─▶ RdmaStatus
//! ```

use crate::server::lane::Lane;
use std::sync::Arc;
use tidegate_contract::Uplink;
use tidegate_evidence::{RDMA_MEMBERS, RdmaCounts, RdmaStatus};

/// Returns the state of an uplink's RDMA; `None` if it names no device.
pub(in crate::server) fn of(uplink: &Uplink, lane: Option<&Result<Arc<Lane>, String>>) -> Option<RdmaStatus> {
    match lane? {
        Ok(lane) => Some(of_lane(lane)),
        Err(why) => Some(RdmaStatus {
            device: uplink.rdma.clone().unwrap_or_default(),
            error: Some(why.clone()),
            ..RdmaStatus::default()
        }),
    }
}

fn of_lane(lane: &Lane) -> RdmaStatus {
    let counters = &lane.setup.counters;
    let counts = RdmaCounts {
        sent: counters.sent.get(),
        sent_bytes: counters.sent_bytes.get(),
        received: counters.received.get(),
        received_bytes: counters.received_bytes.get(),
        unsent: counters.unsent.get(),
        copied_out: counters.copied_out.get(),
        copied_in: counters.copied_in.get(),
        unknown_member: counters.unknown_member.get(),
        spoofed: counters.spoofed.get(),
        malformed: counters.malformed.get(),
        lost: counters.gaps.get(),
        no_buffers: counters.no_buffers.get(),
        failed_pairs: counters.failed_pairs.get(),
    };
    let shown = lane.shown();
    RdmaStatus {
        device: lane.device.clone(),
        error: shown.error.clone(),
        mtu: lane.setup.mtu,
        pairs: shown.pairs.clone(),
        members: shown.members.iter().take(RDMA_MEMBERS).cloned().collect(),
        counts,
    }
}
