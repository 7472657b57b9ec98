//! The loop on ports of a switch, which replaces the switch in a NIC. Reads what the VM sent, and sets
//! `tx.max`, by the agent's API.

use super::api::Api;
use crate::clock;
use crate::measurement::Outcome;
use serde::Serialize;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tidegate_contract::{Bytes, Rate, Segment};
use tidegate_place_nic::control::{Controller, LinkTerms, Member, Pace, Usage};

/// Arguments of `nic govern`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The agent's socket
    #[arg(long, value_name = "PATH", default_value = "/run/tidegate/api.sock")]
    api: PathBuf,
    /// What the link carries
    #[arg(long, value_name = "RATE")]
    capacity: Rate,
    /// vNIC to govern, with its minimum; repeatable
    #[arg(long, value_name = "NAME=RATE", value_parser = promise, required = true)]
    vnic: Vec<(String, Rate)>,
    /// How long, s
    #[arg(long, value_name = "S", default_value = "30", value_parser = crate::measurement::seconds)]
    seconds: Duration,
    /// Shortest period, s
    #[arg(long, value_name = "S", default_value = "0.1", value_parser = crate::measurement::seconds)]
    period: Duration,
    /// The loop may spend one part in this many of the time on reading and setting
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    spare: u32,
}

fn promise(text: &str) -> Result<(String, Rate), String> {
    let (name, rate) = text.split_once('=').ok_or_else(|| format!("`{text}` is not NAME=RATE"))?;
    Ok((name.to_owned(), rate.parse().map_err(|error| format!("{error}"))?))
}

#[derive(Debug, Serialize)]
pub struct Report {
    turns: usize,
    changes: u64,
    not_set: u64,
    /// Time from turn to turn, of reading, and of setting one limit: median and longest.
    period_ms: Spread,
    read_ms: Spread,
    set_ms: Spread,
    /// Limits, whenever one changed.
    limits: Vec<Limits>,
}

#[derive(Debug, Serialize)]
struct Limits {
    /// CLOCK_MONOTONIC (s).
    at: f64,
    /// Limits (Mbit/s), in the order of the arguments.
    mbps: Vec<f64>,
}

#[derive(Debug, Serialize)]
struct Spread {
    median: f64,
    most: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(0.0);
        Self { median: at(values.len() / 2), most: at(values.len().saturating_sub(1)) }
    }
}

impl Report {
    pub fn table(&self) -> String {
        format!(
            "{} turns, {} limits set, {} not taken; ms, median and most: period {:.1} {:.1}, reading {:.1} {:.1}, \
             setting one {:.1} {:.1}",
            self.turns,
            self.changes - self.not_set,
            self.not_set,
            self.period_ms.median,
            self.period_ms.most,
            self.read_ms.median,
            self.read_ms.most,
            self.set_ms.median,
            self.set_ms.most,
        )
    }
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

pub fn run(args: &Args) -> Outcome<Report> {
    let api = Api(args.api.clone());
    let names: Vec<String> = args.vnic.iter().map(|(name, _)| name.clone()).collect();
    let member = |(id, (_, min)): (usize, &(String, Rate))| Member {
        id: id as u16,
        max: None,
        min: Some(*min),
        weight: 1,
        segment: Segment::new(1).expect("in range"),
    };
    let members: Vec<Member> = args.vnic.iter().enumerate().map(member).collect();
    // A switch counts a super-frame when it takes the frame.
    let link = LinkTerms { frame: Bytes::new(65_536), ..LinkTerms::new(args.capacity) };
    let mut controller = Controller::new(link, &members, &[])
        .map_err(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))?;
    let mut pace = Pace::new(args.period).spending_one_in(args.spare);
    let mut last: Vec<Option<(u64, Instant)>> = vec![None; names.len()];
    let (mut periods, mut reads, mut sets) = (Vec::new(), Vec::new(), Vec::new());
    let mut limits = Vec::new();
    let begin = Instant::now();
    while begin.elapsed() < args.seconds {
        let turn = Instant::now();
        let sent = api.sent(&names)?;
        // The agent read the counters between our request and its answer.
        let read = turn + turn.elapsed() / 2;
        reads.push(milliseconds(turn));
        let usage: Vec<Option<Usage>> = sent
            .iter()
            .zip(&mut last)
            .map(|(&now, last)| {
                let before = std::mem::replace(last, now.map(|now| (now, read)));
                let (now, (bytes, at)) = (now?, before?);
                Some(Usage { bytes: now.checked_sub(bytes)?, elapsed: read - at })
            })
            .collect();
        let changes = controller.step(&usage).to_vec();
        let mut failed = false;
        for change in &changes {
            let set = Instant::now();
            failed = failed || api.limit(&names[usize::from(change.id)], change.to).is_err();
            sets.push(milliseconds(set));
            if failed {
                controller.not_set(change.id);
            }
        }
        if !changes.is_empty() {
            let mbps = |rate: Option<Rate>| rate.map_or(0.0, |rate| rate.bits() as f64 / 1e6);
            limits.push(Limits {
                at: clock::now() as f64 / 1e9,
                mbps: controller.standings().map(|standing| mbps(standing.limit)).collect(),
            });
        }
        let period = pace.spent(turn.elapsed());
        std::thread::sleep(period.saturating_sub(turn.elapsed()));
        periods.push(milliseconds(turn));
    }
    let counts = controller.counts();
    Ok(Report {
        turns: periods.len(),
        changes: counts.changes,
        not_set: counts.not_set,
        period_ms: Spread::of(periods),
        read_ms: Spread::of(reads),
        set_ms: Spread::of(sets),
        limits,
    })
}
