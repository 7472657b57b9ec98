//! `tidegate why NAME`: what a vNIC waits for, in plain words.

use crate::api::Why;
use crate::client::{Client, encode};
use crate::exit::{self, Failure};
use crate::explain;
use crate::format::{count, duration, plural};
use crate::table::{Align, Table};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};
use tidegate_switch::control::Connection;

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
    exit::print(&text(&client.get(&path).await?, now))
}

/// The account; `now` in nanoseconds since the epoch.
fn text(why: &Why, now: u64) -> String {
    [state(why), delays(why), drops(why), misses(why, now)].concat()
}

/// Whether it is connected and throttled.
fn state(why: &Why) -> String {
    let (name, stats, contract) = (&why.vnic.contract.name, &why.vnic.stats, &why.vnic.contract);
    let mut out = match why.vnic.connection {
        Some(Connection::Up) => format!("{name} is up"),
        Some(Connection::Connected) => {
            format!("{name} is connected, but its guest has not started the interface")
        }
        Some(Connection::Waiting) => format!("{name} waits for its VM to connect: no frame can flow"),
        Some(Connection::Disconnected) => format!("{name} has lost its VM: no frame can flow"),
        None => format!("{name} is not there: no frame can flow"),
    };
    let max = contract.tx.max.map_or_else(String::new, |max| format!(" of {max}"));
    if stats.throttled {
        let _ =
            write!(out, ", and throttled right now: it has more to send than its tx.max{max} lets through");
    } else if stats.throttled_ns > 0 {
        out += " and not throttled right now";
    } else {
        out += " and has never been throttled";
    }
    out += ".\n";
    if stats.throttled_ns > 0 {
        let _ = writeln!(
            out,
            "In all it had frames waiting for tx.max{max} for {}.",
            duration(stats.throttled_ns)
        );
    }
    for note in &why.vnic.notes {
        let _ = writeln!(out, "Note: {note}");
    }
    out
}

/// How long its frames took.
fn delays(why: &Why) -> String {
    let delay = &why.vnic.stats.delay;
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
fn drops(why: &Why) -> String {
    let list = |title: &str, drops: &BTreeMap<String, u64>| {
        let mut reasons: Vec<(&String, &u64)> = drops.iter().filter(|(_, n)| **n > 0).collect();
        if reasons.is_empty() {
            return String::new();
        }
        reasons.sort_by_key(|(label, n)| (std::cmp::Reverse(**n), *label));
        let mut table =
            Table::new(&[("frames", Align::Right), ("reason", Align::Left), ("what it means", Align::Left)]);
        for (label, n) in reasons {
            table.row([count(*n), label.clone(), explain::drop_reason(label).into()]);
        }
        format!("\n{title}\n{}", indented(&table.render()))
    };
    let stats = &why.vnic.stats;
    let both = [
        list("Dropped of what it sent:", &stats.tx.dropped),
        list("Dropped of what it was sent:", &stats.rx.dropped),
    ]
    .concat();
    if both.is_empty() { "No frame of its or for it was dropped.\n".into() } else { both }
}

/// Which deadlines were missed, and why.
fn misses(why: &Why, now: u64) -> String {
    let stats = &why.vnic.stats;
    let total: u64 = stats.misses.values().sum();
    let Some(deadline) = why.vnic.contract.deadline else {
        return if total == 0 {
            "It has no deadline, so none can be missed.\n".into()
        } else {
            format!("It has no deadline now; {} were missed while it had.\n", plural(total, "deadline"))
        };
    };
    if total == 0 {
        return format!(
            "All {} kept the deadline of {deadline}.\n",
            plural(stats.realtime_delivered, "real-time frame")
        );
    }
    let mut out = format!("\n{} missed the deadline of {deadline}:\n", plural(total, "frame"));
    let mut table =
        Table::new(&[("frames", Align::Right), ("cause", Align::Left), ("what it means", Align::Left)]);
    let mut causes: Vec<(&String, &u64)> = stats.misses.iter().filter(|(_, n)| **n > 0).collect();
    causes.sort_by_key(|(label, n)| (std::cmp::Reverse(**n), *label));
    for (label, n) in causes {
        table.row([count(*n), label.clone(), explain::cause(label).into()]);
    }
    out += &indented(&table.render());
    if !why.misses.is_empty() {
        out += "\nThe latest, newest first:\n";
    }
    for miss in why.misses.iter().rev().take(MISSES) {
        let _ = writeln!(out, "  {} ago: {}", duration(now.saturating_sub(miss.at)), explain::miss(miss));
    }
    out
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}
