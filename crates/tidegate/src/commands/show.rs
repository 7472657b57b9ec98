//! The text of `tidegate vnic show NAME`.

use crate::commands::frame_times::FrameTimes;
use crate::commands::rdma;
use crate::commands::window;
use crate::format::{self, count, duration, plural, size};
use crate::table::{Align, Table};
use std::fmt::Write;
use tidegate_agent::views::{Promise, State, VnicView};
use tidegate_contract::{Attach, Bytes, Discipline, FlowQueueing, Nanos, Queueing, Rate, SocketMode, Vnic};
use tidegate_evidence::{Connection, NetworkPath, SharedStatus};
use tidegate_evidence::{Delay, VnicStats, total};
use tidegate_evidence::{Quantity, Unknown};

pub fn text(view: &VnicView) -> String {
    let mut out = format!("{}\n", view.name);
    for (key, value) in facts(view) {
        let _ = writeln!(out, "  {key:<10}  {value}");
    }
    out.push('\n');
    match (&view.stats, view.state) {
        (_, State::Refused) => return out + "No part of the contract is in force.\n",
        (Some(stats), _) => {
            out += &window::title(view.window);
            out += &counters(view, stats, &view.unknown);
        }
        (None, _) => out += "No counters: the place of this vNIC does not know the vNIC.\n",
    }
    for promise in &view.promises {
        out.push('\n');
        out += &match &promise.suspended {
            Some(why) => suspended(view, promise, why),
            None => derivation(view, promise),
        };
    }
    out += &paths(&view.paths);
    out += &view.rdma.as_ref().map(rdma::of_vnic).unwrap_or_default();
    if deadline(view).is_some() && view.promises.is_empty() {
        out += "\nNo delay bound: the agent has computed none for this vNIC.\n";
    }
    out
}

/// Tells how each path through the network stands.
fn paths(paths: &[NetworkPath]) -> String {
    let mut out = String::new();
    for path in paths {
        let promise = match path.bound_ns.filter(|_| path.promised) {
            Some(bound) => format!("at most {} of {}", Nanos::new(bound), Nanos::new(path.budget_ns)),
            None => format!("not promised, {} asked for", Nanos::new(path.budget_ns)),
        };
        let _ = writeln!(out, "\npath to {}: {}, {promise}", path.remote, path.state);
        let level = path.level.map(|level| level.to_string());
        let links = Some(path.links.join(" ")).filter(|links| !links.is_empty());
        let port = path.port.map(|port| format!("{port} (outer UDP source port)"));
        // Frames of a plain NIC have no stamp.
        let misses = if path.ends_at_nic {
            Some("not measured: the promise ends at the far host's NIC".to_owned())
        } else {
            (path.misses > 0).then(|| format!("{} late frames reported", path.misses))
        };
        for (key, value) in [("level", level), ("links", links), ("port", port), ("misses", misses)] {
            if let Some(value) = value {
                let _ = writeln!(out, "  {key:<6} = {value}");
            }
        }
        for reason in &path.reasons {
            let _ = writeln!(out, "  {}", tidegate_visible::visible(reason));
        }
    }
    out
}

/// Lists every figure with its source, one per line.
pub fn statistics(view: &VnicView) -> String {
    if view.figures.is_empty() {
        return format!("{}: no counters: the place of this vNIC does not know the vNIC.\n", view.name);
    }
    let mut table = Table::new(&[("figure", Align::Left), ("value", Align::Right), ("source", Align::Left)]);
    for figure in &view.figures {
        let value = figure.value.map_or_else(|| "unknown".into(), |v| v.to_string());
        table.row([figure.name.clone(), value, figure.source.clone()]);
    }
    table.render()
}

/// Returns the condition of a vNIC in a word or two: its connection, or what is wrong.
pub fn condition(view: &VnicView) -> String {
    let condition = match view.state {
        State::InForce => connection(view.connection).to_owned(),
        State::Pending => "pending".into(),
        State::Failed => "failed".into(),
        State::Refused => return "refused".into(),
    };
    match view.refused {
        Some(_) => condition + " (file refused)",
        None => condition,
    }
}

