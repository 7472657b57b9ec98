//! The host switch as a place.
//!
//! ```text
//!  plan (pure) ──▶ SwitchPlace ── sockets, taps ──▶ descriptors ──▶ control::Client ──▶ switch
//!                    │    ▲                                                              │
//!                    │    └───────── ports, stats::Reader ◀──────────────────────────────┘
//!                    └─▶ Record: what is ours, on disk
//! ```
//!
//! A duplicate of every descriptor of the switch stays here: a switch that starts anew goes on where the one
//! before it ended, and front ends do not notice.
//!
//! - `fdstore`: those duplicates
//! - `left`: whether what is left is what it was said to be
//! - `observe`: what is in force
//! - `patience`: how long the switch may keep us waiting
//! - `plan`: from wanted and observed to actions
//! - `socket`: vhost-user sockets
//! - `tap`: taps
//! - `record`: what is ours
//! - `users`: names to numbers
//! - `watch`: the switch that comes after one that is gone

mod fdstore;
mod left;
mod observe;
mod patience;
mod plan;
mod record;
mod socket;
mod tap;
mod users;
mod watch;

use crate::cut;
use crate::durable::DurableError;
use crate::paths::{Entry, Inode, Namespace, PathError, Paths};
use crate::place::{Action, Capabilities, Capture, Observed, Place, PlaceError, Refusal, Wanted};
use fdstore::{Estate, FdStore};
use patience::Patience;
use record::Record;
use socket::{Dialled, Earlier};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_contract::{Attach, Host, SocketMode, Vnic};
use tidegate_switch::control::client::PATIENCE;
use tidegate_switch::control::told::Connected;
use tidegate_switch::control::{Client, Hello, Link, SwitchError};
use tidegate_switch::foreign::{Budget, Foreign};
use tidegate_switch::stats::Reader;
pub use watch::Wake;
use watch::Watch;
#[cfg(feature = "fuzzing")]
pub use {observe::evidence, plan::plan};

/// The host switch, reached over its control socket.
pub struct SwitchPlace {
    path: PathBuf,
    /// Where contracts may have sockets and taps.
    paths: Paths,
    session: Option<Session>,
    record: Record,
    held: HashMap<String, Held>,
    /// Why a front end that we dial is not connected.
    waiting: HashMap<String, String>,
    /// What this agent told the running switch.
    host: Option<Host>,
    /// Start of the switch last spoken to.
    started: u64,
    /// Keeps what that switch has.
    kept: Option<FdStore>,
    /// What switches before it have left and it has not got yet.
    estate: Estate,
    /// Of its descriptors.
    budget: Arc<Budget>,
    /// Those of all vNICs may be more than that.
    is_short: bool,
    patience: Patience,
    /// What went wrong when it was last asked at length.
    trouble: String,
    watch: Arc<Watch>,
}

struct Session {
    client: Client,
    reader: Reader,
    hello: Hello,
}

/// Duplicates of what the switch was given.
enum Held {
    /// Who connects to it puts things into it.
    Listener(Foreign),
    Tap(Vec<OwnedFd>),
}

impl SwitchPlace {
    /// The switch whose control socket is `path`; what is ours is kept in `state`. `wake` is called when
    /// another switch answers there. The second value is what was damaged.
    pub fn new(
        path: &Path,
        state: &Path,
        paths: Paths,
        wake: Wake,
    ) -> Result<(Self, Option<String>), DurableError> {
        let (record, damage) = Record::load(state)?;
        let place = Self {
            path: path.to_owned(),
            paths,
            session: None,
            record,
            held: HashMap::new(),
            waiting: HashMap::new(),
            host: None,
            started: 0,
            kept: None,
            estate: Estate::default(),
            budget: Budget::half_of_all(),
            is_short: false,
            patience: Patience::new(Instant::now()),
            trouble: String::new(),
            watch: Watch::new(path, wake),
        };
        Ok((place, damage))
    }

    /// Asks the switch; a conversation that broke off is given up, to be begun anew by the next question. One that
    /// keeps us waiting is not asked all the time.
    fn ask<T>(
        &mut self,
        question: impl FnOnce(&mut Session) -> Result<T, SwitchError>,
    ) -> Result<T, SwitchError> {
        cut::point();
        let began = Instant::now();
        let answer = match self.patience.for_question(began) {
            Some(patience) => self.ask_within(patience, question),
            None => Err(SwitchError::Broken { path: self.path.clone(), reason: self.trouble.clone() }),
        };
        self.patience.spent(began.elapsed());
        if matches!(answer, Err(SwitchError::Unreachable { .. } | SwitchError::Broken { .. })) {
            // Whatever step it was gone at: the next one is not to wait for a tick.
            self.watch.look();
        }
        cut::point();
        answer
    }

