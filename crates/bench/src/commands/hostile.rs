//! Goodput and delay of honest neighbours beside hostile front ends, as a share of the figures without them.
//!
//! ```text
//!  bulk ══ as fast as it goes ══▶ sink        goodput
//!  voice ─ a frame each ms, deadline ─▶ ear   delay: p99.9, worst      one worker has all of them
//!  hostile ◀─ nothing, then one attack after the other
//!  visitor: connects and leaves meanwhile     can new front ends still connect?
//! ```

use crate::clock;
use crate::host::Host;
use crate::measurement::Outcome;
use crate::neighbours::{Figures, Neighbours};
use crate::reliability::{Part, Verdict};
use clap::Args as ClapArgs;
use serde::Serialize;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidegate_frontend::attack::{Attack, dial};
use tidegate_frontend::front_end::{FrontEnd, Options};

/// Pause between two voice frames (ns).
const EVERY: u64 = 1_000_000;
const PREPARED: Duration = Duration::from_secs(20);
/// Pause between two visits.
const VISIT_EVERY: Duration = Duration::from_millis(100);

/// Arguments of `hostile`.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// How long each attack lasts, and how long the neighbours are measured alone before and after it, s
    #[arg(long, value_name = "S", default_value = "5", value_parser = crate::measurement::seconds)]
    time: Duration,
    /// Only attacks whose names contain this
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// The program under test; the one beside this program where absent
    #[arg(long, value_name = "PATH")]
    tidegate: Option<PathBuf>,
    /// CPU of the switch's worker; not pinned where absent
    #[arg(long, value_name = "N")]
    switch_cpu: Option<usize>,
    /// Also write the rows of docs/reliability.md there
    #[arg(long, value_name = "PATH")]
    report: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
pub struct Report {
    seconds: f64,
    attacks: Vec<Beside>,
}

#[derive(Debug, Serialize)]
struct Beside {
    attack: &'static str,
    steps: u64,
    /// Why this machine did not allow the attack.
    failed: Option<String>,
    alone: Figures,
    beside: Figures,
    /// Bulk frames received, relative to those without an attack.
    goodput: f64,
    /// p99.9 of voice, relative to that without an attack.
    p999: f64,
    /// Front ends that connected during the attack, and those that the switch served.
    visits: u64,
    served: u64,
    longest_visit_ms: f64,
    /// The agent's statement on the attacking port.
    last_error: String,
}

/// Attacks and measures. `cpu` is the CPU of this thread, which drives the neighbours.
///
/// # Errors
/// The processes cannot be started, or an honest guest cannot connect.
pub fn run(args: &Args, cpu: Option<usize>) -> Outcome<Report> {
    let beside = || Ok::<_, std::io::Error>(std::env::current_exe()?.with_file_name("tidegate"));
    let tidegate = args.tidegate.clone().map_or_else(beside, Ok)?;
    let mut attacks = Vec::new();
    // The first case is no attack: its distance from 1 is the noise of all other ratios.
    for attack in [None].into_iter().chain(Attack::ALL.map(Some)) {
        if name(attack).contains(&args.only) {
            attacks.push(run_attack(attack, &tidegate, args, cpu)?);
        }
    }
    let report = Report { seconds: args.time.as_secs_f64(), attacks };
    if let Some(path) = &args.report {
        report.part(path)?.write(path, |_| false)?;
    }
    Ok(report)
}

const NAMES: [&str; 6] = ["bulk", "sink", "voice", "ear", "visitor", "hostile"];

fn mac(n: usize) -> [u8; 6] {
    [0x52, 0x54, 0, 0, 1, n as u8]
}

fn name(attack: Option<Attack>) -> &'static str {
    attack.map_or("nothing", Attack::name)
}

