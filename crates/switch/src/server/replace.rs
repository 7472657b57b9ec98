//! Takes the place of a running switch.
//!
//! ```text
//!  running switch ── ports, connections ──▶ prepared here: memory mapped, queues not started
//!         │                                                  │ (when all is mapped)
//!      Retire: nothing in flight ── counters, tokens, addresses, control socket
//!         │                                                  │
//!      Release: it ends ──────────────────▶ all queues start ──▶ frames are taken: the gap is over
//! ```
//!
//! Until its release, the running switch goes on by itself if this process fails.

use super::Switch;
use super::ports::Connect;
use crate::clock::clock;
use crate::control::client::{Client, SwitchError};
use crate::control::handover::{Connected, Handover};
use crate::control::message::{PortStatus, Retired};
use crate::control::notes::Notes;
use crate::vhost_user::gate::{Busy, Gate};
use crate::vhost_user::listener::Restored;
use crate::vhost_user::saved::Descriptors;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};
use tidegate_contract::{Attach, Vnic};
use tidegate_evidence::Connection;
use tidegate_service::foreign::{Budget, Foreign};
use tidegate_service::{Notifier, service_of};

/// Longest wait for the running switch to report its connections.
const PATIENCE: Duration = Duration::from_secs(2);

/// Longest wait for the mapping of guests' memory while the running switch serves; the rest follows after its
/// end. An upgrade must not wait for one front end's file system.
const MAP: Duration = Duration::from_secs(10);

/// Most notes processed at once: more than all ports of a switch send.
const AT_ONCE: usize = 100_000;

/// Longest wait for queues to start here; then frames flow anyway.
const START: Duration = Duration::from_millis(500);

/// The reason why the running switch goes on.
#[derive(Debug, thiserror::Error)]
pub enum ReplaceError {
    /// The running switch cannot be asked, or refused.
    #[error(transparent)]
    Switch(#[from] SwitchError),
    /// This process cannot create a port.
    #[error("{0}; the running switch continues")]
    Port(String),
    /// A service manager would restart the running switch, its main process.
    #[error(
        "the running switch (pid {pid}) is the main process of {service}, and this process is not part of \
         that service: use `systemctl reload {service}`; the running switch continues"
    )]
    Service {
        /// Its process.
        pid: u32,
        /// The unit.
        service: String,
    },
    /// The service manager cannot be reached.
    #[error(
        "cannot tell the service manager (NOTIFY_SOCKET) which process takes over: {0}; the running switch \
         continues"
    )]
    Manager(io::Error),
    /// The service manager would not know the new main process.
    #[error(
        "the running switch (pid {pid}) is the main process of {service}, and this process cannot tell the \
         service manager which process takes over: set NotifyAccess=all in the unit; the running switch \
         continues"
    )]
    NoNotify {
        /// Its process.
        pid: u32,
        /// The unit.
        service: String,
    },
    /// Unreadable notes of the running switch.
    #[error("the running switch's notes about its connections: {0}; the running switch continues")]
    Notes(#[from] io::Error),
}

/// Connects to the running switch at `path`. `manager`: the service manager can be notified.
///
/// # Errors
/// No switch runs, or a service manager would restart it.
pub fn find(path: &Path, manager: bool) -> Result<Client, ReplaceError> {
    let mut client = Client::connect(path)?;
    let pid = client.hello()?.0.pid;
    match service_of(pid) {
        Some(service) if Some(&service) != service_of(std::process::id()).as_ref() => {
            Err(ReplaceError::Service { pid, service })
        }
        Some(service) if !manager => Err(ReplaceError::NoNotify { pid, service }),
        _ => Ok(client),
    }
}

/// The notes of the running switch so far. An intruder may control that switch.
struct ReceivedNotes {
    handover: Handover,
    budget: Arc<Budget>,
}

impl ReceivedNotes {
    fn empty() -> Self {
        Self { handover: Handover::default(), budget: Budget::half_of_all() }
    }

    /// Whether the notes of a vNIC with a front end, or of a tap, are complete.
    fn is_complete(&self, vnic: &Vnic) -> bool {
        match vnic.attach {
            Attach::Tap { .. } => self.handover.links.contains_key(&vnic.name),
            _ => self.handover.connections.contains_key(&vnic.name),
        }
    }

    /// Returns the number of messages at which the known state of a connection holds.
    fn messages(&self, vnic: &str) -> Option<u64> {
        Some(self.handover.connections.get(vnic)?.as_ref()?.messages)
    }

