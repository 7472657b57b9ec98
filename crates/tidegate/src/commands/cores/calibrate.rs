//! `tidegate cores calibrate`: measures on this machine what it costs that stages share a CPU, and that frames go from CPU to CPU.
//!
//! ```text
//!  agent: deadlines in force? ── yes, or no agent but a switch ─▶ refused
//!    └─ no; or neither ─▶ thread: calibrate ── progress ─▶ table, or JSON
//!             asked again each second: yes ─▶ ended
//!                             └─▶ costs ─▶ /var/lib/tidegate/cores-costs.json ─▶ the agent's plan
//! ```

use crate::client::{Client, ClientError};
use crate::demo::progress::Progress;
use crate::exit::{self, Code, Failure};
use crate::format::path;
use crate::table::{Align, Table};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fs, io};
use tidegate_agent::views::{State, VnicView};
use tidegate_cores::costs::{Costs, Source};
use tidegate_cores::cpus::Cpus;
use tidegate_cores::machine::Distance;
use tidegate_place_cores::calibrate::measured::{Measured, Row};
use tidegate_place_cores::calibrate::{CalibrateError, Calibration, calibrate, file, measured};
use tidegate_place_cores::machine::topology;
use tidegate_place_cores::roots::Roots;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// Other programs that use more disturb the measurement, part of the CPUs' time.
const BUSY: f64 = 0.1;

/// Pause between questions for deadlines.
const AGAIN: Duration = Duration::from_secs(1);

/// Beyond this nothing that was measured is written.
const TOO_BUSY: f64 = 0.5;

/// Arguments of `cores calibrate`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Run it as root on an idle machine, before deadlines are in force. It measures in network namespaces of its own and \
                        changes nothing else. Ctrl-C ends it; the file stays as it was."
)]
pub struct Args {
    /// How long to measure; longer tells smaller differences apart
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    /// Where the costs are written; the agent reads the default
    #[arg(long, value_name = "FILE", default_value = file::COSTS)]
    output: PathBuf,
}

impl Args {
    /// Creates the arguments of `tidegate calibrate --cores`.
    pub fn new(seconds: u64, output: Option<PathBuf>) -> Self {
        Self { seconds, output: output.unwrap_or_else(|| file::COSTS.into()) }
    }
}

/// The output as JSON.
#[derive(Debug, Serialize)]
struct Report<'a> {
    file: &'a Path,
    busy: f64,
    rows: Vec<&'a Row>,
    not_measured: Vec<NotMeasured<'a>>,
    costs: &'a Costs,
}

#[derive(Debug, Serialize)]
struct NotMeasured<'a> {
    pair: &'a str,
    reason: &'a str,
}

pub async fn run(client: &Client, args: Args, json: bool) -> Result<(), Failure> {
    refuse_beside_deadlines(client).await?;
    check_writable(&args.output)?;
    let found = measure(client, Duration::from_secs(args.seconds)).await?;
    let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let source = Source::Measured { machine: file::machine(), kernel: file::kernel(), at };
    let costs = measured::costs(&found.rows, source).map_err(Failure::failed)?;
    let usable = found.busy <= TOO_BUSY;
    if usable {
        file::write(&args.output, &costs).map_err(Failure::failed)?;
    }
    print(&found, &costs, &args.output, json)?;
    if usable {
        return Ok(());
    }
    let busy = 100.0 * found.busy;
    Err(Failure::failed(format!(
        "other programs used {busy:.0} % of the CPUs: {} stays as it was; calibrate on an idle machine",
        path(&args.output)
    )))
}

fn print(found: &Calibration, costs: &Costs, output: &Path, json: bool) -> Result<(), Failure> {
    if json {
        let not_measured = found.missing.iter().map(|(pair, reason)| NotMeasured { pair, reason }).collect();
        let rows = found.rows.iter().map(|(_, row)| row).collect();
        return exit::print_json(&Report { file: output, busy: found.busy, rows, not_measured, costs });
    }
    exit::print(&text(found, output))
}

/// The measurement would make real-time frames late.
async fn refuse_beside_deadlines(client: &Client) -> Result<(), Failure> {
    refuse(client.get("/v1/vnics").await, Path::new(super::super::switch::SOCKET))
}

