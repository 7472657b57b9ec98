//! What the look-up costs: `cargo run --release -p tidegate-steering --example lookup [ROUNDS [ENTRIES...]]`; as root.
//!
//! Writes one line of JSON for each number of entries (by default 10, 1 k, 100 k, 1 M), exact and with 1 to 8 masks: nanoseconds per frame.

use std::process::ExitCode;
use tidegate_steering::measure::{Case, cost};

fn main() -> ExitCode {
    let numbers: Result<Vec<u32>, _> = std::env::args().skip(1).map(|text| text.parse()).collect();
    let Ok(numbers) = numbers else {
        eprintln!("lookup: expected numbers: ROUNDS ENTRIES...");
        return ExitCode::from(2);
    };
    let rounds = numbers.first().map_or(9, |rounds| *rounds as usize);
    let entries = if numbers.len() > 1 { &numbers[1..] } else { &[10, 1_000, 100_000, 1_000_000][..] };
    for entries in entries.iter().copied() {
        for masks in [0, 1, 2, 4, 8] {
            match cost(Case { entries, masks }, rounds) {
                Ok(cost) => println!("{}", serde_json::to_string(&cost).expect("numbers")),
                Err(error) => {
                    eprintln!("lookup: {error}");
                    return ExitCode::FAILURE;
                }
            }
        }
    }
    ExitCode::SUCCESS
}
