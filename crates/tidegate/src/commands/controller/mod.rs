//! `tidegate controller enrol`: this host becomes one of the network's.

mod enrol;
mod folder;

use crate::exit::Failure;

/// What to do with the controller.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Get this host's certificate for its enrolment token; with --renew, a new one for the old one
    #[command(after_help = enrol::EXAMPLE)]
    Enrol(Box<enrol::Args>),
}

pub fn run(command: Command, json: bool) -> Result<(), Failure> {
    match command {
        Command::Enrol(args) => enrol::run(&args, json),
    }
}
