//! The switch process: workers, the table of ports, the control socket.
//!
//! ```text
//!  agent ─ control socket ─▶ session ─▶ table (ports, segments, contracts)
//!                                         │ calls
//!  front ends ─ sockets ─▶ port threads ──┴────▶ workers
//! ```
//!
//! - [`table`]: the ports and the workers' data about them
//! - `run`: starts a switch from its options
//! - `shares`: the addresses that vNICs share, and which vNIC has each
//! - `sharing`: the shared addresses of the table's ports
//! - [`ports`]: creates, changes and removes ports
//! - `status`: reports their state
//! - `trouble`: handles their faults
//! - [`arms`]: ports at other workers that take in frames of an uplink
//! - [`uplink`], [`uplinks`]: the ways to other hosts: one of them; creates, changes and removes them
//! - [`pairs`]: pairs of vNICs of two hosts whose frames have stamps; `wanted_pairs`: which ones
//! - [`rdma`]: RDMA devices, and queue pairs of vNICs; [`lane`]: RDMA at one uplink
//! - `moved`, `moves`: remotes that other hosts announced, and where they are
//! - `notices`: what the thread of notices has to know, and what it tells
//! - [`link`]: connects a port's vhost-user thread and its worker
//! - [`cpus`]: a CPU of its own for each worker with deadlines to keep
//! - [`pace`]: limits the workers' time for a front end's messages
//! - [`moving`]: moves ports to other workers
//! - [`placement`], [`placer`]: decide which port moves where
//! - [`directed`]: the agent's directions for workers and ports
//! - [`notes`]: sends the state that another process needs to continue
//! - [`session`]: one connection of an agent
//! - [`descriptors`]: the number of descriptors for ports
//! - [`retire`], [`replace`]: both ends of a live upgrade
//! - `busy_poll`: whether workers may wait awake
//! - `writer`: the threads that write best effort into taps for workers
//! - [`watchdog`]: signs of life for the service manager
//! - `liveness`: when the threads last made progress
//! - `priority`: priorities of threads
//! - [`event_log`]: logs the events of workers

pub mod arms;
mod busy_poll;
pub mod cpus;
pub mod descriptors;
pub mod directed;
pub mod event_log;
pub mod lane;
pub mod link;
mod liveness;
mod moved;
mod moves;
pub mod moving;
pub mod notes;
mod notices;
pub mod pace;
pub mod pairs;
pub mod placement;
pub mod placer;
pub mod ports;
mod priority;
pub mod rdma;
pub mod replace;
pub mod retire;
mod run;
pub mod session;
mod shares;
mod sharing;
mod status;
pub mod table;
mod trouble;
pub mod uplink;
pub mod uplinks;
mod wanted_pairs;
pub mod watchdog;
mod writer;

use crate::claims::Claims;
use crate::confine::{self};
use crate::eventfd;
use crate::fdb::Fdb;
use crate::hosts::{self, Clocks, Notices};
use crate::quota::{self, Ledger};
use crate::slots;
use crate::stats::Region;
use crate::virtio::sigbus;
use crate::worker::crossing::Peer;
use crate::worker::events::{Events, LogWaker};
use crate::worker::lending::Lending;
use crate::worker::{Hosts, Peers, Worker, WorkerHandle, mailbox};
use busy_poll::Machine;
use cpus::assigner::{self, CpuAssigner};
use cpus::{Cpus, Host};
use directed::Directed;
use priority::{prioritise, reprioritise, schedule};
pub use run::{enclose, run, seal, serve};
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::Thread;
use std::time::Duration;
use table::Table;
use tidegate_service::housekeeping;
use watchdog::Watchdog;

/// Time without a frame (s) after which the FDB forgets a learned MAC.
const LEARNED_FOR: u64 = 300;

/// The options of the switch.
#[derive(Clone, Debug)]
pub struct Options {
    /// Path of the control socket; unused if the service manager passes a socket (LISTEN_FDS).
    pub socket: PathBuf,
    /// Worker threads, 1 to 64.
    pub workers: usize,
    /// The CPUs of workers.
    pub cpus: Cpus,
    /// SCHED_FIFO priority of the workers, 1 to 99.
    pub realtime_priority: Option<u8>,
    /// User to switch to if the process was started as root.
    pub user: Option<confine::User>,
    /// Give up all rights before the first frame; see [`confine`].
    pub confined: bool,
    /// Take the place of the switch that runs at `socket`.
    pub replace: bool,
    /// Largest guest memory that one front end may share (bytes).
    pub guest_memory: u64,
    /// vNICs stay at their first workers.
    pub fixed: bool,
    /// RDMA devices to use, by name.
    pub rdma: Vec<String>,
}

