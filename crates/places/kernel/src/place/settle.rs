//! Brings the kernel to the state of the record.

use super::devices::placed;
use super::netdev::netdev as netdev_of;
use super::record::Entry;
use super::shape::Senders;
use super::state::{ATTEMPTS, AlsoRead, KernelPlace, step_failed};
use crate::tc::{Device, Kernel, Network, Shaping, Step, Ways};
use std::collections::BTreeSet;
use tidegate_contract::Vnic;
use tidegate_place::PlaceError;

/// The netdevs that a change concerns, by their names in contracts.
#[derive(Clone, Debug)]
struct Scope {
    /// The netdev of the contract, and those of the vNICs in its `to`.
    netdevs: BTreeSet<String>,
    /// The senders with a share of the `rx.max` of one of these.
    senders: BTreeSet<String>,
}

impl KernelPlace {
    /// Brings the kernel to the state of the record: for the netdev of the contract `about`, at a cost that does not depend on
    /// the number of other netdevs, or for all netdevs. `owned` is set if `about` is new: foreign qdiscs outside of `owned`
    /// refuse it.
    pub(super) fn settle(&mut self, about: Option<&Vnic>, owned: Option<Ways>) -> Result<(), PlaceError> {
        self.settle_from(None, about, owned)
    }

    /// As [`Self::settle`]; `former` is the contract that the kernel may still have.
    pub(super) fn settle_from(
        &mut self,
        former: Option<&Vnic>,
        about: Option<&Vnic>,
        owned: Option<Ways>,
    ) -> Result<(), PlaceError> {
        let new = about.zip(owned);
        let owned = |entry: &Entry| match new {
            Some((vnic, owned)) if vnic.name == entry.vnic.name => owned,
            _ => entry.owned,
        };
        // The last contract removes all our objects.
        let scope = about.filter(|_| !self.record.is_empty()).map(|vnic| self.scope_of(vnic, former));
        let netdev = about.and_then(netdev_of).filter(|_| new.is_some());
        let expected = new.and_then(|(vnic, _)| self.coming.get(&vnic.name).copied());
        // A gone device of that name has left its leaf.
        let mut known: BTreeSet<u32> = about
            .iter()
            .flat_map(|v| [self.shaped.get(&v.name), self.coming.get(&v.name)])
            .flatten()
            .copied()
            .collect();
        let also_read =
            AlsoRead { rules: false, ..AlsoRead::of(self.record.iter().map(|entry| &entry.vnic)) };
        let mut failed = None;
        for _ in 0..ATTEMPTS {
            let network = self.look_in_scope(scope.as_ref(), &mut known, also_read)?;
            let is_seen = |entry: &&Entry| {
                let is_in_scope =
                    |scope: &Scope| netdev_of(&entry.vnic).is_some_and(|n| scope.netdevs.contains(n));
                network.scope.is_none() || scope.as_ref().is_none_or(is_in_scope)
            };
            let placed = placed(&self.record, &self.devices);
            let senders = Senders::of(placed.iter().map(AsRef::as_ref));
            let seen = self.record.iter().filter(is_seen);
            let mut wanted: Vec<Shaping> =
                seen.flat_map(|entry| self.devices.shapings(entry, owned(entry), &senders)).collect();
            let netdev = netdev.map(|netdev| self.devices.name(netdev).to_owned());
            let there = netdev.as_deref().and_then(|name| Some((name, network.by_name(name)?.0)));
            if let (Some(name), Some(index)) = (&netdev, expected)
                && there != Some((name, index))
            {
                return Err(PlaceError::Failed(format!(
                    "interface {name} went away while its contract came into force; start its VM, and apply again"
                )));
            }
            let plan = self.plan_here(&mut wanted, &network);
            // A missing netdev is shaped once it exists.
            let refusal = plan.refusals.iter().find(|r| there.is_some_and(|(name, _)| r.netdev == name));
            if let Some(refusal) = refusal {
                return Err(PlaceError::Failed(refusal.reason.clone()));
            }
            self.remember_ports(&network, &plan)?;
            // If all had to be read, the others still do not concern it.
            let is_in_scope = |step: &&Step| match step.device() {
                Device::Netdev { index, .. } => scope.is_none() || known.contains(&index),
                Device::Ifb => true,
            };
            let steps = plan.steps.iter().filter(is_in_scope).inspect(|step| tracing::debug!(%step, "doing"));
            match self.kernel()?.apply_all(steps) {
                Ok(()) => {
                    self.left_over &= scope.is_some();
                    if let (Some((vnic, _)), Some((_, index))) = (new, there) {
                        self.shaped.insert(vnic.name.clone(), index);
                    }
                    return Ok(());
                }
                Err(e) => failed = Some(e),
            }
        }
        Err(failed.map_or_else(|| PlaceError::Failed("nothing was tried".into()), step_failed))
    }

