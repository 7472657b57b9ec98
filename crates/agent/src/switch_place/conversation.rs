//! The conversation with the running switch.
//!
//! ```text
//!  question ─▶ Patience ─▶ session, or a new one ─▶ switch ─▶ answer, or why there is none
//!                │            │ another process than before: what the one before left becomes the Estate
//!                │            └▶ FdStore keeps duplicates of what this one has
//!                └ too early: the last reason            an answer that does not come ─▶ Watch looks for the next switch
//! ```

use super::fdstore::{Estate, FdStore};
use super::patience::Patience;
use super::watch::{Wake, Watch};
use crate::cut;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_contract::Host;
use tidegate_switch::control::client::PATIENCE;
use tidegate_switch::control::{Client, Hello, SwitchError};
use tidegate_switch::foreign::{Budget, Foreign};
use tidegate_switch::stats::Reader;

/// Asks the switch at one path, as often and as long as it deserves.
pub struct Conversation {
    path: PathBuf,
    session: Option<Session>,
    /// What this agent told the running switch.
    pub host: Option<Host>,
    /// Start of the switch last spoken to.
    started: u64,
    /// Keeps what that switch has.
    pub kept: Option<FdStore>,
    /// What switches before it have left and it has not got yet.
    pub estate: Estate,
    /// Of its descriptors.
    pub budget: Arc<Budget>,
    patience: Patience,
    /// What went wrong when it was last asked at length.
    trouble: String,
    watch: Arc<Watch>,
}

/// One connection to the switch.
pub struct Session {
    /// Asks.
    pub client: Client,
    /// Its statistics.
    pub reader: Reader,
    /// What it said of itself.
    pub hello: Hello,
}

impl Conversation {
    /// With the switch whose control socket is `path`. `wake` is called when another switch answers there.
    pub fn new(path: &Path, wake: Wake) -> Self {
        Self {
            path: path.to_owned(),
            session: None,
            host: None,
            started: 0,
            kept: None,
            estate: Estate::default(),
            budget: Budget::half_of_all(),
            patience: Patience::new(Instant::now()),
            trouble: String::new(),
            watch: Watch::new(path, wake),
        }
    }

    /// The control socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Asks the switch; a conversation that broke off is given up, to be begun anew by the next question. One that
    /// keeps us waiting is not asked all the time.
    pub fn ask<T>(
        &mut self,
        question: impl FnOnce(&mut Session) -> Result<T, SwitchError>,
    ) -> Result<T, SwitchError> {
        cut::point();
        let began = Instant::now();
        let answer = match self.patience.for_question(began) {
            Some(patience) => self.ask_within(patience, question),
            None => Err(SwitchError::Broken { path: self.path.clone(), reason: self.trouble.clone() }),
        };
        self.patience.spent(began.elapsed());
        if matches!(answer, Err(SwitchError::Unreachable { .. } | SwitchError::Broken { .. })) {
            // Whatever step it was gone at: the next one is not to wait for a tick.
            self.watch.look();
        }
        cut::point();
        answer
    }

    fn ask_within<T>(
        &mut self,
        patience: Duration,
        question: impl FnOnce(&mut Session) -> Result<T, SwitchError>,
    ) -> Result<T, SwitchError> {
        let began = Instant::now();
        let session = self.session.take().filter(|session| !session.client.is_closed());
        let mut answer = session.map_or_else(|| self.connect(patience), Ok).and_then(|mut session| {
            session.client.set_patience(patience);
            let answer = question(&mut session);
            if matches!(answer, Ok(_) | Err(SwitchError::Refused(_))) {
                self.session = Some(session);
            }
            answer
        });
        if let Err(SwitchError::Broken { reason, .. }) = &mut answer {
            // A short wait in vain says less than the long one before it.
            if patience < PATIENCE && began.elapsed() >= patience && !self.trouble.is_empty() {
                reason.clone_from(&self.trouble);
            } else {
                self.trouble.clone_from(reason);
            }
        }
        answer
    }

    /// A connection for questions that take so long at most.
    fn client(&self, patience: Duration) -> Result<Client, SwitchError> {
        let mut client = Client::connect(&self.path)?.apart()?;
        client.set_patience(patience);
        Ok(client)
    }

    fn connect(&mut self, patience: Duration) -> Result<Session, SwitchError> {
        let mut client = self.client(patience)?;
        let (hello, reader, _) = client.hello()?;
        if hello.started != self.started {
            self.host = None;
            if let Some(kept) = self.kept.take() {
                kept.bequeath(&mut self.estate);
            }
            if let Some(statistics) = &self.estate.statistics
                && let Err(error) = client.inherit(statistics.as_fd())
            {
                // One that took over from a running switch has them already.
                tracing::debug!(%error, "counters do not go on");
            }
            if self.started != 0 {
                tracing::warn!(pid = hello.pid, "the switch was started anew; giving it everything again");
            } else {
                tracing::info!(pid = hello.pid, version = hello.version, "connected to the switch");
            }
            self.started = hello.started;
        }
        if self.kept.as_ref().is_none_or(FdStore::is_over) {
            self.kept = Some(FdStore::start(&mut self.client(patience)?, &self.watch, &self.budget)?);
        }
        Ok(Session { client, reader, hello })
    }

    /// A listening socket or tap that an agent before us made, given away.
    pub fn take_link(&mut self, vnic: &str) -> Option<Vec<Foreign>> {
        let left = self.estate.links.remove(vnic);
        left.or_else(|| self.kept.as_ref()?.take_link(vnic))
    }
}
