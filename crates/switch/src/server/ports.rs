//! Creates, changes and removes ports, under the table's lock. Only a port's thread is stopped without it:
//! that thread may itself be waiting for the lock.

use super::Switch;
use super::descriptors;
use super::link::PortLink;
use super::notes::PortStateSender;
use super::pace::Pace;
use super::shares;
use super::table::{End, Entry, Memory, Table, macs};
use crate::capacity::VNICS;
use crate::capture;
use crate::clock::clock;
use crate::control::message::Retired;
use crate::control::notes::{Change, Note};
use crate::fdb::{PortIndex, SegmentIndex};
use crate::link::Link;
use crate::port::{Port, PortContract};
use crate::quota::Account;
use crate::stats::Reader;
use crate::stats::layout::VnicSlot;
use crate::vhost_user::config::PortConfig;
use crate::vhost_user::errands::Errands;
use crate::vhost_user::listener::{PortThread, Restored, SocketEnd};
use crate::vhost_user::status::ConnectionStatus;
use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use tidegate_contract::{Attach, Host, Mac, Vnic};
use tidegate_evidence::Quarantine;

/// The connection of a new or changed port.
pub enum Connect {
    /// The present connection.
    Unchanged,
    /// A listening vhost-user socket.
    Listener(OwnedFd),
    /// A connected vhost-user socket.
    Stream(OwnedFd),
    /// A vhost-user front end to be dialled later.
    NoFrontEnd,
    /// A tap's descriptors.
    Tap(Vec<OwnedFd>),
    /// The saved connection of a process that has ended.
    Restored(Box<Restored>),
}

impl Switch {
    pub(super) fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the host-wide settings.
    pub fn set_host(&self, host: Host) -> Result<(), String> {
        let mut table = self.lock();
        let latency = host.host_latency.get();
        table.host = host;
        self.set_busy_poll(&table.host);
        for worker in self.workers.iter() {
            worker.call(move |worker| worker.set_host_latency(latency));
        }
        for entry in table.entries.values() {
            self.send_contract(&table, entry);
        }
        for entry in table.uplinks.values() {
            self.send_uplink_contract(&table.host, entry);
        }
        Ok(())
    }

    /// Sets how long workers may wait awake, and whether they may spin before they sleep.
    pub(super) fn set_busy_poll(&self, host: &Host) {
        let (share, throttled) = (self.machine.share(host), self.machine.throttled);
        let has_one_cpu = self.machine.has_one_cpu();
        for worker in self.workers.iter() {
            worker.call(move |worker| {
                worker.set_busy_poll(share, throttled);
                worker.set_has_one_cpu(has_one_cpu);
            });
        }
    }

    /// Creates a port, or changes its contract or its connection.
    pub fn set_port(self: &Arc<Self>, vnic: Vnic, connect: Connect) -> Result<(), String> {
        let mut table = self.lock();
        for mac in macs(&vnic) {
            if let Some(owner) = table.owner_of(vnic.segment, mac)
                && owner != vnic.name
            {
                return Err(format!("MAC {mac} belongs to {owner} in segment {}", vnic.segment.id()));
            }
        }
        if let Some(why) = table.refuses_shares(&vnic) {
            return Err(why);
        }
        match (connect, table.entries.contains_key(&vnic.name)) {
            (Connect::Unchanged, true) => self.change(&mut table, vnic),
            (Connect::Unchanged, false) => Err(format!(
                "{} is not a port yet, and the request has no descriptor for a new port",
                vnic.name
            )),
            (Connect::Stream(stream), true) => {
                let name = vnic.name.clone();
                self.change(&mut table, vnic)?;
                match table.entries.get(&name).map(|entry| &entry.end) {
                    Some(End::Vhost { thread, listener: None, .. }) => {
                        thread.attach(stream).map_err(|error| error.to_string())
                    }
                    _ => Err(format!("{name} is not in client mode")),
                }
            }
            (connect, true) => {
                drop(table);
                self.remove_port(&vnic.name)?;
                self.set_port(vnic, connect)
            }
            (connect, false) => self.add(&mut table, vnic, connect),
        }
    }

