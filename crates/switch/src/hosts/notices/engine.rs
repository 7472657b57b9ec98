//! Takes and sends notices: all decisions of the thread, over sockets that do not wait.
//!
//! ```text
//!  sockets ─ receive ─▶ peer by source address ─▶ Notice ─┬▶ request ─▶ reply
//!                                                         ├▶ reply ─▶ exchange ─▶ Clocks
//!                                                         ├▶ late report ─▶ FarMiss
//!                                                         ├▶ announcement of a vNIC ─▶ Moved
//!                                                         └▶ announcement of a queue pair ─▶ members ─▶ Heard
//!  Late, vNICs that came, their queue pairs, time ─ send ─▶ requests, reports, announcements ─▶ sockets
//! ```
//!
//! A message from an address that is no peer's is dropped before its tag is computed. Only authentic messages use up what a
//! peer may send: how many tags are computed is bounded by the thread's turns. The times of an exchange are read
//! right before a message leaves and right after it came: what lies between them and the wire widens the interval of
//! the offset, and never makes it wrong.

use super::far::{FarMisses, far_miss, report};
use super::members::{Heard, Members, QueuePair, Said};
use super::own::{Own, Telling};
use super::peer::{Peer, refusal};
use super::present::Present;
use super::setup::{KeyedSegment, LinkSetup, Local, Setup};
use super::socket;
use crate::fdb::{PeerIndex, PortIndex};
use crate::hosts::{Clocks, Late};
use rtrb::Consumer;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tidegate_contract::{Mac, Segment};
use tidegate_evidence::{FarMiss, NoticeRefusal, PeerStatus};
use tidegate_uplink::clock::Exchange as Times;
use tidegate_uplink::notice::{Body, ClockReply, Here, LEN_MAX, Member, Notice, Way};
use tidegate_uplink::stamp::Keys;

/// Most messages of one link in a turn.
const BATCH: usize = 64;
/// Late frames of one worker in a turn.
const LATE_BATCH: usize = 1024;
/// Time between two looks at the workers' queues of late frames (ns).
const LATE_EVERY: u64 = 50_000_000;

/// Returns CLOCK_MONOTONIC_RAW (ns), or what a test has instead.
pub type Clock = Box<dyn Fn() -> u64 + Send>;

/// An announced vNIC that may have moved to another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Its segment.
    pub segment: Segment,
    /// Its own MAC.
    pub mac: Mac,
    /// Where it is.
    pub peer: PeerIndex,
    /// Since when, by this host's clock (ns), within the clocks' error; may lie before this clock's start.
    pub since: i128,
}

/// The state of the thread of notices.
pub struct Engine {
    clock: Clock,
    /// Start of this process, by `clock` (ns).
    started: u64,
    clocks: Arc<Clocks>,
    links: Vec<LinkState>,
    segments: Vec<KeyedSegment>,
    peers: BTreeMap<PeerIndex, Peer>,
    locals: HashMap<(Segment, Mac), String>,
    present: Present,
    own: Own,
    members: Members,
    late: Vec<Consumer<Late>>,
    /// When the workers' queues are looked at next (ns).
    late_at: u64,
    moved: Vec<Moved>,
    /// State of a generator of numbers for jitter.
    jitter: u64,
}

/// One link.
struct LinkState {
    setup: LinkSetup,
    by_address: HashMap<IpAddr, PeerIndex>,
    /// Messages from addresses that are no peer's.
    unknown: u64,
    misses: FarMisses,
}

impl Engine {
    /// Returns an engine without links, which publishes estimates in `clocks`.
    pub fn new(clock: Clock, clocks: Arc<Clocks>) -> Self {
        // Another start than that of a process before the machine's: 1 at least.
        let started = clock().max(1);
        Self {
            clock,
            started,
            clocks,
            links: vec![],
            segments: vec![],
            peers: BTreeMap::new(),
            locals: HashMap::new(),
            present: Present::default(),
            own: Own::default(),
            members: Members::default(),
            late: vec![],
            late_at: 0,
            moved: vec![],
            jitter: started,
        }
    }