    fn ask_within<T>(
        &mut self,
        patience: Duration,
        question: impl FnOnce(&mut Session) -> Result<T, SwitchError>,
    ) -> Result<T, SwitchError> {
        let began = Instant::now();
        let session = self.session.take().filter(|session| !session.client.is_closed());
        let mut answer = session.map_or_else(|| self.connect(patience), Ok).and_then(|mut session| {
            session.client.set_patience(patience);
            let answer = question(&mut session);
            if matches!(answer, Ok(_) | Err(SwitchError::Refused(_))) {
                self.session = Some(session);
            }
            answer
        });
        if let Err(SwitchError::Broken { reason, .. }) = &mut answer {
            // A short wait in vain says less than the long one before it.
            if patience < PATIENCE && began.elapsed() >= patience && !self.trouble.is_empty() {
                reason.clone_from(&self.trouble);
            } else {
                self.trouble.clone_from(reason);
            }
        }
        answer
    }

    /// A connection for questions that take so long at most.
    fn client(&self, patience: Duration) -> Result<Client, SwitchError> {
        let mut client = Client::connect(&self.path)?.apart()?;
        client.set_patience(patience);
        Ok(client)
    }

    /// Descriptors of others that it holds, and that were not closed yet.
    #[cfg(test)]
    pub fn foreign(&self) -> Arc<Budget> {
        Arc::clone(&self.budget)
    }

    /// What is ours, as it was last given to the switch.
    pub fn made(&self) -> Vec<Vnic> {
        self.record
            .iter()
            .filter(|(_, made)| made.found.is_none())
            .map(|(_, made)| made.vnic.clone())
            .collect()
    }

    fn connect(&mut self, patience: Duration) -> Result<Session, SwitchError> {
        let mut client = self.client(patience)?;
        let (hello, reader, _) = client.hello()?;
        if hello.started != self.started {
            self.host = None;
            if let Some(kept) = self.kept.take() {
                kept.bequeath(&mut self.estate);
            }
            if let Some(statistics) = &self.estate.statistics
                && let Err(error) = client.inherit(statistics.as_fd())
            {
                // One that took over from a running switch has them already.
                tracing::debug!(%error, "counters do not go on");
            }
            if self.started != 0 {
                tracing::warn!(pid = hello.pid, "the switch was started anew; giving it everything again");
            } else {
                tracing::info!(pid = hello.pid, version = hello.version, "connected to the switch");
            }
            self.started = hello.started;
        }
        if self.kept.as_ref().is_none_or(FdStore::is_over) {
            self.kept = Some(FdStore::start(&mut self.client(patience)?, &self.watch, &self.budget)?);
        }
        Ok(Session { client, reader, hello })
    }

    fn create(&mut self, vnic: &Vnic) -> Result<(), PlaceError> {
        let before = self.record.get(&vnic.name).cloned();
        // Somebody else's file at the path must not become ours by intending to make one.
        let earlier = before
            .as_ref()
            .filter(|m| same_socket(&m.vnic, vnic))
            .map_or(Earlier::None, record::Made::earlier);
        if earlier == Earlier::None
            && let Attach::VhostUser { path, mode: SocketMode::Server, .. } = &vnic.attach
            && !self.held.contains_key(&vnic.name)
        {
            self.entry(path).and_then(|entry| socket::free(&entry)).map_err(PlaceError::Failed)?;
        }
        self.record.intend(vnic).map_err(not_recorded)?;
        let earlier = if earlier == Earlier::None { Earlier::Intended } else { earlier };
        let made = self.link(vnic, earlier);
        // A switch that did not answer may have made it: it stays on record, to be kept or removed.
        if let Err(PlaceError::Failed(_)) = made {
            self.record.set(&vnic.name, before);
        }
        made
    }

    /// The name of a socket, in its folder, which is held.
    fn entry(&self, path: &Path) -> Result<Entry, String> {
        self.paths.sockets.entry(path).map_err(|e| e.to_string())
    }

    /// The socket that stands at a path; `None` where none does, or it is not to be used.
    fn socket_at(&self, path: &Path) -> Option<Inode> {
        self.entry(path).ok()?.look().ok()?.inode()
    }

