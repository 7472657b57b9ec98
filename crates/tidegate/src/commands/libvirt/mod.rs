//! `tidegate libvirt`: contracts of libvirt's domains.
//!
//! ```text
//!  libvirtd ── runs the hook ──▶ hook ──┐
//!                                       ├─▶ contracts ──▶ the agent: contracts of owner libvirt:NAME
//!  /run/libvirt/qemu/NAME.xml ─▶ watch ─┘
//!  domain XML ─▶ import ─▶ what it means, for people
//!  install ─▶ /etc/libvirt/hooks/qemu.d/tidegate
//! ```

mod contracts;
mod hook;
mod import;
mod install;
mod states;
mod watch;

use crate::client::Client;
use crate::exit::Failure;
use clap::Subcommand;

/// What there is for libvirt.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the contracts that a domain's XML means, <bandwidth> translated; changes nothing
    Import(import::Args),
    /// Have libvirt call Tidegate when a domain starts and stops
    InstallHook(install::Args),
    /// Take the hook away
    RemoveHook(install::RemoveArgs),
    /// What the installed hook runs; libvirt says what happens, the domain's XML is standard input
    Hook(hook::Args),
    /// Follow running domains: interfaces attached and detached, limits and metadata changed
    Watch(watch::Args),
}

pub async fn run(client: &Client, command: Command, json: bool) -> Result<(), Failure> {
    match command {
        Command::Import(args) => import::run(&args, json),
        Command::InstallHook(args) => install::run(&args, client.socket()),
        Command::RemoveHook(args) => install::remove(&args),
        Command::Hook(args) => hook::run(client, args).await,
        Command::Watch(args) => watch::run(client, args).await,
    }
}
