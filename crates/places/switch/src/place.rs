//! The place, as the agent knows it.

use crate::action::{Declared, SwitchAction};
use crate::conversation::{Conversation, Wake};
use crate::culprit::Culprits;
use crate::directing::Directing;
use crate::duplicate::Duplicate;
use crate::following::NicTables;
use crate::kept_ports::KeptPorts;
use crate::mending::Mending;
use crate::notes;
use crate::peers_only::Filter;
use crate::plan::{self, Facts};
use crate::record::Record;
use crate::sockets::KeptSockets;
use crate::stages::Loads;
use std::collections::{BTreeSet, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use tidegate_contract::{Attach, Vnic};
use tidegate_durable::{Damage, DurableError};
use tidegate_paths::{Entry, Inode, Namespace, Paths};
use tidegate_place::{
    Action, Capabilities, Capture, ContractChange, Installation, Observed, PairPorts, Place, PlaceError,
    Plan, Refusal, Site, Wanted,
};
use tidegate_service::foreign::Budget;
use tidegate_switch::control::{Client, SwitchError};

/// The host switch, reached over its control socket.
pub struct SwitchPlace {
    pub(crate) switch: Conversation,
    /// Folders of sockets and taps that contracts may name.
    pub(crate) paths: Paths,
    pub(crate) record: Record,
    pub(crate) duplicates: HashMap<String, Duplicate>,
    /// The uplinks that this agent declared to the switch, by name.
    pub(crate) declared: HashMap<String, Declared>,
    /// The filter on the sockets of uplinks, or why there is none; `None` before the first uplink.
    pub(crate) filter: Option<Result<Filter, String>>,
    /// Repairs of uplinks that broke, by name.
    pub(crate) mending: HashMap<String, Mending>,
    /// Duplicates of the sockets of uplinks, for a switch that is started anew.
    pub(crate) uplink_sockets: HashMap<String, KeptSockets>,
    /// The tables of NICs with sockets of several workers.
    pub(crate) nic_tables: NicTables,
    /// Why a dialled front end is not connected.
    pub(crate) waiting: HashMap<String, String>,
    /// Culprits of delayed workers.
    pub(crate) culprits: Culprits,
    /// The descriptors of all vNICs may exceed this process's limit.
    pub(crate) is_short: bool,
    /// The load of workers and vNICs.
    pub(crate) loads: Loads,
    /// Directions that the switch was given, and its report on them.
    pub(crate) directing: Directing,
    pub(crate) pair_ports: PairPorts,
    /// Source ports that pairs have had.
    pub(crate) kept_ports: KeptPorts,
    /// Which pairs may use their ports, as the switch was told, by uplink.
    pub(crate) granted: HashMap<String, Granted>,
    /// In a change, the last vNIC or uplink that may make pairs: their ports are told after it.
    pub(crate) last_of_pairs: Option<String>,
}

/// vNIC and remote of each pair that may use its port; `None`: all.
pub(crate) type Granted = Option<BTreeSet<(String, String)>>;

/// How the place works.
#[derive(Clone, Debug)]
pub struct Options {
    /// The control socket of the switch.
    pub socket: PathBuf,
    /// Whether eBPF programs observe the CPUs of the switch's workers, while a deadline is in force.
    pub observe_cpu: bool,
}

impl SwitchPlace {
    /// Makes the place; its record is in the folder `state`. `wake` is called when another switch answers at the socket. The second value
    /// describes damaged records, each with the problem's name.
    ///
    /// # Errors
    /// The record cannot be read, or a newer release wrote it.
    pub fn new(
        options: &Options,
        state: &Path,
        paths: Paths,
        wake: Wake,
    ) -> Result<(Self, Vec<Damage>), DurableError> {
        tidegate_ebpf::log_by_tracing();
        let (record, damage) = Record::load(state)?;
        let (kept_ports, of_ports) = KeptPorts::load(state)?;
        let place = Self {
            switch: Conversation::new(&options.socket, wake),
            paths,
            record,
            duplicates: HashMap::new(),
            declared: HashMap::new(),
            filter: None,
            mending: HashMap::new(),
            uplink_sockets: HashMap::new(),
            nic_tables: NicTables::default(),
            waiting: HashMap::new(),
            culprits: Culprits::new(options.observe_cpu),
            is_short: false,
            loads: Loads::default(),
            directing: Directing::default(),
            pair_ports: PairPorts::default(),
            kept_ports,
            granted: HashMap::new(),
            last_of_pairs: None,
        };
        let damage = damage.map(|what| ("switch state", what));
        Ok((place, damage.into_iter().chain(of_ports.map(|what| ("ports of pairs", what))).collect()))
    }

    /// The copying of frames, for the agent's API.
    pub fn capture(&self) -> Arc<dyn Capture> {
        Arc::new(SwitchCapture(self.switch.path().to_owned()))
    }

    /// Descriptors of front ends that it has not closed yet, for tests.
    pub fn foreign(&self) -> Arc<Budget> {
        Arc::clone(&self.switch.budget)
    }

    /// The name of a socket, in its folder, which is held.
    pub(crate) fn entry(&self, path: &Path) -> Result<Entry, String> {
        self.paths.sockets.entry(path).map_err(|e| e.to_string())
    }

    /// The socket that stands at a path; `None` where none does, or it is not to be used.
    pub(crate) fn socket_at(&self, path: &Path) -> Option<Inode> {
        self.entry(path).ok()?.look().ok()?.inode()
    }

    /// The namespace of a tap; `None` where it is the agent's.
    pub(crate) fn namespace(&self, netns: Option<&Path>) -> Result<Option<Namespace>, String> {
        let opened = netns.map(|path| Namespace::open(&self.paths.namespaces, path)).transpose();
        opened.map_err(|e| e.to_string())
    }
}

/// Installs the place.
///
/// # Errors
/// As [`SwitchPlace::new`].
pub fn install(site: &Site<'_>, options: &Options) -> Result<Installation, DurableError> {
    let (mut place, damage) = SwitchPlace::new(options, site.state, site.paths.clone(), site.wake.clone())?;
    place.pair_ports = site.pair_ports.clone();
    let capture = Some(place.capture());
    Ok(Installation { place: Box::new(place), capture, damage })
}

impl Place for SwitchPlace {
    type Action = SwitchAction;
    type Facts = Facts;

    fn name(&self) -> &'static str {
        "switch"
    }

    fn unit(&self) -> &'static str {
        "tidegate-switch"
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
            // Another place's.
            _ => return None,
        };
        let notes = notes.iter().map(|n| (*n).into()).collect();
        Some(Capabilities { deadline: true, min: true, uplink: true, notes })
    }

    fn notes(&self, vnic: &Vnic) -> Vec<String> {
        let Some(of_all) = self.capabilities(&vnic.attach) else { return vec![] };
        of_all.notes.into_iter().chain(notes::queueing(vnic)).collect()
    }

    fn plan(
        &self,
        wanted: &Wanted<'_>,
        observed: &Observed,
        facts: &Facts,
    ) -> Result<Plan<SwitchAction>, Vec<Refusal>> {
        plan::plan(wanted, observed, facts)
    }

    fn prepare(&mut self, actions: &[&SwitchAction]) -> Result<(), PlaceError> {
        let coming = actions.iter().filter_map(|action| match action {
            SwitchAction::Contract(ContractChange::Create(vnic)) => Some(vnic),
            _ => None,
        });
        self.record.reserve(coming).map_err(not_recorded)?;
        let of_pairs = actions.iter().rev().find(|action| action.may_make_pairs());
        self.last_of_pairs = of_pairs.and_then(|action| Some(action.vnic()?.to_owned()));
        Ok(())
    }

    fn apply(&mut self, action: &SwitchAction) -> Result<(), PlaceError> {
        // A pair that loses its port must have lost it before it may send more.
        self.tell_granted()?;
        let result = self.do_action(action);
        if self.last_of_pairs.is_some() && self.last_of_pairs.as_deref() == action.vnic() {
            // A path is asked for within the same change.
            self.tell_pair_ports();
        }
        result
    }

    fn accept(&mut self, contracts: &[Vnic]) {
        self.last_of_pairs = None;
        contracts.iter().for_each(|vnic| self.record.own(&vnic.name));
    }

    fn observe(&mut self, coming: &[Vnic]) -> Result<(Observed, Facts), PlaceError> {
        self.look(coming)
    }

    fn recorded(&self) -> Vec<Vnic> {
        let ours = self.record.iter().filter(|(_, entry)| entry.found.is_none());
        ours.map(|(_, entry)| entry.vnic.clone()).collect()
    }
}

