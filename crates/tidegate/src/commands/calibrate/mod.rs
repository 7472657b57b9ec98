//! `tidegate calibrate`: what `host-latency` has to be on this host, and what stands in the way of a smaller one.
//!
//! ```text
//!  agent ── workers' loops, contracts ──┐                ┌─▶ proposal ── host-latency, by percentile
//!  timers ── wake-ups, copies ──────────┼─ N seconds ───▶├─▶ fits ────── what the contracts in force bear
//!  look ── /proc, /sys before, after ───┘                └─▶ obstacles ─ by name, with what to do
//!                                                                   └─▶ report: text, or JSON
//! ```
//!
//! - [`timers`]: threads that wake up and copy, on the CPUs of the workers
//! - [`look`]: reads `/proc` and `/sys`; [`proc`]: parses their files. Pure
//! - [`proposal`], [`fits`], [`obstacles`]: the conclusions. Pure
//! - [`report`]: the output
//!
//! It changes nothing. Without an agent it measures what needs none, and lists what is missing.

mod fits;
mod look;
mod obstacles;
mod proc;
mod proposal;
mod report;
mod timers;

use crate::client::{Client, ClientError};
use crate::exit::{self, Failure};
use look::Observer;
use proposal::Measured;
use report::{Agent, Report};
use serde::de::DeserializeOwned;
use std::time::{Duration, Instant};
use tidegate_agent::views::{HostView, VnicView};
use tidegate_evidence::Histogram;
use tidegate_evidence::histogram::{BUCKETS, bucket};
use tokio::signal::unix::{SignalKind, signal};

const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);
/// Shortest measurement that is reported.
const SHORTEST: Duration = Duration::from_secs(1);

/// Arguments of `calibrate`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Run it under the load that you expect; it changes nothing. Ctrl-C ends it early, with what was \
                        measured until then."
)]
pub struct Args {
    /// How long to measure; what happens once an hour needs hours
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Measure what CPUs cost each other instead: `tidegate cores calibrate`
    #[arg(long)]
    cores: bool,
    /// With --cores: where the costs are written
    #[arg(long, value_name = "FILE", requires = "cores")]
    output: Option<std::path::PathBuf>,
}

pub async fn run(client: &Client, args: Args, json: bool) -> Result<(), Failure> {
    if args.cores {
        let args = crate::commands::cores::calibrate::Args::new(args.seconds, args.output);
        return crate::commands::cores::calibrate::run(client, args, json).await;
    }
    let span = Duration::from_secs(args.seconds);
    let agent: Result<HostView, String> = get_or_reason(client, "/v1/host").await;
    let switch = agent.as_ref().ok().and_then(|host| host.places.iter().find(|place| place.name == "switch"));
    let pid = switch.filter(|place| place.reachable && place.pid != 0).map(|place| place.pid);
    let mut observer = Observer::new(pid);
    let machine = observer.machine();
    let before = observer.snapshot();
    let cpus = machine.measured();
    let priority =
        |cpu| machine.workers.iter().filter(|w| w.cpus.contains(&cpu)).filter_map(|w| w.priority).max();
    let timers =
        timers::Timers::start(cpus.iter().map(|cpu| (*cpu, priority(*cpu)))).map_err(Failure::failed)?;
    let measured = wait(span).await;
    let (cpus, stopped) = timers.stop();
    let took = measured?;
    let after = observer.snapshot();
    let agent = match agent {
        Ok(before) => Ok(read_agent(client, before).await?),
        Err(why) => Err(why),
    };
    let (workers, loops) =
        agent.as_ref().map(|(agent, _)| (agent.workers, agent.loops.clone())).unwrap_or_default();
    let measured = Measured::new(&cpus, &machine, workers, loops);
    let (agent, fits) = match agent {
        Ok((agent, fits)) => (Ok(agent), Some(fits)),
        Err(why) => (Err(why), None),
    };
    let mut not_visible = observer.not_visible();
    not_visible.extend(stopped);
    let obstacles = obstacles::obstacles(&machine, &before, &after);
    let report = Report::new(took, &cpus, &measured, agent, fits.as_ref(), obstacles, not_visible);
    if json { exit::print_json(&report) } else { exit::print(&report.text()) }
}

/// Waits while the timers run, and returns for how long. Ctrl-C ends the wait early.
async fn wait(span: Duration) -> Result<Duration, Failure> {
    // Before the first message: from then on the user may press Ctrl-C.
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::failed)?;
    let begin = Instant::now();
    let progress = crate::demo::progress::Progress::new(span.as_millis() as u64);
    progress.show(&format!("measuring for {} s under the present load", span.as_secs()));
    let mut reported = Duration::ZERO;
    while let Some(left) = span.checked_sub(begin.elapsed()).filter(|left| !left.is_zero()) {
        tokio::select! {
            () = tokio::time::sleep(left.min(PROGRESS_INTERVAL)) => {}
            _ = interrupt.recv() => break,
            _ = terminate.recv() => break,
        }
        progress.advance((begin.elapsed() - reported).as_millis() as u64);
        reported = begin.elapsed();
    }
    match begin.elapsed() {
        short if short < SHORTEST => Err(Failure::failed("interrupted before a second was measured")),
        enough => Ok(enough),
    }
}

/// Sends a GET request to the agent. The error says in one line why there is no answer.
async fn get_or_reason<T: DeserializeOwned>(client: &Client, path: &str) -> Result<T, String> {
    client
        .get(path)
        .await
        .map_err(|error: ClientError| error.to_string().lines().next().unwrap_or_default().to_owned())
}

/// Asks the agent after the measurement: for the workers' loops in between, and for the contracts in force.
async fn read_agent(client: &Client, before: HostView) -> Result<(Agent, fits::Fits), Failure> {
    let after: HostView = client.get("/v1/host").await?;
    let vnics: Vec<VnicView> = client.get("/v1/vnics").await?;
    let started =
        |host: &HostView| host.places.iter().find(|p| p.name == "switch").map(|p| (p.pid, p.started));
    let is_same_switch = started(&before) == started(&after) && before.workers.len() == after.workers.len();
    let loops = before.workers.iter().zip(&after.workers).filter(|_| is_same_switch);
    let loops = loops.map(|(before, after)| {
        let read = |buckets: &[(u64, u64)], max| {
            let mut counts = vec![0; BUCKETS];
            buckets.iter().for_each(|(upper, count)| counts[bucket(*upper)] = *count);
            Histogram::recorded(max, 0, counts).unwrap_or_default()
        };
        let earlier = read(&before.loop_time.buckets, before.loop_time.max);
        read(&after.loop_time.buckets, after.loop_time.max).since(&earlier)
    });
    let loops: Vec<Histogram> = loops.collect();
    let problem = match (after.workers.is_empty(), is_same_switch) {
        (true, _) => Some("the switch is away: no loop of a worker was counted".to_owned()),
        (false, false) => Some("another switch took over meanwhile: its loops were not counted".to_owned()),
        (false, true) => None,
    };
    let fits = fits::Fits::of(&after, &vnics);
    let workers = before.workers.len().max(after.workers.len());
    Ok((Agent { host_latency_ns: after.host.host_latency.get(), workers, loops, problem }, fits))
}
