//! `tidegate path ls | show | request | release`: the real-time paths of the network.
//!
//! ```text
//!  ls, show ───▶ controller ─▶ paths ─▶ table, text
//!  request ─ checked here ───▶ controller ─▶ the granted path, or each route's refusal: exit code 3
//! ```

mod name;
mod request;
mod show;

pub use name::host as host_name;

use crate::exit::{self, Failure};
use crate::format::{count, duration, natural, rate};
use crate::network::answer::shown;
use crate::network::reach::Reach;
use crate::table::{Align, Table};
use tidegate_controller_api::Path;

/// What to do with paths.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List them
    Ls(#[command(flatten)] Reach),
    /// Show one: what was asked for and granted, its links, and its late frames
    Show(Named),
    /// Ask for a path, or for other terms of one; hosts' agents ask for theirs by themselves
    #[command(after_help = request::EXAMPLE)]
    Request(Box<request::Args>),
    /// End one: its frames become best effort
    Release(Named),
}

/// One path.
#[derive(Debug, clap::Args)]
pub struct Named {
    /// The path, 'VNIC>REMOTE'; in quotes, since a shell takes > for itself
    #[arg(value_parser = name::path)]
    name: String,
    #[command(flatten)]
    reach: Reach,
}

pub fn run(command: Command, json: bool) -> Result<(), Failure> {
    match command {
        Command::Ls(reach) => {
            let paths = reach.client()?.paths()?;
            if json { exit::print_json(&paths) } else { exit::print(&overview(shown(&paths)?.paths)) }
        }
        Command::Show(Named { name, reach }) => print(&reach.client()?.path(&name)?, json),
        Command::Request(args) => {
            let request = args.request().map_err(Failure::usage)?;
            print(&args.reach.client()?.request(&request)?, json)
        }
        Command::Release(Named { name, reach }) => {
            reach.client()?.release(&name)?;
            if json {
                return exit::print_json(&serde_json::json!({ "released": name }));
            }
            exit::print(&format!("Released {name}: its frames are best effort.\n"))
        }
    }
}

fn print(path: &Path, json: bool) -> Result<(), Failure> {
    if json { exit::print_json(path) } else { exit::print(&show::text(&shown(path)?)) }
}

fn overview(mut paths: Vec<Path>) -> String {
    if paths.is_empty() {
        return "There are no paths. A host's agent asks for those of its vNICs with a deadline; by hand: \
                tidegate path request\n"
            .into();
    }
    paths.sort_by(|a, b| natural(&a.name).cmp(&natural(&b.name)));
    let right = Align::Right;
    let mut table = Table::new(&[
        ("path", Align::Left),
        ("state", Align::Left),
        ("hosts", Align::Left),
        ("rate", right),
        ("budget", right),
        ("bound", right),
        ("level", right),
        ("links", right),
        ("misses", right),
    ]);
    for path in &paths {
        let request = &path.request;
        table.row([
            path.name.clone(),
            show::state(path.state).into(),
            format!("{} to {}", request.source, request.target),
            rate(request.rate as f64),
            duration(request.budget),
            duration(path.bound),
            path.level.to_string(),
            path.links.len().to_string(),
            // Nothing judges the arrival of frames without a stamp.
            path.request.key.udp().map_or_else(|| "-".into(), |_| count(path.misses)),
        ]);
    }
    table.render()
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use serde_json::json;
    use tidegate_controller_api::PathState;

    pub fn path() -> Path {
        serde_json::from_value(json!({
            "name": "a1>b1",
            "request": {
                "vnic": "a1", "remote": "b1", "source": "h1", "target": "h2",
                "key": {"source": "10.1.0.1", "target": "10.1.0.2", "source_port": 49156, "target_port": 4789},
                "dscp": 46, "rate": 47_000_000, "burst": 7100, "smallest_frame": 110, "largest_frame": 1550,
                "budget": 900_000
            },
            "state": "active", "level": 0, "links": ["h1>s1:2", "s1:1>s2:1", "s2:2>h2"], "generation": 1, "tag": 7,
            "bound": 600_000, "far_burst": 9000, "misses": 0, "reasons": [], "lasting": false
        }))
        .unwrap()
    }

    #[test]
    fn paths_are_rows_in_natural_order() {
        let other = Path { name: "a10>b1".into(), misses: 1234, state: PathState::Violated, ..path() };
        assert_eq!(
            overview(vec![other, path()]),
            "\
path    state     hosts            rate  budget   bound  level  links  misses
a1>b1   active    h1 to h2  47.0 Mbit/s  900 us  600 us      0      3       0
a10>b1  violated  h1 to h2  47.0 Mbit/s  900 us  600 us      0      3   1,234
"
        );
        assert!(overview(vec![]).contains("tidegate path request"));
    }
}