    fn add(self: &Arc<Self>, table: &mut Table, vnic: Vnic, connect: Connect) -> Result<(), String> {
        let wanted = self.region.inherited_index(&vnic.name).map(|index| index as PortIndex);
        let reserved = |index| self.region.is_reserved(usize::from(index));
        let index = table
            .free_index(wanted, &[], reserved)
            .ok_or_else(|| format!("a switch has at most {VNICS} ports"))?;
        let (account, waiting) = descriptors::open(&self.ledger, &vnic)?;
        let by_itself = table.worker_of(&vnic.name, self.workers.len());
        let worker = self.directed.worker_of(&vnic.name).unwrap_or(by_itself);
        let segment = table.segment(vnic.segment);
        let fits = match connect {
            Connect::Tap(_) => matches!(vnic.attach, Attach::Tap { .. }),
            _ => matches!(vnic.attach, Attach::VhostUser { .. }),
        };
        if !fits {
            return Err(format!("{}: the descriptors do not fit the attachment", vnic.name));
        }
        let duplicate = |files: &[OwnedFd]| -> Result<Vec<OwnedFd>, String> {
            let copies = files.iter().map(OwnedFd::try_clone).collect::<std::io::Result<_>>();
            copies.map_err(|error| format!("{}: no descriptors left: {error}", vnic.name))
        };
        let (link, end) = match connect {
            Connect::Tap(files) => {
                let queues = duplicate(&files)?;
                (Link::tap(files, index, worker as u16, clock()), Err(queues))
            }
            Connect::Restored(restored) => (Link::vhost_user(), Ok(SocketEnd::Restored(restored))),
            Connect::Listener(fd) => (Link::vhost_user(), Ok(SocketEnd::Listener(fd))),
            Connect::Stream(fd) => (Link::vhost_user(), Ok(SocketEnd::Stream(fd))),
            Connect::NoFrontEnd => (Link::vhost_user(), Ok(SocketEnd::NoFrontEnd)),
            Connect::Unchanged => {
                return Err(format!("{}: the request has no descriptor for a new port", vnic.name));
            }
        };
        table.shares.open(&self.fdb, segment, &vnic)?;
        for mac in macs(&vnic) {
            if self.fdb.pin(segment, mac, index).is_err() {
                macs(&vnic).for_each(|mac| self.fdb.unpin(segment, mac, index));
                table.close_shares(&self.fdb);
                return Err(format!("no room in the forwarding database for {mac}"));
            }
        }
        let mut contract = PortContract::new(&vnic, &table.host);
        contract.policy.share(table.shares.of(index, segment, &vnic));
        let since = clock();
        let stats = self.region.claim(index as usize, &vnic.name);
        let mut port = Box::new(Port::new(index, segment, contract, stats, link));
        port.pauses = u32::from(self.new_ports_wait.load(Ordering::Relaxed));
        self.workers[worker].call(move |worker| worker.add_port(port));
        let end = match end {
            Err(queues) => End::Tap { queues },
            Ok(socket) => match self.serve(index, worker, &vnic, socket, stats, (account.clone(), waiting)) {
                Ok(end) => end,
                Err(error) => {
                    self.forget(index, worker);
                    macs(&vnic).for_each(|mac| self.fdb.unpin(segment, mac, index));
                    table.close_shares(&self.fdb);
                    return Err(format!("{}: cannot start the thread of this port: {error}", vnic.name));
                }
            },
        };
        tracing::info!(vnic = vnic.name, index, worker, "port added");
        let entry = Entry {
            index,
            worker,
            segment,
            vnic,
            since,
            end,
            memory: Memory::Whole,
            _account: account,
            broken: None,
            published: None,
        };
        table.entries.insert(entry.vnic.name.clone(), entry);
        self.tell_shares(table, segment);
        self.publish(table);
        Ok(())
    }

