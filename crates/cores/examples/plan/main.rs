//! Plans generated hosts, and prints time, cost, the lower bound, and the gap between them.
//!
//! ```sh
//! cargo run --release -p tidegate-cores --example plan -- --cpus 128 --vnics 500 --seeds 5
//! ```

mod host;

use std::process::ExitCode;
use std::time::Instant;
use tidegate_cores::planner::{Effort, plan};

struct Arguments {
    cpus: usize,
    vnics: usize,
    seed: u64,
    seeds: u64,
    steps: u64,
    json: bool,
}

const USAGE: &str = "plan [--cpus 128] [--vnics 500] [--seed 1] [--seeds 1] [--steps 10000000] [--json]";

fn arguments() -> Result<Arguments, String> {
    let mut chosen =
        Arguments { cpus: 128, vnics: 500, seed: 1, seeds: 1, steps: Effort::default().steps, json: false };
    let mut given = std::env::args().skip(1);
    while let Some(name) = given.next() {
        if name == "--json" {
            chosen.json = true;
            continue;
        }
        let value = given.next().ok_or(format!("{name} needs a number"))?;
        let number: u64 = value.parse().map_err(|e| format!("{name} {value}: {e}"))?;
        match name.as_str() {
            "--cpus" if (1..=4096).contains(&number) => chosen.cpus = number as usize,
            "--vnics" if number <= 10_000 => chosen.vnics = number as usize,
            "--seed" => chosen.seed = number,
            "--seeds" => chosen.seeds = number,
            "--steps" => chosen.steps = number,
            _ => return Err(format!("{name} {value}: unknown or out of range")),
        }
    }
    Ok(chosen)
}

/// One planned host.
struct Row {
    seed: u64,
    stages: usize,
    ms: f64,
    again_ms: f64,
    moved: usize,
    present: u64,
    cost: u64,
    bound: u64,
    exact: bool,
    impossible: usize,
}

impl Row {
    fn gap(&self) -> f64 {
        if self.cost == 0 { 0.0 } else { (self.cost - self.bound) as f64 / self.cost as f64 * 100.0 }
    }
}

fn row(arguments: &Arguments, seed: u64) -> Row {
    let mut problem = host::generate(arguments.cpus, arguments.vnics, seed);
    let started = Instant::now();
    let first = plan(&problem, Effort { steps: arguments.steps });
    let ms = started.elapsed().as_secs_f64() * 1000.0;
    problem.in_force = first.assignment.clone();
    for (nth, stage) in problem.stages.iter_mut().enumerate() {
        stage.load = stage.load / 100 * (98 + nth as u32 % 5);
    }
    let started = Instant::now();
    let second = plan(&problem, Effort { steps: arguments.steps });
    let moved = first
        .assignment
        .cpus
        .iter()
        .filter(|(handle, cpu)| second.assignment.cpus.get(handle) != Some(cpu))
        .count();
    Row {
        seed,
        stages: problem.stages.len(),
        ms,
        again_ms: started.elapsed().as_secs_f64() * 1000.0,
        moved,
        present: first.present_cost,
        cost: first.cost,
        bound: first.lower_bound,
        exact: first.exact,
        impossible: first.impossible.len(),
    }
}

fn main() -> ExitCode {
    let arguments = match arguments() {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            return ExitCode::FAILURE;
        }
    };
    if !arguments.json {
        println!(
            "{} CPUs, {} vNICs, {} steps; costs in ms of CPU time a second",
            arguments.cpus, arguments.vnics, arguments.steps
        );
        println!(
            "seed stages  time ms  spread    plan   bound   gap % of plan  exact  impossible  again ms  moved again"
        );
    }
    let mut gaps = vec![];
    let mut times = vec![];
    for seed in arguments.seed..arguments.seed + arguments.seeds {
        let row = row(&arguments, seed);
        let ms = |ns: u64| ns as f64 / 1.0e6;
        if arguments.json {
            println!(
                r#"{{"cpus":{},"vnics":{},"steps":{},"seed":{},"stages":{},"time_ms":{:.1},"present_ns":{},"cost_ns":{},"bound_ns":{},"gap_percent":{:.2},"exact":{},"impossible":{},"again_ms":{:.1},"moved_again":{}}}"#,
                arguments.cpus,
                arguments.vnics,
                arguments.steps,
                row.seed,
                row.stages,
                row.ms,
                row.present,
                row.cost,
                row.bound,
                row.gap(),
                row.exact,
                row.impossible,
                row.again_ms,
                row.moved
            );
        } else {
            println!(
                "{:4} {:6} {:8.0} {:7.0} {:7.0} {:7.0} {:15.1}  {:5}  {:10}  {:8.0}  {:11}",
                row.seed,
                row.stages,
                row.ms,
                ms(row.present),
                ms(row.cost),
                ms(row.bound),
                row.gap(),
                row.exact,
                row.impossible,
                row.again_ms,
                row.moved
            );
        }
        gaps.push(row.gap());
        times.push(row.ms);
    }
    if !arguments.json && arguments.seeds > 1 {
        let of = |mut all: Vec<f64>| {
            all.sort_by(f64::total_cmp);
            (all[all.len() / 2], all[all.len() - 1])
        };
        let ((gap, worst_gap), (time, worst_time)) = (of(gaps), of(times));
        println!(
            "gap: median {gap:.1} %, worst {worst_gap:.1} %; time: median {time:.0} ms, worst {worst_time:.0} ms"
        );
    }
    ExitCode::SUCCESS
}