    /// Sets links, peers and keys. A peer with its number, name and address keeps its state.
    pub fn set(&mut self, setup: Setup) {
        let now = (self.clock)();
        let mut before = std::mem::take(&mut self.peers);
        let mut links_before = std::mem::take(&mut self.links);
        self.segments = setup.segments;
        for link in setup.links {
            let mut state = LinkState {
                by_address: link.peers.iter().map(|peer| (peer.address, peer.index)).collect(),
                unknown: 0,
                misses: FarMisses::default(),
                setup: link,
            };
            for peer in &state.setup.peers {
                let same =
                    |known: &Peer| (&known.setup.name, known.setup.address) == (&peer.name, peer.address);
                let known = before.remove(&peer.index).filter(same).map(|mut known| {
                    known.setup = peer.clone();
                    known
                });
                if known.is_none() {
                    self.clocks.set(peer.index, None);
                    self.members.forget(peer.index);
                }
                let mut state = known.unwrap_or_else(|| Peer::new(peer.clone(), now));
                let serves = |keyed: &&KeyedSegment| {
                    peer.stamps && peer.carries(keyed.segment) && keyed.keys.get(keyed.sends).is_some()
                };
                state.keyed = self.segments.iter().filter(serves).map(|keyed| keyed.segment).collect();
                state.keyed.sort_unstable();
                state.keep_windows(|vni| self.segments.iter().any(|keyed| keyed.segment.id() == vni));
                self.peers.insert(peer.index, state);
            }
            if let Some(at) = links_before.iter().position(|known| known.setup.name == state.setup.name) {
                let known = links_before.swap_remove(at);
                (state.unknown, state.misses) = (known.unknown, known.misses);
            }
            self.links.push(state);
        }
        before.into_keys().for_each(|gone| self.clocks.set(gone, None));
        let q_keys: HashMap<Segment, [Option<u32>; 2]> =
            self.segments.iter().map(|keyed| (keyed.segment, keyed.q_keys())).collect();
        self.members.keep_valid(|peer, segment, q_key| {
            let reaches = self.peers.get(&peer).is_some_and(|peer| peer.keys_reach(segment));
            let valid = q_keys.get(&segment).copied().unwrap_or_default();
            reaches && (q_key.is_none() || valid.contains(&q_key))
        });
    }

    /// Sets the vNICs of this host.
    pub fn set_locals(&mut self, locals: Vec<Local>) {
        let now = (self.clock)();
        self.present.set(&locals, now);
        self.own.set(&locals, &self.present, now);
        let named = locals.into_iter().map(|local| ((local.segment, local.mac), local.name));
        let named = named.collect();
        if self.locals != named {
            self.locals = named;
            self.members.locals_changed();
        }
    }

    /// Takes late frames from a worker's queue from now on.
    pub fn attach(&mut self, late: Consumer<Late>) {
        self.late.push(late);
    }

    /// Returns the sockets.
    pub fn sockets(&self) -> Vec<Arc<OwnedFd>> {
        self.links.iter().map(|link| link.setup.socket.clone()).collect()
    }

    /// Whether there are peers to talk with.
    pub fn has_peers(&self) -> bool {
        !self.peers.is_empty()
    }

    /// Returns the vNICs that were announced since the last call.
    pub fn take_moved(&mut self) -> Vec<Moved> {
        std::mem::take(&mut self.moved)
    }

    /// Returns the vNICs that RDMA reaches at peers, by segment and MAC, if they have changed since the last call.
    pub fn take_members(&mut self) -> Option<Vec<Heard>> {
        let now = (self.clock)();
        let is_here = |segment, mac| self.locals.contains_key(&(segment, mac));
        let hears = |peer| self.peers.get(&peer).is_some_and(|peer| peer.hearing.is_sure(now));
        self.members.take(now, is_here, hears)
    }

    /// Takes what has arrived, a bounded number of messages; whether more may wait.
    pub fn receive(&mut self) -> bool {
        let mut is_more = false;
        for link in 0..self.links.len() {
            // All times first: work on one message would delay that of the next.
            let mut arrived = Vec::new();
            while arrived.len() < BATCH {
                let mut buffer = [0; LEN_MAX + 1];
                let received = socket::receive(&self.links[link].setup.socket, &mut buffer);
                let now = (self.clock)();
                let Ok((len, source)) = received else { break };
                arrived.push((buffer, len, source, now));
            }
            is_more |= arrived.len() == BATCH;
            for (buffer, len, source, now) in arrived {
                self.take(link, &buffer[..len], source, now);
            }
        }
        is_more
    }

    /// Takes one message that came by a link at `now` (ns).
    fn take(&mut self, link: usize, bytes: &[u8], source: Option<IpAddr>, now: u64) {
        let state = &mut self.links[link];
        let found = source.and_then(|source| Some((source, *state.by_address.get(&source)?)));
        let Some((from, index)) = found else {
            state.unknown += 1;
            return;
        };
        let way = Way { from, to: state.setup.local };
        let Some(peer) = self.peers.get_mut(&index) else { return };
        let segments = &self.segments;
        let keys = |vni| {
            let is_it = |keyed: &&KeyedSegment| keyed.segment.id() == vni && peer.keys_reach(keyed.segment);
            segments.iter().find(is_it).map_or_else(Keys::default, |keyed| keyed.keys)
        };
        let taken = match Notice::read(bytes, way, keys) {
            Ok(notice) => self.accept(link, index, &notice, now),
            Err(refused) => Err(refusal(refused)),
        };
        if let (Err(why), Some(peer)) = (taken, self.peers.get_mut(&index)) {
            peer.refuse(why);
        }
    }