    /// The namespace of a tap; `None` where it is the agent's.
    fn namespace(&self, netns: Option<&Path>) -> Result<Option<Namespace>, String> {
        netns.map(|path| Namespace::open(&self.paths.namespaces, path)).transpose()
    }

    /// Makes the port's connection, or takes the one held, and hands it to the switch.
    fn link(&mut self, vnic: &Vnic, earlier: Earlier) -> Result<(), PlaceError> {
        let name = &vnic.name;
        match &vnic.attach {
            Attach::VhostUser { path, mode: SocketMode::Server, owner } => {
                let entry = self.entry(path).map_err(PlaceError::Failed)?;
                let known = self.record.get(name).and_then(|m| m.socket);
                let held = self.held.remove(name).or_else(|| self.left_listener(name, &entry));
                let held = match (held, known) {
                    (Some(Held::Listener(fd)), Some(inode))
                        if entry.look().is_ok_and(|there| there.inode() == Some(inode)) =>
                    {
                        socket::set_owner(&entry, inode, owner).map_err(PlaceError::Failed)?;
                        Some((fd, inode))
                    }
                    _ => None,
                };
                let fresh = held.is_none();
                let (fd, inode) = match held {
                    Some(held) => held,
                    None => {
                        // From here on what is listened at there counts as ours.
                        if let Some(why) = socket::obstacle(&entry, earlier) {
                            return Err(PlaceError::Failed(why));
                        }
                        self.record.intend_socket(vnic).map_err(not_recorded)?;
                        let (fd, inode) =
                            socket::listen_at(&entry, owner, earlier).map_err(PlaceError::Failed)?;
                        (Foreign::new(fd, &self.budget), inode)
                    }
                };
                let given = self.connect_port(vnic, Some(fd.as_fd()), Link::Listener(fd.as_fd()));
                match given {
                    Err(e @ SwitchError::Refused(_)) if fresh => {
                        socket::remove(&entry, Earlier::Made(inode));
                        return Err(e.into());
                    }
                    other => {
                        self.held.insert(name.clone(), Held::Listener(fd));
                        self.record.put(vnic, Some(inode));
                        other?;
                    }
                }
            }
            Attach::VhostUser { path, mode: SocketMode::Client, .. } => {
                self.dial(vnic, path)?;
                self.record.put(vnic, None);
            }
            Attach::Tap { name: interface, netns } => {
                let held = self.held.remove(name);
                let held = held.or_else(|| self.left_tap(name, interface, netns.as_deref()));
                let held = match held {
                    Some(Held::Tap(queues))
                        if queues.len() == usize::from(vnic.queues)
                            && tap::broken(&queues[0], interface).is_none() =>
                    {
                        let netns = self.namespace(netns.as_deref()).map_err(PlaceError::Failed)?;
                        tap::configure(vnic, interface, netns).map_err(PlaceError::Failed)?;
                        Some(queues)
                    }
                    _ => None,
                };
                let fresh = held.is_none();
                let queues = match held {
                    Some(queues) => queues,
                    None => {
                        let netns = self.namespace(netns.as_deref()).map_err(PlaceError::Failed)?;
                        tap::create(vnic, interface, netns).map_err(PlaceError::Failed)?
                    }
                };
                let given = self.ask(|s| s.client.set_port(vnic, Link::Tap(&queues)));
                if given.is_ok() || !fresh {
                    // Kept even where it was refused: the interface may carry addresses by now.
                    self.held.insert(name.clone(), Held::Tap(queues));
                }
                given?;
                self.record.put(vnic, None);
            }
            Attach::Netdev { .. } | Attach::Vf { .. } => {
                return Err(PlaceError::Failed(format!("vNIC {name} is not an attachment of the switch")));
            }
        }
        Ok(())
    }

    /// Whether what is left of a vNIC's connection leads to a front end at its socket: one that connected there, or
    /// listens there.
    fn is_connection_of(&self, left: &Connected, vnic: &Vnic) -> bool {
        let Some(stream) = left.descriptors.get(&left.kept.stream) else { return false };
        let is_so = match &vnic.attach {
            Attach::VhostUser { path, mode: SocketMode::Server, .. } => {
                self.entry(path).is_ok_and(|entry| left::is_accepted(stream, &entry))
            }
            Attach::VhostUser { path, mode: SocketMode::Client, .. } => left::is_dialled(stream, path),
            _ => false,
        };
        if !is_so {
            tracing::error!(
                vnic = vnic.name,
                "what the switch before has left is no connection at its socket: its front end has to connect again"
            );
        }
        is_so
    }

