//! What the agent knows, as the API shows it.

use super::Published;
use crate::api::types::{
    AdmissionView, Derivation, EgressView, Figure, Limits, Promise, Quantity, RefusedBy, State, VnicView,
    WhyView,
};
use crate::place::Evidence;
use std::collections::BTreeMap;
use std::fmt::Write;
use tidegate_contract::{Admission, Vnic};
use tidegate_switch::stats::{Culprit, Miss, MissCause, Traffic, WorkerStats, total};

/// What is promised, with what was seen beside it; `suspended` says of a vNIC why its deadline is not promised.
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

/// How often the host's latency was violated, and the same in words.
fn counted(violations: u64) -> (u64, String) {
    (violations, format!("violated {violations} times"))
}

/// Each figure of a vNIC, with where it was read.
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

/// A vNIC that only a refused file names.
pub fn refused(name: String, by: RefusedBy, contract: Option<Vnic>, place: String) -> VnicView {
    let of_it = contract.as_ref();
    VnicView {
        name,
        owner: format!("file:{}", by.file),
        place,
        state: State::Refused,
        reason: Some(by.to_string()),
        refused: Some(by),
        deadline_suspended: of_it.and_then(|c| c.deadline).map(|_| "its contract is refused".into()),
        connection: None,
        last_error: None,
        worker: None,
        refused_connections: 0,
        heir: false,
        thrown_out: BTreeMap::new(),
        held: Default::default(),
        stats: None,
        culprits: BTreeMap::new(),
        unknown: BTreeMap::new(),
        figures: vec![],
        tx_rate_bps: None,
        rx_rate_bps: None,
        limits: Limits::default(),
        soft: None,
        tx_in_force: None,
        promises: vec![],
        contract,
    }
}

/// The limits of a contract.
pub fn limits(vnic: &Vnic) -> Limits {
    Limits {
        tx_bps: vnic.tx.max.map(|r| r.bits()),
        tx_burst_bytes: vnic.tx.max.map(|r| vnic.tx.burst_or_default(r).get()),
        tx_min_bps: vnic.tx.min.map(|r| r.bits()),
        rx_bps: vnic.rx.max.map(|r| r.bits()),
    }
}

/// Why frames of one vNIC were late, throttled or dropped; `None` where there is no such vNIC.
pub fn why(published: &Published, name: &str) -> Option<WhyView> {
    let view = published.vnics.get(name)?;
    let latest_misses = published.misses.get(name).cloned().unwrap_or_default();
    let stats = view.stats.clone().unwrap_or_default();
    let mut findings = Vec::new();
    if let Some(reason) = &view.reason {
        findings.push(format!("state: {reason}"));
    }
    if let Some(by) = view.refused.as_ref().filter(|_| view.state != State::Refused) {
        findings.push(format!("{by}; what it said before stays in force"));
    }
    let contract = view.contract.as_ref();
    if let (Some(why), Some(deadline)) = (&view.deadline_suspended, contract.and_then(|c| c.deadline)) {
        findings.push(format!("its deadline of {deadline} is not promised: {why}"));
    }
    findings.extend(host_latency(&view.promises));
    findings.extend(stats.misses.iter().map(|(cause, n)| misses(cause, *n, &latest_misses)));
    if stats.misses_possible > 0 {
        findings.push(format!(
            "{} possible deadline misses: in time by when a poll first showed the frame, late by the last poll that did not",
            stats.misses_possible
        ));
    }
    if stats.throttled_ns > 0 {
        let now = if stats.throttled { ", also right now" } else { "" };
        let max = contract.and_then(|c| c.tx.max);
        let hard = max.map(|r| format!("tx.max = {r}"));
        let limit = match (view.soft, hard) {
            (Some(soft), Some(hard)) if max != view.soft => {
                format!("the soft limit of {soft} that its guest has set ({hard})")
            }
            (Some(soft), None) => format!("the soft limit of {soft} that its guest has set"),
            (_, Some(hard)) => hard,
            (None, None) => "its limit".into(),
        };
        findings.push(format!(
            "throttled for {} in all{now}: the VM sends more than {limit}",
            duration(stats.throttled_ns)
        ));
    }
    for (way, dropped) in [("sent", &stats.tx.dropped), ("should have received", &stats.rx.dropped)] {
        findings.extend(
            dropped.iter().map(|(reason, n)| format!("{n} frames dropped of what the VM {way}: {reason}")),
        );
    }
    // A super-frame more or less explains nothing.
    let unknown = view.unknown.iter().filter(|(what, _)| **what != Quantity::SuperFrames);
    findings.extend(unknown.map(|(what, why)| format!("not known: {}: {why}", what.label())));
    if findings.is_empty() && view.stats.is_some() {
        findings.push("nothing was late, throttled or dropped".into());
    }
    let possibly = stats.misses_possible > 0 || stats.misses_asleep > 0;
    let for_worker = possibly || stats.misses.contains_key(MissCause::Worker.label());
    let for_worker = for_worker && view.place == "switch";
    Some(WhyView {
        vnic: name.into(),
        findings,
        culprits: view.culprits.clone(),
        unobserved: published.unobserved.clone().filter(|_| for_worker),
        misses: stats.misses,
        misses_possible: stats.misses_possible,
        misses_asleep: stats.misses_asleep,
        latest_misses,
        tx_dropped: stats.tx.dropped,
        rx_dropped: stats.rx.dropped,
        throttled_ns: stats.throttled_ns,
    })
}

