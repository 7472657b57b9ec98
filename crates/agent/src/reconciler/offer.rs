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

#[cfg(test)]
mod tests {
    use super::super::repair::tests::{FakePlace, There, agent};
    use super::*;
    use crate::store::Owner;
    use crate::store::offered::tests::{HOST, told_peer};
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::sync::{Arc, Mutex};
    use tidegate_contract::{Mac, parse};

    const SINK: &str = r#"
[vnic.sink]
attach = { vhost-user = "/run/tidegate/vm/sink.sock" }
mac = "52:54:00:00:00:01"
segment = 1
rx = { max = "10gbit" }
mtu = 1418
"#;

    /// A remote with a promise to `sink`, of which a rate of 1000 Mbit/s does not fit.
    fn remote(name: &str, number: u8, mbit: u64) -> Located<Remote> {
        let text = format!(
            "[remote.{name}]\nmac = \"52:54:00:00:00:{number:02x}\"\nsegment = 1\npeer = \"h2\"\ndeadline = \"20ms\"\n\
             to = [\"sink\"]\ntx = {{ max = \"{mbit}mbit\", burst = \"2kB\" }}\n"
        );
        let mut document = parse(&text, "told").unwrap_or_else(|errors| panic!("{errors}"));
        document.remotes.remove(0)
    }

    fn offer(remotes: Vec<Located<Remote>>, is_complete: bool) -> Offer {
        let peers = if remotes.is_empty() { vec![] } else { vec![told_peer("net0", "h2", "192.0.2.2")] };
        let document = Document { peers, remotes, ..Document::default() };
        Offer { host: "h1".into(), document, is_complete, ..Offer::default() }
    }

    fn started(folder: &Path) -> Reconciler {
        agent(folder, [FakePlace("fake", Arc::new(Mutex::new(There::default())))])
    }

    fn text(folder: &Path) -> String {
        let key = folder.join("key");
        std::fs::write(&key, "00112233445566778899aabbccddeef0").unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
        format!("{HOST}{SINK}\n[segment.1]\nkey-file = \"{}\"\n", key.display())
    }

    fn apply(agent: &mut Reconciler, text: &str) -> Result<(), String> {
        let owner = Owner::Api;
        agent
            .apply(text, "test", &owner, false, Adopt::No, false)
            .map(drop)
            .map_err(|error| error.to_string())
    }

    /// Names of the remotes in force, with a star where their promise is.
    fn remotes(agent: &Reconciler) -> Vec<String> {
        let all = agent.contracts.network().remotes;
        let star = |remote: &Remote| if remote.deadline.is_some() { "*" } else { "" };
        all.iter().map(|remote| format!("{}{}", remote.name, star(remote))).collect()
    }

    #[test]
    fn as_much_as_fits_comes_into_force_and_stays() {
        let folder = tempfile::tempdir().unwrap();
        let mut agent = started(folder.path());
        apply(&mut agent, &text(folder.path())).unwrap();
        let taken = agent.offer(offer(vec![remote("b1", 2, 10)], true)).unwrap();
        assert_eq!(taken, Taken::default());
        assert_eq!(remotes(&agent), ["b1*"]);
        assert_eq!(agent.contracts.network().uplinks[0].peers.len(), 1);

        // Of two that do not fit together, the earlier one stays. One takes the MAC of a vNIC here.
        let mut lie = remote("liar", 1, 10);
        lie.value.mac = Mac([0x52, 0x54, 0, 0, 0, 1]);
        let all = vec![remote("a9", 3, 1000), remote("b1", 2, 10), remote("b2", 4, 10), lie];
        let taken = agent.offer(offer(all.clone(), true)).unwrap();
        assert_eq!(remotes(&agent), ["a9", "b1*", "b2*"], "{taken:?}");
        let [(what, why)] = taken.declined.iter().collect::<Vec<_>>()[..] else { panic!("{taken:?}") };
        assert_eq!(what, "[remote.a9]");
        assert!(why.contains("egress sink refuses"), "{why}");
        let [difference] = &taken.differences[..] else { panic!("{taken:?}") };
        assert!(
            difference
                .starts_with("[remote.liar]: its MAC 52:54:00:00:00:01 in segment 1 is that of vNIC sink")
        );

        // A part takes nothing away; another agent has the same in force.
        agent.offer(offer(vec![remote("b2", 4, 10)], false)).unwrap();
        assert_eq!(remotes(&agent), ["a9", "b1*", "b2*"]);
        drop(agent);
        let mut agent = started(folder.path());
        agent.start();
        assert_eq!(remotes(&agent), ["a9", "b1*", "b2*"]);

        // A vNIC that comes here takes the place of its remote; when it goes, the remote is back.
        let moved = "[vnic.b2]\nattach = { vhost-user = \"/run/tidegate/vm/b2.sock\" }\nmac = \"52:54:00:00:00:04\"\n\
                     segment = 1\nmtu = 1418\n";
        apply(&mut agent, moved).unwrap();
        assert_eq!(remotes(&agent), ["a9", "b1*"]);
        agent.remove("b2").unwrap();
        assert_eq!(remotes(&agent), ["a9", "b1*", "b2*"]);

        // The receiver goes: no promise is left, and none stops it. Its MAC is free.
        agent.remove("sink").unwrap();
        assert_eq!(remotes(&agent), ["a9", "b1", "b2", "liar"]);
        agent.offer(offer(vec![], true)).unwrap();
        assert_eq!((remotes(&agent).len(), agent.contracts.network().uplinks[0].peers.len()), (0, 0));
    }

    #[test]
    fn without_a_controller_nothing_of_it_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let mut agent = started(folder.path());
        let text = text(folder.path());
        apply(&mut agent, &text).unwrap();
        agent.offer(offer(vec![remote("b1", 2, 10)], true)).unwrap();
        let (_, without) = text.split_once("\n\n").unwrap();
        let owner = Owner::Api;
        agent.apply(without, "test", &owner, true, Adopt::No, false).unwrap();
        assert_eq!((remotes(&agent).len(), agent.contracts.offers.len()), (0, 0));
        agent.offer(offer(vec![remote("b1", 2, 10)], true)).unwrap();
        assert_eq!(remotes(&agent).len(), 0, "no controller is asked");
    }
}