pub fn deadline(view: &VnicView) -> Option<Nanos> {
    view.contract.as_ref()?.deadline
}

pub fn tx_max(view: &VnicView) -> Option<Rate> {
    view.contract.as_ref()?.tx.max
}

pub fn connection(connection: Option<Connection>) -> &'static str {
    match connection {
        Some(Connection::Up) => "up",
        Some(Connection::Connected) => "connected",
        Some(Connection::Waiting) => "waiting",
        Some(Connection::Disconnected) => "disconnected",
        None => "absent",
    }
}

/// Returns the guest's own limit if it is lower than `tx.max`.
pub fn soft(view: &VnicView) -> Option<Rate> {
    view.soft.filter(|soft| tx_max(view).is_none_or(|hard| *soft < hard))
}

pub fn attachment(attach: &Attach) -> String {
    match attach {
        Attach::VhostUser { path, mode: SocketMode::Server, .. } => {
            format!("vhost-user {}", format::path(path))
        }
        Attach::VhostUser { path, mode: SocketMode::Client, .. } => {
            format!("vhost-user {} (client)", format::path(path))
        }
        Attach::Tap { name, netns: None } => format!("tap {name}"),
        Attach::Tap { name, netns: Some(netns) } => format!("tap {name} in {}", format::path(netns)),
        Attach::Netdev { name } => format!("netdev {name}"),
        Attach::Vf { pf, index, .. } => format!("vf {pf}/{index}"),
    }
}

fn facts(view: &VnicView) -> Vec<(&'static str, String)> {
    let mut facts = contract_facts(view);
    let refused = match (&view.refused, view.state) {
        (Some(by), State::Refused) => Some(by.to_string()),
        (Some(by), _) => Some(format!("{by}\nits earlier contracts are in force")),
        (None, _) => None,
    };
    let reason = view.reason.clone().filter(|_| view.state != State::Refused);
    let reasons = [("reason", reason), ("refused", refused)];
    let reasons = reasons.into_iter().filter_map(|(key, value)| Some((key, indent_following_lines(&value?))));
    // The reason and the refusal stand below the facts about the contract as a whole.
    let below = facts.iter().position(|(key, _)| *key == "mac").unwrap_or(facts.len());
    facts.splice(below..below, reasons);
    facts
}

/// Indents all lines after the first.
fn indent_following_lines(text: &str) -> String {
    text.lines().collect::<Vec<_>>().join(&format!("\n{:14}", ""))
}

