//! The agent: contracts in, evidence out.
//!
//! ```text
//!  /etc/tidegate/*.toml ─┐
//!                        ├─▶ store ─▶ reconciler ── plan, apply ──▶ Place (host switch, ...)
//!  API (Unix socket) ────┘               │                            │
//!        ▲                               │ ◀── observe: what is in force, evidence
//!        └── reads, /metrics ◀── Published
//! ```
//!
//! The agent can be killed and started again at any time: the switch keeps forwarding, and a new agent takes
//! over what it finds.
//!
//! - [`place`]: the trait of all places
//! - `switch_place`: the host switch as a place
//! - `kernel_place`: the kernel's netdevs as a place
//! - `nic_place`: SR-IOV functions as a place
//! - `culprit`: what held a worker of the switch up when a deadline was missed
//! - `own_cpus`: keeps other work off the CPUs of the switch's workers
//! - `store`: the contracts and who owns each
//! - `reconciler`: makes what is wanted be in force, and keeps it so
//! - `windows`: figures of the last 10 s, minute and hour
//! - `guest`: the soft limit, through a port of the VM
//! - [`api`]: HTTP on a Unix socket, OpenAPI document, metrics
//! - `paths`: the paths that contracts name, and what is done there
//! - `watchdog`: what the service manager is told as long as all of it turns
//! - `durable`, `lock`: files that survive a crash; one agent per state directory and network namespace
//! - [`drops`]: why frames were dropped at other places than the switch
//! - `cut`: where an agent may die, for tests

pub mod api;
mod culprit;
mod cut;
pub mod drops;
mod durable;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod guest;
mod kernel_place;
mod lock;
mod nic_place;
mod own_cpus;
mod paths;
pub mod place;
mod reconciler;
mod store;
mod switch_place;
#[cfg(test)]
mod testing;
mod watchdog;
mod windows;

use api::listener::{Bounded, Peer};
use api::routes::{Api, router};
use api::turns::Turns;
use api::written::Writer;
pub use own_cpus::KeepOff;
use paths::Paths;
use place::Place;
use reconciler::{Command, Reconciler};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tidegate_contract::SocketOwner;
use tidegate_service::Notifier;
use tokio::signal::unix::{SignalKind, signal};
use watchdog::{Felt, Pulse};

/// How an agent runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folder of contract files, such as `/etc/tidegate`; may be missing.
    pub config: PathBuf,
    /// Folder for what is kept over restarts, such as `/var/lib/tidegate`; made where missing.
    pub state: PathBuf,
    /// Control socket of the switch.
    pub switch: PathBuf,
    /// Socket of the API.
    pub api: PathBuf,
    /// Group that may use the API, by name or number.
    pub api_group: Option<String>,
    /// Permission bits of the API's socket, `0o660` by convention.
    pub api_mode: u32,
    /// Folders besides `/run/tidegate/vm` below which contracts may have sockets. No user but the
    /// administrator may be able to put another folder in the place of one.
    pub socket_roots: Vec<PathBuf>,
    /// Folders besides `/run/netns` below which contracts may name network namespaces; `/proc` for those of processes.
    pub netns_roots: Vec<PathBuf>,
    /// Whether eBPF programs observe what keeps the switch's workers from their CPUs, while a deadline is in force.
    pub observe_cpu: bool,
    /// What is kept off the CPUs of the switch's workers while a deadline is in force.
    pub own_cpus: KeepOff,
}

/// Why the agent does not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another agent has the state directory or the network namespace, or it cannot be told.
    #[error(transparent)]
    Lock(#[from] lock::LockError),
    /// The state cannot be read.
    #[error(transparent)]
    State(#[from] durable::DurableError),
    /// A folder for contracts' sockets or namespaces cannot be used.
    #[error("{0}")]
    Root(String),
    /// The API's socket cannot be made.
    #[error("cannot offer the API: {0}")]
    Api(String),
    /// The operating system said no.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// What happened.
        source: io::Error,
    },
}

