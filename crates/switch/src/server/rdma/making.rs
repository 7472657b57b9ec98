//! Makes and destroys what one uplink's link needs: queue pairs, address handles, tables of these. Not for workers.
//!
//! ```text
//!  Wished, the device's state, failures ─ plan ─▶ queue pairs, Q_Keys ─┐
//!  guests' memory ─ Lending ─▶ registered regions ─────────────────────┤
//!  members' hosts ─ Handles ─▶ address handles ────────────────────────┴▶ Tables, if any changed ─▶ link ─▶ former ones, retiring
//!                                                                      └▶ Shown
//! ```

use super::guests::Guests;
use super::handles::Handles;
use super::landings::Landings;
use super::lending::Lending;
use super::plan::{Failures, Plan, There, Wanted, plan};
use super::wanted::{Member, Wished};
use crate::fdb::PortIndex;
use crate::link::rdma::members::{HANDLES, traffic_class};
use crate::link::rdma::{GuestRegions, LocalPair, MemberEntry, Retired, Retiring, Tables};
use crate::server::lane::Lane;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tidegate_evidence::{LandingStatus, MemberStatus, QueuePairStatus, ZeroCopyStatus};
use tidegate_verbs::Address;

/// Time between two looks at the device (ns).
const LOOK_EVERY: u64 = 1_000_000_000;

/// What one uplink's link has.
pub(super) struct Making {
    /// By port, with their Q_Keys. Before the lane: freed first.
    pairs: BTreeMap<PortIndex, (Arc<LocalPair>, u32)>,
    /// After the queue pairs: they read this memory until they are destroyed.
    lending: Lending,
    failures: BTreeMap<PortIndex, Failures>,
    /// Why ports have no queue pair.
    errors: BTreeMap<PortIndex, String>,
    handles: Handles<Arc<Address>, HANDLES>,
    /// There are others since the tables were made.
    has_handles: bool,
    /// Of which the tables are.
    published: Option<(Vec<u32>, Vec<Member>)>,
    /// Where frames land in guests' buffers.
    pub(super) landings: Landings,
    /// Other guests are lent since the tables were made.
    lends_others: bool,
    guests: Arc<Guests>,
    /// The tables before those.
    retiring: Option<Retiring>,
    /// Something is not shown yet.
    has_changed: bool,
    /// Index of this host's GID, or why no frame can go by RDMA.
    gid: Result<u8, String>,
    look_at: u64,
    pub(super) lane: Arc<Lane>,
}

impl Making {
    /// Returns that of a new link.
    pub(super) fn new(lane: Arc<Lane>, guests: Arc<Guests>) -> Self {
        let not_yet = Err("the device's state is not known yet".into());
        Self {
            pairs: BTreeMap::new(),
            lending: Lending::default(),
            failures: BTreeMap::new(),
            errors: BTreeMap::new(),
            handles: Handles::default(),
            has_handles: false,
            published: None,
            landings: Landings::default(),
            lends_others: false,
            guests,
            retiring: None,
            has_changed: true,
            gid: not_yet,
            look_at: 0,
            lane,
        }
    }

    /// Whether the device is done with former tables. Until then, none replace those in force.
    pub(super) fn is_settled(&mut self, now: u64) -> bool {
        match self.retiring.as_mut().map(|retiring| retiring.look(now)) {
            None => true,
            Some(Retired::Yes) => {
                self.retiring = None;
                true
            }
            Some(Retired::NotYet) => false,
            Some(Retired::Stuck) => {
                self.lane.note_stuck();
                false
            }
        }
    }

    /// Whether the device is done with what retires, so that dropping this leaks nothing; or the link is gone, whose end is the last
    /// chance for that.
    pub(super) fn has_left(&mut self, now: u64) -> bool {
        self.is_settled(now) || Arc::strong_count(&self.lane.setup.pool) == 1
    }

    /// Notes that other things may be wished, for the next [`step`](Self::step).
    pub(super) fn put_off(&mut self, is_new: bool) {
        self.has_changed |= is_new;
    }

