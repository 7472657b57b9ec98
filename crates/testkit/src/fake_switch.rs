//! The switch's side of the control socket, without a data plane.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use tidegate_contract::{Host, Transport};
use tidegate_cores::directions::Directions;
use tidegate_evidence::{Connection, RdmaDevice};
use tidegate_switch::control::channel::{receive, send};
use tidegate_switch::control::message::{Hello, LinkKind, PROTOCOL, Reply, Request};
use tidegate_switch::control::{KeyPrint, PortStatus, UplinkStatus, WorkStatus};
use tidegate_switch::stats::{Reader, Region};

/// Answers a request, or returns `false` for the honest answer.
pub type Lie = Arc<dyn Fn(&UnixStream, &Request, &[OwnedFd]) -> bool + Send + Sync>;

/// The switch's side of the control socket, with ports but no frames.
pub struct FakeSwitch {
    path: PathBuf,
    state: Arc<Mutex<State>>,
    running: Option<Running>,
}

struct Running {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// State that a test may read and change.
#[derive(Default)]
pub struct State {
    /// Number of the current start; each start has another.
    pub started: u64,
    /// The ports by name.
    pub ports: BTreeMap<String, PortStatus>,
    /// The uplinks by name.
    pub uplinks: BTreeMap<String, UplinkStatus>,
    /// Host-wide settings.
    pub host: Option<Host>,
    /// Changes, such as `set a Listener`.
    pub log: Vec<String>,
    /// vNICs whose ports and captures are refused.
    pub refuse: BTreeSet<String>,
    /// A `tx.max` that is refused.
    pub refuse_tx: Option<tidegate_contract::Rate>,
    /// The statistics.
    pub region: Option<Region>,
    /// Sockets for notes, with which another switch can continue.
    pub note_sockets: Vec<OwnedFd>,
    /// An attacker's behaviour in place of honest answers.
    pub lie: Option<Lie>,
    /// The last directions.
    pub directions: Directions,
    /// It is of a release that knows neither directions nor RDMA.
    pub earlier: bool,
    /// It is of a release that knows RDMA, and copies all frames.
    pub copies: bool,
    /// Its RDMA devices.
    pub rdma: Vec<RdmaDevice>,
    /// Connections accepted by this value.
    pub accepted: u64,
    descriptors: BTreeMap<String, Vec<OwnedFd>>,
    /// Connections that a thread still reads, and closes at its end.
    connections: Vec<Weak<UnixStream>>,
}

impl State {
    fn accept(&mut self, stream: &Arc<UnixStream>) {
        self.accepted += 1;
        self.connections.retain(|connection| connection.strong_count() > 0);
        self.connections.push(Arc::downgrade(stream));
    }

    fn hang_up(&mut self) {
        for connection in self.connections.drain(..).filter_map(|connection| connection.upgrade()) {
            let _ = connection.shutdown(std::net::Shutdown::Both);
        }
    }
}

static STARTS: AtomicU64 = AtomicU64::new(1);

impl FakeSwitch {
    /// Starts a switch that listens at `path`.
    ///
    /// # Panics
    /// The socket cannot be made.
    pub fn start(path: &Path) -> Self {
        let mut switch =
            Self { path: path.into(), state: Arc::new(Mutex::new(State::default())), running: None };
        switch.run();
        switch
    }

    fn run(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        {
            let mut state = self.state();
            state.started = STARTS.fetch_add(1, Ordering::Relaxed);
            state.region = Some(Region::create().unwrap());
            state.ports.clear();
            state.uplinks.clear();
            state.descriptors.clear();
            state.host = None;
            state.directions = Directions::default();
        }
        let listener = UnixListener::bind(&self.path).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (state, thread_stop) = (Arc::clone(&self.state), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            if let Err(error) = accept(&listener, &state, &thread_stop) {
                // Frees a descriptor to count the open ones.
                drop(listener);
                let accepted = lock(&state).accepted;
                panic!(
                    "the fake switch takes no connection after {accepted}: {error}; open descriptors: {:?}",
                    open_descriptors()
                );
            }
        });
        self.running = Some(Running { stop, thread });
    }

