//! `tidegate cores plan`: what the plan would move, why, and what it saves.

use super::report::report;
use super::words::{cpus_of, is_port, load, obstacles};
use crate::client::Client;
use crate::exit::{self, Code, Failure};
use crate::format::{duration, names, percent, plural};
use crate::table::{Align, Table};
use std::time::Duration;
use tidegate_evidence::{CoresReport, PlanReport, StageReport};

/// Most moves that the text shows.
const SHOWN: usize = 40;

/// Arguments of `cores plan`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exits with 3 where nothing can be planned, or a deadline's needs cannot be met, and with 1 where \
                        the agent has not planned yet."
)]
pub struct Args {}

pub async fn run(client: &Client, Args {}: Args, json: bool) -> Result<(), Failure> {
    let (answer, cores) = report(client).await?;
    if json {
        exit::print_json(&answer)?;
    } else {
        exit::print(&text(&cores))?;
    }
    verdict(&cores)
}

/// Returns the exit code, and the reason that standard output does not have.
fn verdict(cores: &CoresReport) -> Result<(), Failure> {
    let refused = |message| Err(Failure { code: Code::Refused, message });
    match (&cores.impossible, &cores.plan) {
        (Some(_), _) => refused(String::new()),
        (None, None) => Err(Failure::failed("the agent has not planned yet; try again in some seconds")),
        (None, Some(plan)) if plan.impossible.is_empty() => Ok(()),
        (None, Some(plan)) => {
            let vnics: Vec<String> =
                plan.impossible.iter().map(|impossible| impossible.vnic.clone()).collect();
            refused(format!("no plan meets what the deadline needs of {}", names(&vnics)))
        }
    }
}

fn text(cores: &CoresReport) -> String {
    if let Some(why) = &cores.impossible {
        return format!("Nothing can be planned: {why}\n{}", obstacles(cores));
    }
    let Some(plan) = &cores.plan else { return obstacles(cores) };
    let moves: Vec<&StageReport> = cores.stages.iter().filter(|stage| stage.is_misplaced()).collect();
    let stages = cores.stages.iter().filter(|stage| !stage.planned.is_empty()).count();
    let of = plural(stages as u64, "stage");
    let mut out = match (cores.kept, moves.len()) {
        _ if stages == 0 => "The plan leaves all work where it is.\n".into(),
        (true, 0) => format!("The plan is kept: all of {of} are where it has them.\n"),
        (true, n) => format!("The plan is kept: {n} of {of} are still to move:\n"),
        (false, 0) => {
            format!("The plan is not kept, and would move nothing: all of {of} are where it has them.\n")
        }
        (false, n) => format!("The plan is not kept. It would move {n} of {of}:\n"),
    };
    if !moves.is_empty() {
        out += &format!("\n{}", table(&moves));
    }
    out += &format!("\n{}", figures(cores, plan));
    out + &obstacles(cores)
}

/// Lists the moves. Ports go with their worker's CPU.
fn table(moves: &[&StageReport]) -> String {
    let mut table = Table::new(&[
        ("stage", Align::Left),
        ("vNICs", Align::Left),
        ("load", Align::Right),
        ("from", Align::Left),
        ("to", Align::Left),
        ("why", Align::Left),
    ]);
    for stage in moves.iter().take(SHOWN) {
        let load = load(stage.load.into());
        table.row([
            stage.stage.clone(),
            if is_port(stage) { String::new() } else { names(&stage.vnics) },
            if stage.measured { load } else { format!("about {load}") },
            cpus_of(&stage.present),
            cpus_of(&stage.planned),
            stage.reason.clone(),
        ]);
    }
    let more = moves.len().checked_sub(SHOWN).filter(|more| *more > 0);
    table.render() + &more.map_or_else(String::new, |more| format!("{more} more; --json has all\n"))
}

fn figures(cores: &CoresReport, plan: &PlanReport) -> String {
    let PlanReport { cost_ns, present_cost_ns, lower_bound_ns, exact, took_us, .. } = plan;
    let gap = match (*exact, cost_ns.saturating_sub(*lower_bound_ns)) {
        (true, _) => "no plan costs less".to_owned(),
        (false, gap) if *cost_ns > 0 => format!(
            "no plan costs less than {}: at most {} of it could be saved",
            duration(*lower_bound_ns),
            percent(gap as f64 / *cost_ns as f64)
        ),
        (false, _) => "no plan costs less".to_owned(),
    };
    let took = u64::try_from(Duration::from_micros(*took_us).as_nanos()).unwrap_or(u64::MAX);
    let mut table = Table::new(&[("", Align::Left), ("", Align::Left)]);
    table.row([
        "cost",
        &format!("{} of CPU time a second now, {} planned", duration(*present_cost_ns), duration(*cost_ns)),
    ]);
    table.row(["bound", &gap]);
    table.row(["model", &cores.costs]);
    table.row(["planned", &format!("in {}", duration(took))]);
    table.render().lines().skip(1).map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::cores::samples::{large, small};

    #[test]
    fn a_plan_lists_moves_and_costs() {
        let expected = "\
The plan is not kept. It would move 2 of 3 stages:

stage                         vNICs  load  from      to     why
vCPU thread 4711 (CPU 0/KVM)  plc1   21 %  CPUs 0-3  CPU 2  beside the housekeeping
vCPU thread 4712 (CPU 1/KVM)  plc1   19 %  CPUs 0-3  CPU 0  beside the housekeeping

cost     9.80 ms of CPU time a second now, 4.10 ms planned
bound    no plan costs less than 4.00 ms: at most 2.4 % of it could be saved
model    priors
planned  in 310 us

Deadlines whose needs this machine cannot meet:
  cam: no CPU is left for it alone

Conflicts:
  irqbalance: it moves the interrupts of eth1
    do: systemctl disable --now irqbalance
";
        assert_eq!(text(&small()), expected);
        let failure = verdict(&small()).unwrap_err();
        let message = "no plan meets what the deadline needs of cam";
        assert_eq!((failure.code, failure.message.as_str()), (Code::Refused, message));
    }

    #[test]
    fn a_plan_that_is_kept() {
        let mut cores = small();
        cores.kept = true;
        cores.plan.as_mut().unwrap().impossible.clear();
        cores.plan.as_mut().unwrap().exact = true;
        assert!(text(&cores).starts_with("The plan is kept: 2 of 3 stages are still to move:\n"));
        assert!(text(&cores).contains("bound    no plan costs less\n"));
        cores.stages.iter_mut().for_each(|stage| stage.present = stage.planned.clone());
        let mut none = cores.clone();
        none.stages.iter_mut().for_each(|stage| stage.planned.clear());
        assert!(text(&none).starts_with("The plan leaves all work where it is.\n\ncost"));
        assert!(text(&cores).starts_with("The plan is kept: all of 3 stages are where it has them.\n\ncost"));
        assert_eq!(verdict(&cores), Ok(()));
    }

    #[test]
    fn hundreds_of_moves_fit_on_a_screen() {
        let mut cores = large();
        cores.stages.iter_mut().for_each(|stage| stage.planned = vec![99]);
        cores.plan = Some(PlanReport::default());
        let text = text(&cores);
        assert!(text.contains("\n461 more; --json has all\n"), "{text}");
    }

    #[test]
    fn without_a_plan() {
        let mut cores = CoresReport::default();
        assert_eq!(verdict(&cores).unwrap_err().code, Code::Failed);
        cores.impossible = Some("the machine has one CPU".into());
        assert_eq!(text(&cores), "Nothing can be planned: the machine has one CPU\n");
        assert_eq!(verdict(&cores).unwrap_err().code, Code::Refused);
    }
}