/// That a bound did not hold, for the host took too long.
fn host_latency(promises: &[Promise]) -> Option<String> {
    let broken = promises.iter().find(|p| p.suspended.is_none() && p.host_latency_violations > 0)?;
    Some(format!(
        "its delay bound holds while worker loops take at most host-latency (H, {}): {} took longer since the switch was \
         started, and no bound held then",
        duration(broken.derivation.host_latency_ns),
        broken.host_latency_violations
    ))
}

fn misses(cause: &str, n: u64, latest: &[Miss]) -> String {
    let waited = match cause {
        "tokens" => "they waited for tokens of their own envelope",
        "queue" => "they waited behind other frames in the queue",
        "buffers" => "they waited for the receiver's buffers",
        "worker" => "the worker, or on netdevs the kernel, was late",
        "network" => "they were late in the network",
        _ => "they were dropped",
    };
    let mut text = format!("{n} deadline misses: {waited}");
    if let Some(last) = latest.iter().rev().find(|m| m.cause == cause && m.is_certain()) {
        let _ = write!(text, "; the latest to {}", last.egress);
        if let Some(behind) = &last.behind {
            let _ = write!(text, " behind {behind}");
        }
        let _ = write!(text, " took {} of {}", duration(last.delay), duration(last.deadline));
        if let Some(Culprit { what, took, .. }) = &last.culprit {
            let _ = write!(text, ", of which {what} took {}", duration(*took));
        }
    }
    text
}

fn duration(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{} us", ns / 1_000),
        10_000_000..10_000_000_000 => format!("{} ms", ns / 1_000_000),
        _ => format!("{} s", ns / 1_000_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_that_did_not_hold_is_a_finding() {
        let derivation = Derivation {
            critical_t_ns: 0,
            demand_bytes: 0,
            blocking_bytes: 0,
            capacity_bps: 0,
            host_latency_ns: 250_000,
            text: String::new(),
        };
        let mut promise = Promise {
            vnic: "plc1".into(),
            egress: "sink".into(),
            deadline_ns: 1_000_000,
            bound_ns: 900_000,
            margin_ns: 100_000,
            suspended: None,
            worst_seen_ns: None,
            derivation,
            holds_if: String::new(),
            host_latency_violations: 0,
        };
        let by = RefusedBy { file: "a.toml".into(), line: None, reason: "a test".into() };
        let mut published = super::super::publish::nothing();
        let view = VnicView { refused: None, ..refused("plc1".into(), by, None, String::new()) };
        let said = |promise: &Promise, published: &mut Published| {
            let view = VnicView { promises: vec![promise.clone()], ..view.clone() };
            published.vnics.insert("plc1".into(), view);
            why(published, "plc1").expect("there is one").findings.join("; ")
        };
        assert!(!said(&promise, &mut published).contains("host-latency"));
        promise.host_latency_violations = 3;
        let findings = said(&promise, &mut published);
        assert!(findings.contains("host-latency (H, 250 us): 3 took longer"), "{findings}");
        promise.suspended = Some("its memory is sparse".into());
        assert!(!said(&promise, &mut published).contains("host-latency"));
    }
}
