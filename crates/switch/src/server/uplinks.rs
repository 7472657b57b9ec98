//! Creates, changes and removes uplinks, under the table's lock.
//!
//! ```text
//!  contract: Uplink, Remotes ─┐
//!  ports' segments ───────────┴▶ Peers: addresses, VNIs ─▶ link, at its worker
//!                              ▶ pins: (segment, MAC) ─▶ peer, in the FDB
//! ```
//!
//! A peer's number stays as long as its name and address do; the FDB forgets a peer that leaves.

use super::Switch;
use super::lane::Lane;
use super::moves::Moves;
use super::pairs::{Pairs, Wanted};
use super::rdma::status_of;
use super::table::{Entry, Table};
use super::uplink::{KnownSegments, UplinkEntry};
use super::wanted_pairs;
use crate::capacity::VNICS;
use crate::clock::clock;
use crate::control::message::{PortOrders, UplinkStatus};
use crate::fdb::{Destination, PortIndex, SegmentIndex};
use crate::link::{Link, nic, vxlan};
use crate::neighbours::Neighbours;
use crate::port::{Port, PortInfo};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tidegate_contract::{Host, Mac, Remote, SegmentKey, Uplink, UplinkKind};

/// Longest train (bytes): the most that one message to a UDP socket carries.
const TRAIN: usize = 65_507;

/// The sockets of an uplink, as its link takes them.
pub struct Sockets {
    /// Bound to the uplink's port, or device.
    pub receive: Vec<OwnedFd>,
    /// Each with a source port of its own; of AF_XDP the memory of each queue, and the program's link.
    pub send: Vec<OwnedFd>,
    /// The same, each for one pair of vNICs with stamps.
    pub pairs: Vec<OwnedFd>,
    /// Source ports of these, in order.
    pub ports: Vec<u16>,
    /// Sends and receives notices.
    pub notices: Option<OwnedFd>,
}

/// vNICs behind an uplink's peers, keys of segments, and orders for the source ports of pairs.
pub type OfUplink = (Vec<Remote>, Vec<SegmentKey>, PortOrders);

impl Switch {
    /// Returns the state of all uplinks.
    pub fn uplinks(&self) -> Vec<UplinkStatus> {
        let status = |entry: &UplinkEntry| {
            let (peers, far_misses) = self.notices.status(entry.index);
            UplinkStatus {
                uplink: entry.uplink.clone(),
                remotes: entry.remotes.clone(),
                keys: entry.pairs.prints(),
                index: entry.index.into(),
                worker: entry.worker,
                sockets: entry.ports().map(|(_, worker)| worker).collect(),
                pairs: entry.pairs.status(),
                foreign_stamps: entry.pairs.foreign(),
                broken: entry.broken.clone(),
                peers,
                far_misses,
                rdma: status_of(&entry.uplink, entry.rdma.as_ref()).map(Box::new),
            }
        };
        self.lock().uplinks.values().map(status).collect()
    }

    /// Creates an uplink on `sockets`, or changes one; without sockets, it keeps those that it has.
    ///
    /// # Errors
    /// Nothing has changed: the reason.
    pub fn set_uplink(
        &self,
        uplink: Uplink,
        of_it: OfUplink,
        sockets: Option<Sockets>,
    ) -> Result<(), String> {
        // Without the lock: the device registers memory.
        let lane = sockets.as_ref().and_then(|_| self.lane(&uplink));
        let mut table = self.lock();
        let name = uplink.name.clone();
        if table.entries.contains_key(&name) {
            return Err(format!("{name} is a vNIC; give the uplink another name"));
        }
        match (sockets, table.uplinks.contains_key(&name)) {
            (None, false) => Err(format!("{name} is not an uplink yet, and no sockets came with it")),
            (None, true) => self.change_uplink(&mut table, uplink, of_it),
            (Some(sockets), true) => {
                drop(table);
                drop(lane);
                self.remove_uplink(&name)?;
                self.set_uplink(uplink, of_it, Some(sockets))
            }
            (Some(sockets), false) => self.add_uplink(&mut table, uplink, of_it, sockets, lane),
        }
    }

