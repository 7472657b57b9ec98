//! A link of 800 Mbit/s: A sends TCP; after a third of the time B joins with UDP and wants everything.
//! Simulated without limits, with a fixed limit for B, and with the loop and a minimum for both.

use crate::measurement::Outcome;
use serde::Serialize;
use std::time::Duration;
use tidegate_contract::{Bytes, Rate, Segment};
use tidegate_place_nic::control::{LinkTerms, Member};
use tidegate_testkit::simulation::{self, Activity, Control, Kind, Scenario, Sender, Timing};

/// Arguments of `nic simulate`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How long, s
    #[arg(long, value_name = "S", default_value = "30", value_parser = crate::measurement::seconds)]
    seconds: Duration,
    /// What the link carries
    #[arg(long, value_name = "RATE", default_value = "800mbit")]
    capacity: Rate,
    /// Minimum that the loop promises to each; B's limit without the loop
    #[arg(long, value_name = "RATE", default_value = "400mbit")]
    half: Rate,
    /// Steps of the loop a second
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
    rate: u32,
    /// Round trip of the TCP sender, ms
    #[arg(long, value_name = "MS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    rtt: u64,
}

#[derive(Debug, Serialize)]
pub struct Report {
    /// Length of a bucket (s).
    bucket: f64,
    /// When B joined (s).
    joined: f64,
    cases: Vec<Case>,
}

#[derive(Debug, Serialize)]
struct Case {
    name: &'static str,
    /// Rates of A and B (Mbit/s), by bucket.
    delivered: Vec<[f64; 2]>,
    /// Limits that the loop set, and its steps.
    changes: usize,
    steps: usize,
}

impl Report {
    pub fn table(&self) -> String {
        let mut lines =
            vec!["Mbit/s, median      A before  B before   A after   B after   A worst".to_owned()];
        for case in &self.cases {
            let joined = (self.joined / self.bucket) as usize;
            let (before, after) = case.delivered.split_at(joined);
            let [a, b] = [0, 1].map(|who| median(before, who));
            let [c, d] = [0, 1].map(|who| median(after, who));
            let worst = after.iter().map(|bucket| bucket[0]).fold(f64::INFINITY, f64::min);
            lines.push(format!("{:<18} {a:9.1} {b:9.1} {c:9.1} {d:9.1} {worst:9.1}", case.name));
        }
        lines.push(format!("A worst: the worst {} s after B joined", self.bucket));
        lines.join("\n")
    }
}

fn median(buckets: &[[f64; 2]], who: usize) -> f64 {
    let mut values: Vec<f64> = buckets.iter().map(|bucket| bucket[who]).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

pub fn run(args: &Args) -> Outcome<Report> {
    let joined = Duration::from_secs_f64((args.seconds.as_secs_f64() / 3.0).round());
    let rtt = Duration::from_millis(args.rtt);
    let member = |id| Member {
        id,
        max: None,
        min: Some(args.half),
        weight: 1,
        segment: Segment::new(1).expect("in range"),
    };
    let tcp = Sender { kind: Kind::Tcp { rtt, demand: None }, activity: Activity::from(Duration::ZERO) };
    let udp = Sender { kind: Kind::Udp(Rate::MAX), activity: Activity::from(joined) };
    let period = Duration::from_secs(1) / args.rate;
    let timing = Timing {
        jitter: period / 10,
        delay: period / 5,
        setting: Duration::from_millis(2),
        ..Timing::exact(period)
    };
    let scenario = |control| Scenario {
        link: LinkTerms::new(args.capacity),
        // The link of the source was 1 Gbit/s that carried 800 Mbit/s.
        speed: Rate::from_bits(args.capacity.bits() / 4 * 5).unwrap_or(Rate::MAX),
        buffer: Bytes::new(args.capacity.bits() / 8 / 100),
        members: vec![(member(0), tcp.clone()), (member(1), udp.clone())],
        tenants: vec![],
        control,
        duration: args.seconds,
        bucket: Duration::from_millis(500),
        seed: 1,
    };
    let mut cases = Vec::new();
    for (name, control) in [
        ("no control", Control::None),
        ("a fixed limit on B", Control::Fixed(vec![None, Some(args.half)])),
        ("the loop", Control::Loop(timing)),
    ] {
        let trace = simulation::run(&scenario(control))
            .map_err(|refusals| refusals.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))?;
        cases.push(Case {
            name,
            delivered: trace.delivered.iter().map(|bucket| [bucket[0], bucket[1]]).collect(),
            changes: trace.steps.iter().map(|step| step.changed).sum(),
            steps: trace.steps.len(),
        });
    }
    Ok(Report { bucket: 0.5, joined: joined.as_secs_f64(), cases })
}
