//! RDMA of a vNIC and of an uplink, as text.

use crate::format::{count, size};
use crate::table::{Align, Table};
use std::fmt::Write;
use tidegate_agent::views::VnicRdma;
use tidegate_evidence::{RdmaCounts, RdmaStatus, ZeroCopyStatus};
use tidegate_visible::visible;

/// Returns which way the frames of a vNIC go to vNICs of other hosts.
pub fn of_vnic(rdma: &VnicRdma) -> String {
    let mut out = String::from("\nRDMA\n");
    for pair in &rdma.pairs {
        let state = match (&pair.error, pair.number) {
            (Some(error), _) => visible(error).to_string(),
            (None, Some(number)) => format!("queue pair {number}"),
            (None, None) => "no queue pair yet".into(),
        };
        let failures =
            if pair.failures > 0 { format!(", {} replaced", count(pair.failures)) } else { String::new() };
        let _ = writeln!(out, "  {} at {}: {state}{failures}", pair.device, pair.uplink);
        out += &pair.zero_copy.as_ref().map(zero_copy).unwrap_or_default();
        let counts = pair.counts.iter();
        counts.for_each(|counts| out += &zero_copied(counts, &format!("  {} in all", pair.uplink)));
    }
    if rdma.pairs.is_empty() {
        out += "  the switch has no device for it: frames go as VXLAN\n";
    }
    if rdma.ways.is_empty() {
        return out + "  no vNIC of another host is known in its segment\n";
    }
    let mut table =
        Table::new(&[("to", Align::Left), ("MAC", Align::Left), ("host", Align::Left), ("by", Align::Left)]);
    for way in &rdma.ways {
        let by = match &way.vxlan_because {
            None => way.longest.map_or_else(
                || "RDMA".into(),
                |longest| format!("RDMA; packets beyond {longest} bytes as VXLAN"),
            ),
            Some(why) => format!("VXLAN: {}", visible(why)),
        };
        table.row([
            way.remote.clone().unwrap_or_else(|| "-".into()),
            way.mac.to_string(),
            way.peer.clone(),
            by,
        ]);
    }
    out += &table.render();
    if rdma.cut {
        out += "  the switch has more members than it tells: others are not shown\n";
    }
    out
}

/// Returns whether zero copy is in force, each way, or why not.
fn zero_copy(status: &ZeroCopyStatus) -> String {
    if let Some(why) = &status.copied_because {
        return format!("  zero copy: no: {}\n", visible(why));
    }
    let counts = &status.counts;
    let figures = |bytes, frames| format!("{} of {} frames", size(bytes), count(frames));
    let (out, into) =
        (figures(counts.sent_bytes, counts.sent), figures(counts.received_bytes, counts.received));
    let lands = match status.landing.as_ref().map(|landing| &landing.copied_because) {
        Some(None) => format!("yes: {into}"),
        Some(Some(why)) => format!("no: {}", visible(why)),
        None => "this switch is of an earlier release, which does not tell".into(),
    };
    let memory = size(status.registered);
    format!("  zero copy, out: yes, with {memory} of the guest's memory: {out}\n  zero copy, in: {lands}\n")
}

/// Returns what was copied and what was not, of all vNICs of an uplink, both ways.
fn zero_copied(counts: &RdmaCounts, of: &str) -> String {
    let mut out = String::new();
    for (way, frames, zero_copied, copied) in [
        ("out", counts.zero_copied_out, counts.zero_copied_out_bytes, counts.copied_out),
        ("in", counts.zero_copied_in, counts.zero_copied_in_bytes, counts.copied_in),
    ] {
        let (frames, zero_copied, copied) = (count(frames), size(zero_copied), size(copied));
        let _ = writeln!(out, "{of}, {way}: {zero_copied} of {frames} frames zero-copied, {copied} copied");
    }
    out
}

