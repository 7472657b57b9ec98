//! The cost of lending an unused minimum for its owner, and the gain for the others. Simulated: A always
//! sends TCP; B sends UDP at its minimum, half of the link, in bursts.

use crate::measurement::Outcome;
use serde::Serialize;
use std::time::Duration;
use tidegate_contract::{Bytes, Rate, Segment};
use tidegate_place_nic::control::{Lending, LinkTerms, Member};
use tidegate_testkit::simulation::{self, Activity, Control, Kind, Scenario, Sender, Timing};

/// Arguments of `nic lending`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How long each, s
    #[arg(long, value_name = "S", default_value = "60", value_parser = crate::measurement::seconds)]
    seconds: Duration,
}

#[derive(Debug, Serialize)]
pub struct Report {
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    /// Duration of B's bursts, and of its pauses (s).
    burst: f64,
    lending: &'static str,
    period_ms: u64,
    /// Delivered share of B's demand, all of which was promised.
    b_got: f64,
    used: f64,
}

impl Report {
    pub fn table(&self) -> String {
        let mut lines =
            vec!["burst and pause   minimum   period   B got of its minimum   link used".to_owned()];
        for row in &self.rows {
            lines.push(format!(
                "{:>13} s {:>10} {:>5} ms {:>20.1} % {:>9.1} %",
                row.burst,
                row.lending,
                row.period_ms,
                row.b_got * 100.0,
                row.used * 100.0
            ));
        }
        lines.join("\n")
    }
}

pub fn run(args: &Args) -> Outcome<Report> {
    const CAPACITY: u64 = 800;
    const START: Duration = Duration::from_secs(2);
    let mbit = |rate: u64| Rate::from_bits(rate * 1_000_000).expect("in range");
    let half = mbit(CAPACITY / 2);
    let segment = Segment::new(1).expect("in range");
    let member = |id| Member { id, max: None, min: Some(half), weight: 1, segment };
    let mut rows = Vec::new();
    for burst in [0.1, 1.0, 10.0] {
        let length = Duration::from_secs_f64(burst);
        for (lending, name) in [(Lending::Reserve, "reserved"), (Lending::Lend, "lent")] {
            for period_ms in [10, 100, 1000] {
                let period = Duration::from_millis(period_ms);
                let timing = Timing { delay: period / 5, ..Timing::exact(period) };
                let tcp = Kind::Tcp { rtt: Duration::from_millis(1), demand: None };
                let a = Sender { kind: tcp, activity: Activity::from(Duration::ZERO) };
                let activity = Activity { on: length, off: length, ..Activity::from(START) };
                let b = Sender { kind: Kind::Udp(half), activity };
                let trace = simulation::run(&Scenario {
                    link: LinkTerms { lending, ..LinkTerms::new(mbit(CAPACITY)) },
                    speed: mbit(CAPACITY / 4 * 5),
                    buffer: Bytes::new(1_000_000),
                    members: vec![(member(0), a), (member(1), b)],
                    tenants: vec![],
                    control: Control::Loop(timing),
                    duration: START + args.seconds,
                    bucket: Duration::from_millis(100),
                    seed: 1,
                })
                .map_err(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))?;
                let (from, to) = (START.as_secs_f64(), (START + args.seconds).as_secs_f64());
                let [a, b] = [0, 1].map(|who| trace.mean(who, from, to));
                let asked = CAPACITY as f64 / 4.0;
                rows.push(Row {
                    burst,
                    lending: name,
                    period_ms,
                    b_got: b / asked,
                    used: (a + b) / CAPACITY as f64,
                });
            }
        }
    }
    Ok(Report { rows })
}