    /// Makes a port on the connection that a switch before left it, else with `link`.
    fn connect_port(
        &mut self,
        vnic: &Vnic,
        listener: Option<BorrowedFd<'_>>,
        link: Link<'_>,
    ) -> Result<(), SwitchError> {
        let left = self.estate.connections.remove(&vnic.name);
        let Some(left) = left.filter(|left| self.is_connection_of(left, vnic)) else {
            return self.ask(|s| s.client.set_port(vnic, link));
        };
        let restored = Link::Restored { listener, kept: &left.kept, descriptors: &left.descriptors };
        let given = self.ask(|s| s.client.set_port(vnic, restored));
        match given {
            Err(SwitchError::Refused(why)) => {
                tracing::warn!(vnic = vnic.name, why, "its front end has to connect again");
                self.ask(|s| s.client.set_port(vnic, link))
            }
            given => {
                // Until the switch says itself what it has: it may be killed before.
                self.estate.connections.insert(vnic.name.clone(), left);
                given
            }
        }
    }

    fn left_listener(&mut self, name: &str, entry: &Entry) -> Option<Held> {
        let fd = self.left(name)?.pop()?;
        left::is_listener(&fd, entry).then_some(Held::Listener(fd))
    }

    fn left_tap(&mut self, name: &str, interface: &str, netns: Option<&Path>) -> Option<Held> {
        let queues = self.left(name)?;
        let netns = self.namespace(netns).ok()?;
        left::taps(queues, interface, netns.as_ref()).map(Held::Tap)
    }

    /// What we and an agent before us made, given away. An interface is gone when that is dropped, a socket some time
    /// later: it takes no connections any more.
    fn let_go(&mut self, vnic: &Vnic) -> [Option<Held>; 2] {
        let held = self.held.remove(&vnic.name);
        let left = match &vnic.attach {
            Attach::Tap { name, netns } => self.left_tap(&vnic.name, name, netns.as_deref()),
            Attach::VhostUser { path, .. } => match self.entry(path) {
                Ok(entry) => self.left_listener(&vnic.name, &entry),
                Err(_) => self.left(&vnic.name).and(None),
            },
            _ => None,
        };
        for link in [&held, &left].into_iter().flatten() {
            if let Held::Listener(fd) = link {
                socket::stop_listening(fd);
            }
        }
        [held, left]
    }

    /// A listening socket or tap that an agent before us made.
    fn left(&mut self, name: &str) -> Option<Vec<Foreign>> {
        let left = self.estate.links.remove(name);
        left.or_else(|| self.kept.as_ref()?.take_link(name))
    }

    /// A port whose front end does not listen yet is made without one, and dialled again later.
    fn dial(&mut self, vnic: &Vnic, path: &Path) -> Result<(), PlaceError> {
        if self.estate.connections.contains_key(&vnic.name) && !self.session_has(&vnic.name)? {
            // A connection that has ended, should the other one be refused.
            let (ended, _) = socket_pair()?;
            self.connect_port(vnic, None, Link::Stream(ended.as_fd()))?;
            self.waiting.remove(&vnic.name);
            return Ok(());
        }
        let dialled = match self.paths.sockets.entry(path) {
            Ok(entry) => socket::dial(&entry),
            Err(e @ PathError::Outside { .. }) => return Err(PlaceError::Failed(e.to_string())),
            Err(e) => Dialled::Nobody(e.to_string()),
        };
        match dialled {
            Dialled::Connected(stream) => {
                let stream = Foreign::new(stream, &self.budget);
                self.ask(|s| s.client.set_port(vnic, Link::Stream(stream.as_fd())))?;
                self.waiting.remove(&vnic.name);
                tracing::info!(vnic = vnic.name, "connected to the front end");
            }
            other => {
                let why = match other {
                    Dialled::Nobody(why) => why,
                    _ => format!("the front end at {} is busy", path.display()),
                };
                if !self.session_has(&vnic.name)? {
                    // A connection that has ended: the port is there, and says that it is disconnected.
                    let (ended, _) = socket_pair()?;
                    self.ask(|s| s.client.set_port(vnic, Link::Stream(ended.as_fd())))?;
                }
                if self.waiting.insert(vnic.name.clone(), why.clone()).is_none() {
                    tracing::info!(vnic = vnic.name, why, "dialling every half second");
                }
            }
        }
        Ok(())
    }

    fn session_has(&mut self, name: &str) -> Result<bool, SwitchError> {
        Ok(self.ask(|s| s.client.ports())?.iter().any(|p| p.vnic.name == name))
    }

