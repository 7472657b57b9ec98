//! `tidegate apply -f FILE`.

pub use super::source::{ApplyOptions, Source};
use crate::client::{Client, for_display};
use crate::commands::{not_in_force, plan};
use crate::exit::{self, Failure};
use serde_json::Value;
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
    options: ApplyOptions,
}

pub async fn run(client: &Client, args: Args, json: bool) -> Result<(), Failure> {
    let (path, text) = args.source.read("/v1/apply", args.options)?;
    let answer: Value = client.post_toml(&path, &text).await?;
    let done: PlanView = for_display(answer.clone(), &path)?;
    if json {
        exit::print_json(&answer)?;
    } else {
        exit::print(&plan::text(&done))?;
    }
    not_in_force::exit_code(&done.vnics)
}
