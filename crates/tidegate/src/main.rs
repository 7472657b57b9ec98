//! The one program of Tidegate.
//!
//! ```text
//!  tidegate status, apply, plan, vnic, top, why, capture ──HTTP over a Unix socket──▶ tidegate agent
//!  tidegate libvirt hook, watch ── contracts of libvirt's domains, over the same ──▶ tidegate agent
//!  tidegate agent, switch: run here             tidegate agent ──control──▶ tidegate switch
//!  tidegate demo: namespaces, its own switch and agent, measured traffic
//! ```
//!
//! - [`cli`]: the command line
//! - [`commands`]: one file per command
//! - [`client`]: the agent's API
//! - [`format`], [`table`], [`explain`]: what people read
//! - [`pcapng`]: the blocks of a capture
//! - [`exit`]: exit codes
//! - [`demo`]: the demo's scene, measurement and report

mod cli;
mod client;
mod commands;
mod demo;
mod exit;
mod explain;
mod format;
mod pcapng;
mod table;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    log(cli.verbose);
    exit::finish(commands::run(cli))
}

/// Logs go to standard error: what a person should act on, more with `-v`, and
/// whatever RUST_LOG says.
fn log(verbose: u8) {
    use tracing_subscriber::EnvFilter;
    let level = ["warn", "info", "debug", "trace"][usize::from(verbose.min(3))];
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
}
