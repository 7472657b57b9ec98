//! The switch process: workers, the table of ports, the control socket.
//!
//! ```text
//!  agent ─ control socket ─▶ session ─▶ table (ports, segments, contracts)
//!                                         │ calls
//!  front ends ─ sockets ─▶ port threads ──┴────▶ workers
//! ```
//!
//! - [`table`]: the ports and what every worker is to know of them
//! - `shares`: the addresses that vNICs share, and who has them
//! - [`ports`]: making, changing and removing them
//! - `status`: how they are
//! - `trouble`: what is wrong with them
//! - [`link`]: between a port's vhost-user connection and its worker
//! - [`cpus`]: a CPU of its own for each worker with deadlines to keep
//! - [`pace`]: how much of the workers' time a front end's messages may take
//! - [`moving`]: ports go to other workers
//! - [`placement`], [`placer`]: which go where
//! - [`keep`]: what it takes for another process to go on in this one's place
//! - [`session`]: one connection of an agent
//! - [`descriptors`]: how many there are for ports
//! - [`retire`], [`replace`]: both ends of a live upgrade
//! - `busy_poll`: whether workers may wait awake
//! - `writer`: the threads that write best effort into taps for workers
//! - [`watchdog`]: what the service manager is told while all turns
//! - [`teller`]: what workers have to say, in the log

mod busy_poll;
pub mod cpus;
pub mod descriptors;
pub mod keep;
pub mod link;
pub mod moving;
pub mod pace;
pub mod placement;
pub mod placer;
pub mod ports;
pub mod replace;
pub mod retire;
pub mod session;
mod shares;
mod status;
pub mod table;
pub mod teller;
mod trouble;
pub mod watchdog;
mod writer;

use crate::claims::Claims;
use crate::confine::{self, Enclosed};
use crate::eventfd;
use crate::fdb::Fdb;
use crate::port::slots;
use crate::quota::{self, Ledger};
use crate::stats::Region;
use crate::virtio::sigbus;
use crate::worker::crossing::Peer;
use crate::worker::events::{Ear, Event, Events};
use crate::worker::lending::Lending;
use crate::worker::{Peers, Worker, WorkerHandle, mailbox};
use busy_poll::Machine;
use cpus::keeper::{self, Keeper};
use cpus::{Cpus, Host};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::Thread;
use std::time::Duration;
use table::Table;
use tidegate_service::Notifier;
use tidegate_service::housekeeping;
use watchdog::Watchdog;

/// A learned MAC that is not seen for this long is forgotten.
const LEARNED_FOR: u64 = 300;

/// How the switch is to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Control socket to make; not used where the service manager passes one (LISTEN_FDS).
    pub socket: PathBuf,
    /// Worker threads, 1 to 64.
    pub workers: usize,
    /// Which CPUs workers get.
    pub cpus: Cpus,
    /// SCHED_FIFO priority of the workers, 1 to 99.
    pub realtime_priority: Option<u8>,
    /// User to become, where the process was started as root.
    pub user: Option<confine::User>,
    /// Give up all rights before the first frame; see [`confine`].
    pub confined: bool,
    /// Take the place of the switch that runs at `socket`.
    pub replace: bool,
    /// Most memory that one front end may share, bytes.
    pub guest_memory: u64,
    /// vNICs stay at the workers that they were made at.
    pub fixed: bool,
}

/// Why the switch could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An option that makes no sense.
    #[error("{0}")]
    Option(String),
    /// The control socket.
    #[error("control socket {path}: {source}")]
    Socket {
        /// Where it was to be.
        path: PathBuf,
        /// What happened.
        source: io::Error,
    },
    /// The switch that is to be replaced.
    #[error(transparent)]
    Replace(#[from] replace::ReplaceError),
    /// A worker thread.
    #[error("cannot {what}: {source}")]
    Worker {
        /// What was tried.
        what: String,
        /// What happened.
        source: io::Error,
    },
    /// Its rights.
    #[error(transparent)]
    Confine(#[from] confine::Error),
}

/// What the threads of the switch share.
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
    /// Locked while a port moves, and while every frame of a port is looked for.
    pub moving: Mutex<()>,
    /// Those who keep what it takes to go on without this process.
    pub subscribers: Arc<keep::Subscribers>,
    /// The control socket, for the process that takes our place.
    pub control: OnceLock<OwnedFd>,
    /// What the service manager is told as long as all threads turn, where it wants to know.
    pub watchdog: OnceLock<Watchdog>,
    /// Ports that are made take no frame yet: those that the frames are for may not be there.
    pub holds: AtomicBool,
    /// When the process started, ns since the epoch.
    pub started: u64,
    /// What front ends may take of what the process has.
    pub ledger: Arc<Ledger>,
    /// Whether workers may wait awake.
    machine: Machine,
}