    fn add_uplink(
        &self,
        table: &mut Table,
        uplink: Uplink,
        (remotes, keys, orders): OfUplink,
        mut sockets: Sockets,
        rdma: Option<Result<Arc<Lane>, String>>,
    ) -> Result<(), String> {
        if sockets.receive.is_empty() || sockets.send.is_empty() {
            return Err(format!("{}: an uplink needs a socket each way", uplink.name));
        }
        let wanted = self.region.inherited_index(&uplink.name).map(|index| index as PortIndex);
        let reserved = |index| self.region.is_reserved(usize::from(index));
        let index = table
            .free_index(wanted, &[], reserved)
            .ok_or_else(|| format!("a switch has at most {VNICS} ports, uplinks included"))?;
        let worker = table.worker_of(&uplink.name, self.workers.len());
        let mut entry = UplinkEntry {
            index,
            worker,
            arms: vec![],
            uplink,
            remotes,
            broken: None,
            numbers: BTreeMap::new(),
            pins: BTreeSet::new(),
            notices: sockets.notices.take().map(Arc::new),
            published: None,
            marked: vec![],
            pairs: Pairs::new(keys, std::mem::take(&mut sockets.ports), orders),
            info: PortInfo::of_uplink(worker as u16),
            rdma,
        };
        entry.numbers = table.number_peers(&entry.uplink, &entry.numbers)?;
        let peers = Arc::new(entry.peers(&table.known_segments())?);
        let (link, others) = self.link(&entry, sockets, peers.clone())?;
        self.plan_arms(table, &mut entry, others.len())?;
        let name = entry.uplink.name.clone();
        let stats = self.region.claim(usize::from(index), &name);
        let contract = entry.contract(&table.host);
        let mut port = Box::new(Port::new(index, SegmentIndex::OF_EACH_FRAME, contract, stats, link));
        port.pauses = u32::from(self.new_ports_wait.load(std::sync::atomic::Ordering::Relaxed));
        self.workers[worker].call(move |worker| worker.add_port(port));
        for worker in self.workers.iter() {
            let info = Some(entry.info.clone());
            worker.call(move |worker| worker.set_info(index, info));
        }
        self.add_arms(table, &entry, others, &peers);
        tracing::info!(uplink = name, index, worker, arms = entry.arms.len(), "uplink added");
        table.uplinks.insert(name, entry);
        self.publish(table);
        Ok(())
    }

    /// Returns the RDMA of an uplink that names a device. Frames go as without it if that is of no use.
    fn lane(&self, uplink: &Uplink) -> Option<Result<Arc<Lane>, String>> {
        let lane = Lane::of(uplink, |name| self.rdma.devices.find(name))?.map(Arc::new);
        if let Err(why) = &lane {
            tracing::warn!(uplink = uplink.name, "no frame goes by RDMA: {why}");
        }
        Some(lane)
    }

    /// Returns the link of an uplink, on `sockets`, and the devices of its arms.
    fn link(
        &self,
        entry: &UplinkEntry,
        sockets: Sockets,
        peers: Arc<vxlan::Peers>,
    ) -> Result<(Link, Vec<nic::Device>), String> {
        let (uplink, Sockets { receive, mut send, pairs, .. }) = (&entry.uplink, sockets);
        let (fdb, worker) = (self.fdb.clone(), entry.worker as u16);
        let nic_link = |device| {
            let longest = uplink.largest_inner_frame() as u32;
            let setup = nic::Setup { device, longest, peers: peers.clone(), fdb: fdb.clone(), owner: None };
            Link::nic(setup, entry.index, worker, clock())
        };
        match uplink.kind {
            UplinkKind::Vxlan => {
                let (send_v4, send_v6) = if uplink.is_ipv6() { (vec![], send) } else { (send, vec![]) };
                let setup = vxlan::Setup {
                    receive,
                    send_v4,
                    send_v6,
                    pairs,
                    peers,
                    fdb,
                    clocks: self.clocks.clone(),
                    train: TRAIN,
                    rdma: entry.rdma.as_ref().and_then(|lane| Some(lane.as_ref().ok()?.setup())),
                };
                Ok((Link::vxlan(setup, entry.index, worker, clock()), vec![]))
            }
            UplinkKind::Packet => {
                let send = send.pop().ok_or("no socket to send from")?;
                Ok((nic_link(nic::Device::Packet { receive, send }), vec![]))
            }
            UplinkKind::Xdp => {
                let program = send.pop().ok_or("no program")?;
                let useless = |error| format!("uplink {}: its sockets are of no use: {error}", uplink.name);
                let mut devices = nic::Device::xdp(receive, &send, program).map_err(useless)?.into_iter();
                let own = devices.next().ok_or("no socket")?;
                Ok((nic_link(own), devices.collect()))
            }
        }
    }

