//! Receives an answer of the switch: bounded by the question, and checked.
//!
//! ```text
//!  socket ─▶ as long, and with as many descriptors, as that answer may be ─▶ JSON ─▶ do the values make sense?
//!                                                                         └─▶ is the descriptor what it has to be?
//! ```

use super::channel::{self, Bounds, MAX_MESSAGE};
use super::message::{Hello, PROTOCOL, PortStatus, Reply, UplinkStatus, WorkStatus};
use super::{rdma, visible_text};
use crate::capacity::{VNICS, WORKERS};
use crate::link::vxlan::pairs::PAIRS;
use crate::port::talk;
use crate::stats::{Reader, ThrownOut};
use crate::vhost_user::conduct;
use rustix::net::{AddressFamily, sockopt};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Instant;
use tidegate_contract::Vnic;
use tidegate_contract::check::{QUEUES, SHARED};
use tidegate_evidence::{FAR_MISSES, MissCause, NoticeRefusal};

/// Longest answer that is no list (bytes).
const SHORT: usize = 16 << 10;
/// Longest identity (bytes): with the addresses of RDMA devices.
const IDENTITY: usize = 128 << 10;
/// Longest version string of a switch (bytes).
const VERSION: usize = 64;
/// Most threads that receive answers, of clients in use and blocked ones.
const THREADS: usize = 128;

/// The answer that a question expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// The switch's identity, with a descriptor of its statistics.
    Hello,
    /// All ports.
    Ports,
    /// All uplinks.
    Uplinks,
    /// The directions in force, and their outcome.
    Work,
    /// The state of a retired switch, with a descriptor of its control socket.
    Retired,
    /// No content.
    Done,
}

impl Expected {
    fn bounds(self) -> Bounds {
        match self {
            Self::Hello => Bounds { bytes: IDENTITY, descriptors: 1 },
            Self::Ports | Self::Uplinks | Self::Work => Bounds { bytes: MAX_MESSAGE, descriptors: 0 },
            Self::Retired => Bounds { bytes: MAX_MESSAGE, descriptors: 1 },
            Self::Done => Bounds { bytes: SHORT, descriptors: 0 },
        }
    }
}

/// A checked answer.
pub struct Answer {
    /// The message.
    pub reply: Reply,
    /// The statistics of [`Reply::Hello`].
    pub statistics: Option<(Reader, OwnedFd)>,
    /// The listening Unix socket of [`Reply::Retired`].
    pub socket: Option<OwnedFd>,
}

/// Receives the next answer; `None` if the switch has closed the connection.
///
/// # Errors
/// [`io::ErrorKind::TimedOut`] if it is not complete at `end`; or it does not fit the question.
pub fn receive(stream: &UnixStream, expected: Expected, end: Instant) -> io::Result<Option<Answer>> {
    let received = channel::receive_until::<Reply>(stream, expected.bounds(), Some(end))?;
    let Some((reply, descriptors)) = received else { return Ok(None) };
    let reply = checked(reply).map_err(io::Error::other)?;
    let mut answer = Answer { reply, statistics: None, socket: None };
    let descriptor = descriptors.into_iter().next();
    match (&answer.reply, descriptor) {
        (Reply::Hello(_), Some(file)) => answer.statistics = Some((Reader::open(&file)?, file)),
        (Reply::Hello(_), None) => {
            return Err(io::Error::other("the answer has no descriptor of the statistics"));
        }
        (Reply::Retired(_), Some(socket)) if is_listening(&socket) => answer.socket = Some(socket),
        (Reply::Retired(_), _) => return Err(io::Error::other("the answer has no control socket")),
        (_, Some(_)) => {
            return Err(io::Error::other("the answer has a descriptor that this program did not ask for"));
        }
        (_, None) => {}
    }
    Ok(Some(answer))
}

fn is_listening(socket: &OwnedFd) -> bool {
    sockopt::socket_domain(socket) == Ok(AddressFamily::UNIX)
        && sockopt::socket_acceptconn(socket) == Ok(true)
}

