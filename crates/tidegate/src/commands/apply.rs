//! `tidegate apply -f FILE`.

use crate::client::{Client, encode, shown};
use crate::commands::{not_in_force, plan};
use crate::exit::{self, Failure};
use crate::format::path;
use serde_json::Value;
use std::io::Read;
use std::path::{Path, PathBuf};
use tidegate_agent::views::PlanView;

/// Arguments of `apply`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exits with 4 where the place of a contract is away, and with 1 where a contract of FILE failed."
)]
pub struct Args {
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    how: How,
}

/// What may be done on the way.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct How {
    /// Remove the API's vNICs that the file does not name
    #[arg(long)]
    prune: bool,
    /// Take over what others made in the way on a netdev (a root qdisc, filters at its ingress), and put it back
    /// when the contract goes
    #[arg(long)]
    adopt: bool,
}

/// Where contracts are read from.
#[derive(Debug, clap::Args)]
pub struct Source {
    /// File with contracts (TOML); - reads standard input
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
}

impl Source {
    /// The API path `route` with where the text came from, and the text.
    pub fn read(&self, route: &str, how: How) -> Result<(String, String), Failure> {
        let failed = |e: std::io::Error| Failure::failed(format!("cannot read {}: {e}", path(&self.file)));
        let (origin, text) = if self.file == Path::new("-") {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).map_err(failed)?;
            ("stdin".to_owned(), text)
        } else {
            (path(&self.file), std::fs::read_to_string(&self.file).map_err(failed)?)
        };
        let prune = if how.prune { "&prune=true" } else { "" };
        let adopt = if how.adopt { "&adopt=true" } else { "" };
        Ok((format!("{route}?origin={}{prune}{adopt}", encode(&origin)), text))
    }
}

/// Puts the contracts of a file in force, all or none.
pub async fn run(client: &Client, args: Args, json: bool) -> Result<(), Failure> {
    let (path, text) = args.source.read("/v1/apply", args.how)?;
    let answer: Value = client.post_toml(&path, &text).await?;
    let done: PlanView = shown(answer.clone(), &path)?;
    if json {
        exit::print_json(&answer)?;
    } else {
        exit::print(&plan::text(&done))?;
    }
    not_in_force::ended(&done.vnics)
}