    fn change_uplink(
        &self,
        table: &mut Table,
        uplink: Uplink,
        (remotes, keys, orders): OfUplink,
    ) -> Result<(), String> {
        let Some(mut entry) = table.uplinks.remove(&uplink.name) else { return Err("no such uplink".into()) };
        if entry.uplink.rdma != uplink.rdma {
            table.uplinks.insert(entry.uplink.name.clone(), entry);
            return Err(format!(
                "{}: its RDMA device cannot change while it keeps its sockets: make it anew, with new ones",
                uplink.name
            ));
        }
        let before = (entry.uplink.clone(), std::mem::replace(&mut entry.remotes, remotes));
        let numbers_before = entry.numbers.clone();
        entry.uplink = uplink;
        let numbered = table.number_peers(&entry.uplink, &entry.numbers).and_then(|numbers| {
            entry.numbers = numbers;
            entry.peers(&table.known_segments()).map(drop)
        });
        if let Err(why) = numbered {
            (entry.uplink, entry.remotes) = before;
            entry.numbers = numbers_before;
            table.uplinks.insert(entry.uplink.name.clone(), entry);
            return Err(why);
        }
        let stays: BTreeSet<_> = entry.numbers.values().copied().collect();
        let left: Vec<_> = numbers_before.into_values().filter(|peer| !stays.contains(peer)).collect();
        entry.published = None;
        (entry.pairs.keys, entry.pairs.orders) = (keys, orders);
        self.send_uplink_contract(&table.host, &entry);
        let gone: Vec<Destination> = left.into_iter().map(|peer| entry.peer(peer)).collect();
        table.uplinks.insert(entry.uplink.name.clone(), entry);
        self.publish(table);
        // Only after the link knows them no more: it learned until then.
        gone.into_iter().for_each(|peer| self.fdb.forget(peer));
        Ok(())
    }

    pub(super) fn send_uplink_contract(&self, host: &Host, entry: &UplinkEntry) {
        for (index, worker) in entry.ports() {
            let contract = entry.contract(host);
            self.workers[worker].call_on(index, move |worker| worker.set_contract(index, contract));
        }
    }

    /// Removes an uplink; its frames in flight are dropped.
    ///
    /// # Errors
    /// There is no uplink of that name.
    pub fn remove_uplink(&self, name: &str) -> Result<(), String> {
        let mut table = self.lock();
        let entry = table.uplinks.remove(name).ok_or_else(|| format!("{name} is not an uplink"))?;
        table.removing.extend(entry.indices().map(|index| (index, entry.worker)));
        for (segment, mac, peer) in &entry.pins {
            self.fdb.unpin(*segment, *mac, entry.peer(*peer));
        }
        self.fdb.forget(entry.index);
        self.publish(&mut table);
        drop(table);
        let (index, worker) = (entry.index, entry.worker);
        let indices: Vec<_> = entry.indices().collect();
        let former = self.end_rdma(&entry);
        self.remove_arms(&entry);
        drop(entry);
        // The agent may bind its port again.
        self.notices.wait_for_close();
        self.quiesce_port(index, worker);
        self.forget(index, worker);
        drop(former);
        self.lock().removing.retain(|(removing, _)| !indices.contains(removing));
        tracing::info!(uplink = name, index, "uplink removed");
        Ok(())
    }

