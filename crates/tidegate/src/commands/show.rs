//! The text of `tidegate vnic show NAME`.

use crate::commands::frame_times::FrameTimes;
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
mod tests {
    use super::*;
    use crate::commands::samples;
    use tidegate_evidence::Figure;

    #[test]
    fn uncertain_delays_and_misses_are_shown_as_such() {
        let mut view = samples::voice();
        let stats = view.stats.as_mut().unwrap();
        stats.delay_least = Delay {
            count: 11_999,
            p50: 20_000,
            p99: 60_000,
            p999: 90_000,
            max: 100_000,
            buckets: vec![(100_000, 11_999)],
        };
        stats.realtime_worst_least_ns = 100_000;
        stats.misses.clear();
        (stats.misses_possible, stats.misses_asleep) = (2, 0);
        let said = derivation(&view, &view.promises[0]);
        assert!(said.contains("at most 1.12 ms, 120 us over the deadline; at least 100 us\n"), "{said}");
        assert!(said.contains("0 frames, 2 possibly\n"), "{said}");
        view.stats.as_mut().unwrap().misses_asleep = 3;
        assert_eq!(missed_count_text(&view), "0 frames, 2 possibly, 3 if the worker woke up late");
        let said = text(&view);
        let expected =
            "by the first poll that showed it: p50 20.0 us, p99 60.0 us, p99.9 90.0 us, max 100 us\n";
        assert!(said.contains(expected), "{said}");
    }

    #[test]
    fn the_wait_for_its_own_limit_stands_beside_the_delay() {
        let said = text(&samples::waiting());
        let expected = "
throttled for 9.80 s, also right now
wait of what it sent for its own tx.max: p50 865 ms, p99 1.05 s, p99.9 1.05 s, max 1.05 s
  with no frame of their flow waiting: p50 310 us, p99 1.20 ms, p99.9 1.40 ms, max 1.40 ms
  marked (ECN) 21; flows that wait: 2 now, 9 at most
";
        assert!(said.contains(expected), "{said}");
        assert!(said.contains("\nFigures of the last 10.4 s.\n"), "{said}");
        assert!(said.contains("delay of what it sent, after that wait: p50 541 us,"), "{said}");
    }

    #[test]
    fn every_figure_has_its_source() {
        let figure =
            |name: &str, value, source: &str| Figure { name: name.into(), value, source: source.into() };
        let mut view = samples::idle();
        assert!(statistics(&view).contains("no counters"));
        view.figures =
            vec![figure("tx.bytes", Some(5_000), "register VFGOTC"), figure("rx.bytes", None, "nobody")];
        let expected = "\
figure      value  source
tx.bytes     5000  register VFGOTC
rx.bytes  unknown  nobody
";
        assert_eq!(statistics(&view), expected);
    }

    #[test]
    fn a_real_time_vnic_shows_bound_worst_and_margin() {
        let expected = "\
voice
  attach      vhost-user /run/tidegate/vm/voice.sock
  connection  up
  worker      1
  contract    in force, from /etc/tidegate/voice.toml
  mac         52:54:00:00:00:01
  segment     42
  tx          max 4mbit, burst 2kB
  rx          no limit
  queueing    flows
  weight      1
  deadline    1ms
  to          sink
  mtu         1500
  queues      1

          frames  on the wire    bytes  dropped
sent      12,000       12,000  2.40 MB        1
received       7            7    420 B        0
throttled for 3.00 ms in all
time of its worker: 720 us to take what it sends (60 ns a frame), 30.0 us to deliver what was queued (300 ns a frame), 2.00 us for its kicks
delay of what it sent: p50 42.0 us, p99 90.0 us, p99.9 300 us, max 1.12 ms

deadline towards sink
  delay bound B     278 us, margin 722 us to the deadline of 1ms
  worst seen        1.12 ms, 120 us over the deadline
  missed            3 frames
  how B is computed: B = deadline - (t - H - (demand + L) / C)
    critical time t     1ms  the interval with the least slack
    demand              2kB  real-time traffic due within t, all bursts at once; takes 16.0 us
    blocking frame L  1518B  the largest frame that may be under way; takes 12.1 us
    capacity C        1gbit  of sink
    host budget H     250us  worker loops, wake-up and one copy
  bound 278 us holds if H = 250us held (violated 3 times) and the receiver had buffers
  worst seen is Tr - Ts as the switch measured it, of real-time frames to all places, under this deadline
";
        assert_eq!(text(&samples::voice()), expected);
    }

    #[test]
    fn without_counters_or_deadline_there_is_less_to_show() {
        let text = text(&samples::idle());
        assert!(text.contains("connection  waiting\n") && text.contains("from api\n"), "{text}");
        assert!(text.ends_with("\nNo counters: the place of this vNIC does not know the vNIC.\n"), "{text}");
    }

    #[test]
    fn the_limit_that_the_guest_asks_for_is_shown() {
        let text = text(&samples::lowered());
        assert!(text.contains("  tx          max 4mbit, the guest asks for 3mbit, burst 2kB\n"), "{text}");
        assert!(text.contains("  guest       /run/vm/voice.limit\n"), "{text}");
        let mut same = samples::lowered();
        same.soft = tx_max(&same);
        assert_eq!((soft(&samples::lowered()), soft(&same)), (samples::lowered().soft, None));
    }

    #[test]
    fn uncounted_values_are_unknown() {
        let text = text(&samples::unknown());
        let expected = "
           frames  on the wire    bytes  dropped
sent      unknown          900  1.20 MB        0
received  unknown      unknown  unknown  unknown
";
        assert!(text.ends_with(expected), "{text}");
    }

    #[test]
    fn a_suspended_deadline_is_not_promised() {
        let text = text(&samples::suspended());
        let expected = "
deadline towards sink: not promised right now
  why               guest memory is not preallocated: add prealloc=on
  delay bound B     none; 278 us when it is promised again
  missed            0 frames while it was promised
";
        assert!(text.ends_with(expected), "{text}");
        let fact =
            "  deadline    1ms, not promised right now: guest memory is not preallocated: add prealloc=on\n";
        assert!(text.contains(fact), "{text}");
    }

    #[test]
    fn a_refused_contract_is_shown_with_its_file_and_line() {
        let [readable, unreadable] = samples::refused();
        let expected = "\
dark
  contract    refused, from /etc/tidegate/cam.toml
  refused     /etc/tidegate/cam.toml:9 is refused: egress sink refuses cam

No part of the contract is in force.
";
        assert_eq!(text(&unreadable), expected);
        let text_of_it = text(&readable);
        assert!(text_of_it.contains("  mac         52:54:00:00:00:02\n"), "{text_of_it}");
        assert!(text_of_it.contains("  refused     /etc/tidegate/cam.toml:4 is refused"), "{text_of_it}");
        let as_before = VnicView { refused: readable.refused, ..samples::voice() };
        let text = text(&as_before);
        let expected = "
  contract    in force, from /etc/tidegate/voice.toml
  refused     /etc/tidegate/cam.toml:4 is refused: egress sink refuses cam
              its earlier contracts are in force
";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn a_deadline_that_was_kept_has_a_margin() {
        let mut view = samples::voice();
        view.promises[0].worst_seen_ns = Some(300_000);
        assert!(text(&view).contains("worst seen        300 us, margin 700 us to the deadline\n"));
        view.window = samples::waiting().window;
        assert!(
            text(&view).contains("  300 us, margin 700 us to the deadline (since the deadline was set)\n")
        );
        view.promises.clear();
        assert!(text(&view).contains("No delay bound"));
    }
}
