//! `tidegate-bench network`: a network between hosts, with delays, losses and a rate by rules.

use crate::measurement::Outcome;
use crate::network::port::{self, Port};
use crate::network::record::Recorder;
use crate::network::{Input, Network};
use std::io::Write;
use std::path::PathBuf;

/// Arguments of `network`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Interfaces of this namespace to join. Their peers send without offloads
    #[arg(required = true, num_args = 2.., value_name = "INTERFACE")]
    interfaces: Vec<String>,
    /// Write a line of JSON for each frame that a rule chose
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Run under SCHED_FIFO with this priority
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..=99))]
    fifo_priority: Option<i32>,
}

/// Runs until standard input ends; each of its lines is a plan.
pub fn run(args: &Args) -> Outcome<String> {
    let named = |name: &String| Port::new(name).map_err(|error| format!("interface {name}: {error}"));
    let ports = args.interfaces.iter().map(named).collect::<Result<Vec<_>, _>>()?;
    let recorder = args.record.as_deref().map_or_else(|| Ok(Recorder::default()), Recorder::new)?;
    if let Some(priority) = args.fifo_priority {
        port::first(priority).map_err(|error| format!("--fifo-priority {priority}: {error}"))?;
    }
    println!("ready");
    std::io::stdout().flush()?;
    Ok(serde_json::to_string(&Network::new(ports, recorder).run(Input::default())?)?)
}
