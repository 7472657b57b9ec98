//! Metrics of RDMA.
//!
//! ```text
//!  RdmaStatus of each uplink with a device ─▶ counters, queue pairs of vNICs ─▶ families
//! ```

use super::families::{Families, Kind::Counter, Kind::Gauge, Labels};
use crate::views::UplinkView;
use std::collections::BTreeMap;
use std::fmt;
use tidegate_evidence::{RdmaCounts, ZeroCopyCounts};

/// A counter: name, help, value.
type Family = (&'static str, &'static str, fn(&RdmaCounts) -> u64);

/// Each counter of [`RdmaCounts`].
const COUNTERS: [Family; 21] = [
    ("rdma_sent_datagrams", "Datagrams that the device took", |c| c.sent),
    ("rdma_sent_bytes", "Bytes of their frames", |c| c.sent_bytes),
    ("rdma_unsent_datagrams", "Datagrams that the device did not take, or could not send", |c| c.unsent),
    ("rdma_received_datagrams", "Datagrams of members", |c| c.received),
    ("rdma_received_bytes", "Bytes of their frames", |c| c.received_bytes),
    ("rdma_copied_out_bytes", "Bytes that were copied into send buffers", |c| c.copied_out),
    ("rdma_copied_in_bytes", "Bytes that were copied out of receive buffers", |c| c.copied_in),
    ("rdma_zero_copied_out_frames", "Frames whose payload the device read out of a guest's memory", |c| {
        c.zero_copied_out
    }),
    ("rdma_zero_copied_out_bytes", "Bytes of that payload", |c| c.zero_copied_out_bytes),
    ("rdma_zero_copied_in_frames", "Frames whose payload the device wrote into a guest's memory", |c| {
        c.zero_copied_in
    }),
    ("rdma_zero_copied_in_bytes", "Bytes of that payload", |c| c.zero_copied_in_bytes),
    (
        "rdma_too_many_pieces_frames",
        "Frames of vNICs with zero copy, copied since they lie in too many pieces",
        |c| c.too_many_pieces,
    ),
    (
        "rdma_no_region_frames",
        "Frames of vNICs with zero copy, copied since they lie in no registered region",
        |c| c.no_region,
    ),
    (
        "rdma_zero_copy_holes",
        "vNICs whose frames are copied since memory was taken out of their guests",
        |c| c.holes,
    ),
    ("rdma_unknown_member_datagrams", "Datagrams of no member, dropped", |c| c.unknown_member),
    ("rdma_spoofed_datagrams", "Datagrams of a member with another source address, dropped", |c| c.spoofed),
    ("rdma_malformed_datagrams", "Datagrams without a valid header, dropped", |c| c.malformed),
    ("rdma_lost_datagrams", "Datagrams of members that never arrived", |c| c.lost),
    ("rdma_waits_for_buffers", "Times that a frame found no send buffer", |c| c.no_buffers),
    ("rdma_failed_queue_pairs", "Queue pairs that failed", |c| c.failed_pairs),
    ("rdma_undestroyed_queue_pairs", "Queue pairs that the device did not destroy", |c| c.undestroyed_pairs),
];

/// A counter of a vNIC: name, help, value of frames that it sent, and of those that it received.
type OfVnic = (&'static str, &'static str, fn(&ZeroCopyCounts) -> u64, fn(&ZeroCopyCounts) -> u64);

const VNICS: [OfVnic; 2] = [
    ("vnic_zero_copied_frames", "Frames of a vNIC whose payload was not copied", |c| c.sent, |c| c.received),
    ("vnic_zero_copied_bytes", "Bytes of that payload", |c| c.sent_bytes, |c| c.received_bytes),
];

