//! `tidegate plan -f FILE`, and how changes are shown.

use crate::api::Plan;
use crate::client::Client;
use crate::commands::apply::Source;
use crate::exit::{self, Failure};
use crate::format::{duration, plural};
use crate::table::{Align, Table};
use serde_json::Value;

/// Arguments of `plan`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exits with 3 where the contracts are not valid or not admissible.")]
pub struct Args {
    #[command(flatten)]
    source: Source,
}

/// Shows what `apply` would change; changes nothing.
pub async fn run(client: &Client, args: Args, json: bool) -> Result<(), Failure> {
    let (path, text) = args.source.read("/v1/plan")?;
    if json {
        exit::print_json(&client.post_toml::<Value>(&path, &text).await?)
    } else {
        exit::print(&planned(&client.post_toml(&path, &text).await?))
    }
}

/// A plan that has not been carried out.
pub fn planned(plan: &Plan) -> String {
    if plan.changes.is_empty() {
        return format!("Nothing to change: all of it is in force.\n{}", consequences(plan));
    }
    let changes = plural(plan.changes.len() as u64, "change");
    format!("Admissible, {changes}:\n{}{}", list(plan), consequences(plan))
}

/// A plan that has been carried out.
pub fn applied(plan: &Plan) -> String {
    if plan.changes.is_empty() {
        return "Nothing to change: all of it was in force.\n".into();
    }
    format!("Done, {}:\n{}{}", plural(plan.changes.len() as u64, "change"), list(plan), consequences(plan))
}

fn list(plan: &Plan) -> String {
    let mut out = String::new();
    for change in &plan.changes {
        out += &format!("  {} {}\n", change.action, change.vnic.as_deref().unwrap_or("host settings"));
        for detail in &change.details {
            out += &format!("    {detail}\n");
        }
    }
    out
}

fn consequences(plan: &Plan) -> String {
    let mut out = String::new();
    if !plan.bounds.is_empty() {
        let columns = [
            ("real-time vNIC", Align::Left),
            ("to", Align::Left),
            ("deadline", Align::Right),
            ("delay bound", Align::Right),
            ("margin", Align::Right),
        ];
        let mut table = Table::new(&columns);
        for planned in &plan.bounds {
            let (deadline, bound) = (planned.bound.deadline.get(), planned.bound.bound.get());
            table.row([
                planned.vnic.clone(),
                planned.bound.egress.clone(),
                duration(deadline),
                duration(bound),
                duration(deadline.saturating_sub(bound)),
            ]);
        }
        out += &format!("\n{}", table.render());
    }
    for note in &plan.notes {
        out += &format!("note: {note}\n");
    }
    out
}
