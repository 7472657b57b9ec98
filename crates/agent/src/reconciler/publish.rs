//! The state that readers see.

use super::{Reconciler, rdma, repair, view};
use crate::board::changes::changes;
use crate::board::cores::{attention as cores_attention, placed};
use crate::board::status::{self, Recent};
use crate::board::{PlaceFacts, Published};
use crate::store::Owner;
use crate::views::{
    AdmissionView, ChangeAction, HostView, Limits, NotInForce, Promise, RefusedBy, State, VnicChange,
    VnicView,
};
use std::collections::{BTreeMap, HashMap};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tidegate_contract::{Admission, Placement, Remote, Uplink, Vnic};
use tidegate_evidence::{LogStats, OwnCpus, Quantity, total};
use tidegate_place::installed::Look;
use tidegate_place::{Observed, ObservedVnic};

/// How a contract stands at its place.
struct Standing<'a> {
    /// The index of its place; `None` where no place keeps such an attachment.
    place: Option<usize>,
    /// The vNIC, if its place answers and knows it.
    observed: Option<&'a ObservedVnic>,
    state: State,
    /// Why it is not in force, or what else a person should know.
    reason: Option<String>,
    /// Why its deadline is not promised; `None` if it is, or if it has none.
    deadline_suspended: Option<String>,
}

