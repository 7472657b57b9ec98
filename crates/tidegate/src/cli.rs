//! The command line.

use crate::commands::{
    agent, apply, calibrate, capture, clock, completions, controller, cores, decisions, demo, events,
    libvirt, path, plan, status, switch, top, topology, uplink, vnic, why,
};
use crate::exit;
use clap::{Parser, Subcommand};
use std::path::PathBuf;

/// On-time, rate-guaranteed networking for virtual machines on KVM
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, about, after_help = exit::HELP, propagate_version = true)]
pub struct Cli {
    /// The agent's API socket
    #[arg(long, global = true, value_name = "SOCKET", env = "TIDEGATE_API", default_value = agent::API)]
    pub api: PathBuf,
    /// Print JSON instead of text
    #[arg(long, global = true)]
    pub json: bool,
    /// Log more to standard error; may be repeated (RUST_LOG overrides it)
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// One variant per command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Say what needs a person, and which command to run next
    Status(status::Args),
    /// Put contracts in force
    Apply(apply::Args),
    /// Show what `apply` would change and whether it is admissible; changes nothing
    Plan(plan::Args),
    /// Look at and change virtual NICs
    #[command(subcommand)]
    Vnic(vnic::Command),
    /// Look at the ways to other hosts
    Uplink(uplink::Args),
    /// Watch rates against contracts, delays and misses, live
    Top(top::Args),
    /// Say in plain words why a vNIC is slow, drops frames or misses deadlines; or an uplink drops frames
    Why(why::Args),
    /// Show the offsets to other hosts' clocks, and how far they can be trusted
    Clock(clock::Args),
    /// Watch what happens: misses, front ends, contracts, uplinks, repairs; a line each
    Events(events::Args),
    /// Record a vNIC's frames as pcapng, for Wireshark and tcpdump
    Capture(capture::Args),
    /// Measure what `host-latency` has to be on this host, and what stands in the way of less
    Calibrate(calibrate::Args),
    /// Which CPU does which part of the work for frames
    #[command(subcommand)]
    Cores(cores::Command),
    /// Real-time paths through the network
    #[command(subcommand)]
    Path(path::Command),
    /// Draw the network: switches, links and what is reserved of them, hosts
    Topology(topology::Args),
    /// What the network's controller decided about paths, and why
    Decisions(decisions::Args),
    /// This host and the network's controller
    #[command(subcommand)]
    Controller(controller::Command),
    /// Contracts of libvirt's domains: its hook, its <metadata> and <bandwidth>
    #[command(subcommand)]
    Libvirt(libvirt::Command),
    /// Run the agent: contracts in, evidence out
    Agent(agent::Args),
    /// Run the switch: the data plane
    Switch(switch::Args),
    /// See it work in 20 seconds; needs no root, no VM and no hardware
    Demo(demo::Args),
    /// Print a completion script for a shell
    Completions(completions::Args),
    /// A tenant of the demo
    #[command(hide = true)]
    DemoTenant(demo::TenantArgs),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use clap::error::ErrorKind;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn global_options_stand_anywhere() {
        for line in ["tidegate --json --api /a vnic ls", "tidegate vnic ls --json --api /a"] {
            let cli = parse(line).unwrap();
            assert!(cli.json);
            assert_eq!(cli.api, PathBuf::from("/a"));
        }
    }

    #[test]
    fn usage_errors_have_the_documented_code() {
        for line in [
            "tidegate apply",
            "tidegate vnic set plc1",
            "tidegate switch --workers 0",
            "tidegate switch --fifo-priority 100",
            "tidegate switch --cpus 3-1",
            "tidegate capture plc1 --snaplen 0",
            "tidegate calibrate --seconds 0",
            "tidegate nonsense",
        ] {
            let error = parse(line).expect_err(line);
            assert_eq!(error.exit_code(), exit::Code::Usage as i32, "{line}");
        }
    }

    #[test]
    fn help_states_the_exit_codes_and_hides_the_tenant() {
        let error = parse("tidegate --help").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DisplayHelp);
        let text = error.to_string();
        assert!(text.contains("refused: a contract is not valid") && !text.contains("demo-tenant"), "{text}");
    }

    #[test]
    fn changes_are_keys_and_values() {
        let Command::Vnic(vnic::Command::Set { name, changes }) =
            parse("tidegate vnic set plc1 tx.max=500mbit deadline=").unwrap().command
        else {
            panic!("another command")
        };
        assert_eq!(name, "plc1");
        let pairs: Vec<_> = changes.iter().map(|c| (c.key.as_str(), c.value.as_str())).collect();
        assert_eq!(pairs, [("tx.max", "500mbit"), ("deadline", "")]);
    }
}
