//! Abilities of a NIC, found by asking: what a driver's name promises and what it does differ from release to release.
//!
//! ```text
//!  a VF that the NIC cannot have ◀─ set MAC, VLAN, ... ─▶ EOPNOTSUPP: no such setting; anything else: it is known
//!  a VF that is there            ◀─ rate as it is; guarantee of 1 Mbit/s and back ─▶ taken, or not
//! ```
//!
//! The first question changes nothing, whatever is answered, where setting a VF to what it is already may: a driver takes a MAC
//! address that the host set away from the VM. Drivers without guarantees know the setting and refuse its value, so that has
//! to be tried.
//!
//! A refusal is final only where it cannot be about the moment: what a NIC in reset refuses it may take a minute later.

use crate::counters::sources;
use crate::device::abilities::{Abilities, Ability};
use crate::device::nic::{Nic, StepError};
use crate::device::pf::{Mode, Pf};
use crate::device::step::{Set, Step};
use crate::device::vf::{LinkState, Vf};
use tidegate_contract::Mac;

/// A rate node that is there for a moment.
const NODE: &str = "tidegate-probe";

/// 1 Mbit/s, what drivers count in, in devlink's bytes.
const MBIT_BYTES: u64 = 125_000;

const EPERM: i32 = 1;
const EINVAL: i32 = 22;
const EOPNOTSUPP: i32 = 95;

/// What a NIC takes. `pf` as it was just observed.
pub fn probe(nic: &mut Nic, pf: &Pf) -> Abilities {
    let mut asker = Asker { nic, pf };
    let vf = pf.total_vfs.unwrap_or(pf.num_vfs);
    let (max_rate, min_rate) = asker.rates(vf);
    Abilities {
        max_rate,
        min_rate,
        vlan: asker.ask_absent(Set::Vlan { vf, vlan: 0, qos: 0 }),
        mac: asker.ask_absent(Set::Mac { vf, mac: Mac([2, 0, 0, 0, 0, 1]) }),
        spoofchk: asker.ask_absent(Set::Spoofcheck { vf, on: true }),
        trust: asker.ask_absent(Set::Trust { vf, on: false }),
        link_state: asker.ask_absent(Set::LinkState { vf, state: LinkState::Auto }),
        leaf: asker.leaf(),
        node: asker.node(),
        statistics: sources(asker.nic, pf),
    }
}

/// What a driver says that has no such setting.
const LACKING: &[i32] = &[EOPNOTSUPP];
/// What it says that has it, and refuses every value.
const LACKING_VALUE: &[i32] = &[EOPNOTSUPP, EINVAL];

/// What an answer about a VF that is not there says.
fn ability_of_absent(answer: Result<(), StepError>) -> Ability {
    match answer {
        Ok(()) => Ability::Has,
        Err(e) => match e.errno {
            Some(EOPNOTSUPP) => Ability::Lacks(e.why),
            Some(EPERM) | None => Ability::Unknown(e.why),
            // No such VF.
            Some(_) => Ability::Has,
        },
    }
}

/// What an answer about one that is there says, where `lacking` are the errors that are not about the moment.
fn ability_of_present(answer: Result<(), StepError>, lacking: &[i32]) -> Ability {
    match answer {
        Ok(()) => Ability::Has,
        Err(e) if e.errno.is_some_and(|errno| lacking.contains(&errno)) => Ability::Lacks(e.why),
        Err(e) => Ability::Unknown(e.why),
    }
}

