//! Starts a switch from its options.

use super::priority::schedule;
use super::rdma::Loaded;
use super::{Error, Options, Switch, host_cpus, worker_error};
use crate::confine::{self, Calls, DeviceFiles, Enclosed, Files};
use crate::eventfd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tidegate_service::Notifier;
use tidegate_service::housekeeping;

/// Runs the switch until SIGTERM or SIGINT.
pub fn run(options: Options) -> Result<(), Error> {
    // Steps that need rights come first.
    let mut manager = service_manager(&options)?;
    let host = host_cpus()?;
    options.cpus.check(&host).map_err(Error::Option)?;
    let (predecessor, listener) = match (options.replace, inherited_socket()) {
        (true, _) => (Some(super::replace::find(&options.socket, manager.is_some())?), None),
        (false, Some(listener)) => (None, Some(listener)),
        (false, None) => (None, Some(bind(&options.socket)?)),
    };
    let loaded = Loaded::new(&options.rdma);
    let enclosed = enclose(&options)?;
    // As the user, and with the rights, that will use them.
    let rdma = loaded.open();
    let (cpus, priority) = ((options.cpus, host), options.realtime_priority);
    let switch = Switch::start_with(options.workers, cpus, priority, options.guest_memory, rdma)?;
    let successor = predecessor.map(|client| super::replace::prepare(&switch, client, manager.as_mut()));
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
        Err(error) => {
            tracing::warn!(%error, "another process cannot take over from this switch while it runs")
        }
    }
    if let Some(manager) = manager {
        super::watchdog::start(&switch, manager, interval).map_err(worker_error("start the watchdog"))?;
    }
    if !options.fixed {
        super::placer::spawn(&switch)
            .map_err(worker_error("start the thread that places vNICs on workers"))?;
    }
    tracing::info!(workers = options.workers, socket = %options.socket.display(), "switch is up");
    serve(&switch, &listener);
    Ok(())
}

/// Returns the service manager, if one started this process.
///
/// # Errors
/// With `replace`: the manager cannot be notified. Otherwise that is only a warning.
pub(super) fn service_manager(options: &Options) -> Result<Option<Notifier>, Error> {
    match Notifier::from_environment() {
        Ok(manager) => Ok(manager),
        Err(error) if options.replace => Err(super::replace::ReplaceError::Manager(error).into()),
        Err(error) => {
            tracing::warn!(%error, "cannot tell the service manager (NOTIFY_SOCKET) that the switch is up");
            Ok(None)
        }
    }
}

/// Gives up the rights of a process with one thread, if `options` ask for it. Resources that need rights must
/// be open by now.
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
    // Threads inherit the priority, and keep it without the right to set it. A worker without it logs that.
    if let Some(priority) = options.realtime_priority {
        let _ = schedule(libc::SCHED_FIFO, priority);
    }
    let files = match &options.rdma[..] {
        [] => Files::None,
        names => Files::OfRdma(DeviceFiles::find(Path::new("/"), names)),
    };
    Ok(Some(confine::enclose(options.user.as_ref(), files)?))
}

/// Limits the process to the system calls that carrying frames needs.
///
/// # Errors
/// The kernel refuses the limit.
pub fn seal(enclosed: Option<Enclosed>, switch: &Switch) -> Result<(), Error> {
    // A worker that answers has its CPU and priority, which it may not set from here on.
    switch.workers.iter().for_each(|worker| worker.call(|_| ()));
    let calls = if switch.rdma.devices.is_any_open() { Calls::WithVerbs } else { Calls::Plain };
    enclosed.map_or(Ok(()), |enclosed| Ok(enclosed.seal(&switch.region.layout().denied_calls, calls)?))
}

/// Accepts the agent's connections for ever.
pub fn serve(switch: &Arc<Switch>, listener: &UnixListener) {
    loop {
        let watchdog = switch.watchdog.get();
        let timeout = watchdog.and_then(|it| Timespec::try_from(it.pause()).ok());
        let ready = poll(&mut [PollFd::new(listener, PollFlags::IN)], timeout.as_ref());
        housekeeping::follow();
        if let Some(watchdog) = watchdog {
            watchdog.control_thread_turned();
        }
        // A connection waits and no other thread accepts, so this does not block.
        let stream = match ready {
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => listener.accept(),
            Err(error) => Err(error.into()),
        };
        match stream {
            Ok((stream, _)) => super::session::spawn(switch.clone(), stream),
            Err(error) => {
                tracing::warn!(%error, "control socket: accept failed");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

/// Returns the socket of the service manager (sd_listen_fds(3)): the first descriptor after stderr.
pub(super) fn inherited_socket() -> Option<UnixListener> {
    let pid: u32 = std::env::var("LISTEN_PID").ok()?.parse().ok()?;
    let count: u32 = std::env::var("LISTEN_FDS").ok()?.parse().ok()?;
    if pid != std::process::id() || count == 0 {
        return None;
    }
    // SAFETY: the service manager opened descriptor 3 for this process, and no other code uses it.
    Some(unsafe { OwnedFd::from_raw_fd(3) }.into())
}

/// Binds the control socket; replaces a socket file on which no process listens.
pub(super) fn bind(path: &Path) -> Result<UnixListener, Error> {
    let fail = |source| Error::Socket { path: path.into(), source };
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            if std::os::unix::net::UnixStream::connect(path).is_ok() {
                let taken =
                    "another switch listens on this socket; stop that switch, or choose another --socket";
                return Err(fail(io::Error::new(io::ErrorKind::AddrInUse, taken)));
            }
            std::fs::remove_file(path).map_err(fail)?;
            UnixListener::bind(path).map_err(fail)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let missing = "the socket's folder does not exist; create it, or choose another --socket";
            Err(fail(io::Error::new(io::ErrorKind::NotFound, missing)))
        }
        other => other.map_err(fail),
    }
}
