//! `tidegate-bench`: a load generator of synthetic vhost-user guests, for hundreds of ports and exact rates.
//!
//! ```text
//!  contracts (TOML) ──▶ scene ──▶ guests on their sockets ══rings══ tidegate switch, another process
//!                                    │
//!  command ─▶ load: one pinned thread turns over all rings ─▶ counts per window ─▶ JSON or a table
//! ```
//!
//! The caller has put the same contracts in force with `tidegate apply`, on an ordinary switch. Frames are
//! built once and reused; no frame costs an allocation or a system call.
//!
//! - [`scene`]: the guests
//! - [`frames`]: the frames that they send
//! - [`guest`], [`load`]: sending, receiving, counting
//! - [`shares`]: fairness of the counts. Pure
//! - [`neighbours`]: honest guests, measured beside others
//! - [`host`]: an agent and a switch as child processes
//! - [`kills`]: the guests of the measurement that kills
//! - [`reliability`]: a results file for docs/reliability.md
//! - [`nic`]: the loop of the NIC place, simulated, on a switch, and its cost
//! - [`network`]: a network between hosts, with delays and losses by rules
//! - [`commands`]: one file per measurement
//! - [`measurement`]: windows, common options and reports
//! - [`clock`]: time, and the CPU

mod clock;
mod commands;
mod frames;
mod guest;
mod host;
mod kills;
mod load;
mod measurement;
mod neighbours;
mod network;
mod nic;
mod reliability;
mod scene;
mod shares;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = commands::Cli::parse();
    match commands::run(&cli) {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("tidegate-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