/// Lists the contract's terms; if the contract is unreadable, its state and owner.
fn contract_facts(view: &VnicView) -> Vec<(&'static str, String)> {
    let state = match view.state {
        State::InForce => "in force",
        State::Pending => "pending",
        State::Failed => "failed",
        State::Refused => "refused",
    };
    let state_and_owner =
        format!("{state}, from {}", view.owner.strip_prefix("file:").unwrap_or(&view.owner));
    let Some(contract) = &view.contract else { return vec![("contract", state_and_owner)] };
    let Vnic { attach, mac, segment, tx, rx, queueing, weight, deadline, to, mtu, queues, guest, .. } =
        contract;
    let terms = |terms: Vec<Option<String>>| {
        let terms: Vec<String> = terms.into_iter().flatten().collect();
        if terms.is_empty() { "no limit".to_owned() } else { terms.join(", ") }
    };
    let term = |key: &str, value: Option<String>| value.map(|v| format!("{key} {v}"));
    let mut facts = vec![
        ("attach", attachment(attach)),
        ("connection", connection(view.connection).into()),
        ("contract", state_and_owner),
        ("mac", mac.to_string()),
        ("segment", segment.to_string()),
        (
            "tx",
            terms(vec![
                term("max", tx.max.map(|v| v.to_string())),
                term("the guest asks for", view.soft.map(|v| v.to_string())),
                term("min", tx.min.map(|v| v.to_string())),
                term("burst", tx.burst.map(|v| v.to_string())),
            ]),
        ),
        (
            "rx",
            terms(vec![
                term("max", rx.max.map(|v| v.to_string())),
                term("burst", rx.burst.map(|v| v.to_string())),
                term("queue", rx.queue.map(|v| v.to_string())),
                (rx.discipline == Discipline::Fifo).then(|| "first come, first served".into()),
            ]),
        ),
        ("queueing", self::queueing(*queueing)),
        ("weight", weight.to_string()),
    ];
    if let Some(worker) = view.worker {
        facts.insert(2, ("worker", worker.to_string()));
    }
    if let Some(deadline) = deadline {
        let promised = match &view.deadline_suspended {
            Some(why) => format!("{deadline}, not promised right now: {why}"),
            None => deadline.to_string(),
        };
        facts.push(("deadline", promised));
    }
    if !to.is_empty() {
        facts.push(("to", to.join(", ")));
    }
    let link_local = view.stats.iter().flat_map(|stats| &stats.link_local).map(ToString::to_string);
    let link_local: Vec<String> = link_local.collect();
    if !link_local.is_empty() {
        facts.push(("link-local", link_local.join(", ")));
    }
    if !view.shared.is_empty() {
        let one = |shared: &SharedStatus| match &shared.holder {
            Some(holder) if *holder == view.name => format!("{} (this vNIC has it)", shared.address),
            Some(holder) => format!("{} ({holder} has it)", shared.address),
            None => format!("{} (no vNIC has it)", shared.address),
        };
        facts.push(("shared", view.shared.iter().map(one).collect::<Vec<_>>().join(", ")));
    }
    facts.extend([("mtu", mtu.to_string()), ("queues", queues.to_string())]);
    if let Some(guest) = guest {
        facts.push(("guest", format::path(guest)));
    }
    facts
}

fn queueing(queueing: Queueing) -> String {
    match queueing {
        Queueing::Fifo => "fifo".into(),
        Queueing::Flows(_) if queueing.is_default() => "flows".into(),
        Queueing::Flows(FlowQueueing { target, interval, per_host }) => {
            let hosts = if per_host { ", per host" } else { "" };
            format!("flows, target {target}, interval {interval}{hosts}")
        }
    }
}

