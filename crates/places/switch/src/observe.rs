//! What is in force: what the switch says of its ports, and what is ours of it.

use crate::conversation::Conversation;
use crate::duplicate::Duplicate;
use crate::place::{SwitchPlace, switch_failed};
use crate::plan::{self, AttachmentKey, Found, attachment_key};
use crate::record::Entry;
use crate::tap;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use tidegate_contract::{Attach, SocketMode, Vnic};
use tidegate_evidence::Connection;
use tidegate_evidence::VnicStats;
use tidegate_evidence::{Evidence, FrontEnds};
use tidegate_paths::socket::{self, Earlier};
use tidegate_paths::{Inode, PathError};
use tidegate_place::{Keeper, Observed, ObservedVnic, PlaceError};
use tidegate_switch::control::{Hello, PortStatus};
use tidegate_switch::stats::Reader;

/// What is kept of a vNIC of one queue pair: its listening socket and connection, the descriptors of its rings, and
/// regions of an ordinary guest's memory.
const DESCRIPTORS: usize = 12;

impl SwitchPlace {
    /// [`tidegate_place::Place::observe`].
    pub(crate) fn look(&mut self, coming: &[Vnic]) -> Result<(Observed, Found), PlaceError> {
        // What is in force goes on being looked at and put right while nothing can be written.
        let problem = self.record.save().err().map(|e| format!("no change can be made: {e}"));
        // As below: the switch has no programs loaded and unloaded as it likes.
        let has_deadline = self.record.iter().any(|(_, made)| made.vnic.deadline.is_some());
        let culprits = &mut self.culprits;
        let asked = self.switch.ask(|session| {
            let ports = session.client.ports()?;
            let Hello { version, pid, started, .. } = session.hello.clone();
            let mut evidence = evidence(&session.reader);
            culprits.observe(pid, has_deadline);
            culprits.look(&session.reader, evidence.misses.keys().map(String::as_str));
            culprits.enter(&mut evidence);
            Ok((ports, evidence, Keeper { version, pid, started }))
        });
        let (ports, evidence, keeper) = asked.map_err(switch_failed)?;
        let ports: Vec<PortStatus> = ports.into_iter().map(|port| self.believed(port)).collect();
        self.find_sockets(&ports);
        self.check_budget(ports.len());
        // The agent is not going to make these again.
        let (record, Conversation { predecessor, fdstore, .. }) = (&self.record, &mut self.switch);
        predecessor.connections.retain(|name, _| {
            // What the switch says itself is the truth.
            record.get(name).is_some() && fdstore.as_ref().is_none_or(|fdstore| !fdstore.knows(name))
        });
        predecessor.links.retain(|name, _| record.get(name).is_some());
        let mut vnics: BTreeMap<String, ObservedVnic> =
            ports.into_iter().map(|p| (p.vnic.name.clone(), self.observed(p))).collect();
        for (name, made) in self.record.iter() {
            vnics.entry(name.clone()).or_insert_with(|| ObservedVnic {
                present: false,
                ..ObservedVnic::of(&made.vnic, Connection::Disconnected)
            });
        }
        // By what we gave them: what the switch says of queues and deadlines would have the agent work without end.
        let given = self.record.iter().filter(|(name, _)| vnics.get(*name).is_some_and(|vnic| vnic.present));
        let given = given.map(|(_, made)| &made.vnic);
        let own_cpus = self.own_cpus.as_mut().map(|own| own.keep(given, &evidence));
        let own_cpus = own_cpus.cloned().unwrap_or_default();
        let new = coming.iter().filter(|v| vnics.get(&v.name).is_none_or(|o| o.vnic.attach != v.attach));
        // The plan refuses more vNICs than the switch carries: what else is in their way does not matter.
        let new = new.take(plan::MOST);
        let mut ours = HashMap::new();
        for (_, entry) in self.record.iter() {
            attachment_key(&entry.vnic).map(|key| ours.entry(key).or_insert(entry));
        }
        let obstacles = new.filter_map(|v| Some((v.name.clone(), self.obstacle(v, &ours)?))).collect();
        let found = self.record.iter().filter_map(|(name, entry)| Some((name.clone(), entry.found.clone()?)));
        let found = found.collect();
        let host = self.switch.host.clone();
        Ok((Observed { host, vnics, obstacles, evidence, keeper, own_cpus, problem }, found))
    }

    /// Says, once, that descriptors of so many vNICs may be more than are kept.
    fn check_budget(&mut self, vnics: usize) {
        let (kept, needed) = (self.switch.budget.most(), vnics * DESCRIPTORS);
        let was_short = std::mem::replace(&mut self.is_short, kept < needed);
        if self.is_short && !was_short {
            tracing::warn!(
                kept,
                needed,
                "duplicates of the switch's descriptors may be more than are kept, half of RLIMIT_NOFILE \
                 (LimitNOFILE= of tidegate-agent.service): front ends of {vnics} vNICs may have to connect again when \
                 the switch crashes"
            );
        }
    }

    /// A port as the switch tells of it, with the attachment that the agent's own record has. An attacker with the
    /// switch in his hands would otherwise name files for the agent to make, to give away and to remove.
    fn believed(&self, mut port: PortStatus) -> PortStatus {
        if let Some(made) = self.record.get(&port.vnic.name)
            && port.vnic.attach != made.vnic.attach
        {
            tracing::error!(
                vnic = port.vnic.name,
                "the switch says that it is attached to something else than it was given"
            );
            port.vnic.attach = made.vnic.attach.clone();
        }
        port
    }

