//! Takes and sends notices: all decisions of the thread, over sockets that do not wait.
//!
//! ```text
//!  sockets ─ receive ─▶ peer by source address ─▶ Notice ─┬▶ request ─▶ reply
//!                                                         ├▶ reply ─▶ exchange ─▶ Clocks
//!                                                         ├▶ late report ─▶ FarMiss
//!                                                         └▶ announcement ─▶ Moved
//!  Late, vNICs that came, time ─ send ─▶ requests, reports, announcements ─▶ sockets
//! ```
//!
//! A message from an address that is no peer's is dropped before its tag is computed. The times of an exchange are read
//! right before a message leaves and right after it came: what lies between them and the wire widens the interval of
//! the offset, and never makes it wrong.

use super::peer::{Peer, refusal};
use super::present::Present;
use super::setup::{KeyedSegment, LinkSetup, Local, Setup};
use super::socket;
use crate::clock::clock;
use crate::fdb::{PeerIndex, PortIndex};
use crate::hosts::late::Where;
use crate::hosts::{Clocks, Late};
use rtrb::Consumer;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tidegate_contract::{Mac, Segment};
use tidegate_evidence::{FAR_MISSES, FarMiss, MissCause, NoticeRefusal, PeerStatus};
use tidegate_uplink::clock::Exchange as Times;
use tidegate_uplink::notice::{Body, Cause, ClockReply, Here, LEN_MAX, LateReport, Notice, Way};
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
    misses: VecDeque<FarMiss>,
    reported: u64,
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
                misses: VecDeque::new(),
                reported: 0,
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
                }
                let mut state = known.unwrap_or_else(|| Peer::new(peer.clone(), now));
                let serves = |keyed: &&KeyedSegment| {
                    peer.stamps && peer.carries(keyed.segment) && keyed.keys.get(keyed.sends).is_some()
                };
                state.keyed = self.segments.iter().filter(serves).map(|keyed| keyed.segment).collect();
                state.keyed.sort_unstable();
                self.peers.insert(peer.index, state);
            }
            if let Some(at) = links_before.iter().position(|known| known.setup.name == state.setup.name) {
                let known = links_before.swap_remove(at);
                (state.unknown, state.misses, state.reported) = (known.unknown, known.misses, known.reported);
            }
            self.links.push(state);
        }
        before.into_keys().for_each(|gone| self.clocks.set(gone, None));
    }

    /// Sets the vNICs of this host.
    pub fn set_locals(&mut self, locals: Vec<Local>) {
        let now = (self.clock)();
        self.present.set(&locals, now);
        let named = locals.into_iter().map(|local| ((local.segment, local.mac), local.name));
        self.locals = named.collect();
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
        if !peer.may_send(now) {
            return peer.refuse(NoticeRefusal::TooMany);
        }
        let segments = &self.segments;
        let setup = &peer.setup;
        let keys = |vni| {
            let is_it = |keyed: &&KeyedSegment| {
                keyed.segment.id() == vni && setup.stamps && setup.carries(keyed.segment)
            };
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
                if peer.is_unknown(notice.started_ns) {
                    peer.exchange.hurry(now);
                }
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
                if peer.is_restarted(notice.started_ns, now) {
                    self.clocks.set(index, None);
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
                self.links[link].remember(miss);
            }
            Body::Here(Here { mac, since_ns }) => {
                peer.admit(notice, now)?;
                let (estimate, _) = peer.exchange.estimate(now).ok_or(NoticeRefusal::NoClock)?;
                peer.counts.announcements_received += 1;
                let since = i128::from(since_ns) - i128::from(estimate.offset_ns);
                // A time to come would keep the vNIC there for ever.
                let since = since.min(i128::from(now));
                self.moved.push(Moved { segment, mac: Mac(mac), peer: index, since });
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
        let concerns = |segment: Segment| peer.keyed.contains(&segment);
        while let Some(came) = peer.told.next(&self.present, now, concerns) {
            peer.counts.announcements_sent += 1;
            bodies.push((came.segment, Body::Here(Here { mac: came.mac.0, since_ns: came.since })));
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

    /// Returns when [`send`](Self::send) has something to do next, by the clock (ns); `None` if nothing is planned.
    pub fn due(&self, now: u64) -> Option<u64> {
        let is_stamped = self.peers.values().any(|peer| !peer.keyed.is_empty());
        let late = (is_stamped && !self.late.is_empty()).then_some(self.late_at);
        let of_peer = |peer: &Peer| {
            let asks = peer.asked_with().map(|_| peer.exchange.next());
            [asks, peer.reports.due(now), peer.told.due(&self.present, now)].into_iter().flatten().min()
        };
        self.peers.values().filter_map(of_peer).chain(late).min()
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
        (here.map(status).collect(), state.misses.iter().cloned().collect())
    }

    /// Counts the messages of a link from addresses that are no peer's.
    pub fn unknown(&self, link: PortIndex) -> u64 {
        self.links.iter().find(|state| state.setup.index == link).map_or(0, |state| state.unknown)
    }
}

impl LinkState {
    /// Forgets the oldest late frame of the peer that reported most: no peer drives out what others reported.
    fn forget_one(&mut self) {
        let mut counts = BTreeMap::<&str, usize>::new();
        self.misses.iter().for_each(|miss| *counts.entry(&miss.peer).or_default() += 1);
        let most = counts.into_iter().max_by_key(|(_, count)| *count).map(|(peer, _)| peer);
        let oldest = self.misses.iter().position(|miss| Some(&*miss.peer) == most);
        self.misses.remove(oldest.unwrap_or_default());
    }

    fn remember(&mut self, miss: FarMiss) {
        self.reported += 1;
        if self.misses.len() == FAR_MISSES {
            self.forget_one();
        }
        self.misses.push_back(FarMiss { number: self.reported, ..miss });
    }
}

fn report(late: &Late, others: u32) -> LateReport {
    LateReport {
        src: late.src.0,
        dst: late.dst.0,
        sequence: late.sequence,
        deadline_us: late.deadline_us,
        late_ns: late.late_ns,
        error_ns: late.error_ns,
        hold_ns: late.hold_ns,
        network_ns: late.network_ns,
        here_ns: late.here_ns,
        cause: match late.cause {
            Where::Sender | Where::Receiver(MissCause::Sender) => Cause::Sender,
            Where::Network | Where::Receiver(MissCause::Network) => Cause::Network,
            Where::Receiver(MissCause::Tokens) => Cause::Tokens,
            Where::Receiver(MissCause::Queue) => Cause::Queue,
            Where::Receiver(MissCause::Buffers) => Cause::Buffers,
            Where::Receiver(MissCause::Worker) => Cause::Worker,
            Where::Receiver(MissCause::Dropped) => Cause::Dropped,
        },
        dropped: late.dropped,
        others,
    }
}

fn far_miss(vnic: &str, peer: &str, report: &LateReport) -> FarMiss {
    let cause = match report.cause {
        Cause::Sender => MissCause::Sender.label(),
        Cause::Network => MissCause::Network.label(),
        Cause::Tokens => MissCause::Tokens.label(),
        Cause::Queue => MissCause::Queue.label(),
        Cause::Buffers => MissCause::Buffers.label(),
        Cause::Worker => MissCause::Worker.label(),
        Cause::Dropped => MissCause::Dropped.label(),
    };
    FarMiss {
        number: 0,
        at: clock(),
        vnic: vnic.to_owned(),
        peer: peer.to_owned(),
        dst: Mac(report.dst),
        sequence: report.sequence,
        cause: cause.to_owned(),
        dropped: report.dropped,
        deadline_ns: u64::from(report.deadline_us) * 1000,
        late_ns: report.late_ns,
        error_ns: report.error_ns,
        hold_ns: u64::from(report.hold_ns),
        network_ns: report.network_ns,
        there_ns: report.here_ns,
        others: report.others,
    }
}
