//! The conversation with the running switch.
//!
//! ```text
//!  question ─▶ Patience ─▶ session, or after Backoff a new one ─▶ switch ─▶ answer, or why it gave none
//!                │            │ another process than before: what the one before left becomes the PredecessorState
//!                │            └▶ FdStore keeps duplicates of what this one has
//!                └ too early: the last reason                it gave none ─▶ Watch looks for the next switch
//! ```
//!
//! One patience covers the connection and all answers of a question.

mod backoff;
mod fdstore;
mod patience;
mod watch;

use crate::action::Declared;
use fdstore::{FdStore, PredecessorState};
use patience::Patience;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_contract::{Host, SegmentKey, Transport, Uplink, Vnic};
use tidegate_durable::cut;
use tidegate_service::foreign::{Budget, Foreign};
use tidegate_switch::control::client::PATIENCE;
use tidegate_switch::control::{Attachment, Client, Hello, PortOrders, SwitchError, UplinkSockets};
use tidegate_switch::stats::Reader;
pub use watch::Wake;
use watch::Watch;

/// Asks the switch at one path, as often as its behaviour allows.
pub struct Conversation {
    path: PathBuf,
    session: Option<Session>,
    /// Host-wide settings that this agent sent to the running switch.
    pub host: Option<Host>,
    /// Start of the switch of the last conversation.
    started: u64,
    /// Stores that switch's descriptors.
    pub fdstore: Option<FdStore>,
    /// Descriptors of earlier switches that the present one has not got yet.
    pub predecessor: PredecessorState,
    /// For its descriptors.
    pub budget: Arc<Budget>,
    patience: Patience,
    /// The reason of the last failed question.
    trouble: String,
    watch: Arc<Watch>,
}

/// One connection to the switch.
pub struct Session {
    /// For questions.
    pub client: Client,
    /// Its statistics.
    pub reader: Reader,
    /// Its greeting.
    pub hello: Hello,
    /// It has answered a whole question after the `hello` of this connection.
    had_answered: bool,
}

impl Session {
    /// Creates or changes a port. A switch that knows no RDMA, or no zero copy, is told of none: it could not read the contract.
    pub fn set_port(&mut self, vnic: &Vnic, link: Attachment<'_>) -> Result<(), SwitchError> {
        let Hello { knows_rdma, knows_zero_copy, .. } = self.hello;
        let mut known = vnic.clone();
        if !knows_rdma {
            known.transport = Transport::Uplink;
        }
        known.zero_copy &= knows_rdma && knows_zero_copy;
        self.client.set_port(&known, link)
    }

    /// Creates or changes an uplink; likewise.
    pub fn set_uplink(
        &mut self,
        Declared { uplink, remotes, .. }: &Declared,
        keys: &[SegmentKey],
        orders: PortOrders,
        sockets: Option<UplinkSockets<'_>>,
    ) -> Result<(), SwitchError> {
        let without = (!self.hello.knows_rdma).then(|| Uplink { rdma: None, ..uplink.clone() });
        self.client.set_uplink(without.as_ref().unwrap_or(uplink), remotes, keys, orders, sockets)
    }
}

impl Conversation {
    /// Begins with the switch whose control socket is `path`. `wake` is called when another switch answers
    /// there.
    pub fn new(path: &Path, wake: Wake) -> Self {
        Self {
            path: path.to_owned(),
            session: None,
            host: None,
            started: 0,
            fdstore: None,
            predecessor: PredecessorState::default(),
            budget: Budget::half_of_all(),
            patience: Patience::new(Instant::now()),
            trouble: String::new(),
            watch: Watch::new(path, wake),
        }
    }

    /// Returns the control socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Asks the switch. A broken conversation is given up; a later question begins the next one. A switch
    /// that keeps the reconciler waiting, or breaks off repeatedly, is asked less often.
    ///
    /// # Errors
    /// The switch refused, is unreachable or stopped answering; or it is too early to ask, with the last
    /// reason.
    pub fn ask<T>(
        &mut self,
        question: impl FnOnce(&mut Session) -> Result<T, SwitchError>,
    ) -> Result<T, SwitchError> {
        cut::point();
        let began = Instant::now();
        let Some(patience) = self.patience.for_question(began) else {
            // A found switch would not be asked either: the next tick does.
            return Err(self.last_trouble());
        };
        let answer = self.ask_within(began, patience, question);
        self.patience.spent(began.elapsed());
        match &answer {
            Ok(_) | Err(SwitchError::Refused(_)) => self.watch.answered(),
            Err(SwitchError::Unreachable { .. }) => self.watch.unreachable(),
            Err(_) => {}
        }
        if matches!(answer, Err(SwitchError::Unreachable { .. } | SwitchError::Broken { .. })) {
            // The next switch must not wait for a tick, at whichever step the last one ended.
            self.watch.look();
        }
        cut::point();
        answer
    }

