//! Parts of the state, as the API shows them.

use crate::views::{AdmissionView, BeyondView, Derivation, EgressView, Promise};
use tidegate_contract::Admission;
use tidegate_evidence::{Evidence, Figure, Quantity, Traffic, WorkerStats, total};

/// Returns the promises, with the worst delays seen; `suspended` says why a vNIC's deadline is not promised.
pub fn admission(
    admission: &Admission,
    evidence: &[&Evidence],
    suspended: impl Fn(&str) -> Option<String>,
) -> AdmissionView {
    let violated = |workers: &[WorkerStats]| total(workers.iter().map(|w| w.loops_over_budget));
    let bounds = admission.bounds.iter().map(|b| {
        let place = evidence.iter().find(|e| e.vnics.contains_key(&b.vnic));
        let (violations, counted) = match place {
            Some(place) if !place.counts_latency => (0, "its place does not count violations".into()),
            Some(place) => counted(violated(&place.workers)),
            None => counted(total(evidence.iter().map(|e| violated(&e.workers)))),
        };
        let seen = place.and_then(|e| e.vnics.get(&b.vnic)).map(|s| s.realtime_worst_ns);
        Promise {
            vnic: b.vnic.clone(),
            egress: b.egress.clone(),
            deadline_ns: b.deadline.get(),
            bound_ns: b.bound.get(),
            margin_ns: b.margin().get(),
            suspended: suspended(&b.vnic),
            beyond: b.beyond.as_ref().map(|away| BeyondView {
                peer: away.peer.clone(),
                latency_ns: away.latency.get(),
                arrival_budget_ns: away.arrival_budget.get(),
            }),
            worst_seen_ns: seen.filter(|worst| *worst > 0),
            derivation: Derivation {
                critical_t_ns: b.critical_t.get(),
                demand_bytes: b.demand.get(),
                blocking_bytes: b.blocking.get(),
                capacity_bps: b.capacity.bits(),
                host_latency_ns: b.host_latency.get(),
                text: b.to_string(),
            },
            holds_if: format!(
                "host latency {} held ({counted}) and the receiver had buffers",
                b.host_latency
            ),
            host_latency_violations: violations,
        }
    });
    let egresses = admission.egresses.iter().map(|e| EgressView {
        egress: e.egress.clone(),
        capacity_bps: e.capacity.bits(),
        realtime_bps: e.realtime_bits,
        guaranteed_bps: e.guaranteed_bits,
        remaining_bps: e.remaining_bits,
        vnics: e.vnics.clone(),
    });
    AdmissionView { egresses: egresses.collect(), bounds: bounds.collect() }
}

/// Returns the violations of the host latency, and the same in words.
fn counted(violations: u64) -> (u64, String) {
    (violations, format!("violated {violations} times"))
}

/// Returns each figure of a vNIC, with its source.
pub fn figures(name: &str, evidence: &Evidence) -> Vec<Figure> {
    if let Some(figures) = evidence.figures.get(name) {
        return figures.clone();
    }
    let Some(stats) = evidence.vnics.get(name) else { return vec![] };
    let why_not = |what: Quantity| evidence.unknown.get(name).and_then(|unknown| unknown.get(&what));
    let of = |way: &str, whole: Quantity, traffic: &Traffic| {
        let figure = |key: &str, value: u64, why_not: Option<&String>| Figure {
            name: format!("{way}.{key}"),
            value: why_not.is_none().then_some(value),
            source: why_not.unwrap_or(&evidence.source).clone(),
        };
        let of_it = why_not(whole);
        let dropped =
            traffic.dropped.iter().map(|(reason, n)| figure(&format!("dropped.{reason}"), *n, of_it));
        let figures = [
            figure("frames", traffic.frames, of_it.or(why_not(Quantity::SuperFrames))),
            figure("wire-frames", traffic.wire_frames, of_it),
            figure("bytes", traffic.wire_bytes, of_it),
        ];
        figures.into_iter().chain(dropped).collect::<Vec<_>>()
    };
    let (tx, rx) = (of("tx", Quantity::Tx, &stats.tx), of("rx", Quantity::Rx, &stats.rx));
    tx.into_iter().chain(rx).collect()
}
