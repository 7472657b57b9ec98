//! `tidegate why NAME`: what a vNIC waits for, in plain words.

use crate::client::{Client, encode};
use crate::commands::show;
use crate::exit::{self, Failure};
use crate::explain;
use crate::format::{count, duration, plural};
use crate::table::{Align, Table};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};
use tidegate_agent::api::types::{State, VnicView, WhyView};
use tidegate_switch::control::Connection;
use tidegate_switch::stats::VnicStats;

/// Misses shown.
const MISSES: usize = 10;

/// Arguments of `why`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The vNIC
    name: String,
}

/// Prints the account.
pub async fn run(client: &Client, args: Args, json: bool) -> Result<(), Failure> {
    let path = format!("/v1/vnics/{}/why", encode(&args.name));
    if json {
        return exit::print_json(&client.get::<Value>(&path).await?);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    let view: VnicView = client.get(&format!("/v1/vnics/{}", encode(&args.name))).await?;
    exit::print(&text(&view, &client.get(&path).await?, now))
}

/// The account; `now` in nanoseconds since the epoch. Figures are those of `why`, what they
/// are measured against stands in `view`.
fn text(view: &VnicView, why: &WhyView, now: u64) -> String {
    let none = VnicStats::default();
    let stats = view.stats.as_ref().unwrap_or(&none);
    [condition(view), throttling(view, stats, why), delays(stats), drops(why), misses(view, stats, why, now)]
        .concat()
}

/// Whether it is connected, and its contract kept.
fn condition(view: &VnicView) -> String {
    let name = &view.name;
    let mut out = match view.connection {
        Some(Connection::Up) => format!("{name} is up.\n"),
        Some(Connection::Connected) => {
            format!("{name} is connected, but its guest has not started the interface: no frame can flow.\n")
        }
        Some(Connection::Waiting) => format!("{name} waits for its VM to connect: no frame can flow.\n"),
        Some(Connection::Disconnected) => format!("{name} has lost its VM: no frame can flow.\n"),
        None => format!("{name} has no port: no frame can flow.\n"),
    };
    match view.state {
        State::InForce => {}
        State::Pending => out += "Its contract is not in force yet.\n",
        State::Failed => out += "Its contract could not be put in force; the agent goes on trying.\n",
    }
    if let Some(reason) = &view.reason {
        let _ = writeln!(out, "The agent says: {reason}");
    }
    out
}

/// Whether it waits for its own limit.
fn throttling(view: &VnicView, stats: &VnicStats, why: &WhyView) -> String {
    let max = view.contract.tx.max;
    let limit = match (show::soft(view), max) {
        (Some(soft), Some(max)) => format!("the {soft} that its guest asks for (its tx.max is {max})"),
        (Some(soft), None) => format!("the {soft} that its guest asks for"),
        (None, Some(max)) => format!("its tx.max of {max}"),
        (None, None) => "its tx.max".into(),
    };
    match (stats.throttled, why.throttled_ns) {
        (true, total) => format!(
            "It is throttled right now: it has more to send than {limit} lets through. \
             In all, frames waited for that for {}.\n",
            duration(total)
        ),
        (false, 0) => "It has never been throttled.\n".into(),
        (false, total) => format!(
            "It is not throttled right now. In all, frames waited for {limit} for {}.\n",
            duration(total)
        ),
    }
}

/// How long its frames took.
fn delays(stats: &VnicStats) -> String {
    let delay = &stats.delay;
    if delay.count == 0 {
        return "None of its frames has been delivered yet.\n".into();
    }
    format!(
        "Of its {} delivered, half took at most {}, 99 % {}, 99.9 % {}, the slowest {}.\n",
        plural(delay.count, "frame"),
        duration(delay.p50),
        duration(delay.p99),
        duration(delay.p999),
        duration(delay.max)
    )
}

/// What was dropped, and why.
fn drops(why: &WhyView) -> String {
    let list = |title: &str, drops: &BTreeMap<String, u64>| {
        let mut table =
            Table::new(&[("frames", Align::Right), ("reason", Align::Left), ("what it means", Align::Left)]);
        for (label, n) in most_first(drops) {
            table.row([count(n), label.into(), explain::drop_reason(label).into()]);
        }
        if drops.is_empty() { String::new() } else { format!("\n{title}\n{}", indented(&table.render())) }
    };
    let both = [
        list("Dropped of what it sent:", &why.tx_dropped),
        list("Dropped of what it was sent:", &why.rx_dropped),
    ]
    .concat();
    if both.is_empty() { "No frame of it or for it was dropped.\n".into() } else { both }
}

/// Which deadlines were missed, and why.
fn misses(view: &VnicView, stats: &VnicStats, why: &WhyView, now: u64) -> String {
    let total: u64 = why.misses.values().sum();
    let mut out = match (view.contract.deadline, total) {
        (None, 0) => return "It has no deadline, so it cannot miss any.\n".into(),
        (Some(deadline), 0) => {
            return format!(
                "It kept its deadline of {deadline} for every one of {}.\n",
                plural(stats.realtime_delivered, "frame")
            );
        }
        (None, _) => format!("\n{} missed the deadline it had:\n", plural(total, "frame")),
        (Some(deadline), _) => format!("\n{} missed the deadline of {deadline}:\n", plural(total, "frame")),
    };
    let mut table =
        Table::new(&[("frames", Align::Right), ("cause", Align::Left), ("what it means", Align::Left)]);
    for (label, n) in most_first(&why.misses) {
        table.row([count(n), label.into(), explain::cause(label).into()]);
    }
    out += &indented(&table.render());
    if !why.latest_misses.is_empty() {
        out += "\nThe latest, newest first:\n";
    }
    for miss in why.latest_misses.iter().rev().take(MISSES) {
        let _ = writeln!(out, "  {} ago: {}", duration(now.saturating_sub(miss.at)), explain::miss(miss));
    }
    out
}

fn most_first(counts: &BTreeMap<String, u64>) -> Vec<(&str, u64)> {
    let mut counts: Vec<(&str, u64)> = counts.iter().map(|(label, n)| (label.as_str(), *n)).collect();
    counts.sort_by_key(|(label, n)| (std::cmp::Reverse(*n), *label));
    counts
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::samples;

    #[test]
    fn misses_and_drops_are_explained() {
        let expected = "\
voice is up.
It is not throttled right now. In all, frames waited for its tx.max of 4mbit for 3.00 ms.
Of its 11,999 frames delivered, half took at most 42.0 us, 99 % 90.0 us, 99.9 % 300 us, the slowest 1.12 ms.

Dropped of what it sent:
  frames  reason      what it means
   1,200  source_mac  sent from a MAC address that is not the vNIC's own, or naming one in ARP or neighbour discovery: if that is meant to be, add it to \
`allowed.macs`
       1  late        could no longer arrive before its deadline

3 frames missed the deadline of 1ms:
  frames  cause    what it means
       2  queue    waited behind other frames in the receiver's queue
       1  dropped  dropped, so it never arrived

The latest, newest first:
  500 ms ago: dropped after 1.00 ms (could no longer arrive before its deadline): waited 900 us in the queue of `sink`
  3.00 s ago: missed by 120 us: waited 800 us in the queue of `sink` behind `bulk1`
";
        assert_eq!(text(&samples::voice(), &samples::why_voice(), 8_000_000_000), expected);
    }

    #[test]
    fn an_idle_vnic_has_nothing_to_explain() {
        let expected = "\
idle waits for its VM to connect: no frame can flow.
It has never been throttled.
None of its frames has been delivered yet.
No frame of it or for it was dropped.
It has no deadline, so it cannot miss any.
";
        assert_eq!(text(&samples::idle(), &samples::why_idle(), 0), expected);
    }

    #[test]
    fn throttling_now_and_a_kept_deadline_are_said() {
        let (mut view, mut why) = (samples::voice(), samples::why_voice());
        why.misses.clear();
        view.stats.as_mut().unwrap().throttled = true;
        let text = text(&view, &why, 0);
        assert!(text.contains("throttled right now: it has more to send than its tx.max of 4mbit"), "{text}");
        let lowered = super::text(&samples::lowered(), &why, 0);
        assert!(
            lowered.contains("frames waited for the 3mbit that its guest asks for (its tx.max is 4mbit) for")
        );
        assert!(text.ends_with("It kept its deadline of 1ms for every one of 11,999 frames.\n"), "{text}");
    }
}
