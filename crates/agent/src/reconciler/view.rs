//! What the agent knows, as the API shows it.

use super::Published;
use crate::api::types::{AdmissionView, Derivation, EgressView, Figure, Limits, Promise, WhyView};
use crate::place::Evidence;
use std::fmt::Write;
use tidegate_contract::{Admission, Vnic};
use tidegate_switch::stats::{Miss, Traffic, WorkerStats};

/// What is promised, with what was seen beside it.
pub fn admission(admission: &Admission, evidence: &[&Evidence]) -> AdmissionView {
    let violated = |workers: &[WorkerStats]| workers.iter().map(|w| w.loops_over_budget).sum::<u64>();
    let bounds = admission.bounds.iter().map(|b| {
        let place = evidence.iter().find(|e| e.vnics.contains_key(&b.vnic));
        let (violations, counted) = match place {
            Some(place) if !place.counts_latency => (0, "nobody counts how often it does not, here".into()),
            Some(place) => counted(violated(&place.workers)),
            None => counted(evidence.iter().map(|e| violated(&e.workers)).sum()),
        };
        let seen = place.and_then(|e| e.vnics.get(&b.vnic)).map(|s| s.realtime_worst_ns);
        Promise {
            vnic: b.vnic.clone(),
            egress: b.egress.clone(),
            deadline_ns: b.deadline.get(),
            bound_ns: b.bound.get(),
            margin_ns: b.margin().get(),
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
    let of = |way: &str, traffic: &Traffic| {
        let dropped = traffic.dropped.iter().map(|(reason, n)| (format!("{way}.dropped.{reason}"), *n));
        let figures = [
            (format!("{way}.frames"), traffic.frames),
            (format!("{way}.wire-frames"), traffic.wire_frames),
            (format!("{way}.bytes"), traffic.wire_bytes),
        ];
        figures.into_iter().chain(dropped).collect::<Vec<_>>()
    };
    let all = of("tx", &stats.tx).into_iter().chain(of("rx", &stats.rx));
    all.map(|(name, value)| Figure { name, value: Some(value), source: evidence.source.clone() }).collect()
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
    findings.extend(stats.misses.iter().map(|(cause, n)| misses(cause, *n, &latest_misses)));
    if stats.throttled_ns > 0 {
        let now = if stats.throttled { ", also right now" } else { "" };
        let hard = view.contract.tx.max.map(|r| format!("tx.max = {r}"));
        let limit = match (view.soft, hard) {
            (Some(soft), Some(hard)) if view.contract.tx.max != view.soft => {
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
    if findings.is_empty() {
        findings.push("nothing was late, throttled or dropped".into());
    }
    Some(WhyView {
        vnic: name.into(),
        findings,
        misses: stats.misses,
        latest_misses,
        tx_dropped: stats.tx.dropped,
        rx_dropped: stats.rx.dropped,
        throttled_ns: stats.throttled_ns,
    })
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
    if let Some(last) = latest.iter().rev().find(|m| m.cause == cause) {
        let _ = write!(text, "; the latest to {}", last.egress);
        if let Some(behind) = &last.behind {
            let _ = write!(text, " behind {behind}");
        }
        let _ = write!(text, " took {} of {}", duration(last.delay), duration(last.deadline));
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
