//! Prometheus metrics, in OpenMetrics text.
//!
//! Times are seconds, sizes bytes, rates bits per second; directions are the VM's.

mod cores;

use crate::board::{PlaceFacts, Published};
use crate::views::{AttentionKind, State, UplinkView, VnicView};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use tidegate_contract::{Nanos, Rate, Vnic};
use tidegate_evidence::{
    CulpritKind, Delay, LogStats, OnWire, PeerCounts, PeerStatus, Traffic, VnicStats, total,
};
use tidegate_evidence::{Quantity, Unknown};

pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Upper ends of the delay buckets, microseconds: 1, 2, 5 in every decade from 1 us to 10 s.
const BUCKETS: [u64; 22] = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000,
    500_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000,
];

const NANOS: f64 = 1e-9;

pub fn encode(published: Arc<Published>) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("tidegate");
    registry.register_collector(Box::new(Snapshot(published)));
    let mut out = String::new();
    text::encode(&mut out, &registry)?;
    Ok(out)
}

#[derive(Debug)]
struct Snapshot(Arc<Published>);

type Labels<'a> = Vec<(&'static str, &'a str)>;

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let Published { host, status, vnics, uplinks, places, peers, cores, .. } = &*self.0;
        let counters: Vec<Counters<'_>> =
            vnics.values().filter_map(|view| Counters::of(view, places)).collect();
        let counting = |what: Quantity| counters.iter().filter(move |c| c.count(what));
        let real_time: Vec<(&str, &VnicView, Nanos)> = vnics
            .values()
            .filter_map(|v| Some((v.name.as_str(), v, v.contract.as_ref()?.deadline?)))
            .collect();
        let mut out = Families(&mut encoder);

        out.family("vnic_wire_bytes", "Bytes on the wire, headers of every segment included", Counter, {
            counters.iter().flat_map(|c| c.ways(|t| t.wire_bytes))
        })?;
        out.family("vnic_wire_frames", "Frames on the wire; a super-frame counts its segments", Counter, {
            counters.iter().flat_map(|c| c.ways(|t| t.wire_frames))
        })?;
        out.family("vnic_frames", "Frames as the guest hands them over; a super-frame is one", Counter, {
            counting(Quantity::SuperFrames).flat_map(|c| c.ways(|t| t.frames))
        })?;
        out.family("vnic_dropped_frames", "Frames dropped, by reason", Counter, {
            counters.iter().flat_map(|c| {
                [("tx", &c.stats.tx), ("rx", &c.stats.rx)].into_iter().flat_map(move |(way, t)| {
                    let labels = move |r| vec![("vnic", c.name), ("direction", way), ("reason", r)];
                    t.dropped.iter().map(move |(reason, count)| (labels(reason.as_str()), *count as f64))
                })
            })
        })?;
        out.family("vnic_marked_frames", "Frames marked (ECN) in place of being dropped", Counter, {
            counters.iter().filter(|c| c.tells_flows).flat_map(|c| c.ways(|t| t.marked))
        })?;
        out.family(
            "vnic_waiting_flows",
            "Flows of which frames wait for a limit of the vNIC's own",
            Gauge,
            counters.iter().filter(|c| c.tells_flows).flat_map(|c| c.ways(|t| t.flows_now)),
        )?;
        let waits = |of: for<'a> fn(&'a VnicStats) -> [&'a Option<Delay>; 2]| {
            counters.iter().flat_map(move |c| {
                let labels = move |way| vec![("vnic", c.name), ("direction", way)];
                let both = ["tx", "rx"].into_iter().zip(of(c.stats));
                both.filter_map(move |(way, waits)| Some((labels(way), waits.as_ref()?)))
            })
        };
        let help = "Wait of frames for tx.max or rx.max of their vNIC; 0 for frames that did not wait";
        out.delays(help, "vnic_token_wait_seconds", waits(|s| [&s.tokens_tx, &s.tokens_rx]))?;
        let help =
            "The same wait, of frames in a queue by flow that found no frame of their flow before them";
        out.delays(help, "vnic_sparse_wait_seconds", waits(|s| [&s.sparse_tx, &s.sparse_rx]))?;
        out.family("vnic_throttled_seconds", "Time with frames waiting for tokens", Counter, {
            counting(Quantity::Throttled).map(|c| (c.labels(), c.stats.throttled_ns as f64 * NANOS))
        })?;
        out.family(
            "vnic_worker_seconds",
            "Time of its worker that is charged to the vNIC, by stage",
            Counter,
            {
                counters.iter().flat_map(|c| {
                    let labels = move |stage| vec![("vnic", c.name), ("stage", stage)];
                    let stages = c.stats.work.as_ref().map(|work| {
                        let stage = [work.take_ns, work.deliver_ns, work.buffers_ns, work.kicks_ns];
                        ["take", "deliver", "buffers", "kicks"].into_iter().zip(stage)
                    });
                    let seconds = move |(stage, ns)| (labels(stage), ns as f64 * NANOS);
                    stages.into_iter().flatten().map(seconds)
                })
            },
        )?;
        out.family(
            "vnic_realtime_delivered_frames",
            "Real-time frames delivered, in time or late",
            Counter,
            counting(Quantity::Deadline).map(|c| (c.labels(), c.stats.realtime_delivered as f64)),
        )?;
        out.family("vnic_deadline_misses", "Deadline misses, by cause", Counter, {
            counting(Quantity::Deadline).flat_map(|c| {
                let labels = move |cause| vec![("vnic", c.name), ("cause", cause)];
                c.stats.misses.iter().map(move |(cause, count)| (labels(cause.as_str()), *count as f64))
            })
        })?;
        let help =
            "Certain and possible deadline misses for which the worker was late, by what delayed the worker";
        out.family("vnic_worker_culprits", help, Counter, {
            // Zeros too: a counter that first appears with its first event hides that event.
            real_time.iter().filter(|(_, view, _)| view.worker.is_some()).flat_map(|(name, view, _)| {
                let count = |kind| view.culprits.get(kind).copied().unwrap_or_default();
                let labels = |kind| vec![("vnic", *name), ("culprit", kind)];
                CulpritKind::ALL.iter().map(move |kind| (labels(kind.label()), count(kind.label()) as f64))
            })
        })?;
        out.family(
            "vnic_possible_deadline_misses",
            "Frames whose largest possible delay exceeds the deadline and whose least possible delay does not, by \
             what is unknown",
            Counter,
            counting(Quantity::Deadline).flat_map(|c| {
                let labels = move |unknown| vec![("vnic", c.name), ("unknown", unknown)];
                [("arrival", c.stats.misses_possible), ("wake-up", c.stats.misses_asleep)]
                    .map(|(unknown, count)| (labels(unknown), count as f64))
            }),
        )?;
        let help = "Largest possible Tr - Ts of the delivered frames that the vNIC sent; the sum is up to 3 % too high";
        out.delays(
            help,
            "vnic_delay_seconds",
            counting(Quantity::Delay).map(|c| (c.labels(), &c.stats.delay)),
        )?;
        let help = "Least possible Tr - Ts of the same frames; the sum is up to 3 % too high";
        let least = counting(Quantity::Delay).map(|c| (c.labels(), &c.stats.delay_least));
        out.delays(help, "vnic_delay_least_seconds", least)?;
        out.family("vnic_contract_bits_per_second", "Rates of the contract", Gauge, {
            vnics.values().flat_map(|v| {
                let of = |rate: fn(&Vnic) -> Option<Rate>| v.contract.as_ref().and_then(rate);
                let rates = [
                    ("tx", "max", of(|c| c.tx.max)),
                    ("tx", "min", of(|c| c.tx.min)),
                    ("rx", "max", of(|c| c.rx.max)),
                ];
                rates.into_iter().filter_map(|(way, kind, rate)| {
                    let labels = vec![("vnic", v.name.as_str()), ("direction", way), ("kind", kind)];
                    Some((labels, rate?.bits() as f64))
                })
            })
        })?;
        out.family("vnic_soft_limit_bits_per_second", "Limit that the guest itself has set", Gauge, {
            let soft = |v: &VnicView| v.soft.map(|r| r.bits() as f64);
            vnics.values().filter_map(move |v| Some((vec![("vnic", v.name.as_str())], soft(v)?)))
        })?;
        out.family("vnic_deadline_seconds", "Deadline of the contract", Gauge, {
            real_time.iter().map(|(n, _, deadline)| (vec![("vnic", *n)], deadline.get() as f64 * NANOS))
        })?;
        out.family(
            "vnic_deadline_suspended",
            "1 where the deadline of the contract is not promised right now, 0 where it is",
            Gauge,
            {
                let value = |v: &VnicView| f64::from(u8::from(v.deadline_suspended.is_some()));
                real_time.iter().map(move |(n, view, _)| (vec![("vnic", *n)], value(view)))
            },
        )?;
        out.family("vnic_delay_bound_seconds", "Computed delay bound, by egress", Gauge, {
            host.admission.bounds.iter().filter(|b| b.suspended.is_none()).map(|b| {
                (vec![("vnic", b.vnic.as_str()), ("egress", b.egress.as_str())], b.bound_ns as f64 * NANOS)
            })
        })?;
        out.family(
            "vnic_in_force",
            "1 where the contract is in force, 0 where it is pending, failed or refused",
            Gauge,
            {
                let value = |v: &VnicView| f64::from(u8::from(v.state == State::InForce));
                vnics.values().map(move |v| (vec![("vnic", v.name.as_str())], value(v)))
            },
        )?;

        out.family(
            "vnic_thrown_out",
            "Front ends that the switch disconnected because of their actions, by reason",
            Counter,
            {
                vnics.values().flat_map(|v| {
                    let labels = |reason| vec![("vnic", v.name.as_str()), ("reason", reason)];
                    v.thrown_out.iter().map(move |(reason, count)| (labels(reason.as_str()), *count as f64))
                })
            },
        )?;
        out.family(
            "vnic_held_up",
            "Times that objects of a front end delayed a thread of the switch",
            Counter,
            vnics.values().map(|v| (vec![("vnic", v.name.as_str())], v.held.events as f64)),
        )?;
        out.family(
            "vnic_quarantines",
            "Quarantines of a vNIC because objects of its front end delayed a thread of the switch",
            Counter,
            vnics.values().map(|v| (vec![("vnic", v.name.as_str())], v.held.quarantines as f64)),
        )?;

        let counted = || uplinks.values().filter_map(|view| Some((view.name.as_str(), view.stats.as_ref()?)));
        let both = |count: fn(&Traffic) -> u64| {
            counted().flat_map(move |(name, stats)| {
                let labels = move |way| vec![("uplink", name), ("direction", way)];
                [("sent", &stats.sent), ("received", &stats.received)]
                    .map(|(way, traffic)| (labels(way), count(traffic) as f64))
            })
        };
        out.family(
            "uplink_frames",
            "Frames between hosts, without copies; a super-frame counts its segments",
            Counter,
            both(|t| t.wire_frames),
        )?;
        out.family(
            "uplink_bytes",
            "Bytes of these frames, without outer headers",
            Counter,
            both(|t| t.wire_bytes),
        )?;
        out.family(
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
        out.family("uplink_wire_frames", help, Counter, on_wire(|wire| wire.frames))?;
        let help = "Bytes of these outer frames, without FCS";
        out.family("uplink_wire_bytes", help, Counter, on_wire(|wire| wire.bytes))?;
        let help = "Copies of flooded frames that left, beyond the first of each";
        out.family("uplink_flood_copies", help, Counter, on_wire(|wire| wire.copies))?;
        out.family(
            "uplink_in_force",
            "1 where the uplink is in force, 0 where it is pending, failed or broken",
            Gauge,
            {
                let value = |view: &UplinkView| f64::from(u8::from(view.state == State::InForce));
                uplinks.values().map(move |view| (vec![("uplink", view.name.as_str())], value(view)))
            },
        )?;

        let workers: Vec<String> = (0..host.workers.len()).map(|i| i.to_string()).collect();
        let workers = || workers.iter().zip(&host.workers).map(|(i, w)| (vec![("worker", i.as_str())], w));
        out.family("worker_loops", "Worker loops that found work", Counter, {
            workers().map(|(l, w)| (l, w.loops as f64))
        })?;
        out.family("worker_loops_over_budget", "Worker loops longer than the host budget", Counter, {
            workers().map(|(l, w)| (l, w.loops_over_budget as f64))
        })?;
        out.family("worker_longest_loop_seconds", "The longest worker loop", Gauge, {
            workers().map(|(l, w)| (l, w.longest_loop_ns as f64 * NANOS))
        })?;
        out.family("worker_asleep_seconds", "Time a worker slept", Counter, {
            workers().map(|(l, w)| (l, w.asleep_ns as f64 * NANOS))
        })?;
        out.family("worker_awake_seconds", "Time a worker was awake with nothing to do", Counter, {
            workers().map(|(l, w)| (l, w.awake_ns as f64 * NANOS))
        })?;
        out.family("switch_denied_calls", "System calls denied to the switch", Counter, {
            [(vec![], host.denied_calls as f64)].into_iter()
        })?;
        out.family("worker_events_lost", "Events of a worker that the log does not report", Counter, {
            workers().map(|(l, w)| (l, w.events_lost as f64))
        })?;
        let logs = |count: fn(&LogStats) -> u64| {
            let of = move |(process, log)| (vec![("process", String::as_str(process))], count(log) as f64);
            host.logs.iter().map(of)
        };
        out.family(
            "log_lost_lines",
            "Lines that were not written: the program that reads the log is slow",
            Counter,
            logs(|log| log.lost),
        )?;
        out.family(
            "log_suppressed_lines",
            "Lines that the limit left out: enough of their kind were written",
            Counter,
            logs(|log| log.suppressed),
        )?;
        out.cores(cores.as_ref())?;
        out.peers(peers)?;
        out.pairs(uplinks.values())?;
        out.family("place_reachable", "1 where the place answers", Gauge, {
            host.places.iter().map(|p| (vec![("place", p.name.as_str())], f64::from(u8::from(p.reachable))))
        })?;
        out.family("agent_reconcile_errors", "Failed attempts to bring a contract into force", Counter, {
            [(vec![], host.reconcile_errors as f64)].into_iter()
        })?;
        out.family(
            "agent_drift_repaired",
            "Differences between contract and place that the agent repaired",
            Counter,
            [(vec![], host.drift_repaired as f64)].into_iter(),
        )?;
        let refused = host.files.iter().filter(|f| f.error.is_some()).count();
        out.family("agent_refused_files", "Files whose present contents are not in force", Gauge, {
            [(vec![], refused as f64)].into_iter()
        })?;
        out.family("agent_attention", "Problems that need a person, by kind; 0 without a problem", Gauge, {
            AttentionKind::ALL.into_iter().map(|kind| {
                let count = status.attention.iter().filter(|a| a.kind == kind).count();
                (vec![("kind", kind.label())], count as f64)
            })
        })
    }
}