/// Refuses, unless the agent says that no deadline is in force, or neither an agent nor a switch has been started.
fn refuse(vnics: Result<Vec<VnicView>, ClientError>, switch: &Path) -> Result<(), Failure> {
    let unknown = |why: String| {
        let message = format!("cannot tell whether deadlines are in force, so nothing is measured: {why}");
        Failure { code: Code::Unreachable, message }
    };
    let vnics = match vnics {
        Ok(vnics) => vnics,
        Err(ClientError::Unreachable { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            if fs::symlink_metadata(switch).is_err() {
                return Ok(());
            }
            // It keeps contracts while the agent is away.
            return Err(unknown(format!(
                "no agent runs, but there is a switch's socket, {}: start the agent, or stop the switch and remove the socket",
                path(switch)
            )));
        }
        Err(error) => return Err(unknown(error.to_string())),
    };
    let accepted = vnics.iter().filter(|vnic| vnic.state != State::Refused);
    let real = accepted.filter(|vnic| vnic.contract.as_ref().is_some_and(|contract| contract.is_realtime()));
    let names: Vec<&str> = real.map(|vnic| vnic.name.as_str()).collect();
    let Some(first) = names.first() else { return Ok(()) };
    let others = match names.len() - 1 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Err(Failure {
        code: Code::Refused,
        message: format!(
            "deadlines are in force ({first}{others}), and the measurement would make frames late: calibrate before VMs with deadlines \
             run, or suspend them first (tidegate vnic set {first} deadline=)"
        ),
    })
}

/// Checks before the measurement what would fail after it.
fn check_writable(output: &Path) -> Result<(), Failure> {
    let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let cannot = |e: io::Error| {
        let hint = "run it as root, or name another file with --output";
        Failure::failed(format!("cannot write {}: {e}; {hint}", path(output)))
    };
    fs::create_dir_all(folder).map_err(cannot)?;
    rustix::fs::access(folder, rustix::fs::Access::WRITE_OK).map_err(|e| cannot(e.into()))
}

/// Measures on a thread, which enters namespaces of its own, until it is done, a signal comes, or a deadline is in force.
async fn measure(client: &Client, span: Duration) -> Result<Calibration, Failure> {
    // Before the first message: from then on the user may press Ctrl-C.
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::failed)?;
    let stop = Arc::new(AtomicBool::new(false));
    let (heard, mut hear) = mpsc::unbounded_channel();
    let work = {
        let (stop, machine) = (stop.clone(), topology::read(&Roots::default()));
        move || {
            let mut say = |what: &str, done: f64| drop(heard.send((what.to_owned(), done)));
            calibrate(&machine, &permitted(), span, &stop, &mut say)
        }
    };
    let thread = std::thread::Builder::new().name("calibrate".into()).spawn(work).map_err(Failure::failed)?;
    let total = 1_000;
    let progress = Progress::new(total);
    progress.show(&format!("measuring for about {} s; other programs disturb it", span.as_secs()));
    let (mut reached, mut refused) = (0, None);
    let mut again = tokio::time::interval(AGAIN);
    loop {
        tokio::select! {
            _ = interrupt.recv() => stop.store(true, Ordering::Relaxed),
            _ = terminate.recv() => stop.store(true, Ordering::Relaxed),
            _ = again.tick(), if refused.is_none() => {
                refused = refuse_beside_deadlines(client).await.err();
                stop.fetch_or(refused.is_some(), Ordering::Relaxed);
            }
            said = hear.recv() => {
                let Some((what, done)) = said else { break };
                let now = (done * total as f64) as u64;
                progress.advance(now.saturating_sub(reached));
                progress.label(&what);
                reached = now.max(reached);
            }
        }
    }
    let found = thread.join().map_err(|_| Failure::failed("the measurement panicked"))?;
    if let Some(refused) = refused {
        return Err(refused);
    }
    found.map_err(|error| {
        let stays = "the costs stay as they were";
        Failure::failed(match error {
            CalibrateError::Interrupted => format!("interrupted: {stays}"),
            other => format!("{other}: {stays}"),
        })
    })
}

/// The CPUs that this process may use.
fn permitted() -> Cpus {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return Cpus::new() };
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// The table, and what was not measured.
fn text(found: &Calibration, output: &Path) -> String {
    let mut table = Table::new(&[
        ("PAIR", Align::Left),
        ("APART BY", Align::Left),
        ("TOGETHER", Align::Right),
        ("APART", Align::Right),
        ("SPREAD", Align::Right),
        ("FRAMES/S", Align::Right),
        ("HERE", Align::Left),
        ("THE ORIGINAL FOUND", Align::Left),
    ]);
    for (pair, row) in &found.rows {
        let judged = &row.judged;
        let together = if pair.is_compared() { ns(judged.together) } else { String::new() };
        let frames = row.frames.map(|[one, other]| format!("{}, {}", rate(one), rate(other)));
        table.row([
            row.pair.clone(),
            distance(row.distance).into(),
            together,
            ns(judged.apart),
            if pair.is_compared() { ns(judged.spread) } else { String::new() },
            frames.unwrap_or_default(),
            verdict(row, pair.is_compared()),
            row.finding.clone(),
        ]);
    }
    let mut text = table.render();
    let lost: f64 = found.rows.iter().map(|(_, row)| row.lost).sum();
    text += "\nTOGETHER, APART: of flows the CPU time of a frame, of workers the time from frame to frame, of two workers a cache line to and fro;\n\
             medians. SPREAD: half of the range of the middle half of the rounds' differences. FRAMES/S: together, apart.\n";
    if lost > 0.0 {
        text += &format!("{lost:.0} frames were lost: other programs kept the CPUs for long.\n");
    }
    if found.busy > BUSY {
        text += &format!(
            "Other programs used {:.0} % of the CPUs: on an idle machine more pairs can be told apart.\n",
            100.0 * found.busy
        );
    }
    for (pair, reason) in &found.missing {
        text += &format!("Not measured: {pair}: {reason}.\n");
    }
    let replaced = found.rows.iter().filter(|(_, row)| row.measured.is_some()).count();
    text += &format!(
        "{replaced} of {} rows can replace priors in {}; of the others the priors stay.\n",
        found.rows.len(),
        path(output)
    );
    text
}