impl Families<'_, '_> {
    /// RDMA of the uplinks of this host.
    pub(super) fn rdma(&mut self, uplinks: &BTreeMap<String, UplinkView>) -> fmt::Result {
        let by_rdma = || uplinks.values().filter_map(|view| Some((view.name.as_str(), view.rdma.as_ref()?)));
        for (name, help, count) in COUNTERS {
            let values =
                by_rdma().map(|(uplink, rdma)| (vec![("uplink", uplink)], count(&rdma.counts) as f64));
            self.family(name, help, Counter, values)?;
        }
        let zero_copies = || {
            by_rdma().flat_map(|(uplink, rdma)| {
                rdma.pairs
                    .iter()
                    .filter_map(move |pair| Some((uplink, &*pair.vnic, pair.zero_copy.as_ref()?)))
            })
        };
        for (name, help, sent, received) in VNICS {
            let values = zero_copies().flat_map(|(uplink, vnic, zero_copy)| {
                each_way(uplink, vnic, [sent, received].map(|of| of(&zero_copy.counts)))
            });
            self.family(name, help, Counter, values)?;
        }
        let help = "1 where payload of a vNIC's frames is not copied, 0 where all is: sent from the guest's memory (tx), landing in it (rx)";
        let states = zero_copies().flat_map(|(uplink, vnic, zero_copy)| {
            let sent = zero_copy.copied_because.is_none();
            let lands = zero_copy.landing.as_ref().is_some_and(|landing| landing.copied_because.is_none());
            each_way(uplink, vnic, [sent, sent && lands].map(u64::from))
        });
        self.family("vnic_zero_copy", help, Gauge, states)?;
        let pairs = by_rdma().flat_map(|(uplink, rdma)| {
            rdma.pairs.iter().map(move |pair| {
                let labels = vec![("vnic", pair.vnic.as_str()), ("uplink", uplink)];
                (labels, f64::from(u8::from(pair.queue_pair.is_some())))
            })
        });
        let help =
            "1 where a vNIC with transport = \"rdma\" has a queue pair, 0 where its frames go as VXLAN";
        self.family("rdma_queue_pair", help, Gauge, pairs)
    }
}

/// Returns a vNIC's values of what it sends and receives, with their labels.
fn each_way<'l>(uplink: &'l str, vnic: &'l str, [tx, rx]: [u64; 2]) -> [(Labels<'l>, f64); 2] {
    [("tx", tx), ("rx", rx)]
        .map(|(way, value)| (vec![("vnic", vnic), ("uplink", uplink), ("direction", way)], value as f64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::metrics::encode;
    use crate::board::Published;
    use std::sync::Arc;
    use tidegate_evidence::{LandingStatus, QueuePairStatus, RdmaStatus, ZeroCopyStatus};

    #[test]
    fn each_counter_and_each_vnic_is_there() {
        // Each counter has another value.
        let counts: serde_json::Map<String, serde_json::Value> =
            serde_json::to_value(RdmaCounts::default()).unwrap().as_object().unwrap().clone();
        let counts = counts.into_iter().zip(100..).map(|((name, _), value)| (name, value.into())).collect();
        let counts: RdmaCounts = serde_json::from_value(serde_json::Value::Object(counts)).unwrap();
        let pair = |vnic: &str, queue_pair| QueuePairStatus {
            vnic: vnic.into(),
            queue_pair,
            ..QueuePairStatus::default()
        };
        let mut pairs = vec![pair("a", Some(17)), pair("b", None)];
        pairs[0].zero_copy = Some(ZeroCopyStatus {
            landing: Some(LandingStatus { copied_because: Some("no mergeable buffers".into()) }),
            counts: ZeroCopyCounts { sent: 31, sent_bytes: 32, received: 33, received_bytes: 34 },
            ..ZeroCopyStatus::default()
        });
        let view = UplinkView::with_rdma("net0", RdmaStatus { pairs, counts, ..RdmaStatus::default() });
        let uplinks = BTreeMap::from([("net0".to_owned(), view)]);
        let text = encode(Arc::new(Published { uplinks, ..Published::starting() })).unwrap();
        let values: std::collections::BTreeSet<&str> = text
            .lines()
            .filter(|line| line.starts_with("tidegate_rdma_") && line.contains("_total{"))
            .filter_map(|line| line.split(' ').nth(1))
            .collect();
        assert_eq!(values.len(), COUNTERS.len(), "{text}");
        assert_eq!(serde_json::to_value(counts).unwrap().as_object().unwrap().len(), COUNTERS.len());
        assert!(text.contains("tidegate_rdma_queue_pair{vnic=\"a\",uplink=\"net0\"} 1"), "{text}");
        assert!(text.contains("tidegate_rdma_queue_pair{vnic=\"b\",uplink=\"net0\"} 0"), "{text}");
        for (name, direction, value) in [
            ("vnic_zero_copy", "tx", 1),
            ("vnic_zero_copy", "rx", 0),
            ("vnic_zero_copied_frames_total", "tx", 31),
            ("vnic_zero_copied_bytes_total", "tx", 32),
            ("vnic_zero_copied_frames_total", "rx", 33),
            ("vnic_zero_copied_bytes_total", "rx", 34),
        ] {
            let line =
                format!("tidegate_{name}{{vnic=\"a\",uplink=\"net0\",direction=\"{direction}\"}} {value}");
            assert!(text.contains(&line), "{line}{text}");
        }
        assert!(!text.contains("tidegate_vnic_zero_copy{vnic=\"b\""), "it has not asked for that");
    }
}
