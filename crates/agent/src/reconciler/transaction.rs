//! All or nothing: a set of contracts comes into force wholly, or the old one stays.
//!
//! ```text
//!  check ─▶ plan ─▶ prepare, stage: on disk, beside what is in force ─▶ actions ─▶ commit: accepted
//!    └────────┴───────────┴─ no: nothing was touched                       └─ no: taken back
//! ```
//!
//! The rename in `commit` accepts the contracts. After a death before it, the successor repairs by the old contracts;
//! after it, by the new ones.

use super::Reconciler;
use super::check::{Checked, check};
use super::keys::Reading;
use super::plans::{PlacePlan, plans};
use crate::commands::ApplyError;
use crate::guest::limits::SoftLimits;
use crate::store::Contracts;
use std::collections::BTreeSet;
use std::path::Path;
use tidegate_contract::{Located, Vnic};
use tidegate_durable::{DurableError, Staged};
use tidegate_place::installed::{Look, Step};
use tidegate_place::{Action, Adopt, PlaceError};

impl Reconciler {
    /// Checks whether `wanted` could be brought into force; changes nothing.
    pub(super) fn dry_run(
        &mut self,
        wanted: &Contracts,
        adopt: Adopt,
        hints: &mut Vec<String>,
    ) -> Result<Checked, ApplyError> {
        self.may_name_guests(wanted)?;
        let (soft, without_concerned) = self.soft_limits_for(wanted);
        let mut checked = check(wanted, &soft, &self.places, (&self.keys, Reading::Fresh))?;
        let mut planned = self.plan(&mut checked, adopt).map(drop);
        if let (Err(ApplyError::Refused(_)), Some(without_concerned)) = (&planned, without_concerned) {
            checked = check(wanted, &without_concerned, &self.places, (&self.keys, Reading::Fresh))?;
            planned = self.plan(&mut checked, adopt).map(drop);
        }
        match planned {
            Err(ApplyError::Unreachable(why)) => {
                hints.push(format!("the agent does not know whether the change can be applied now: {why}"));
            }
            Err(e) => return Err(e),
            Ok(()) => {}
        }
        Ok(checked)
    }

    /// Brings `wanted` into force and saves it; `adopt` says what happens to foreign objects in the way. If that fails with
    /// guests' soft limits, the limits concerned are given up: no guest blocks the operator.
    pub(super) fn enact(&mut self, wanted: Contracts, adopt: Adopt) -> Result<Checked, ApplyError> {
        self.may_name_guests(&wanted)?;
        let (soft, without_concerned) = self.soft_limits_for(&wanted);
        let Some(without_concerned) = without_concerned else { return self.enact_with(wanted, soft, adopt) };
        match self.enact_with(wanted.clone(), soft.clone(), adopt) {
            Err(ApplyError::Refused(why) | ApplyError::Failed(why)) => {
                let mut checked = self.enact_with(wanted, without_concerned.clone(), adopt)?;
                for (vnic, rate) in soft.missing_in(&without_concerned) {
                    let why = why.join("; ");
                    tracing::warn!(vnic, "the soft limit of {rate} that its guest set is removed: {why}");
                    let note = format!(
                        "the guest's soft limit of {rate} is removed, because it cannot be kept: {why}"
                    );
                    checked.notes.entry(vnic.into()).or_default().push(note);
                }
                Ok(checked)
            }
            other => other,
        }
    }

