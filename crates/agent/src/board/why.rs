//! Why frames of a vNIC were late, throttled or dropped, in words and figures.

use super::Published;
use crate::views::{OwnWait, Promise, State, VnicView, WhyView};
use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};
use tidegate_evidence::Quantity;
use tidegate_evidence::{Culprit, Delay, FarMiss, Miss, MissCause, NetworkPath, Traffic, total};

/// Explains the late, throttled and dropped frames of a vNIC, from the figures in `view`: of a window, or since its port
/// was made.
pub fn why(published: &Published, view: &VnicView) -> WhyView {
    let name = &view.name;
    let mut latest_misses = published.misses.get(name).cloned().unwrap_or_default();
    let mut far_misses = published.far_misses.get(name).cloned().unwrap_or_default();
    if let Some(window) = &view.window {
        let begins = time_of_day().saturating_sub(window.covers_ns);
        latest_misses.retain(|miss| miss.at >= begins);
        far_misses.retain(|miss| miss.at >= begins);
    }
    let stats = view.stats.clone().unwrap_or_default();
    let mut findings = Vec::new();
    if let Some(reason) = &view.reason {
        findings.push(format!("state: {reason}"));
    }
    if let Some(by) = view.refused.as_ref().filter(|_| view.state != State::Refused) {
        findings.push(format!("{by}; the earlier contract stays in force"));
    }
    let contract = view.contract.as_ref();
    if let (Some(why), Some(deadline)) = (&view.deadline_suspended, contract.and_then(|c| c.deadline)) {
        findings.push(format!("its deadline of {deadline} is not promised: {why}"));
    }
    findings.extend(view.paths.iter().filter_map(late_in_network));
    findings.extend(host_latency(&view.promises));
    findings.extend(stats.misses.iter().map(|(cause, n)| misses(cause, *n, &latest_misses)));
    if stats.misses_possible > 0 {
        findings.push(format!(
            "{} possible deadline misses: in time by when a poll first showed the frame, late by the last poll that did not",
            stats.misses_possible
        ));
    }
    findings.extend(late_elsewhere(&far_misses));
    let tx_limit = tx_limit(view);
    if stats.throttled_ns > 0 {
        let now = if stats.throttled { ", also right now" } else { "" };
        let all = if view.window.is_some() { "" } else { " in all" };
        findings.push(format!(
            "throttled for {}{all}{now}: the VM sends more than {tx_limit}",
            duration(stats.throttled_ns)
        ));
    }
    let rx_limit =
        contract.and_then(|c| c.rx.max).map_or_else(|| "its limit".into(), |r| format!("rx.max = {r}"));
    findings.extend(waited("sent", &tx_limit, stats.tokens_tx.as_ref()));
    findings.extend(waited_alone("sent", stats.sparse_tx.as_ref()));
    findings.extend(waited("received", &rx_limit, stats.tokens_rx.as_ref()));
    findings.extend(waited_alone("received", stats.sparse_rx.as_ref()));
    for (way, traffic) in [("sent", &stats.tx), ("received", &stats.rx)] {
        if traffic.marked > 0 {
            findings.push(format!(
                "{} frames that the VM {way} were marked (ECN): they waited for long",
                traffic.marked
            ));
        }
    }
    for (way, dropped) in [("sent", &stats.tx.dropped), ("should have received", &stats.rx.dropped)] {
        findings.extend(
            dropped.iter().map(|(reason, n)| format!("{n} frames that the VM {way} were dropped: {reason}")),
        );
    }
    // An unknown count of super-frames explains nothing.
    let unknown = view.unknown.iter().filter(|(what, _)| **what != Quantity::SuperFrames);
    findings.extend(unknown.map(|(what, why)| format!("not known: {}: {why}", what.label())));
    if findings.is_empty() && view.stats.is_some() {
        findings.push("nothing was late, throttled or dropped".into());
    }
    let possibly = stats.misses_possible > 0 || stats.misses_asleep > 0;
    let for_worker = possibly || stats.misses.contains_key(MissCause::Worker.label());
    let place = published.places.get(&view.place).filter(|_| for_worker);
    WhyView {
        vnic: name.clone(),
        findings,
        window: view.window,
        tx_wait: own_wait(tx_limit, [stats.tokens_tx, stats.sparse_tx], &stats.tx),
        rx_wait: own_wait(rx_limit, [stats.tokens_rx, stats.sparse_rx], &stats.rx),
        // Counted since the start of the agent, not by window.
        culprits: view.culprits.clone().into_iter().filter(|_| view.window.is_none()).collect(),
        unobserved: place.and_then(|place| place.unobserved.clone()),
        misses: stats.misses,
        misses_possible: stats.misses_possible,
        misses_asleep: stats.misses_asleep,
        latest_misses,
        far_misses,
        tx_dropped: stats.tx.dropped,
        rx_dropped: stats.rx.dropped,
        throttled_ns: stats.throttled_ns,
    }
}

fn tx_limit(view: &VnicView) -> String {
    let max = view.contract.as_ref().and_then(|c| c.tx.max);
    let hard = max.map(|r| format!("tx.max = {r}"));
    match (view.soft, hard) {
        (Some(soft), Some(hard)) if max != view.soft => {
            format!("the soft limit of {soft} that its guest has set ({hard})")
        }
        (Some(soft), None) => format!("the soft limit of {soft} that its guest has set"),
        (_, Some(hard)) => hard,
        (None, None) => "its limit".into(),
    }
}