    fn ask_within<T>(
        &mut self,
        began: Instant,
        patience: Duration,
        question: impl FnOnce(&mut Session) -> Result<T, SwitchError>,
    ) -> Result<T, SwitchError> {
        let ended = self.session.take_if(|session| session.client.is_closed());
        if let Some(ended) = &ended {
            self.watch.broke(ended.had_answered);
        }
        if self.session.is_none() && self.watch.is_too_soon() {
            if ended.is_some() {
                self.trouble = "it closed the connection, or sent an answer without a question".into();
            }
            return Err(self.last_trouble());
        }
        let mut had_answered = false;
        let session = self.session.take().map_or_else(|| self.connect(began, patience), Ok);
        let mut answer = session.and_then(|mut session| {
            had_answered = session.had_answered;
            session.client.share_patience(began, patience);
            let answer = question(&mut session);
            if matches!(answer, Ok(_) | Err(SwitchError::Refused(_))) {
                self.session = Some(Session { had_answered: true, ..session });
            }
            answer
        });
        if let Err(SwitchError::Broken { reason, .. }) = &mut answer {
            self.watch.broke(had_answered);
            // A short wait in vain says less than the long one before it.
            if patience < PATIENCE && began.elapsed() >= patience && !self.trouble.is_empty() {
                reason.clone_from(&self.trouble);
            } else {
                self.trouble.clone_from(reason);
            }
        }
        answer
    }

    fn last_trouble(&self) -> SwitchError {
        SwitchError::Broken { path: self.path.clone(), reason: self.trouble.clone() }
    }

    /// Returns a connection whose answers all come within `patience` after `began`.
    fn client(&self, began: Instant, patience: Duration) -> Result<Client, SwitchError> {
        let mut client = Client::connect(&self.path)?.with_answer_thread()?;
        client.share_patience(began, patience);
        Ok(client)
    }

    fn connect(&mut self, began: Instant, patience: Duration) -> Result<Session, SwitchError> {
        let mut client = self.client(began, patience)?;
        let (hello, reader, _) = client.hello()?;
        if hello.started != self.started {
            self.host = None;
            if let Some(fdstore) = self.fdstore.take() {
                fdstore.pass_on(&mut self.predecessor, began + patience);
            }
            if let Some(statistics) = &self.predecessor.statistics
                && let Err(error) = client.inherit(statistics.as_fd())
            {
                // A switch that took over from a running one has them already.
                tracing::debug!(%error, "the counters of the previous switch are not continued");
            }
            if self.started != 0 {
                tracing::warn!(
                    pid = hello.pid,
                    "another process of the switch answers, after a restart or an upgrade; giving it the \
                     contracts that it does not have"
                );
            } else {
                tracing::info!(pid = hello.pid, version = hello.version, "connected to the switch");
            }
            self.started = hello.started;
        }
        if self.fdstore.as_ref().is_none_or(FdStore::is_over) {
            let mut client = self.client(began, patience)?;
            self.fdstore = Some(FdStore::start(&mut client, &self.watch, &self.budget)?);
        }
        Ok(Session { client, reader, hello, had_answered: false })
    }