fn counters(view: &VnicView, stats: &VnicStats, unknown: &Unknown) -> String {
    let known = |figure: String, parts: &[Quantity]| {
        if parts.iter().any(|part| unknown.contains_key(part)) { "unknown".to_owned() } else { figure }
    };
    let mut table = Table::new(&[
        ("", Align::Left),
        ("frames", Align::Right),
        ("on the wire", Align::Right),
        ("bytes", Align::Right),
        ("dropped", Align::Right),
    ]);
    for (name, way, traffic) in [("sent", Quantity::Tx, &stats.tx), ("received", Quantity::Rx, &stats.rx)] {
        table.row([
            name.to_owned(),
            known(count(traffic.frames), &[way, Quantity::SuperFrames]),
            known(count(traffic.wire_frames), &[way]),
            known(size(traffic.wire_bytes), &[way]),
            known(count(total(traffic.dropped.values().copied())), &[way, Quantity::Drops]),
        ]);
    }
    let mut out = table.render();
    if stats.throttled_ns > 0 {
        let now = if stats.throttled { ", also right now" } else { "" };
        let all = if view.window.is_some() { "" } else { " in all" };
        let _ = writeln!(out, "throttled for {}{all}{now}", duration(stats.throttled_ns));
    }
    for (what, limit, waits, sparse, traffic) in [
        ("what it sent", "tx.max", &stats.tokens_tx, &stats.sparse_tx, &stats.tx),
        ("what it received", "rx.max", &stats.tokens_rx, &stats.sparse_rx, &stats.rx),
    ] {
        let Some(waits) = waits.as_ref().filter(|waits| waits.count > 0) else { continue };
        let _ = writeln!(out, "wait of {what} for its own {limit}: {}", quantiles(waits));
        if let Some(sparse) = sparse.as_ref().filter(|sparse| sparse.count > 0 && waits.max > 0) {
            let _ = writeln!(out, "  with no frame of their flow waiting: {}", quantiles(sparse));
        }
        if traffic.marked > 0 || traffic.flows_now > 0 || waits.max > 0 && traffic.flows_most > 0 {
            let _ = writeln!(
                out,
                "  marked (ECN) {}; flows that wait: {} now, {} at most",
                count(traffic.marked),
                count(traffic.flows_now),
                count(traffic.flows_most)
            );
        }
    }
    if let (Some(work), Some(times)) = (&stats.work, FrameTimes::between(&VnicStats::default(), stats)) {
        let stages = [
            ("to take what it sends", work.take_ns, times.take),
            ("to deliver what was queued", work.deliver_ns, times.deliver),
            ("for its small buffers", work.buffers_ns, times.buffers),
            ("for its kicks", work.kicks_ns, None),
        ];
        let stage = |(what, ns, a_frame): (&str, u64, Option<f64>)| match a_frame {
            Some(a_frame) => {
                format!("{} {what} ({} a frame)", duration(ns), duration(a_frame.round() as u64))
            }
            None => format!("{} {what}", duration(ns)),
        };
        let stages: Vec<_> = stages.into_iter().filter(|(_, ns, _)| *ns > 0).map(stage).collect();
        if !stages.is_empty() {
            let _ = writeln!(out, "time of its worker: {}", stages.join(", "));
        }
    }
    let delay = &stats.delay;
    if delay.count > 0 && !delay_is_own_wait(stats) {
        let after = if stats.tokens_tx.is_some() { ", after that wait" } else { "" };
        let _ = writeln!(out, "delay of what it sent{after}: {}", quantiles(delay));
    }
    let least = &stats.delay_least;
    if least.count > 0 && least.buckets != delay.buckets {
        let _ = writeln!(out, "  by the first poll that showed it: {}", quantiles(least));
    }
    out
}

/// Returns whether the delay is the wait for the vNIC's own limit: the kernel place measures both as one.
pub fn delay_is_own_wait(stats: &VnicStats) -> bool {
    stats.tokens_tx.as_ref() == Some(&stats.delay)
}

fn quantiles(delay: &Delay) -> String {
    let Delay { p50, p99, p999, max, .. } = *delay;
    let [p50, p99, p999, max] = [p50, p99, p999, max].map(duration);
    format!("p50 {p50}, p99 {p99}, p99.9 {p999}, max {max}")
}

/// Describes a deadline that is not promised: why, and the bound that it would have.
fn suspended(view: &VnicView, promise: &Promise, why: &str) -> String {
    let missed = missed_count_text(view);
    let mut out = format!("deadline towards {}: not promised right now\n", promise.egress);
    let facts = [
        ("why", why.to_owned()),
        ("delay bound B", format!("none; {} when it is promised again", duration(promise.bound_ns))),
        ("missed", format!("{missed} while it was promised")),
    ];
    for (key, value) in facts {
        let _ = writeln!(out, "  {key:<16}  {value}");
    }
    out
}

/// Returns how many frames missed a deadline, certainly and possibly.
fn missed_count_text(view: &VnicView) -> String {
    let Some(stats) = &view.stats else { return plural(0, "frame") };
    let certain = plural(total(stats.misses.values().copied()), "frame");
    let possible = [stats.misses_possible, stats.misses_asleep];
    match possible {
        [0, 0] => certain,
        [possible, 0] => format!("{certain}, {} possibly", count(possible)),
        [possible, asleep] => {
            format!("{certain}, {} possibly, {} if the worker woke up late", count(possible), count(asleep))
        }
    }
}

