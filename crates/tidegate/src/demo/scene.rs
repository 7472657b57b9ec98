//! The scene: a switch, an agent and four tenants; and its measurement.

use super::blame::{Blame, CpuAbsence};
use super::contracts::DEADLINE;
use super::contracts::{self, Phase, TENANTS, Where};
use super::control::Watch;
use super::figures::Measured;
use super::order::{Order, Window, histogram};
use super::process::{Process, SWITCH, Tenant};
use super::progress::Progress;
use super::tenant::Role;
use super::workers::Workers;
use super::{SceneError, bridge, clock, placement, priority};
use crate::client::{Client, encode};
use crate::{exit, explain};
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant};
use tidegate_agent::views::{VnicView, WhyView};
use tidegate_evidence::{Delay, Histogram, Miss, VnicStats};

/// Time that the switch and the agent have to come up.
const PATIENCE: Duration = Duration::from_secs(5);
/// Interval at which the processes are checked.
const TICK: Duration = Duration::from_millis(100);
/// Time from an order to the begin of its window.
const LEAD: Duration = Duration::from_millis(20);
/// Time after a window until its figures are complete, since frames under way still arrive.
pub const SETTLE: Duration = Duration::from_millis(100);

/// All processes that the demo started. They end when the scene is dropped.
#[derive(Debug)]
pub struct Scene {
    client: Client,
    tenants: [Tenant; 4],
    agent: Process,
    switch: Process,
    place: Where,
    /// Whether the worker and voice's threads have real-time priority.
    realtime: bool,
}

impl Scene {
    /// Starts the processes. Files and sockets go to `dir`.
    pub async fn build(dir: &Path, place: Where, realtime: bool) -> Result<Self, SceneError> {
        let path = |name: &str| dir.join(name).to_string_lossy().into_owned();
        let (control, api, config, state) =
            (path("switch.sock"), path("api.sock"), path("contracts"), path("state"));
        for folder in [&config, &state] {
            std::fs::create_dir(folder).map_err(|e| SceneError::new(format!("cannot make {folder}: {e}")))?;
        }
        // One worker: the tenants need the other cores, and one worker carries far more than 1 Gbit/s.
        let priority = priority::WORKER.to_string();
        let mut switch = vec!["switch", "--socket", &control, "--workers", "1"];
        let cpu = placement::voice_cpus().map(|cpu| cpu.to_string());
        if let Some(cpu) = &cpu {
            switch.extend(["--cpus", cpu]);
        }
        if realtime {
            switch.extend(["--fifo-priority", &priority]);
        }
        let mut switch = Process::start(SWITCH, &switch, dir, None)?;
        wait(&mut switch, async || Path::new(&control).exists()).await?;
        let agent = ["agent", "--config", &config, "--state", &state, "--switch", &control, "--api", &api];
        // A tenant's namespace has no name; its path leads through the tenant's process.
        let agent = [&agent[..], &["--netns-root", "/proc"]].concat();
        let mut agent = Process::start("agent", &agent, dir, None)?;
        let client = Client::new(Path::new(&api));
        wait(&mut agent, async || client.get::<Value>("/v1/host").await.is_ok()).await?;
        let tenants = [
            Tenant::start(TENANTS[0], Role::Voice, dir).await?,
            Tenant::start(TENANTS[1], Role::Bulk, dir).await?,
            Tenant::start(TENANTS[2], Role::Bulk, dir).await?,
            Tenant::start(TENANTS[3], Role::Sink, dir).await?,
        ];
        if place == Where::Kernel {
            bridge::build(&tenants)?;
        }
        Ok(Self { client, tenants, agent, switch, place, realtime })
    }

    pub async fn apply(&self, phase: Phase) -> Result<(), SceneError> {
        let namespaces = self.tenants.each_ref().map(Tenant::namespace);
        let path = format!("/v1/apply?origin={}", encode("demo"));
        let applied =
            self.client.post_toml::<Value>(&path, &contracts::toml(self.place, phase, &namespaces)).await;
        applied.map(drop).map_err(|e| SceneError::new(format!("the agent did not accept the contracts: {e}")))
    }

    pub async fn start_traffic(&mut self) -> Result<(), SceneError> {
        let sink = contracts::address(TENANTS.len() - 1);
        for (index, tenant) in self.tenants.iter_mut().enumerate().rev() {
            tenant
                .ask(&Order::Start { address: contracts::address(index), sink, realtime: self.realtime })
                .await?;
        }
        Ok(())
    }

    /// Lets the traffic run for `span`. Fails if a process ends.
    pub async fn run(&mut self, span: Duration, progress: &Progress) -> Result<(), SceneError> {
        let end = Instant::now() + span;
        loop {
            self.agent.check()?;
            self.switch.check()?;
            self.tenants.iter_mut().try_for_each(Tenant::check)?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            tokio::time::sleep(left.min(TICK)).await;
            progress.advance(left.min(TICK).as_millis() as u64);
        }
    }

    /// Lets the traffic run until the switch or the agent ends. A tenant may end, because the user may
    /// remove its vNIC; a message says so.
    pub async fn run_until_end(&mut self) -> SceneError {
        let mut ended = [false; 4];
        loop {
            if let Err(e) = self.agent.check().and_then(|()| self.switch.check()) {
                return e;
            }
            for (tenant, ended) in self.tenants.iter_mut().zip(&mut ended).filter(|(_, ended)| !**ended) {
                if let Err(e) = tenant.check() {
                    exit::print_error(&format!("The other processes continue without {}", e.reason()));
                    *ended = true;
                }
            }
            tokio::time::sleep(TICK).await;
        }
    }