/// Says how long frames waited for the vNIC's own limit; `None` if none waited.
fn waited(way: &str, limit: &str, waits: Option<&Delay>) -> Option<String> {
    let waits = waits.filter(|waits| waits.max > 0)?;
    Some(format!(
        "of {} frames that the VM {way}, half waited for its own limit ({limit}) for at most {}, 99 % for {}, 99.9 % for {}, \
         the longest for {}",
        waits.count,
        duration(waits.p50),
        duration(waits.p99),
        duration(waits.p999),
        duration(waits.max)
    ))
}

/// Says how long frames waited that found no frame of their flow before them; `None` if there were none.
fn waited_alone(way: &str, waits: Option<&Delay>) -> Option<String> {
    let waits = waits.filter(|waits| waits.count > 0)?;
    Some(format!(
        "of {} frames that the VM {way} and that had none of their flow before them, such as a ping beside uploads, half waited \
         for at most {}, 99 % for {}, the longest for {}",
        waits.count,
        duration(waits.p50),
        duration(waits.p99),
        duration(waits.max)
    ))
}

/// Returns how frames waited for a limit of the vNIC's own; `None` if nothing was counted.
fn own_wait(limit: String, [waited, sparse]: [Option<Delay>; 2], traffic: &Traffic) -> Option<OwnWait> {
    let Traffic { marked, flows_now, flows_most, .. } = *traffic;
    let [flows_now, flows_most] = [flows_now, flows_most].map(|flows| (flows_most > 0).then_some(flows));
    let sparse = sparse.filter(|sparse| sparse.count > 0);
    Some(OwnWait { limit, waited: waited?, sparse, marked, flows_now, flows_most })
}

/// Returns the time of day (ns since the epoch).
fn time_of_day() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64)
}

/// Says that frames of a path were late in the network; `None` if none was.
fn late_in_network(path: &NetworkPath) -> Option<String> {
    (path.misses > 0).then(|| {
        let reasons = if path.reasons.is_empty() { String::new() } else { format!(": {}", path.reasons.join("; ")) };
        format!(
            "{} frames to {} were late in the network, as hosts reported to its controller; its path is {}{reasons}",
            path.misses, path.remote, path.state
        )
    })
}

/// Says that a delay bound did not hold because worker loops took longer than host-latency.
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
        "tokens" => "they waited for tokens of their own contract",
        "queue" => "they waited behind other frames in the queue",
        "buffers" => "they waited for the receiver's buffers",
        "worker" => "the worker, or on netdevs the kernel, was late",
        cause if cause == MissCause::Network.label() => "they were late in the network",
        "sender" => "they left another host late",
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

/// Says that frames were late at other hosts; `None` if no report says so for certain.
fn late_elsewhere(reported: &[FarMiss]) -> Option<String> {
    let last = reported.iter().rev().find(|miss| miss.is_certain())?;
    let frames = total(reported.iter().map(|miss| 1 + u64::from(miss.others)));
    let what =
        if last.dropped { "dropped".to_owned() } else { format!("late by {}", duration(last.late_ns)) };
    Some(format!(
        "{frames} frames were late at other hosts, by their latest reports; the last one at {}, for {}, was {what} (cause: {})",
        last.peer, last.dst, last.cause
    ))
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
    use crate::board::PlaceFacts;
    use crate::views::{Derivation, RefusedBy};
    use tidegate_evidence::VnicStats;

    #[test]
    fn only_the_vnics_own_place_says_why_its_worker_is_not_observed() {
        let facts = PlaceFacts { unobserved: Some("no right to".into()), ..PlaceFacts::default() };
        let places = [("here".to_owned(), facts), ("there".to_owned(), PlaceFacts::default())].into();
        let published = Published { places, ..Published::starting() };
        let by = RefusedBy { file: "a.toml".into(), line: None, reason: "a test".into() };
        let unobserved = |place: &str, misses_possible| {
            let stats = Some(VnicStats { misses_possible, ..VnicStats::default() });
            let view = VnicView::refused("a".into(), by.clone(), None, place.into());
            why(&published, &VnicView { stats, ..view }).unobserved
        };
        assert_eq!(unobserved("here", 1).as_deref(), Some("no right to"));
        assert_eq!((unobserved("here", 0), unobserved("there", 1)), (None, None));
    }

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
            beyond: None,
            derivation,
            holds_if: String::new(),
            host_latency_violations: 0,
        };
        let by = RefusedBy { file: "a.toml".into(), line: None, reason: "a test".into() };
        let published = Published::starting();
        let view = VnicView { refused: None, ..VnicView::refused("plc1".into(), by, None, String::new()) };
        let said = |promise: &Promise, published: &Published| {
            let view = VnicView { promises: vec![promise.clone()], ..view.clone() };
            why(published, &view).findings.join("; ")
        };
        assert!(!said(&promise, &published).contains("host-latency"));
        promise.host_latency_violations = 3;
        let findings = said(&promise, &published);
        assert!(findings.contains("host-latency (H, 250 us): 3 took longer"), "{findings}");
        promise.suspended = Some("its memory is sparse".into());
        assert!(!said(&promise, &published).contains("host-latency"));
    }
}