    /// Processes all received notes; an endless stream is an error.
    fn receive(&mut self, notes: &mut Notes) -> Result<(), ReplaceError> {
        for _ in 0..AT_ONCE {
            match notes.try_next() {
                Ok(Some((note, descriptors))) => {
                    let foreign = descriptors.into_iter().map(|fd| Foreign::new(fd, &self.budget)).collect();
                    if let Err(error) = self.handover.note(note, foreign) {
                        tracing::warn!(%error, "the running switch sent an invalid note");
                    }
                }
                Ok(None) => return Err(io::Error::other("the running switch ended").into()),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e.into()),
            }
            if self.budget.is_over() {
                return Err(
                    io::Error::other("the notes have more descriptors than this process may have").into()
                );
            }
        }
        Err(io::Error::other(format!("more than {AT_ONCE} notes at once")).into())
    }

    /// Returns a port's connection, with duplicates of the received descriptors.
    fn connect(&self, port: &PortStatus, gate: Option<Gate>) -> io::Result<Connect> {
        let vnic = &port.vnic.name;
        let duplicate = |fd: &Foreign| fd.as_fd().try_clone_to_owned();
        let links = self.handover.links.get(vnic).map_or(&[][..], Vec::as_slice);
        let mut links = links.iter().map(duplicate).collect::<io::Result<Vec<_>>>()?;
        if matches!(port.vnic.attach, Attach::Tap { .. }) {
            return Ok(Connect::Tap(links));
        }
        let listener = links.pop();
        let Some(Some(Connected { saved, descriptors, .. })) = self.handover.connections.get(vnic) else {
            return Ok(match listener {
                Some(listener) => Connect::Listener(listener),
                // Its connection has ended: the agent dials once more.
                None => Connect::NoFrontEnd,
            });
        };
        let descriptors = descriptors.iter().map(|(number, fd)| Ok((*number, duplicate(fd)?)));
        let descriptors = descriptors.collect::<io::Result<Descriptors>>()?;
        Ok(Connect::Restored(Box::new(Restored { listener, saved: saved.clone(), descriptors, gate })))
    }
}

/// A port that waits for the running switch to end.
struct PreparedPort {
    port: PortStatus,
    /// Number of messages at which the prepared state holds.
    messages: u64,
    gate: SyncSender<Busy>,
}

/// The gates that hold queues back.
#[derive(Default)]
struct Gates {
    /// Gates of prepared ports.
    prompt: Vec<SyncSender<Busy>>,
    /// Gates of ports that changed at the last moment: no other port waits until their memory is mapped.
    late: Vec<SyncSender<Busy>>,
}

/// A switch ready for traffic, beside one that has [retired](Client::retire). That one goes on if this is
/// dropped before its [release](Client::release).
pub struct Successor<'s> {
    switch: &'s Arc<Switch>,
    client: Client,
    manager: Option<&'s mut Notifier>,
    pid: u32,
    received: ReceivedNotes,
    retired: Retired,
    gates: Gates,
    control: OwnedFd,
}