    fn serve(
        self: &Arc<Self>,
        index: PortIndex,
        worker: usize,
        vnic: &Vnic,
        socket: SocketEnd,
        stats: &'static VnicSlot,
        (account, waiting): (Account, Account),
    ) -> std::io::Result<End> {
        let listener = match &socket {
            SocketEnd::Listener(fd) => Some(fd.try_clone()?),
            SocketEnd::Restored(restored) => {
                restored.listener.as_ref().map(OwnedFd::try_clone).transpose()?
            }
            SocketEnd::Stream(_) | SocketEnd::NoFrontEnd => None,
        };
        let status = Arc::new(ConnectionStatus::default());
        status.set_deadline(vnic.deadline.is_some());
        status.set_zero_copy(vnic.zero_copy);
        let announced = matches!(socket, SocketEnd::Restored(_));
        let errands = Errands::new(&vnic.name);
        let config = PortConfig {
            errands: errands.clone(),
            account,
            waiting,
            ..PortConfig::new(vnic.name.clone(), vnic.queues)
        };
        let pace = Pace::default();
        let control = PortLink { switch: self.clone(), index, worker, announced, errands, pace };
        let state_store = PortStateSender::new(&vnic.name, stats, self.subscribers.clone());
        let thread = PortThread::spawn_with_store(
            config,
            socket,
            Box::new(control),
            status.clone(),
            Box::new(state_store),
        )?;
        Ok(End::Vhost { thread, status, listener })
    }

    /// Sends `socket`, from now on, the state that another process needs to continue.
    pub fn add_subscriber(&self, socket: OwnedFd) -> Result<(), String> {
        let table = self.lock();
        self.subscribers.add(socket);
        for entry in table.entries.values() {
            let note = |change| Note { vnic: entry.vnic.name.clone(), change };
            let sent = match &entry.end {
                End::Tap { queues } => {
                    let queues: Vec<_> = queues.iter().map(AsFd::as_fd).collect();
                    self.subscribers.send_to_newest(&note(Change::Tap), &queues)
                }
                End::Vhost { thread, listener, .. } => {
                    thread.resend_state();
                    listener.as_ref().map_or(Ok(()), |listener| {
                        self.subscribers.send_to_newest(&note(Change::Listener), &[listener.as_fd()])
                    })
                }
            };
            sent.map_err(|error| {
                format!("{}: cannot send the state of this port: {error}", entry.vnic.name)
            })?;
        }
        Ok(())
    }

    /// Continues the counters of a switch that has ended.
    pub fn inherit(&self, statistics: &OwnedFd) -> Result<(), String> {
        let table = self.lock();
        if !table.entries.is_empty() {
            return Err("the switch has ports already, and their counters cannot be replaced".into());
        }
        self.region.inherit(&Reader::open(statistics).map_err(|error| error.to_string())?);
        Ok(())
    }

    /// Puts a new contract on the existing connection into force.
    fn change(&self, table: &mut Table, vnic: Vnic) -> Result<(), String> {
        let segment = table.segment(vnic.segment);
        let Some(entry) = table.entries.get_mut(&vnic.name) else { return Err("no such port".into()) };
        if let (Memory::OnDisk(disk), Some(_)) = (entry.memory, vnic.deadline) {
            return Err(format!(
                "{}: the switch cannot keep a deadline while the guest's memory is on a disk ({disk}): use \
                 memory-backend-memfd, or memory-backend-file on tmpfs or hugetlbfs",
                vnic.name
            ));
        }
        table.shares.open(&self.fdb, segment, &vnic)?;
        let shared_before = shares::keys(entry.segment, &entry.vnic);
        let shared = shares::keys(segment, &vnic);
        let before: Vec<_> = macs(&entry.vnic).map(|mac| (entry.segment, mac)).collect();
        let after: Vec<_> = macs(&vnic).map(|mac| (segment, mac)).collect();
        let new = || after.iter().filter(|own| !before.contains(own));
        for (segment, mac) in new() {
            if self.fdb.pin(*segment, *mac, entry.index).is_err() {
                new().for_each(|(segment, mac)| self.fdb.unpin(*segment, *mac, entry.index));
                table.close_shares(&self.fdb);
                return Err(format!("no room in the forwarding database for {mac}"));
            }
        }
        for (segment, mac) in before.iter().filter(|own| !after.contains(own)) {
            self.fdb.unpin(*segment, *mac, entry.index);
        }
        let changes_segment = entry.segment != segment;
        let segment_before = entry.segment;
        let (index, owner) = (entry.index, entry.worker);
        if let End::Vhost { status, .. } = &entry.end {
            status.set_deadline(vnic.deadline.is_some());
            status.set_zero_copy(vnic.zero_copy);
        }
        (entry.segment, entry.vnic) = (segment, vnic);
        if changes_segment {
            // Frames and addresses of the port belong to the old segment, until it is quiet.
            self.quiesce_port(index, owner);
            self.fdb.forget(index);
            self.workers[owner].call(move |worker| worker.set_segment(index, segment));
        }
        let name = entry.vnic.name.clone();
        self.send_contract(table, &table.entries[&name]);
        if shared != shared_before {
            table.shares.release(&self.fdb, index, &shared_before, &shared);
            table.close_shares(&self.fdb);
        }
        self.tell_shares(table, segment_before);
        self.tell_shares(table, segment);
        self.publish(table);
        self.forget_unused_segment(table, segment_before);
        if changes_segment {
            self.workers[owner].call(move |worker| worker.resume(index));
        }
        Ok(())
    }

