//! Requests to the reconciler, and the reasons for which they fail.

use crate::store::{Owned, Owner};
use crate::views::{PlanView, VnicChange};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_contract::{Errors, Mac, Rate};
use tidegate_durable::DurableError;
use tidegate_place::{Adopt, Offer, Taken};
use tokio::sync::oneshot;

/// A request to the reconciler.
#[derive(Debug)]
pub enum Command {
    Apply {
        /// TOML.
        text: String,
        /// Its file name, for messages.
        origin: String,
        /// The owner of its contracts.
        owner: Owner,
        /// Remove the owner's other tables, but for `[host]`.
        prune: bool,
        /// Whether to take over foreign objects in the way.
        adopt: Adopt,
        dry_run: bool,
        reply: Reply<PlanView>,
    },
    Set {
        name: String,
        keys: Vec<(String, String)>,
        reply: Reply<VnicChange>,
    },
    Remove {
        name: String,
        reply: Reply<VnicChange>,
    },
    Soft {
        /// The socket of its port.
        guest: PathBuf,
        /// The vNIC's MAC; all vNICs of the guest if absent.
        mac: Option<Mac>,
        /// The soft limit; removes it if absent.
        rate: Option<Rate>,
        reply: oneshot::Sender<Result<(), Unmet>>,
    },
    /// Bring as much as fits of what a place learnt into force.
    Offer {
        offer: Box<Offer>,
        reply: Reply<Taken>,
    },
    /// Look at the places now, for clients that read counters.
    Look(Looks),
    /// Observe and repair now: something that a place waited for appeared.
    Repair,
    /// Read the configuration folder now.
    Reload,
    /// End, after the commands before this one.
    Stop,
}

impl Command {
    /// Returns whether its client no longer waits. Such commands pile up while a place does not answer.
    pub(crate) fn is_abandoned(&self) -> bool {
        match self {
            Self::Apply { reply, .. } => reply.is_closed(),
            Self::Set { reply, .. } | Self::Remove { reply, .. } => reply.is_closed(),
            Self::Soft { reply, .. } => reply.is_closed(),
            Self::Offer { reply, .. } => reply.is_closed(),
            // A later client may wait for this look, too.
            Self::Look(_) | Self::Repair | Self::Reload | Self::Stop => false,
        }
    }
}

/// The clients that wait for a look at the places. The queue has one look for all of them.
#[derive(Clone, Debug, Default)]
pub struct Looks(Arc<Mutex<Vec<oneshot::Sender<()>>>>);

impl Looks {
    /// Adds a client. The receiver resolves when the board shows a look that began after this call. True if no
    /// client waited before: then the caller has to send `Command::Look`.
    pub fn join(&self) -> (oneshot::Receiver<()>, bool) {
        let (reply, seen) = oneshot::channel();
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push(reply);
        (seen, waiting.len() == 1)
    }

    /// Takes the clients that still wait, for a look that begins now.
    pub(crate) fn begin(&self) -> Vec<oneshot::Sender<()>> {
        let waiting = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        waiting.into_iter().filter(|reply| !reply.is_closed()).collect()
    }
}

pub type Reply<T> = oneshot::Sender<Result<T, ApplyError>>;

/// Why a change was not made. The old state is in force.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The text or a rule between contracts is broken.
    #[error("{0}")]
    Invalid(Errors),
    /// Other contracts name the vNIC that is to go.
    #[error("{0}")]
    Needed(String),
    #[error("there is no vNIC {0:?}")]
    NoVnic(String),
    #[error(transparent)]
    Owned(#[from] Owned),
    /// A place cannot keep the contracts, or they do not fit.
    #[error("{}", .0.join("\n"))]
    Refused(Vec<String>),
    #[error("{0}")]
    Unreachable(String),
    #[error("{}", .0.join("\n"))]
    Failed(Vec<String>),
    /// The contracts cannot be written to disk; nothing was touched.
    #[error("nothing was changed, because it cannot be saved: {0}")]
    NotRecorded(String),
    /// The contracts could not be saved; the change was taken back, except for the steps in `not_undone`.
    #[error("{}", not_saved(.error, .not_undone))]
    NotSaved {
        error: DurableError,
        /// The reasons why steps could not be undone.
        not_undone: Vec<String>,
    },
}

fn not_saved(error: &DurableError, not_undone: &[String]) -> String {
    if not_undone.is_empty() {
        return format!("the change was taken back because it could not be saved: {error}");
    }
    format!(
        "the change could not be saved ({error}), and not all of it could be taken back: {}",
        not_undone.join("; ")
    )
}

/// Why a guest does not get its soft limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unmet {
    /// The guest cannot have this limit.
    #[error("{0}")]
    Refused(String),
    /// The host cannot set it now.
    #[error("{0}")]
    Unavailable(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_is_not_saved_says_what_was_not_undone() {
        let text = |not_undone: &[&str]| {
            let error = DurableError::Newer { path: "c.json".into(), found: 9 };
            let not_undone = not_undone.iter().map(|why| (*why).into()).collect();
            ApplyError::NotSaved { error, not_undone }.to_string()
        };
        assert!(text(&[]).starts_with("the change was taken back because it could not be saved: c.json has"));
        let partly = text(&["a: undoing the step \"create\" failed", "b: no"]);
        assert!(partly.starts_with("the change could not be saved (c.json has version 9"), "{partly}");
        assert!(partly.ends_with("be taken back: a: undoing the step \"create\" failed; b: no"), "{partly}");
    }
}