/// Does all but the last step. The `manager` is notified while frames still flow.
///
/// # Errors
/// The running switch goes on.
pub fn prepare<'s>(
    switch: &'s Arc<Switch>,
    mut client: Client,
    mut manager: Option<&'s mut Notifier>,
) -> Result<Successor<'s>, ReplaceError> {
    // A frame to a port whose queues start a moment later would be lost.
    switch.new_ports_wait.store(true, Ordering::Relaxed);
    let (hello, counters, statistics) = client.hello()?;
    let mut notes = client.subscribe()?;
    let ports = client.ports()?;
    switch.inherit(&statistics).map_err(ReplaceError::Port)?;
    switch.lock().previous_workers = workers(&ports);

    let mut received = ReceivedNotes::empty();
    let end = Instant::now() + PATIENCE;
    let connected = |port: &PortStatus| matches!(port.connection, Connection::Connected | Connection::Up);
    while Instant::now() < end {
        received.receive(&mut notes)?;
        let notes_are_complete = |port: &PortStatus| !connected(port) || received.is_complete(&port.vnic);
        if ports.iter().all(notes_are_complete) {
            break;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    let mut prepared = BTreeMap::new();
    let (mapping, mapped) = channel();
    for port in ports {
        let name = port.vnic.name.clone();
        if let Some(messages) = received.messages(&name) {
            let (gate, opened) = sync_channel(1);
            let connect = received.connect(&port, Some(Gate { mapping: mapping.clone(), opened }))?;
            switch.set_port(port.vnic.clone(), connect).map_err(ReplaceError::Port)?;
            prepared.insert(name, PreparedPort { port, messages, gate });
        }
    }
    drop(mapping);
    // No thread sends anything: the channel closes when all are done.
    if mapped.recv_timeout(MAP) == Err(RecvTimeoutError::Timeout) {
        tracing::warn!("guests' memory is not mapped after {MAP:?}; some queues will start late");
    }

    if let Some(manager) = &mut manager {
        // Before the main process that the manager knows ends, or it would start another one.
        manager.main_process(std::process::id()).map_err(ReplaceError::Manager)?;
    }
    let taken = || -> Result<_, ReplaceError> {
        let (retired, control) = client.retire()?;
        received.receive(&mut notes)?;
        switch.region.renew(&counters);
        let gates = settle(switch, &retired, &received, prepared)?;
        Ok((retired, control, gates))
    };
    let (retired, control, gates) = taken().inspect_err(|_| report_main_process(&mut manager, hello.pid))?;
    Ok(Successor { switch, client, manager, pid: hello.pid, received, retired, gates, control })
}

/// Tells the manager that the running switch stays the main process.
fn report_main_process(manager: &mut Option<&mut Notifier>, pid: u32) {
    if let Some(Err(error)) = manager.as_mut().map(|manager| manager.main_process(pid)) {
        tracing::error!(%error, pid, "the service manager regards this process as the switch, but this process ends");
    }
}

impl Successor<'_> {
    /// Returns the interval of the service manager's watchdog, if any. Only the environment of the service's
    /// first process has it.
    pub fn watchdog(&self) -> Option<Duration> {
        self.retired.watchdog_us.map(Duration::from_micros)
    }

    /// Releases the running switch and starts traffic; returns the control socket.
    ///
    /// # Errors
    /// The running switch goes on, unless it ended by itself.
    pub fn take_over(mut self) -> Result<UnixListener, ReplaceError> {
        self.client.release().inspect_err(|_| report_main_process(&mut self.manager, self.pid))?;
        Ok(self.start_traffic()?.1)
    }

    /// Starts traffic, once the other switch is released or must never go on. Returns the connection to it,
    /// and its control socket.
    ///
    /// # Errors
    /// No descriptors are available.
    pub fn start_traffic(self) -> Result<(Client, UnixListener), ReplaceError> {
        let Self { switch, client, manager: _, pid, received, retired, gates, control } = self;
        switch.set_levels_and_learned(&retired);
        let (starting, started) = channel();
        for gate in &gates.prompt {
            // A thread that has ended has logged why.
            let _ = gate.send(starting.clone());
        }
        drop(starting);
        for gate in &gates.late {
            let _ = gate.send(channel().0);
        }
        let rest = switch.connect_rest(&retired, &received);
        // No thread sends anything: the channel closes when all have started.
        let _ = started.recv_timeout(START);
        switch.release_ports();
        rest?;
        let gap = clock().saturating_sub(retired.stopped);
        tracing::info!(
            pid,
            ports = retired.ports.len(),
            addresses = retired.learned.len(),
            dropped = retired.dropped,
            gap_us = gap / 1000,
            "took the place of the running switch"
        );
        Ok((client, control.into()))
    }
}

/// Returns each vNIC's worker.
fn workers(ports: &[PortStatus]) -> BTreeMap<String, usize> {
    ports.iter().map(|port| (port.vnic.name.clone(), port.worker)).collect()
}

/// Updates the prepared ports to the final state; returns their gates.
fn settle(
    switch: &Arc<Switch>,
    retired: &Retired,
    received: &ReceivedNotes,
    mut prepared: BTreeMap<String, PreparedPort>,
) -> Result<Gates, ReplaceError> {
    let refused = ReplaceError::Port;
    switch.set_host(retired.host.clone()).map_err(refused)?;
    // For ports created from here on.
    switch.lock().previous_workers = workers(&retired.ports);
    let mut gates = Gates::default();
    for port in &retired.ports {
        let name = &port.vnic.name;
        let now = received.messages(name);
        match prepared.remove(name) {
            Some(before) if Some(before.messages) == now => {
                if before.port.vnic != port.vnic {
                    switch.set_port(port.vnic.clone(), Connect::Unchanged).map_err(refused)?;
                }
                gates.prompt.push(before.gate);
                continue;
            }
            Some(stale) => {
                drop(stale.gate);
                switch.remove_port(name).map_err(refused)?;
            }
            None => {}
        }
        if now.is_some() {
            let (gate, opened) = sync_channel(1);
            let gate_here = Gate { mapping: channel().0, opened };
            switch.set_port(port.vnic.clone(), received.connect(port, Some(gate_here))?).map_err(refused)?;
            gates.late.push(gate);
        }
    }
    for (name, gone) in prepared {
        drop(gone.gate);
        switch.remove_port(&name).map_err(refused)?;
    }
    Ok(gates)
}

impl Switch {
    /// Connects taps, and ports without a front end, which the other process no longer touches.
    fn connect_rest(
        self: &Arc<Self>,
        retired: &Retired,
        received: &ReceivedNotes,
    ) -> Result<(), ReplaceError> {
        for port in &retired.ports {
            if received.messages(&port.vnic.name).is_none() {
                let made = self.set_port(port.vnic.clone(), received.connect(port, None)?);
                // The agent creates the port once more.
                made.unwrap_or_else(|why| tracing::error!(vnic = port.vnic.name, why, "port not taken over"));
            }
            if let Some(quarantine) = &port.held.quarantine {
                self.quarantine(&port.vnic.name, quarantine);
            }
        }
        // For these ports, too.
        self.set_levels_and_learned(retired);
        Ok(())
    }
}