/// Checks an answer's values and shortens its texts.
///
/// # Errors
/// The invalid value.
fn checked(reply: Reply) -> Result<Reply, String> {
    Ok(match reply {
        Reply::Refused(why) => Reply::Refused(visible_text(why)),
        Reply::Hello(hello) => Reply::Hello(hello_of(hello)?),
        Reply::Ports(ports) => Reply::Ports(ports_of(ports)?),
        Reply::Uplinks(uplinks) => Reply::Uplinks(uplinks_of(uplinks)?),
        Reply::Work(work) => Reply::Work(Box::new(work_of(*work)?)),
        Reply::Retired(mut retired) => {
            retired.ports = ports_of(std::mem::take(&mut retired.ports))?;
            Reply::Retired(retired)
        }
        Reply::Done => Reply::Done,
    })
}

fn hello_of(mut hello: Hello) -> Result<Hello, String> {
    if hello.protocol != PROTOCOL {
        return Err(format!(
            "the switch uses control protocol {}, and this program uses {PROTOCOL}: install the same release \
             of both",
            hello.protocol
        ));
    }
    if hello.version.len() > VERSION || !(1..=WORKERS).contains(&hello.workers) {
        return Err(format!(
            "the switch reports {} workers, expected 1 to {WORKERS}, or a release name of more than \
             {VERSION} bytes",
            hello.workers
        ));
    }
    rdma::check_devices(&mut hello.rdma)?;
    Ok(hello)
}

fn ports_of(mut ports: Vec<PortStatus>) -> Result<Vec<PortStatus>, String> {
    if ports.len() > VNICS {
        return Err(format!("the switch reports {} ports, expected at most {VNICS}", ports.len()));
    }
    let mut names = BTreeSet::new();
    for port in &mut ports {
        if !Vnic::is_name(&port.vnic.name) {
            return Err("the switch reports a port whose vNIC has an invalid name".into());
        }
        if !names.insert(port.vnic.name.clone()) {
            return Err(format!("the switch reports two ports of vNIC {}", port.vnic.name));
        }
        if !QUEUES.contains(&port.vnic.queues) {
            let (fewest, most) = (QUEUES.start(), QUEUES.end());
            return Err(format!(
                "the switch reports a port with {} queue pairs, expected {fewest} to {most}",
                port.vnic.queues
            ));
        }
        if port.shared.len() > SHARED {
            return Err(format!(
                "the switch reports a port with {} shared addresses, expected at most {SHARED}",
                port.shared.len()
            ));
        }
        for shared in &mut port.shared {
            shared.holder = shared.holder.take().filter(|name| Vnic::is_name(name));
        }
        port.thrown_out.retain(|kind, _| ThrownOut::ALL.iter().any(|known| known.label() == kind));
        for text in [&mut port.deadline_suspended, &mut port.last_error] {
            *text = text.take().map(visible_text);
        }
        if let Some(quarantine) = &mut port.held.quarantine {
            quarantine.reason = visible_text(std::mem::take(&mut quarantine.reason));
            for seconds in [&mut quarantine.seconds, &mut quarantine.remaining] {
                *seconds = (*seconds).min(conduct::LONGEST.as_secs());
            }
        }
    }
    Ok(ports)
}

/// Checks the numbers of entries, and names.
fn work_of(mut work: WorkStatus) -> Result<WorkStatus, String> {
    let WorkStatus { directions, not_followed, traffic, .. } = &mut work;
    let many = directions.workers.len().max(not_followed.workers.len()) > WORKERS
        || directions.vnics.len().max(not_followed.vnics.len()) > VNICS
        || traffic.len() > talk::PAIRS;
    if many {
        return Err(
            "it reports directions for more workers or vNICs, or more pairs, than a switch has".into()
        );
    }
    if !directions.vnics.keys().chain(not_followed.vnics.keys()).all(|name| Vnic::is_name(name)) {
        return Err("it reports a direction for a vNIC that can have no such name".into());
    }
    let reasons = not_followed.workers.values_mut().chain(not_followed.vnics.values_mut());
    reasons.for_each(|reason| *reason = visible_text(std::mem::take(reason)));
    Ok(work)
}

