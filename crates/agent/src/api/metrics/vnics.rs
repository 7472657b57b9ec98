//! Metrics of each vNIC; directions are the VM's.

use super::families::{Families, Kind::Counter, Kind::Gauge, Labels, NANOS};
use crate::board::PlaceFacts;
use crate::views::{Promise, State, VnicView};
use std::collections::BTreeMap;
use std::fmt;
use tidegate_contract::{Nanos, Rate, Vnic};
use tidegate_evidence::{CulpritKind, Delay, Quantity, Traffic, Unknown, VnicStats};

impl Families<'_, '_> {
    /// The vNICs: traffic, waits, misses, contracts.
    pub(super) fn vnics(
        &mut self,
        vnics: &BTreeMap<String, VnicView>,
        places: &BTreeMap<String, PlaceFacts>,
        bounds: &[Promise],
    ) -> fmt::Result {
        let counters: Vec<Counters<'_>> =
            vnics.values().filter_map(|view| Counters::of(view, places)).collect();
        let counting = |what: Quantity| counters.iter().filter(move |c| c.count(what));
        let real_time: Vec<(&str, &VnicView, Nanos)> = vnics
            .values()
            .filter_map(|v| Some((v.name.as_str(), v, v.contract.as_ref()?.deadline?)))
            .collect();
        self.family("vnic_wire_bytes", "Bytes on the wire, headers of every segment included", Counter, {
            counters.iter().flat_map(|c| c.ways(|t| t.wire_bytes))
        })?;
        self.family("vnic_wire_frames", "Frames on the wire; a super-frame counts its segments", Counter, {
            counters.iter().flat_map(|c| c.ways(|t| t.wire_frames))
        })?;
        self.family("vnic_frames", "Frames as the guest hands them over; a super-frame is one", Counter, {
            counting(Quantity::SuperFrames).flat_map(|c| c.ways(|t| t.frames))
        })?;
        self.family("vnic_dropped_frames", "Frames dropped, by reason", Counter, {
            counters.iter().flat_map(|c| {
                [("tx", &c.stats.tx), ("rx", &c.stats.rx)].into_iter().flat_map(move |(way, t)| {
                    let labels = move |r| vec![("vnic", c.name), ("direction", way), ("reason", r)];
                    t.dropped.iter().map(move |(reason, count)| (labels(reason.as_str()), *count as f64))
                })
            })
        })?;
        self.family("vnic_marked_frames", "Frames marked (ECN) in place of being dropped", Counter, {
            counters.iter().filter(|c| c.tells_flows).flat_map(|c| c.ways(|t| t.marked))
        })?;
        self.family(
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
        self.delays(help, "vnic_token_wait_seconds", waits(|s| [&s.tokens_tx, &s.tokens_rx]))?;
        let help =
            "The same wait, of frames in a queue by flow that found no frame of their flow before them";
        self.delays(help, "vnic_sparse_wait_seconds", waits(|s| [&s.sparse_tx, &s.sparse_rx]))?;
        self.family("vnic_throttled_seconds", "Time with frames waiting for tokens", Counter, {
            counting(Quantity::Throttled).map(|c| (c.labels(), c.stats.throttled_ns as f64 * NANOS))
        })?;
        self.family(
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
        self.family(
            "vnic_realtime_delivered_frames",
            "Real-time frames delivered, in time or late",
            Counter,
            counting(Quantity::Deadline).map(|c| (c.labels(), c.stats.realtime_delivered as f64)),
        )?;
        self.family("vnic_deadline_misses", "Deadline misses, by cause", Counter, {
            counting(Quantity::Deadline).flat_map(|c| {
                let labels = move |cause| vec![("vnic", c.name), ("cause", cause)];
                c.stats.misses.iter().map(move |(cause, count)| (labels(cause.as_str()), *count as f64))
            })
        })?;
        let help =
            "Certain and possible deadline misses for which the worker was late, by what delayed the worker";
        self.family("vnic_worker_culprits", help, Counter, {
            // Zeros too: a counter that first appears with its first event hides that event.
            real_time.iter().filter(|(_, view, _)| view.worker.is_some()).flat_map(|(name, view, _)| {
                let count = |kind| view.culprits.get(kind).copied().unwrap_or_default();
                let labels = |kind| vec![("vnic", *name), ("culprit", kind)];
                CulpritKind::ALL.iter().map(move |kind| (labels(kind.label()), count(kind.label()) as f64))
            })
        })?;
        self.family(
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
        self.delays(
            help,
            "vnic_delay_seconds",
            counting(Quantity::Delay).map(|c| (c.labels(), &c.stats.delay)),
        )?;
        let help = "Least possible Tr - Ts of the same frames; the sum is up to 3 % too high";
        let least = counting(Quantity::Delay).map(|c| (c.labels(), &c.stats.delay_least));
        self.delays(help, "vnic_delay_least_seconds", least)?;
        self.family("vnic_contract_bits_per_second", "Rates of the contract", Gauge, {
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
        self.family("vnic_soft_limit_bits_per_second", "Limit that the guest itself has set", Gauge, {
            let soft = |v: &VnicView| v.soft.map(|r| r.bits() as f64);
            vnics.values().filter_map(move |v| Some((vec![("vnic", v.name.as_str())], soft(v)?)))
        })?;
        self.family("vnic_deadline_seconds", "Deadline of the contract", Gauge, {
            real_time.iter().map(|(n, _, deadline)| (vec![("vnic", *n)], deadline.get() as f64 * NANOS))
        })?;
        self.family(
            "vnic_deadline_suspended",
            "1 where the deadline of the contract is not promised right now, 0 where it is",
            Gauge,
            {
                let value = |v: &VnicView| f64::from(u8::from(v.deadline_suspended.is_some()));
                real_time.iter().map(move |(n, view, _)| (vec![("vnic", *n)], value(view)))
            },
        )?;
        self.family("vnic_delay_bound_seconds", "Computed delay bound, by egress", Gauge, {
            bounds.iter().filter(|b| b.suspended.is_none()).map(|b| {
                (vec![("vnic", b.vnic.as_str()), ("egress", b.egress.as_str())], b.bound_ns as f64 * NANOS)
            })
        })?;
        self.family(
            "vnic_in_force",
            "1 where the contract is in force, 0 where it is pending, failed or refused",
            Gauge,
            {
                let value = |v: &VnicView| f64::from(u8::from(v.state == State::InForce));
                vnics.values().map(move |v| (vec![("vnic", v.name.as_str())], value(v)))
            },
        )?;

        self.family(
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
        self.family(
            "vnic_held_up",
            "Times that objects of a front end delayed a thread of the switch",
            Counter,
            vnics.values().map(|v| (vec![("vnic", v.name.as_str())], v.held.events as f64)),
        )?;
        self.family(
            "vnic_quarantines",
            "Quarantines of a vNIC because objects of its front end delayed a thread of the switch",
            Counter,
            vnics.values().map(|v| (vec![("vnic", v.name.as_str())], v.held.quarantines as f64)),
        )?;
        Ok(())
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
