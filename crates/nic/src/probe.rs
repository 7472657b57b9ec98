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

use crate::abilities::{Abilities, Ability};
use crate::counters::sources;
use crate::nic::Nic;
use crate::pf::{Mode, Pf};
use crate::step::{Set, Step};
use crate::vf::{LinkState, Vf};
use tidegate_contract::Mac;

/// A rate node that is there for a moment.
const NODE: &str = "tidegate-probe";

/// 1 Mbit/s, what drivers count in, in devlink's bytes.
const MBIT_BYTES: u64 = 125_000;

const EPERM: i32 = 1;
const EOPNOTSUPP: i32 = 95;

/// What a NIC takes. `pf` as it was just observed.
pub fn probe(nic: &mut Nic, pf: &Pf) -> Abilities {
    let mut asker = Asker { nic, pf };
    let vf = pf.total_vfs.unwrap_or(pf.num_vfs);
    let (max_rate, min_rate) = asker.rates(vf);
    Abilities {
        max_rate,
        min_rate,
        vlan: asker.knows(Set::Vlan { vf, vlan: 0, qos: 0 }),
        mac: asker.knows(Set::Mac { vf, mac: Mac([2, 0, 0, 0, 0, 1]) }),
        spoofchk: asker.knows(Set::Spoofcheck { vf, on: true }),
        trust: asker.knows(Set::Trust { vf, on: false }),
        link_state: asker.knows(Set::LinkState { vf, state: LinkState::Auto }),
        leaf: asker.leaf(),
        node: asker.node(),
        statistics: sources(asker.nic, pf),
    }
}

struct Asker<'a> {
    nic: &'a mut Nic,
    pf: &'a Pf,
}

impl Asker<'_> {
    /// Whether a driver knows a setting, asked of a VF that is not there.
    fn knows(&mut self, set: Set) -> Ability {
        match self.nic.apply(&Step::on(self.pf, set)) {
            Ok(()) => Ability::Has,
            Err(e) => match e.errno {
                Some(EOPNOTSUPP) => Ability::Lacks(e.why),
                Some(EPERM) | None => Ability::Unknown(e.why),
                // No such VF.
                Some(_) => Ability::Has,
            },
        }
    }

    /// Whether a driver takes a setting.
    fn takes(&mut self, set: Set) -> Ability {
        match self.nic.apply(&Step::on(self.pf, set)) {
            Ok(()) => Ability::Has,
            Err(e) => match e.errno {
                Some(EPERM) | None => Ability::Unknown(e.why),
                Some(_) => Ability::Lacks(e.why),
            },
        }
    }

    /// Limits and guarantees.
    fn rates(&mut self, absent: u16) -> (Ability, Ability) {
        if self.pf.vfs.values().any(|vf| vf.leaf.is_some()) {
            return self.leaf_rates();
        }
        let known = self.knows(Set::Rate { vf: absent, min: 0, max: 0 });
        if known != Ability::Has {
            return (known.clone(), known);
        }
        let unknown = |why: &str| Ability::Unknown(format!("{} {why}", self.pf.name));
        let Some((&index, vf)) = self.pf.vfs.first_key_value() else {
            return (known, unknown("has no VF to ask of"));
        };
        // Without one, drivers refuse what they take otherwise.
        if !self.pf.up || !self.pf.carrier {
            return (known, unknown("has no link: asked when it has"));
        }
        let (min, max) = vf.rates_mbit();
        let limit = self.takes(Set::Rate { vf: index, min, max });
        if limit != Ability::Has {
            return (limit.clone(), limit);
        }
        if min > 0 {
            return (limit, Ability::Has);
        }
        let guarantee = self.takes(Set::Rate { vf: index, min: 1, max });
        (limit, self.back(guarantee, Set::Rate { vf: index, min, max }))
    }

    fn leaf_rates(&mut self) -> (Ability, Ability) {
        let Some((index, leaf)) = self.first_leaf() else { return Default::default() };
        let set = |share| Set::Leaf { vf: index, port: leaf.port, share, max: leaf.max };
        let limit = self.takes(set(leaf.share));
        if leaf.share > 0 {
            return (limit, Ability::Has);
        }
        let guarantee = self.takes(set(MBIT_BYTES));
        (limit, self.back(guarantee, set(0)))
    }

    /// What was tried is taken back where it was taken.
    fn back(&mut self, tried: Ability, set: Set) -> Ability {
        if tried == Ability::Has
            && let Err(e) = self.nic.apply(&Step::on(self.pf, set))
        {
            tracing::warn!(pf = %self.pf.name, "what was tried to find out what the NIC takes stays: {e}");
        }
        tried
    }

    fn first_leaf(&self) -> Option<(u16, crate::vf::Leaf)> {
        self.pf.vfs.iter().find_map(|(index, Vf { leaf, .. })| Some((*index, leaf.clone()?)))
    }

    /// devlink rate objects of VFs.
    fn leaf(&mut self) -> Ability {
        if let Some(legacy) = self.legacy() {
            return legacy;
        }
        match self.first_leaf() {
            Some((vf, leaf)) => {
                self.takes(Set::Leaf { vf, port: leaf.port, share: leaf.share, max: leaf.max })
            }
            None if self.pf.vfs.is_empty() => {
                Ability::Unknown(format!("{} has no VF to ask of", self.pf.name))
            }
            None => Ability::Lacks("no VF has a devlink rate object".into()),
        }
    }

    /// devlink rate nodes.
    fn node(&mut self) -> Ability {
        if let Some(legacy) = self.legacy() {
            return legacy;
        }
        let made = self.takes(Set::NewNode { node: NODE.into() });
        self.back(made, Set::DeleteNode { node: NODE.into() })
    }

    fn legacy(&self) -> Option<Ability> {
        (self.pf.mode == Mode::Legacy).then(|| Ability::Lacks("not in switchdev mode".into()))
    }
}
