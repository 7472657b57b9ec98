//! Brings what a place learnt elsewhere into force: all of it, or as much as fits.
//!
//! ```text
//!  Offer ─▶ enact ─ fits ─▶ in force, saved
//!              └─ refused ─▶ fitting: dry runs ─▶ enact what fits ─▶ Taken: what does not, and why
//! ```
//!
//! A remote whose promise does not fit stays without it: its frames go on, as best effort.

use super::Reconciler;
use super::fitting::{Fitted, fit};
use crate::commands::ApplyError;
use crate::store::offered::without_promise;
use std::collections::HashMap;
use tidegate_contract::{Document, GivenPeer, Located, Remote, Table};
use tidegate_place::{Adopt, Offer, Taken};

/// Most dry runs for one offer: each looks at all places.
const TRIES: usize = 64;
/// Longest reason (characters).
const REASON: usize = 1000;

/// A table of an offer.
#[derive(Clone, Debug)]
enum Item {
    Peer(Located<GivenPeer>),
    Remote(Located<Remote>),
}

impl Item {
    fn what(&self) -> String {
        match self {
            Self::Peer(peer) => peer.value.what(),
            Self::Remote(remote) => remote.value.what(),
        }
    }

    fn weaker(&self) -> Option<Self> {
        match self {
            Self::Remote(remote) if remote.value.deadline.is_some() => {
                Some(Self::Remote(Located { value: without_promise(remote.value.clone()), ..remote.clone() }))
            }
            _ => None,
        }
    }
}

impl Reconciler {
    /// Takes an offer: what does not fit is left out, and told.
    pub(super) fn offer(&mut self, offer: Offer) -> Result<Taken, ApplyError> {
        let Offer { host, document, is_complete, .. } = offer;
        let mut wanted = self.contracts.clone();
        let differences = wanted.offer(&host, document.clone(), is_complete);
        if wanted == self.contracts {
            return Ok(Taken { differences, ..Taken::default() });
        }
        let refused = match self.enact(wanted.clone(), Adopt::No) {
            Ok(_) => {
                self.changed();
                return Ok(Taken { differences, ..Taken::default() });
            }
            Err(error @ (ApplyError::Invalid(_) | ApplyError::Refused(_) | ApplyError::Failed(_))) => error,
            Err(error) => return Err(error),
        };
        tracing::debug!(
            "not all that the network's controller tells fits: {}",
            shortened(&refused.to_string())
        );
        // An offer that is no complete one is beside what was offered before.
        let all = wanted.offered(&host).cloned().unwrap_or(document);
        let Fitted { kept, declined } = self.fitting(&host, all);
        let mut wanted = self.contracts.clone();
        let differences = wanted.offer(&host, joined(&kept), true);
        if wanted != self.contracts {
            self.enact(wanted, Adopt::No)?;
            self.changed();
        }
        let declined = declined.into_iter().map(|(item, why)| (item.what(), why)).collect();
        Ok(Taken { declined, differences })
    }

    /// Finds what of an offer fits. What is in force comes first, and peers before remotes behind them.
    fn fitting(&mut self, host: &str, document: Document) -> Fitted<Item> {
        let before = self.contracts.offered(host).cloned().unwrap_or_default();
        let before: HashMap<&str, &Remote> =
            before.remotes.iter().map(|remote| (remote.value.name.as_str(), &remote.value)).collect();
        let Document { peers, mut remotes, .. } = document;
        remotes.sort_by_key(|remote| match before.get(remote.value.name.as_str()) {
            Some(old) if **old == remote.value => 0,
            Some(_) => 1,
            None => 2,
        });
        let items = peers.into_iter().map(Item::Peer).chain(remotes.into_iter().map(Item::Remote)).collect();
        fit(items, TRIES, Item::weaker, |items| {
            let mut wanted = self.contracts.clone();
            wanted.offer(host, joined(items), true);
            self.dry_run(&wanted, Adopt::No, &mut Vec::new())
                .map(drop)
                .map_err(|error| shortened(&error.to_string()))
        })
    }
}

fn joined(items: &[Item]) -> Document {
    let mut document = Document::default();
    for item in items {
        match item {
            Item::Peer(peer) => document.peers.push(peer.clone()),
            Item::Remote(remote) => document.remotes.push(remote.clone()),
        }
    }
    document
}

/// Returns a reason in one line, and of bounded length.
fn shortened(why: &str) -> String {
    let lines: Vec<&str> = why.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join("; ").chars().take(REASON).collect()
}
