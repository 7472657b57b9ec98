//! `tidegate demo`: the first promise measured, without root, VMs or hardware.
//!
//! ```text
//!  user + network namespace
//!  ┌──────────────────────────────────────────────────────────────────────────┐
//!  │  voice  ─eth0─┐   1,000 frames/s of 200 bytes, UDP                       │
//!  │  bulk1  ─eth0─┼─▶ tidegate switch ──1 Gbit/s──▶ eth0 ─ sink ─▶ figures   │
//!  │  bulk2  ─eth0─┘        ▲  as many TCP bytes as they get                  │
//!  │                  tidegate agent ◀── contracts of phase one, two ── demo  │
//!  └──────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! With `--place kernel` a Linux bridge replaces the switch: each tenant has a veth to it, and the kernel
//! place keeps the contracts.
//!
//! Every tenant is a process with its own network namespace and its own Linux TCP/IP stack, on a tap of the
//! switch or on a veth. Switch and agent are this program, as on a host. Phase one queues first come, first
//! served; phase two is under contract. Traffic, processes, priorities and CPUs are the same in both.
//!
//! - [`namespace`], [`interface`], [`clock`], [`priority`], [`placement`]: requests to the kernel
//! - [`order`], [`process`]: tenants as processes, and the dialogue with them
//! - [`tenant`], [`voice`], [`bulk`]: the work of the tenants
//! - [`contracts`], [`scene`], [`bridge`]: the two phases, and the place of the scene
//! - [`control`], [`workers`], [`blame`]: observation of the host machine, and who is to blame for a late
//!   frame
//! - [`figures`], [`rows`], [`report`], [`chart`], [`progress`]: the output
//! - `error`: the error of the demo

pub mod blame;
pub mod bridge;
pub mod bulk;
pub mod chart;
pub mod clock;
pub mod contracts;
pub mod control;
mod error;
pub mod figures;
pub mod interface;
pub mod namespace;
pub mod order;
pub mod placement;
pub mod priority;
pub mod process;
pub mod progress;
pub mod report;
pub mod rows;
pub mod scene;
pub mod tenant;
pub mod voice;
pub mod workers;

use crate::exit::{self, Failure};
use contracts::{Phase, Where};
pub use error::SceneError;
use figures::{Measured, Report, Runs};
use progress::Progress;
use scene::Scene;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};

/// Traffic before each window, so that TCP fills the queue.
const WARM_UP: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    pub place: Where,
    pub json: bool,
    pub serve: bool,
    /// Measured time of each phase.
    pub span: Duration,
    pub realtime: bool,
    /// Number of runs; `None` is one run, with the report of a single run.
    pub runs: Option<u64>,
}

impl From<SceneError> for Failure {
    fn from(error: SceneError) -> Self {
        Self::failed(error)
    }
}

/// Runs the demo. Must be called while the process has one thread.
pub fn run(options: Options) -> Result<(), Failure> {
    namespace::enter().map_err(|e| SceneError::new(e.to_string()))?;
    let realtime = options.realtime && priority::allow();
    // One thread, because children live only as long as the thread that started them.
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::failed)?;
    runtime.block_on(async {
        let mut runs = Vec::new();
        let done = tokio::select! {
            result = repeat(options, realtime, &mut runs) => result,
            ended = wait_for_signal() => ended.and(Err(interrupted(runs.len(), options.runs))),
        };
        // Completed runs are reported whatever ended the demo.
        if options.runs.is_some() && !runs.is_empty() {
            print_runs(&runs, options.json)?;
        }
        let (mut scene, dir) = done?;
        if options.serve { serve(&mut scene, dir.path()).await } else { Ok(()) }
    })
}

/// Makes all runs, each with its own scene. Returns the last scene, which still runs.
async fn repeat(
    options: Options,
    realtime: bool,
    reports: &mut Vec<Report>,
) -> Result<(Scene, TempDir), Failure> {
    let runs = options.runs.unwrap_or(1).max(1);
    let span = 2 * (WARM_UP + options.span + scene::SETTLE);
    let mut progress = Progress::new(runs * span.as_millis() as u64);
    loop {
        let number = reports.len() as u64 + 1;
        if runs > 1 {
            progress.begin(&format!("run {number} of {runs}: "));
        }
        let dir = folder().map_err(|e| SceneError::new(format!("no temporary folder: {e}")))?;
        let (scene, [fifo, contract]) = measure_phases(options, realtime, dir.path(), &progress).await?;
        let report = Report {
            fifo: fifo.figures(),
            edf: contract.figures(),
            place: options.place,
            realtime_priority: realtime,
        };
        if options.runs.is_none() {
            drop(progress);
            if options.json {
                exit::print_json(&report)?;
            } else {
                exit::print(&report::text(&fifo, &contract, &report))?;
            }
            return Ok((scene, dir));
        }
        reports.push(report);
        if number == runs {
            return Ok((scene, dir));
        }
    }
}

/// Measures both phases, and returns the scene, which still runs.
async fn measure_phases(
    options: Options,
    realtime: bool,
    dir: &Path,
    progress: &Progress,
) -> Result<(Scene, [Measured; 2]), Failure> {
    progress.show("building the scene: an agent, four tenants, and the network between them");
    let mut scene = Scene::build(dir, options.place, realtime).await?;
    scene.apply(Phase::Fifo).await?;
    scene.start_traffic().await?;
    progress.show("phase one of two: a plain FIFO of 1,000 full-size frames");
    scene.run(WARM_UP, progress).await?;
    let fifo = scene.measure(Phase::Fifo, options.span, progress).await?;
    progress.show("phase two of two: contracts on");
    scene.apply(Phase::Contract).await?;
    scene.run(WARM_UP, progress).await?;
    let contract = scene.measure(Phase::Contract, options.span, progress).await?;
    Ok((scene, [fifo, contract]))
}

fn print_runs(runs: &[Report], json: bool) -> Result<(), Failure> {
    if json { exit::print_json(&Runs { runs }) } else { exit::print(&report::texts(runs)) }
}

fn interrupted(done: usize, of: Option<u64>) -> Failure {
    Failure::failed(match of {
        Some(of) => format!("interrupted: {done} of {of} runs are complete"),
        None => "interrupted".into(),
    })
}

/// Keeps the scene running until a signal, or the end of its switch or agent.
async fn serve(scene: &mut Scene, dir: &Path) -> Result<(), Failure> {
    let api = dir.join("api.sock");
    let api = crate::format::path(&api);
    // The name as it was started: it may not be on PATH.
    let program = std::env::args_os().next().unwrap_or_else(|| "tidegate".into());
    let program = crate::format::path(Path::new(&program));
    exit::print_error(&format!(
        "The scene runs until Ctrl-C. Its API: {api}\n  \
         {program} --api {api} top\n  \
         {program} --api {api} vnic show voice\n  \
         {program} --api {api} why voice\n  \
         curl --unix-socket {api} http://tidegate/metrics"
    ));
    tokio::select! {
        broken = scene.run_until_end() => Err(broken.into()),
        ended = wait_for_signal() => ended,
    }
}

async fn wait_for_signal() -> Result<(), Failure> {
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::failed)?;
    tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
    Ok(())
}

/// Creates a temporary folder whose path leaves room for a socket's name (107 bytes in all, unix(7)).
fn folder() -> std::io::Result<TempDir> {
    let builder = || tempfile::Builder::new().prefix("tidegate-demo-").to_owned();
    if std::env::temp_dir().as_os_str().len() > 60 {
        builder().tempdir_in("/tmp")
    } else {
        builder().tempdir()
    }
}