impl Reconciler {
    fn standing(&self, contract: &Vnic) -> Standing<'_> {
        let place = self.places.iter().position(|p| p.capabilities(&contract.attach).is_some());
        let seen = place.map(|i| &self.seen[i]);
        let observed =
            seen.and_then(|s| s.as_ref().ok()).and_then(|look| look.observed.vnics.get(&contract.name));
        let (state, reason) = match (seen, observed, self.failures.get(&contract.name)) {
            (Some(Err(why)), ..) => (State::Pending, Some(why.clone())),
            (_, _, Some(failure)) => (State::Failed, Some(failure.why.clone())),
            (_, Some(ObservedVnic { pending: Some(why), .. }), None) => (State::Pending, Some(why.clone())),
            (_, Some(observed), None)
                if observed.present && observed.vnic == self.soft.in_force(contract) =>
            {
                (State::InForce, (!observed.notes.is_empty()).then(|| observed.notes.join("; ")))
            }
            (None, ..) => (State::Failed, Some("no place on this host keeps such an attachment".into())),
            _ => (State::Pending, Some("about to be brought into force".into())),
        };
        let deadline_suspended = contract.deadline.and_then(|_| match state {
            State::InForce => {
                observed.and_then(|t| t.suspended.clone()).or_else(|| self.unpromised(&contract.name))
            }
            _ => Some(format!("its contract is not in force: {}", reason.as_deref().unwrap_or_default())),
        });
        Standing { place, observed, state, reason, deadline_suspended }
    }

    /// Returns why a place that does not keep a vNIC's contract does not keep its part of the deadline.
    fn unpromised(&self, vnic: &str) -> Option<String> {
        self.seen.iter().flatten().find_map(|look| look.observed.unpromised.get(vnic).cloned())
    }

    /// Adds to each change why its contract is not in force, by the latest look. If `is_planned`, only to vNICs that do not
    /// change.
    pub(super) fn add_what_is_not_in_force(&self, changes: &mut [VnicChange], is_planned: bool) {
        let contracts = self.contracts.by_name();
        for change in changes.iter_mut().filter(|c| !is_planned || c.action == ChangeAction::None) {
            change.not_in_force = contracts.get(change.vnic.as_str()).and_then(|c| self.not_in_force(c));
        }
    }

    fn not_in_force(&self, contract: &Vnic) -> Option<NotInForce> {
        let Standing { place, state, reason, .. } = self.standing(contract);
        (state != State::InForce).then(|| NotInForce {
            state,
            reason: reason.unwrap_or_default(),
            place_away: place.is_some_and(|i| self.seen[i].is_err()),
        })
    }

    pub(super) fn admission_view(&self, admission: &Admission) -> AdmissionView {
        let evidence: Vec<_> = self.seen.iter().flatten().map(|look| &look.observed.evidence).collect();
        // A vNIC that is only planned has no suspended deadline.
        let named = self.contracts.by_name();
        let suspended = |name: &str| self.standing(named.get(name)?).deadline_suspended;
        view::admission(admission, &evidence, suspended)
    }

    fn vnic_view(
        &self,
        owner: &Owner,
        contract: &Vnic,
        refused: Option<RefusedBy>,
        promises: &HashMap<&str, Vec<&Promise>>,
    ) -> VnicView {
        let name = &contract.name;
        let Standing { place, observed, state, reason, deadline_suspended } = self.standing(contract);
        let evidence = place.and_then(|i| self.seen[i].as_ref().ok()).map(|look| &look.observed.evidence);
        let unknown = evidence.and_then(|e| e.unknown.get(name)).cloned().unwrap_or_default();
        let paths = self.seen.iter().flatten().filter_map(|look| look.observed.evidence.paths.get(name));
        let rates = place.and_then(|i| self.rates[i].of(name));
        let (tx_rate, rx_rate) = rates.unzip();
        VnicView {
            name: name.clone(),
            owner: owner.to_string(),
            place: place.map_or_else(String::new, |i| self.places[i].name().into()),
            state,
            reason,
            refused,
            deadline_suspended,
            connection: observed.filter(|t| t.present).map(|t| t.connection),
            last_error: observed.and_then(|t| t.front_ends.last_error.clone()),
            worker: observed
                .and_then(|t| t.worker)
                .map(|worker| self.first_worker(place).saturating_add(worker)),
            shared: observed.map(|t| t.shared.clone()).unwrap_or_default(),
            refused_connections: observed.map_or(0, |t| t.front_ends.refused_connections),
            heir: observed.is_some_and(|t| t.front_ends.heir),
            thrown_out: observed.map(|t| t.front_ends.thrown_out.clone()).unwrap_or_default(),
            held: observed.map(|t| t.front_ends.held.clone()).unwrap_or_default(),
            window: None,
            stats: evidence.and_then(|e| e.vnics.get(name).cloned()),
            culprits: evidence.and_then(|e| e.culprits.get(name).cloned()).unwrap_or_default(),
            figures: evidence.map(|e| view::figures(name, e)).unwrap_or_default(),
            tx_rate_bps: tx_rate.filter(|_| !unknown.contains_key(&Quantity::Tx)),
            rx_rate_bps: rx_rate.filter(|_| !unknown.contains_key(&Quantity::Rx)),
            unknown,
            limits: Limits::of(&self.soft.in_force(contract)),
            soft: self.soft.of(contract),
            tx_in_force: observed.filter(|t| t.present).and_then(|t| t.vnic.tx.max),
            paths: paths.flatten().cloned().collect(),
            rdma: evidence.and_then(|evidence| {
                let uplinks = self.contracts.all::<Uplink>().map(|(_, located)| &located.value);
                rdma::of_vnic(contract, (uplinks, &evidence.rdma), || {
                    self.contracts.all::<Remote>().map(|(_, located)| &located.value)
                })
            }),
            promises: promises.get(name.as_str()).into_iter().flatten().copied().cloned().collect(),
            contract: Some(contract.clone()),
        }
    }

    /// Returns the number of a place's first worker among the workers of all places that answer, as metrics count them.
    pub(super) fn first_worker(&self, place: Option<usize>) -> usize {
        let before = self.seen.iter().take(place.unwrap_or_default()).flatten();
        before.map(|look| look.observed.evidence.workers.len()).sum()
    }

    pub(super) fn publish(&self) {
        let admission = self.admission_view(&self.admission);
        let mut refused = self.refused_vnics();
        let mut promises = HashMap::<&str, Vec<&Promise>>::new();
        for bound in &admission.bounds {
            promises.entry(&bound.vnic).or_default().push(bound);
        }
        let mut vnics = BTreeMap::new();
        let mut guests = BTreeMap::<_, Vec<String>>::new();
        for (owner, located) in self.contracts.vnics() {
            let contract = &located.value;
            if let Some(guest) = &contract.guest {
                guests.entry(guest.clone()).or_default().push(contract.name.clone());
            }
            let refused = refused.remove(&contract.name).map(|(by, _)| by);
            vnics.insert(contract.name.clone(), self.vnic_view(&owner, contract, refused, &promises));
        }
        vnics.extend(refused.into_iter().map(|(name, (by, contract))| {
            let place = contract.as_ref().and_then(|c| self.standing(c).place);
            let place = place.map_or_else(String::new, |i| self.places[i].name().into());
            (name.clone(), VnicView::refused(name, by, contract, place))
        }));
        let evidence = || self.seen.iter().flatten().map(|look| &look.observed.evidence);
        let host = HostView {
            version: env!("CARGO_PKG_VERSION").into(),
            problems: self.problems.values().cloned().collect(),
            host: self.contracts.host(),
            uplinks: self.contracts.uplinks().into_iter().map(|(_, uplink)| uplink).collect(),
            remotes: self.contracts.all::<Remote>().map(|(_, located)| located.value.clone()).collect(),
            places: self
                .places
                .iter()
                .zip(&self.seen)
                .map(|(p, s)| repair::place_view(p.name(), s))
                .collect(),
            files: self.file_views(),
            admission,
            workers: evidence().flat_map(|e| e.workers.clone()).collect(),
            denied_calls: total(evidence().map(|e| e.denied_calls)),
            logs: self.logs(),
            reconcile_errors: self.reconcile_errors,
            drift_repaired: self.drift_repaired,
        };
        let misses = evidence().flat_map(|e| e.misses.clone()).collect();
        let peers: Vec<_> = evidence().flat_map(|e| e.peers.clone()).collect();
        let mut far_misses = BTreeMap::<_, Vec<_>>::new();
        for miss in evidence().flat_map(|e| &e.far_misses) {
            far_misses.entry(miss.vnic.clone()).or_default().push(miss.clone());
        }
        let places = self.place_facts();
        let now = Instant::now();
        let recent = Recent {
            loops_over_budget: total(self.loops_over_budget.iter().map(|growth| growth.recent(now))),
            drift_repaired: self.drift.recent(now),
        };
        let uplinks: BTreeMap<_, _> = self.uplink_views().map(|view| (view.name.clone(), view)).collect();
        let mut status = status::status(&host, &vnics, (&uplinks, &peers), &places, recent);
        status.own_cpus = own_cpus(self.seen.iter().flatten().map(|look| &look.observed.own_cpus));
        // Of several places that plan, the first one's: only one may move work.
        let mut cores = self.seen.iter().flatten().find_map(|look| look.observed.cores.clone());
        if let Some(cores) = &mut cores {
            // The place looks in the background: its report may be older than the table.
            cores.kept = host.host.cores.placement == Placement::Plan;
        }
        status.add(cores.iter().flat_map(cores_attention));
        status.cores = cores.as_ref().map(placed).unwrap_or_default();
        let before = self.board.read();
        self.board.publish(Published {
            host,
            status,
            vnics,
            uplinks,
            misses,
            peers,
            far_misses,
            cores,
            places,
            guests,
            written: Default::default(),
        });
        self.board.events.send(|| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
            changes(&before, &self.board.read(), now)
        });
    }
}

