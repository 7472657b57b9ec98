//! What happens twice a second: look, report what differs, put it right.

use super::{ApplyError, Reconciler, Seen, check::check};
use crate::api::types::{Adopt, PlaceView};
use crate::place::{Action, Place, Wanted};
use std::time::{Duration, Instant};

/// Longest pause between attempts to bring one contract into force.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A contract that failed in so many processes, one after the other, that its pause is longer has to wait.
const AT_ONCE: Duration = Duration::from_secs(2);

/// Stands for the host-wide settings among the failures; no vNIC may have this name.
const HOST: &str = "[host]";

/// A contract that could not be brought into force.
#[derive(Debug)]
pub(super) struct Failure {
    /// Why.
    pub why: String,
    pause: Duration,
    again: Instant,
}

impl Failure {
    /// It failed in a process that is gone: in the one that came after it, it is tried without a pause. Not
    /// for ever, since it may be what ends them.
    pub fn try_at_once(&mut self) {
        if self.pause <= AT_ONCE {
            self.again = Instant::now();
        }
    }
}

impl Reconciler {
    /// Asks every place what is in force.
    pub(super) fn observe(&mut self) {
        (0..self.places.len()).for_each(|place| self.look_at(place));
        let problem = self.seen.iter().flatten().find_map(|o| o.problem.clone());
        self.problem("record", problem);
    }

    /// Asks one place.
    pub(super) fn look_at(&mut self, index: usize) {
        let (place, seen) = (&mut self.places[index], &mut self.seen[index]);
        let now = place.observe(&[]).map_err(|e| e.to_string());
        match (&now, &*seen) {
            (Err(why), Err(before)) if why == before => {}
            (Err(why), _) => tracing::warn!(place = place.name(), "{why}; its contracts are pending"),
            (Ok(_), _) => {}
        }
        if let Ok(observed) = &now {
            self.rates.sample(&observed.evidence);
        }
        *seen = now;
    }

    /// Puts right what differs from what is wanted. Each contract by itself: one that cannot be had does not
    /// stand in the way of the others.
    pub(super) fn repair(&mut self) {
        let checked = match check(&self.contracts, &self.soft, &self.places) {
            Ok(checked) => checked,
            Err(e) => {
                let text = match e {
                    ApplyError::Refused(why) => why.join("\n"),
                    other => other.to_string(),
                };
                return self.problem("saved contracts", Some(format!("the contracts do not hold: {text}")));
            }
        };
        self.failures.retain(|name, _| name == HOST || self.contracts.vnic(name).is_some());
        for index in 0..self.places.len() {
            let Ok(observed) = &self.seen[index] else { continue };
            let wanted = Wanted { host: &checked.host, vnics: &checked.by_place[index], adopt: Adopt::No };
            let actions = match self.places[index].plan(&wanted, observed) {
                Ok(actions) => actions,
                Err(refusals) => {
                    for refusal in refusals {
                        self.failed(refusal.vnic, &refusal.reason);
                    }
                    continue;
                }
            };
            // What is as wanted has no failure any more.
            let settled = |name: &str| !actions.iter().any(|a| a.vnic().unwrap_or(HOST) == name);
            for vnic in checked.by_place[index].iter().filter(|v| settled(&v.name)) {
                self.failures.remove(&vnic.name);
            }
            let mut touched = false;
            for action in actions {
                touched |= self.put_right(index, &action);
            }
            // The others are as they were seen; one that hangs is not waited for again.
            if touched {
                self.look_at(index);
            }
        }
    }

    fn put_right(&mut self, place: usize, action: &Action) -> bool {
        let name = action.vnic().unwrap_or(HOST).to_owned();
        if self.failures.get(&name).is_some_and(|f| Instant::now() < f.again) {
            return false;
        }
        let found = self.seen[place].as_ref().ok().and_then(|o| o.vnics.get(&name)?.broken.clone());
        let place = &mut self.places[place];
        match action {
            Action::Change { from, to } if from == to => {
                let found = found.unwrap_or_default();
                tracing::warn!(
                    vnic = name,
                    "drift: somebody changed what keeps its contract; putting it right: {found}"
                );
            }
            // The agent told the switch something else than it keeps: somebody spoke to it besides us.
            Action::Change { from, to } => {
                tracing::warn!(
                    vnic = name,
                    ?from,
                    ?to,
                    "drift: the contract in force differs; putting it right"
                );
            }
            Action::Remove(_) => tracing::warn!(vnic = name, "left over from an earlier change; removing it"),
            Action::Create(_) => tracing::info!(vnic = name, place = place.name(), "not there; making it"),
            // A front end that is not there yet is dialled quietly.
            Action::Reconnect(_)
            | Action::SetHost { .. }
            | Action::Adopt(_)
            | Action::Own(_)
            | Action::Release(_)
            | Action::TakeOver { .. } => {}
        }
        // The contract that takes it over was accepted long ago.
        let settle = |place: &mut Box<dyn Place>| match action {
            Action::Adopt(vnic) => place.apply(&Action::Own(vnic.clone())),
            _ => Ok(()),
        };
        match place.apply(action).and_then(|()| settle(place)) {
            Ok(()) => {
                if matches!(action, Action::Change { .. } | Action::Remove(_)) {
                    self.drift_repaired += 1;
                }
                self.failures.remove(&name);
            }
            Err(e) => self.failed(name, &e.to_string()),
        }
        true
    }

    /// Counts a failure and doubles the pause before the next attempt; logs a reason once.
    pub(super) fn failed(&mut self, name: String, why: &str) {
        self.reconcile_errors += 1;
        let before = self.failures.remove(&name);
        if before.as_ref().is_none_or(|b| b.why != why) {
            tracing::error!(vnic = name, "cannot bring its contract into force, trying again: {why}");
        }
        let pause = before.map_or(super::TICK, |b| (b.pause * 2).min(LONGEST_PAUSE));
        self.failures.insert(name, Failure { why: why.into(), pause, again: Instant::now() + pause });
    }
}

/// A place as the API shows it.
pub(super) fn place_view(name: &str, seen: &Seen) -> PlaceView {
    let (keeper, vnics, reason) = match seen {
        Ok(o) => (o.keeper.clone(), o.vnics.values().filter(|v| v.present).count(), None),
        Err(why) => (Default::default(), 0, Some(why.clone())),
    };
    PlaceView {
        name: name.into(),
        reachable: reason.is_none(),
        reason,
        version: keeper.version,
        pid: keeper.pid,
        started: keeper.started,
        vnics,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_in_every_process_waits_its_turn() {
        let now = Instant::now();
        let tried = |pause: Duration| {
            let mut failure = Failure { why: String::new(), pause, again: now + pause };
            failure.try_at_once();
            failure.again < now + pause
        };
        // Each failure doubles the pause.
        let pauses: Vec<_> = (0..6).map(|n| super::super::TICK * (1 << n)).collect();
        let at_once: Vec<_> = pauses.into_iter().map(tried).collect();
        assert_eq!(at_once, [true, true, true, false, false, false]);
    }
}
