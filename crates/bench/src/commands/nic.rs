//! `tidegate-bench nic`: the loop that shares out a NIC's link: simulated, on a switch, and its cost.

use crate::measurement::Outcome;
use crate::nic::{cost, govern, lending, original};
use clap::{Args as ClapArgs, Subcommand};

/// Arguments of `nic`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    command: Command,
}

/// One variant per question.
#[derive(Debug, Subcommand)]
enum Command {
    /// One TCP sender, joined by a UDP sender that asks for everything: simulated, three ways
    Simulate(original::Args),
    /// A minimum that is lent while its owner is silent, beside one that is reserved: simulated
    Lending(lending::Args),
    /// Governs ports of a switch, by the agent's API, as if they were functions of a NIC
    Govern(govern::Args),
    /// CPU time of a step, by number of functions
    Cost(cost::Args),
}

pub fn run(json: bool, args: &Args) -> Outcome<String> {
    match &args.command {
        Command::Simulate(args) => {
            crate::measurement::print(json, &original::run(args)?, original::Report::table)
        }
        Command::Lending(args) => {
            crate::measurement::print(json, &lending::run(args)?, lending::Report::table)
        }
        Command::Govern(args) => crate::measurement::print(json, &govern::run(args)?, govern::Report::table),
        Command::Cost(args) => crate::measurement::print(json, &cost::run(args)?, cost::Report::table),
    }
}