impl Switch {
    /// Starts workers, the first of them on these `cpus`; no ports yet. Front ends may share as much memory as is usual.
    pub fn start(workers: usize, cpus: &[usize], realtime_priority: Option<u8>) -> Result<Arc<Self>, Error> {
        let cpus = if cpus.is_empty() { Cpus::None } else { Cpus::List(cpus.to_vec()) };
        let host = host_cpus()?;
        Self::start_with(workers, (cpus, host), realtime_priority, quota::PORT_MEMORY)
    }

    /// Starts workers; no ports yet. A front end may share `guest_memory` bytes.
    pub fn start_with(
        workers: usize,
        (cpus, host): (Cpus, Host),
        realtime_priority: Option<u8>,
        guest_memory: u64,
    ) -> Result<Arc<Self>, Error> {
        if !(1..=crate::stats::layout::WORKERS).contains(&workers) {
            return Err(Error::Option(format!("{workers} workers: expected 1 to 64")));
        }
        let fail = worker_error;
        eventfd::prepare();
        sigbus::install().map_err(fail("guard against memory that is taken away"))?;
        // Before a thread is pinned.
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
        let ear = Arc::new(Ear::default());
        let mut told = Vec::new();
        for (id, inbox) in inboxes.into_iter().enumerate() {
            let stats = &region.layout().workers[id];
            let (events, tell) = Events::new(ear.clone());
            told.push(tell);
            let (fdb, claims, lending) = (fdb.clone(), claims.clone(), lending.clone());
            let (mesh, troubles) = (meshes.remove(0), troubles.clone());
            let mut worker =
                Worker::new(id as u16, inbox, fdb, claims, lending, mesh, stats, troubles, events)
                    .map_err(fail("make a worker"))?;
            let hand = writer::spawn(id as u16, &handles[id], realtime_priority)
                .map_err(fail("start the thread that writes into taps"))?;
            worker.set_hand(hand);
            std::thread::Builder::new()
                .name(format!("worker-{id}"))
                .spawn(move || {
                    prioritise(&mut worker, realtime_priority);
                    worker.run()
                })
                .map_err(fail("start a worker thread"))?;
        }
        if realtime_priority.is_some() {
            // That is for the workers: other threads, and this one where it has it, are ordinary.
            schedule(libc::SCHED_OTHER, 0)
                .map_err(io::Error::from)
                .map_err(fail("leave real-time priority to the workers"))?;
        }
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
            holds: AtomicBool::new(false),
            started: now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64,
            ledger: Ledger::new(guest_memory, descriptors::for_ports(descriptors::raise())),
            machine,
        });
        switch.set_busy_poll(&tidegate_contract::Host::default());
        let mut keeper = Keeper::new(cpus, host, &switch.workers);
        // Those of a list are in force from here on.
        keeper.look(&switch.workers, &vec![false; workers]);
        let thread = keeper::spawn(&switch, keeper).map_err(fail("start the keeper of CPUs"))?;
        switch.cpus.get_or_init(|| thread);
        let warden = switch.clone();
        let watch = move || {
            while let Ok((index, trouble)) = troubled.recv() {
                housekeeping::follow();
                warden.troubled(index, trouble);
            }
        };
        std::thread::Builder::new().name("warden".into()).spawn(watch).map_err(fail("start the warden"))?;
        let ager = switch.clone();
        let age = move || {
            let mut leaked = 0;
            loop {
                std::thread::sleep(Duration::from_secs(10));
                housekeeping::follow();
                let now = crate::worker::clock() / 1_000_000_000;
                ager.fdb.sweep(now.saturating_sub(LEARNED_FOR) as u32);
                for worker in ager.workers.iter() {
                    // A few at a time: a worker makes new ones in their place.
                    let unused = Vec::with_capacity(16);
                    drop(worker.call(move |worker| worker.take_unused(unused)));
                }
                if slots::leaked() > leaked {
                    leaked = slots::leaked();
                    tracing::error!(frames = leaked, "memory of frames was lost: a bug, please report it");
                }
            }
        };
        std::thread::Builder::new().name("ager".into()).spawn(age).map_err(fail("start the ager"))?;
        teller::spawn(switch.clone(), ear, told).map_err(fail("start the teller"))?;
        // Not before: a thread inherits what the first one has, and that has had a worker's priority.
        tidegate_log::release();
        Ok(switch)
    }
}

