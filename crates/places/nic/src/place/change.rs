//! Contracts that come, change and go: what is done of them, and what is undone where that fails.
//!
//! ```text
//!  tell:    on record ─▶ its loop ─▶ steps ─┬─▶ done
//!                                           └─ no: off the record, its loop as before, steps taken back
//!  forget:  off the record ─▶ its loop ─▶ what it was before ─▶ what others have of it
//! ```
//!
//! The loops stand still meanwhile.

use super::engine::Loops;
use super::function::{address, function};
use super::observe::Seen;
use super::{FRESH, NicPlace};
use crate::device::{Function, Set, Step, plan as steps_for};
use tidegate_contract::{Rate, Vnic};
use tidegate_place::PlaceError;

impl NicPlace {
    /// Enters a contract into the record and applies the record to its NIC. On failure both are as before.
    pub(super) fn apply_contract(&mut self, former: Option<&Vnic>, vnic: &Vnic) -> Result<(), PlaceError> {
        let Some((pf, _)) = address(vnic) else { return Ok(()) };
        let shared = self.engine.shared();
        let mut loops = shared.lock();
        self.remember(vnic)?;
        self.record.enter(vnic);
        let Err(error) = self.settle(pf, Some(vnic), &mut loops) else { return Ok(()) };
        match former {
            Some(former) => self.record.enter(former),
            None => self.record.strike(vnic),
        }
        // Its loop, too, goes on as before.
        if let Err(error) = self.settle(pf, None, &mut loops) {
            tracing::warn!(vnic = vnic.name, %error, "cannot undo the failed change; trying again soon");
        }
        Err(error)
    }

    /// Removes a contract from the record, and restores the former settings of its function.
    pub(super) fn forget(&mut self, vnic: &Vnic) -> Result<(), PlaceError> {
        let Some((pf, _)) = address(vnic) else { return Ok(()) };
        let shared = self.engine.shared();
        let mut loops = shared.lock();
        self.record.strike(vnic);
        // Others may have what it had, and its loop has one less.
        let settled = self.settle(pf, None, &mut loops);
        let before = self.record.before(&vnic.attach).cloned();
        let restored = settled.and_then(|()| before.map_or(Ok(true), |before| self.restore(pf, before)));
        if restored.is_err() {
            self.record.enter(vnic);
            if let Err(error) = self.settle(pf, None, &mut loops) {
                tracing::warn!(vnic = vnic.name, %error, "cannot restore its limits; trying again soon");
            }
        }
        restored.map(drop)
    }

    /// Applies other settings to all NICs.
    pub(super) fn settle_all(&mut self) -> Result<(), PlaceError> {
        let shared = self.engine.shared();
        let mut loops = shared.lock();
        let contracts = self.contracts();
        let pfs: std::collections::BTreeSet<&str> =
            contracts.iter().filter_map(|v| Some(address(v)?.0)).collect();
        pfs.into_iter().try_for_each(|pf| self.settle(pf, None, &mut loops))
    }

    /// Writes the former settings of a function to disk before its first contract touches it, also without a plan before.
    fn remember(&mut self, vnic: &Vnic) -> Result<(), PlaceError> {
        if self.record.before(&vnic.attach).is_some() {
            return Ok(());
        }
        let (Some((pf, _)), Ok(Some(wanted))) = (address(vnic), function(vnic)) else { return Ok(()) };
        let seen = self.just_seen(pf)?;
        let vf = seen.as_ref().and_then(|seen| seen.pf.vfs.get(&wanted.index));
        // One that is not there yet has nothing to be given back but to be without limits.
        let nothing = Function { index: wanted.index, ..Function::default() };
        let before = vf.map_or(nothing, |vf| wanted.before(vf));
        self.seen.extend(seen.map(|seen| (pf.to_owned(), seen)));
        let reserved = self.record.reserve([(&vnic.attach, before)].into_iter());
        reserved.map_err(|e| {
            PlaceError::Failed(format!("nothing was changed, because the change cannot be recorded: {e}"))
        })
    }

    /// Restores the functions whose contracts are gone and that were not restored yet, because a change was not accepted or the
    /// NIC had no link.
    pub(super) fn restore_functions(&mut self) {
        for (pf, before) in self.record.to_restore() {
            let index = before.index;
            match self.restore(&pf, before) {
                Ok(true) => self.record.restored(&pf, index),
                Ok(false) => {}
                Err(error) => {
                    tracing::debug!(nic = pf, index, %error, "its former settings are not restored yet")
                }
            }
        }
    }

    /// Restores a function. True if all of its settings are restored, or the function is gone.
    fn restore(&mut self, pf: &str, before: Function) -> Result<bool, PlaceError> {
        let Some(mut seen) = self.just_seen(pf)? else { return Ok(true) };
        let index = before.index;
        // The function is gone, or another one has its number.
        if !seen.pf.vfs.contains_key(&index) {
            return Ok(true);
        }
        let plan = steps_for(&[before], &seen.pf, &seen.abilities);
        for refusal in &plan.refusals {
            tracing::warn!(nic = pf, "a former setting of its function is not restored: {}", refusal.reason);
        }
        self.conversation.apply(&plan.steps, &mut seen.pf, Some(index))?;
        self.seen.insert(pf.to_owned(), seen);
        Ok(plan.pending.is_empty())
    }

    /// Applies the record to all functions of a NIC. Refusals, failures and pending steps of other functions do not fail
    /// the change of the function `about`.
    fn settle(&mut self, pf: &str, about: Option<&Vnic>, loops: &mut Loops) -> Result<(), PlaceError> {
        let contracts: Vec<Vnic> = self.contracts();
        let contracts: Vec<&Vnic> =
            contracts.iter().filter(|v| address(v).is_some_and(|(name, _)| name == pf)).collect();
        let Some(mut seen) = self.just_seen(pf)? else {
            return match about {
                Some(vnic) => Err(PlaceError::Failed(format!("{}: {pf} is gone", vnic.name))),
                None => Ok(()),
            };
        };
        self.set_loop(&contracts, &seen, loops);
        let plan = Self::wanted_plan(&self.settings_of(pf), &contracts, &seen, loops);
        let index = about.and_then(address).map(|(_, index)| index);
        if let Some(refusal) = plan.refusals.iter().find(|r| Some(r.vf) == index) {
            return Err(PlaceError::Failed(refusal.reason.clone()));
        }
        let done = self.conversation.apply(&plan.steps, &mut seen.pf, index);
        loops.enter_observed(&seen.pf, plan.steps.iter().filter_map(limited));
        if done.is_ok() {
            self.seen.insert(pf.to_owned(), seen);
        }
        done
    }

    /// A NIC as of the last look, with the steps since: changes follow a look at once.
    fn just_seen(&mut self, pf: &str) -> Result<Option<Seen>, PlaceError> {
        match self.seen.remove(pf).filter(|seen| seen.at.elapsed() < FRESH) {
            Some(seen) => Ok(Some(seen)),
            None => self.see(pf),
        }
    }
}

/// The function whose limit a step sets, and the limit.
fn limited(step: &Step) -> Option<(u16, Option<Rate>)> {
    match step.set {
        Set::Rate { vf, max, .. } => Some((vf, Rate::from_bits(u64::from(max) * 1_000_000))),
        Set::Leaf { vf, max, .. } => Some((vf, Rate::from_bits(max.saturating_mul(8)))),
        _ => None,
    }
}
