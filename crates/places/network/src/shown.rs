//! How a path stands, in words and as evidence.
//!
//! ```text
//!  Entry: Standing ─────────────┬▶ promised, or why not
//!  port of the pair, lease: Now ┴▶ NetworkPath
//! ```
//!
//! A path that was granted is promised as long as this host holds a lease, and frames have the port that it was granted for.

use crate::book::Entry;
use crate::standing::Standing;
use std::borrow::Cow;
use tidegate_controller_api::PathState;
use tidegate_evidence::NetworkPath;

/// What else a granted path depends on.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// The source port that frames of the pair have.
    pub port: Option<u16>,
    /// Whether the lease of this host's registration holds.
    pub leased: bool,
}

impl Entry {
    /// Returns how it stands with what is true now.
    fn stands(&self, now: Now) -> Cow<'_, Standing> {
        match &self.standing {
            Standing::Granted(path)
                if path.request.key.udp().is_some_and(|key| Some(key.source_port) != now.port) =>
            {
                let why = "its frames have another source port than it was granted for";
                Cow::Owned(Standing::Unlike(why.into()))
            }
            Standing::Granted(_) if !now.leased => Cow::Owned(Standing::Away(
                "nothing is known of it since the lease of this host's registration ended".into(),
            )),
            there => Cow::Borrowed(there),
        }
    }

    /// Returns why the deadline is not promised over the network; `None` if it is.
    pub fn unpromised(&self, now: Now) -> Option<String> {
        let to = &self.wanted.terms.remote;
        let text = match &*self.stands(now) {
            Standing::Granted(path) => match path.state {
                PathState::Active | PathState::Moving => return None,
                PathState::Installing => format!("switches do not have its path to {to} yet"),
                PathState::Broken => format!("its path to {to} is broken{}", listed(&path.reasons)),
                PathState::Violated => format!(
                    "frames to {to} are late in the network, and nothing helps{}",
                    listed(&path.reasons)
                ),
            },
            Standing::Asked => format!("its path to {to} is asked for"),
            Standing::Waiting(why) => format!("its path to {to} waits{}", listed(why)),
            Standing::Busy => format!("its path to {to} waits: {BUSY}"),
            Standing::Refused(why) => {
                format!("the network's controller refuses its path to {to}{}", listed(why))
            }
            Standing::Away(why) => {
                format!("the network's controller does not answer for its path to {to}: {why}")
            }
            Standing::Unlike(why) => {
                format!("its path to {to} is not as it was asked for, and is asked for again: {why}")
            }
        };
        // Frames of a plain NIC have no other way there.
        let otherwise = "; without a path, switches of this network take none of its frames";
        Some(if self.wanted.terms.ends_at_nic() { text + otherwise } else { text })
    }

    /// Returns the entry as evidence.
    pub fn evidence(&self, now: Now) -> NetworkPath {
        let terms = &self.wanted.terms;
        let stands = self.stands(now);
        let granted = match &*stands {
            Standing::Granted(path) => Some(&**path),
            _ => None,
        };
        let (state, reasons) = match &*stands {
            Standing::Asked => ("asked", vec![]),
            Standing::Waiting(why) => ("waiting", why.clone()),
            Standing::Busy => ("waiting", vec![BUSY.into()]),
            Standing::Refused(why) => ("refused", why.clone()),
            Standing::Away(why) => ("unreachable", vec![why.clone()]),
            Standing::Unlike(why) => ("asked", vec![why.clone()]),
            Standing::Granted(path) => (state_name(path.state), path.reasons.clone()),
        };
        NetworkPath {
            name: terms.name(),
            vnic: terms.vnic.clone(),
            remote: terms.remote.clone(),
            state: state.into(),
            promised: self.unpromised(now).is_none(),
            reasons,
            budget_ns: terms.budget.get(),
            bound_ns: granted.map(|path| path.bound),
            level: granted.map(|path| path.level),
            links: granted.map(|path| path.links.clone()).unwrap_or_default(),
            port: now.port,
            misses: granted.map_or(0, |path| path.misses),
            ends_at_nic: terms.ends_at_nic(),
        }
    }
}

/// What a person is told while a controller says that it is busy.
pub const BUSY: &str = "the controller has too much to do, or changes it just now";

fn state_name(state: PathState) -> &'static str {
    match state {
        PathState::Installing => "installing",
        PathState::Active => "active",
        PathState::Moving => "moving",
        PathState::Broken => "broken",
        PathState::Violated => "violated",
    }
}

fn listed(reasons: &[String]) -> String {
    if reasons.is_empty() { String::new() } else { format!(": {}", reasons.join("; ")) }
}