    /// The netdevs that a change of one contract concerns.
    fn scope_of(&self, about: &Vnic, former: Option<&Vnic>) -> Scope {
        let versions = || self.record.versions(&about.name).chain([about]).chain(former);
        let promised = versions().flat_map(|v| &v.to).flat_map(|to| self.record.versions(to));
        let concerned: Vec<&Vnic> = promised.chain(versions()).collect();
        let sends = |v: &&Vnic| v.to.iter().any(|to| concerned.iter().any(|c| c.name == *to));
        let senders = self.record.iter().map(|entry| &entry.vnic).filter(sends);
        let netdevs =
            |vnics: Vec<&Vnic>| vnics.into_iter().filter_map(netdev_of).map(str::to_owned).collect();
        Scope { netdevs: netdevs(concerned.clone()), senders: netdevs(senders.collect()) }
    }

    /// Observes these netdevs, under any present name. `known` are their interface indices.
    fn look_in_scope(
        &mut self,
        scope: Option<&Scope>,
        known: &mut BTreeSet<u32>,
        also_read: AlsoRead,
    ) -> Result<Network, PlaceError> {
        for _ in 0..ATTEMPTS {
            let named = |netdevs: &BTreeSet<String>| {
                let all = |netdev: &String| {
                    let names = self.devices.all(netdev).map(|(_, name)| name.to_owned());
                    names.chain([netdev.clone()]).collect::<Vec<_>>()
                };
                netdevs.iter().flat_map(all).collect::<BTreeSet<String>>()
            };
            let names = scope.map(|scope| (named(&scope.netdevs), named(&scope.senders)));
            let netdevs = scope.iter().flat_map(|scope| &scope.netdevs);
            known.extend(netdevs.flat_map(|netdev| self.devices.all(netdev)).map(|(index, _)| index));
            let network = self.look_with(also_read, |kernel: &mut Kernel| match &names {
                Some((names, senders)) => kernel.observe_scope(names, senders, known),
                None => kernel.observe(),
            })?;
            let renamed = self.follow(&network);
            let concerned = names.iter().flat_map(|(names, _)| names);
            known.extend(concerned.filter_map(|name| network.by_name(name)).map(|(index, _)| index));
            // Of a renamed one, only its existence was read.
            if !renamed || network.scope.is_none() {
                return Ok(network);
            }
        }
        Err(PlaceError::Failed("interfaces are renamed faster than the agent can read them".into()))
    }

    /// Updates the devices of all contracts; returns whether one was renamed.
    pub(super) fn follow(&mut self, network: &Network) -> bool {
        let recorded = self.record.iter().filter_map(|t| Some((netdev_of(&t.vnic)?, &t.devices[..])));
        self.devices.recall(recorded, network);
        // Also of contracts that this change removes: they may come back.
        let netdevs = self.record.with_former().filter_map(netdev_of).collect();
        let renamed = self.devices.look(&netdevs, network);
        for renamed in &renamed {
            tracing::warn!("{renamed}");
        }
        for entry in self.record.iter_mut() {
            let Some(netdev) = netdev_of(&entry.vnic) else { continue };
            entry.devices = self.devices.all(netdev).map(|(index, _)| index).collect();
        }
        !renamed.is_empty()
    }
}