    /// Frees former tables, which `new` have replaced at `now` (ns), when the device is done with them.
    pub(super) fn retire(&mut self, former: Arc<Tables>, new: &Tables, now: u64) {
        self.retiring = Some(Retiring::begin(former, new, &self.lane.setup.counters, now));
    }

    /// Does what is due at `now` (ns), and returns tables for the link if others are to be in force. `is_new`: others are wished
    /// than before.
    pub(super) fn step(&mut self, wished: &Wished, is_new: bool, now: u64) -> Option<Arc<Tables>> {
        self.has_changed |= is_new;
        self.look(now);
        let none = BTreeMap::new();
        let wanted = if self.gid.is_ok() { &wished.pairs } else { &none };
        self.failures.retain(|port, _| wished.pairs.contains_key(port));
        self.landings.why.retain(|port, _| wished.zero_copy.contains(port));
        self.errors.retain(|port, _| wished.pairs.contains_key(port));
        self.note_failures(wished, now);
        let there = |(port, (pair, q_key)): (&PortIndex, &(Arc<LocalPair>, u32))| {
            (
                *port,
                There {
                    segment: (pair.segment, pair.vni),
                    mac: pair.mac,
                    q_key: *q_key,
                    failed: pair.is_failed(),
                },
            )
        };
        let there: BTreeMap<_, _> = self.pairs.iter().map(there).collect();
        self.follow(plan(wanted, &there, &self.failures, now), wished, now);
        self.lend(wished, now);
        if !self.has_changed {
            return None;
        }

        let hosts: BTreeSet<_> = match self.pairs.is_empty() {
            true => BTreeSet::new(),
            false => wished.members.iter().filter(|m| m.is_fresh).map(|member| member.address).collect(),
        };
        self.handles.want(&hosts);
        let numbers: Vec<u32> = self.pairs.values().map(|(pair, _)| pair.number()).collect();
        let members = if self.pairs.is_empty() { vec![] } else { wished.members.clone() };
        let content = (numbers, members);
        let others = [std::mem::take(&mut self.has_handles), std::mem::take(&mut self.lends_others)];
        if others == [false; 2] && self.published.as_ref() == Some(&content) {
            return None;
        }
        let tables = self.tables(&content.1);
        self.published = Some(content);
        Some(tables)
    }

    /// Lends the memory of guests to the link, and takes it back.
    fn lend(&mut self, wished: &Wished, now: u64) {
        // What is registered stays while a queue pair is replaced, or the device's port is down for a while.
        let is_wanted = |port: &&PortIndex| {
            wished.pairs.contains_key(port) && (self.pairs.contains_key(port) || self.lending.has(**port))
        };
        let wanted = wished.zero_copy.iter().filter(is_wanted).copied().collect();
        let change = self.lending.step(&wanted, &self.guests, &self.lane.setup.device, now);
        self.lane.setup.counters.holes.add(change.holes);
        self.lends_others |= change.lends_others;
        self.has_changed |= change.lends_others | change.is_news;
    }

    /// Whether a port's memory may not be used now.
    pub(super) fn is_held(&self, port: PortIndex) -> bool {
        self.guests.offer(port).map_or(true, |offer| offer.is_held)
    }

    /// Whether frames of a port go on to land: by this queue pair, into this memory.
    pub(super) fn keeps(&self, port: PortIndex, queue_pair: u32, guest: &Arc<GuestRegions>) -> bool {
        let has_pair =
            self.pairs.get(&port).is_some_and(|(pair, _)| pair.number() == queue_pair && !pair.is_failed());
        let is_lent = self.lending.lent_to(port).is_some_and(|lent| Arc::ptr_eq(lent, guest));
        has_pair && is_lent && !self.is_held(port)
    }

    /// Returns ports whose frames may land, by which queue pair, and where.
    pub(super) fn may_land(&self) -> Vec<(PortIndex, Arc<LocalPair>, Arc<GuestRegions>)> {
        let of = |(port, (pair, _)): (&PortIndex, &(Arc<LocalPair>, u32))| {
            let lent = self.lending.lent_to(*port).filter(|_| pair.may_land() && !self.is_held(*port))?;
            Some((*port, pair.clone(), lent.clone()))
        };
        self.pairs.iter().filter_map(of).collect()
    }

