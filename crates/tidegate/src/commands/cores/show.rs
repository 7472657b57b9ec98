//! `tidegate cores show`: a drawing of the machine, and who works where.

use super::machine::{Place, draw};
use super::report::report;
use super::words::{cpus_of, is_port, obstacles, stages};
use crate::client::Client;
use crate::exit::{self, Failure};
use crate::format::{count, names};
use crate::table::{Align, Table};
use std::collections::BTreeMap;
use std::io::IsTerminal;
use tidegate_evidence::{CoresReport, FlowReport, StageReport, SteeringReport};

/// Width of the drawing where there is no terminal, and of narrow and wide ones (characters).
const WIDTH: usize = 100;
const NARROWEST: usize = 80;
const WIDEST: usize = 120;
/// Most flows of a NIC that the text shows.
const FLOWS: usize = 20;

/// Arguments of `cores show`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Draw the work where the plan has it, not where it is now
    #[arg(long)]
    planned: bool,
}

pub async fn run(client: &Client, Args { planned }: Args, json: bool) -> Result<(), Failure> {
    let (answer, cores) = report(client).await?;
    if json {
        return exit::print_json(&answer);
    }
    exit::print(&text(&cores, planned, width()))
}

fn width() -> usize {
    let of_terminal = || ratatui::crossterm::terminal::size().ok().map(|(columns, _)| usize::from(columns));
    let is_terminal = std::io::stdout().is_terminal();
    of_terminal().filter(|_| is_terminal).map_or(WIDTH, |columns| columns.clamp(NARROWEST, WIDEST))
}

/// Where a stage is: the CPU that it may use, if that is one.
fn present(stage: &StageReport) -> Option<usize> {
    match stage.present[..] {
        [cpu] => Some(cpu),
        _ => None,
    }
}

/// Where the plan has a stage; where it is, if the plan leaves it alone.
fn planned(stage: &StageReport) -> Option<usize> {
    match stage.planned[..] {
        [cpu] => Some(cpu),
        [] => present(stage),
        _ => None,
    }
}

fn text(cores: &CoresReport, as_planned: bool, width: usize) -> String {
    let place: Place = if as_planned { planned } else { present };
    let mut out = headline(cores, as_planned) + "\n";
    out += &draw(&cores.cpus, &cores.stages, place, width);
    out += &unbound(cores, as_planned);
    out += &cores.steering.iter().map(steering).collect::<String>();
    out + &obstacles(cores)
}

fn headline(cores: &CoresReport, as_planned: bool) -> String {
    let state = match (&cores.impossible, cores.kept) {
        (Some(why), _) => format!("Nothing can be planned: {why}\n"),
        (None, true) => "The plan is kept ([host.cores] placement = \"plan\").\n".into(),
        (None, false) => {
            "The plan is not kept. See it: tidegate cores plan; keep it: tidegate cores apply\n".into()
        }
    };
    if as_planned { state + "Drawn as planned, not as it is now.\n" } else { state }
}

/// Lists work that may run on several CPUs.
fn unbound(cores: &CoresReport, as_planned: bool) -> String {
    let mut groups: BTreeMap<&[usize], Vec<&StageReport>> = BTreeMap::new();
    for stage in cores.stages.iter().filter(|stage| !is_port(stage)) {
        let cpus = if as_planned && !stage.planned.is_empty() { &stage.planned } else { &stage.present };
        if cpus.len() != 1 {
            groups.entry(cpus).or_default().push(stage);
        }
    }
    if groups.is_empty() {
        return String::new();
    }
    let online: Vec<usize> = cores.cpus.iter().map(|cpu| cpu.cpu).collect();
    let mut out = "\nNot bound to one CPU:\n".to_owned();
    for (cpus, all) in groups {
        let on = match cpus {
            [] => "on CPUs that are not known".into(),
            all if all == online => "on any CPU".into(),
            some => format!("on {}", cpus_of(some)),
        };
        out += &format!("  {on}: {}\n", stages(all));
    }
    out
}

