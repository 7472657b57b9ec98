//! The ports, and the workers' data about them.

use super::moves::Moves;
use super::shares::Shares;
use super::uplink::{PeerNumbers, UplinkEntry};
use crate::capacity::VNICS;
use crate::claims::NamedAddresses;
use crate::fdb::{PeerIndex, PortIndex, SegmentIndex};
use crate::neighbours::Neighbours;
use crate::port::{PortInfo, PortSet};
use crate::quota::Account;
use crate::vhost_user::listener::PortThread;
use crate::vhost_user::status::ConnectionStatus;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tidegate_contract::{Host, Mac, Segment, UPLINK, Uplink, Vnic};

/// All ports.
#[derive(Default)]
pub struct Table {
    /// Host-wide settings.
    pub host: Host,
    /// Ports, by vNIC name.
    pub entries: BTreeMap<String, Entry>,
    /// Uplinks, by name.
    pub uplinks: BTreeMap<String, UplinkEntry>,
    /// Addresses of vNICs of other hosts, as the workers have them.
    pub neighbours: Arc<Neighbours>,
    /// Addresses that vNICs share.
    pub shares: Shares,
    /// Remotes that their hosts announced, by segment and MAC.
    pub(super) moved: Moves,
    /// Segments in use, by index.
    segments: Vec<Option<Segment>>,
    /// Ports being removed, with their workers: their indices are not free yet.
    pub removing: Vec<(PortIndex, usize)>,
    /// Workers of vNICs in the previous process, before their ports exist here.
    pub previous_workers: BTreeMap<String, usize>,
}

/// One port.
pub struct Entry {
    /// Index of the port in all tables.
    pub index: PortIndex,
    /// The worker that owns it.
    pub worker: usize,
    /// Its segment.
    pub segment: SegmentIndex,
    /// The contract in force.
    pub vnic: Vnic,
    /// Creation time (ns, the workers' clock).
    pub since: u64,
    /// Its connection.
    pub end: End,
    /// The state of the guest's memory.
    pub memory: Memory,
    /// Limits of its front ends.
    pub _account: Account,
    /// Why the link broke, since the last front end came.
    pub broken: Option<String>,
    /// The data that the workers have.
    pub published: Option<PortInfo>,
}

/// What a deadline needs to know of a guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Every page is present, so the switch never faults; or no front end has shared memory.
    Whole,
    /// The kernel creates pages at the first access.
    Sparse,
    /// Pages are read from a disk, by this file system.
    OnDisk(&'static str),
}

/// The far end of a port.
pub enum End {
    /// A front end.
    Vhost {
        /// The thread that serves it.
        thread: PortThread,
        /// State of the connection.
        status: Arc<ConnectionStatus>,
        /// The listening socket; `None` if the agent connects to the front end.
        listener: Option<OwnedFd>,
    },
    /// A kernel tap.
    Tap {
        /// Duplicates of its descriptors, one per queue pair.
        queues: Vec<OwnedFd>,
    },
}

impl Entry {
    /// Returns why the deadline is suspended.
    pub fn suspended(&self) -> Option<&'static str> {
        self.vnic.deadline?;
        match self.memory {
            Memory::Whole => None,
            Memory::Sparse => Some(
                "guest memory is not preallocated, so it faults in the switch: add prealloc=on to the memory \
                 backend (libvirt: <memoryBacking><allocation mode='immediate'/></memoryBacking>)",
            ),
            Memory::OnDisk(_) => Some(
                "guest memory is on a disk, and the switch has to wait for the disk: use \
                 memory-backend-memfd, or memory-backend-file on tmpfs or hugetlbfs (libvirt: \
                 <memoryBacking><source type='memfd'/></memoryBacking>)",
            ),
        }
    }
}

impl Table {
    /// Returns a table without ports.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns an unused index that is not `taken`: `wanted` if possible, else one whose counters are not `reserved` for another
    /// vNIC, else any.
    pub fn free_index(
        &self,
        wanted: Option<PortIndex>,
        taken: &[PortIndex],
        reserved: impl Fn(PortIndex) -> bool,
    ) -> Option<PortIndex> {
        let used = |i: &PortIndex| {
            self.removing.iter().any(|(removing, _)| removing == i)
                || taken.contains(i)
                || self.entries.values().any(|e| e.index == *i)
                || self.uplinks.values().any(|uplink| uplink.indices().any(|index| index == *i))
        };
        let free = || (0..VNICS as PortIndex).filter(|i| !used(i));
        let wanted = wanted.filter(|i| !used(i));
        wanted.or_else(|| free().find(|i| !reserved(*i))).or_else(|| free().next())
    }

    /// Returns the worker of a new port: the previous one, else the one with fewest ports.
    pub fn worker_of(&mut self, name: &str, workers: usize) -> usize {
        let before = self.previous_workers.remove(name).filter(|worker| *worker < workers);
        before.unwrap_or_else(|| self.least_worker(workers))
    }

    fn least_worker(&self, workers: usize) -> usize {
        let load = |w: &usize| {
            let uplinks = self.uplinks.values().filter(|uplink| uplink.worker == *w).count();
            self.entries.values().filter(|e| e.worker == *w).count() + uplinks
        };
        (0..workers).min_by_key(load).unwrap_or(0)
    }