/// Runs the switch until it is told to end (SIGTERM, SIGINT).
pub fn run(options: Options) -> Result<(), Error> {
    // Whatever takes a right is done first.
    let mut manager = service_manager(&options)?;
    let host = host_cpus()?;
    options.cpus.check(&host).map_err(Error::Option)?;
    let (predecessor, listener) = match (options.replace, inherited_socket()) {
        (true, _) => (Some(replace::find(&options.socket, manager.is_some())?), None),
        (false, Some(listener)) => (None, Some(listener)),
        (false, None) => (None, Some(bind(&options.socket)?)),
    };
    let enclosed = enclose(&options)?;
    let (cpus, priority) = ((options.cpus, host), options.realtime_priority);
    let switch = Switch::start_with(options.workers, cpus, priority, options.guest_memory)?;
    let successor = predecessor.map(|client| replace::prepare(&switch, client, manager.as_mut()));
    let successor = successor.transpose()?;
    seal(enclosed, &switch)?;
    let (listener, interval) = match (successor, listener) {
        (Some(successor), _) => {
            let interval = successor.watchdog();
            (successor.take_over()?, interval)
        }
        (None, Some(listener)) => (listener, tidegate_service::watchdog()),
        (None, None) => return Err(Error::Option("no control socket".into())),
    };
    match listener.try_clone() {
        Ok(control) => drop(switch.control.set(control.into())),
        Err(error) => tracing::warn!(%error, "this switch cannot be replaced while it runs"),
    }
    if let Some(manager) = manager {
        watchdog::start(&switch, manager, interval).map_err(worker_error("start the watchdog"))?;
    }
    if !options.fixed {
        placer::spawn(&switch).map_err(worker_error("start the placer"))?;
    }
    tracing::info!(workers = options.workers, socket = %options.socket.display(), "switch is up");
    serve(&switch, &listener);
    Ok(())
}

/// The service manager, where one started this process.
///
/// # Errors
/// It cannot be told of a switch that takes another one's place. A switch that starts runs without.
fn service_manager(options: &Options) -> Result<Option<Notifier>, Error> {
    match Notifier::from_environment() {
        Ok(manager) => Ok(manager),
        Err(error) if options.replace => Err(replace::ReplaceError::Manager(error).into()),
        Err(error) => {
            tracing::warn!(%error, "the service manager (NOTIFY_SOCKET) cannot be told that the switch is up");
            Ok(None)
        }
    }
}

/// Gives up the rights of a process that has one thread, where `options` say so. Whatever takes one,
/// such as the control socket, must be open by now.
///
/// # Errors
/// A right cannot be given up.
pub fn enclose(options: &Options) -> Result<Option<Enclosed>, Error> {
    eventfd::prepare();
    if !options.confined {
        tracing::warn!(
            "not confined (--no-confinement): an attacker who takes the switch over has all its rights"
        );
        return Ok(None);
    }
    // Threads inherit it, and keep it where the right to take it is gone. A worker without says so.
    if let Some(priority) = options.realtime_priority {
        let _ = schedule(libc::SCHED_FIFO, priority);
    }
    Ok(Some(confine::enclose(options.user.as_ref())?))
}

/// Limits what is left to what carrying frames takes.
///
/// # Errors
/// System calls cannot be limited.
pub fn seal(enclosed: Option<Enclosed>, switch: &Switch) -> Result<(), Error> {
    // A worker that answers has its CPU and priority, which it may not ask for any more.
    switch.workers.iter().for_each(|worker| worker.call(|_| ()));
    enclosed.map_or(Ok(()), |enclosed| Ok(enclosed.seal(&switch.region.layout().denied_calls)?))
}

