//! `tidegate cores apply`: keeps the plan from now on, or no longer.
//!
//! ```text
//!  GET /v1/host ─▶ [host] in force, placement changed ─▶ POST /v1/apply ─┬─▶ what changed, and what stands in the way
//!                                                                        └─▶ another owner's: its file, and the lines to write
//! ```

use super::report::report;
use super::words::obstacles;
use crate::client::{Client, ClientError, for_display};
use crate::commands::plan;
use crate::exit::{self, Failure};
use hyper::StatusCode;
use serde_json::Value;
use tidegate_agent::views::{HostView, PlanView};
use tidegate_contract::{Cores, Host, Placement};

/// Arguments of `cores apply`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "It changes [host.cores]: placement and, with --adopt, adopt. Exits with 3 where a file owns [host]: it \
                        says which, and what to write there."
)]
pub struct Args {
    /// Keep the plan no longer: put back what was changed
    #[arg(long, conflicts_with = "adopt")]
    off: bool,
    /// Move work that another program or setting pinned, too
    #[arg(long)]
    adopt: bool,
}

pub async fn run(client: &Client, args: Args, json: bool) -> Result<(), Failure> {
    let path = "/v1/apply?origin=cores%20apply";
    let host: HostView = client.get("/v1/host").await?;
    let wanted = changed(host.host, &args);
    let answer: Value =
        client.post_toml(path, &wanted.to_toml()).await.map_err(|error| refusal(error, &wanted.cores))?;
    if json {
        return exit::print_json(&answer);
    }
    let done: PlanView = for_display(answer, path)?;
    let mut text = plan::text(&done);
    if !args.off {
        // An obstacle is no failure of the change: without an answer there is none to tell.
        text += &report(client).await.map_or_else(|_| String::new(), |(_, cores)| notes(&cores));
    }
    exit::print(&text)
}

fn notes(cores: &tidegate_evidence::CoresReport) -> String {
    let impossible =
        cores.impossible.as_ref().map_or_else(String::new, |why| format!("Nothing can be planned: {why}\n"));
    impossible + &obstacles(cores)
}

/// Returns `host` with the placement that the command line asks for.
fn changed(host: Host, args: &Args) -> Host {
    let placement = if args.off { Placement::Off } else { Placement::Plan };
    let adopt = host.cores.adopt || args.adopt;
    Host { cores: Cores { placement, adopt, ..host.cores }, ..host }
}

/// Adds the lines to write, if another owner has `[host]`.
fn refusal(error: ClientError, wanted: &Cores) -> Failure {
    let is_owned = matches!(&error, ClientError::Answered { status: StatusCode::CONFLICT, problem } if problem.error.starts_with("[host] "));
    let mut failure = Failure::from(error);
    if is_owned {
        let placement = match wanted.placement {
            Placement::Off => "off",
            Placement::Plan => "plan",
        };
        let adopt = if wanted.adopt { "\n  adopt = true" } else { "" };
        failure.message += &format!("\nWrite there:\n  [host.cores]\n  placement = \"{placement}\"{adopt}");
    }
    failure
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Problem;
    use crate::exit::Code;
    use tidegate_contract::parse;

    #[test]
    fn only_the_placement_changes() {
        let text = "[host]\nflood = \"5mbit\"\n[host.cores]\ncpus = \"1-3\"\nsteer = [\"eth1\"]\n[host.flow.a]\ndevice = \"eth1\"\nto = \"::1\"";
        let host = parse(text, "test").unwrap().host.unwrap().value;
        let plan = changed(host.clone(), &Args { off: false, adopt: true });
        assert_eq!((plan.cores.placement, plan.cores.adopt), (Placement::Plan, true));
        let off = changed(plan, &Args { off: true, adopt: false });
        let adopt = Cores { adopt: true, ..host.cores.clone() };
        assert_eq!(off, Host { cores: adopt, ..host });
        assert_eq!(parse(&off.to_toml(), "written").unwrap().host.unwrap().value, off);
    }

    #[test]
    fn a_file_that_owns_the_host_is_named_with_what_to_write() {
        let answered = |status, error: &str| ClientError::Answered {
            status,
            problem: Problem { error: error.into(), details: Value::Null },
        };
        let wanted = Cores { placement: Placement::Plan, adopt: true, ..Cores::default() };
        let owned = refusal(
            answered(StatusCode::CONFLICT, "[host] belongs to /etc/tidegate/host.toml: change it there"),
            &wanted,
        );
        let expected = "\
[host] belongs to /etc/tidegate/host.toml: change it there
Write there:
  [host.cores]
  placement = \"plan\"
  adopt = true";
        assert_eq!(owned, Failure { code: Code::Refused, message: expected.into() });
        let other = refusal(answered(StatusCode::SERVICE_UNAVAILABLE, "busy"), &wanted);
        assert_eq!(other, Failure { code: Code::Unreachable, message: "busy".into() });
    }
}