    pub async fn measure(
        &mut self,
        phase: Phase,
        span: Duration,
        progress: &Progress,
    ) -> Result<Measured, SceneError> {
        let from = clock::now() + LEAD.as_nanos() as u64;
        let window = Window { from, to: from + span.as_nanos() as u64 };
        let [voice, _, _, sink] = &mut self.tenants;
        sink.ask(&Order::Measure(window)).await?;
        voice.ask(&Order::Measure(window)).await?;
        let watch = Watch::begin(window, SETTLE.as_nanos() as u64, self.realtime);
        let (before, began, workers) = (self.evidence().await?, Instant::now(), self.workers());
        self.run(LEAD + span + SETTLE, progress).await?;
        let (after, lasted, workers_after) = (self.evidence().await?, began.elapsed(), self.workers());
        let misses = self.misses(window.from).await?;
        let observed = watch.finish();

        let [voice, _, _, sink] = &mut self.tenants;
        let sent = voice.ask(&Order::Report).await?;
        let received = sink.ask(&Order::Report).await?;
        if sent.frames == 0 || received.frames == 0 || received.bytes == 0 {
            let what = format!(
                "no traffic to measure: voice sent {} frames, the sink heard {} and read {} bytes of bulk",
                sent.frames, received.frames, received.bytes
            );
            return Err(self.switch.error(&what));
        }
        // The CPUs that voice passes: those of its threads and of the worker.
        let voice_cpus: Vec<usize> =
            placement::voice_cpus().into_iter().chain(workers_after.cpus.clone()).collect();
        let (timer, absences) = if voice_cpus.is_empty() {
            (observed.timer(&placement::allowed()), observed.absences)
        } else {
            (observed.timer(&voice_cpus), observed.absences(&voice_cpus))
        };
        let inside = delays_between(&before.delay, &after.delay);
        // A place that sees only one end has no least delay.
        let least =
            (self.place == Where::Switch).then(|| delays_between(&before.delay_least, &after.delay_least));
        let known = phase == Phase::Contract && self.place == Where::Switch;
        let more = |of: fn(&VnicStats) -> u64| known.then(|| of(&after).saturating_sub(of(&before)));
        let new_misses = deadline_misses(&after).saturating_sub(deadline_misses(&before));
        let blame = |late, known: &[Window], absences: &[CpuAbsence]| {
            (phase == Phase::Contract).then(|| Blame::of(late, known, absences, DEADLINE))
        };
        let count = match (phase, self.place) {
            (Phase::Contract, _) => new_misses,
            (Phase::Fifo, Where::Switch) => inside.above(DEADLINE),
            // The kernel's FIFO has no deadline of voice: a late frame counts as a miss.
            (Phase::Fifo, Where::Kernel) => received.late,
        };
        let used = workers_after.used.saturating_sub(workers.used) as f64 / lasted.as_nanos() as f64;
        Ok(Measured {
            sent: sent.frames,
            received: received.frames,
            misses: count,
            misses_blame: blame(count, &spans(&misses), &absences),
            latest_misses: misses.iter().map(explain::miss).collect(),
            inside,
            inside_least: least,
            possible: more(|stats| stats.misses_possible),
            asleep: more(|stats| stats.misses_asleep),
            delay: histogram(&received.delays),
            longest: received.longest,
            late: received.late,
            late_blame: blame(received.late, &received.late_spans, &absences),
            timer,
            wakeup: histogram(&sent.delays),
            worker: (self.place == Where::Switch).then_some(used),
            bulk: (u128::from(received.bytes) * 8 * 1_000_000_000 / span.as_nanos().max(1)) as u64,
        })
    }

    fn workers(&self) -> Workers {
        Workers::of(self.switch.id())
    }

    /// Returns the latest misses since `from` that the agent still has, certain and possible, newest first,
    /// with times of CLOCK_MONOTONIC.
    async fn misses(&self, from: u64) -> Result<Vec<Miss>, SceneError> {
        let why = self.client.get::<WhyView>("/v1/vnics/voice/why").await;
        let misses = why.map_err(|e| SceneError::new(e.to_string()))?.latest_misses;
        // The answer has times of day.
        let offset = clock::of_day().saturating_sub(clock::now());
        let misses = misses.into_iter().rev().map(|miss| Miss { at: miss.at.saturating_sub(offset), ..miss });
        Ok(misses.filter(|miss| miss.at >= from).collect())
    }

    async fn evidence(&self) -> Result<VnicStats, SceneError> {
        let view = self.client.get::<VnicView>("/v1/vnics/voice").await;
        let stats = view.map_err(|e| SceneError::new(e.to_string()))?.stats;
        stats.ok_or_else(|| self.agent.error("the agent has no counters of voice"))
    }
}

/// Returns the spans in which frames with certain misses waited.
fn spans(misses: &[Miss]) -> Vec<Window> {
    let certain = misses.iter().filter(|miss| miss.is_certain());
    certain.map(|miss| Window { from: miss.at.saturating_sub(miss.delay), to: miss.at }).collect()
}

fn deadline_misses(stats: &VnicStats) -> u64 {
    stats.misses.values().sum()
}

/// Returns the delays recorded between two looks.
fn delays_between(before: &Delay, after: &Delay) -> Histogram {
    histogram(&after.buckets).since(&histogram(&before.buckets))
}

/// Waits until `ready`. Fails if the process ends, or is not ready in time.
async fn wait(process: &mut Process, ready: impl AsyncFn() -> bool) -> Result<(), SceneError> {
    let end = Instant::now() + PATIENCE;
    while !ready().await {
        process.check()?;
        if Instant::now() > end {
            return Err(process.error(&format!("not ready after {PATIENCE:?}")));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}
