//! The data plane on one thread, with fixed input: what a frame costs where no other core touches
//! the rings. The workers' loops are the only thing measured, by a clock that stands still meanwhile.
//!
//! ```text
//!  driver (not counted): frames, buffers ─▶ Worker::turn, of one or two workers ─▶ driver takes all back
//! ```
//!
//! `cargo run --release -p tidegate-switch --features test-clock --example hot_path` prints nanoseconds a
//! frame. With `--frames N` it carries at least N frames of each case and prints how many: for instruction
//! counts. `--case NAME` takes one case; `--list` names them.
//!
//! - [`cases`]: what is sent, under which contracts, and how it meets its receivers
//! - [`frames`]: the frames themselves
//! - [`scene`]: workers, ports, and one round through them
//! - [`guest`], [`tap`]: what drives a vNIC

mod cases;
mod frames;
mod guest;
mod scene;
mod tap;

use cases::{CASES, Case};
use scene::Scene;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// How long the rounds of each case are measured.
const MEASURED: Duration = Duration::from_millis(200);

/// Nanoseconds a frame: the median of rounds.
fn measure(case: &Case) -> f64 {
    let mut scene = Scene::new(case);
    let frames = scene.frames() as f64;
    let (started, mut rounds) = (Instant::now(), Vec::new());
    while started.elapsed() < MEASURED {
        rounds.push(scene.round().as_nanos() as f64 / frames);
    }
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let value = |name: &str| args.iter().position(|arg| arg == name).and_then(|at| args.get(at + 1));
    let named = value("--case");
    let cases = CASES.iter().filter(|case| named.is_none_or(|name| name == case.name));
    if args.iter().any(|arg| arg == "--list") {
        return cases.for_each(|case| println!("{}", case.name));
    }
    match value("--frames").and_then(|n| n.parse::<u64>().ok()) {
        Some(frames) => cases.for_each(|case| {
            let mut scene = Scene::new(case);
            let rounds = frames.div_ceil(scene.frames());
            (0..rounds).for_each(|_| _ = black_box(scene.round()));
            println!("{} {}", case.name, rounds * scene.frames());
        }),
        None => cases.for_each(|case| println!("{:<32} {:6.1} ns a frame", case.name, measure(case))),
    }
}