    /// Kills the switch with every connection and descriptor.
    ///
    /// # Panics
    /// A thread of this switch has panicked, unless the caller panics already, which would abort all tests.
    pub fn kill(&mut self) {
        let Some(running) = self.running.take() else { return };
        running.stop.store(true, Ordering::SeqCst);
        drop(UnixStream::connect(&self.path));
        let ended = running.thread.join();
        let mut state = self.state();
        state.hang_up();
        state.descriptors.clear();
        state.note_sockets.clear();
        drop(state);
        let _ = std::fs::remove_file(&self.path);
        if std::thread::panicking() {
            return;
        }
        if let Err(panic) = ended {
            std::panic::resume_unwind(panic);
        }
        assert!(!self.state.is_poisoned(), "a thread of the fake switch panicked while it answered");
    }

    /// Kills and restarts the switch, without connections and ports.
    pub fn restart(&mut self) {
        self.kill();
        self.run();
    }

    /// Locks and returns the state.
    pub fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Returns the ports' names.
    pub fn ports(&self) -> Vec<String> {
        self.state().ports.keys().cloned().collect()
    }

    /// Lets an attacker answer each request by `lie`. Conversations start anew.
    pub fn answer_with(
        &self,
        lie: impl Fn(&UnixStream, &Request, &[OwnedFd]) -> bool + Send + Sync + 'static,
    ) {
        let mut state = self.state();
        state.lie = Some(Arc::new(lie));
        state.note_sockets.clear();
        state.hang_up();
    }

    /// Ends the attack.
    pub fn answer_honestly(&self) {
        self.answer_with(|_, _, _| false);
    }

    /// Takes the changes since the last call.
    pub fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.state().log)
    }
}

impl Drop for FakeSwitch {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Also after a thread panicked with the state: that panic is the one to report.
fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts this process's open descriptors by kind, including those of a test's agent.
pub fn open_descriptors() -> io::Result<BTreeMap<String, usize>> {
    let mut kinds = BTreeMap::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        // A descriptor closed meanwhile has no target.
        let Ok(target) = std::fs::read_link(entry?.path()) else { continue };
        let kind = target.to_string_lossy().split([':', ' ']).next().unwrap_or_default().to_owned();
        *kinds.entry(kind).or_default() += 1;
    }
    Ok(kinds)
}

fn accept(listener: &UnixListener, state: &Arc<Mutex<State>>, stop: &AtomicBool) -> io::Result<()> {
    loop {
        let stream = Arc::new(listener.accept()?.0);
        if stop.load(Ordering::SeqCst) {
            return Ok(());
        }
        lock(state).accept(&stream);
        let state = Arc::clone(state);
        std::thread::Builder::new().spawn(move || serve(&stream, &state))?;
    }
}

fn serve(stream: &UnixStream, state: &Mutex<State>) {
    while let Ok(Some((request, descriptors))) = receive::<Request>(stream) {
        let lie = lock(state).lie.clone();
        if lie.is_some_and(|lie| lie(stream, &request, &descriptors)) {
            continue;
        }
        let mut state = lock(state);
        let sent = match answer(&mut state, request, descriptors) {
            Reply::Hello(hello) => {
                let region = state.region.as_ref().unwrap();
                send(stream, &Reply::Hello(hello), &[region.file().as_fd()])
            }
            reply => send(stream, &reply, &[]),
        };
        if sent.is_err() {
            return;
        }
    }
}

fn stream_state(stream: &OwnedFd) -> Connection {
    let stream = UnixStream::from(stream.try_clone().unwrap());
    stream.set_nonblocking(true).unwrap();
    match (&stream).read(&mut [0]) {
        Ok(0) => Connection::Disconnected,
        _ => Connection::Connected,
    }
}

