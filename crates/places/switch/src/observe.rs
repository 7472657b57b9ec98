//! Observes the state in force: the switch's ports, and our part of them.

use crate::action::{Declared, DeclaredKey};
use crate::conversation::Conversation;
use crate::duplicate::Duplicate;
use crate::place::{SwitchPlace, switch_failed};
use crate::plan::{self, AttachmentKey, Facts, PresentUplink, attachment_key};
use crate::record::Entry;
use crate::stages::{self, Measured, Port, Scene, UplinkPort};
use crate::tap;
use crate::uplinks::pair_ports;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::Instant;
use tidegate_contract::{Attach, SocketMode, Vnic};
use tidegate_cores::cpus::{self, Cpus};
use tidegate_evidence::Connection;
use tidegate_evidence::VnicStats;
use tidegate_evidence::{Evidence, FarMiss, FrontEnds, SocketCounts, time_of_day};
use tidegate_paths::socket::{self, Earlier};
use tidegate_paths::{Inode, PathError};
use tidegate_place::{Observed, ObservedUplink, ObservedVnic, PlaceError, PlaceProgram};
use tidegate_switch::control::{Hello, PortStatus, SwitchError, UplinkStatus};
use tidegate_switch::stats::Reader;

/// Descriptors of a vNIC with one queue pair: its listening socket and connection, its rings' descriptors,
/// and the regions of an ordinary guest's memory.
const DESCRIPTORS: usize = 12;