    /// Takes a listening socket or tap that an earlier agent made.
    pub fn take_link(&mut self, vnic: &str) -> Option<Vec<Foreign>> {
        let inherited = self.predecessor.links.remove(vnic);
        inherited.or_else(|| self.fdstore.as_ref()?.take_link(vnic))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tidegate_switch::control::channel::{receive, send};
    use tidegate_switch::control::message::{PROTOCOL, Reply, Request};
    use tidegate_switch::stats::Region;

    /// Starts a switch at `path` that answers each question correctly, `late`, and only `most` questions of
    /// each connection.
    fn switch(path: &Path, late: Duration, most: usize) -> Arc<AtomicUsize> {
        let (listener, connections) = (UnixListener::bind(path).unwrap(), Arc::<AtomicUsize>::default());
        let counted = Arc::clone(&connections);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                counted.fetch_add(1, Ordering::SeqCst);
                std::thread::spawn(move || {
                    let region = Region::create().unwrap();
                    // For this connection: the switch lives on.
                    let mut kept = Vec::new();
                    for _ in 0..most {
                        let Ok(Some((request, descriptors))) = receive::<Request>(&stream) else { return };
                        kept.extend(descriptors);
                        std::thread::sleep(late);
                        let version = "late".into();
                        let hello = Hello {
                            protocol: PROTOCOL,
                            version,
                            pid: 1,
                            started: 1,
                            workers: 1,
                            directable: false,
                            shares_queues: false,
                            knows_rdma: false,
                            knows_zero_copy: false,
                            rdma: vec![],
                        };
                        let _ = match request {
                            Request::Hello => send(&stream, &Reply::Hello(hello), &[region.file().as_fd()]),
                            Request::Ports => send(&stream, &Reply::Ports(vec![]), &[]),
                            _ => send(&stream, &Reply::Done, &[]),
                        };
                    }
                });
            }
        });
        connections
    }

    #[test]
    fn all_answers_of_a_question_share_one_patience() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("switch.sock");
        // In time for each answer's own patience, with a wide margin.
        switch(&path, PATIENCE / 2, usize::MAX);
        let mut conversation = Conversation::new(&path, Arc::new(|| {}));
        let began = Instant::now();
        let answer = conversation.ask(|session| {
            (0..10).try_for_each(|_| session.client.ports().map(drop))?;
            session.client.ports()
        });
        let took = began.elapsed();
        assert!(matches!(&answer, Err(SwitchError::Broken { reason, .. }) if reason.contains("no answer")));
        assert!(took >= PATIENCE && took < PATIENCE * 2, "{took:?}");
        // Nor does the second question, on a new connection.
        let began = Instant::now();
        assert!(conversation.ask(|session| session.client.ports()).is_err());
        assert!(began.elapsed() < PATIENCE * 2, "{:?}", began.elapsed());
    }

    #[test]
    fn a_switch_that_breaks_off_is_not_connected_to_by_every_question() {
        // It breaks off at once; after the hello; after the descriptors' conversation; after one question.
        for most in 0..4 {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("switch.sock");
            let connections = switch(&path, Duration::ZERO, most);
            let mut conversation = Conversation::new(&path, Arc::new(|| {}));
            let (end, mut asked) = (Instant::now() + Duration::from_secs(3), 0);
            while Instant::now() < end {
                let _ = conversation.ask(|session| session.client.ports());
                asked += 1;
            }
            let connections = connections.load(Ordering::SeqCst);
            println!("{most} answers a connection: {connections} connections for {asked} questions");
            assert!(connections < 200 && asked > 1000, "{most}: {connections} for {asked} questions");
        }
    }

    /// It answers one question, and is gone when the reconciler asks.
    #[test]
    fn a_switch_that_is_found_and_never_reached_is_looked_for_less_often() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("switch.sock");
        let (woken, wakes) = std::sync::mpsc::channel();
        let mut conversation = Conversation::new(&path, Arc::new(move || woken.send(()).unwrap_or(())));
        let (at, answers) = (path.clone(), Arc::<AtomicUsize>::default());
        let answered = Arc::clone(&answers);
        std::thread::spawn(move || {
            loop {
                let Ok(listener) = UnixListener::bind(&at) else { return };
                let Ok((stream, _)) = listener.accept() else { return };
                drop(listener);
                let (version, region) = ("1".into(), Region::create().unwrap());
                let hello = Hello {
                    protocol: PROTOCOL,
                    version,
                    pid: 1,
                    started: 1,
                    workers: 1,
                    directable: false,
                    shares_queues: false,
                    knows_rdma: false,
                    knows_zero_copy: false,
                    rdma: vec![],
                };
                if matches!(receive::<Request>(&stream), Ok(Some((Request::Hello, _)))) {
                    answered.fetch_add(1, Ordering::SeqCst);
                    let _ = send(&stream, &Reply::Hello(hello), &[region.file().as_fd()]);
                }
                // Its next question finds no switch.
                std::thread::sleep(Duration::from_millis(5));
                if std::fs::remove_file(&at).is_err() {
                    return;
                }
            }
        });
        let end = Instant::now() + Duration::from_secs(4);
        conversation.watch.look();
        while Instant::now() < end {
            if wakes.recv_timeout(Duration::from_millis(100)).is_ok() {
                let _ = conversation.ask(|session| session.client.ports());
            }
        }
        let answers = answers.load(Ordering::SeqCst);
        assert!((2..30).contains(&answers), "{answers} looks in 4 s");
    }

    #[test]
    fn a_switch_that_is_killed_again_and_again_is_asked_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("switch.sock");
        let mut conversation = Conversation::new(&path, Arc::new(|| {}));
        for kill in 0..8 {
            let _ = std::fs::remove_file(&path);
            // The hello of the session, and two questions; the second connection keeps descriptors.
            switch(&path, Duration::ZERO, 3);
            for question in 0..2 {
                let answer = conversation.ask(|session| session.client.ports());
                assert!(answer.is_ok(), "question {question} after {kill} kills: {answer:?}");
            }
            // The connection ends after the second answer.
            let session = conversation.session.as_ref().unwrap();
            while !session.client.is_closed() {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(150));
        }
    }
}
