//! Metrics of uplinks, and of pairs of vNICs over them.

use super::families::{Families, Kind::Counter, Kind::Gauge};
use crate::views::{State, UplinkView};
use std::collections::BTreeMap;
use std::fmt;
use tidegate_evidence::{OnWire, Traffic};

impl Families<'_, '_> {
    /// The uplinks of this host.
    pub(super) fn uplinks(&mut self, uplinks: &BTreeMap<String, UplinkView>) -> fmt::Result {
        let counted = || uplinks.values().filter_map(|view| Some((view.name.as_str(), view.stats.as_ref()?)));
        let both = |count: fn(&Traffic) -> u64| {
            counted().flat_map(move |(name, stats)| {
                let labels = move |way| vec![("uplink", name), ("direction", way)];
                [("sent", &stats.sent), ("received", &stats.received)]
                    .map(|(way, traffic)| (labels(way), count(traffic) as f64))
            })
        };
        self.family(
            "uplink_frames",
            "Frames between hosts, without copies; a super-frame counts its segments",
            Counter,
            both(|t| t.wire_frames),
        )?;
        self.family(
            "uplink_bytes",
            "Bytes of these frames, without outer headers",
            Counter,
            both(|t| t.wire_bytes),
        )?;
        self.family(
            "uplink_dropped_frames",
            "Frames between hosts dropped at the uplink, by reason",
            Counter,
            {
                counted().flat_map(|(name, stats)| {
                    [("sent", &stats.sent), ("received", &stats.received)].into_iter().flat_map(
                        move |(way, t)| {
                            let labels = move |r| vec![("uplink", name), ("direction", way), ("reason", r)];
                            t.dropped
                                .iter()
                                .map(move |(reason, count)| (labels(reason.as_str()), *count as f64))
                        },
                    )
                })
            },
        )?;
        let on_wire = |count: fn(&OnWire) -> u64| {
            counted().map(move |(name, stats)| (vec![("uplink", name)], count(&stats.on_wire) as f64))
        };
        let help = "Outer frames that left, copies of floods included";
        self.family("uplink_wire_frames", help, Counter, on_wire(|wire| wire.frames))?;
        let help = "Bytes of these outer frames, without FCS";
        self.family("uplink_wire_bytes", help, Counter, on_wire(|wire| wire.bytes))?;
        let help = "Copies of flooded frames that left, beyond the first of each";
        self.family("uplink_flood_copies", help, Counter, on_wire(|wire| wire.copies))?;
        self.family(
            "uplink_in_force",
            "1 where the uplink is in force, 0 where it is pending, failed or broken",
            Gauge,
            {
                let value = |view: &UplinkView| f64::from(u8::from(view.state == State::InForce));
                uplinks.values().map(move |view| (vec![("uplink", view.name.as_str())], value(view)))
            },
        )?;
        Ok(())
    }

    /// Frames with a deadline between vNICs here and remotes.
    pub(super) fn pairs<'l>(&mut self, uplinks: impl Iterator<Item = &'l UplinkView>) -> fmt::Result {
        let frames = uplinks.flat_map(|uplink| &uplink.pairs).flat_map(|pair| {
            let fates = [
                ("sent", pair.sent),
                ("met", pair.met),
                ("late_sender", pair.late.sender),
                ("late_network", pair.late.network),
                ("late_receiver", pair.late.receiver),
                ("uncertain", pair.uncertain.total()),
                ("unjudged", pair.unjudged),
                ("dropped", pair.dropped),
                ("lost", pair.lost),
                ("replayed", pair.replayed),
                ("forged", pair.forged),
                ("excess", pair.excess),
            ];
            let of =
                |fate| vec![("vnic", pair.vnic.as_str()), ("remote", pair.remote.as_str()), ("fate", fate)];
            fates.map(|(fate, count)| (of(fate), count as f64))
        });
        let help = "Frames with a deadline between a vNIC and a vNIC of another host, by fate";
        self.family("pair_frames", help, Counter, frames)
    }
}
