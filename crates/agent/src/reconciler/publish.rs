//! What readers see.

use super::{Published, Reconciler, repair, view};
use crate::api::types::{HostView, State, VnicView};
use crate::place::ObservedVnic;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidegate_contract::Admission;

impl Reconciler {
    pub(super) fn admission_view(&self, admission: &Admission) -> crate::api::types::AdmissionView {
        let evidence: Vec<_> = self.seen.iter().flatten().map(|o| &o.evidence).collect();
        view::admission(admission, &evidence)
    }

    pub(super) fn publish(&self) {
        let admission = self.admission_view(&self.admission);
        let mut vnics = BTreeMap::new();
        let mut guests = BTreeMap::<_, Vec<String>>::new();
        for (owner, located) in self.contracts.vnics() {
            let contract = located.value.clone();
            let name = contract.name.clone();
            let effective = self.soft.in_force(&contract);
            if let Some(guest) = &contract.guest {
                guests.entry(guest.clone()).or_default().push(name.clone());
            }
            let place = self.places.iter().position(|p| p.capabilities(&contract.attach).is_some());
            let seen = place.map(|i| &self.seen[i]);
            let there = seen.and_then(|s| s.as_ref().ok()).and_then(|o| o.vnics.get(&name));
            let (state, reason) = match (seen, there, self.failures.get(&name)) {
                (Some(Err(why)), ..) => (State::Pending, Some(why.clone())),
                (_, _, Some(failure)) => (State::Failed, Some(failure.why.clone())),
                (_, Some(ObservedVnic { pending: Some(why), .. }), None) => {
                    (State::Pending, Some(why.clone()))
                }
                (_, Some(there), None) if there.present && there.vnic == effective => {
                    (State::InForce, (!there.notes.is_empty()).then(|| there.notes.join("; ")))
                }
                (None, ..) => (State::Failed, Some("no place on this host keeps such an attachment".into())),
                _ => (State::Pending, Some("about to be brought into force".into())),
            };
            let evidence = seen.and_then(|s| s.as_ref().ok()).map(|o| &o.evidence);
            let stats = evidence.and_then(|e| e.vnics.get(&name).cloned());
            let figures = evidence.map(|e| view::figures(&name, e)).unwrap_or_default();
            let (tx_rate_bps, rx_rate_bps) = self.rates.of(&name);
            let view = VnicView {
                owner: owner.to_string(),
                place: place.map_or_else(String::new, |i| self.places[i].name().into()),
                state,
                reason,
                connection: there.filter(|t| t.present).map(|t| t.connection),
                last_error: there.and_then(|t| t.last_error.clone()),
                refused_connections: there.map_or(0, |t| t.refused_connections),
                thrown_out: there.map(|t| t.thrown_out.clone()).unwrap_or_default(),
                stats,
                figures,
                tx_rate_bps,
                rx_rate_bps,
                limits: view::limits(&effective),
                soft: self.soft.of(&contract),
                tx_in_force: there.filter(|t| t.present).and_then(|t| t.vnic.tx.max),
                promises: admission.bounds.iter().filter(|b| b.vnic == name).cloned().collect(),
                name: name.clone(),
                contract,
            };
            vnics.insert(name, view);
        }
        let evidence = || self.seen.iter().flatten().map(|o| &o.evidence);
        let host = HostView {
            version: env!("CARGO_PKG_VERSION").into(),
            problems: self.problems.values().cloned().collect(),
            host: self.contracts.host(),
            places: self
                .places
                .iter()
                .zip(&self.seen)
                .map(|(p, s)| repair::place_view(p.name(), s))
                .collect(),
            files: self.file_views(),
            admission,
            workers: evidence().flat_map(|e| e.workers.clone()).collect(),
            denied_calls: evidence().map(|e| e.denied_calls).sum(),
            reconcile_errors: self.reconcile_errors,
            drift_repaired: self.drift_repaired,
        };
        let misses = evidence().flat_map(|e| e.misses.clone()).collect();
        let published = Arc::new(Published { host, vnics, misses, guests });
        *self.board.write().unwrap_or_else(std::sync::PoisonError::into_inner) = published;
    }
}

/// A board on which nothing stands yet.
#[cfg(test)]
pub fn empty_board() -> super::Board {
    Arc::new(std::sync::RwLock::new(Arc::new(nothing())))
}

/// Before the first look.
pub(super) fn nothing() -> Published {
    Published {
        host: HostView {
            version: env!("CARGO_PKG_VERSION").into(),
            problems: vec!["the agent is starting".into()],
            host: Default::default(),
            places: vec![],
            files: vec![],
            admission: Default::default(),
            workers: vec![],
            denied_calls: 0,
            reconcile_errors: 0,
            drift_repaired: 0,
        },
        vnics: BTreeMap::new(),
        misses: BTreeMap::new(),
        guests: BTreeMap::new(),
    }
}