    fn enact_with(
        &mut self,
        wanted: Contracts,
        soft: SoftLimits,
        adopt: Adopt,
    ) -> Result<Checked, ApplyError> {
        let mut checked = check(&wanted, &soft, &self.places, (&self.keys, Reading::Fresh))?;
        let actions = self.plan(&mut checked, adopt)?;
        // A full or read-only disk fails here, before anything is touched.
        for (index, place) in self.places.iter_mut().enumerate() {
            let of_it: Vec<&Step> = actions.iter().filter(|(i, _)| *i == index).map(|(_, a)| a).collect();
            place.prepare(&of_it).map_err(|e| ApplyError::NotRecorded(e.to_string()))?;
        }
        let staged = self.stage(&wanted)?;
        let mut done: Vec<(usize, Step)> = Vec::new();
        for (place, action) in actions {
            let Err(error) = self.places[place].apply(&action) else {
                tracing::info!(place = self.places[place].name(), vnic = action.vnic(), "{}", action.label());
                done.push((place, action));
                continue;
            };
            // A contract or an uplink that did not change, and fails, must not block the others.
            let same_vnic = |name| wanted.vnic(name).is_some_and(|to| self.contracts.vnic(name) == Some(to));
            let same_uplink =
                |name| wanted.uplink(name).is_some_and(|to| self.contracts.uplink(name) == Some(to));
            // A refusal is a decision on other terms. If an uplink brought them, the change of the uplink is refused: the
            // terms in force were for the uplink as it was.
            let same_ways = || wanted.ways() == self.contracts.ways();
            let may_be_left = match error {
                PlaceError::Failed(_) => true,
                PlaceError::Refused(_) => same_ways(),
                PlaceError::Unreachable(_) => false,
            };
            if let Some(name) = action.vnic()
                && (same_vnic(name) || same_uplink(name))
                && may_be_left
            {
                self.failed(name.to_owned(), &error.to_string());
                continue;
            }
            let error = self.roll_back(done, &action, error);
            self.accept_at_places();
            return Err(error);
        }
        if let Err(error) = self.accept(wanted, soft, staged, &checked) {
            let not_undone = self.undo_actions(&done);
            self.accept_at_places();
            return Err(ApplyError::NotSaved { error, not_undone });
        }
        self.accept_at_places();
        Ok(checked)
    }

    /// As [`Self::enact`], but if a place cannot be reached, accepts `wanted`, which later repairs bring into force.
    pub(super) fn enact_or_defer(&mut self, wanted: Contracts) -> Result<(), ApplyError> {
        match self.enact(wanted.clone(), Adopt::No) {
            Err(ApplyError::Unreachable(_)) => {
                let soft = self.soft.of_contracts(&wanted);
                let checked = check(&wanted, &soft, &self.places, (&self.keys, Reading::Fresh))?;
                let staged = self.stage(&wanted)?;
                self.accept(wanted, soft, staged, &checked)
                    .map_err(|error| ApplyError::NotSaved { error, not_undone: Vec::new() })?;
                self.accept_at_places();
                Ok(())
            }
            other => other.map(drop),
        }
    }

    /// Refuses new guests' sockets that no contract may name. A socket that was accepted earlier stays accepted.
    fn may_name_guests(&self, wanted: &Contracts) -> Result<(), ApplyError> {
        let accepted: BTreeSet<(&str, &Path)> = self
            .contracts
            .vnics()
            .filter_map(|(_, v)| Some((v.value.name.as_str(), v.value.guest.as_deref()?)))
            .collect();
        let named = wanted.vnics().filter_map(|(_, v)| Some((v, v.value.guest.as_deref()?)));
        let new = named.filter(|(v, guest)| !accepted.contains(&(v.value.name.as_str(), *guest)));
        let refuse = |(v, guest): (&Located<Vnic>, &Path)| {
            Some(format!("vNIC {} ({}): guest: {}", v.value.name, v.place(), self.guests.refuse(guest)?))
        };
        let refusals: Vec<String> = new.filter_map(refuse).collect();
        if refusals.is_empty() { Ok(()) } else { Err(ApplyError::Refused(refusals)) }
    }

    fn plan(&mut self, checked: &mut Checked, adopt: Adopt) -> Result<Vec<(usize, Step)>, ApplyError> {
        let looks = self.look_ahead(checked)?;
        for (index, _) in &looks {
            // A place may know more of an attachment once it has looked.
            let (place, known) = (&self.places[*index], checked.by_place[*index].iter());
            checked.notes.extend(known.map(|v| (v.name.clone(), place.notes(v))));
        }
        let looks = looks.iter().map(|(index, look)| (*index, look));
        let plans = plans(&self.places, checked, looks, adopt);
        let refused = plans.by_place.iter().flat_map(|plan| &plan.refusals);
        let refusals = refused.map(|r| format!("vNIC {}: {}", r.vnic, r.reason));
        let refusals: Vec<String> = refusals.chain(plans.conflicts).collect();
        if !refusals.is_empty() {
            return Err(ApplyError::Refused(refusals));
        }
        let steps = |plan: PlacePlan| plan.steps.into_iter().map(move |step| (plan.place, step));
        Ok(plans.by_place.into_iter().flat_map(steps).collect())
    }

