//! The leaves of a root qdisc: one class per netdev that frames come from, with the filter that leads to it. On the IFB
//! they are all there is; at a netdev's egress they are parts of its one class.
//!
//! Class `7464:m`, its queue and the filter of preference `m` belong together. Which netdev they are for is what the filter says.

use super::{Leaf, filters, set_leaf};
use crate::handle::Handle;
use crate::network::{ANY_PROTOCOL, Filter, Link, Rule};
use crate::owner;
use crate::step::{Device, Step};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

/// What is there, and what will be.
pub struct Leaves<'a> {
    device: Device,
    /// The device as observed; `None` where there is none, or all that is on it goes.
    link: Option<&'a Link>,
    /// Minors that leaves may have.
    minors_for: RangeInclusive<u16>,
    /// Minor by interface index.
    minors: BTreeMap<u32, u16>,
    /// Minors in use.
    used: BTreeSet<u16>,
}

impl<'a> Leaves<'a> {
    /// Those of the IFB.
    pub fn of_ifb(link: Option<&'a Link>) -> Self {
        Self::read(Device::Ifb, link, owner::FIRST_LEAF..=u16::MAX)
    }

    /// Those of a netdev's egress.
    pub fn of_egress(device: Device, link: Option<&'a Link>) -> Self {
        Self::read(device, link, owner::FIRST_SHARE..=owner::REST_CLASS.minor() - 1)
    }

    fn read(device: Device, link: Option<&'a Link>, minors_for: RangeInclusive<u16>) -> Self {
        let (minors, used) = Default::default();
        let mut leaves = Self { device, link, minors_for, minors, used };
        for filter in link.iter().flat_map(|l| l.filters_at(owner::ROOT_QDISC)) {
            if let Some((from, minor)) = leads(filter)
                && leaves.minors_for.contains(&minor)
                && !leaves.minors.contains_key(&from)
            {
                leaves.minors.insert(from, minor);
                leaves.used.insert(minor);
            }
        }
        leaves
    }

    /// The leaf of a netdev.
    pub fn minor(&self, index: u32) -> Option<u16> {
        self.minors.get(&index).copied()
    }

    /// All that was on the device is gone.
    pub fn forget(&mut self) {
        self.link = None;
        self.minors.clear();
        self.used.clear();
    }

    /// Takes away what belongs to no netdev that is `kept`.
    pub fn drop_others(&mut self, steps: &mut Vec<Step>, kept: impl Fn(u32) -> bool) {
        let Some(link) = self.link.filter(|l| l.root_is_ours()) else { return };
        self.minors.retain(|index, _| kept(*index));
        self.used = self.minors.values().copied().collect();
        let leading = |f: &&Filter| leads(f).is_some_and(|(from, m)| self.minors.get(&from) == Some(&m));
        let mut kept: Vec<&Filter> = Vec::new();
        for filter in link.filters_at(owner::ROOT_QDISC).filter(leading) {
            if !kept.iter().any(|k| k.preference == filter.preference) {
                kept.push(filter);
            }
        }
        filters::delete(steps, &self.device, link.filters_at(owner::ROOT_QDISC), |f| {
            !kept.iter().any(|k| std::ptr::eq(*k, f))
        });
        let is_leaf = |minor: &u16| self.minors_for.contains(minor) && !self.used.contains(minor);
        for class in link.classes.iter().filter(|c| is_leaf(&c.id.minor())) {
            steps.push(Step::DeleteClass { device: self.device.clone(), id: class.id });
        }
    }

    /// Class, queue and filter of one netdev.
    pub fn set(
        &mut self,
        steps: &mut Vec<Step>,
        index: u32,
        from: &Device,
        leaf: Leaf,
    ) -> Result<(), String> {
        let known = self.minor(index);
        let free = || self.minors_for.clone().find(|m| !self.used.contains(m));
        let minor = known.or_else(free).ok_or_else(|| {
            format!("{} has room for {} senders", self.device, self.minors_for.clone().count())
        })?;
        self.minors.insert(index, minor);
        self.used.insert(minor);
        let id = Handle::new(owner::MAJOR, minor);
        set_leaf(steps, &self.device, self.link.filter(|_| known.is_some()), id, leaf);
        if known.is_none() {
            steps.push(Step::Classify { on: self.device.clone(), from: from.clone(), to: id });
        }
        Ok(())
    }
}

/// From which netdev to which leaf, where a filter is as we make them.
fn leads(filter: &Filter) -> Option<(u32, u16)> {
    match filter.rule {
        Rule::Classify { from: Some(from), to }
            if to.major() == owner::MAJOR
                && to.minor() == filter.preference
                && filter.protocol == ANY_PROTOCOL =>
        {
            Some((from, to.minor()))
        }
        _ => None,
    }
}