    /// Does what an authentic notice of a peer says.
    fn accept(
        &mut self,
        link: usize,
        index: PeerIndex,
        notice: &Notice,
        now: u64,
    ) -> Result<(), NoticeRefusal> {
        let Some(peer) = self.peers.get_mut(&index) else { return Ok(()) };
        let Some(segment) = Segment::new(notice.vni) else { return Err(NoticeRefusal::Malformed) };
        match notice.body {
            Body::ClockRequest => {
                peer.admit_request(notice, now)?;
                let reply = ClockReply {
                    asked_started_ns: notice.started_ns,
                    asked_number: notice.number,
                    t1: notice.sent_ns,
                    t2: now,
                };
                self.send_notice(link, index, segment, Body::ClockReply(reply));
            }
            Body::ClockReply(ClockReply { asked_started_ns, asked_number, t1, t2 }) => {
                if asked_started_ns != self.started || !peer.exchange.take_asked(asked_number, t1) {
                    return Err(NoticeRefusal::Unasked);
                }
                if peer.hearing.answered(now) {
                    peer.telling = Telling::nothing(now);
                }
                if peer.is_restarted(notice.started_ns, now) {
                    self.clocks.set(index, None);
                    self.members.forget(index);
                }
                let times = Times { t1, t2, t3: notice.sent_ns, t4: now };
                if let Ok(outlook) = peer.exchange.answered(times) {
                    self.clocks.set(index, Some(outlook));
                }
            }
            Body::Late(report) => {
                peer.admit(notice, now)?;
                let src = (segment, Mac(report.src));
                let vnic = self.locals.get(&src).ok_or(NoticeRefusal::UnknownVnic)?;
                peer.counts.reports_received += 1;
                peer.counts.late_frames += 1 + u64::from(report.others);
                let miss = far_miss(vnic, &peer.setup.name, &report);
                self.links[link].misses.remember(miss);
            }
            Body::Here(Here { mac, since_ns }) => {
                peer.admit(notice, now)?;
                let since = peer.since(since_ns, now).ok_or(NoticeRefusal::NoClock)?;
                peer.counts.announcements_received += 1;
                self.moved.push(Moved { segment, mac: Mac(mac), peer: index, since });
            }
            Body::Member(Member { mac, since_ns, queue_pair, longest }) => {
                peer.admit(notice, now)?;
                let since = peer.since(since_ns, now);
                let mac = Mac(mac).as_source().map_err(|_| NoticeRefusal::Malformed)?;
                let keyed = self.segments.iter().find(|keyed| keyed.segment == segment);
                let q_key = keyed.and_then(|keyed| keyed.q_key(notice.key)).ok_or(NoticeRefusal::NoKey)?;
                let queue_pair =
                    (queue_pair != 0).then_some(QueuePair { number: queue_pair, longest, q_key });
                let said = Said { queue_pair, since_ns, since, sent_ns: notice.sent_ns };
                let from = (index, peer.setup.address);
                self.members
                    .hear(from, (segment, mac), said, now)
                    .map_err(|_| NoticeRefusal::TooManyMembers)?;
                peer.counts.members_received += 1;
            }
        }
        Ok(())
    }

    /// Sends everything that is due.
    pub fn send(&mut self) {
        let now = (self.clock)();
        self.take_late(now);
        let peers = self.asked_peers();
        for link in 0..self.links.len() {
            for at in 0..self.links[link].setup.peers.len() {
                self.send_to(link, self.links[link].setup.peers[at].index, now, peers);
            }
        }
    }