/// Describes the bound at one egress and its derivation, and the worst delay seen.
fn derivation(view: &VnicView, promise: &Promise) -> String {
    let (egress, terms) = (&promise.egress, &promise.derivation);
    let deadline = Nanos::new(promise.deadline_ns);
    let worst = match promise.worst_seen_ns {
        None => "nothing was sent yet".to_owned(),
        Some(worst) if worst <= promise.deadline_ns => {
            format!("{}, margin {} to the deadline", duration(worst), duration(promise.deadline_ns - worst))
        }
        Some(worst) => {
            let over = duration(worst - promise.deadline_ns);
            let least = view.stats.as_ref().map_or(0, |stats| stats.realtime_worst_least_ns);
            match least {
                1.. if least <= promise.deadline_ns => {
                    format!(
                        "at most {}, {over} over the deadline; at least {}",
                        duration(worst),
                        duration(least)
                    )
                }
                _ => format!("{}, {over} over the deadline", duration(worst)),
            }
        }
    };
    // A window has its own misses, but no worst delay of its own.
    let since = if view.window.is_some() { " (since the deadline was set)" } else { "" };
    let worst = worst + since;
    let facts = [
        (
            "delay bound B",
            format!(
                "{}, margin {} to the deadline of {deadline}",
                duration(promise.bound_ns),
                duration(promise.margin_ns)
            ),
        ),
        ("worst seen", worst),
        ("missed", missed_count_text(view)),
    ];
    let mut out = format!("deadline towards {egress}\n");
    let between = super::plan::beyond(promise).map(|way| ("host to host", way));
    for (key, value) in facts.into_iter().chain(between) {
        let _ = writeln!(out, "  {key:<16}  {value}");
    }

    let sent_in = |bytes: u64| {
        let nanos = (u128::from(bytes) * 8 * 1_000_000_000).div_ceil(u128::from(terms.capacity_bps.max(1)));
        duration(u64::try_from(nanos).unwrap_or(u64::MAX))
    };
    let capacity =
        Rate::from_bits(terms.capacity_bps).map_or_else(|| terms.capacity_bps.to_string(), |c| c.to_string());
    let steps = [
        (
            "critical time t",
            Nanos::new(terms.critical_t_ns).to_string(),
            "the interval with the least slack".into(),
        ),
        (
            "demand",
            Bytes::new(terms.demand_bytes).to_string(),
            format!(
                "real-time traffic due within t, all bursts at once; takes {}",
                sent_in(terms.demand_bytes)
            ),
        ),
        (
            "blocking frame L",
            Bytes::new(terms.blocking_bytes).to_string(),
            format!("the largest frame that may be under way; takes {}", sent_in(terms.blocking_bytes)),
        ),
        ("capacity C", capacity, format!("of {egress}")),
        (
            "host budget H",
            Nanos::new(terms.host_latency_ns).to_string(),
            "worker loops, wake-up and one copy".into(),
        ),
    ];
    let mut table = Table::new(&[("", Align::Left), ("", Align::Right), ("", Align::Left)]);
    for (name, value, meaning) in steps {
        table.row([name.to_owned(), value, meaning]);
    }
    out += "  how B is computed: B = deadline - (t - H - (demand + L) / C)\n";
    for line in table.render().lines().skip(1) {
        let _ = writeln!(out, "    {line}");
    }
    let _ = writeln!(
        out,
        "  bound {} holds if H = {} held (violated {}) and the receiver had buffers",
        duration(promise.bound_ns),
        Nanos::new(terms.host_latency_ns),
        plural(promise.host_latency_violations, "time")
    );
    let _ = writeln!(
        out,
        "  worst seen is Tr - Ts as the switch measured it, of real-time frames to all places, under this deadline"
    );
    out
}

#[cfg(test)]
mod tests;
