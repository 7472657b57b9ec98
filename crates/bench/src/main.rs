//! `tidegate-bench`: a load generator made of synthetic vhost-user guests, for
//! what generators with a few fast ports cannot do.
//!
//! ```text
//!  contracts (TOML) ──▶ scene ──▶ guests on their sockets ══rings══ tidegate switch, another process
//!                                    │
//!  command ─▶ load: one pinned thread turns over all rings ─▶ counts per window ─▶ JSON or a table
//! ```
//!
//! The switch is an ordinary one: the caller has put the same contracts in
//! force with `tidegate apply`. Frames are built once and go round; nothing is
//! allocated and nothing is asked of the kernel per frame.
//!
//! - [`scene`]: which guests there are
//! - [`frames`]: what they send
//! - [`guest`], [`load`]: sending, receiving, counting
//! - [`shares`]: what the counts say of fairness; pure
//! - [`neighbours`]: honest guests, measured beside others
//! - [`host`]: an agent and a switch of our own
//! - [`kills`]: the guests of the measurement that kills
//! - [`reliability`]: the file that docs/reliability.md is made of
//! - [`nic`]: the loop of the NIC place, simulated, on a switch, and its cost
//! - [`commands`]: one file per measurement
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