    /// Notes that the state of a landing is another.
    pub(super) fn note_news(&mut self) {
        self.has_changed = true;
    }

    /// Notes why frames of a port do not land.
    pub(super) fn note_not_landing(&mut self, port: PortIndex, why: String) {
        if self.landings.why.get(&port) != Some(&why) {
            tracing::debug!(port, "no frame lands in the guest's buffers: {why}");
            self.landings.why.insert(port, why);
            self.has_changed = true;
        }
    }

    /// Returns the state of zero copy of a port's vNIC.
    fn zero_copy(&self, port: PortIndex) -> ZeroCopyStatus {
        let landing = || match self.pairs.get(&port).map(|(pair, _)| pair.pieces()) {
            Some((has, needs)) if has < needs => LandingStatus {
                copied_because: Some(format!(
                    "the RDMA device takes {has} pieces of memory for each request (max_sge), and a frame that lands needs {needs}"
                )),
            },
            _ => self.landings.status(port),
        };
        let landing = self.lending.lent_to(port).map(|_| landing());
        ZeroCopyStatus { landing, ..self.lending.status(port) }
    }

    /// Lets another queue pair take the place of this one, which has or had a landing.
    pub(super) fn replace(&mut self, port: PortIndex, queue_pair: u32) {
        if self.pairs.get(&port).is_some_and(|(pair, _)| pair.number() == queue_pair) {
            self.pairs.remove(&port);
            self.has_changed = true;
        }
    }

    /// Gives up all queue pairs: the link goes.
    pub(super) fn leave(&mut self) {
        self.pairs.clear();
    }

    /// Returns when address handles are to be made (ns).
    pub(super) fn handles_due(&self) -> Option<u64> {
        self.handles.due()
    }

    /// Makes the address handles of one host that are due at `now` (ns), which may take a second.
    pub(super) fn make_handles(&mut self, now: u64) {
        let (device, from) = (&self.lane.setup.device, self.gid.as_ref().ok().copied().unwrap_or_default());
        let make = |host, at| Address::new(device, from, host, traffic_class(at));
        self.has_handles |= self.handles.refresh(now, make);
        self.has_changed = true;
    }

    /// Looks at the device, if that is due.
    fn look(&mut self, now: u64) {
        if now < self.look_at {
            return;
        }
        self.look_at = now + LOOK_EVERY;
        let gid = self.lane.gid_now();
        if gid != self.gid {
            match (&gid, &self.gid) {
                (Err(why), _) => tracing::warn!("no frame goes by RDMA: {why}"),
                (Ok(_), Err(_)) => tracing::info!(device = self.lane.device, "frames may go by RDMA"),
                (Ok(_), Ok(_)) => {}
            }
            self.gid = gid;
            self.has_changed = true;
            self.handles.expire();
        }
    }

    /// Ends what the device has of failed queue pairs. Before all that takes a lock: a thread that waits for their frames may hold
    /// the one which other tables, and ends of landings, need.
    pub(super) fn end_failed(&self) {
        for (pair, _) in self.pairs.values().filter(|(pair, _)| pair.is_failed()) {
            // A device that is gone has nothing.
            let _ = pair.fail();
        }
    }

    fn note_failures(&mut self, wished: &Wished, now: u64) {
        for (port, (pair, _)) in &self.pairs {
            if pair.is_failed() {
                let vnic = wished.vnics.get(port).map_or("", String::as_str);
                tracing::warn!(
                    vnic,
                    queue_pair = pair.number(),
                    "queue pair failed; another one takes its place"
                );
                self.failures.entry(*port).or_default().note(now);
            }
        }
    }