/// Longest wait for the reconciler, to have started and to finish what it is doing.
const PATIENCE: Duration = Duration::from_secs(5);

/// Runs the agent until SIGTERM or SIGINT; SIGHUP reads the contract files again. Ports keep running when it
/// ends.
///
/// # Errors
/// It could not start; what is in force is untouched then.
///
/// # Panics
/// Never by itself. Must be called within a tokio runtime with I/O and time enabled.
pub async fn run(options: Options) -> Result<(), Error> {
    let signals = || -> io::Result<_> {
        Ok((
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
            signal(SignalKind::hangup())?,
        ))
    };
    let (mut terminate, mut interrupt, mut hangup) = signals().map_err(io_error("wait for signals"))?;
    // Half of them are for duplicates of the switch's.
    tidegate_service::raise_descriptors();
    let agent = Agent::start(&options)?;
    let commands = agent.commands.clone();
    if let Err(error) = agent.tell_service_manager() {
        tracing::warn!(%error, "the service manager (NOTIFY_SOCKET) cannot be told that the agent runs");
    }
    let ended = loop {
        tokio::select! {
            ended = agent.served() => break ended,
            _ = terminate.recv() => break Ok(()),
            _ = interrupt.recv() => break Ok(()),
            _ = hangup.recv() => {
                tracing::info!("reading the contract files again");
                let _ = commands.send(Command::Reload);
            }
        }
    };
    agent.stop().await;
    ended
}

/// A running agent, for callers with signal handling of their own: tests and the demo.
#[derive(Debug)]
pub struct Agent {
    commands: mpsc::Sender<Command>,
    server: tokio::task::JoinHandle<io::Result<()>>,
    guests: tokio::task::JoinHandle<()>,
    failed: tokio::sync::watch::Receiver<Option<String>>,
    pulse: Pulse,
    /// Resolves when the reconciler has ended.
    reconciled: tokio::sync::oneshot::Receiver<()>,
    api: switch_place::ApiSocket,
    _lock: (lock::Lock, lock::NamespaceLock),
}

impl Agent {
    /// Starts one, within a tokio runtime. When this returns, the API takes requests, and what is saved and
    /// what the files say is in force at the places that answer.
    ///
    /// # Errors
    /// As [`run`].
    pub fn start(options: &Options) -> Result<Self, Error> {
        let state = &options.state;
        let paths = Paths::new(&options.socket_roots, &options.netns_roots).map_err(Error::Root)?;
        make_folder(state)?;
        let lock = (lock::Lock::take(state)?, lock::NamespaceLock::take()?);
        let (commands, received) = mpsc::channel();
        let wake = commands.clone();
        let wake = Arc::new(move || drop(wake.send(Command::Repair)));
        let (switch, damage) =
            switch_place::SwitchPlace::new(&options.switch, state, paths.clone(), wake, options.observe_cpu)?;
        let (own_cpus, own_cpus_damage) =
            own_cpus::OwnCpus::new(state, options.own_cpus, paths.namespaces.clone())?;
        let switch = switch.with(own_cpus);
        let (kernel, kernel_damage) = kernel_place::KernelPlace::new(state)?;
        let (nic, nic_damage) = nic_place::NicPlace::new(state)?;
        let capture = switch.capture();
        let made = [switch.made(), kernel.made(), nic.made()].concat();
        let places: [Box<dyn Place>; 3] = [Box::new(switch), Box::new(kernel), Box::new(nic)];
        let pulse = Pulse::default();
        let felt = |place| Box::new(Felt { place, pulse: pulse.clone() }) as Box<dyn Place>;
        let places = places.map(felt).into();
        let mut reconciler = Reconciler::new(&options.config, state, paths.guests.clone(), places)?;
        reconciler.problem("switch state", damage);
        reconciler.problem("state of workers' CPUs", own_cpus_damage);
        reconciler.problem("kernel state", kernel_damage);
        reconciler.problem("nic state", nic_damage);
        reconciler.problem("network namespace", lock.1.problem.clone());
        reconciler.problem("state folder", paths::exposed(state).or_else(|| paths::exposed_way(state)));
        reconciler.problem("socket roots", paths.sockets.exposed());
        reconciler.problem("namespace roots", paths.namespaces.exposed());
        reconciler.recover(made);
        let (listener, api) = listen(options)?;

        let (board, windows) = (reconciler.board(), reconciler.windows());
        let (ready, started) = mpsc::channel();
        let (ended, reconciled) = tokio::sync::oneshot::channel();
        std::thread::Builder::new()
            .name("reconciler".into())
            .spawn(move || {
                reconciler.start();
                let _ = ready.send(());
                reconciler.run(&received);
                let _ = ended.send(());
            })
            .map_err(io_error("start a thread"))?;
        // A switch that hangs must not keep the API away.
        let _ = started.recv_timeout(PATIENCE);
        let guests = tokio::spawn(guest::ports::serve(Arc::clone(&board), commands.clone(), paths.guests));
        let app = router(Api {
            commands: commands.clone(),
            board,
            capture,
            looks: reconciler::Looks::default(),
            turns: Turns::default(),
            writer: Writer::default(),
            windows,
        });
        let app = app.into_make_service_with_connect_info::<Peer>();
        let (tell, failed) = tokio::sync::watch::channel(None);
        let server = tokio::spawn(async move {
            let ended = axum::serve(Bounded::new(listener), app).await;
            if let Err(e) = &ended {
                let _ = tell.send(Some(e.to_string()));
            }
            ended
        });
        tracing::info!(api = %options.api.display(), state = %state.display(), "the agent runs");
        Ok(Self { commands, server, guests, failed, pulse, reconciled, api, _lock: lock })
    }