/// The counters of one vNIC, without those that its place does not count: a reader would take a 0 for a figure.
struct Counters<'a> {
    name: &'a str,
    stats: &'a VnicStats,
    unknown: &'a Unknown,
    /// Whether its place counts flows and marks.
    tells_flows: bool,
}

impl<'a> Counters<'a> {
    fn of(view: &'a VnicView, places: &BTreeMap<String, PlaceFacts>) -> Option<Self> {
        let tells_flows = places.get(&view.place).is_some_and(|place| place.counts_flows);
        let (name, unknown) = (&view.name, &view.unknown);
        Some(Self { name, stats: view.stats.as_ref()?, unknown, tells_flows })
    }

    fn count(&self, what: Quantity) -> bool {
        !self.unknown.contains_key(&what)
    }

    fn labels(&self) -> Labels<'a> {
        vec![("vnic", self.name)]
    }

    /// Returns a figure for each direction that is counted.
    fn ways(&self, value: impl Fn(&Traffic) -> u64) -> impl Iterator<Item = (Labels<'a>, f64)> {
        [("tx", Quantity::Tx, &self.stats.tx), ("rx", Quantity::Rx, &self.stats.rx)]
            .into_iter()
            .filter(|(_, what, _)| self.count(*what))
            .map(move |(way, _, traffic)| {
                (vec![("vnic", self.name), ("direction", way)], value(traffic) as f64)
            })
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
}
use Kind::{Counter, Gauge};

