//! Rates: what a NIC can count, what its link allows, which way it takes them.

use super::{Phase, Planner};
use crate::device::function::Function;
use crate::device::step::Set;
use crate::device::vf::{MBIT, Vf};
use tidegate_contract::Rate;

/// Bytes per second in 1 Mbit/s. devlink knows bytes, drivers whole Mbit/s.
const MBIT_BYTES: u64 = MBIT / 8;

/// Guaranteed rate and limit, in what they are told in: Mbit/s, or devlink's bytes per second; 0 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rates {
    min: u64,
    max: u64,
}

impl Rates {
    /// The lower of each. Where both keep `min` at or below `max`, so does this.
    fn meet(self, other: Self) -> Self {
        let limit = |rates: Self| if rates.max == 0 { u64::MAX } else { rates.max };
        let max = limit(self).min(limit(other));
        Self { min: self.min.min(other.min), max: if max == u64::MAX { 0 } else { max } }
    }
}

impl Planner<'_> {
    pub(super) fn rates(&mut self, wanted: &Function, vf: &Vf) {
        let (found, unit) = match &vf.leaf {
            Some(leaf) => (Rates { min: leaf.share, max: leaf.max }, MBIT_BYTES),
            None => {
                let (min, max) = vf.rates_mbit();
                (Rates { min: min.into(), max: max.into() }, 1)
            }
        };
        let refused = self.plan.refusals.len();
        let waiting = self.plan.pending.len();
        let mut target = Rates { min: self.min(wanted) * unit, max: self.max(wanted) * unit };
        if self.plan.refusals.len() > refused {
            return;
        }
        if target.max != 0 && target.min > target.max {
            if let (Some(min), Some(max)) = (wanted.tx_min, wanted.tx_max)
                && min > max
            {
                let reason = format!("tx.min of {min} is more than tx.max of {max}");
                return self.refuse(wanted.index, reason);
            }
            // Less than 1 Mbit/s apart: the guarantee's share of the last one cannot be told.
            target.min = target.max;
        }
        if target == found {
            return;
        }
        // A leaf is the host's own object; what `IFLA_VF_RATE` sets, drivers work out from the link's speed.
        if vf.leaf.is_none() && self.link_missing() {
            self.plan.pending.truncate(waiting);
            let reason =
                format!("rates of VF {} wait for the link of {}, which is down", wanted.index, self.pf.name);
            return self.pend(wanted.index, reason);
        }
        let lower = found.meet(target);
        // A limit above the link's speed, of when it was faster, cannot be set again; nor is it one now.
        if self.pf.speed.is_some_and(|speed| lower.max.saturating_mul(MBIT / unit) > speed.bits()) {
            let phase = if target.min > found.min { Phase::Loosen } else { Phase::Restrain };
            return self.set_rates(phase, wanted.index, vf, target);
        }
        if lower != found {
            self.set_rates(Phase::Restrain, wanted.index, vf, lower);
        }
        if lower != target {
            self.set_rates(Phase::Loosen, wanted.index, vf, target);
        }
    }

    fn link_missing(&self) -> bool {
        !self.pf.up || !self.pf.carrier
    }

    fn set_rates(&mut self, phase: Phase, index: u16, vf: &Vf, rates: Rates) {
        let set = match &vf.leaf {
            Some(leaf) => Set::Leaf { vf: index, port: leaf.port, share: rates.min, max: rates.max },
            // At most 400 Gbit/s.
            None => Set::Rate { vf: index, min: rates.min as u32, max: rates.max as u32 },
        };
        self.step(phase, set);
    }

    /// The limit to set, Mbit/s.
    fn max(&mut self, wanted: &Function) -> u64 {
        let Some(rate) = wanted.tx_max else { return 0 };
        if !self.possible("tx.max", rate, wanted.index) {
            return 0;
        }
        if let Some(why) = self.abilities.max_rate.lacks() {
            let reason = format!("tx.max: {} cannot limit its VFs ({why})", self.pf.name);
            self.refuse(wanted.index, reason);
            return 0;
        }
        let mbit = rate.bits() / MBIT;
        if mbit == 0 {
            let reason = format!(
                "tx.max of {rate} is below 1 Mbit/s, the least that {} can set (0 would be no limit)",
                self.pf.name
            );
            self.refuse(wanted.index, reason);
        }
        // The link is the limit then, and most drivers refuse what is more.
        match self.pf.speed {
            Some(speed) if rate > speed => {
                let reason = format!(
                    "tx.max of {rate} waits until the link of {} is faster than {speed}; until then the link is the limit",
                    self.pf.name
                );
                self.pend(wanted.index, reason);
                0
            }
            _ => mbit,
        }
    }

    /// The guarantee to set, Mbit/s.
    fn min(&mut self, wanted: &Function) -> u64 {
        let Some(rate) = wanted.tx_min else { return 0 };
        if !self.possible("tx.min", rate, wanted.index) {
            return 0;
        }
        if let Some(why) = self.abilities.min_rate.lacks() {
            let reason = format!(
                "tx.min: {} has no guaranteed rates for VFs ({why}); the control loop can keep tx.min by limits for \
                 the other VFs",
                self.pf.name
            );
            self.refuse(wanted.index, reason);
            return 0;
        }
        match self.pf.speed {
            Some(speed) if rate > speed => {
                let reason = format!(
                    "tx.min of {rate} waits until the link of {} is faster than {speed}",
                    self.pf.name
                );
                self.pend(wanted.index, reason);
                0
            }
            _ => rate.bits().div_ceil(MBIT),
        }
    }

    /// Whether the NIC can ever be that fast.
    fn possible(&mut self, what: &str, rate: Rate, index: u16) -> bool {
        let Some(top) = self.pf.top_speed.filter(|top| rate > *top) else { return true };
        let reason = format!(
            "{what} of {rate} is more than {}, the fastest that {} can do; leave it out or write at most that",
            top, self.pf.name
        );
        self.refuse(index, reason);
        false
    }
}