    fn change(&mut self, from: &Vnic, to: &Vnic) -> Result<(), PlaceError> {
        self.ask(|s| s.client.set_port(to, Link::Keep))?;
        if let Err(why) = self.adjust(from, to) {
            self.ask(|s| s.client.set_port(from, Link::Keep))?;
            if let Err(e) = self.adjust(to, from) {
                tracing::warn!(vnic = to.name, error = e, "cannot undo the change of the attachment");
            }
            return Err(PlaceError::Failed(why));
        }
        let socket = self.socket_of(to);
        self.record.put(to, socket);
        Ok(())
    }

    /// Applies to the attachment what can change while it is in use.
    fn adjust(&self, from: &Vnic, to: &Vnic) -> Result<(), String> {
        match (&from.attach, &to.attach) {
            (
                Attach::VhostUser { owner: old, .. },
                Attach::VhostUser { path, mode: SocketMode::Server, owner },
            ) if old != owner => {
                let unknown = || format!("{} is no socket of ours", path.display());
                let socket = self.socket_of(to).ok_or_else(unknown)?;
                socket::set_owner(&self.entry(path)?, socket, owner)
            }
            (Attach::Tap { .. }, Attach::Tap { name, netns }) if (from.mac, from.mtu) != (to.mac, to.mtu) => {
                tap::configure(to, name, self.namespace(netns.as_deref())?)
            }
            _ => Ok(()),
        }
    }

    fn reconnect(&mut self, vnic: &Vnic) -> Result<(), PlaceError> {
        let earlier = self.record.get(&vnic.name).map_or(Earlier::None, record::Made::earlier);
        if !matches!(&vnic.attach, Attach::VhostUser { mode: SocketMode::Client, .. }) {
            drop(self.let_go(vnic));
        }
        self.estate.connections.remove(&vnic.name);
        let before = self.record.get(&vnic.name).cloned();
        let made = self.link(vnic, earlier);
        if let Err(PlaceError::Failed(_)) = made {
            self.record.set(&vnic.name, before);
        }
        made
    }

    fn remove(&mut self, vnic: &Vnic) -> Result<(), PlaceError> {
        let name = vnic.name.as_str();
        if self.session_has(name)? {
            self.ask(|s| s.client.remove_port(name))?;
        }
        self.estate.connections.remove(name);
        drop(self.let_go(vnic));
        self.waiting.remove(name);
        let made = self.record.remove(name);
        if let Attach::VhostUser { path, mode: SocketMode::Server, .. } = &vnic.attach
            && let Some(made) = made
            && !self.is_anothers(vnic, path)
        {
            match self.entry(path) {
                Ok(entry) => socket::remove(&entry, made.earlier()),
                Err(why) => tracing::warn!(vnic = name, why, "its socket is left where it is"),
            }
        }
        Ok(())
    }

    /// Whether the file at `path`, where `vnic` had its socket, may be that of another vNIC of ours. One that
    /// handed the path over has noted a file that is gone, if we died before that was struck out.
    fn is_anothers(&self, vnic: &Vnic, path: &Path) -> bool {
        let others = self.record.iter().filter(|(_, other)| same_socket(&other.vnic, vnic));
        let there = self.socket_at(path);
        others
            .map(|(_, other)| other.socket)
            .any(|noted| there.is_none() || noted.is_none_or(|_| noted == there))
    }

    fn adopt(&mut self, vnic: &Vnic) -> Result<(), PlaceError> {
        let socket = self.socket_of(vnic);
        self.record.find(vnic, socket).map_err(not_recorded)?;
        tracing::info!(vnic = vnic.name, "took over a vNIC that was already in the switch");
        Ok(())
    }
}

