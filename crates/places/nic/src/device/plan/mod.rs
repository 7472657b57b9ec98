//! From what is wanted and what is to steps. Pure.
//!
//! ```text
//!  Function, Vf, Abilities ──▶ each setting: as it is? refused? pending? ──▶ steps, in order:
//!
//!    1. what restrains: lower rates, spoof check, no trust, link down
//!    2. MAC, VLAN
//!    3. what loosens:   higher rates, no spoof check, trust, link up
//! ```
//!
//! So at no moment between steps, and after none that fails, is a VF less restrained than before or after.

mod rates;

use crate::device::abilities::{Abilities, Ability};
use crate::device::function::Function;
use crate::device::pf::Pf;
use crate::device::step::{Set, Step};
use crate::device::vf::{LinkState, Vf};
use std::collections::BTreeSet;
use tidegate_contract::Mac;

/// What to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// In this order. What is refused or pending is not among them.
    pub steps: Vec<Step>,
    /// What cannot be had.
    pub refusals: Vec<VfRefusal>,
    /// What the link does not allow now: wanted, and planned again when it does.
    pub pending: Vec<Pending>,
    /// What is otherwise than wanted, and left alone.
    pub notes: Vec<Note>,
}

/// What cannot be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VfRefusal {
    /// The VF.
    pub vf: u16,
    /// Why, and what to do.
    pub reason: String,
}

/// What waits for the link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The VF.
    pub vf: u16,
    /// What for.
    pub reason: String,
}

/// What is otherwise than wanted, and left alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The VF.
    pub vf: u16,
    /// What, and why.
    pub text: String,
}

/// What a step does to how restrained a VF is; they are done in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Restrain,
    Neutral,
    Loosen,
}

/// What to do so that every VF in `wanted` is as it says. VFs that it does not name stay as they are. Nothing to do is an
/// empty plan.
///
/// A rate that is no whole number of Mbit/s is rounded: limits down, guarantees up, but to no more than the limit. A guarantee on a NIC that has none is
/// refused: where the control loop keeps it instead, ask without. The MAC address of a VF that has trust already, and shall,
/// is its VM's: it was set before trust was given.
pub fn plan(wanted: &[Function], pf: &Pf, abilities: &Abilities) -> Plan {
    let mut planner = Planner { pf, abilities, steps: Vec::new(), plan: Plan::default() };
    let mut seen = BTreeSet::new();
    for function in wanted {
        if !seen.insert(function.index) {
            planner.refuse(function.index, format!("VF {} of {} is wanted twice", function.index, pf.name));
            continue;
        }
        match pf.vfs.get(&function.index) {
            Some(vf) => planner.function(function, vf),
            None => planner.refuse(function.index, absent(function.index, pf)),
        }
    }
    planner.finish()
}

/// What takes steps back that were done, given the PF as it was before them.
pub fn undo(done: &[Step], before: &Pf) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for step in done.iter().rev().filter_map(|step| step.inverse(before)) {
        if !steps.contains(&step) {
            steps.push(step);
        }
    }
    steps
}

fn absent(index: u16, pf: &Pf) -> String {
    let Pf { name, num_vfs, total_vfs, .. } = pf;
    let there = match num_vfs {
        0 => "it has none".into(),
        1 => "it has one, VF 0".into(),
        n => format!("it has {n}, VF 0 to {}", n - 1),
    };
    match total_vfs {
        Some(total) if index >= *total => {
            format!(
                "{name} cannot have a VF {index}: at most {total}, VF 0 to {}; {there}",
                total.max(&1) - 1
            )
        }
        _ => format!(
            "{name} has no VF {index}: {there}; write the number of VFs to {} (to 0 first, where it is not: that \
             takes them from their VMs)",
            pf.numvfs_path()
        ),
    }
}

struct Planner<'a> {
    pf: &'a Pf,
    abilities: &'a Abilities,
    steps: Vec<(Phase, Step)>,
    plan: Plan,
}