    fn send_to(&mut self, link: usize, index: PeerIndex, now: u64, peers: usize) {
        let Some(peer) = self.peers.get_mut(&index) else { return };
        if peer.exchange.withdraw(now, peers) {
            self.clocks.set(index, None);
        }
        let mut bodies = Vec::new();
        while let Some((late, others)) = peer.reports.next(now) {
            let is_it = |keyed: &&KeyedSegment| keyed.index == Some(late.segment);
            let segment = self.segments.iter().find(is_it).map(|keyed| keyed.segment);
            if let Some(segment) = segment.filter(|segment| peer.keyed.contains(segment)) {
                peer.counts.reports_sent += 1;
                bodies.push((segment, Body::Late(report(&late, others))));
            }
        }
        let keyed = &peer.keyed;
        let concerns = |segment: Segment| keyed.contains(&segment);
        while let Some(came) = peer.told.next(&self.present, now, concerns) {
            peer.counts.announcements_sent += 1;
            bodies.push((came.segment, Body::Here(Here { mac: came.mac.0, since_ns: came.since })));
        }
        while let Some(claim) = peer.telling.next(&self.own, now, concerns) {
            // Its peers would take the Q_Key of the key that makes the tag. With that Q_Key, it is told at once.
            if claim.q_key.is_none_or(|q_key| sends_with(&self.segments, claim.segment) == Some(q_key)) {
                peer.counts.members_sent += 1;
                bodies.push((claim.segment, Body::Member(claim.member)));
            }
        }
        let asks = if peer.exchange.next() <= now { peer.asked_with() } else { None };
        for (segment, body) in bodies {
            self.send_notice(link, index, segment, body);
        }
        if let Some(segment) = asks {
            self.jitter = self.jitter.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let jitter = (self.jitter >> 56) as u8;
            let sent = self.send_notice(link, index, segment, Body::ClockRequest);
            if let (Some((number, t1)), Some(peer)) = (sent, self.peers.get_mut(&index)) {
                peer.exchange.asked(number, t1, jitter, peers);
            }
        }
    }

    /// Counts the peers whose clocks are asked.
    fn asked_peers(&self) -> usize {
        self.peers.values().filter(|peer| !peer.keyed.is_empty()).count()
    }

    /// Sends one notice; returns its number and its time of sending (ns), if there is a key for it.
    fn send_notice(
        &mut self,
        link: usize,
        to: PeerIndex,
        segment: Segment,
        body: Body,
    ) -> Option<(u32, u64)> {
        let keyed = self.segments.iter().find(|keyed| keyed.segment == segment)?;
        let key = keyed.keys.get(keyed.sends)?;
        let LinkSetup { local, port, socket, .. } = &self.links.get(link)?.setup;
        let peer = self.peers.get_mut(&to)?;
        let number = peer.next_number();
        let way = Way { from: *local, to: peer.setup.address };
        let sent_ns = (self.clock)();
        let (key_number, started_ns) = (keyed.sends, self.started);
        let notice = Notice { key: key_number, vni: segment.id(), started_ns, number, sent_ns, body };
        let message = notice.write(key, way);
        if socket::send(socket, message.as_bytes(), SocketAddr::new(way.to, *port)).is_err() {
            peer.counts.unsent += 1;
        }
        Some((number, sent_ns))
    }

    /// Takes late frames from the workers' queues.
    fn take_late(&mut self, now: u64) {
        if now < self.late_at {
            return;
        }
        self.late_at = now + LATE_EVERY;
        for queue in &mut self.late {
            for _ in 0..LATE_BATCH {
                let Ok(late) = queue.pop() else { break };
                if let Some(peer) = self.peers.get_mut(&late.peer) {
                    peer.reports.add(late);
                }
            }
        }
    }

    /// Returns when [`send`](Self::send) or [`take_members`](Self::take_members) has something to do next, by the clock (ns); `None` if nothing is planned.
    pub fn due(&self, now: u64) -> Option<u64> {
        let is_stamped = self.peers.values().any(|peer| !peer.keyed.is_empty());
        let late = (is_stamped && !self.late.is_empty()).then_some(self.late_at);
        let of_peer = |peer: &Peer| {
            let asks = peer.asked_with().map(|_| peer.exchange.next());
            let told = [peer.told.due(&self.present, now), peer.telling.due(&self.own, now)];
            [asks, peer.reports.due(now)].into_iter().chain(told).flatten().min()
        };
        self.peers.values().filter_map(of_peer).chain(late).chain(self.members.due()).min()
    }

    /// Returns the time by the engine's clock (ns).
    pub fn now(&self) -> u64 {
        (self.clock)()
    }

    /// Returns the state of a link's peers, and the latest late frames that they reported, the oldest first.
    pub fn status(&self, link: PortIndex) -> (Vec<PeerStatus>, Vec<FarMiss>) {
        let Some(state) = self.links.iter().find(|state| state.setup.index == link) else {
            return (vec![], vec![]);
        };
        let (now, peers) = (self.now(), self.asked_peers());
        let status = |peer: &Peer| peer.status(&state.setup.name, now, peers);
        let here = state.setup.peers.iter().filter_map(|setup| self.peers.get(&setup.index));
        (here.map(status).collect(), state.misses.all())
    }

    /// Counts the messages of a link from addresses that are no peer's.
    pub fn unknown(&self, link: PortIndex) -> u64 {
        self.links.iter().find(|state| state.setup.index == link).map_or(0, |state| state.unknown)
    }
}

/// Returns the Q_Key of the key with which a segment sends.
fn sends_with(segments: &[KeyedSegment], segment: Segment) -> Option<u32> {
    let keyed = segments.iter().find(|keyed| keyed.segment == segment)?;
    keyed.q_key(keyed.sends)
}