impl SwitchPlace {
    /// [`tidegate_place::Place::observe`].
    pub(crate) fn look(&mut self, coming: &[Vnic]) -> Result<(Observed, Facts), PlaceError> {
        // Contracts in force are still observed and repaired while the disk is full.
        let problem = self.record.save().err().map(|e| format!("no change can be made: {e}"));
        // By our own record: the switch must not load and unload programs at will.
        let has_deadline = self.record.iter().any(|(_, recorded)| recorded.vnic.deadline.is_some());
        let (culprits, directing) = (&mut self.culprits, &mut self.directing);
        let answer = self.switch.ask(|session| {
            let (ports, uplinks) = (session.client.ports()?, session.client.uplinks()?);
            if !session.hello.rdma.is_empty() {
                // A device gets addresses, and its port another MTU, while the switch runs.
                match session.client.hello() {
                    Ok((now, ..)) => session.hello.rdma = now.rdma,
                    // It cannot pass its statistics again for now.
                    Err(SwitchError::Refused(_)) => {}
                    Err(error) => return Err(error),
                }
            }
            let Hello { version, pid, started, workers, directable, .. } = session.hello.clone();
            let Hello { knows_rdma, knows_zero_copy, rdma, .. } = session.hello.clone();
            let rdma = (knows_rdma.then_some(rdma), knows_rdma && knows_zero_copy);
            if directing.see(Instant::now(), started, directable) {
                directing.reported(Instant::now(), session.client.work()?);
            }
            let mut evidence = evidence(&session.reader);
            culprits.observe(pid, has_deadline);
            culprits.look(&session.reader, evidence.misses.keys().map(String::as_str));
            culprits.enter(&mut evidence);
            Ok(((ports, uplinks, rdma), evidence, PlaceProgram { version, pid, started }, workers))
        });
        let ((ports, mut uplinks, (rdma, knows_zero_copy)), mut evidence, program, workers) =
            answer.map_err(switch_failed)?;
        if !uplinks.is_empty() {
            self.attach_filter();
        }
        let mut ports: Vec<PortStatus> =
            ports.into_iter().map(|port| self.with_recorded_attachment(port)).collect();
        if rdma.is_none() {
            self.add_rdma(&mut ports, &mut uplinks);
        }
        if !knows_zero_copy {
            self.add_zero_copy(&mut ports);
        }
        let measured = self.loads.see(Instant::now(), program.started, &evidence);
        let scene = self.scene((&ports, &uplinks), (&evidence, workers), measured);
        let (stages, links) = (scene.stages(), scene.links(&self.traffic(&ports, &uplinks)));
        let not_followed = self.directing.not_followed(Instant::now());
        self.find_sockets(&ports);
        evidence.sockets = self.follow_workers(&ports, &uplinks);
        self.check_budget(ports.len());
        // The agent does not make these again.
        let (record, Conversation { predecessor, fdstore, .. }) = (&self.record, &mut self.switch);
        predecessor.connections.retain(|name, _| {
            // The switch's own answer prevails.
            record.get(name).is_some() && fdstore.as_ref().is_none_or(|fdstore| !fdstore.knows(name))
        });
        predecessor.links.retain(|name, _| record.get(name).is_some());
        let mut vnics: BTreeMap<String, ObservedVnic> =
            ports.into_iter().map(|p| (p.vnic.name.clone(), self.observed(p))).collect();
        for (name, recorded) in self.record.iter() {
            vnics.entry(name.clone()).or_insert_with(|| ObservedVnic {
                present: false,
                ..ObservedVnic::of(&recorded.vnic, Connection::Disconnected)
            });
        }
        let problem = problem.or(self.learn_ports(&uplinks).err().map(|e| {
            format!("the source ports of pairs cannot be recorded: a switch that is started anew may exchange them: {e}")
        }));
        self.pair_ports.tell(pair_ports(&uplinks));
        // An uplink that the switch does not have is declared anew, with the pairs that may use their ports.
        self.granted.retain(|name, _| uplinks.iter().any(|status| status.uplink.name == *name));
        if let Err(error) = self.tell_granted() {
            tracing::warn!(%error, "the switch cannot be told which pairs may use their source ports; trying again soon");
        }
        let new = coming.iter().filter(|v| vnics.get(&v.name).is_none_or(|o| o.vnic.attach != v.attach));
        // The plan refuses more vNICs than the switch carries: other obstacles do not matter then.
        let new = new.take(plan::MOST);
        let mut own_entries = HashMap::new();
        for (_, entry) in self.record.iter() {
            attachment_key(&entry.vnic).map(|key| own_entries.entry(key).or_insert(entry));
        }
        let obstacles = new.filter_map(|v| Some((v.name.clone(), self.obstacle(v, &own_entries)?))).collect();
        let found = self.record.iter().filter_map(|(name, entry)| Some((name.clone(), entry.found.clone()?)));
        for UplinkStatus { uplink, peers, far_misses, pairs, rdma, .. } in &mut uplinks {
            evidence.peers.append(peers);
            evidence.rdma.extend(rdma.take().map(|rdma| (uplink.name.clone(), *rdma)));
            evidence.pairs.insert(uplink.name.clone(), std::mem::take(pairs));
            let at = |miss: FarMiss| FarMiss { at: time_of_day(miss.at), ..miss };
            evidence.far_misses.extend(far_misses.drain(..).map(at));
        }
        let now = Instant::now();
        let mut observed_uplinks = BTreeMap::new();
        let mut present = BTreeMap::new();
        for status in uplinks {
            let name = status.uplink.name.clone();
            let observed = self.observed_uplink(&status);
            let UplinkStatus { uplink, mut remotes, mut keys, .. } = status;
            keys.sort_by_key(|print| print.segment);
            remotes.sort_by(|a, b| a.name.cmp(&b.name));
            let keys = keys.into_iter().map(|print| DeclaredKey { print, keys: None }).collect();
            let mut declared = Declared { uplink, remotes, keys };
            let by_us = self.declared.get(&name).filter(|by_us| **by_us == declared);
            let ours = by_us.is_some();
            if let Some(by_us) = by_us {
                // With the keys, which the switch does not tell.
                declared = by_us.clone();
            }
            let is_due = || self.mending.get(&name).is_none_or(|mending| mending.is_due(now));
            let repair = observed.broken.is_some() && is_due();
            present.insert(name.clone(), PresentUplink { declared, ours, repair });
            observed_uplinks.insert(name, observed);
        }
        let directing = self.directing.facts(now);
        let facts = Facts { adopted: found.collect(), uplinks: present, directing, rdma, knows_zero_copy };
        let host = self.switch.host.clone();
        let uplinks = observed_uplinks;
        let observed = Observed::nothing("");
        let observed = Observed { host, vnics, uplinks, obstacles, evidence, program, problem, ..observed };
        Ok((Observed { stages, links, not_followed, ..observed }, facts))
    }