    /// Asks each place for its state, and for obstacles to new contracts. A place that does not answer is left out if
    /// it would have nothing to do.
    fn look_ahead(&mut self, checked: &Checked) -> Result<Vec<(usize, Look)>, ApplyError> {
        let concerned: Vec<bool> = (0..self.places.len()).map(|i| self.concerns(checked, i)).collect();
        let in_force = self.contracts.by_name();
        let mut looks = Vec::new();
        for (index, place) in self.places.iter_mut().enumerate() {
            // An unchanged contract, even one in trouble, must not block the others.
            let changed = |v: &&Vnic| {
                in_force.get(v.name.as_str()).map(|old| self.soft.in_force(old)).as_ref() != Some(*v)
            };
            let coming: Vec<Vnic> = checked.by_place[index].iter().filter(changed).cloned().collect();
            match place.observe(&coming) {
                Ok(look) => looks.push((index, look)),
                // A host that has SR-IOV functions only needs no switch.
                Err(PlaceError::Unreachable(_)) if !concerned[index] => {}
                Err(PlaceError::Unreachable(why)) => return Err(ApplyError::Unreachable(why)),
                Err(PlaceError::Failed(why) | PlaceError::Refused(why)) => {
                    return Err(ApplyError::Failed(vec![why]));
                }
            }
        }
        Ok(looks)
    }

    /// Tells each place its accepted contracts: it needs no way back to earlier ones.
    pub(super) fn accept_at_places(&mut self) {
        let mut here = vec![Vec::new(); self.places.len()];
        for (_, located) in self.contracts.vnics() {
            let attach = &located.value.attach;
            if let Some(index) = self.places.iter().position(|p| p.capabilities(attach).is_some()) {
                here[index].push(located.value.clone());
            }
        }
        for (place, contracts) in self.places.iter_mut().zip(here) {
            place.accept(&contracts);
        }
    }

    /// Returns whether these contracts need a change at a place.
    fn concerns(&self, checked: &Checked, place: usize) -> bool {
        let at = &self.places[place];
        let written = self.contracts.vnics().map(|(_, located)| &located.value);
        let here = written.filter(|v| at.capabilities(&v.attach).is_some());
        let mut now: Vec<Vnic> = here.map(|v| self.soft.in_force(v)).collect();
        now.sort_by(|a, b| a.name.cmp(&b.name));
        let same_host = now.is_empty() || checked.host == self.contracts.host();
        !same_host || checked.by_place[place] != now
    }

    fn roll_back(&mut self, done: Vec<(usize, Step)>, action: &Step, error: PlaceError) -> ApplyError {
        self.reconcile_errors += 1;
        let whom = action.vnic().map_or_else(|| "host".into(), |name| format!("vNIC {name}"));
        tracing::error!(vnic = action.vnic(), %error, "{} failed; undoing the steps before it", action.label());
        let mut why = vec![format!("{whom}: {error}")];
        why.extend(self.undo_actions(&done));
        match error {
            PlaceError::Unreachable(_) => ApplyError::Unreachable(why.join("; ")),
            PlaceError::Refused(_) => ApplyError::Refused(why),
            PlaceError::Failed(_) => ApplyError::Failed(why),
        }
    }

    /// Takes actions back, the last one first; returns the reasons of those that fail.
    fn undo_actions(&mut self, done: &[(usize, Step)]) -> Vec<String> {
        done.iter().rev().filter_map(|(place, action)| self.undo_action(*place, action)).collect()
    }

    /// Takes an action back; returns the reason if that fails. Then the next repair does it: the old contracts are
    /// still wanted.
    fn undo_action(&mut self, place: usize, action: &Step) -> Option<String> {
        let inverse = action.inverse()?;
        let error = self.places[place].apply(&inverse).err()?;
        tracing::error!(vnic = inverse.vnic(), %error, "cannot undo this step; trying again soon");
        let (whom, step) = (inverse.vnic().unwrap_or("host"), action.label());
        Some(format!("{whom}: undoing the step \"{step}\" failed too ({error}); the agent keeps trying"))
    }

    /// Writes `wanted` to disk, beside the contracts in force; `None` if they are the same.
    fn stage(&self, wanted: &Contracts) -> Result<Option<Staged>, ApplyError> {
        if *wanted == self.contracts && self.state.exists() {
            return Ok(None);
        }
        self.state.stage(wanted).map(Some).map_err(|e| ApplyError::NotRecorded(e.to_string()))
    }

    fn accept(
        &mut self,
        wanted: Contracts,
        soft: SoftLimits,
        staged: Option<Staged>,
        checked: &Checked,
    ) -> Result<(), DurableError> {
        if let Some(staged) = staged {
            staged.commit()?;
        }
        self.contracts = wanted;
        self.accept_soft(soft);
        self.admission = checked.admission.clone();
        self.problem("saved contracts", None);
        self.keep_keys(checked);
        Ok(())
    }
}