impl Planner<'_> {
    fn refuse(&mut self, vf: u16, reason: String) {
        self.plan.refusals.push(VfRefusal { vf, reason });
    }

    fn pend(&mut self, vf: u16, reason: String) {
        self.plan.pending.push(Pending { vf, reason });
    }

    fn step(&mut self, phase: Phase, set: Set) {
        self.steps.push((phase, Step::on(self.pf, set)));
    }

    /// Where the NIC does not lack it.
    fn step_if_able(&mut self, vf: u16, what: &str, ability: &Ability, phase: Phase, set: Set) {
        match ability.lacks() {
            Some(why) => {
                self.refuse(vf, format!("{what}: {} has no such setting for VFs ({why})", self.pf.name))
            }
            None => self.step(phase, set),
        }
    }

    fn function(&mut self, wanted: &Function, vf: &Vf) {
        let (index, abilities) = (wanted.index, self.abilities);
        self.mac(wanted, vf);
        self.vlan(wanted, vf);
        let toggles = [
            ("spoof check", wanted.spoofchk, vf.spoofchk, &abilities.spoofchk),
            ("trust", wanted.trust, vf.trust, &abilities.trust),
        ];
        for (what, wanted, found, ability) in toggles {
            // A driver that says nothing of it has it off.
            let Some(on) = wanted.filter(|on| *on != found.unwrap_or(false)) else { continue };
            if found.is_none() && ability.lacks().is_none() {
                let reason = format!(
                    "{what}: the driver of {} ({}) does not show whether it is on",
                    self.pf.name, self.pf.driver
                );
                self.refuse(index, reason);
                continue;
            }
            let (set, restrains) = match what {
                "trust" => (Set::Trust { vf: index, on }, !on),
                _ => (Set::Spoofcheck { vf: index, on }, on),
            };
            let phase = if restrains { Phase::Restrain } else { Phase::Loosen };
            self.step_if_able(index, what, ability, phase, set);
        }
        if let Some(state) = wanted.link_state.filter(|state| *state != vf.link_state) {
            let phase = if state == LinkState::Disable { Phase::Restrain } else { Phase::Loosen };
            let set = Set::LinkState { vf: index, state };
            self.step_if_able(index, "link state", &abilities.link_state, phase, set);
        }
        self.rates(wanted, vf);
    }

    fn mac(&mut self, wanted: &Function, vf: &Vf) {
        let (index, none) = (wanted.index, Mac([0; 6]));
        let Some(mac) = wanted.mac.filter(|mac| *mac != vf.mac.unwrap_or(none)) else { return };
        if mac.is_group() {
            return self.refuse(index, format!("{mac} is the MAC address of a group, not of a station"));
        }
        // Trust lets the VM's driver change it. To set it back takes the VF from under that driver, which may change it again:
        // for ever.
        let trusted = wanted.trust == Some(true) && vf.trust == Some(true);
        if let Some(own) = vf.mac.filter(|_| trusted && mac != none) {
            let text = format!(
                "MAC address {own} instead of {mac}: with trust the VM's driver chooses it; for {mac} take trust away and \
                 give it again"
            );
            return self.plan.notes.push(Note { vf: index, text });
        }
        let set = Set::Mac { vf: index, mac };
        self.step_if_able(index, "MAC address", &self.abilities.mac, Phase::Neutral, set);
    }

    fn vlan(&mut self, wanted: &Function, vf: &Vf) {
        let (vlan, qos) = (wanted.vlan.unwrap_or(vf.vlan), wanted.qos.unwrap_or(vf.qos));
        if (vlan, qos) == (vf.vlan, vf.qos) {
            return;
        }
        if vlan > 4094 || qos > 7 {
            let reason =
                format!("VLAN {vlan} with priority {qos}: a NIC knows VLANs 1 to 4094 and priorities 0 to 7");
            return self.refuse(wanted.index, reason);
        }
        let set = Set::Vlan { vf: wanted.index, vlan, qos };
        self.step_if_able(wanted.index, "VLAN", &self.abilities.vlan, Phase::Neutral, set);
    }

    fn finish(mut self) -> Plan {
        self.steps.sort_by_key(|(phase, _)| *phase);
        self.plan.steps = self.steps.into_iter().map(|(_, step)| step).collect();
        self.plan
    }
}

#[cfg(test)]
mod tests;