    fn follow(&mut self, plan: Plan, wished: &Wished, now: u64) {
        self.has_changed |= !(plan.drop.is_empty() && plan.set.is_empty() && plan.make.is_empty());
        for port in plan.drop {
            self.pairs.remove(&port);
        }
        for (port, q_key) in plan.set {
            let Some((pair, own)) = self.pairs.get_mut(&port) else { continue };
            match pair.set_q_key(q_key) {
                Ok(()) => *own = q_key,
                // It is replaced at the next turn.
                Err(error) => {
                    tracing::warn!(queue_pair = pair.number(), %error, "no new Q_Key; another queue pair takes its place");
                    self.failures.entry(port).or_default().note(now);
                    self.pairs.remove(&port);
                }
            }
        }
        for (port, wanted) in plan.make {
            self.make(port, wanted, wished, now);
        }
    }

    fn make(&mut self, port: PortIndex, wanted: Wanted, wished: &Wished, now: u64) {
        let failures = self.failures.entry(port).or_default();
        failures.tried(now);
        match self.lane.setup.pair(port, wanted.segment, wanted.mac, wanted.q_key) {
            Ok(pair) => {
                self.errors.remove(&port);
                self.pairs.insert(port, (pair, wanted.q_key));
            }
            Err(error) => {
                failures.note(now);
                let vnic = wished.vnics.get(&port).map_or("", String::as_str);
                let why = error.to_string();
                if self.errors.get(&port) != Some(&why) {
                    tracing::warn!(vnic, device = self.lane.device, "no queue pair: {why}");
                }
                self.errors.insert(port, why);
            }
        }
    }

    fn tables(&self, members: &[Member]) -> Arc<Tables> {
        // One without a way to it is a member all the same: its frames are taken.
        let entry = |member: &Member| MemberEntry {
            segment: member.segment,
            vni: member.id.id(),
            mac: member.mac,
            peer: member.peer,
            address: member.address,
            queue_pair: member.queue_pair,
            q_key: member.q_key,
            longest: member.longest,
            handles: self.way_to(member).ok().cloned(),
        };
        let pairs = self.pairs.values().map(|(pair, _)| pair.clone()).collect();
        let tables = Tables::new(pairs, members.iter().map(entry).collect());
        Arc::new(tables.with_guests(self.lending.lent()))
    }

    /// Returns the address handles of a member's host.
    ///
    /// # Errors
    /// Why no frame goes to it by RDMA.
    fn way_to(&self, member: &Member) -> Result<&[Arc<Address>; HANDLES], &str> {
        if !member.is_fresh {
            return Err("its host has not announced it, or not answered this host, for 35 s");
        }
        self.handles.of(member.address)
    }

    /// Tells others what there is now. Returns whether queue pairs came, went, or have another Q_Key.
    pub(super) fn show(&mut self, wished: &Wished) -> bool {
        if !std::mem::take(&mut self.has_changed) {
            return false;
        }
        let pair = |(port, vnic): (&PortIndex, &String)| {
            let number = self.pairs.get(port).map(|(pair, _)| pair.number());
            let error = wished.refused.get(port).or(self.errors.get(port)).or(self.gid.as_ref().err());
            QueuePairStatus {
                vnic: vnic.clone(),
                queue_pair: number,
                error: error.filter(|_| number.is_none()).cloned(),
                failures: self.failures.get(port).map_or(0, |failures| failures.count),
                zero_copy: wished.zero_copy.contains(port).then(|| self.zero_copy(*port)),
            }
        };
        let member = |member: &Member| MemberStatus {
            remote: member.remote.clone(),
            segment: member.id,
            mac: member.mac,
            peer: member.host.clone(),
            queue_pair: member.queue_pair,
            longest: member.longest,
            error: self.way_to(member).err().map(str::to_owned),
        };
        let counters =
            |(port, vnic): (&PortIndex, &String)| Some((vnic.clone(), self.lending.counters(*port)?.clone()));
        let numbers =
            self.pairs.iter().map(|(port, (pair, q_key))| (*port, (pair.number(), *q_key))).collect();
        let mut shown = self.lane.shown();
        shown.error = self.gid.as_ref().err().cloned();
        shown.pairs = wished.vnics.iter().map(pair).collect();
        shown.members = wished.members.iter().map(member).collect();
        shown.not_copied = wished.vnics.iter().filter_map(counters).collect();
        let before = std::mem::replace(&mut shown.numbers, numbers);
        before != shown.numbers
    }
}