/// A VF whose rates can be set to what they are; else why there is none.
fn vf_to_ask(pf: &Pf) -> Result<(u16, &Vf), String> {
    let unknown = |why: &str| Err(format!("{} {why}", pf.name));
    if pf.vfs.is_empty() {
        return unknown("has no VF that could be tried");
    }
    // Without one, drivers refuse what they take otherwise.
    if !pf.up || !pf.carrier {
        return unknown("has no link: the agent tries when it has one");
    }
    // Of when the link was faster: drivers refuse it now.
    let too_fast = |vf: &Vf| pf.speed.is_some_and(|speed| vf.tx_max.max(vf.tx_min) > Some(speed));
    match pf.vfs.iter().find(|(_, vf)| !too_fast(vf)) {
        Some((&index, vf)) => Ok((index, vf)),
        None => {
            unknown("has no VF whose rates are at most the link's speed: the agent tries when it has one")
        }
    }
}

struct Asker<'a> {
    nic: &'a mut Nic,
    pf: &'a Pf,
}

impl Asker<'_> {
    /// Whether a driver knows a setting, asked of a VF that is not there.
    fn ask_absent(&mut self, set: Set) -> Ability {
        ability_of_absent(self.nic.apply(&Step::on(self.pf, set)))
    }

    /// Whether a driver takes a setting.
    fn ask_present(&mut self, set: Set, lacking: &[i32]) -> Ability {
        ability_of_present(self.nic.apply(&Step::on(self.pf, set)), lacking)
    }

    /// Limits and guarantees.
    fn rates(&mut self, absent: u16) -> (Ability, Ability) {
        if self.pf.vfs.values().any(|vf| vf.leaf.is_some()) {
            return self.leaf_rates();
        }
        let known = self.ask_absent(Set::Rate { vf: absent, min: 0, max: 0 });
        if known != Ability::Has {
            return (known.clone(), known);
        }
        let (index, vf) = match vf_to_ask(self.pf) {
            Ok(found) => found,
            Err(why) => return (known, Ability::Unknown(why)),
        };
        let (min, max) = vf.rates_mbit();
        let limit = self.ask_present(Set::Rate { vf: index, min, max }, LACKING);
        if limit != Ability::Has {
            return (limit.clone(), limit);
        }
        if min > 0 {
            return (limit, Ability::Has);
        }
        // The same limit was taken just now: it is the guarantee that is refused.
        let guarantee = self.ask_present(Set::Rate { vf: index, min: 1, max }, LACKING_VALUE);
        (limit, self.undo_try(guarantee, Set::Rate { vf: index, min, max }))
    }

    fn leaf_rates(&mut self) -> (Ability, Ability) {
        let Some((index, leaf)) = self.first_leaf() else { return Default::default() };
        let set = |share| Set::Leaf { vf: index, port: leaf.port, share, max: leaf.max };
        let limit = self.ask_present(set(leaf.share), LACKING);
        if leaf.share > 0 {
            return (limit, Ability::Has);
        }
        let telling = self.pf.up && self.pf.carrier && limit == Ability::Has;
        let guarantee = self.ask_present(set(MBIT_BYTES), if telling { LACKING_VALUE } else { LACKING });
        (limit, self.undo_try(guarantee, set(0)))
    }

    /// What was tried is taken back where it was taken.
    fn undo_try(&mut self, tried: Ability, set: Set) -> Ability {
        if tried == Ability::Has
            && let Err(e) = self.nic.apply(&Step::on(self.pf, set))
        {
            tracing::warn!(pf = %self.pf.name, "a setting that tested the abilities of the NIC stays: {e}");
        }
        tried
    }

    fn first_leaf(&self) -> Option<(u16, crate::device::vf::Leaf)> {
        self.pf.vfs.iter().find_map(|(index, Vf { leaf, .. })| Some((*index, leaf.clone()?)))
    }

    /// devlink rate objects of VFs.
    fn leaf(&mut self) -> Ability {
        if let Some(legacy) = self.legacy() {
            return legacy;
        }
        match self.first_leaf() {
            Some((vf, leaf)) => {
                self.ask_present(Set::Leaf { vf, port: leaf.port, share: leaf.share, max: leaf.max }, LACKING)
            }
            None if self.pf.vfs.is_empty() => {
                Ability::Unknown(format!("{} has no VF that could be tried", self.pf.name))
            }
            None => Ability::Lacks("no VF has a devlink rate object".into()),
        }
    }

    /// devlink rate nodes.
    fn node(&mut self) -> Ability {
        if let Some(legacy) = self.legacy() {
            return legacy;
        }
        // Of one who died while it asked.
        if self.pf.nodes.contains_key(NODE) {
            self.ask_present(Set::DeleteNode { node: NODE.into() }, LACKING);
        }
        let made = self.ask_present(Set::NewNode { node: NODE.into() }, LACKING);
        self.undo_try(made, Set::DeleteNode { node: NODE.into() })
    }

    fn legacy(&self) -> Option<Ability> {
        (self.pf.mode == Mode::Legacy).then(|| Ability::Lacks("not in switchdev mode".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_contract::Rate;

    const EIO: i32 = 5;
    const EAGAIN: i32 = 11;
    const EBUSY: i32 = 16;
    const ENODEV: i32 = 19;

    fn refused(errno: impl Into<Option<i32>>) -> Result<(), StepError> {
        Err(StepError { step: "set".into(), why: "the words".into(), hint: "", errno: errno.into() })
    }

    #[test]
    fn only_an_error_that_cannot_pass_is_a_final_answer() {
        let (lacks, unknown) = (Ability::Lacks("the words".into()), Ability::Unknown("the words".into()));
        assert_eq!(
            [ability_of_present(Ok(()), LACKING), ability_of_absent(Ok(()))],
            [Ability::Has, Ability::Has]
        );
        for lacking in [LACKING, LACKING_VALUE] {
            assert_eq!(ability_of_present(refused(EOPNOTSUPP), lacking), lacks);
            assert_eq!(ability_of_present(refused(None), lacking), unknown);
            for errno in [EPERM, EIO, EAGAIN, EBUSY, ENODEV] {
                assert_eq!(ability_of_present(refused(errno), lacking), unknown, "{errno}");
            }
        }
        assert_eq!(ability_of_present(refused(EINVAL), LACKING), unknown);
        assert_eq!(ability_of_present(refused(EINVAL), LACKING_VALUE), lacks);
        // Of a VF that is not there.
        assert_eq!(ability_of_absent(refused(EOPNOTSUPP)), lacks);
        assert_eq!(
            [ability_of_absent(refused(EPERM)), ability_of_absent(refused(None))],
            [unknown.clone(), unknown]
        );
        assert_eq!(
            [ability_of_absent(refused(EINVAL)), ability_of_absent(refused(ENODEV))],
            [Ability::Has, Ability::Has]
        );
    }

    #[test]
    fn only_a_vf_whose_rates_the_link_allows_is_asked() {
        let mbit = |n: u64| Rate::from_bits(n * 1_000_000);
        let limited = |n| Vf { tx_max: mbit(n), ..Vf::default() };
        let mut pf = Pf { name: "eth0".into(), up: true, carrier: true, speed: mbit(100), ..Pf::default() };
        let asked = |pf: &Pf| vf_to_ask(pf).map(|(index, _)| index);
        let why = |pf: &Pf| vf_to_ask(pf).expect_err("none");
        assert!(why(&pf).contains("has no VF"));
        pf.vfs.insert(0, limited(101));
        assert!(why(&pf).contains("at most the link's speed"));
        pf.vfs.insert(1, Vf { tx_min: mbit(101), ..Vf::default() });
        assert!(why(&pf).contains("at most the link's speed"));
        pf.vfs.insert(2, limited(100));
        assert_eq!(asked(&pf), Ok(2));
        pf.speed = mbit(1000);
        assert_eq!(asked(&pf), Ok(0));
        // Where the speed of the link is not known, the driver decides.
        pf.speed = None;
        assert_eq!(asked(&pf), Ok(0));
        pf.carrier = false;
        assert!(why(&pf).contains("has no link"));
    }
}
