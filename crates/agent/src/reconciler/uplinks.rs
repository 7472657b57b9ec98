//! Uplinks, as readers see them.

use super::Reconciler;
use crate::store::Owner;
use crate::views::{State, UplinkStats, UplinkView};
use tidegate_contract::{Remote, Uplink};
use tidegate_evidence::{SocketCounts, VnicStats};
use tidegate_place::ObservedUplink;

impl Reconciler {
    pub(super) fn uplink_views(&self) -> impl Iterator<Item = UplinkView> + '_ {
        self.contracts.uplinks().into_iter().map(|(owner, uplink)| self.uplink_view(&owner, &uplink))
    }

    fn uplink_view(&self, owner: &Owner, contract: &Uplink) -> UplinkView {
        let name = &contract.name;
        let looks = self.seen.iter().map(|seen| seen.as_ref().ok());
        let place =
            looks.clone().position(|look| look.is_some_and(|l| l.observed.uplinks.contains_key(name)));
        let look = place.and_then(|place| self.seen[place].as_ref().ok());
        let observed = look.and_then(|look| look.observed.uplinks.get(name));
        let away = self.seen.iter().find_map(|seen| seen.as_ref().err());
        let failure = self.failures.get(name).map(|failure| &failure.why);
        let (state, reason) = match (failure, observed) {
            (Some(why), _) | (None, Some(ObservedUplink { broken: Some(why), .. })) => {
                (State::Failed, Some(why.clone()))
            }
            (None, Some(observed)) if observed.uplink == *contract => {
                (State::InForce, (!observed.notes.is_empty()).then(|| observed.notes.join("; ")))
            }
            (None, None) if away.is_some() => (State::Pending, away.cloned()),
            (None, _) => (State::Pending, Some("about to be brought into force".into())),
        };
        let is_behind = |remote: &&Remote| contract.peers.iter().any(|peer| peer.name == remote.peer);
        let remotes = self.contracts.all::<Remote>().map(|(_, located)| &located.value).filter(is_behind);
        let rates = place.and_then(|place| self.rates[place].of(name));
        UplinkView {
            name: name.clone(),
            owner: owner.to_string(),
            place: place.map_or_else(String::new, |place| self.places[place].name().into()),
            state,
            reason,
            remotes: remotes.map(|remote| remote.name.clone()).collect(),
            worker: observed
                .and_then(|observed| observed.worker)
                .map(|worker| self.first_worker(place).saturating_add(worker)),
            stats: observed.and(look).and_then(|look| look.observed.evidence.vnics.get(name)).map(stats),
            pairs: observed
                .and(look)
                .and_then(|look| look.observed.evidence.pairs.get(name))
                .cloned()
                .unwrap_or_default(),
            rdma: observed.and(look).and_then(|look| look.observed.evidence.rdma.get(name)).cloned(),
            sockets: observed
                .and(look)
                .and_then(|look| look.observed.evidence.sockets.get(name))
                .map(|sockets| sockets.iter().map(|counts| self.seen_from_outside(place, *counts)).collect())
                .unwrap_or_default(),
            sent_rate_bps: rates.map(|(_, to_network)| to_network),
            received_rate_bps: rates.map(|(from_network, _)| from_network),
            contract: contract.clone(),
        }
    }
}

impl Reconciler {
    /// Numbers a socket's worker among those of all places.
    fn seen_from_outside(&self, place: Option<usize>, counts: SocketCounts) -> SocketCounts {
        SocketCounts { worker: self.first_worker(place).saturating_add(counts.worker), ..counts }
    }
}

/// A place counts an uplink as a vNIC: it "sends" what comes from the network.
fn stats(counted: &VnicStats) -> UplinkStats {
    UplinkStats {
        sent: counted.rx.clone(),
        received: counted.tx.clone(),
        on_wire: counted.on_wire.unwrap_or_default(),
    }
}