/// Runs one attack on its own switch, on other CPUs than those of the neighbours and the worker.
fn run_attack(attack: Option<Attack>, tidegate: &Path, args: &Args, cpu: Option<usize>) -> Outcome<Beside> {
    let reserved_cpus: &[usize] = &cpu.into_iter().chain(args.switch_cpu).collect::<Vec<_>>();
    let promised = "tx = { max = \"10mbit\", burst = \"4kB\" }\ndeadline = \"1ms\"\nto = [\"ear\"]";
    let lines = ["", "", promised, "rx = { max = \"1gbit\" }", "", ""];
    let vnics: Vec<_> =
        NAMES.iter().zip(lines).enumerate().map(|(n, (name, l))| (*name, mac(n), l)).collect();
    // The switch and the agent must not inherit the neighbours' CPU.
    clock::keep_off(reserved_cpus);
    let host = Host::start(tidegate, args.switch_cpu.as_slice(), &vnics)?;
    if let Some(cpu) = cpu {
        clock::pin(cpu)?;
    }
    let mut neighbours = Neighbours::connect(&host, [0, 1, 2, 3].map(|n| (NAMES[n], mac(n))), EVERY)?;
    neighbours.measure(args.time / 4);
    let before = neighbours.measure(args.time);

    let (stop, steps, socket) = (AtomicBool::new(false), AtomicU64::new(0), host.socket("hostile"));
    let (figures, failed, visits) = std::thread::scope(|scope| {
        let attacker = scope.spawn(|| {
            clock::keep_off(reserved_cpus);
            attack.map_or(Ok(()), |attack| attack.run(&socket, &stop, &steps))
        });
        let started = Instant::now();
        while steps.load(Ordering::Relaxed) == 0 && !attacker.is_finished() && started.elapsed() < PREPARED {
            neighbours.measure(Duration::from_millis(50));
        }
        let visitor = scope.spawn(|| {
            clock::keep_off(reserved_cpus);
            visit(&host, &stop)
        });
        let figures = neighbours.measure(args.time);
        stop.store(true, Ordering::Relaxed);
        // The neighbours must keep running until the attack is over.
        while !attacker.is_finished() || !visitor.is_finished() {
            neighbours.measure(Duration::from_millis(50));
        }
        let failed = attacker.join().expect("it does not panic").err();
        (figures, failed, visitor.join().expect("it does not panic"))
    });
    let hostile = host.vnics().ok().and_then(|vnics| {
        let of = |vnic: &&serde_json::Value| {
            vnic.pointer("/vnic/name").or(vnic.get("name")) == Some(&"hostile".into())
        };
        let vnic = vnics.as_array()?.iter().find(of)?.clone();
        vnic.get("last_error")?.as_str().map(str::to_owned)
    });
    let after = neighbours.measure(args.time);
    let alone = before.mean(&after);
    Ok(Beside {
        attack: name(attack),
        steps: steps.into_inner(),
        failed: failed.map(|error| error.to_string()),
        alone,
        beside: figures,
        goodput: figures.bulk_mbit / alone.bulk_mbit,
        p999: figures.voice_p999_us / alone.voice_p999_us,
        visits: visits.len() as u64,
        served: visits.iter().filter(|visit| visit.is_some()).count() as u64,
        longest_visit_ms: visits.into_iter().flatten().fold(0.0, f64::max),
        last_error: hostile.unwrap_or_default(),
    })
}

/// Connects and disconnects front ends until `stop`. Returns the duration of each visit (ms), `None` if the
/// switch refused it.
fn visit(host: &Host, stop: &AtomicBool) -> Vec<Option<f64>> {
    let mut visits = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let started = Instant::now();
        let stream = dial(&host.socket("visitor"));
        let connected = stream.ok().and_then(|stream| FrontEnd::from_stream(stream, Options::default()).ok());
        visits.push(connected.map(|_| started.elapsed().as_secs_f64() * 1e3));
        std::thread::sleep(VISIT_EVERY);
    }
    visits
}

impl Report {
    /// Builds the rows for docs/reliability.md.
    fn part(&self, path: &Path) -> std::io::Result<Part> {
        let command = format!("tidegate-bench hostile --time {} --report {}", self.seconds, path.display());
        let mut part = Part::new("beside", &command)?;
        for attack in &self.attacks {
            let Beside { alone, beside, .. } = attack;
            let mut row = |what: &str, text: String| {
                part.row(format!("{what} beside {}", attack.attack), "", text, Verdict::Info);
            };
            row("goodput", format!("{:.2} of {:.0} Mbit/s", attack.goodput, alone.bulk_mbit));
            let delay = format!(
                "{:.1} times {:.0} us; worst {:.1} ms, alone {:.1} ms",
                attack.p999,
                alone.voice_p999_us,
                beside.voice_worst_us / 1e3,
                alone.voice_worst_us / 1e3
            );
            row("p99.9 of a frame each millisecond", delay);
            let visits = format!(
                "{} of {}, the longest took {:.0} ms",
                attack.served, attack.visits, attack.longest_visit_ms
            );
            row("other front ends that were served", visits);
        }
        part.note(
            "One worker has all ports. Alone is the middle of what was measured before and after the attack.",
        );
        Ok(part)
    }

    pub fn table(&self) -> String {
        let mut text = format!(
            "{:<42} {:>8} {:>9} {:>11} {:>11} {:>11} {:>9} {:>10}\n",
            "beside, as a share of what is alone",
            "goodput",
            "p99.9",
            "p99.9 us",
            "worst us",
            "alone us",
            ">10 ms",
            "others"
        );
        for one in &self.attacks {
            let _ = writeln!(
                text,
                "{:<42} {:>8.2} {:>8.1}x {:>11.0} {:>11.0} {:>11.0} {:>9} {:>10}",
                one.attack,
                one.goodput,
                one.p999,
                one.beside.voice_p999_us,
                one.beside.voice_worst_us,
                one.alone.voice_worst_us,
                one.beside.late,
                format!("{}/{}", one.served, one.visits)
            );
            let _ =
                writeln!(text, "  {} steps; {}", one.steps, one.failed.as_deref().unwrap_or(&one.last_error));
        }
        text
    }
}
