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
use super::table::Table;
use super::uplink::UplinkEntry;
use crate::capacity::VNICS;
use crate::clock::clock;
use crate::control::message::UplinkStatus;
use crate::fdb::{Destination, PortIndex, SegmentIndex};
use crate::link::{Link, nic, vxlan};
use crate::port::{Port, PortInfo};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tidegate_contract::{Host, Remote, Uplink, UplinkKind};

/// Longest train (bytes): the most that one message to a UDP socket carries.
const TRAIN: usize = 65_507;

/// The sockets of an uplink, as its link takes them.
pub struct Sockets {
    /// Bound to the uplink's port, or device.
    pub receive: Vec<OwnedFd>,
    /// Each with a source port of its own; of AF_XDP the memory of each socket, and the program's link.
    pub send: Vec<OwnedFd>,
}

impl Switch {
    /// Returns the state of all uplinks.
    pub fn uplinks(&self) -> Vec<UplinkStatus> {
        let status = |entry: &UplinkEntry| UplinkStatus {
            uplink: entry.uplink.clone(),
            remotes: entry.remotes.clone(),
            index: entry.index.into(),
            worker: entry.worker,
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
        remotes: Vec<Remote>,
        sockets: Option<Sockets>,
    ) -> Result<(), String> {
        let mut table = self.lock();
        let name = uplink.name.clone();
        if table.entries.contains_key(&name) {
            return Err(format!("{name} is a vNIC; give the uplink another name"));
        }
        match (sockets, table.uplinks.contains_key(&name)) {
            (None, false) => Err(format!("{name} is not an uplink yet, and no sockets came with it")),
            (None, true) => self.change_uplink(&mut table, uplink, remotes),
            (Some(sockets), true) => {
                drop(table);
                self.remove_uplink(&name)?;
                self.set_uplink(uplink, remotes, Some(sockets))
            }
            (Some(sockets), false) => self.add_uplink(&mut table, uplink, remotes, sockets),
        }
    }

    fn add_uplink(
        &self,
        table: &mut Table,
        uplink: Uplink,
        remotes: Vec<Remote>,
        sockets: Sockets,
    ) -> Result<(), String> {
        if sockets.receive.is_empty() || sockets.send.is_empty() {
            return Err(format!("{}: an uplink needs a socket each way", uplink.name));
        }
        let wanted = self.region.inherited_index(&uplink.name).map(|index| index as PortIndex);
        let reserved = |index| self.region.is_reserved(usize::from(index));
        let index = table
            .free_index(wanted, reserved)
            .ok_or_else(|| format!("a switch has at most {VNICS} ports, uplinks included"))?;
        let worker = table.worker_of(&uplink.name, self.workers.len());
        let mut entry = UplinkEntry {
            index,
            worker,
            uplink,
            remotes,
            numbers: BTreeMap::new(),
            pins: BTreeSet::new(),
            published: None,
        };
        entry.numbers = table.number_peers(&entry.uplink, &entry.numbers)?;
        let peers = Arc::new(entry.peers(&table.known_segments())?);
        let link = self.link(&entry, sockets, peers)?;
        let name = entry.uplink.name.clone();
        let stats = self.region.claim(usize::from(index), &name);
        let contract = entry.contract(&table.host);
        let mut port = Box::new(Port::new(index, SegmentIndex::OF_EACH_FRAME, contract, stats, link));
        port.pauses = u32::from(self.new_ports_wait.load(std::sync::atomic::Ordering::Relaxed));
        let info = PortInfo::of_uplink(worker as u16);
        self.workers[worker].call(move |worker| worker.add_port(port));
        for worker in self.workers.iter() {
            let info = Some(info.clone());
            worker.call(move |worker| worker.set_info(index, info));
        }
        tracing::info!(uplink = name, index, worker, "uplink added");
        table.uplinks.insert(name, entry);
        self.publish(table);
        Ok(())
    }

    /// Returns the link of an uplink, on `sockets`.
    fn link(&self, entry: &UplinkEntry, sockets: Sockets, peers: Arc<vxlan::Peers>) -> Result<Link, String> {
        let (uplink, Sockets { receive, mut send }) = (&entry.uplink, sockets);
        let (fdb, worker) = (self.fdb.clone(), entry.worker as u16);
        let nic_link = |device| {
            let longest = uplink.largest_inner_frame() as u32;
            let setup = nic::Setup { device, longest, peers: peers.clone(), fdb: fdb.clone() };
            Link::nic(setup, entry.index, worker, clock())
                .map_err(|error| format!("uplink {}: its sockets are of no use: {error}", uplink.name))
        };
        match uplink.kind {
            UplinkKind::Vxlan => {
                let (send_v4, send_v6) = if uplink.is_ipv6() { (vec![], send) } else { (send, vec![]) };
                let setup = vxlan::Setup { receive, send_v4, send_v6, peers, fdb, train: TRAIN };
                Ok(Link::vxlan(setup, entry.index, worker, clock()))
            }
            UplinkKind::Packet => {
                let send = send.pop().ok_or("no socket to send from")?;
                nic_link(nic::Device::Packet { receive, send })
            }
            UplinkKind::Xdp => {
                let program = send.pop().ok_or("no program")?;
                nic_link(nic::Device::Xdp { sockets: receive, memories: send, program })
            }
        }
    }

    fn change_uplink(&self, table: &mut Table, uplink: Uplink, remotes: Vec<Remote>) -> Result<(), String> {
        let Some(mut entry) = table.uplinks.remove(&uplink.name) else { return Err("no such uplink".into()) };
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
        self.send_uplink_contract(&table.host, &entry);
        let gone: Vec<Destination> = left.into_iter().map(|peer| entry.peer(peer)).collect();
        table.uplinks.insert(entry.uplink.name.clone(), entry);
        self.publish(table);
        // Only after the link knows them no more: it learned until then.
        gone.into_iter().for_each(|peer| self.fdb.forget(peer));
        Ok(())
    }

    pub(super) fn send_uplink_contract(&self, host: &Host, entry: &UplinkEntry) {
        let (index, contract) = (entry.index, entry.contract(host));
        self.workers[entry.worker].call_on(index, move |worker| worker.set_contract(index, contract));
    }

    /// Removes an uplink; its frames in flight are dropped.
    ///
    /// # Errors
    /// There is no uplink of that name.
    pub fn remove_uplink(&self, name: &str) -> Result<(), String> {
        let mut table = self.lock();
        let entry = table.uplinks.remove(name).ok_or_else(|| format!("{name} is not an uplink"))?;
        table.removing.push(entry.index);
        for (segment, mac, peer) in &entry.pins {
            self.fdb.unpin(*segment, *mac, entry.peer(*peer));
        }
        self.fdb.forget(entry.index);
        self.publish(&mut table);
        drop(table);
        let (index, worker) = (entry.index, entry.worker);
        self.quiesce_port(index, worker);
        self.forget(index, worker);
        self.lock().removing.retain(|removing| *removing != index);
        tracing::info!(uplink = name, index, "uplink removed");
        Ok(())
    }

    /// Tells the links of uplinks the segments with ports here, and the FDB the addresses of remotes.
    pub(super) fn publish_uplinks(&self, table: &mut Table) {
        let known = table.known_segments();
        for (name, entry) in &mut table.uplinks {
            let segments = entry.segments(&known);
            if entry.published.as_ref() != Some(&segments) {
                match entry.peers(&known) {
                    Ok(peers) => {
                        let (index, peers) = (entry.index, Arc::new(peers));
                        for worker in self.workers.iter() {
                            let copies = peers.copies().clone();
                            worker.call(move |worker| worker.set_copies(index, copies));
                        }
                        let set = move |worker: &mut crate::worker::Worker| worker.set_peers(index, peers);
                        drop(self.workers[entry.worker].call_on(index, set));
                        entry.published = Some(segments);
                    }
                    Err(why) => tracing::error!(uplink = name, "its peers cannot be told of segments: {why}"),
                }
            }
            let wanted = entry.wanted_pins(&known);
            for (segment, mac, peer) in entry.pins.difference(&wanted) {
                self.fdb.unpin(*segment, *mac, entry.peer(*peer));
            }
            let mut pinned = BTreeSet::new();
            for (segment, mac, peer) in wanted {
                match self.fdb.pin(segment, mac, entry.peer(peer)) {
                    Ok(()) => _ = pinned.insert((segment, mac, peer)),
                    Err(why) => {
                        tracing::warn!(uplink = name, %mac, ?why, "a remote's address has no place in the FDB")
                    }
                }
            }
            entry.pins = pinned;
        }
    }
}