/// Returns the own CPUs of all places, and the settings that a place could not put back.
fn own_cpus<'a>(places: impl Iterator<Item = &'a OwnCpus>) -> OwnCpus {
    let mut all = OwnCpus::default();
    let mut missing = Vec::new();
    for own in places {
        all.cpus.extend(&own.cpus);
        all.awake.extend(&own.awake);
        all.queues += own.queues;
        all.steered += own.steered;
        missing.extend(own.missing.as_deref());
    }
    all.missing = (!missing.is_empty()).then(|| missing.join("; "));
    all
}

impl Reconciler {
    fn place_facts(&self) -> BTreeMap<String, PlaceFacts> {
        let each = self.places.iter().zip(&self.seen).map(|(place, seen)| {
            let mut facts = PlaceFacts { unit: place.unit(), ..PlaceFacts::default() };
            if let Ok(Look { observed: Observed { evidence, .. }, .. }) = seen {
                facts.denied_calls = evidence.denied_calls;
                facts.unobserved.clone_from(&evidence.unobserved);
                facts.counts_flows = evidence.counts_flows;
            }
            (place.name().to_owned(), facts)
        });
        each.collect()
    }

    /// Counts the lines that the logs of this process, and of places with their own log, did not write.
    fn logs(&self) -> BTreeMap<String, LogStats> {
        let tidegate_log::Counts { lost, suppressed } = tidegate_log::counts();
        let ours = ("agent".to_owned(), LogStats { lost, suppressed });
        let seen = self.places.iter().zip(&self.seen);
        let of_places =
            seen.filter_map(|(p, s)| Some((p.name().to_owned(), s.as_ref().ok()?.observed.evidence.log?)));
        std::iter::once(ours).chain(of_places).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_that_was_not_restored_is_reported_without_wanted_cpus() {
        let nothing = OwnCpus::default();
        let left = OwnCpus { missing: Some("it was not put back".into()), ..OwnCpus::default() };
        assert_eq!(own_cpus([&nothing, &left].into_iter()), left);
        assert_eq!(own_cpus([&nothing].into_iter()), nothing);
    }

    #[test]
    fn own_cpus_of_several_places_are_all_reported() {
        let place = |cpu, missing: &str| OwnCpus {
            cpus: vec![cpu],
            queues: 2,
            steered: 1,
            awake: vec![cpu],
            missing: Some(missing.into()),
        };
        let all = OwnCpus {
            cpus: vec![1, 3],
            queues: 4,
            steered: 2,
            awake: vec![1, 3],
            missing: Some("denied; gone".into()),
        };
        assert_eq!(own_cpus([&place(1, "denied"), &place(3, "gone")].into_iter()), all);
    }
}
