//! `tidegate decisions`: what the controller decided about paths, and why.
//!
//! ```text
//!  controller ─ pages of 1,000, in order ─▶ a line each, its reasons below
//!       ▲                                      │
//!       └── --follow: once a second, after the last number
//! ```

use crate::commands::runtime::wait;
use crate::exit::{self, Code, Failure};
use crate::network::answer::shown;
use crate::network::reach::Reach;
use std::thread::{sleep, spawn};
use std::time::Duration;
use tidegate_controller_api::client::{Client, Error};
use tidegate_controller_api::{Decision, Decisions, ProblemCode, Verdict};
use tokio::sync::oneshot;

/// Decisions in one answer.
const PAGE: u32 = 1000;
/// Between two looks for news.
const PAUSE: Duration = Duration::from_secs(1);
/// Looks in a row without an answer until `--follow` ends: a standby takes over in less.
const PATIENCE: u32 = 60;

/// Arguments of `decisions`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: tidegate decisions --path 'a1>b1' --follow")]
pub struct Args {
    /// Those about one path, 'VNIC>REMOTE', and no other
    #[arg(long, value_name = "NAME")]
    path: Option<String>,
    /// Those after this number
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    after: u64,
    /// Wait for more, until Ctrl-C
    #[arg(long)]
    follow: bool,
    #[command(flatten)]
    reach: Reach,
}

pub fn run(args: Args, json: bool) -> Result<(), Failure> {
    let client = args.reach.client()?;
    if !args.follow {
        return print_all(&client, &args, json);
    }
    // The client blocks, so it has a thread of its own, which ends with the process.
    let asked = async {
        let (sender, ended) = oneshot::channel();
        spawn(move || sender.send(print_all(&client, &args, json)));
        ended.await.unwrap_or_else(|_| Err(Failure::failed("the look at decisions broke off")))
    };
    wait(async {
        tokio::select! {
            biased;
            _ = tokio::signal::ctrl_c() => Ok(()),
            result = asked => result,
        }
    })
}

fn print_all(client: &Client, args: &Args, json: bool) -> Result<(), Failure> {
    let mut after = args.after;
    let mut failures = 0;
    loop {
        match client.decisions(after, PAGE, args.path.as_deref()) {
            Ok(page) => {
                failures = 0;
                let (next, is_last) = next(after, &page)?;
                print(&page, json)?;
                after = next;
                if is_last && !args.follow {
                    return Ok(());
                }
                if !is_last {
                    continue;
                }
            }
            Err(error) if args.follow && may_pass(&error) && failures < PATIENCE => failures += 1,
            Err(error) => return Err(error.into()),
        }
        sleep(PAUSE);
    }
}

/// Whether another controller may answer soon.
fn may_pass(error: &Error) -> bool {
    match error {
        Error::Unreachable { .. } | Error::Broken { .. } => true,
        Error::Problem { problem, .. } => matches!(problem.code, ProblemCode::Standby | ProblemCode::Busy),
    }
}

/// Returns the number after which to ask next, and whether there is no more now.
///
/// # Errors
/// The numbers do not ascend: asking for more would not end.
fn next(after: u64, page: &Decisions) -> Result<(u64, bool), Failure> {
    let mut last = after;
    for decision in &page.decisions {
        if decision.number <= last {
            return Err(Failure {
                code: Code::Unreachable,
                message: format!(
                    "the controller gave decision {} after {last}; numbers ascend",
                    decision.number
                ),
            });
        }
        last = decision.number;
    }
    // Numbers that begin anew: the controller has lost its state.
    let last = if page.decisions.is_empty() && page.last < after { page.last } else { last };
    Ok((last, page.decisions.len() < PAGE as usize))
}

fn print(page: &Decisions, json: bool) -> Result<(), Failure> {
    if json {
        return page.decisions.iter().try_for_each(exit::print_json_line);
    }
    exit::print(&shown(page)?.decisions.iter().map(line).collect::<String>())
}

fn line(decision: &Decision) -> String {
    let Decision { number, time, path, cause, verdict, reasons } = decision;
    let verdict = match verdict {
        Verdict::Admitted => "admitted",
        Verdict::Refused => "refused",
        Verdict::Released => "released",
        Verdict::RateRaised => "rate raised",
        Verdict::LevelRaised => "level raised",
        Verdict::Moved => "moved",
        Verdict::Violated => "violated",
        Verdict::Kept => "kept",
    };
    let reasons: String = reasons.iter().map(|reason| format!("        {reason}\n")).collect();
    format!("{number:>6}  {}  {verdict:<12}  {path}: {cause}\n{reasons}", time_of_day(*time))
}

/// Returns the time of day (UTC).
fn time_of_day(unix: f64) -> String {
    // Any number that a controller can send becomes some time.
    let ms = (unix * 1000.0) as u64;
    let second = ms / 1000 % 86_400;
    format!("{:02}:{:02}:{:02}.{:03}", second / 3600, second / 60 % 60, second % 60, ms % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(number: u64) -> Decision {
        Decision {
            number,
            time: 1_795_000_000.5,
            path: "a1>b1".into(),
            cause: "request".into(),
            verdict: Verdict::LevelRaised,
            reasons: vec!["bound 600000 ns of 900000".into(), "second".into()],
        }
    }

    #[test]
    fn a_decision_is_a_line_with_its_reasons_below() {
        assert_eq!(
            line(&decision(7)),
            "     7  11:06:40.500  level raised  a1>b1: request\n        bound 600000 ns of 900000\n        second\n"
        );
        for time in [f64::MAX, -1.0, 0.0, 1e300] {
            time_of_day(time);
        }
    }

    #[test]
    fn pages_follow_each_other_and_end() {
        let page = |numbers: std::ops::Range<u64>, last| Decisions {
            decisions: numbers.map(decision).collect(),
            last,
        };
        assert_eq!(next(0, &page(1..1001, 1500)).unwrap(), (1000, false));
        assert_eq!(next(1000, &page(1001..1501, 1500)).unwrap(), (1500, true));
        assert_eq!(next(1500, &page(0..0, 1500)).unwrap(), (1500, true));
        assert_eq!(next(1500, &page(0..0, 3)).unwrap(), (3, true));
        let doubled = Decisions { decisions: vec![decision(5), decision(5)], last: 5 };
        assert_eq!(next(0, &doubled).unwrap_err().code, Code::Unreachable);
        assert_eq!(next(9, &page(5..6, 5)).unwrap_err().code, Code::Unreachable);
    }
}