impl SwitchPlace {
    fn do_action(&mut self, action: &SwitchAction) -> Result<(), PlaceError> {
        use ContractChange::{Change, Create, Remove};
        match action {
            SwitchAction::SetHost { to, .. } => {
                // Not known until the switch has answered.
                self.switch.host = None;
                self.switch.ask(|s| s.client.set_host(to)).map_err(switch_failed)?;
                self.switch.host = Some(to.clone());
                Ok(())
            }
            SwitchAction::SetUplink { to, .. } => self.set_uplink(to),
            SwitchAction::RemoveUplink { name, .. } => self.remove_uplink(name),
            SwitchAction::Contract(Create(vnic)) => self.create(vnic),
            SwitchAction::Contract(Change { from, to }) => self.change(from, to),
            SwitchAction::Contract(Remove(vnic)) => self.remove(vnic),
            SwitchAction::Adopt(vnic) => self.adopt(vnic),
            SwitchAction::Release(vnic) => {
                self.record.remove(&vnic.name);
                Ok(())
            }
            SwitchAction::Reconnect(vnic) => self.reconnect(vnic),
            SwitchAction::Direct(directions) => {
                // A refusal is reported, and they are passed again later: it undoes no change.
                let answer = self.switch.ask(|s| s.client.direct(directions));
                self.directing.sent(Instant::now(), directions, answer.err().map(|e| e.to_string()));
                Ok(())
            }
        }
    }
}

/// Captures over a connection of its own: a capture and the reconciler do not wait for each other.
struct SwitchCapture(PathBuf);

impl Capture for SwitchCapture {
    fn capture(&self, vnic: &str, snaplen: u32, into: OwnedFd) -> Result<(), PlaceError> {
        let capture = || Client::connect(&self.0)?.with_answer_thread()?.capture(vnic, snaplen, into.as_fd());
        capture().map_err(switch_failed)
    }
}

/// The error of a record that cannot be written.
pub fn not_recorded(error: DurableError) -> PlaceError {
    PlaceError::Failed(format!("{error} (the agent records each object before it makes it)"))
}

/// The error of a question to the switch.
pub fn switch_failed(error: SwitchError) -> PlaceError {
    match error {
        SwitchError::Refused(why) => PlaceError::Failed(format!("the switch refused: {why}")),
        other => PlaceError::Unreachable(other.to_string()),
    }
}