/// The reason why the switch could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An invalid option.
    #[error("{0}")]
    Option(String),
    /// The control socket.
    #[error("control socket {path}: {source}")]
    Socket {
        /// Its path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The switch to be replaced.
    #[error(transparent)]
    Replace(#[from] replace::ReplaceError),
    /// A worker thread.
    #[error("cannot {action}: {source}")]
    Worker {
        /// The failed action.
        action: String,
        /// The cause.
        source: io::Error,
    },
    /// The process's rights.
    #[error(transparent)]
    Confine(#[from] confine::Error),
}

/// The state that the threads of the switch share.
pub struct Switch {
    /// Counters.
    pub region: Region,
    /// The workers.
    pub workers: Arc<[WorkerHandle]>,
    /// Which port a MAC lives behind.
    pub fdb: Arc<Fdb>,
    /// The ports.
    pub table: Mutex<Table>,
    /// The thread that gives workers CPUs of their own, and counts CPUs.
    pub cpus: OnceLock<Thread>,
    /// Locked while a port moves, and during a search for all frames of a port.
    pub moving: Mutex<()>,
    /// Subscribers to the state that another process needs to continue.
    pub subscribers: Arc<notes::Subscribers>,
    /// The control socket, passed to a successor.
    pub control: OnceLock<OwnedFd>,
    /// Liveness for the service manager, if it asked for it.
    pub watchdog: OnceLock<Watchdog>,
    /// New ports do not take frames yet: receivers' ports may be missing.
    pub new_ports_wait: AtomicBool,
    /// Start of the process (ns since the epoch).
    pub started: u64,
    /// Limits on front ends' use of the process's resources.
    pub ledger: Arc<Ledger>,
    /// The offsets to other hosts' clocks.
    pub clocks: Arc<Clocks>,
    /// The thread of notices between hosts.
    pub notices: Notices,
    /// The agent's directions.
    pub directed: Directed,
    /// RDMA devices, and the thread that makes queue pairs.
    pub rdma: rdma::Rdma,
    /// Whether workers may wait awake.
    machine: Machine,
}

impl Switch {
    /// Starts workers, the first ones on `cpus`, with the default memory limit; no ports yet.
    pub fn start(workers: usize, cpus: &[usize], realtime_priority: Option<u8>) -> Result<Arc<Self>, Error> {
        let cpus = if cpus.is_empty() { Cpus::None } else { Cpus::List(cpus.to_vec()) };
        let host = host_cpus()?;
        Self::start_with(
            workers,
            (cpus, host),
            realtime_priority,
            quota::PORT_MEMORY,
            rdma::Devices::default(),
        )
    }

    /// Starts workers; no ports yet. `guest_memory`: limit of one front end (bytes).
    pub fn start_with(
        workers: usize,
        (cpus, host): (Cpus, Host),
        realtime_priority: Option<u8>,
        guest_memory: u64,
        rdma: rdma::Devices,
    ) -> Result<Arc<Self>, Error> {
        if !(1..=crate::capacity::WORKERS).contains(&workers) {
            return Err(Error::Option(format!("{workers} workers: expected 1 to 64")));
        }
        let fail = worker_error;
        eventfd::prepare();
        sigbus::install().map_err(fail("handle guest memory that is taken away (SIGBUS)"))?;
        // Before any thread has a CPU.
        let machine = Machine::read(realtime_priority.is_some());
        let region = Region::create().map_err(fail("make the statistics region"))?;
        region.layout().workers_used.set(workers as u64);
        let fdb = Arc::new(Fdb::new());
        let claims = Arc::<Claims>::default();
        let (troubles, troubled) = channel();
        let (handles, inboxes): (Vec<_>, Vec<_>) = (0..workers)
            .map(|_| mailbox())
            .collect::<io::Result<Vec<_>>>()
            .map_err(fail("make a worker's mailbox"))?
            .into_iter()
            .unzip();
        let (mut meshes, lending) = (mesh(&handles), Arc::new(Lending::default()));
        let waker = Arc::new(LogWaker::default());
        let mut consumers = Vec::new();
        let (clocks, mut late) = (Arc::<Clocks>::default(), Vec::new());
        for (id, inbox) in inboxes.into_iter().enumerate() {
            let stats = &region.layout().workers[id];
            let (events, consumer) = Events::new(waker.clone());
            consumers.push(consumer);
            let (fdb, claims, lending) = (fdb.clone(), claims.clone(), lending.clone());
            let (mesh, troubles) = (meshes.remove(0), troubles.clone());
            let mut worker =
                Worker::new(id as u16, inbox, fdb, claims, lending, mesh, stats, troubles, events)
                    .map_err(fail("make a worker"))?;
            let hand = writer::spawn(id as u16, &handles[id], realtime_priority)
                .map_err(fail("start the thread that writes into taps"))?;
            worker.set_tap_writer(hand);
            let (late_in, late_out) = hosts::late::queue();
            worker.set_hosts(Hosts::new(clocks.clone(), late_in));
            late.push(late_out);
            std::thread::Builder::new()
                .name(format!("worker-{id}"))
                .spawn(move || {
                    prioritise(&mut worker, realtime_priority);
                    worker.run()
                })
                .map_err(fail("start a worker thread"))?;
        }
        if realtime_priority.is_some() {
            // Only workers have the priority; this thread may have it, too.
            schedule(libc::SCHED_OTHER, 0)
                .map_err(io::Error::from)
                .map_err(fail("give up the real-time priority that only workers need"))?;
        }
        let notices = Notices::new(clocks.clone()).map_err(fail("make the thread of notices"))?;
        late.into_iter().for_each(|queue| notices.attach(queue));
        let now = clock_gettime(ClockId::Realtime);
        let switch = Arc::new(Self {
            region,
            workers: handles.into(),
            fdb,
            table: Mutex::new(Table::new()),
            cpus: OnceLock::new(),
            moving: Mutex::default(),
            subscribers: Arc::default(),
            control: OnceLock::new(),
            watchdog: OnceLock::new(),
            new_ports_wait: AtomicBool::new(false),
            started: now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64,
            ledger: Ledger::new(guest_memory, descriptors::for_ports(descriptors::raise())),
            clocks,
            notices,
            directed: Directed::new(cpus == Cpus::Auto),
            rdma: rdma::Rdma::new(rdma),
            machine,
        });
        switch.set_busy_poll(&tidegate_contract::Host::default());
        let mut assigner = CpuAssigner::new(cpus, host, &switch.workers);
        // The CPUs of a list are in force from here on.
        assigner.check(&switch.workers, &vec![false; workers], &BTreeMap::new());
        let thread =
            assigner::spawn(&switch, assigner).map_err(fail("start the thread that assigns CPUs"))?;
        switch.cpus.get_or_init(|| thread);
        switch.start_notices().map_err(fail("start the thread of notices"))?;
        rdma::spawn(&switch).map_err(fail("start the thread that makes queue pairs"))?;
        let warden = switch.clone();
        let watch = move || {
            while let Ok((index, trouble)) = troubled.recv() {
                housekeeping::follow();
                warden.handle_trouble(index, trouble);
            }
        };
        std::thread::Builder::new()
            .name("warden".into())
            .spawn(watch)
            .map_err(fail("start the thread that handles faults of ports"))?;
        let ager = switch.clone();
        let age = move || {
            let mut leaked = 0;
            loop {
                std::thread::sleep(Duration::from_secs(10));
                housekeeping::follow();
                let now = crate::clock::clock() / 1_000_000_000;
                ager.fdb.sweep(now.saturating_sub(LEARNED_FOR) as u32);
                for worker in ager.workers.iter() {
                    // A few at a time: the worker allocates replacements.
                    let unused = Vec::with_capacity(16);
                    drop(worker.call(move |worker| worker.take_unused(unused)));
                }
                if slots::leaked() > leaked {
                    leaked = slots::leaked();
                    tracing::error!(frames = leaked, "memory of frames was lost: a bug, please report it");
                }
            }
        };
        std::thread::Builder::new()
            .name("ager".into())
            .spawn(age)
            .map_err(fail("start the thread that forgets old addresses"))?;
        event_log::spawn(switch.clone(), waker, consumers).map_err(fail("start the thread that logs"))?;
        // Only now: a thread inherits the priority of the first thread, which had a worker's.
        tidegate_log::release();
        Ok(switch)
    }
}

fn worker_error(action: &str) -> impl FnOnce(io::Error) -> Error {
    let action = action.to_owned();
    move |source| Error::Worker { action, source }
}

/// Returns rings between each pair of workers.
fn mesh(handles: &[WorkerHandle]) -> Vec<Peers> {
    let n = handles.len();
    let mut mesh: Vec<Peers> = (0..n).map(|_| (0..n).map(|_| None).collect()).collect();
    for a in 0..n {
        for b in a + 1..n {
            let (end_a, end_b) = Peer::pair();
            mesh[a][b] = Some((end_a, handles[b].bell().clone()));
            mesh[b][a] = Some((end_b, handles[a].bell().clone()));
        }
    }
    mesh
}

fn host_cpus() -> Result<Host, Error> {
    Host::read().map_err(|error| Error::Option(format!("cannot read the CPUs of this process: {error}")))
}

#[cfg(test)]
mod tests {
    use super::priority::short_slice;
    use super::run::bind;

    use std::path::Path;

    #[test]
    fn a_control_socket_in_no_folder_is_refused_with_what_to_do() {
        let error = bind(Path::new("/nonexistent/control.sock")).unwrap_err().to_string();
        assert!(
            error.contains("/nonexistent/control.sock: the socket's folder does not exist; create it, or"),
            "{error}"
        );
    }

    #[test]
    fn a_short_slice_leaves_the_nice_value_as_it_was() {
        let thread = std::thread::spawn(|| {
            rustix::process::setpriority_process(None, 5).unwrap();
            short_slice();
            rustix::process::getpriority_process(None).unwrap()
        });
        assert_eq!(thread.join().unwrap(), 5);
    }
}
