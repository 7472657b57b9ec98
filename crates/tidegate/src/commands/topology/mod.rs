//! `tidegate topology`: the network, drawn in the terminal.
//!
//! ```text
//!  controller ─▶ Topology ─▶ graph: switches with their ports ─▶ order ─▶ drawing: a line each, links as lanes beside it
//!                   └─ many switches, or --table ──────────────────────▶ list: a table of all links
//! ```
//!
//! - `graph`: which port of which switch leads where
//! - `order`: switches such that few links cross
//! - `lanes`: links as lines beside rows
//! - `drawing`: the drawing
//! - `list`: the table
//! - `share`: what is reserved, as a bar

mod drawing;
mod graph;
mod lanes;
mod list;
mod order;
mod share;
#[cfg(test)]
mod tests;

use crate::exit::{self, Failure};
use crate::format::{plural, plural_of};
use crate::network::answer::shown;
use crate::network::reach::Reach;
use tidegate_controller_api::Topology;

/// Most switches, and rows, of a drawing.
const MOST_SWITCHES: usize = 48;
const MOST_ROWS: usize = 600;

/// Arguments of `topology`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A table of all links in place of the drawing
    #[arg(long)]
    table: bool,
    #[command(flatten)]
    reach: Reach,
}

pub fn run(args: &Args, json: bool) -> Result<(), Failure> {
    let topology = args.reach.client()?.topology()?;
    if json {
        return exit::print_json(&topology);
    }
    exit::print(&text(&shown(&topology)?, args.table))
}

fn text(topology: &Topology, table: bool) -> String {
    let is_large = topology.switches.len() > MOST_SWITCHES || topology.links.len() > MOST_ROWS;
    let picture = if table || is_large { list::text(topology) } else { drawing::text(topology) };
    format!("{}\n\n{picture}", summary(topology))
}

/// Returns how many switches, links and hosts there are, and how many of them are away.
fn summary(topology: &Topology) -> String {
    let away = |n: usize, what: &str| if n == 0 { String::new() } else { format!(" ({n} {what})") };
    let (switches, links, hosts) = (&topology.switches, &topology.links, &topology.hosts);
    format!(
        "{}{}, {}{}, {}{}",
        plural_of(switches.len() as u64, "switch", "switches"),
        away(switches.iter().filter(|switch| !switch.connected).count(), "not connected"),
        plural(links.len() as u64, "direction"),
        away(links.iter().filter(|link| !link.up).count(), "down"),
        plural(hosts.len() as u64, "host"),
        away(hosts.iter().filter(|host| !host.registered).count(), "not registered"),
    )
}
