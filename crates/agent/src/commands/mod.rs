//! Requests to the reconciler, from the API and from guests, and the reasons for which they fail.

use crate::store::{Owned, Owner};
use crate::views::{PlanView, VnicChange};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_contract::{Errors, Mac, Rate};
use tidegate_durable::DurableError;
use tidegate_place::Adopt;
use tokio::sync::oneshot;

/// What the API asks for.
#[derive(Debug)]
pub enum Command {
    /// Plan or apply a text.
    Apply {
        /// TOML.
        text: String,
        /// Its file name, for messages.
        origin: String,
        /// Whose contracts it has.
        owner: Owner,
        /// Remove the owner's other vNICs.
        prune: bool,
        /// Whether what others made in the way is taken over.
        adopt: Adopt,
        /// Change nothing.
        dry_run: bool,
        /// The answer.
        reply: Reply<PlanView>,
    },
    /// Change single keys.
    Set {
        /// The vNIC.
        name: String,
        /// Keys and values.
        keys: Vec<(String, String)>,
        /// The answer.
        reply: Reply<VnicChange>,
    },
    /// Remove a vNIC.
    Remove {
        /// The vNIC.
        name: String,
        /// The answer.
        reply: Reply<VnicChange>,
    },
    /// A guest asks for another soft limit.
    Soft {
        /// The socket of its port.
        guest: PathBuf,
        /// Of which of its vNICs; all where absent.
        mac: Option<Mac>,
        /// The limit; none of its own where absent.
        asked: Option<Rate>,
        /// The answer.
        reply: oneshot::Sender<Result<(), Unmet>>,
    },
    /// Look at the places now: a client that reads counters wants them as they are.
    Look(Looks),
    /// A place is there again: put right now what differs.
    Repair,
    /// Read the configuration folder now.
    Reload,
    /// End, with what came before finished.
    Stop,
}

impl Command {
    /// Whether its client is gone, and waits for no answer: while a place did not answer, these pile up.
    pub(crate) fn is_abandoned(&self) -> bool {
        match self {
            Self::Apply { reply, .. } => reply.is_closed(),
            Self::Set { reply, .. } | Self::Remove { reply, .. } => reply.is_closed(),
            Self::Soft { reply, .. } => reply.is_closed(),
            // A later client may wait for this look, too.
            Self::Look(_) | Self::Repair | Self::Reload | Self::Stop => false,
        }
    }
}

/// The clients that wait for a look at the places. The queue has one look for all of them.
#[derive(Clone, Debug, Default)]
pub struct Looks(Arc<Mutex<Vec<oneshot::Sender<()>>>>);

impl Looks {
    /// One more waits: it is told when the board shows what was so after this call. True where no client waited before, and
    /// the look has to be asked for.
    pub fn join(&self) -> (oneshot::Receiver<()>, bool) {
        let (reply, seen) = oneshot::channel();
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push(reply);
        (seen, waiting.len() == 1)
    }

    /// Those whom the look that begins now is for, but for those who gave up.
    pub(crate) fn begin(&self) -> Vec<oneshot::Sender<()>> {
        let waiting = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        waiting.into_iter().filter(|reply| !reply.is_closed()).collect()
    }
}

/// Where an answer goes.
pub type Reply<T> = oneshot::Sender<Result<T, ApplyError>>;

/// Why a change was not made. The old state is in force.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The text or a rule between contracts is broken.
    #[error("{0}")]
    Invalid(Errors),
    /// Others name the vNIC that is to go.
    #[error("{0}")]
    Needed(String),
    /// No such vNIC.
    #[error("there is no vNIC {0:?}")]
    NoVnic(String),
    /// The contract has another owner.
    #[error(transparent)]
    Owned(#[from] Owned),
    /// A place cannot keep it, or it does not fit.
    #[error("{}", .0.join("\n"))]
    Refused(Vec<String>),
    /// A place cannot be reached.
    #[error("{0}")]
    Unreachable(String),
    /// An action failed.
    #[error("{}", .0.join("\n"))]
    Failed(Vec<String>),
    /// It cannot be put on disk.
    #[error("nothing was changed, because it cannot be saved: {0}")]
    NotRecorded(String),
    /// It could not be saved.
    #[error("the change was taken back because it could not be saved: {0}")]
    NotSaved(DurableError),
}

/// The reason for which a guest does not get the soft limit that it asks for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unmet {
    /// It cannot be had.
    #[error("{0}")]
    Refused(String),
    /// Not now.
    #[error("{0}")]
    Unavailable(String),
}
