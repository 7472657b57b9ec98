//! The rule between the host's limit and the guest's own, as in `ulimit`. Pure.
//!
//! ```text
//!  hard: tx.max as written ─┐
//!                           ├─ the lower ─▶ in force: tx.max, and tx.min not above it
//!  soft: the guest's own ───┘
//! ```
//!
//! - A soft limit is never over the hard one; asking for more is refused.
//! - Raising the hard limit leaves the soft one; lowering it below the soft one lowers that too, for good.
//! - Without a soft limit the hard one is in force.
//!
//! Admission uses the contract as written. In force, no rate or guarantee is higher, and burst and deadline are the same.
//! So no guest can make a contract not fit, now or later.

use crate::store::Contracts;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tidegate_contract::{Rate, Vnic};

/// The soft limits that guests have set, by vNIC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SoftLimits(BTreeMap<String, Rate>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the soft limit {requested} is above the hard limit {hard}: set at most {hard}")]
pub struct AboveHardLimit {
    requested: Rate,
    hard: Rate,
}

impl SoftLimits {
    /// Returns the soft limit of a vNIC; `None` if its guest has set none, or its contract names no guest.
    pub fn of(&self, vnic: &Vnic) -> Option<Rate> {
        vnic.guest.as_ref()?;
        let soft = *self.0.get(&vnic.name)?;
        Some(vnic.tx.max.map_or(soft, |hard| hard.min(soft)))
    }

    /// Sets the soft limit of a vNIC, or with `None` removes it.
    ///
    /// # Errors
    /// The limit is over the hard one; nothing was changed.
    pub fn set(&mut self, vnic: &Vnic, requested: Option<Rate>) -> Result<(), AboveHardLimit> {
        match (requested, vnic.tx.max) {
            (Some(requested), Some(hard)) if requested > hard => {
                return Err(AboveHardLimit { requested, hard });
            }
            (Some(requested), _) => drop(self.0.insert(vnic.name.clone(), requested)),
            (None, _) => drop(self.0.remove(&vnic.name)),
        }
        Ok(())
    }

    /// Returns the limits of vNICs that have a contract with a guest, none over its hard limit.
    pub fn of_contracts(&self, contracts: &Contracts) -> Self {
        let limits = contracts.vnics().filter_map(|(_, v)| Some((v.value.name.clone(), self.of(&v.value)?)));
        Self(limits.collect())
    }

    pub fn except(&self, drop: impl Fn(&str) -> bool) -> Self {
        Self(self.0.iter().filter(|(name, _)| !drop(name)).map(|(n, s)| (n.clone(), *s)).collect())
    }

