//! The text of `tidegate vnic show NAME`.

use crate::api::{Bound, VnicState};
use crate::format::{count, duration, plural, size};
use crate::table::{Align, Table};
use std::fmt::Write;
use tidegate_contract::{Attach, Discipline, Nanos, SocketMode, Vnic};
use tidegate_switch::control::Connection;

/// Everything about one vNIC; `violations` counts worker loops longer than H.
pub fn text(state: &VnicState, violations: u64) -> String {
    let mut out = format!("{}\n", state.contract.name);
    for (key, value) in facts(state) {
        let _ = writeln!(out, "  {key:<10}  {value}");
    }
    for note in &state.notes {
        let _ = writeln!(out, "  note: {note}");
    }
    out.push('\n');
    out += &counters(state);
    for bound in &state.bounds {
        out.push('\n');
        out += &derivation(state, bound, violations);
    }
    if state.contract.deadline.is_some() && state.bounds.is_empty() {
        out += "\nNo delay bound: the agent has computed none for this vNIC.\n";
    }
    out
}

/// How a vNIC is connected, in a word.
pub fn connection(connection: Option<Connection>) -> &'static str {
    match connection {
        Some(Connection::Up) => "up",
        Some(Connection::Connected) => "connected",
        Some(Connection::Waiting) => "waiting",
        Some(Connection::Disconnected) => "disconnected",
        None => "absent",
    }
}

/// Where a vNIC is attached, in one line.
pub fn attachment(attach: &Attach) -> String {
    match attach {
        Attach::VhostUser { path, mode: SocketMode::Server, .. } => format!("vhost-user {}", path.display()),
        Attach::VhostUser { path, mode: SocketMode::Client, .. } => {
            format!("vhost-user {} (client)", path.display())
        }
        Attach::Tap { name, netns: None } => format!("tap {name}"),
        Attach::Tap { name, netns: Some(netns) } => format!("tap {name} in {}", netns.display()),
        Attach::Netdev { name } => format!("netdev {name}"),
        Attach::Vf { pf, index } => format!("vf {pf}/{index}"),
    }
}

fn facts(state: &VnicState) -> Vec<(&'static str, String)> {
    let Vnic { attach, mac, segment, tx, rx, weight, deadline, to, mtu, queues, .. } = &state.contract;
    let terms = |terms: Vec<Option<String>>| {
        let terms: Vec<String> = terms.into_iter().flatten().collect();
        if terms.is_empty() { "no limit".to_owned() } else { terms.join(", ") }
    };
    let term = |key: &str, value: Option<String>| value.map(|v| format!("{key} {v}"));
    let mut facts = vec![
        ("attach", attachment(attach)),
        ("connection", connection(state.connection).into()),
        ("contract", format!("from {}", state.origin)),
        ("mac", mac.to_string()),
        ("segment", segment.to_string()),
        (
            "tx",
            terms(vec![
                term("max", tx.max.map(|v| v.to_string())),
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
                (rx.discipline == Discipline::Fifo).then(|| "fifo".into()),
            ]),
        ),
        ("weight", weight.to_string()),
    ];
    if let Some(deadline) = deadline {
        facts.push(("deadline", deadline.to_string()));
    }
    if !to.is_empty() {
        facts.push(("to", to.join(", ")));
    }
    facts.extend([("mtu", mtu.to_string()), ("queues", queues.to_string())]);
    facts
}

fn counters(state: &VnicState) -> String {
    let stats = &state.stats;
    let mut table = Table::new(&[
        ("", Align::Left),
        ("frames", Align::Right),
        ("on the wire", Align::Right),
        ("bytes", Align::Right),
        ("dropped", Align::Right),
    ]);
    for (name, traffic) in [("sent", &stats.tx), ("received", &stats.rx)] {
        table.row([
            name.to_owned(),
            count(traffic.frames),
            count(traffic.wire_frames),
            size(traffic.wire_bytes),
            count(traffic.dropped.values().sum()),
        ]);
    }
    let mut out = table.render();
    if stats.throttled_ns > 0 {
        let now = if stats.throttled { ", also right now" } else { "" };
        let _ = writeln!(out, "throttled for {} in all{now}", duration(stats.throttled_ns));
    }
    let delay = &stats.delay;
    if delay.count > 0 {
        let _ = writeln!(
            out,
            "delay of what it sent: p50 {}, p99 {}, p99.9 {}, max {}",
            duration(delay.p50),
            duration(delay.p99),
            duration(delay.p999),
            duration(delay.max)
        );
    }
    out
}

/// The bound at one egress, what was seen, and how both came about.
fn derivation(state: &VnicState, bound: &Bound, violations: u64) -> String {
    let Bound { egress, deadline, bound: b, critical_t, demand, capacity, blocking, host_latency } = bound;
    let left = |of: Nanos| duration(deadline.get().saturating_sub(of.get()));
    let seen = &state.stats.delay;
    let missed: u64 = state.stats.misses.values().sum();
    let worst = if seen.count == 0 {
        "nothing delivered yet".to_owned()
    } else {
        format!("{}, {}", duration(seen.max), against(seen.max, deadline.get()))
    };
    let of_all = if state.bounds.len() > 1 { " (to all places together)" } else { "" };
    let transmission = |bytes: u64| {
        duration((u128::from(bytes) * 8 * 1_000_000_000).div_ceil(u128::from(capacity.bits())) as u64)
    };
    let facts = [
        (
            "delay bound B",
            format!("{}, margin {} to the deadline of {deadline}", duration(b.get()), left(*b)),
        ),
        ("worst seen", format!("{worst}{of_all}")),
        ("misses", count(missed)),
    ];
    let mut out = format!("deadline towards {egress}\n");
    for (key, value) in facts {
        let _ = writeln!(out, "  {key:<16}  {value}");
    }
    let _ = writeln!(
        out,
        "  how B came about: tightest in an interval of t = {critical_t}, in which there may be"
    );
    let steps = [
        (
            "demand",
            demand.to_string(),
            format!("{} real-time traffic due, all bursts at once", transmission(demand.get())),
        ),
        (
            "blocking frame L",
            blocking.to_string(),
            format!("{} under way already", transmission(blocking.get())),
        ),
        ("capacity C", capacity.to_string(), format!("of {egress}, at which both are sent")),
        ("host budget H", host_latency.to_string(), "worker loops, wake-up and copy".to_owned()),
    ];
    let mut table = Table::new(&[("", Align::Left), ("", Align::Right), ("", Align::Left)]);
    for (name, value, meaning) in steps {
        table.row([name.to_owned(), value, meaning]);
    }
    for line in table.render().lines().skip(1) {
        let _ = writeln!(out, "    {line}");
    }
    let _ = writeln!(out, "    B = deadline - (t - H - (demand + L) / C)");
    let _ = writeln!(
        out,
        "  bound {} holds if H = {host_latency} held (violated {}) and the receiver had buffers",
        duration(b.get()),
        plural(violations, "time")
    );
    let _ = writeln!(
        out,
        "  worst seen is Tr - Ts as the switch measured it, over {}",
        plural(seen.count, "frame")
    );
    out
}

fn against(worst: u64, deadline: u64) -> String {
    if worst <= deadline {
        format!("margin {} to the deadline", duration(deadline - worst))
    } else {
        format!("{} over the deadline", duration(worst - deadline))
    }
}
