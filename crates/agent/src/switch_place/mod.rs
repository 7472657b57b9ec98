//! The host switch as a place.
//!
//! ```text
//!  plan (pure) ──▶ SwitchPlace ── ports: sockets, taps ──▶ Conversation ── descriptors ──▶ control::Client ──▶ switch
//!                    │    ▲                                                                                 │
//!                    │    └──────────────────────── ports, stats::Reader ◀──────────────────────────────────┘
//!                    └─▶ Record: what is ours, on disk
//! ```
//!
//! A duplicate of every descriptor of the switch stays here: a switch that starts anew goes on where the one
//! before it ended, and front ends do not notice.
//!
//! From contracts to actions:
//! - `plan`: from wanted and observed to actions (pure)
//! - `notes`: how a contract is kept, for a reader of a plan (pure)
//! - `observe`: what is in force
//! - `record`: what is ours
//!
//! What a port is connected by:
//! - `ports`: a port and its connection, made, changed, removed
//! - `inherited`: what the switch or the agent before has left of it
//! - `left`: whether a descriptor that was left is what it was said to be
//! - `socket`: vhost-user sockets
//! - `tap`: taps
//! - `users`: names to numbers
//! - `api_socket`: the socket of the agent's own API
//!
//! The switch:
//! - `conversation`: questions and answers
//! - `patience`: how long the switch may keep the reconciler waiting (pure)
//! - `backoff`: how soon the agent connects again to a switch that broke off (pure)
//! - `fdstore`: duplicates of its descriptors
//! - `watch`: the switch that comes after one that is gone

mod api_socket;
mod backoff;
mod conversation;
mod fdstore;
mod inherited;
mod left;
mod notes;
mod observe;
mod patience;
mod plan;
mod ports;
mod record;
mod socket;
mod tap;
mod users;
mod watch;

use crate::culprit::Culprits;
use crate::durable::DurableError;
use crate::own_cpus::OwnCpus;
use crate::paths::{Entry, Inode, Namespace, Paths};
use crate::place::{Action, Capabilities, Capture, Observed, Place, PlaceError, Refusal, Wanted};
pub(crate) use api_socket::{ApiSocket, listen_for_api};
use conversation::Conversation;
#[cfg(feature = "fuzzing")]
pub use left::check_left;
use record::Record;
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidegate_contract::{Attach, Vnic};
use tidegate_switch::control::Client;
#[cfg(test)]
use tidegate_switch::foreign::Budget;
use tidegate_switch::foreign::Foreign;
pub use watch::Wake;
#[cfg(feature = "fuzzing")]
pub use {observe::evidence, plan::plan};

/// The host switch, reached over its control socket.
pub struct SwitchPlace {
    switch: Conversation,
    /// Where contracts may have sockets and taps.
    paths: Paths,
    record: Record,
    held: HashMap<String, Held>,
    /// Why a front end that we dial is not connected.
    waiting: HashMap<String, String>,
    /// What held workers up.
    culprits: Culprits,
    /// The descriptors of all vNICs may be more than this process keeps.
    is_short: bool,
    /// Keeps other work off its workers' CPUs.
    own_cpus: Option<OwnCpus>,
}

/// Duplicates of what the switch was given.
enum Held {
    /// Front ends that connect to it can put descriptors into its queue.
    Listener(Foreign),
    Tap(Vec<OwnedFd>),
}

impl SwitchPlace {
    /// The switch whose control socket is `path`; what is ours is kept in `state`. `wake` is called when
    /// another switch answers there. Where `observe` says so, CPUs of workers are observed. The second value is what was
    /// damaged.
    pub fn new(
        path: &Path,
        state: &Path,
        paths: Paths,
        wake: Wake,
        observe: bool,
    ) -> Result<(Self, Option<String>), DurableError> {
        let (record, damage) = Record::load(state)?;
        let place = Self {
            switch: Conversation::new(path, wake),
            paths,
            record,
            held: HashMap::new(),
            waiting: HashMap::new(),
            culprits: Culprits::new(observe),
            is_short: false,
            own_cpus: None,
        };
        Ok((place, damage))
    }

    /// With somebody who keeps other work off its workers' CPUs.
    pub fn with(self, own_cpus: OwnCpus) -> Self {
        Self { own_cpus: Some(own_cpus), ..self }
    }

    /// Descriptors of others that it holds, and that were not closed yet.
    #[cfg(test)]
    pub fn foreign(&self) -> Arc<Budget> {
        Arc::clone(&self.switch.budget)
    }

    /// What is ours, as it was last given to the switch.
    pub fn made(&self) -> Vec<Vnic> {
        self.record
            .iter()
            .filter(|(_, made)| made.found.is_none())
            .map(|(_, made)| made.vnic.clone())
            .collect()
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
        let opened = netns.map(|path| Namespace::open(&self.paths.namespaces, path)).transpose();
        opened.map_err(|e| e.to_string())
    }
}

impl Place for SwitchPlace {
    fn name(&self) -> &'static str {
        "switch"
    }

    fn capabilities(&self, attach: &Attach) -> Option<Capabilities> {
        let notes: &[&str] = match attach {
            Attach::VhostUser { .. } => &[
                "limits are kept by back-pressure: frames wait in the guest's own ring",
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

    fn notes(&self, vnic: &Vnic) -> Vec<String> {
        let Some(of_all) = self.capabilities(&vnic.attach) else { return vec![] };
        of_all.notes.into_iter().chain(notes::queueing(vnic)).collect()
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
                self.switch.host = None;
                self.switch.ask(|s| s.client.set_host(to))?;
                self.switch.host = Some(to.clone());
                Ok(())
            }
            // What others made is never in the way of a port.
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
        let seen = self.look(coming);
        if let (Err(_), Some(own_cpus)) = (&seen, &mut self.own_cpus) {
            own_cpus.without_switch();
        }
        seen
    }

    fn capture(&self) -> Option<Arc<dyn Capture>> {
        Some(Arc::new(SwitchCapture(self.switch.path().to_owned())))
    }
}

/// On a connection of its own, so that a capture never waits for the reconciler nor it for the capture.
struct SwitchCapture(PathBuf);

impl Capture for SwitchCapture {
    fn capture(&self, vnic: &str, snaplen: u32, into: OwnedFd) -> Result<(), PlaceError> {
        Ok(Client::connect(&self.0)?.apart()?.capture(vnic, snaplen, into.as_fd())?)
    }
}

fn not_recorded(error: DurableError) -> PlaceError {
    PlaceError::Failed(format!("{error} (what the agent makes must be on record first)"))
}
