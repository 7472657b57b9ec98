//! `tidegate agent`.

use crate::commands::switch;
use crate::exit::Failure;
use std::path::PathBuf;
use tidegate::places::{self, KeepOff};

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
    /// Group whose members may use the API; the agent's own where absent
    #[arg(long, value_name = "GROUP")]
    api_group: Option<String>,
    /// Permissions of the API's socket, octal
    #[arg(long, value_name = "MODE", default_value = "660", value_parser = mode)]
    api_mode: u32,
    /// Folder below which contracts may have sockets, besides /run/tidegate/vm; may be repeated
    #[arg(long, value_name = "DIR")]
    socket_root: Vec<PathBuf>,
    /// Folder below which contracts may name network namespaces, besides /run/netns; may be repeated
    #[arg(long, value_name = "DIR")]
    netns_root: Vec<PathBuf>,
    /// Observe, by eBPF, what keeps the switch's workers from their CPUs, while a deadline is in force
    #[arg(long, value_enum, value_name = "WHETHER", default_value_t = ObserveCpu::On)]
    observe_cpu: ObserveCpu,
    /// What to keep off the CPUs of the switch's workers, besides the agent's own threads, while a deadline is in force
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = OwnCpus::Halts)]
    own_cpus: OwnCpus,
}

/// Whether CPUs are observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ObserveCpu {
    /// While a deadline is in force
    On,
    /// Of a late frame only the worker's own long loops are known
    Off,
}

/// What is kept off workers' CPUs.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum OwnCpus {
    /// All of it
    All,
    /// The stack of taps
    Softirqs,
    /// Halts, while real-time frames flow: idle time counts as used then
    Halts,
    /// Nothing, the agent's own threads neither
    None,
}

fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "expected an octal number up to 777".into())
}

pub fn run(args: Args, api: PathBuf) -> Result<(), Failure> {
    let own_cpus = KeepOff {
        softirqs: matches!(args.own_cpus, OwnCpus::All | OwnCpus::Softirqs),
        halts: matches!(args.own_cpus, OwnCpus::All | OwnCpus::Halts),
    };
    let switch =
        places::SwitchOptions { socket: args.switch, observe_cpu: args.observe_cpu == ObserveCpu::On };
    let places = places::install(switch, places::CoresOptions { own_cpus: Some(own_cpus) });
    let options = tidegate_agent::Options {
        config: args.config,
        state: args.state,
        api,
        api_group: args.api_group,
        api_mode: args.api_mode,
        socket_roots: args.socket_root,
        netns_roots: args.netns_root,
    };
    super::runtime::wait(async { tidegate_agent::run(options, places).await.map_err(Failure::failed) })
}
