//! Prometheus metrics, in OpenMetrics text.
//!
//! ```text
//!  Published ──▶ vnics, uplinks, rdma, host, cores, peers, paths ──▶ families ──▶ text
//! ```
//!
//! Times are seconds, sizes bytes, rates bits per second; directions are the VM's.

mod cores;
mod families;
mod host;
mod paths;
mod peers;
mod rdma;
mod uplinks;
mod vnics;

use crate::board::Published;
use families::Families;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, text};
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::Arc;

pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub fn encode(published: Arc<Published>) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("tidegate");
    registry.register_collector(Box::new(Snapshot(published)));
    let mut out = String::new();
    text::encode(&mut out, &registry)?;
    Ok(out)
}

#[derive(Debug)]
struct Snapshot(Arc<Published>);

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let Published { host, status, vnics, uplinks, places, peers, cores, .. } = &*self.0;
        let mut out = Families(&mut encoder);
        out.vnics(vnics, places, &host.admission.bounds)?;
        out.uplinks(uplinks)?;
        out.rdma(uplinks)?;
        out.workers(host)?;
        out.cores(cores.as_ref())?;
        out.peers(peers)?;
        out.pairs(uplinks.values())?;
        out.paths(vnics.values())?;
        out.agent(host, status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::PlaceFacts;
    use crate::views::{RefusedBy, State, VnicView};
    use tidegate_contract::{Nanos, Vnic};
    use tidegate_evidence::VnicStats;
    use tidegate_testkit::contract::vnic;

    #[test]
    fn figures_that_a_place_does_not_count_are_left_out() {
        let by = RefusedBy { file: "a.toml".into(), line: None, reason: "a test".into() };
        let contract = Vnic { deadline: Some(Nanos::new(1_000_000)), ..vnic("a", 1) };
        let refused = VnicView::refused("a".into(), by, Some(contract), "here".into());
        let view = VnicView { state: State::InForce, stats: Some(VnicStats::default()), ..refused };
        let shown = |counts_flows, worker| {
            let facts = PlaceFacts { counts_flows, ..PlaceFacts::default() };
            let view = VnicView { worker, ..view.clone() };
            let (places, vnics) = ([("here".into(), facts)].into(), [("a".into(), view)].into());
            let text = encode(Arc::new(Published { places, vnics, ..Published::starting() })).unwrap();
            ["vnic_marked_frames", "vnic_waiting_flows", "vnic_worker_culprits"]
                .map(|name| text.contains(name))
        };
        assert_eq!(shown(true, Some(0)), [true, true, true], "zeros too");
        assert_eq!(shown(false, None), [false, false, false]);
        assert_eq!(shown(true, None), [true, true, false]);
    }
}