    /// Returns the work of the switch, which has so many `workers`. Contracts and uplinks are those of our record.
    fn scene<'a>(
        &'a self,
        (ports, uplinks): (&'a [PortStatus], &'a [UplinkStatus]),
        (evidence, workers): (&Evidence, usize),
        measured: Measured,
    ) -> Scene<'a> {
        let ports = ports.iter().map(|port| (port.vnic.name.as_str(), port));
        let ports = stages::on_record(ports, |name| self.record.get(name)).map(|(port, recorded)| Port {
            vnic: &recorded.vnic,
            worker: port.worker,
            suspended: port.deadline_suspended.is_some(),
        });
        let uplinks = uplinks.iter().map(|status| (status.uplink.name.as_str(), status));
        let uplinks = stages::on_record(uplinks, |name| self.declared.get(name));
        let uplinks = uplinks.map(|(status, declared)| UplinkPort {
            name: &declared.uplink.name,
            worker: status.worker,
            remotes: &declared.remotes,
        });
        Scene {
            ports: ports.collect(),
            uplinks: uplinks.collect(),
            bound: stages::bound(evidence, workers, &online()),
            workers_pinned: self.directing.cpus_pinned(),
            ports_pinned: self.directing.workers_pinned(),
            measured,
        }
    }

    /// Returns the traffic between ports, as the switch reports it: sender, receiver, cost a second.
    fn traffic<'a>(
        &self,
        ports: &'a [PortStatus],
        uplinks: &'a [UplinkStatus],
    ) -> Vec<(&'a str, &'a str, u64)> {
        let of_ports = ports.iter().map(|port| (port.index, port.vnic.name.as_str()));
        let of_uplinks = uplinks.iter().map(|status| (status.index, status.uplink.name.as_str()));
        let names: HashMap<usize, &str> = of_ports.chain(of_uplinks).collect();
        let name = |index: u16| names.get(&usize::from(index)).copied();
        let pairs = self.directing.status().map_or(&[][..], |status| &status.traffic);
        pairs.iter().filter_map(|(from, to, cost)| Some((name(*from)?, name(*to)?, *cost))).collect()
    }

    fn observed_uplink(&self, status: &UplinkStatus) -> ObservedUplink {
        let following = self.nic_tables.notes(&status.uplink.name);
        ObservedUplink {
            uplink: status.uplink.clone(),
            worker: Some(status.worker),
            broken: self.why_broken(status),
            notes: self.why_unfiltered().into_iter().chain(following).collect(),
        }
    }

    /// Lets the tables of NICs follow the workers of vNICs; returns the frames by queue and worker, by uplink.
    fn follow_workers(
        &mut self,
        ports: &[PortStatus],
        uplinks: &[UplinkStatus],
    ) -> BTreeMap<String, Vec<SocketCounts>> {
        let Self { record, declared, uplink_sockets, nic_tables, .. } = self;
        // By our own record: the switch chooses workers, and no addresses.
        let workers: HashMap<&str, usize> =
            ports.iter().map(|port| (port.vnic.name.as_str(), port.worker)).collect();
        // In the record's order, by name: the switch's chooses no vNIC when addresses have no room.
        let vnics: Vec<_> =
            record.iter().filter_map(|(name, own)| Some((&own.vnic, *workers.get(name.as_str())?))).collect();
        nic_tables.retain(|name| declared.contains_key(name));
        let counts = uplinks.iter().filter_map(|status| {
            let name = &status.uplink.name;
            // The switch's word alone names no device whose table the agent changes.
            let uplink = &declared.get(name)?.uplink;
            let made = uplink_sockets.get(name).map_or(&[][..], |kept| &kept.sockets.receive);
            Some((name.clone(), nic_tables.follow(uplink, &status.sockets, &vnics, made)?))
        });
        counts.collect()
    }

    /// Warns once that the descriptors of so many vNICs may exceed the limit.
    fn check_budget(&mut self, vnics: usize) {
        let (kept, needed) = (self.switch.budget.most(), vnics * DESCRIPTORS);
        let was_short = std::mem::replace(&mut self.is_short, kept < needed);
        if self.is_short && !was_short {
            tracing::warn!(
                kept,
                needed,
                "the switch's descriptors may be more than the agent stores, half of RLIMIT_NOFILE (LimitNOFILE= of \
                 tidegate-agent.service): front ends of {vnics} vNICs may have to connect again when the switch crashes"
            );
        }
    }

    /// Returns a port's status with the attachment of our own record. An attacker in the switch could
    /// otherwise name files for the agent to make, to give away and to remove.
    fn with_recorded_attachment(&self, mut port: PortStatus) -> PortStatus {
        if let Some(recorded) = self.record.get(&port.vnic.name)
            && port.vnic.attach != recorded.vnic.attach
        {
            tracing::error!(
                vnic = port.vnic.name,
                "the switch reports another attachment than the agent gave to it"
            );
            port.vnic.attach = recorded.vnic.attach.clone();
        }
        port
    }

    /// Adds the RDMA of our own record to contracts and uplinks of a switch that was told of none: it does not differ from
    /// what is wanted.
    fn add_rdma(&self, ports: &mut [PortStatus], uplinks: &mut [UplinkStatus]) {
        for port in ports {
            if let Some(recorded) = self.record.get(&port.vnic.name) {
                port.vnic.transport = recorded.vnic.transport;
            }
        }
        for UplinkStatus { uplink, .. } in uplinks {
            uplink.rdma = self.declared.get(&uplink.name).and_then(|declared| declared.uplink.rdma.clone());
        }
    }

    /// Adds the zero copy of our own record to contracts; likewise.
    fn add_zero_copy(&self, ports: &mut [PortStatus]) {
        for port in ports {
            if let Some(recorded) = self.record.get(&port.vnic.name) {
                port.vnic.zero_copy = recorded.vnic.zero_copy;
            }
        }
    }

    /// An agent that died while it made a port's socket did not record the file: it is the one at which the
    /// port listens.
    fn find_sockets(&mut self, ports: &[PortStatus]) {
        for port in ports.iter().filter(|p| p.connection == Connection::Waiting) {
            if let Attach::VhostUser { path, mode: SocketMode::Server, .. } = &port.vnic.attach
                && let Some(recorded) =
                    self.record.get(&port.vnic.name).filter(|recorded| recorded.socket.is_none())
                && let Some(inode) = self.entry(path).ok().and_then(|entry| socket::listened_at(&entry))
            {
                let vnic = recorded.vnic.clone();
                self.record.put(&vnic, Some(inode));
            }
        }
    }

    /// Returns the recorded socket file; for another agent's vNIC, the file at its path.
    pub(crate) fn socket_of(&self, vnic: &Vnic) -> Option<Inode> {
        if let Some(recorded) = self.record.get(&vnic.name) {
            return recorded.socket;
        }
        match &vnic.attach {
            Attach::VhostUser { path, mode: SocketMode::Server, .. } => self.socket_at(path),
            _ => None,
        }
    }

    /// Returns the obstacle to a new attachment; our own objects are none.
    fn obstacle(&self, vnic: &Vnic, ours: &HashMap<AttachmentKey<'_>, &Entry>) -> Option<String> {
        let ours = ours.get(&attachment_key(vnic)?);
        match &vnic.attach {
            Attach::VhostUser { path, mode: SocketMode::Server, .. } => {
                let earlier = ours.map_or(Earlier::None, |recorded| recorded.earlier());
                self.entry(path).map_or_else(Some, |entry| socket::obstacle(&entry, earlier))
            }
            // A front end may listen there later.
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

    /// Whether this agent's socket is gone from its path. `false` if the path is outside the roots now, or
    /// the file there cannot be read.
    fn is_gone(&self, path: &Path, recorded: Option<Inode>) -> bool {
        match self.paths.sockets.entry(path) {
            // Made when it was allowed: the contract in force stays.
            Err(PathError::Outside { .. }) => false,
            Err(_) => true,
            Ok(entry) => entry.look().is_ok_and(|there| recorded.is_none() || there.inode() != recorded),
        }
    }

    fn observed(&self, port: PortStatus) -> ObservedVnic {
        let name = &port.vnic.name;
        let recorded = self.record.get(name);
        let broken = match (&port.vnic.attach, self.duplicates.get(name)) {
            (Attach::Tap { name: interface, .. }, Some(Duplicate::Tap(queues))) => {
                tap::broken(&queues[0], interface)
            }
            // A connected front end does not need the path any more.
            (Attach::VhostUser { path, mode: SocketMode::Server, .. }, _)
                if port.connection == Connection::Waiting =>
            {
                recorded
                    .filter(|recorded| self.is_gone(path, recorded.socket))
                    .map(|_| format!("socket {} is gone, or another program replaced it", path.display()))
            }
            _ => None,
        };
        let undirected = self
            .directing
            .not_followed_by(Instant::now(), name)
            .map(|why| format!("it is not at the worker that the plan of CPUs gives it: {why}"));
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
            // The last error says little while no front end listens, or another one is connected.
            port.last_error
                .clone()
                .filter(|_| !self.waiting.contains_key(name) && port.connection != Connection::Up)
                .filter(|_| quarantine.is_none())
                .map(|why| format!("the last front end was disconnected: {why}")),
            quarantine.map(|it| {
                format!("the switch accepts no front end for another {} s: {}", it.remaining, it.reason)
            }),
            port.closing.then(|| {
                "the switch accepts no front end yet: it still closes objects that the last front end shared"
                    .to_owned()
            }),
            port.heir.then(|| "another front end waits until the connected front end leaves".to_owned()),
            refused,
            undirected,
        ];
        let front_ends = FrontEnds {
            last_error: port.last_error,
            refused_connections: port.refused_connections,
            heir: port.heir,
            thrown_out: port.thrown_out.into_iter().filter(|(_, count)| *count > 0).collect(),
            held: port.held,
        };
        ObservedVnic {
            ours: recorded.is_some(),
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

/// Returns the CPUs that run; none if the kernel does not tell.
fn online() -> Cpus {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    cpus::from_list(&text).unwrap_or_default()
}

/// Returns the switch's counters.
pub fn evidence(reader: &Reader) -> Evidence {
    let vnics: BTreeMap<_, _> = reader.vnics().into_iter().map(|s| (s.name.clone(), s)).collect();
    let unsure = |s: &VnicStats| s.misses_possible > 0 || s.misses_asleep > 0;
    let missed = vnics.values().filter(|s| !s.misses.is_empty() || unsure(s));
    Evidence {
        misses: missed.map(|s| (s.name.clone(), reader.misses(&s.name))).collect(),
        workers: reader.workers(),
        counts_latency: true,
        counts_flows: true,
        denied_calls: reader.denied_calls(),
        log: Some(reader.log()),
        vnics,
        ..Evidence::empty("the host switch: shared memory")
    }
}
