//! The one program of Tidegate.
//!
//! ```text
//!  tidegate status, apply, plan, vnic, top, why, capture, calibrate ──HTTP over a Unix socket──▶ tidegate agent
//!  tidegate libvirt hook, watch ── contracts of libvirt's domains, over the same ──▶ tidegate agent
//!  tidegate path, topology, decisions, controller ──HTTP(S)──▶ the network's controllers
//!  tidegate agent, switch: run here             tidegate agent ──control──▶ tidegate switch
//!  tidegate demo: namespaces, its own switch and agent, measured traffic
//! ```
//!
//! - [`cli`]: the command line
//! - `dispatch`: from the command line to its command
//! - [`commands`]: one file per command
//! - [`client`]: the agent's API
//! - [`network`]: the API of the network's controllers
//! - [`format`], [`table`], [`explain`]: output for people
//! - [`pcapng`]: the blocks of a capture
//! - [`exit`]: exit codes
//! - [`demo`]: the demo's scene, measurement and report

mod cli;
mod client;
mod commands;
mod demo;
mod dispatch;
mod exit;
mod explain;
mod format;
mod network;
mod pcapng;
mod table;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(usage) => return exit::print_usage(&usage),
    };
    let _log = tidegate_log::init(cli.verbose);
    exit::finish(dispatch::run(cli))
}
