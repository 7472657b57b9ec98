//! The agent: contracts in, evidence out. It knows places by one trait, and no place by name.
//!
//! ```text
//!  /etc/tidegate/*.toml ─┐
//!                        ├─▶ store ─▶ reconciler ── plan, apply ──▶ places (tidegate_place::Installed)
//!  API (Unix socket) ────┘               │                            │
//!        ▲                               │ ◀── observe: state in force, evidence
//!        └── reads, /metrics ◀── board ◀─┘
//! ```
//!
//! The agent can be killed and started again at any time: the places keep the contracts, and a new agent takes them over.
//!
//! - `store`: the contracts, and the owner of each
//! - `reconciler`: makes the wanted contracts be in force, and keeps them so
//! - `commands`: requests to the reconciler
//! - `board`: the state that readers see
//! - [`views`]: the answers of the API
//! - `windows`: figures of the last 10 s, minute and hour
//! - `guest`: the soft limit, through a port of the VM
//! - `api`: HTTP on a Unix socket, OpenAPI document, metrics
//! - `watchdog`: tells the service manager that the agent works
//! - `lock`: one agent per state folder and network namespace
//! - `testing`: the suite that every place has to pass
//! - `fuzzing`: the agent with one place, without threads

mod api;
mod board;
mod commands;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod guest;
mod lock;
mod reconciler;
mod store;
#[cfg(feature = "testing")]
pub mod testing;
pub mod views;
mod watchdog;
mod windows;

use api::listener::{Bounded, Peer};
use api::routes::{Api, router};
use api::socket::{ApiSocket, listen_for_api};
use api::turns::Turns;
use api::writer::Writer;
use commands::{Command, Looks};
use reconciler::Reconciler;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tidegate_contract::SocketOwner;
use tidegate_durable::{Damage, DurableError};
use tidegate_paths::Paths;
use tidegate_place::{Installation, Installed, KeyRing, Offers, PairPorts, Site};
use tidegate_service::Notifier;
use tokio::signal::unix::{SignalKind, signal};
use watchdog::{Pulse, Watched};

/// How an agent runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folder of contract files, such as `/etc/tidegate`; may be missing.
    pub config: PathBuf,
    /// Folder for state that survives restarts, such as `/var/lib/tidegate`; made if it is missing.
    pub state: PathBuf,
    /// Socket of the API.
    pub api: PathBuf,
    /// Group that may use the API, by name or number.
    pub api_group: Option<String>,
    /// Permission bits of the API's socket, `0o660` by convention.
    pub api_mode: u32,
    /// Folders besides `/run/tidegate/vm` below which contracts may have sockets. Only the administrator may be able
    /// to replace them.
    pub socket_roots: Vec<PathBuf>,
    /// Folders besides `/run/netns` below which contracts may name network namespaces; `/proc` for those of processes.
    pub netns_roots: Vec<PathBuf>,
}