    /// Returns the limits that `others` lacks.
    pub fn missing_in<'a>(&'a self, others: &'a Self) -> impl Iterator<Item = (&'a str, Rate)> {
        self.0.iter().filter(|(name, _)| !others.0.contains_key(*name)).map(|(n, s)| (n.as_str(), *s))
    }

    /// Returns the contract for the place: under the soft limit, and without `guest`, which no place uses.
    pub fn in_force(&self, vnic: &Vnic) -> Vnic {
        let mut effective = Vnic { guest: None, ..vnic.clone() };
        if let Some(soft) = self.of(vnic) {
            effective.tx.max = Some(soft);
            effective.tx.min = vnic.tx.min.map(|min| min.min(soft));
        }
        effective
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tidegate_contract::{Bytes, ContractSet, Document, Host, Located, Nanos, admit};
    use tidegate_testkit::contract::{netdev, vnic};

    fn rate(mbit: u64) -> Option<Rate> {
        Rate::from_bits(mbit * 1_000_000)
    }

    fn with(max: Option<u64>, guest: bool) -> Vnic {
        let mut vnic = Vnic { guest: guest.then(|| "/run/vm/a".into()), ..vnic("a", 1) };
        vnic.tx.max = max.and_then(rate);
        vnic
    }

    fn contracts(vnics: &[Vnic]) -> Contracts {
        let vnics = vnics.iter().map(|v| Located::without_line(v.clone(), "test")).collect();
        Contracts { api: Document { vnics, ..Document::default() }, ..Contracts::default() }
    }

    #[test]
    fn more_than_the_hard_limit_is_refused() {
        let mut soft = SoftLimits::default();
        soft.set(&with(Some(500), true), rate(400)).expect("below");
        let over = soft.set(&with(Some(500), true), rate(501)).expect_err("over");
        assert_eq!(
            over.to_string(),
            "the soft limit 501mbit is above the hard limit 500mbit: set at most 500mbit"
        );
        assert_eq!(soft.of(&with(Some(500), true)), rate(400));
        soft.set(&with(None, true), rate(100_000)).expect("no hard limit");
    }

    #[derive(Clone, Debug)]
    enum Event {
        Hard(Option<u64>),
        Soft(Option<u64>),
        /// The contract goes, and another of the same name comes.
        Anew(Option<u64>),
        /// The contract names no guest any more, and then does again.
        Unnamed,
    }

    fn event() -> impl Strategy<Value = Event> {
        let some = || prop::option::weighted(0.8, 1u64..20);
        prop_oneof![
            4 => some().prop_map(Event::Hard),
            4 => some().prop_map(Event::Soft),
            1 => some().prop_map(Event::Anew),
            1 => Just(Event::Unnamed),
        ]
    }

    proptest! {
        /// Compares with a model of two numbers; no limit is infinity.
        #[test]
        fn soft_limits_follow_the_rules_of_ulimit(events in prop::collection::vec(event(), 0..30)) {
            const NONE: u64 = u64::MAX;
            let (mut hard, mut own) = (NONE, NONE);
            let mut now = with(None, true);
            let mut soft = SoftLimits::default();
            for event in events {
                match event {
                    Event::Hard(max) => {
                        hard = max.unwrap_or(NONE);
                        // Only if there is a soft limit.
                        own = if own == NONE { NONE } else { own.min(hard) };
                        now = with(max, true);
                    }
                    Event::Soft(asked) => {
                        let taken = soft.set(&now, asked.and_then(rate));
                        prop_assert_eq!(taken.is_ok(), asked.is_none_or(|asked| asked <= hard));
                        if taken.is_ok() {
                            own = asked.unwrap_or(NONE);
                        }
                    }
                    Event::Anew(max) => {
                        soft = soft.of_contracts(&contracts(&[]));
                        (hard, own, now) = (max.unwrap_or(NONE), NONE, with(max, true));
                    }
                    Event::Unnamed => {
                        soft = soft.of_contracts(&contracts(&[with(None, false)]));
                        own = NONE;
                    }
                }
                soft = soft.of_contracts(&contracts(&[now.clone()]));
                let limit = |n: u64| (n != NONE).then_some(n).and_then(rate);
                prop_assert_eq!(soft.of(&now), limit(own));
                prop_assert_eq!(soft.in_force(&now).tx.max, limit(own.min(hard)));
                // As it comes back from disk.
                let saved = serde_json::to_string(&soft).expect("serialises");
                prop_assert_eq!(serde_json::from_str::<SoftLimits>(&saved).expect("parses"), soft.clone());
            }
        }
    }

    prop_compose! {
        /// Senders, some with promises, to a receiver, and what their guests ask for. Mbit/s.
        fn set()(
            senders in prop::collection::vec(
                (1u64..100, 1u64..100, prop::option::of(1u64..20), any::<bool>(), prop::option::of(1u64..100)), 1..6),
            capacity in 50u64..400, kernel: bool,
        ) -> (Vec<Vnic>, SoftLimits) {
            let make = |name: &str, mac| if kernel { netdev(name, mac, name) } else { vnic(name, mac) };
            let mut receiver = make("r", 99);
            receiver.rx.max = rate(capacity);
            let mut soft = SoftLimits::default();
            let mut vnics = vec![receiver];
            for (i, (max, min, deadline, guaranteed, asked)) in senders.into_iter().enumerate() {
                let mut vnic = make(&format!("s{i}"), i as u8);
                vnic.guest = Some(format!("/run/vm/{i}").into());
                vnic.to = vec!["r".into()];
                vnic.tx.max = rate(max);
                vnic.tx.min = guaranteed.then(|| rate(min.min(max))).flatten();
                vnic.tx.burst = Some(Bytes::new(2000));
                vnic.deadline = deadline.map(|ms| Nanos::new(ms * 1_000_000));
                if let Some(asked) = asked {
                    let _ = soft.set(&vnic, rate(asked));
                }
                vnics.push(vnic);
            }
            (vnics, soft)
        }
    }

    proptest! {
        /// Contracts in force are valid, differ in nothing else, and fit if the written ones fit, with no higher bound.
        #[test]
        fn soft_limits_keep_contracts_valid_and_admissible((vnics, soft) in set()) {
            let effective: Vec<Vnic> = vnics.iter().map(|v| soft.in_force(v)).collect();
            for (written, effective) in vnics.iter().zip(&effective) {
                prop_assert_eq!(effective.check(), Ok(()));
                prop_assert!(effective.tx.max <= written.tx.max && effective.tx.min <= written.tx.min);
                let mut same = effective.clone();
                (same.tx, same.guest) = (written.tx.clone(), written.guest.clone());
                prop_assert_eq!(&same, written);
                prop_assert_eq!(effective.tx.burst, written.tx.burst);
            }
            let host = Host::default();
            if let Ok(written) = admit(&ContractSet::local(&host, &vnics)) {
                let effective = admit(&ContractSet::local(&host, &effective));
                let effective = effective.map_err(|e| TestCaseError::fail(format!("{e:?}")))?;
                for (before, now) in written.bounds.iter().zip(&effective.bounds) {
                    prop_assert!(now.vnic == before.vnic && now.bound <= before.bound);
                }
                prop_assert_eq!(written.bounds.len(), effective.bounds.len());
            }
        }
    }
}
