//! The command line: one file per measurement.

pub mod between;
pub mod fairness;
pub mod forward;
pub mod hostile;
pub mod kills;
pub mod network;
pub mod nic;
pub mod numbered;
pub mod rates;
pub mod sparse;
pub mod stall;
pub mod superframes;
pub mod wake;
pub mod worker_share;

use crate::clock;
use crate::load::Watch;
use crate::measurement::{Outcome, print};
use crate::scene::Scene;
use clap::{Parser, Subcommand};
use std::path::PathBuf;

/// Load from synthetic vhost-user guests, on a running tidegate switch
#[derive(Debug, Parser)]
#[command(name = "tidegate-bench", version, about, propagate_version = true)]
pub struct Cli {
    /// The contracts in force (TOML), as `tidegate apply -f` took them
    #[arg(long, global = true, value_name = "FILE", default_value = "contracts.toml")]
    pub contracts: PathBuf,
    /// CPU to run on; not pinned where absent. The switch has to be on another one
    #[arg(long, global = true, value_name = "N")]
    pub cpu: Option<usize>,
    /// Process of the switch: with it, every window says how long others held the switch's CPU
    #[arg(long, global = true, value_name = "PID")]
    pub switch_pid: Option<u32>,
    /// Print JSON instead of a table
    #[arg(long, global = true)]
    pub json: bool,
    /// What to measure.
    #[command(subcommand)]
    pub command: Command,
}

/// One variant per measurement.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Frames per second from port to port, over many ports or addresses
    Forward(forward::Args),
    /// Pairs of ports at full load, of which one receiver stalls again and again
    Stall(stall::Args),
    /// Bytes per second in 64 KB super-frames, against this machine's memcpy
    Superframes(superframes::Args),
    /// A set rate against the rate that arrives, and how far bursts go beyond it
    Rates(rates::Args),
    /// Probes of a sparse flow beside flows that fill the same vNIC's limit
    Sparse(sparse::Args),
    /// One end of a pair of guests on two hosts: rate, or round trips
    Between(between::Args),
    /// Each sender's share of one egress that all senders fill
    Fairness(fairness::Args),
    /// Numbered frames from one vNIC to another, over deaths of the switch: a line of JSON a second
    Numbered(numbered::Args),
    /// How traffic goes on when the switch is killed again and again; starts an agent and a switch itself
    Kills(kills::Args),
    /// Goodput and delay of neighbours beside hostile front ends; starts an agent and a switch itself
    Hostile(hostile::Args),
    /// A vNIC's share of its worker beside ports that want all of it; starts an agent and a switch itself
    WorkerShare(worker_share::Args),
    /// First frames after silence, between guests that sleep; starts an agent and a switch itself
    Wake(wake::Args),
    /// The loop that shares a NIC's link out among its functions; needs no contracts
    Nic(nic::Args),
    /// A network between hosts that delays, loses, doubles or corrupts frames; needs no contracts
    Network(network::Args),
}

pub fn run(cli: &Cli) -> Outcome<String> {
    if let Some(cpu) = cli.cpu {
        clock::pin(cpu).map_err(|error| format!("--cpu {cpu}: {error}"))?;
    }
    if let Command::Kills(args) = &cli.command {
        return print(cli.json, &kills::run(args)?, kills::Report::table);
    }
    if let Command::Hostile(args) = &cli.command {
        return print(cli.json, &hostile::run(args, cli.cpu)?, hostile::Report::table);
    }
    if let Command::WorkerShare(args) = &cli.command {
        return print(cli.json, &worker_share::run(args, cli.cpu)?, worker_share::Report::table);
    }
    if let Command::Wake(args) = &cli.command {
        return print(cli.json, &wake::run(args)?, wake::Report::table);
    }
    if let Command::Nic(args) = &cli.command {
        return nic::run(cli.json, args);
    }
    if let Command::Network(args) = &cli.command {
        return network::run(args);
    }
    let scene = Scene::read(&cli.contracts)?;
    let watch = &Watch::new(cli.switch_pid)?;
    match &cli.command {
        Command::Forward(args) => {
            print(cli.json, &forward::run(&scene, args, watch)?, forward::Report::table)
        }
        Command::Stall(args) => print(cli.json, &stall::run(&scene, args, watch)?, stall::Report::table),
        Command::Superframes(args) => {
            print(cli.json, &superframes::run(&scene, args, watch, cli.cpu)?, superframes::Report::table)
        }
        Command::Rates(args) => print(cli.json, &rates::run(&scene, args, watch)?, rates::Report::table),
        Command::Sparse(args) => print(cli.json, &sparse::run(&scene, args)?, sparse::Report::table),
        Command::Fairness(args) => {
            print(cli.json, &fairness::run(&scene, args, watch)?, fairness::Report::table)
        }
        Command::Between(args) => between::run(&scene, args, cli.json),
        Command::Numbered(args) => numbered::run(&scene, args),
        Command::Kills(_)
        | Command::Hostile(_)
        | Command::WorkerShare(_)
        | Command::Wake(_)
        | Command::Nic(_)
        | Command::Network(_) => unreachable!("they need no contracts, and were done before"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }
}