fn answer(state: &mut State, request: Request, descriptors: Vec<OwnedFd>) -> Reply {
    match request {
        Request::Hello => {
            return Reply::Hello(Hello {
                protocol: PROTOCOL,
                version: "fake".into(),
                pid: 1,
                started: state.started,
                workers: 1,
                directable: !state.earlier,
                shares_queues: !state.earlier,
                knows_rdma: !state.earlier,
                knows_zero_copy: !state.earlier && !state.copies,
                rdma: state.rdma.clone(),
            });
        }
        Request::SetHost(host) => {
            state.log.push("host".into());
            state.host = Some(host);
        }
        Request::SetPort { vnic, .. } if state.earlier && vnic.transport != Transport::default() => {
            panic!("an earlier release cannot read this")
        }
        Request::SetPort { vnic, .. } if (state.earlier || state.copies) && vnic.zero_copy => {
            panic!("an earlier release cannot read this")
        }
        Request::SetPort { vnic, link } => {
            let unkept = state.refuse_tx.is_some() && vnic.tx.max == state.refuse_tx;
            if unkept || state.refuse.contains(&vnic.name) {
                return Reply::Refused("the fake switch refuses this port".into());
            }
            let kind = if matches!(link, LinkKind::Restored { .. }) {
                "Restored".into()
            } else {
                format!("{link:?}")
            };
            state.log.push(format!("set {} {kind}", vnic.name));
            let index = state.ports.get(&vnic.name).map_or(state.ports.len(), |p| p.index);
            let before = state.ports.get(&vnic.name).map(|p| p.connection);
            let keep = link == LinkKind::Unchanged;
            let connection = match (link, before) {
                (LinkKind::Unchanged, Some(before)) => before,
                (LinkKind::Unchanged, None) => return Reply::Refused("a new port needs a descriptor".into()),
                (LinkKind::Listener, _) => Connection::Waiting,
                (LinkKind::Stream, _) => stream_state(&descriptors[0]),
                (LinkKind::Restored { .. }, _) => Connection::Connected,
                (LinkKind::Tap, _) => Connection::Up,
            };
            if !keep {
                assert!(!descriptors.is_empty());
                state.descriptors.insert(vnic.name.clone(), descriptors);
            }
            if before.is_none() {
                state.region.as_ref().unwrap().claim(index, &vnic.name);
            }
            let status = PortStatus {
                index,
                worker: 0,
                connection,
                features: 0,
                queue_pairs: 1,
                deadline_suspended: None,
                last_error: None,
                shared: vec![],
                refused_connections: 0,
                heir: false,
                thrown_out: Default::default(),
                held: Default::default(),
                closing: false,
                vnic: *vnic,
            };
            state.ports.insert(status.vnic.name.clone(), status);
        }
        Request::RemovePort { name } => {
            let Some(port) = state.ports.remove(&name) else {
                return Reply::Refused(format!("there is no port {name}"));
            };
            state.log.push(format!("remove {name}"));
            state.region.as_ref().unwrap().release(port.index);
            state.descriptors.remove(&name);
        }
        Request::SetUplink { uplink, .. } if state.earlier && uplink.rdma.is_some() => {
            panic!("an earlier release cannot read this")
        }
        Request::SetUplink { uplink, remotes, keys, .. } => {
            let there = state.uplinks.get(&uplink.name);
            if descriptors.is_empty() && there.is_some_and(|there| there.uplink.rdma != uplink.rdma) {
                return Reply::Refused("its RDMA device cannot change while it keeps its sockets".into());
            }
            let index = 512 + state.uplinks.len();
            state.log.push(format!("set uplink {} {} sockets", uplink.name, descriptors.len()));
            let status = UplinkStatus {
                uplink: *uplink,
                remotes,
                keys: keys.iter().map(KeyPrint::of).collect(),
                index,
                worker: 0,
                sockets: vec![],
                broken: None,
                pairs: vec![],
                foreign_stamps: 0,
                peers: vec![],
                far_misses: vec![],
                rdma: None,
            };
            state.uplinks.insert(status.uplink.name.clone(), status);
        }
        Request::RemoveUplink { name } => {
            if state.uplinks.remove(&name).is_none() {
                return Reply::Refused(format!("{name} is not an uplink"));
            }
            state.log.push(format!("remove uplink {name}"));
        }
        Request::Uplinks => return Reply::Uplinks(state.uplinks.values().cloned().collect()),
        Request::Direct(_) | Request::Work if state.earlier => panic!("an earlier release cannot read this"),
        Request::Direct(directions) => {
            state.log.push("direct".into());
            state.directions = directions;
        }
        Request::Work => {
            let directions = state.directions.clone();
            let status =
                WorkStatus { directions, chooses_cpus: true, chooses_workers: true, ..WorkStatus::default() };
            return Reply::Work(Box::new(status));
        }
        Request::Retire | Request::Release => return Reply::Refused("no other switch takes over".into()),
        Request::Subscribe => state.note_sockets.extend(descriptors),
        Request::Inherit => {
            let Some(region) = &state.region else { return Reply::Refused("no region".into()) };
            region.inherit(&Reader::open(&descriptors[0]).unwrap());
        }
        Request::Ports => return Reply::Ports(state.ports.values().cloned().collect()),
        Request::Capture { name, snaplen } => {
            if !state.ports.contains_key(&name) || state.refuse.contains(&name) {
                return Reply::Refused(format!("there is no port {name}"));
            }
            let mut pipe = std::fs::File::from(descriptors.into_iter().next().unwrap());
            write!(pipe, "frames of {name}, {snaplen} bytes each").unwrap();
        }
    }
    Reply::Done
}