impl Place for SwitchPlace {
    fn name(&self) -> &'static str {
        "switch"
    }

    fn capabilities(&self, attach: &Attach) -> Option<Capabilities> {
        let notes: &[&str] = match attach {
            Attach::VhostUser { .. } => &[
                "limits are kept by back-pressure: frames wait in the guest's own ring and none is dropped",
                "a deadline is promised while the guest's memory is shared and preallocated",
            ],
            Attach::Tap { .. } => &[
                "a tap has no ring to wait in: over its limit frames wait in a bounded pool, then they are \
                 dropped and counted",
            ],
            Attach::Netdev { .. } | Attach::Vf { .. } => return None,
        };
        let notes = notes.iter().map(|n| (*n).into()).collect();
        Some(Capabilities { deadline: true, min: true, uplink: false, notes })
    }

    fn plan(&self, wanted: &Wanted<'_>, observed: &Observed) -> Result<Vec<Action>, Vec<Refusal>> {
        plan::plan(wanted, observed)
    }

    fn prepare(&mut self, actions: &[&Action]) -> Result<(), PlaceError> {
        let coming = actions.iter().filter_map(|a| if let Action::Create(v) = a { Some(v) } else { None });
        self.record.reserve(coming).map_err(not_recorded)
    }

    fn apply(&mut self, action: &Action) -> Result<(), PlaceError> {
        match action {
            Action::SetHost { to, .. } => {
                // Not known until the switch has answered.
                self.host = None;
                self.ask(|s| s.client.set_host(to))?;
                self.host = Some(to.clone());
                Ok(())
            }
            // Nobody else's is in the way of a port.
            Action::Create(vnic) | Action::TakeOver { from: None, to: vnic, .. } => self.create(vnic),
            Action::Change { from, to } | Action::TakeOver { from: Some(from), to, .. } => {
                self.change(from, to)
            }
            Action::Adopt(vnic) => self.adopt(vnic),
            Action::Own(vnic) => self.record.own(&vnic.name).map_err(not_recorded),
            Action::Release(vnic) => {
                self.record.remove(&vnic.name);
                Ok(())
            }
            Action::Reconnect(vnic) => self.reconnect(vnic),
            Action::Remove(vnic) => self.remove(vnic),
        }
    }

    fn observe(&mut self, coming: &[Vnic]) -> Result<Observed, PlaceError> {
        self.look(coming)
    }

    fn capture(&self) -> Option<Arc<dyn Capture>> {
        Some(Arc::new(SwitchCapture(self.path.clone())))
    }
}

fn socket_pair() -> Result<(UnixStream, UnixStream), PlaceError> {
    UnixStream::pair().map_err(|e| PlaceError::Failed(format!("cannot make a socket pair: {e}")))
}

/// A listening socket for the API; one that an agent before us left is replaced.
pub(crate) fn listen_for_api(
    path: &Path,
    owner: &tidegate_contract::SocketOwner,
) -> Result<(OwnedFd, ApiSocket), String> {
    let entry = Entry::trusted(path).map_err(|e| e.to_string())?;
    let (listener, inode) = socket::listen_at(&entry, owner, Earlier::Intended)?;
    // Clients come at once, and those that find no room in the queue are refused by the kernel.
    rustix::net::listen(&listener, 1024).map_err(|e| format!("cannot listen at {}: {e}", path.display()))?;
    Ok((listener, ApiSocket { entry, inode }))
}

/// The API's socket file.
#[derive(Debug)]
pub(crate) struct ApiSocket {
    entry: Entry,
    inode: Inode,
}

impl ApiSocket {
    /// Removes it, where it still stands there.
    pub(crate) fn remove(&self) {
        socket::remove(&self.entry, Earlier::Made(self.inode));
    }
}

/// On a connection of its own, so that a capture never waits for the reconciler nor it for the capture.
struct SwitchCapture(PathBuf);

impl Capture for SwitchCapture {
    fn capture(&self, vnic: &str, snaplen: u32, into: OwnedFd) -> Result<(), PlaceError> {
        Ok(Client::connect(&self.0)?.apart()?.capture(vnic, snaplen, into.as_fd())?)
    }
}

/// Checks all that was told as if it were left, for vNICs at paths of their names.
#[cfg(feature = "fuzzing")]
pub fn check_left(told: tidegate_switch::control::told::Told) {
    let entry = |name: &str| Entry::trusted(&Path::new("/run").join(name)).expect("/run is there");
    for (name, connected) in &told.connections {
        if let Some(stream) = connected.as_ref().and_then(|c| c.descriptors.get(&c.kept.stream)) {
            let _ = (left::is_accepted(stream, &entry(name)), left::is_dialled(stream, Path::new(name)));
        }
    }
    for (name, links) in told.links {
        let _ = links.iter().all(|fd| left::is_listener(fd, &entry(&name)));
        drop(left::taps(links, &name, None));
    }
}

fn same_socket(a: &Vnic, b: &Vnic) -> bool {
    match (&a.attach, &b.attach) {
        (Attach::VhostUser { path: p, .. }, Attach::VhostUser { path: q, .. }) => p == q,
        _ => false,
    }
}

fn not_recorded(error: DurableError) -> PlaceError {
    PlaceError::Failed(format!("{error} (what the agent makes must be on record first)"))
}
