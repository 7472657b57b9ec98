//! The output of `calibrate`: text for people, or JSON.

use super::fits::Fits;
use super::obstacles::Obstacle;
use super::proposal::{Cover, MARGIN_PERCENT, Measured, Proposal};
use super::timers::Cpu;
use crate::format::{count, duration, plural};
use crate::table::{Align, Table};
use serde::Serialize;
use std::fmt::Write;
use std::time::Duration;
use tidegate_contract::Nanos;
use tidegate_evidence::Histogram;
use tidegate_visible::visible;

/// Fewer loops than this say nothing about rare ones.
const FEW: u64 = 1_000;
/// Most CPUs, and most workers, with a line in the text.
const SHOWN: usize = 16;

#[derive(Clone, Debug)]
pub struct Agent {
    pub host_latency_ns: u64,
    /// Workers of the switch, the larger number of before and after the measurement; 0 if the switch was
    /// away.
    pub workers: usize,
    /// Loops of each worker during the measurement; empty if unknown.
    pub loops: Vec<Histogram>,
    pub problem: Option<String>,
}

/// Distribution of durations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Spread {
    count: u64,
    p50_ns: u64,
    p99_ns: u64,
    p999_ns: u64,
    max_ns: u64,
}

impl From<&Histogram> for Spread {
    fn from(all: &Histogram) -> Self {
        let at = |share| all.quantile(share);
        Self { count: all.count(), p50_ns: at(0.5), p99_ns: at(0.99), p999_ns: at(0.999), max_ns: all.max() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Wakeups {
    cpu: usize,
    /// SCHED_FIFO priority of the measuring thread; null under SCHED_OTHER.
    fifo_priority: Option<u8>,
    #[serde(flatten)]
    spread: Spread,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Choice {
    #[serde(flatten)]
    proposal: Proposal,
    /// `host-latency` as a contract has it.
    text: String,
    /// Why the contracts do not fit; empty if they fit, null if they are unknown.
    refusals: Option<Vec<String>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct InForce {
    host_latency_ns: u64,
    /// Wake-ups and loops that took longer than `host_latency_ns`.
    wakeups_longer: u64,
    loops_longer: u64,
    deadlines: usize,
    /// Largest `host-latency` with which the contracts fit; null without a deadline, or if no value fits.
    largest_that_fits_ns: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    measured_ns: u64,
    wakeups: Vec<Wakeups>,
    loops: Vec<Spread>,
    copies: Spread,
    /// The proposed value: the choice that covers the worst that was seen. Null if no loop of a worker was
    /// counted, because then all choices are too small.
    host_latency: Option<String>,
    choices: Vec<Choice>,
    in_force: Option<InForce>,
    obstacles: Vec<Obstacle>,
    unseen: Vec<String>,
}

impl Report {
    /// Builds the report of a measurement that lasted `took`. An error in `agent` says why the agent did
    /// not answer.
    pub fn new(
        took: Duration,
        cpus: &[Cpu],
        measured: &Measured,
        agent: Result<Agent, String>,
        fits: Option<&Fits>,
        obstacles: Vec<Obstacle>,
        mut unseen: Vec<String>,
    ) -> Self {
        let choices = Cover::ALL.map(|covers| {
            let proposal = measured.proposal(covers);
            let refusals = fits.map(|fits| fits.refusals(proposal.host_latency()));
            Choice { text: proposal.host_latency().to_string(), refusals, proposal }
        });
        let in_force = match &agent {
            Ok(Agent { host_latency_ns: h, .. }) => Some(InForce {
                host_latency_ns: *h,
                wakeups_longer: cpus.iter().map(|cpu| cpu.wakeups.above(*h)).sum(),
                loops_longer: measured.loops.iter().map(|loops| loops.above(*h)).sum(),
                deadlines: fits.map_or(0, Fits::deadlines),
                largest_that_fits_ns: fits.and_then(Fits::largest).map(Nanos::get),
            }),
            Err(why) => {
                unseen.push(format!("the workers' loops, and what contracts ask for: {why}"));
                None
            }
        };
        unseen.extend(agent.ok().and_then(|agent| agent.problem));
        Self {
            measured_ns: took.as_nanos() as u64,
            wakeups: cpus
                .iter()
                .map(|cpu| Wakeups {
                    cpu: cpu.cpu,
                    fifo_priority: cpu.priority,
                    spread: (&cpu.wakeups).into(),
                })
                .collect(),
            loops: measured.loops.iter().map(Spread::from).collect(),
            copies: (&measured.copies).into(),
            host_latency: measured.has_loops().then(|| choices[choices.len() - 1].text.clone()),
            choices: choices.into(),
            in_force,
            obstacles,
            unseen,
        }
    }

    pub fn text(&self) -> String {
        let mut out = format!("{} under the load of that time:\n\n", duration(self.measured_ns));
        out += &self.figures();
        out += &match &self.host_latency {
            Some(proposed) => format!("\nhost-latency = \"{proposed}\" is proposed.\n\n"),
            None => format!(
                "\nNo host-latency is proposed: no loop of a worker was counted. It has to be more than \"{}\".\n\n",
                self.largest()
            ),
        };
        out += &self.choices();
        out += &self.in_force();
        out += &self.obstacles();
        if !self.unseen.is_empty() {
            out += "\nNot seen:\n";
            self.unseen.iter().for_each(|what| out += &format!("  {}\n", visible(what)));
        }
        out
    }

    fn largest(&self) -> &str {
        self.choices.last().map_or("", |choice| &choice.text)
    }

    fn figures(&self) -> String {
        let right = |name| (name, Align::Right);
        let columns =
            [("", Align::Left), right("count"), right("p50"), right("p99"), right("p99.9"), right("max")];
        let mut table = Table::new(&columns);
        let mut row = |name: String, spread: &Spread| {
            let Spread { count: n, p50_ns, p99_ns, p999_ns, max_ns } = *spread;
            let times =
                [p50_ns, p99_ns, p999_ns, max_ns].map(|ns| if n == 0 { "-".into() } else { duration(ns) });
            table.row([name, count(n)].into_iter().chain(times));
        };
        for wakeups in self.wakeups.iter().take(SHOWN) {
            let policy = wakeups.fifo_priority.map_or(String::new(), |p| format!(", SCHED_FIFO {p}"));
            row(format!("wake-ups, CPU {}{policy}", wakeups.cpu), &wakeups.spread);
        }
        for (number, spread) in self.loops.iter().enumerate().take(SHOWN) {
            row(format!("loops, worker-{number}"), spread);
        }
        row("copies of 64 KB".into(), &self.copies);
        let mut out = table.render();
        for (all, what) in [(self.wakeups.len(), "CPU"), (self.loops.len(), "worker")] {
            if let Some(more) = all.checked_sub(SHOWN).filter(|more| *more > 0) {
                let _ = writeln!(out, "{}; --json has all", plural(more as u64, &format!("more {what}")));
            }
        }
        let loops: u64 = self.loops.iter().map(|spread| spread.count).sum();
        if !self.loops.is_empty() && loops < FEW {
            let _ = writeln!(out, "Only {}: is the load that you expect running?", plural(loops, "loop"));
        }
        out
    }

    /// Renders the parts of each choice, and whether the contracts fit with it.
    fn choices(&self) -> String {
        let mut table = Table::new(&[
            ("host-latency", Align::Right),
            ("covers", Align::Left),
            ("wake-up", Align::Right),
            ("loop", Align::Right),
            ("copy", Align::Right),
            ("sum", Align::Right),
            ("contracts in force", Align::Left),
        ]);
        for Choice { proposal, text, refusals } in &self.choices {
            let covers = match proposal.covers {
                Cover::P99 => "99 % of wake-ups and loops".to_owned(),
                Cover::P999 => "99.9 %".into(),
                Cover::Worst => format!("the worst seen, and {MARGIN_PERCENT} % more"),
            };
            let times = if proposal.workers > 1 { "2 x " } else { "" };
            let fit =
                refusals.as_ref().map_or("not known", |r| if r.is_empty() { "fit" } else { "do not fit" });
            table.row([
                text.clone(),
                covers,
                format!("{times}{}", duration(proposal.wakeup_ns)),
                if self.host_latency.is_some() {
                    format!("{times}{}", duration(proposal.loop_ns))
                } else {
                    "-".into()
                },
                duration(proposal.copy_ns),
                duration(proposal.sum_ns),
                fit.into(),
            ]);
        }
        let mut out = table.render();
        let refused = self.choices.iter().rev().filter_map(|choice| choice.refusals.as_ref()?.first());
        if let Some(refusal) = refused.clone().next() {
            let _ = writeln!(out, "With \"{}\": {}", self.largest(), visible(refusal));
        }
        out
    }

    fn in_force(&self) -> String {
        let Some(InForce { host_latency_ns, wakeups_longer, loops_longer, deadlines, largest_that_fits_ns }) =
            self.in_force
        else {
            return String::new();
        };
        let mut out = format!(
            "\nIn force: host-latency = \"{}\"; {} and {} took longer than that.\n",
            Nanos::new(host_latency_ns),
            plural(wakeups_longer, "wake-up"),
            plural(loops_longer, "loop")
        );
        out += &match largest_that_fits_ns {
            Some(largest) => format!(
                "{} deadlines: they fit with a host-latency of up to {}.\n",
                count(deadlines as u64),
                Nanos::new(largest)
            )
            .replacen(
                "1 deadlines: they fit",
                "1 deadline: it fits",
                usize::from(deadlines == 1),
            ),
            None if deadlines == 0 => "No contract has a deadline: host-latency bounds no promise.\n".into(),
            None => "The deadlines fit with no host-latency at all.\n".into(),
        };
        out
    }

    fn obstacles(&self) -> String {
        if self.obstacles.is_empty() {
            return "\nNo known obstacle prevents a smaller host-latency.\n".into();
        }
        let mut out = "\nObstacles to a smaller host-latency:\n".to_owned();
        for obstacle in &self.obstacles {
            let _ = writeln!(out, "  {}", obstacle.kind.title());
            obstacle.what.iter().for_each(|what| out += &format!("    {what}\n"));
            let _ = writeln!(out, "    do: {}", obstacle.remedy);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::super::obstacles::Kind;
    use super::*;
    use crate::commands::samples;

    fn histogram(values: &[u64]) -> Histogram {
        let mut all = Histogram::default();
        values.iter().for_each(|value| all.record(*value));
        all
    }

    fn measured(agent: Result<Agent, String>, fits: Option<&Fits>) -> Report {
        let cpus = [Cpu {
            cpu: 2,
            priority: Some(10),
            wakeups: histogram(&[10_000, 30_000]),
            copies: histogram(&[6_000]),
        }];
        let measured = Measured {
            wakeups: vec![cpus[0].wakeups.clone()],
            workers: agent.as_ref().map_or(0, |agent| agent.workers),
            loops: agent.as_ref().map(|a| a.loops.clone()).unwrap_or_default(),
            copies: cpus[0].copies.clone(),
        };
        let obstacles = vec![Obstacle {
            kind: Kind::BusyThreads,
            cpus: vec![2],
            what: vec!["CPU 2: stress (77) 98 %".into()],
            remedy: "keep it off".into(),
        }];
        Report::new(Duration::from_secs(10), &cpus, &measured, agent, fits, obstacles, vec![])
    }

    #[test]
    fn with_an_agent() {
        let loops = vec![histogram(&[20_000, 300_000])];
        let agent = Agent { host_latency_ns: 250_000, workers: 1, loops, problem: None };
        let fits = Fits::new(tidegate_contract::Host::default(), &[samples::idle()]);
        let expected = "\
10.0 s under the load of that time:

                              count      p50      p99    p99.9      max
wake-ups, CPU 2, SCHED_FIFO 10      2  10.2 us  30.0 us  30.0 us  30.0 us
loops, worker-0                     2  20.5 us   300 us   300 us   300 us
copies of 64 KB                     1  6.00 us  6.00 us  6.00 us  6.00 us
Only 2 loops: is the load that you expect running?

host-latency = \"500us\" is proposed.

host-latency  covers                         wake-up    loop     copy     sum  contracts in force
       400us  99 % of wake-ups and loops     30.0 us  300 us  6.00 us  336 us  fit
       400us  99.9 %                         30.0 us  300 us  6.00 us  336 us  fit
       500us  the worst seen, and 25 % more  30.0 us  300 us  6.00 us  336 us  fit

In force: host-latency = \"250us\"; 0 wake-ups and 1 loop took longer than that.
No contract has a deadline: host-latency bounds no promise.

Obstacles to a smaller host-latency:
  busy threads
    CPU 2: stress (77) 98 %
    do: keep it off
";
        let text = measured(Ok(agent), Some(&fits)).text();
        let apart = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(apart(&text), apart(expected), "{text}");
    }

    #[test]
    fn a_report_without_an_agent_says_what_is_missing() {
        let text = measured(Err("cannot reach the agent at /run/api.sock".into()), None).text();
        assert!(text.contains("not known") && !text.contains("In force"), "{text}");
        assert!(
            text.contains("No host-latency is proposed") && text.contains("more than \"50us\""),
            "{text}"
        );
        let missing = "Not seen:\n  the workers' loops, and what contracts ask for: cannot reach the agent at /run/api.sock\n";
        assert!(text.ends_with(missing), "{text}");
    }

    #[test]
    fn without_loops_nothing_is_proposed() {
        let problem = Some("another switch took over meanwhile: its loops were not counted".to_owned());
        let agents = [
            Agent { host_latency_ns: 250_000, workers: 2, loops: vec![], problem },
            Agent { host_latency_ns: 250_000, workers: 2, loops: vec![histogram(&[]); 2], problem: None },
        ];
        for agent in agents {
            let report = measured(Ok(agent), None);
            assert_eq!(serde_json::to_value(&report).unwrap()["host_latency"], serde_json::Value::Null);
            let text = report.text();
            // Twice 30 us and one copy of 6 us, plus a quarter.
            let said = "No host-latency is proposed: no loop of a worker was counted. It has to be more than \"100us\".";
            assert!(text.contains(said), "{text}");
            assert!(text.contains("2 x 30.0 us     -  6.00 us"), "{text}");
        }
    }

    #[test]
    fn the_report_says_which_host_latency_the_contracts_allow() {
        let mut sink = samples::idle();
        let contract = sink.contract.as_mut().unwrap();
        (contract.name, contract.rx.max) = ("sink".into(), Some("1gbit".parse().unwrap()));
        let fits = Fits::new(tidegate_contract::Host::default(), &[samples::voice(), sink]);
        let loops = vec![histogram(&[20_000, 30_000_000])];
        let agent = Agent { host_latency_ns: 250_000, workers: 1, loops, problem: None };
        let text = measured(Ok(agent), Some(&fits)).text();
        assert!(text.contains("do not fit\nWith \"40ms\": egress sink refuses voice"), "{text}");
        assert!(text.contains("1 deadline: it fits with a host-latency of up to "), "{text}");
    }
}