    /// Says that the API takes requests, and from now on that the agent is alive, where a service manager wants to know.
    fn tell_service_manager(&self) -> io::Result<()> {
        let Some(manager) = Notifier::from_environment()? else { return Ok(()) };
        manager.ready()?;
        if let Some(interval) = tidegate_service::watchdog() {
            tokio::spawn(watchdog::feed(manager, interval, self.pulse.clone()));
        }
        Ok(())
    }

    /// Resolves when the API ends by itself, which it does not in normal operation.
    async fn served(&self) -> Result<(), Error> {
        let mut failed = self.failed.clone();
        match failed.wait_for(Option::is_some).await {
            Ok(why) => Err(Error::Api(why.clone().unwrap_or_default())),
            Err(_) => Err(Error::Api("its server ended".into())),
        }
    }

    /// Ends it. Ports keep running; a change under way is finished first.
    pub async fn stop(self) {
        self.server.abort();
        self.guests.abort();
        let _ = self.commands.send(Command::Stop);
        if tokio::time::timeout(PATIENCE, self.reconciled).await.is_err() {
            tracing::warn!("the switch does not answer; ending without waiting for it");
        }
        self.api.remove();
        tracing::info!("the agent ends; ports keep running");
    }
}

fn make_folder(folder: &Path) -> Result<(), Error> {
    use std::os::unix::fs::DirBuilderExt;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(io_error(format!("make the state directory {}", folder.display())))
}

fn listen(options: &Options) -> Result<(tokio::net::UnixListener, switch_place::ApiSocket), Error> {
    let owner = SocketOwner { user: None, group: options.api_group.clone(), mode: Some(options.api_mode) };
    let (socket, file) = switch_place::listen_for_api(&options.api, &owner).map_err(Error::Api)?;
    let socket = std::os::unix::net::UnixListener::from(socket);
    socket.set_nonblocking(true).map_err(io_error("use the API's socket"))?;
    let listener = tokio::net::UnixListener::from_std(socket).map_err(io_error("use the API's socket"))?;
    Ok((listener, file))
}

fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
    let what = what.into();
    move |source| Error::Io { what, source }
}