/// Takes the agent's connections, for ever.
pub fn serve(switch: &Arc<Switch>, listener: &UnixListener) {
    loop {
        let watchdog = switch.watchdog.get();
        let timeout = watchdog.and_then(|it| Timespec::try_from(it.pause()).ok());
        let ready = poll(&mut [PollFd::new(listener, PollFlags::IN)], timeout.as_ref());
        housekeeping::follow();
        if let Some(watchdog) = watchdog {
            watchdog.control_thread_turned();
        }
        // A connection is there, and no other thread accepts: this does not wait.
        let stream = match ready {
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => listener.accept(),
            Err(error) => Err(error.into()),
        };
        match stream {
            Ok((stream, _)) => session::spawn(switch.clone(), stream),
            Err(error) => {
                tracing::warn!(%error, "control socket: accept failed");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

/// A socket from the service manager (sd_listen_fds(3)): the first descriptor after stderr.
fn inherited_socket() -> Option<UnixListener> {
    let pid: u32 = std::env::var("LISTEN_PID").ok()?.parse().ok()?;
    let count: u32 = std::env::var("LISTEN_FDS").ok()?.parse().ok()?;
    if pid != std::process::id() || count == 0 {
        return None;
    }
    // SAFETY: the service manager opened descriptor 3 for this process and nobody else uses it.
    Some(unsafe { OwnedFd::from_raw_fd(3) }.into())
}

/// Binds the control socket; a socket file on which no process listens any more is replaced.
fn bind(path: &Path) -> Result<UnixListener, Error> {
    let fail = |source| Error::Socket { path: path.into(), source };
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            if std::os::unix::net::UnixStream::connect(path).is_ok() {
                let taken = "another switch is listening there; stop it, or choose another --socket";
                return Err(fail(io::Error::new(io::ErrorKind::AddrInUse, taken)));
            }
            std::fs::remove_file(path).map_err(fail)?;
            UnixListener::bind(path).map_err(fail)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let missing = "its folder does not exist; make it, or choose another --socket";
            Err(fail(io::Error::new(io::ErrorKind::NotFound, missing)))
        }
        other => other.map_err(fail),
    }
}

fn worker_error(what: &str) -> impl FnOnce(io::Error) -> Error {
    let what = what.to_owned();
    move |source| Error::Worker { what, source }
}

/// Rings between each pair of workers.
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

/// What there is of CPUs.
fn host_cpus() -> Result<Host, Error> {
    Host::look().map_err(|error| Error::Option(format!("cannot tell the CPUs of this process: {error}")))
}

/// Gives the calling thread, which is `worker`'s, its priority; it says so where that fails.
fn prioritise(worker: &mut Worker, realtime_priority: Option<u8>) {
    if let Some(priority) = realtime_priority {
        if !has_realtime_priority(priority)
            && let Err(error) = schedule(libc::SCHED_FIFO, priority)
        {
            worker.note(Event::NotRealTime { priority, error });
        }
    } else {
        short_slice();
    }
}

/// Puts the calling thread under `policy` (sched(7)).
fn schedule(policy: i32, priority: u8) -> rustix::io::Result<()> {
    let param = libc::sched_param { sched_priority: i32::from(priority) };
    // SAFETY: a plain call on the calling thread with a valid parameter.
    match unsafe { libc::sched_setscheduler(0, policy, &param) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}

/// Gives the calling thread another priority under the policy that it has: a thread with a service manager's may lower it.
fn reprioritise(priority: u8) -> rustix::io::Result<()> {
    let param = libc::sched_param { sched_priority: i32::from(priority) };
    // SAFETY: a plain call on the calling thread with a valid parameter.
    match unsafe { libc::sched_setparam(0, &raw const param) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}

/// Whether the calling thread has it already: from a service manager, which gives no right to take it along.
fn has_realtime_priority(priority: u8) -> bool {
    let mut param = libc::sched_param { sched_priority: 0 };
    // SAFETY: plain calls on the calling thread; the parameter is live.
    let policy = unsafe { libc::sched_getscheduler(0) };
    // SAFETY: as above.
    let known = unsafe { libc::sched_getparam(0, &raw mut param) } == 0;
    known && policy == libc::SCHED_FIFO && param.sched_priority == i32::from(priority)
}

/// Asks the fair scheduler for a short slice (Linux 6.12): a worker that wakes
/// up is let in earlier. Unprivileged, and harmless where it is not known.
fn short_slice() {
    #[repr(C)]
    #[derive(Default)]
    struct SchedAttr {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    // The call sets all attributes: the nice value that the switch was started with has to stay.
    let nice = rustix::process::getpriority_process(None).unwrap_or(0);
    let attr =
        SchedAttr { size: size_of::<SchedAttr>() as u32, nice, runtime: 100_000, ..SchedAttr::default() };
    // SAFETY: sched_setattr reads `size` bytes of the attribute and changes this thread only.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_socket_in_no_folder_is_refused_with_what_to_do() {
        let error = bind(Path::new("/nonexistent/control.sock")).unwrap_err().to_string();
        assert!(
            error.contains("/nonexistent/control.sock: its folder does not exist; make it, or"),
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