    /// An agent that died while it made a port's socket did not note the file: it is the one that the port listens at.
    fn find_sockets(&mut self, ports: &[PortStatus]) {
        for port in ports.iter().filter(|p| p.connection == Connection::Waiting) {
            if let Attach::VhostUser { path, mode: SocketMode::Server, .. } = &port.vnic.attach
                && let Some(made) = self.record.get(&port.vnic.name).filter(|made| made.socket.is_none())
                && let Some(inode) = self.entry(path).ok().and_then(|entry| socket::listened_at(&entry))
            {
                let given = made.vnic.clone();
                self.record.put(&given, Some(inode));
            }
        }
    }

    /// The recorded socket file; for a vNIC that was not ours, the file at its path.
    pub(crate) fn socket_of(&self, vnic: &Vnic) -> Option<Inode> {
        if let Some(made) = self.record.get(&vnic.name) {
            return made.socket;
        }
        match &vnic.attach {
            Attach::VhostUser { path, mode: SocketMode::Server, .. } => self.socket_at(path),
            _ => None,
        }
    }

    /// What stands in the way of an attachment that is to be made; what is ours does not.
    fn obstacle(&self, vnic: &Vnic, ours: &HashMap<AttachmentKey<'_>, &Entry>) -> Option<String> {
        let ours = ours.get(&attachment_key(vnic)?);
        match &vnic.attach {
            Attach::VhostUser { path, mode: SocketMode::Server, .. } => {
                let earlier = ours.map_or(Earlier::None, |made| made.earlier());
                self.entry(path).map_or_else(Some, |entry| socket::obstacle(&entry, earlier))
            }
            // A front end need not listen there yet.
            Attach::VhostUser { path, mode: SocketMode::Client, .. } => self.paths.sockets.refuse(path),
            Attach::Tap { name, netns } => {
                if ours.is_some() {
                    return None;
                }
                self.namespace(netns.as_deref()).map_or_else(Some, |netns| tap::obstacle(name, netns))
            }
            _ => None,
        }
    }

    /// Whether the socket that this agent made is gone from its path. `false` where the path is outside the roots by now,
    /// or the file at it cannot be looked at.
    fn is_gone(&self, path: &Path, made: Option<Inode>) -> bool {
        match self.paths.sockets.entry(path) {
            // Made when it was allowed: what is in force stays.
            Err(PathError::Outside { .. }) => false,
            Err(_) => true,
            Ok(entry) => entry.look().is_ok_and(|there| made.is_none() || there.inode() != made),
        }
    }

    fn observed(&self, port: PortStatus) -> ObservedVnic {
        let name = &port.vnic.name;
        let made = self.record.get(name);
        let broken = match (&port.vnic.attach, self.duplicates.get(name)) {
            (Attach::Tap { name: interface, .. }, Some(Duplicate::Tap(queues))) => {
                tap::broken(&queues[0], interface)
            }
            // A connected front end does not need the path any more: leave it alone.
            (Attach::VhostUser { path, mode: SocketMode::Server, .. }, _)
                if port.connection == Connection::Waiting =>
            {
                made.filter(|made| self.is_gone(path, made.socket))
                    .map(|_| format!("socket {} is gone, or another program replaced it", path.display()))
            }
            _ => None,
        };
        let quarantine = port.held.quarantine.as_ref();
        let refused = (port.refused_connections > 0 && quarantine.is_none()).then(|| {
            format!(
                "{} further front ends were turned away: one is connected already",
                port.refused_connections
            )
        });
        let notes = [
            broken.clone(),
            self.waiting.get(name).cloned(),
            // Why the last front end went says little while none listens, or another one is up.
            port.last_error
                .clone()
                .filter(|_| !self.waiting.contains_key(name) && port.connection != Connection::Up)
                .filter(|_| quarantine.is_none())
                .map(|why| format!("the last front end was disconnected: {why}")),
            quarantine.map(|it| format!("no front end is taken for another {} s: {}", it.left, it.reason)),
            port.closing
                .then(|| "no front end is taken yet: closing what the last one shared takes long".to_owned()),
            port.heir.then(|| "another front end waits for the one that is connected to leave".to_owned()),
            refused,
        ];
        let front_ends = FrontEnds {
            last_error: port.last_error,
            refused_connections: port.refused_connections,
            heir: port.heir,
            thrown_out: port.thrown_out.into_iter().filter(|(_, count)| *count > 0).collect(),
            held: port.held,
        };
        ObservedVnic {
            ours: made.is_some(),
            present: true,
            connection: port.connection,
            broken,
            worker: Some(port.worker),
            shared: port.shared,
            pending: None,
            suspended: port.deadline_suspended,
            front_ends,
            notes: notes.into_iter().flatten().collect(),
            vnic: port.vnic,
        }
    }
}

/// The counters of the switch.
pub fn evidence(reader: &Reader) -> Evidence {
    let vnics: BTreeMap<_, _> = reader.vnics().into_iter().map(|s| (s.name.clone(), s)).collect();
    let unsure = |s: &VnicStats| s.misses_possible > 0 || s.misses_asleep > 0;
    let missed = vnics.values().filter(|s| !s.misses.is_empty() || unsure(s));
    Evidence {
        misses: missed.map(|s| (s.name.clone(), reader.misses(&s.name))).collect(),
        workers: reader.workers(),
        counts_latency: true,
        denied_calls: reader.denied_calls(),
        log: Some(reader.log()),
        vnics,
        ..Evidence::nothing("the host switch: shared memory")
    }
}
