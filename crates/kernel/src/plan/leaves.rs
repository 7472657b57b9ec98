//! The leaves of the IFB: one class per netdev, with the filter that leads to it.
//!
//! Class `7464:m`, its queue and the filter of preference `m` belong together. Which netdev they are for is what the filter says.

use super::{filters, set_class};
use crate::handle::Handle;
use crate::limit::Limit;
use crate::network::{ANY_PROTOCOL, Filter, Link, Rule};
use crate::owner;
use crate::step::{Device, Step};
use std::collections::{BTreeMap, BTreeSet};

/// What is there, and what will be.
pub struct Leaves<'a> {
    /// The IFB as observed; `None` where there is none, or all that is on it goes.
    link: Option<&'a Link>,
    /// Minor by interface index.
    minors: BTreeMap<u32, u16>,
    /// Minors in use.
    used: BTreeSet<u16>,
}

impl<'a> Leaves<'a> {
    /// Those of an IFB.
    pub fn read(link: Option<&'a Link>) -> Self {
        let mut leaves = Self { link, minors: BTreeMap::new(), used: BTreeSet::new() };
        for filter in link.iter().flat_map(|l| l.filters_at(owner::ROOT_QDISC)) {
            if let Some((from, minor)) = leads(filter)
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

    /// All that was on the IFB is gone.
    pub fn forget(&mut self) {
        *self = Self { link: None, minors: BTreeMap::new(), used: BTreeSet::new() };
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
        filters::delete(steps, &Device::Ifb, link.filters_at(owner::ROOT_QDISC), |f| {
            !kept.iter().any(|k| std::ptr::eq(*k, f))
        });
        for class in link.classes.iter().filter(|c| !self.used.contains(&c.id.minor())) {
            steps.push(Step::DeleteClass { device: Device::Ifb, id: class.id });
        }
    }

    /// Class, queue and filter of one netdev.
    pub fn set(
        &mut self,
        steps: &mut Vec<Step>,
        index: u32,
        from: &Device,
        limit: Limit,
    ) -> Result<(), String> {
        let known = self.minor(index);
        let free = || (owner::FIRST_LEAF..=u16::MAX).find(|m| !self.used.contains(m));
        let minor = known.or_else(free).ok_or("one IFB shapes at most 65535 interfaces")?;
        self.minors.insert(index, minor);
        self.used.insert(minor);
        let id = Handle::new(owner::MAJOR, minor);
        set_class(steps, &Device::Ifb, self.link.filter(|_| known.is_some()), id, limit);
        if known.is_none() {
            steps.push(Step::Classify { from: from.clone(), to: id });
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
