//! `tidegate demo`, and the tenants it starts.

use crate::demo::contracts::Where;
use crate::demo::{self, tenant};
use crate::exit::Failure;
use std::time::Duration;

/// Arguments of `demo`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Who keeps the contracts
    #[arg(long, value_enum, default_value_t = Where::Switch)]
    place: Where,
    /// Leave the scene running afterwards, for `top` and the API, until Ctrl-C
    #[arg(long)]
    serve: bool,
    /// Seconds measured in each of the two phases; 2 s of warm-up come before each
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Repeat all of it, and tell the median and the worst of the runs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    runs: Option<u64>,
    /// Do without real-time priority even where it is allowed
    #[arg(long)]
    no_realtime: bool,
}

/// Arguments of a tenant.
#[derive(Debug, clap::Args)]
pub struct TenantArgs {
    role: tenant::Role,
}

pub fn run(args: Args, json: bool) -> Result<(), Failure> {
    let span = Duration::from_secs(args.seconds);
    let (place, serve, realtime, runs) = (args.place, args.serve, !args.no_realtime, args.runs);
    demo::run(demo::Options { place, json, serve, span, realtime, runs })
}

pub fn run_tenant(args: TenantArgs) -> Result<(), Failure> {
    tenant::run(args.role).map_err(Failure::failed)
}
