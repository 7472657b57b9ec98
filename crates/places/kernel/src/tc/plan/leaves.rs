//! The leaves of a root qdisc: one class per netdev of origin, and the classifier that leads to them. The
//! IFB has only leaves; at a netdev's egress they are parts of its one class.
//!
//! The map of the classifier tells which netdev class `7464:m` and its queue are for.

use super::filters;
use super::leaf::{Leaf, set_leaf};
use crate::handle::Handle;
use crate::tc::network::{Class, Netdev, Network, Qdisc};
use crate::tc::owner;
use crate::tc::step::{Device, Step};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

/// The classes of a device, existing and future ones.
pub struct Leaves<'a> {
    device: Device,
    /// The observed device; `None` if there is none, or all on it goes.
    link: Option<&'a Netdev>,
    /// Its classes and their queues.
    classes: BTreeMap<Handle, &'a Class>,
    queues: BTreeMap<Handle, &'a Qdisc>,
    /// Possible minors of leaves.
    minors_for: RangeInclusive<u16>,
    /// Minor by interface index.
    minors: BTreeMap<u32, u16>,
    /// Minors in use.
    used: BTreeSet<u16>,
    /// Netdevs with a wrong entry in the map.
    misplaced: Vec<u32>,
}

impl<'a> Leaves<'a> {
    /// Returns the leaves of our IFB; those of netdevs for which `is_kept` is false go.
    pub fn of_ifb(network: &'a Network, is_kept: impl Fn(u32) -> bool) -> Self {
        let link = network.ifb().map(|(_, link)| link);
        Self::read(Device::Ifb, link, owner::FIRST_LEAF..=owner::LAST_LEAF, is_kept, |from| {
            network.is_about(from)
        })
    }

    /// Returns the leaves of a netdev's egress; those of senders for which `is_kept` is false go.
    pub fn of_egress(device: Device, link: Option<&'a Netdev>, is_kept: impl Fn(u32) -> bool) -> Self {
        Self::read(device, link, owner::FIRST_SHARE..=owner::LAST_LEAF, is_kept, |_| true)
    }

    fn read(
        device: Device,
        link: Option<&'a Netdev>,
        minors_for: RangeInclusive<u16>,
        is_kept: impl Fn(u32) -> bool,
        is_about: impl Fn(u32) -> bool,
    ) -> Self {
        let mut leaves = Self {
            device,
            link,
            classes: link.iter().flat_map(|l| &l.classes).map(|c| (c.id, c)).collect(),
            queues: link.iter().flat_map(|l| &l.qdiscs).map(|q| (q.parent, q)).collect(),
            minors_for,
            minors: BTreeMap::new(),
            used: BTreeSet::new(),
            misplaced: vec![],
        };
        let classified = || link.into_iter().flat_map(Netdev::classified);
        let mut entries: Vec<_> =
            classified().filter(|(from, to)| is_kept(*from) && leaves.may_be_leaf(*to)).collect();
        entries.sort_by_key(|(from, _)| is_about(*from));
        for (from, to) in entries {
            // Of two in one class, the first keeps it, or one outside this plan.
            if leaves.used.insert(to.minor()) {
                leaves.minors.insert(from, to.minor());
            }
        }
        let right = |from: u32, to: Handle| leaves.minor(from) == Some(to.minor());
        let misplaced = classified().filter(|(from, to)| is_about(*from) && !right(*from, *to));
        leaves.misplaced = misplaced.map(|(from, _)| from).collect();
        leaves
    }

    /// Returns the leaf of a netdev.
    pub fn minor(&self, index: u32) -> Option<u16> {
        self.minors.get(&index).copied()
    }

    /// Starts from an empty device: its root qdisc is made anew.
    pub fn forget(&mut self) {
        self.link = None;
        self.classes.clear();
        self.queues.clear();
        self.minors.clear();
        self.used.clear();
        self.misplaced.clear();
    }

    /// Deletes the filters, map entries and classes that belong to no kept netdev.
    pub fn drop_others(&self, steps: &mut Vec<Step>) {
        let Some(link) = self.link.filter(|l| l.root_is_ours()) else { return };
        let classifier = link.classifier();
        filters::delete(steps, &self.device, link.filters_at(owner::ROOT_QDISC), |f| {
            !classifier.is_some_and(|classifier| std::ptr::eq(classifier, f))
        });
        let device = || self.device.clone();
        steps.extend(self.misplaced.iter().map(|from| Step::Unclassify { device: device(), from: *from }));
        let unused =
            link.classes.iter().filter(|c| self.may_be_leaf(c.id) && !self.used.contains(&c.id.minor()));
        steps.extend(unused.map(|class| Step::DeleteClass { device: device(), id: class.id }));
    }

    /// Sets the classifier, before the first leaf.
    pub fn set_classifier(&self, steps: &mut Vec<Step>) {
        if self.link.is_none_or(|link| link.classifier().is_none()) {
            steps.push(Step::AddClassifier { device: self.device.clone() });
        }
    }

    /// Sets the class, queue and map entry of one netdev.
    pub fn set(
        &mut self,
        steps: &mut Vec<Step>,
        index: u32,
        from: &Device,
        leaf: &Leaf,
    ) -> Result<(), String> {
        let known = self.minor(index);
        let free = || self.minors_for.clone().find(|m| !self.used.contains(m));
        let minor = known.or_else(free).ok_or_else(|| {
            format!("{} has room for {} senders", self.device, self.minors_for.clone().count())
        })?;
        self.minors.insert(index, minor);
        self.used.insert(minor);
        let id = Handle::new(owner::MAJOR, minor);
        let class = self.classes.get(&id).filter(|_| known.is_some());
        let queue = |parent: Handle| self.queues.get(&parent).copied();
        set_leaf(steps, &self.device, class.copied(), queue, id, leaf);
        if known.is_none() {
            steps.push(Step::Classify { device: self.device.clone(), from: from.clone(), to: id });
        }
        Ok(())
    }

    /// Whether a class can be a leaf.
    fn may_be_leaf(&self, class: Handle) -> bool {
        class.major() == owner::MAJOR && self.minors_for.contains(&class.minor())
    }
}
