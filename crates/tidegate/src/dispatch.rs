//! Dispatches the command line to its command.

use crate::cli::{Cli, Command};
use crate::client::Client;
use crate::commands::runtime::wait;
use crate::commands::{
    agent, apply, calibrate, capture, clock, completions, controller, cores, decisions, demo, events,
    libvirt, path, plan, status, switch, top, topology, uplink, vnic, why,
};
use crate::exit::Failure;
use clap::CommandFactory;

pub fn run(cli: Cli) -> Result<(), Failure> {
    let (client, json) = (Client::new(&cli.api), cli.json);
    match cli.command {
        Command::Status(args) => wait(status::run(&client, args, json)),
        Command::Apply(args) => wait(apply::run(&client, args, json)),
        Command::Plan(args) => wait(plan::run(&client, args, json)),
        Command::Vnic(command) => wait(vnic::run(&client, command, json)),
        Command::Uplink(args) => wait(uplink::run(&client, args, json)),
        Command::Top(args) => wait(top::run(&client, args, json)),
        Command::Why(args) => wait(why::run(&client, args, json)),
        Command::Clock(args) => wait(clock::run(&client, args, json)),
        Command::Events(args) => wait(events::run(&client, args, json)),
        Command::Calibrate(args) => wait(calibrate::run(&client, args, json)),
        Command::Cores(command) => wait(cores::run(&client, command, json)),
        Command::Path(command) => path::run(command, json),
        Command::Topology(args) => topology::run(&args, json),
        Command::Decisions(args) => decisions::run(args, json),
        Command::Controller(command) => controller::run(command, json),
        Command::Capture(args) => wait(capture::run(&client, args)),
        Command::Libvirt(command) => wait(libvirt::run(&client, command, json)),
        Command::Agent(args) => agent::run(args, cli.api),
        Command::Switch(args) => switch::run(args),
        Command::Demo(args) => demo::run(args, json),
        Command::Completions(args) => completions::run(args, Cli::command()),
        Command::DemoTenant(args) => demo::run_tenant(args),
    }
}
