//! `tidegate cores`: which CPU does which part of the work for frames.
//!
//! ```text
//!  GET /v1/cores ─▶ CoresReport ─┬─▶ show: a drawing of the machine, and what stands in the way of the plan
//!                                └─▶ plan: what would move, why, and what it saves
//!  GET /v1/host ─▶ [host] ─▶ apply: [host.cores] placement ─▶ POST /v1/apply
//!  this machine ─▶ calibrate: what CPUs cost each other ─▶ a file that the plan reads
//! ```
//!
//! - [`show`], [`plan`], [`apply`], [`calibrate`]: the commands
//! - `report`: the agent's answer; `machine`: the drawing, pure
//! - `words`: stages and CPUs in words. Pure

mod apply;
pub mod calibrate;
mod machine;
mod plan;
mod report;
#[cfg(test)]
mod samples;
mod show;
mod words;

use crate::client::Client;
use crate::exit::Failure;

/// Subcommands of `cores`.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Draw the machine, and who works where
    Show(show::Args),
    /// Show what the plan would move, why, and what it saves; changes nothing
    Plan(plan::Args),
    /// Keep the plan from now on, or no longer
    Apply(apply::Args),
    /// Measure what CPUs cost each other on this machine, for the plan
    Calibrate(calibrate::Args),
}

pub async fn run(client: &Client, command: Command, json: bool) -> Result<(), Failure> {
    match command {
        Command::Show(args) => show::run(client, args, json).await,
        Command::Plan(args) => plan::run(client, args, json).await,
        Command::Apply(args) => apply::run(client, args, json).await,
        Command::Calibrate(args) => calibrate::run(client, args, json).await,
    }
}