/// Lists the flows of one NIC, those with most frames first.
fn steering(nic: &SteeringReport) -> String {
    let Some(mode) = &nic.mode else { return String::new() };
    let mut flows: Vec<&FlowReport> = nic.flows.iter().collect();
    flows.sort_by_key(|flow| std::cmp::Reverse(flow.frames));
    let mut table = Table::new(&[
        ("flow", Align::Left),
        ("CPU", Align::Right),
        ("frames", Align::Right),
        ("matches", Align::Left),
    ]);
    for flow in flows.iter().take(FLOWS) {
        table.row([flow.flow.clone(), flow.cpu.to_string(), count(flow.frames), flow.matches.clone()]);
    }
    let beside = if nic.chained { ", in libxdp's dispatcher" } else { "" };
    let mut out = format!("\nFrames that {} receives, by flow ({mode} XDP{beside}):\n", nic.device);
    if flows.is_empty() {
        out += "  no flow\n";
    } else {
        out += &table.render().lines().map(|line| format!("  {line}\n")).collect::<String>();
    }
    if let Some(more) = flows.len().checked_sub(FLOWS).filter(|more| *more > 0) {
        out += &format!("  {more} more; --json has all\n");
    }
    let spread: Vec<String> =
        nic.spread.iter().map(|to| format!("CPU {} {}", to.cpu, count(to.frames))).collect();
    if !spread.is_empty() {
        out += &format!("  spread: {} frames\n", names(&spread));
    }
    out + &format!(
        "  left on the CPU of their queue: {}; dropped, since a CPU's queue was full: {}\n",
        count(nic.passed),
        count(nic.dropped)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::cores::samples::{large, small};
    use tidegate_evidence::{ConflictReport, SpreadReport};

    #[test]
    fn a_machine_with_all_there_is_to_say() {
        let mut cores = small();
        cores.stages[2].missing = Some("the kernel refused it".into());
        let libvirt = "it does not run".into();
        cores.conflicts.push(ConflictReport { with: "libvirt".into(), what: libvirt, remedy: String::new() });
        cores.steering = vec![
            SteeringReport {
                device: "eth1".into(),
                mode: Some("native".into()),
                flows: vec![FlowReport {
                    flow: "voice".into(),
                    matches: "vxlan 42, udp".into(),
                    cpu: 1,
                    frames: 18_211,
                    bytes: 1,
                }],
                spread: vec![SpreadReport { cpu: 0, frames: 90_121 }, SpreadReport { cpu: 2, frames: 7 }],
                passed: 12,
                ..SteeringReport::default()
            },
            SteeringReport {
                device: "eth2".into(),
                missing: Some("its driver has no XDP".into()),
                ..SteeringReport::default()
            },
        ];
        let expected = "\
The plan is not kept. See it: tidegate cores plan; keep it: tidegate cores apply

┌ node 0, cache 0: CPUs 0-3 ───────────────────────────────────────────────────┐
│ ┌ CPU 0     11 %  housekeeping: interrupt 24 (eth1-0) (about 4.0 %)          │
│ └ CPU 2    3.0 %  housekeeping                                               │
│ ┌ CPU 1     41 %  own: worker plc1, plc2 (38 %)                              │
│ └ CPU 3      0 %  isolated                                                   │
└──────────────────────────────────────────────────────────────────────────────┘

Not bound to one CPU:
  on any CPU: vCPU plc1 (40 %)

Frames that eth1 receives, by flow (native XDP):
  flow   CPU  frames  matches
  voice    1  18,211  vxlan 42, udp
  spread: CPU 0 90,121, CPU 2 7 frames
  left on the CPU of their queue: 12; dropped, since a CPU's queue was full: 0

Deadlines whose needs this machine cannot meet:
  cam: no CPU is left for it alone

Missing:
  vCPU thread 4711 (CPU 0/KVM): the kernel refused it
  steering of eth2: its driver has no XDP

Conflicts:
  irqbalance: it moves the interrupts of eth1
    do: systemctl disable --now irqbalance

Notes:
  libvirt: it does not run
";
        assert_eq!(text(&cores, false, 80), expected);
    }

    #[test]
    fn the_plan_can_be_drawn() {
        let drawn = text(&small(), true, 80);
        assert!(drawn.contains("\nDrawn as planned, not as it is now.\n"), "{drawn}");
        assert!(drawn.contains("CPU 2    3.0 %  housekeeping: vCPU plc1 (21 %)"), "{drawn}");
        assert!(!drawn.contains("Not bound"), "{drawn}");
    }

    #[test]
    fn a_machine_that_cannot_be_planned() {
        let mut cores = large();
        cores.impossible = Some("the machine has one CPU".into());
        assert!(text(&cores, false, 100).starts_with("Nothing can be planned: the machine has one CPU\n"));
        cores.impossible = None;
        cores.kept = true;
        assert!(
            text(&cores, false, 100).starts_with("The plan is kept ([host.cores] placement = \"plan\").\n")
        );
    }
}