    /// Returns the index of a segment, a new one if it has none.
    pub fn segment(&mut self, segment: Segment) -> SegmentIndex {
        if let Some(i) = self.segments.iter().position(|s| *s == Some(segment)) {
            return SegmentIndex(i as u16);
        }
        let unused = |i: usize| !self.entries.values().any(|e| e.segment.0 as usize == i);
        let i = (0..self.segments.len()).find(|i| unused(*i)).unwrap_or(self.segments.len());
        if i == self.segments.len() {
            self.segments.push(None);
        }
        self.segments[i] = Some(segment);
        SegmentIndex(i as u16)
    }

    /// Returns the segments that ports are in.
    pub fn known_segments(&self) -> Vec<(SegmentIndex, Segment)> {
        let used: BTreeSet<u16> = self.entries.values().map(|entry| entry.segment.0).collect();
        let all = (0..).zip(&self.segments).filter(|(i, _)| used.contains(i));
        all.filter_map(|(i, segment)| Some((SegmentIndex(i), (*segment)?))).collect()
    }

    /// Returns a number for each peer of an uplink that is not in the table now: the one in `before`, else an
    /// unused one.
    ///
    /// # Errors
    /// There are more peers than numbers.
    pub fn number_peers(&self, uplink: &Uplink, before: &PeerNumbers) -> Result<PeerNumbers, String> {
        let others = self.uplinks.values().flat_map(UplinkEntry::numbers);
        let used: BTreeSet<PeerIndex> = others.chain(before.values().copied()).collect();
        let mut free =
            (0..PeerIndex::MOST).filter_map(PeerIndex::new).filter(|number| !used.contains(number));
        let numbers: Option<_> = (uplink.peers.iter())
            .map(|peer| (peer.name.clone(), peer.address))
            .map(|key| Some((key.clone(), before.get(&key).copied().or_else(|| free.next())?)))
            .collect();
        numbers.ok_or_else(|| format!("a switch has at most {} peers", PeerIndex::MOST))
    }

    /// Returns the vNICs towards which others have a deadline.
    pub fn receivers_with_deadlines(&self) -> BTreeSet<&str> {
        let senders = self.entries.values().filter(|entry| entry.vnic.deadline.is_some());
        let here = senders.flat_map(|entry| &entry.vnic.to);
        let remotes = self.uplinks.values().flat_map(|uplink| &uplink.remotes);
        let there = remotes.filter(|remote| remote.deadline.is_some()).flat_map(|remote| &remote.to);
        here.chain(there).map(String::as_str).collect()
    }

    /// Returns the owner of an address in a segment.
    pub fn owner_of(&self, segment: Segment, mac: Mac) -> Option<&str> {
        let owns = |vnic: &Vnic| vnic.segment == segment && macs(vnic).any(|own| own == mac);
        self.entries.values().find(|e| owns(&e.vnic)).map(|e| e.vnic.name.as_str())
    }

    /// Returns the ports of each segment, and the link-local addresses that contracts there name.
    pub fn segments(&self) -> (Vec<Vec<PortIndex>>, Arc<[NamedAddresses]>) {
        let mut segments: Vec<Vec<&Entry>> = vec![vec![]; self.segments.len()];
        for entry in self.entries.values() {
            segments[entry.segment.0 as usize].push(entry);
        }
        let mut members: Vec<Vec<PortIndex>> =
            segments.iter().map(|here| here.iter().map(|entry| entry.index).collect()).collect();
        for (index, segment) in self.known_segments() {
            let carries =
                |uplink: &&UplinkEntry| uplink.uplink.peers.iter().any(|peer| peer.carries(segment));
            members[usize::from(index.0)]
                .extend(self.uplinks.values().filter(carries).map(|uplink| uplink.index));
        }
        let named =
            segments.iter().map(|here| NamedAddresses::new(here.iter().map(|entry| &entry.vnic))).collect();
        (members, named)
    }

    /// Returns the data about a port for the workers.
    pub fn info(&self, entry: &Entry) -> PortInfo {
        let mut to = PortSet::EMPTY;
        for name in &entry.vnic.to {
            if let Some(egress) = self.entries.get(name)
                && egress.segment == entry.segment
            {
                to.insert(egress.index);
            }
            let leads_there = |uplink: &&UplinkEntry| {
                name == UPLINK || uplink.remotes.iter().any(|remote| remote.name == *name)
            };
            self.uplinks.values().filter(leads_there).for_each(|uplink| to.insert(uplink.index));
        }
        let away =
            self.uplinks.values().filter(|uplink| entry.vnic.deadline.is_some() && to.contains(uplink.index));
        let away = away.filter_map(|uplink| Some((uplink.index, uplink.away(&entry.vnic)?))).collect();
        let mut info = PortInfo::new(&entry.vnic, entry.worker as u16, entry.segment, to);
        info.away = away;
        if entry.suspended().is_some() {
            info.deadline = None;
        }
        info
    }
}

/// Returns all addresses of a contract.
pub fn macs(vnic: &Vnic) -> impl Iterator<Item = Mac> {
    std::iter::once(vnic.mac).chain(vnic.allowed.macs.iter().copied())
}
