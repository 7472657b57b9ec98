//! Soft limits that guests ask for: in force at once, or refused.
//!
//! ```text
//!  guest's socket, MAC, rate ─▶ its own vNICs ─▶ not over the hard limit ─▶ the place can ─▶ on disk beside ─▶
//!  one Change each ─▶ accepted, and readers see it
//! ```
//!
//! Cheaper than an apply: contracts are neither checked nor written, and only the places of these vNICs are observed.

use super::{Reconciler, plans};
use crate::commands::Unmet;
use crate::guest::limits::SoftLimits;
use crate::store::Contracts;
use std::collections::BTreeSet;
use std::path::Path;
use tidegate_contract::{Host, Mac, Rate, Vnic};
use tidegate_place::host::Claim;
use tidegate_place::installed::{Look, Step};
use tidegate_place::{Action, Adopt, Effect, HostWork, Installed, Network, PlaceError, Refusal, Wanted};

impl Reconciler {
    /// Sets the soft limit of the vNICs whose contracts name the socket `guest`, and have `mac` if given; all or none.
    pub(super) fn set_soft(
        &mut self,
        guest: &Path,
        mac: Option<Mac>,
        rate: Option<Rate>,
    ) -> Result<(), Unmet> {
        let named = |v: &&Vnic| v.guest.as_deref() == Some(guest) && mac.is_none_or(|mac| v.mac == mac);
        let guest_vnics: Vec<Vnic> =
            self.contracts.vnics().map(|(_, v)| &v.value).filter(named).cloned().collect();
        if guest_vnics.is_empty() {
            let of = mac.map_or_else(String::new, |mac| format!(" with the MAC {mac}"));
            return Err(Unmet::Refused(format!("this VM has no network interface{of} under a contract")));
        }
        let mut soft = self.soft.clone();
        for vnic in &guest_vnics {
            soft.set(vnic, rate).map_err(|e| Unmet::Refused(e.to_string()))?;
        }
        if soft == self.soft {
            return Ok(());
        }
        let changes = self.changes(&guest_vnics, &soft)?;
        let unsaved = |e| Unmet::Unavailable(format!("nothing was changed, because it cannot be saved: {e}"));
        let staged = self.soft_file.stage(&soft).map_err(unsaved)?;
        let mut done: Vec<&(usize, Step)> = Vec::new();
        for change in &changes {
            let (place, action) = change;
            if let Err(error) = self.places[*place].apply(action) {
                for (place, action) in done.into_iter().rev() {
                    if let Some(inverse) = action.inverse()
                        && let Err(error) = self.places[*place].apply(&inverse)
                    {
                        tracing::error!(vnic = inverse.vnic(), %error, "cannot undo this step; trying again soon");
                    }
                }
                return Err(match error {
                    PlaceError::Failed(why) | PlaceError::Refused(why) => Unmet::Refused(why),
                    PlaceError::Unreachable(_) => cannot_change_now(),
                });
            }
            done.push(change);
        }
        if let Err(e) = staged.commit() {
            // Stays in memory, because it is in force; `save_soft` saves it later.
            self.problem("soft limits", Some(format!("the soft limits of guests cannot be saved: {e}")));
        } else {
            self.saved_soft.clone_from(&soft);
        }
        self.soft = soft;
        for place in changes.iter().map(|(place, _)| *place).collect::<BTreeSet<_>>() {
            self.look_at(place);
        }
        self.publish();
        Ok(())
    }

    /// Returns the steps at the places that bring `soft` into force for these vNICs.
    fn changes(&mut self, guest_vnics: &[Vnic], soft: &SoftLimits) -> Result<Vec<(usize, Step)>, Unmet> {
        let mut changes = Vec::new();
        let place_of = |r: &Self, v: &Vnic| r.places.iter().position(|p| p.capabilities(&v.attach).is_some());
        let host = self.contracts.host();
        let network = Network { keys: self.keys.keys(), ..self.contracts.network() };
        for index in 0..self.places.len() {
            let here = guest_vnics.iter().filter(|v| place_of(self, v) == Some(index));
            let coming = coming(here, &self.soft, soft);
            if coming.is_empty() {
                continue;
            }
            let vnics = |r: &Self, soft: &SoftLimits| {
                let all = r.contracts.vnics().map(|(_, v)| &v.value);
                let mut all: Vec<Vnic> =
                    all.filter(|v| place_of(r, v) == Some(index)).map(|v| soft.in_force(v)).collect();
                all.sort_by(|a, b| a.name.cmp(&b.name));
                all
            };
            let (before, after) = (vnics(self, &self.soft), vnics(self, soft));
            let look = self.places[index].observe(&coming).map_err(|_| cannot_change_now())?;
            let place = &*self.places[index];
            let taken = plans::before(&self.claims, index);
            let wanted = |vnics| Wanted {
                host: &host,
                network: &network,
                vnics,
                adopt: Adopt::No,
                claims: &taken,
                work: HostWork::NONE,
            };
            match place.plan(&wanted(&after), &look) {
                Ok(plan) => self.check_claims(index, plan.claims)?,
                Err(after) => {
                    // A refusal that `before` has too is no obstacle.
                    let before = place.plan(&wanted(&before), &look).err().unwrap_or_default();
                    let new: Vec<Refusal> = after.into_iter().filter(|r| !before.contains(r)).collect();
                    check_new_refusals(&new, guest_vnics)?;
                }
            }
            let steps = steps(place, (&host, &network), &coming, &taken, &look)?;
            changes.extend(steps.into_iter().map(|step| (index, step)));
        }
        Ok(changes)
    }