    /// Tells the link of an uplink the pairs of vNICs with stamps, and the workers the deadlines of their frames.
    fn publish_pairs(
        &self,
        name: &str,
        entry: &mut UplinkEntry,
        vnics: &BTreeMap<String, Entry>,
        known: &KnownSegments,
        moved: &Moves,
    ) {
        let wanted = Wanted::of(entry, vnics, known, moved);
        let to = wanted_pairs::set_of(&wanted.receivers);
        let Some((outgoing, incoming)) = entry.pairs.tables(name, wanted) else { return };
        let index = entry.index;
        let arrivals = (!to.is_empty()).then_some(entry.uplink.arrival_budget.get());
        let info = PortInfo { to: Box::new(to), arrivals, ..entry.info.clone() };
        if info != entry.info {
            entry.info = info;
            for worker in self.workers.iter() {
                let info = Some(entry.info.clone());
                worker.call(move |worker| worker.set_info(index, info));
            }
        }
        drop(
            self.workers[entry.worker]
                .call_on(index, move |worker| worker.set_pairs(index, outgoing, incoming)),
        );
    }

    /// Tells the links of uplinks the segments with ports here, and the FDB the addresses of remotes.
    pub(super) fn publish_uplinks(&self, table: &mut Table) {
        let known = table.known_segments();
        let neighbours: Neighbours =
            table.uplinks.values().flat_map(|entry| entry.neighbours(&known)).collect();
        if *table.neighbours != neighbours {
            table.neighbours = Arc::new(neighbours);
            for worker in self.workers.iter() {
                let neighbours = table.neighbours.clone();
                drop(worker.call(move |worker| worker.set_neighbours(neighbours)));
            }
        }
        let left = table.forget_moved(&known);
        let moved = &table.moved;
        for (name, entry) in &mut table.uplinks {
            let segments = entry.segments(&known);
            let marked = wanted_pairs::marked(entry, &table.entries, &known);
            if entry.published.as_ref() != Some(&segments) || entry.marked != marked {
                match entry.peers(&known) {
                    Ok(peers) => {
                        let (index, peers) = (entry.index, Arc::new(peers.with_marked(marked.clone())));
                        entry.info.copies = peers.copies().clone();
                        for worker in self.workers.iter() {
                            let copies = peers.copies().clone();
                            worker.call(move |worker| worker.set_copies(index, copies));
                        }
                        for (index, worker) in entry.ports() {
                            let peers = peers.clone();
                            let set =
                                move |worker: &mut crate::worker::Worker| worker.set_peers(index, peers);
                            drop(self.workers[worker].call_on(index, set));
                        }
                        (entry.published, entry.marked) = (Some(segments), marked);
                    }
                    Err(why) => tracing::error!(uplink = name, "its peers cannot be told of segments: {why}"),
                }
            }
            self.publish_pairs(name, entry, &table.entries, &known, moved);
            let wanted = entry.wanted_pins(&known);
            for (segment, mac, peer) in entry.pins.difference(&wanted) {
                self.fdb.unpin(*segment, *mac, entry.peer(*peer));
            }
            let mut pinned = BTreeSet::new();
            for (segment, mac, peer) in wanted {
                let to = moved.get(&(segment, mac)).map_or(entry.peer(peer), |moved| moved.to);
                match self.fdb.pin(segment, mac, to) {
                    Ok(()) => _ = pinned.insert((segment, mac, peer)),
                    Err(why) => {
                        tracing::warn!(uplink = name, %mac, ?why, "a remote's address has no place in the FDB")
                    }
                }
            }
            entry.pins = pinned;
        }
        let pinned: BTreeSet<_> = table.uplinks.values().flat_map(|entry| &entry.pins).collect();
        let is_pinned = |key: (SegmentIndex, Mac)| pinned.iter().any(|pin| (pin.0, pin.1) == key);
        for ((segment, mac), to) in left.into_iter().filter(|(key, _)| !is_pinned(*key)) {
            self.fdb.unpin(segment, mac, to);
        }
        self.notices.set(table.notices(&known));
        self.rdma.ring();
    }
}