struct Families<'a, 'b>(&'a mut DescriptorEncoder<'b>);

impl Families<'_, '_> {
    /// Frames with a deadline between vNICs here and remotes.
    fn pairs<'l>(&mut self, uplinks: impl Iterator<Item = &'l UplinkView>) -> fmt::Result {
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

    /// What is exchanged with other hosts.
    fn peers(&mut self, peers: &[PeerStatus]) -> fmt::Result {
        fn labels(peer: &PeerStatus) -> Labels<'_> {
            vec![("peer", peer.name.as_str())]
        }
        let gauge = |of: fn(&PeerStatus) -> Option<f64>| {
            peers.iter().filter_map(move |peer| Some((labels(peer), of(peer)?)))
        };
        let count = |of: fn(&PeerCounts) -> u64| {
            peers.iter().map(move |peer| (labels(peer), of(&peer.counts) as f64))
        };
        let offset = gauge(|peer| Some(peer.clock?.offset_ns as f64 * NANOS));
        self.family(
            "peer_clock_offset_seconds",
            "The peer's clock less this host's, CLOCK_MONOTONIC_RAW",
            Gauge,
            offset,
        )?;
        let error = gauge(|peer| Some(peer.clock?.error_ns as f64 * NANOS));
        self.family("peer_clock_error_seconds", "Largest error of the offset", Gauge, error)?;
        let least = gauge(|peer| Some(peer.round_trip?.least_ns as f64 * NANOS));
        self.family("peer_round_trip_seconds", "Least round trip of the last 32 exchanges", Gauge, least)?;
        let asked = peers.iter().filter(|peer| peer.unasked.is_none());
        let reachable = asked.map(|peer| (labels(peer), f64::from(u8::from(peer.reachable))));
        self.family("peer_reachable", "1 where a peer whose clock is asked answers", Gauge, reachable)?;
        self.family("peer_exchanges", "Clock exchanges done", Counter, count(|c| c.exchanges))?;
        self.family(
            "peer_missing_replies",
            "Clock requests without an answer",
            Counter,
            count(|c| c.missing),
        )?;
        self.family(
            "peer_restarts",
            "Starts of another switch process at the peer",
            Counter,
            count(|c| c.restarts),
        )?;
        let refused = peers.iter().flat_map(|peer| {
            let of = |why| vec![("peer", peer.name.as_str()), ("reason", why)];
            peer.counts.refused.iter().map(move |(why, count)| (of(why.as_str()), *count as f64))
        });
        self.family(
            "peer_refused_notices",
            "Notices of the peer that were not taken, by reason",
            Counter,
            refused,
        )?;
        let help = "Frames of this host that the peer reported as late";
        self.family("peer_late_frames", help, Counter, count(|c| c.late_frames))
    }

    fn family<'l>(
        &mut self,
        name: &str,
        help: &str,
        kind: Kind,
        values: impl Iterator<Item = (Labels<'l>, f64)>,
    ) -> fmt::Result {
        let metric_type = match kind {
            Counter => MetricType::Counter,
            Gauge => MetricType::Gauge,
        };
        let mut values = values.peekable();
        if values.peek().is_none() {
            return Ok(());
        }
        let mut encoder = self.0.encode_descriptor(name, help, None, metric_type)?;
        for (labels, value) in values {
            if labels.is_empty() {
                write(&mut encoder, kind, value)?;
            } else {
                write(&mut encoder.encode_family(&labels)?, kind, value)?;
            }
        }
        Ok(())
    }

    fn delays<'l>(
        &mut self,
        help: &str,
        name: &str,
        values: impl Iterator<Item = (Labels<'l>, &'l Delay)>,
    ) -> fmt::Result {
        let mut values = values.peekable();
        if values.peek().is_none() {
            return Ok(());
        }
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (labels, delay) in values {
            encoder.encode_family(&labels)?.encode_histogram::<[(&str, &str); 0]>(
                sum(delay),
                total(delay.buckets.iter().map(|(_, n)| *n)),
                &buckets(delay),
                None,
            )?;
        }
        Ok(())
    }
}

fn write(encoder: &mut MetricEncoder<'_>, kind: Kind, value: f64) -> fmt::Result {
    match kind {
        Counter => encoder.encode_counter::<[(&str, &str); 0], f64, f64>(&value, None),
        Gauge => encoder.encode_gauge(&value),
    }
}

fn sum(delay: &Delay) -> f64 {
    // Not `sum`: the sum of nothing is -0.0.
    delay.buckets.iter().fold(0.0, |sum, (upper, n)| sum + *upper as f64 * *n as f64) * NANOS
}

/// Returns pairs: le in seconds, frames in this bucket. A fine bucket counts where its upper end lies.
fn buckets(delay: &Delay) -> Vec<(f64, u64)> {
    let mut rest = delay.buckets.iter().peekable();
    let mut up_to = |limit: u64| {
        let mut n = 0;
        while let Some((_, count)) = rest.next_if(|(upper, _)| *upper <= limit) {
            n = count.saturating_add(n);
        }
        n
    };
    let mut buckets: Vec<(f64, u64)> =
        BUCKETS.iter().map(|us| (*us as f64 / 1e6, up_to(us * 1_000))).collect();
    buckets.push((f64::INFINITY, up_to(u64::MAX)));
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::RefusedBy;
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