/// The result in words.
fn verdict(row: &Row, is_compared: bool) -> String {
    let judged = &row.judged;
    if judged.rounds == 0 {
        return "no frame arrived, or other programs fill the CPUs".into();
    }
    if row.measured.is_none() && !(is_compared && judged.told_apart) {
        return "cannot tell apart".into();
    }
    match row.measured {
        Some(Measured::Handover([0, ns])) => format!("{ns} ns to hand over"),
        Some(Measured::Handover([ns, _])) => format!("{ns} ns more on one CPU"),
        Some(Measured::Sharing(lost)) => format!("on one CPU {}.{} % lost", lost / 10, lost % 10),
        Some(Measured::Sibling(lost)) => format!("{}.{} % lost", lost / 10, lost % 10),
        None if judged.difference > 0.0 => "apart is better".into(),
        None => "together is better".into(),
    }
}

fn ns(value: f64) -> String {
    format!("{value:.0} ns")
}

fn rate(value: f64) -> String {
    if value >= 1e6 { format!("{:.2} M", value / 1e6) } else { format!("{:.0} k", value / 1e3) }
}

fn distance(distance: Distance) -> &'static str {
    match distance {
        Distance::Same => "nothing",
        Distance::Sibling => "sibling",
        Distance::Cache => "core",
        Distance::Node => "cache",
        Distance::Remote => "node",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_place_cores::calibrate::judge::judge;
    use tidegate_place_cores::calibrate::pairings::Pair;

    fn row(pair: Pair, together: f64, apart: f64, measured: Option<Measured>) -> (Pair, Row) {
        let rounds: Vec<_> = (0..9).map(|n| (together + f64::from(n), apart)).collect();
        let row = Row {
            pair: pair.words().into(),
            distance: Distance::Cache,
            finding: pair.finding().into(),
            judged: judge(&rounds),
            frames: Some([2.5e6, 3e5]),
            lost: 3.0,
            measured,
        };
        (pair, row)
    }

    #[test]
    fn the_table_says_what_cannot_be_told_apart() {
        let found = Calibration {
            rows: vec![
                row(Pair::SoftVcpu, 996.0, 1_000.0, None),
                row(Pair::TransmitSoft, 1_000.0, 1_500.0, Some(Measured::Handover([0, 496]))),
                row(Pair::WorkerVcpu, 900.0, 300.0, Some(Measured::Sharing(4_321))),
                row(Pair::WorkerSoft, 900.0, 300.0, None),
            ],
            missing: vec![("interrupts".into(), "veth pairs have none".into())],
            busy: 0.834,
        };
        let text = text(&found, Path::new("/x/costs.json"));
        let line = |what: &str| text.lines().find(|line| line.starts_with(what)).unwrap().to_owned();
        assert!(line("softirq and vCPU").contains("cannot tell apart"), "{text}");
        assert!(line("softirq and vCPU").contains("2.50 M, 300 k"), "{text}");
        assert!(line("transmission and").contains("496 ns to hand over"), "{text}");
        assert!(line("polling worker and vCPU").contains("432.1 % lost"), "{text}");
        assert!(line("polling worker and softirq").contains("apart is better"), "{text}");
        assert!(text.contains("12 frames were lost") && text.contains("Not measured: interrupts"), "{text}");
        assert!(text.contains("Other programs used 83 %"), "{text}");
        assert!(text.contains("2 of 4 rows can replace priors in /x/costs.json"), "{text}");
    }

    #[test]
    fn without_an_agent_a_switch_may_keep_deadlines() {
        let dir = tempfile::tempdir().unwrap();
        let (switch, none) = (dir.path().join("control.sock"), dir.path().join("none"));
        fs::write(&switch, "").unwrap();
        let unreachable = |kind: io::ErrorKind| {
            Err(ClientError::Unreachable { socket: "/x/api.sock".into(), source: kind.into() })
        };
        assert_eq!(refuse(unreachable(io::ErrorKind::NotFound), &none), Ok(()));
        assert_eq!(refuse(Ok(vec![]), &switch), Ok(()));
        let refused = refuse(unreachable(io::ErrorKind::NotFound), &switch).unwrap_err();
        assert!(
            refused.code == Code::Unreachable && refused.message.contains("a switch's socket"),
            "{refused:?}"
        );
        // An agent that was killed leaves its socket.
        let refused = refuse(unreachable(io::ErrorKind::ConnectionRefused), &none).unwrap_err();
        assert_eq!(refused.code, Code::Unreachable);
    }
}