    /// Forgets what was learned in a segment without ports: its index may become another segment's. Links to
    /// other hosts learn there no more.
    fn forget_unused_segment(&self, table: &Table, segment: SegmentIndex) {
        if !table.entries.values().any(|entry| entry.segment == segment) {
            self.fdb.forget_segment(segment);
        }
    }

    fn send_contract(&self, table: &Table, entry: &Entry) {
        let (index, mut contract) = (entry.index, PortContract::new(&entry.vnic, &table.host));
        contract.policy.share(table.shares.of(index, entry.segment, &entry.vnic));
        self.workers[entry.worker].call_on(index, move |worker| worker.set_contract(index, contract));
    }

    /// Sends the ports of a segment its shared IP addresses, if these have changed.
    fn tell_shares(&self, table: &mut Table, segment: SegmentIndex) {
        if !table.shares.changed(segment) {
            return;
        }
        for entry in table.entries.values().filter(|entry| entry.segment == segment) {
            self.send_contract(table, entry);
        }
    }

    /// Removes a port, and drops its frames in flight.
    pub fn remove_port(&self, name: &str) -> Result<(), String> {
        let mut table = self.lock();
        let entry = table.entries.remove(name).ok_or_else(|| format!("{name} is not a port"))?;
        table.removing.push((entry.index, entry.worker));
        macs(&entry.vnic).for_each(|mac| self.fdb.unpin(entry.segment, mac, entry.index));
        self.fdb.forget(entry.index);
        self.publish(&mut table);
        self.forget_unused_segment(&table, entry.segment);
        drop(table);

        let (index, worker, segment) = (entry.index, entry.worker, entry.segment);
        let shared = shares::keys(segment, &entry.vnic);
        // Ends its thread first, which stops the rings.
        match entry.end {
            // A waiting front end may already have passed descriptors.
            End::Vhost { thread, listener, .. } => {
                thread.errands().give_up(listener);
                thread.stop();
            }
            End::Tap { queues } => drop(queues),
        }
        self.quiesce_port(index, worker);
        self.forget(index, worker);
        let mut table = self.lock();
        table.removing.retain(|(removing, _)| *removing != index);
        if !shared.is_empty() {
            // Other ports may now take the shared addresses; unshared ones are forgotten.
            table.shares.release(&self.fdb, index, &shared, &BTreeSet::new());
            table.close_shares(&self.fdb);
            self.tell_shares(&mut table, segment);
        }
        drop(table);
        tracing::info!(vnic = name, index, "port removed");
        Ok(())
    }

    /// Makes all workers forget the port.
    pub(super) fn forget(&self, index: PortIndex, owner: usize) {
        for worker in self.workers.iter() {
            worker.call(move |worker| worker.set_info(index, None));
        }
        // The port learned until now.
        self.fdb.forget(index);
        if let Some(port) = self.workers[owner].call(move |worker| worker.remove_port(index)) {
            // So a new tap finds no open descriptor of the old one.
            port.link.rx.wait_for_writer();
        }
        self.region.release(index as usize);
    }

    /// Sends all workers the changes in ports, workers and deadlines.
    pub(super) fn publish(&self, table: &mut Table) {
        self.realtime_changed();
        self.publish_uplinks(table);
        let infos: Vec<_> =
            table.entries.values().map(|entry| (entry.vnic.name.clone(), table.info(entry))).collect();
        let (members, named) = table.segments();
        for worker in self.workers.iter() {
            let (members, named) = (members.clone(), named.clone());
            worker.call(move |worker| {
                worker.set_members(members);
                worker.set_named(named);
            });
        }
        for (name, info) in infos {
            let Some(entry) = table.entries.get_mut(&name) else { continue };
            if entry.published.as_ref() == Some(&info) {
                continue;
            }
            entry.published = Some(info.clone());
            for worker in self.workers.iter() {
                let (index, info) = (entry.index, Some(info.clone()));
                worker.call(move |worker| worker.set_info(index, info));
            }
        }
    }

