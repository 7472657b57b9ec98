//! One file per command. A command returns what went wrong; `main` makes the exit code of it.

pub mod agent;
pub mod apply;
pub mod calibrate;
pub mod capture;
pub mod completions;
pub mod demo;
pub mod libvirt;
mod not_in_force;
pub mod plan;
#[cfg(test)]
mod samples;
pub mod show;
pub mod status;
pub mod switch;
pub mod top;
pub mod vnic;
pub mod why;
pub mod window;

use crate::cli::{Cli, Command};
use crate::client::Client;
use crate::exit::Failure;
use std::future::Future;

/// Runs a command to its end.
pub fn run(cli: Cli) -> Result<(), Failure> {
    let (client, json) = (Client::new(&cli.api), cli.json);
    match cli.command {
        Command::Status(args) => wait(status::run(&client, args, json)),
        Command::Apply(args) => wait(apply::run(&client, args, json)),
        Command::Plan(args) => wait(plan::run(&client, args, json)),
        Command::Vnic(command) => wait(vnic::run(&client, command, json)),
        Command::Top(args) => wait(top::run(&client, args, json)),
        Command::Why(args) => wait(why::run(&client, args, json)),
        Command::Calibrate(args) => wait(calibrate::run(&client, args, json)),
        Command::Capture(args) => wait(capture::run(&client, args)),
        Command::Libvirt(command) => wait(libvirt::run(&client, command, json)),
        Command::Agent(args) => agent::run(args, cli.api),
        Command::Switch(args) => switch::run(args),
        Command::Demo(args) => demo::run(args, json),
        Command::Completions(args) => completions::run(args),
        Command::DemoTenant(args) => demo::run_tenant(args),
    }
}

fn wait<T>(command: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::failed)?;
    runtime.block_on(command)
}
