//! Groups of VFs that share a rate, such as all VFs of a tenant: devlink rate nodes.
//!
//! ```text
//!  Group ──▶ nodes made, with their rates ─▶ VFs put into them, or out ─▶ higher rates ─▶ nodes deleted
//! ```
//!
//! A node is ours by its name. Others' nodes stay as they are; a VF that is in one and shall be in ours is taken out of it.

use crate::device::abilities::Abilities;
use crate::device::pf::{Node, Pf};
use crate::device::step::{Set, Step};
use crate::device::vf::MBIT;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use tidegate_contract::Rate;

/// Prefix of the names of our nodes.
pub const PREFIX: &str = "tidegate-";

/// 1 Mbit/s, the unit of drivers, in bytes per second as devlink counts.
const MBIT_BYTES: u64 = MBIT / 8;

/// VFs that share a rate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Name of the group; the node's name is [`PREFIX`] and this.
    pub name: String,
    /// Limit of all its VFs together, rounded down to whole Mbit/s; `None`: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tx_max: Option<Rate>,
    /// Guarantee of all its VFs together, rounded up to whole Mbit/s; `None`: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tx_min: Option<Rate>,
    /// Its VFs.
    pub vfs: BTreeSet<u16>,
}

/// The steps for groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupPlan {
    /// Steps, in order. Refused groups stay as they are.
    pub steps: Vec<Step>,
    /// Refused groups, with the reason.
    pub refusals: Vec<(String, String)>,
}

/// The steps after which exactly these groups of ours exist; empty if they exist already.
pub fn plan_groups(wanted: &[Group], pf: &Pf, abilities: &Abilities) -> GroupPlan {
    let mut plan = GroupPlan::default();
    let mut nodes: BTreeMap<String, Node> = BTreeMap::new();
    let mut members: BTreeMap<u16, String> = BTreeMap::new();
    for group in wanted {
        let name = format!("{PREFIX}{}", group.name);
        let node = accept(group, pf, abilities).and_then(|node| {
            if nodes.contains_key(&name) {
                return Err("it is wanted twice".into());
            }
            match group.vfs.iter().find(|vf| members.contains_key(vf)) {
                Some(vf) => Err(format!("VF {vf} is in another group already")),
                None => Ok(node),
            }
        });
        match node {
            Ok(node) => {
                members.extend(group.vfs.iter().map(|vf| (*vf, name.clone())));
                nodes.insert(name, node);
            }
            Err(reason) => plan.refusals.push((group.name.clone(), reason)),
        }
    }
    let refused: BTreeSet<String> = plan.refusals.iter().map(|(name, _)| format!("{PREFIX}{name}")).collect();
    let mut steps: Vec<Set> = Vec::new();
    let mut last: Vec<Set> = Vec::new();
    for (name, wanted) in &nodes {
        let found = pf.nodes.get(name);
        if found.is_none() {
            steps.push(Set::NewNode { node: name.clone() });
        }
        let found = found.cloned().unwrap_or_default();
        let set = |share, max| Set::Node { node: name.clone(), share, max };
        // A node that is new has no VF in it yet.
        let lower =
            if pf.nodes.contains_key(name) { lower(&found, wanted) } else { (wanted.share, wanted.max) };
        if lower != (found.share, found.max) {
            steps.push(set(lower.0, lower.1));
        }
        if lower != (wanted.share, wanted.max) {
            last.push(set(wanted.share, wanted.max));
        }
    }
    for (vf, leaf) in pf.vfs.iter().filter_map(|(vf, found)| Some((*vf, found.leaf.as_ref()?))) {
        let ours = leaf.parent.as_ref().is_some_and(|p| p.starts_with(PREFIX) && !refused.contains(p));
        let to = members.get(&vf);
        if to != leaf.parent.as_ref() && (to.is_some() || ours) {
            steps.push(Set::LeafParent { vf, port: leaf.port, node: to.cloned() });
        }
    }
    steps.append(&mut last);
    for (name, found) in &pf.nodes {
        if name.starts_with(PREFIX) && !nodes.contains_key(name) && !refused.contains(name) {
            // Taken back, it is made again, and then has its rates again.
            if (found.share, found.max) != (0, 0) {
                steps.push(Set::Node { node: name.clone(), share: 0, max: 0 });
            }
            steps.push(Set::DeleteNode { node: name.clone() });
        }
    }
    plan.steps = steps.into_iter().map(|set| Step::on(pf, set)).collect();
    plan
}