/// Installs the places, in the order in which they plan and act, after the agent has locked the state folder.
pub type Install = Box<dyn FnOnce(&Site<'_>) -> Result<Vec<Installation>, DurableError> + Send>;

/// Why the agent does not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another agent has the state directory or the network namespace, or they cannot be locked.
    #[error(transparent)]
    Lock(#[from] lock::LockError),
    /// The state cannot be read.
    #[error(transparent)]
    State(#[from] DurableError),
    /// A folder for contracts' sockets or namespaces cannot be used.
    #[error("{0}")]
    Root(String),
    /// The API's socket cannot be made, or its server ended.
    #[error("cannot offer the API: {0}")]
    Api(String),
    /// A system call failed.
    #[error("cannot {what}: {source}")]
    Io {
        /// The action that failed.
        what: String,
        /// The error of the system call.
        source: io::Error,
    },
}

/// Longest wait for the reconciler: to start, and to finish its current work.
const PATIENCE: Duration = Duration::from_secs(5);

/// Runs the agent until SIGTERM or SIGINT; SIGHUP reads the contract files again. Ports keep running when the agent
/// ends.
///
/// # Errors
/// The agent could not start, and left what is in force untouched; or the API's server ended.
///
/// # Panics
/// Outside a tokio runtime with I/O and time enabled.
pub async fn run(options: Options, install: Install) -> Result<(), Error> {
    let signals = || -> io::Result<_> {
        Ok((
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
            signal(SignalKind::hangup())?,
        ))
    };
    let (mut terminate, mut interrupt, mut hangup) = signals().map_err(io_error("wait for signals"))?;
    // Half of the descriptors are for duplicates of the switch's descriptors.
    tidegate_service::raise_descriptors();
    let agent = Agent::start(&options, install)?;
    let commands = agent.commands.clone();
    if let Err(error) = agent.tell_service_manager() {
        tracing::warn!(%error, "cannot notify the service manager (NOTIFY_SOCKET) that the agent runs");
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
    api: ApiSocket,
    _lock: (lock::Lock, lock::NamespaceLock),
}

impl Agent {
    /// Starts an agent, within a tokio runtime. When this returns, the API takes requests, and the saved contracts and
    /// those of the files are in force at the places that answer.
    ///
    /// # Errors
    /// As [`run`].
    pub fn start(options: &Options, install: Install) -> Result<Self, Error> {
        let state = &options.state;
        let paths = Paths::new(&options.socket_roots, &options.netns_roots).map_err(Error::Root)?;
        make_folder(state)?;
        let lock = (lock::Lock::take(state)?, lock::NamespaceLock::take()?);
        let (commands, received) = mpsc::channel();
        let wake = commands.clone();
        let wake: Arc<dyn Fn() + Send + Sync> = Arc::new(move || drop(wake.send(Command::Repair)));
        let offering = commands.clone();
        let offers = Offers::new(move |offer| {
            let ends = |_| "the agent ends".to_owned();
            let (reply, taken) = tokio::sync::oneshot::channel();
            offering.send(Command::Offer { offer: Box::new(offer), reply }).map_err(|_| ends(()))?;
            taken.blocking_recv().map_err(|_| ends(()))?.map_err(|error| error.to_string())
        });
        let (pair_ports, ring) = (PairPorts::new(wake.clone()), KeyRing::default());
        let key_ring = ring.clone();
        let installations = install(&Site { state, paths: &paths, wake, pair_ports, key_ring, offers })?;
        let capture = installations.iter().find_map(|place| place.capture.clone());
        let damage: Vec<Damage> = installations.iter().flat_map(|place| place.damage.clone()).collect();
        let pulse = Pulse::default();
        let watched = |Installation { place, .. }| {
            Box::new(Watched { place, pulse: pulse.clone() }) as Box<dyn Installed>
        };
        let places = installations.into_iter().map(watched).collect();
        let mut reconciler = Reconciler::new(&options.config, state, paths.guests.clone(), places)?;
        reconciler.use_ring(ring);
        for (about, what) in damage {
            reconciler.problem(about, Some(what));
        }
        reconciler.problem("network namespace", lock.1.problem.clone());
        reconciler.problem(
            "state folder",
            tidegate_paths::exposed(state).or_else(|| tidegate_paths::exposed_way(state)),
        );
        reconciler.problem("socket roots", paths.sockets.exposed());
        reconciler.problem("namespace roots", paths.namespaces.exposed());
        reconciler.recover();
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
        // A place that hangs must not delay the API.
        let _ = started.recv_timeout(PATIENCE);
        let guests = tokio::spawn(guest::ports::serve(board.clone(), commands.clone(), paths.guests));
        let app = router(Api {
            commands: commands.clone(),
            board,
            capture,
            looks: Looks::default(),
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

    /// Tells the service manager, if there is one, that the agent is ready, and from now on that it is alive.
    fn tell_service_manager(&self) -> io::Result<()> {
        let Some(manager) = Notifier::from_environment()? else { return Ok(()) };
        manager.ready()?;
        if let Some(interval) = tidegate_service::watchdog() {
            tokio::spawn(watchdog::feed(manager, interval, self.pulse.clone()));
        }
        Ok(())
    }

    /// Resolves when the API's server ends by itself, which is always an error.
    async fn served(&self) -> Result<(), Error> {
        let mut failed = self.failed.clone();
        match failed.wait_for(Option::is_some).await {
            Ok(why) => Err(Error::Api(why.clone().unwrap_or_default())),
            Err(_) => Err(Error::Api("its server ended".into())),
        }
    }

    /// Ends the agent after the change under way. Ports keep running.
    pub async fn stop(self) {
        self.server.abort();
        self.guests.abort();
        let _ = self.commands.send(Command::Stop);
        if tokio::time::timeout(PATIENCE, self.reconciled).await.is_err() {
            tracing::warn!("a place does not answer; ending without waiting for it");
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

fn listen(options: &Options) -> Result<(tokio::net::UnixListener, ApiSocket), Error> {
    let owner = SocketOwner { user: None, group: options.api_group.clone(), mode: Some(options.api_mode) };
    let (socket, file) = listen_for_api(&options.api, &owner).map_err(Error::Api)?;
    let socket = std::os::unix::net::UnixListener::from(socket);
    socket.set_nonblocking(true).map_err(io_error("use the API's socket"))?;
    let listener = tokio::net::UnixListener::from_std(socket).map_err(io_error("use the API's socket"))?;
    Ok((listener, file))
}

fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
    let what = what.into();
    move |source| Error::Io { what, source }
}