/// Returns why no frame leaves an uplink by RDMA, if none does, and the counters.
pub fn of_uplink(status: &RdmaStatus) -> String {
    let mut out = format!("\nRDMA by {}, datagrams of {} bytes\n", status.device, status.mtu);
    if let Some(error) = &status.error {
        let _ = writeln!(out, "  no frame leaves by it: {}", visible(error));
    }
    let counts = &status.counts;
    for (what, number) in [
        ("sent", counts.sent),
        ("received", counts.received),
        ("lost on the way here", counts.lost),
        ("not sent", counts.unsent),
        ("of no member", counts.unknown_member),
        ("with another source", counts.spoofed),
        ("malformed", counts.malformed),
        ("waited for a buffer", counts.no_buffers),
        ("in too many pieces", counts.too_many_pieces),
        ("in no region", counts.no_region),
        ("guests with holes", counts.holes),
        ("not destroyed", counts.undestroyed_pairs),
    ] {
        if number > 0 || matches!(what, "sent" | "received" | "not sent") {
            let _ = writeln!(out, "  {what:<20}  {}", count(number));
        }
    }
    if counts.zero_copied_out > 0 || counts.zero_copied_in > 0 {
        out += &zero_copied(counts, "  of it");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_agent::views::{RdmaWay, VnicQueuePair};
    use tidegate_evidence::{LandingStatus, RdmaCounts, ZeroCopyCounts};

    #[test]
    fn each_way_has_its_reason() {
        let way = |last, why: Option<&str>| RdmaWay {
            remote: None,
            mac: tidegate_contract::Mac([2, 0, 0, 0, 0, last]),
            peer: "host2".into(),
            vxlan_because: why.map(Into::into),
            longest: (last == 3).then_some(1400),
        };
        let pair = VnicQueuePair {
            uplink: "net0".into(),
            device: "rxe0".into(),
            number: Some(17),
            failures: 2,
            ..VnicQueuePair::default()
        };
        let ways = vec![way(1, None), way(2, Some("no route")), way(3, None)];
        let rdma = VnicRdma { pairs: vec![pair], ways, cut: true };
        let text = of_vnic(&rdma);
        assert!(text.contains("rxe0 at net0: queue pair 17, 2 replaced"), "{text}");
        assert!(text.contains("host2  RDMA") && text.contains("host2  VXLAN: no route"), "{text}");
        assert!(text.contains("RDMA; packets beyond 1400 bytes as VXLAN"), "{text}");
        assert!(text.ends_with("than it tells: others are not shown\n"), "{text}");
        assert!(of_vnic(&VnicRdma::default()).contains("no device for it"));
    }

    #[test]
    fn zero_copy_is_told_with_its_figures() {
        let counts = RdmaCounts {
            zero_copied_out: 1_000,
            zero_copied_out_bytes: 4_000_000,
            copied_out: 192_000,
            no_region: 5,
            ..RdmaCounts::default()
        };
        let pair = |copied_because: Option<&str>| VnicQueuePair {
            uplink: "net0".into(),
            number: Some(17),
            zero_copy: Some(ZeroCopyStatus {
                copied_because: copied_because.map(Into::into),
                registered: 1 << 30,
                counts: ZeroCopyCounts { sent: 900, sent_bytes: 3_000_000, ..ZeroCopyCounts::default() },
                landing: Some(LandingStatus { copied_because: Some("\u{1b}no mergeable buffers".into()) }),
                ..ZeroCopyStatus::default()
            }),
            counts: Some(counts),
            ..VnicQueuePair::default()
        };
        let mut lands = pair(None);
        if let Some(told) = &mut lands.zero_copy {
            told.landing = Some(LandingStatus::default());
            told.counts = ZeroCopyCounts { received: 4, received_bytes: 5_000, ..told.counts };
        }
        let pairs = vec![pair(None), lands, pair(Some("\u{1b}not preallocated"))];
        let text = of_vnic(&VnicRdma { pairs, ..VnicRdma::default() });
        let of_it = "\n  zero copy, out: yes, with 1.07 GB of the guest's memory: 3.00 MB of 900 frames\n  zero copy, in: no: ";
        assert!(text.contains(of_it), "{text}");
        assert!(text.contains("\n  zero copy, in: yes: 5.00 kB of 4 frames\n"), "{text}");
        assert!(text.contains("zero copy: no: ") && !text.contains('\u{1b}'), "{text}");
        let out = "net0 in all, out: 4.00 MB of 1,000 frames zero-copied, 192 kB copied\n";
        assert!(text.contains(out), "{text}");
        let status = RdmaStatus { counts, ..RdmaStatus::default() };
        let text = of_uplink(&status);
        assert!(text.contains("of it, out: 4.00 MB") && text.contains("in no region          5"), "{text}");
        assert!(!text.contains("guests with holes"), "{text}");
    }

    #[test]
    fn counters_that_are_zero_are_left_out() {
        let counts = RdmaCounts { sent: 7, lost: 3, ..RdmaCounts::default() };
        let status = RdmaStatus { device: "rxe0".into(), mtu: 4096, counts, ..RdmaStatus::default() };
        let text = of_uplink(&status);
        assert!(
            text.contains("datagrams of 4096 bytes") && text.contains("lost on the way here  3"),
            "{text}"
        );
        assert!(text.contains("received") && !text.contains("malformed"), "{text}");
    }
}