    /// Records a guest's mapped memory. A deadline is in force only if every page is present.
    pub fn memory_arrived(&self, index: PortIndex, preallocated: bool, disk: Option<&'static str>) {
        let mut table = self.lock();
        let Some(entry) = table.entries.values_mut().find(|entry| entry.index == index) else { return };
        entry.broken = None;
        entry.memory = match disk {
            Some(disk) => Memory::OnDisk(disk),
            None if preallocated => Memory::Whole,
            None => Memory::Sparse,
        };
        if let Some(why) = entry.suspended() {
            tracing::warn!(vnic = entry.vnic.name, "deadline suspended: {why}");
        }
        self.publish(&mut table);
    }

    /// Records that the guest's memory left with its front end.
    pub fn memory_left(&self, index: PortIndex) {
        let mut table = self.lock();
        let Some(entry) = table.entries.values_mut().find(|entry| entry.index == index) else { return };
        if std::mem::replace(&mut entry.memory, Memory::Whole) != Memory::Whole {
            self.publish(&mut table);
        }
    }

    /// Returns the addresses of a port's present contract.
    pub fn macs_of(&self, index: PortIndex) -> Vec<Mac> {
        let table = self.lock();
        table.entries.values().find(|entry| entry.index == index).map_or(vec![], |e| macs(&e.vnic).collect())
    }

    /// Continues another process's quarantine.
    pub(super) fn quarantine(&self, name: &str, quarantine: &Quarantine) {
        if let Some(End::Vhost { thread, .. }) = self.lock().entries.get(name).map(|entry| &entry.end) {
            thread.quarantine(quarantine);
        }
    }

    /// Restores the tokens and learned MACs of another process, and the recorded link-local addresses.
    pub(super) fn set_levels_and_learned(&self, retired: &Retired) {
        let table = self.lock();
        for (vnic, levels) in &retired.levels {
            if let Some(entry) = table.entries.get(vnic) {
                let (index, levels) = (entry.index, *levels);
                self.workers[entry.worker].call(move |worker| worker.set_levels(index, levels));
            }
        }
        for (mac, vnic, seen) in &retired.learned {
            if let Some(entry) = table.entries.get(vnic) {
                // With a full table, the FDB learns it later, or not at all.
                let _ = self.fdb.learn(entry.segment, *mac, entry.index, *seen);
            }
        }
        // First all ports forget: an old address of one may be another's by now.
        for entry in table.entries.values() {
            let index = entry.index;
            self.workers[entry.worker].call(move |worker| worker.forget_addresses(index));
        }
        for entry in table.entries.values() {
            let index = entry.index;
            self.workers[entry.worker].call(move |worker| worker.restore_addresses(index));
        }
    }

    /// Makes all ports take frames, also those created while [held back](Self::new_ports_wait).
    pub(super) fn release_ports(&self) {
        let mut table = self.lock();
        table.previous_workers.clear();
        self.new_ports_wait.store(false, Ordering::Relaxed);
        for worker in self.workers.iter() {
            worker.call(|worker| worker.resume_all());
        }
    }

    /// Starts a capture, which ends when the other end of `into` closes.
    pub fn capture(self: &Arc<Self>, name: &str, snaplen: u32, into: OwnedFd) -> Result<(), String> {
        let table = self.lock();
        let entry = table.entries.get(name).ok_or_else(|| format!("{name} is not a port"))?;
        let (index, worker) = (entry.index, self.workers[entry.worker].clone());
        let capturing = worker.call(move |worker| worker.is_captured(index));
        if capturing {
            return Err(format!("{name} is being captured already"));
        }
        let switch = self.clone();
        let finished = move || {
            // The port may be at another worker by then.
            let _still = switch.nothing_moves();
            switch.workers.iter().for_each(|worker| worker.call(move |worker| worker.end_capture(index)));
        };
        let tap = capture::start(name, snaplen, into.into(), finished).map_err(|error| error.to_string())?;
        worker.call_on(index, move |worker| worker.set_capture(index, tap));
        Ok(())
    }
}
