//! CPU time of a step of the loop: a third of the functions is idle, a third has what it wants, and a third
//! wants more.

use crate::measurement::Outcome;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::time::Duration;
use tidegate_contract::{Rate, Segment};
use tidegate_place_nic::control::{Controller, LinkTerms, Member, Tenant, Usage};

/// Arguments of `nic cost`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Functions; repeatable
    #[arg(long, value_name = "N", default_values_t = [64, 256])]
    functions: Vec<u16>,
    /// Steps measured
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
}

#[derive(Debug, Serialize)]
pub struct Report {
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    functions: u16,
    steps: u32,
    /// CPU time of a step: median and largest.
    step_us: f64,
    most_us: f64,
    /// CPU time per function and second, at 100 steps a second.
    function_us_per_second_at_100: f64,
    /// Limits that changed per step.
    changes: f64,
}

impl Report {
    pub fn table(&self) -> String {
        let mut lines = vec![
            "VFs   us a step    most   us per VF and s, at 10/s  at 100/s   limits changed a step".into(),
        ];
        for row in &self.rows {
            let at_100 = row.function_us_per_second_at_100;
            lines.push(format!(
                "{:<5} {:9.1} {:7.1} {:26.2} {at_100:9.2} {:23.2}",
                row.functions,
                row.step_us,
                row.most_us,
                at_100 / 10.0,
                row.changes
            ));
        }
        lines.join("\n")
    }
}

fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

pub fn run(args: &Args) -> Outcome<Report> {
    let mut rows = Vec::new();
    for &functions in &args.functions {
        rows.push(row(functions, args.steps)?);
    }
    Ok(Report { rows })
}

fn row(functions: u16, steps: u32) -> Outcome<Row> {
    const CAPACITY: u64 = 25_000;
    let rate = |mbit: u64| Rate::from_bits(mbit.max(1) * 1_000_000).expect("in range");
    let segment = |id: u32| Segment::new(id).expect("in range");
    let fair = CAPACITY / u64::from(functions.max(1));
    let members: Vec<Member> = (0..functions)
        .map(|id| Member {
            id,
            max: (id % 4 == 0).then(|| rate(3 * fair)),
            min: (id % 2 == 0).then(|| rate(fair / 2)),
            weight: 1 + u32::from(id % 5),
            segment: segment(u32::from(id % 8)),
        })
        .collect();
    let tenants: Vec<Tenant> =
        (0..8).map(|id| Tenant { segment: segment(id), max: Some(rate(CAPACITY / 4)), min: None }).collect();
    let mut controller = Controller::new(LinkTerms::new(rate(CAPACITY)), &members, &tenants)
        .map_err(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))?;
    let elapsed = Duration::from_millis(10);
    let mut usage = vec![None; members.len()];
    let mut times = Vec::new();
    let mut changes = 0;
    const WARM_UP: u32 = 50;
    for step in 0..WARM_UP + steps {
        let begin = cpu_time();
        let changed = controller.step(&usage).len();
        let took = cpu_time() - begin;
        if step >= WARM_UP {
            times.push(took.as_secs_f64() * 1e6);
            changes += changed;
        }
        for (index, standing) in controller.standings().enumerate() {
            let limit = standing.limit.map_or(0, Rate::bits);
            // Four times a second each function changes: idle, satisfied, wanting more.
            let wanted = match (index as u32 + step / 25) % 3 {
                0 => 0,
                1 => fair * 500_000 + u64::from(step * 7919 % 100) * fair * 1000,
                _ => u64::MAX,
            };
            let bytes = (limit.min(wanted) as f64 / 8.0 * elapsed.as_secs_f64()) as u64;
            usage[index] = Some(Usage { bytes, elapsed });
        }
    }
    times.sort_by(f64::total_cmp);
    let step_us = times[times.len() / 2];
    Ok(Row {
        functions,
        steps,
        step_us,
        most_us: times[times.len() - 1],
        function_us_per_second_at_100: 100.0 * step_us / f64::from(functions.max(1)),
        changes: changes as f64 / f64::from(steps),
    })
}
