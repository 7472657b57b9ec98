//! A bridge port's VLANs before a contract's segment: saved before a change, and restored.

use super::netdev::netdev as netdev_of;
use super::record::Entry;
use super::shape;
use super::state::{ATTEMPTS, AlsoRead, KernelPlace, step_failed};
use crate::foreign::BridgePort as Port;
use crate::tc::{Network, Plan};
use tidegate_place::PlaceError;

impl KernelPlace {
    /// Before the first step of a plan: saves the VLANs of ports that it puts into segments, if not yet
    /// saved.
    pub(super) fn remember_ports(&mut self, network: &Network, plan: &Plan) -> Result<(), PlaceError> {
        let mut new = Vec::new();
        for entry in self.record.iter_mut().filter(|entry| shape::segment(&entry.vnic).is_some()) {
            let name = netdev_of(&entry.vnic).map(|netdev| self.devices.name(netdev));
            let there = name.and_then(|name| network.by_name(name));
            let Some((index, link)) = there.filter(|(index, _)| network.is_about(*index)) else { continue };
            let refused = plan.refusals.iter().any(|r| r.netdev == link.name);
            // On another bridge, or another netdev of the name, it has that one's VLANs.
            if !refused && !entry.port.as_ref().is_some_and(|port| port.is(index, link)) {
                entry.port = Port::now(index, link);
                new.push(entry.vnic.name.clone());
            }
        }
        new.iter().try_for_each(|name| self.note(name))
    }

    /// Restores and forgets the VLANs of a port that no contract puts into a segment any more.
    pub(super) fn restore_port(&mut self, port: Option<&Port>) -> Result<(), PlaceError> {
        let Some(port) = port else { return Ok(()) };
        let keeps =
            |entry: &Entry| shape::segment(&entry.vnic).is_some() && entry.port.as_ref() == Some(port);
        if self.record.iter().any(keeps) {
            return Ok(());
        }
        let mut failed = None;
        for _ in 0..ATTEMPTS {
            let network = self.network(AlsoRead { vlans: true, ..AlsoRead::default() })?;
            let link = network.netdevs.get(&port.index);
            if link.is_some_and(|link| self.in_segment(port.index, &link.name)) {
                return Ok(());
            }
            let steps = link.map(|link| port.restore(link)).unwrap_or_default();
            let kernel = self.kernel()?;
            let done = steps.iter().try_for_each(|step| {
                tracing::info!(%step, "giving back");
                kernel.apply(step)
            });
            match done {
                Ok(()) => {
                    for entry in self.record.iter_mut().filter(|entry| entry.port.as_ref() == Some(port)) {
                        entry.port = None;
                    }
                    return Ok(());
                }
                // It may have gone, or have left its bridge, meanwhile.
                Err(e) => failed = Some(e),
            }
        }
        Err(failed.map_or_else(|| PlaceError::Failed("nothing was tried".into()), step_failed))
    }

    /// Whether a contract puts the port of this device into a segment.
    fn in_segment(&self, index: u32, name: &str) -> bool {
        let is_here = |entry: &&Entry| {
            netdev_of(&entry.vnic).is_some_and(|netdev| netdev == name || self.devices.is_of(netdev, index))
        };
        self.record.iter().filter(is_here).any(|entry| shape::segment(&entry.vnic).is_some())
    }
}
