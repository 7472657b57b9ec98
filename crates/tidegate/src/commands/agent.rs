//! `tidegate agent`.

use crate::commands::switch;
use crate::exit::{Code, Failure};
use std::path::PathBuf;

/// The API socket, unless another is given.
pub const API: &str = "/run/tidegate/api.sock";

/// Arguments of `agent`. The API socket it listens on is the global `--api`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder with the contracts (*.toml)
    #[arg(long, value_name = "DIR", default_value = "/etc/tidegate")]
    config: PathBuf,
    /// Folder for what must survive a restart
    #[arg(long, value_name = "DIR", default_value = "/var/lib/tidegate")]
    state: PathBuf,
    /// The switch's control socket
    #[arg(long, value_name = "PATH", default_value = switch::SOCKET)]
    switch: PathBuf,
    /// Group whose members may use the API; root alone where absent
    #[arg(long, value_name = "GROUP")]
    api_group: Option<String>,
}

/// Runs the agent until it is told to stop.
pub fn run(args: Args, api: PathBuf) -> Result<(), Failure> {
    let options = tidegate_agent::Options {
        config: args.config,
        state: args.state,
        switch: args.switch,
        api,
        api_group: args.api_group,
    };
    tidegate_agent::run(options).map_err(|e| Failure { code: Code::Failed, message: e.to_string() })
}