fn uplinks_of(mut uplinks: Vec<UplinkStatus>) -> Result<Vec<UplinkStatus>, String> {
    if uplinks.len() > VNICS {
        return Err(format!("it says that it has {} uplinks, of at most {VNICS}", uplinks.len()));
    }
    let mut names = BTreeSet::new();
    for UplinkStatus { uplink, remotes, sockets, .. } in &uplinks {
        if sockets.len() > WORKERS || sockets.iter().any(|worker| *worker >= WORKERS) {
            return Err(format!("it has sockets of {} at workers that no switch has", uplink.name));
        }
        let mut all = std::iter::once(&uplink.name).chain(remotes.iter().map(|remote| &remote.name));
        if !all.all(|name| Vnic::is_name(name)) {
            return Err("it has an uplink or a remote that can have no such name".into());
        }
        if !names.insert(&uplink.name) {
            return Err(format!("it has two uplinks {}", uplink.name));
        }
    }
    for UplinkStatus { broken, .. } in &mut uplinks {
        *broken = broken.take().map(visible_text);
    }
    uplinks.iter_mut().try_for_each(check_peers)?;
    uplinks.iter_mut().try_for_each(rdma::check)?;
    Ok(uplinks)
}

/// Checks what an uplink's status says of its peers; leaves out labels that this program does not know.
fn check_peers(status: &mut UplinkStatus) -> Result<(), String> {
    let UplinkStatus { uplink, peers, far_misses, pairs, .. } = status;
    let is_declared = |name: &str| uplink.peers.iter().any(|peer| peer.name == name);
    if peers.len() > uplink.peers.len() || far_misses.len() > FAR_MISSES || pairs.len() > 2 * PAIRS {
        return Err(format!("it knows more of the peers of {} than there is", uplink.name));
    }
    let are_named = peers.iter().all(|peer| is_declared(&peer.name) && peer.uplink == uplink.name)
        && far_misses.iter().all(|miss| Vnic::is_name(&miss.peer) && Vnic::is_name(&miss.vnic))
        && pairs.iter().all(|pair| Vnic::is_name(&pair.vnic) && Vnic::is_name(&pair.remote));
    if !are_named {
        return Err(format!("it names peers or vNICs at {} that can have no such name", uplink.name));
    }
    for peer in peers {
        peer.unasked = peer.unasked.take().map(visible_text);
        peer.counts.refused.retain(|why, _| NoticeRefusal::of_label(why).is_some());
    }
    far_misses.retain(|miss| MissCause::of_label(&miss.cause).is_some());
    Ok(())
}

/// A thread that receives answers. The client goes on without it if it does not return.
#[derive(Debug)]
pub struct AnswerThread {
    questions: SyncSender<(Expected, Instant)>,
    answers: Receiver<io::Result<Option<Answer>>>,
}

static LIVE: AtomicUsize = AtomicUsize::new(0);

struct Live;

impl Drop for Live {
    fn drop(&mut self) {
        LIVE.fetch_sub(1, SeqCst);
    }
}

impl AnswerThread {
    /// Receives answers from `stream` until it is shut down.
    ///
    /// # Errors
    /// The thread cannot start, or too many have not returned.
    pub fn start(stream: UnixStream) -> io::Result<Self> {
        let more = |live| (live < THREADS).then_some(live + 1);
        if LIVE.fetch_update(SeqCst, SeqCst, more).is_err() {
            return Err(io::Error::other(format!(
                "{THREADS} conversations with the switch have not ended: the descriptors that the switch \
                 sent do not close"
            )));
        }
        let live = Live;
        let (questions, asked) = sync_channel::<(Expected, Instant)>(1);
        let (answered, answers) = sync_channel(1);
        let take_in = move || {
            let _live = live;
            while let Ok((expected, end)) = asked.recv() {
                if answered.send(receive(&stream, expected, end)).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("answers".into()).spawn(take_in)?;
        Ok(Self { questions, answers })
    }

    /// As [`receive`]; returns at `end` even if the thread is blocked.
    ///
    /// # Errors
    /// As there.
    pub fn answer(&self, expected: Expected, end: Instant) -> io::Result<Option<Answer>> {
        // A busy thread still works on an answer that was given up.
        self.questions.try_send((expected, end)).map_err(|_| io::ErrorKind::TimedOut)?;
        match self.answers.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => Err(io::ErrorKind::TimedOut.into()),
            Err(RecvTimeoutError::Disconnected) => {
                Err(io::Error::other("the thread that receives answers has ended"))
            }
        }
    }
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.reply.kind())
    }
}