    /// Refuses claims of a place that conflict with those of others, unless its claims now do so too.
    fn check_claims(&self, place: usize, claims: Vec<Claim>) -> Result<(), Unmet> {
        let others = self.claims.iter().filter(|(index, _)| *index != place).cloned();
        let then: Vec<(usize, Claim)> = others.chain(claims.into_iter().map(|c| (place, c))).collect();
        let before = plans::conflicts(&self.places, &self.claims);
        let is_new = plans::conflicts(&self.places, &then).iter().any(|c| !before.contains(c));
        if is_new { Err(breaks_promises()) } else { Ok(()) }
    }

    /// Returns the soft limits under `wanted`, and, if they differ, the same without the limits of vNICs that the
    /// change concerns: a change by the operator that fails with the first is tried with the second.
    pub(super) fn soft_limits_for(&self, wanted: &Contracts) -> (SoftLimits, Option<SoftLimits>) {
        let soft = self.soft.of_contracts(wanted);
        let (now, then) = (self.contracts.by_name(), wanted.by_name());
        let changed = |name: &str| now.get(name) != then.get(name);
        let concerned =
            |name: &str| changed(name) || then.get(name).is_some_and(|v| v.to.iter().any(|to| changed(to)));
        let without_concerned = soft.except(concerned);
        let differs = without_concerned != soft;
        (soft, differs.then_some(without_concerned))
    }

    /// Takes and saves the soft limits that came into force with a change of contracts.
    pub(super) fn accept_soft(&mut self, soft: SoftLimits) {
        self.soft = soft;
        self.save_soft();
    }

    /// Saves the soft limits in force, if the file differs.
    pub(super) fn save_soft(&mut self) {
        let nothing = self.soft == SoftLimits::default();
        if self.soft == self.saved_soft && (nothing || self.soft_file.exists()) {
            return;
        }
        let failed = self.soft_file.save(&self.soft).err();
        if failed.is_none() {
            self.saved_soft.clone_from(&self.soft);
        }
        self.problem(
            "soft limits",
            failed.map(|e| format!("the soft limits of guests cannot be saved: {e}")),
        );
    }
}

/// Returns the contracts that other soft limits change, and no others: a place observes each of these as new.
fn coming<'a>(vnics: impl Iterator<Item = &'a Vnic>, from: &SoftLimits, to: &SoftLimits) -> Vec<Vnic> {
    vnics
        .map(|v| (from.in_force(v), to.in_force(v)))
        .filter(|(from, to)| from != to)
        .map(|(_, to)| to)
        .collect()
}

/// Returns the steps that bring the coming contracts into force at a place. Others stay as they are; a later
/// repair makes missing vNICs.
fn steps(
    place: &dyn Installed,
    (host, network): (&Host, &Network),
    coming: &[Vnic],
    claims: &[Claim],
    look: &Look,
) -> Result<Vec<Step>, Unmet> {
    let ours = look.observed.vnics.values().filter(|there| there.present && there.ours);
    let changed = |there: &Vnic| coming.iter().find(|to| to.name == there.name && to.attach == there.attach);
    let vnics: Vec<Vnic> = ours.map(|there| changed(&there.vnic).unwrap_or(&there.vnic).clone()).collect();
    let wanted = Wanted { host, network, vnics: &vnics, adopt: Adopt::No, claims, work: HostWork::NONE };
    let mut steps = place.plan(&wanted, look).map_err(|_| cannot_change_now())?.actions;
    let concerned = |step: &Step| coming.iter().any(|vnic| step.vnic() == Some(&vnic.name));
    steps.retain(|step| step.effect() == Effect::Change && concerned(step));
    Ok(steps)
}

/// Returns an error for new refusals, with the reason only if it concerns the guest's own vNICs.
fn check_new_refusals(new: &[Refusal], guest_vnics: &[Vnic]) -> Result<(), Unmet> {
    let own = new.iter().find(|r| guest_vnics.iter().any(|v| v.name == r.vnic));
    match (own, new.is_empty()) {
        (Some(refusal), _) => Err(Unmet::Refused(refusal.reason.clone())),
        (None, false) => Err(breaks_promises()),
        (None, true) => Ok(()),
    }
}

fn breaks_promises() -> Unmet {
    Unmet::Refused("with this limit the host cannot keep its other promises".into())
}

fn cannot_change_now() -> Unmet {
    Unmet::Unavailable("the host cannot change the limit now; try again".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_testkit::contract::vnic;

    #[test]
    fn only_soft_limits_that_change_are_coming() {
        let rate = |mbit: u64| Rate::from_bits(mbit * 1_000_000);
        let guest = |name, mac, max| {
            let mut vnic = Vnic { guest: Some("/run/vm/a".into()), ..vnic(name, mac) };
            vnic.tx.max = rate(max);
            vnic
        };
        // The second has asked for as much before; the third for no less than its hard limit.
        let guest_vnics = [guest("a", 1, 500), guest("b", 2, 500), guest("c", 3, 400)];
        let mut from = SoftLimits::default();
        from.set(&guest_vnics[1], rate(400)).expect("below");
        let mut to = from.clone();
        guest_vnics.iter().for_each(|v| to.set(v, rate(400)).expect("below"));
        let expected = [to.in_force(&guest_vnics[0])];
        assert_eq!(coming(guest_vnics.iter(), &from, &to), expected);
        assert_eq!(expected[0].tx.max, rate(400));
        // All limits given up.
        let back = coming(guest_vnics.iter(), &to, &SoftLimits::default());
        assert_eq!(back.iter().map(|v| v.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    }
}