/// The lower of each rate, of which 0 is no limit.
fn lower(found: &Node, wanted: &Node) -> (u64, u64) {
    let max = match (found.max, wanted.max) {
        (0, max) | (max, 0) => max,
        (a, b) => a.min(b),
    };
    (found.share.min(wanted.share), max)
}

/// The node of a group, or the reason for which the NIC cannot have it.
fn accept(group: &Group, pf: &Pf, abilities: &Abilities) -> Result<Node, String> {
    if let Some(why) = abilities.node.lacks() {
        return Err(format!("{} cannot group VFs ({why}); in switchdev mode some NICs can", pf.name));
    }
    for vf in &group.vfs {
        match pf.vfs.get(vf) {
            None => return Err(format!("{} has no VF {vf}: it has {}", pf.name, pf.num_vfs)),
            Some(found) if found.leaf.is_none() => {
                return Err(format!("VF {vf} of {} has no devlink rate object", pf.name));
            }
            Some(_) => {}
        }
    }
    let max = group.tx_max.map_or(0, |rate| rate.bits() / MBIT);
    let share = group.tx_min.map_or(0, |rate| rate.bits().div_ceil(MBIT));
    if let Some(rate) = group.tx_max.filter(|_| max == 0) {
        return Err(format!(
            "its limit of {rate} is below 1 Mbit/s, the least that {} can set (0 would be no limit)",
            pf.name
        ));
    }
    if max != 0 && share > max {
        return Err(format!("its guarantee of {share} Mbit/s is more than its limit of {max} Mbit/s"));
    }
    Ok(Node { share: share * MBIT_BYTES, max: max * MBIT_BYTES, parent: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::abilities::Ability;
    use crate::device::plan::undo;
    use crate::device::vf::{Leaf, Vf};
    use proptest::prelude::*;

    /// Does a step as `net/devlink/rate.c` does.
    fn apply(pf: &mut Pf, step: &Step) -> Result<(), &'static str> {
        match &step.set {
            Set::NewNode { node } => match pf.nodes.insert(node.clone(), Node::default()) {
                Some(_) => Err("there already"),
                None => Ok(()),
            },
            Set::Node { node, share, max } => {
                if *max != 0 && share > max {
                    return Err("a share above the limit");
                }
                let node = pf.nodes.get_mut(node).ok_or("no such node")?;
                (node.share, node.max) = (*share, *max);
                Ok(())
            }
            Set::LeafParent { vf, node, .. } => {
                if node.as_ref().is_some_and(|node| !pf.nodes.contains_key(node)) {
                    return Err("no such parent");
                }
                let leaf = pf.vfs.get_mut(vf).and_then(|vf| vf.leaf.as_mut()).ok_or("no such leaf")?;
                leaf.parent = node.clone();
                Ok(())
            }
            Set::DeleteNode { node } => {
                let used = |vf: &Vf| vf.leaf.as_ref().is_some_and(|leaf| leaf.parent.as_ref() == Some(node));
                if pf.vfs.values().any(used) {
                    return Err("it has children");
                }
                pf.nodes.remove(node).map(drop).ok_or("no such node")
            }
            _ => Err("not of a group"),
        }
    }

    fn states(pf: &Pf, steps: &[Step]) -> Vec<Pf> {
        let mut states = vec![pf.clone()];
        for step in steps {
            let mut next = states[states.len() - 1].clone();
            apply(&mut next, step).unwrap_or_else(|why| panic!("{step}: {why}"));
            states.push(next);
        }
        states
    }

    fn able() -> Abilities {
        Abilities { node: Ability::Has, ..Abilities::default() }
    }

    fn name() -> impl Strategy<Value = String> {
        prop::sample::select(vec!["a", "b", "c"]).prop_map(Into::into)
    }

    prop_compose! {
        fn group()(
            name in name(), max in prop::option::of(1..9_000_000_u64), min in prop::option::of(1..9_000_000_u64),
            vfs in prop::collection::btree_set(0..5_u16, 0..4),
        ) -> Group {
            Group { name, tx_max: max.and_then(Rate::from_bits), tx_min: min.and_then(Rate::from_bits), vfs }
        }
    }

    prop_compose! {
        /// With nodes of ours and one of another program.
        fn pf()(
            rates in prop::collection::btree_map(name(), (0..5_u64, 0..5_u64), 0..3),
            parents in prop::collection::vec(any::<prop::sample::Index>(), 4),
        ) -> Pf {
            let node = |share, max| Node { share, max, parent: None };
            let mut nodes: BTreeMap<String, Node> = rates
                .into_iter()
                .map(|(name, (share, more))| (format!("{PREFIX}{name}"), node(share, share + more)))
                .collect();
            nodes.insert("theirs".into(), node(7, 0));
            let choices: Vec<Option<String>> = nodes.keys().cloned().map(Some).chain([None]).collect();
            let vf = |parent: &prop::sample::Index| {
                let leaf = Leaf { port: 9, parent: parent.get(&choices).clone(), ..Leaf::default() };
                Vf { leaf: Some(leaf), ..Vf::default() }
            };
            Pf { num_vfs: 4, vfs: (0..).zip(parents.iter().map(vf)).collect(), nodes, ..Pf::default() }
        }
    }

    proptest! {
        #[test]
        fn groups_are_created_and_foreign_groups_stay(wanted in prop::collection::vec(group(), 0..4), pf in pf()) {
            let planned = plan_groups(&wanted, &pf, &able());
            let last = states(&pf, &planned.steps).pop().expect("one at least");
            prop_assert_eq!(&last.nodes["theirs"], &pf.nodes["theirs"]);
            let mut again = plan_groups(&wanted, &last, &able());
            prop_assert_eq!(again.refusals, planned.refusals.clone());
            again.steps.clear();
            prop_assert_eq!(plan_groups(&wanted, &last, &able()).steps, again.steps);
            if planned.refusals.is_empty() {
                let ours = last.nodes.keys().filter(|name| name.starts_with(PREFIX)).count();
                prop_assert_eq!(ours, wanted.len());
                for group in &wanted {
                    let node = format!("{PREFIX}{}", group.name);
                    let inside = |(_, vf): &(&u16, &Vf)| {
                        vf.leaf.as_ref().and_then(|leaf| leaf.parent.as_ref()) == Some(&node)
                    };
                    let vfs: BTreeSet<u16> = last.vfs.iter().filter(inside).map(|(vf, _)| *vf).collect();
                    prop_assert_eq!(&vfs, &group.vfs);
                    let Node { share, max, .. } = last.nodes[&node];
                    prop_assert!(group.tx_max.map_or(max == 0, |rate| max > 0 && max * 8 <= rate.bits()));
                    prop_assert!(share * 8 >= group.tx_min.map_or(0, Rate::bits));
                }
            }
        }

        #[test]
        fn steps_of_groups_are_undone(
            wanted in prop::collection::vec(group(), 0..4), pf in pf(), cut: prop::sample::Index,
        ) {
            let planned = plan_groups(&wanted, &pf, &able());
            let done = &planned.steps[..cut.index(planned.steps.len() + 1)];
            let half_way = states(&pf, done).pop().expect("one at least");
            prop_assert_eq!(states(&half_way, &undo(done, &pf)).pop(), Some(pf));
        }
    }

    #[test]
    fn a_nic_without_groups_refuses_them() {
        let lacks =
            Abilities { node: Ability::Lacks("not in switchdev mode".into()), ..Abilities::default() };
        let group = Group { name: "tenant".into(), ..Group::default() };
        let pf = Pf { name: "eth0".into(), ..Pf::default() };
        let planned = plan_groups(&[group], &pf, &lacks);
        assert_eq!(planned.steps, []);
        assert!(planned.refusals[0].1.starts_with("eth0 cannot group VFs (not in switchdev mode)"));
    }
}
