//! Foreign objects at the ends of a netdev: taken over, and restored when no contract limits that end any more.

use super::devices::placed;
use super::netdev::netdev;
use super::shape;
use super::state::{AlsoRead, KernelPlace, step_failed};
use crate::foreign::{TakenOver, rehearse};
use crate::tc::{Ends, Network, Shaping, Ways};
use tidegate_contract::Vnic;
use tidegate_place::Adopt;
use tidegate_place::PlaceError;

impl KernelPlace {
    /// The foreign objects that a contract takes over. Unless `adopt` is [`Adopt::Anyway`], all of them can be restored.
    pub(super) fn find_foreign(
        &mut self,
        vnic: &Vnic,
        owned: Ways,
        adopt: Adopt,
    ) -> Result<TakenOver, PlaceError> {
        let network = self.network(AlsoRead::of([vnic].into_iter()))?;
        let placed = placed(&self.record, &self.devices);
        let all: Vec<&Vnic> = placed.iter().map(AsRef::as_ref).collect();
        let shaping = shape::shaping(&self.devices.placed(vnic), owned, &all);
        let shaping = shaping.map_err(|why| PlaceError::Failed(why.join("; ")))?;
        let foreign = self.foreign_at(&shaping, &network).map_err(PlaceError::Failed)?;
        if !foreign.lost.is_empty() {
            let (name, why) = (&shaping.netdev, &foreign.lost);
            if adopt != Adopt::Anyway {
                return Err(PlaceError::Failed(format!("interface {name} cannot be taken over: {why}")));
            }
            tracing::warn!(
                vnic = vnic.name,
                "the objects that another program made on interface {name} are taken over, and are not restored when \
                 the contract ends: {why}"
            );
        }
        Ok(foreign)
    }

    /// The foreign objects at the ends that a shaping does not own yet, with the reasons why some cannot be restored.
    pub(super) fn foreign_at(&mut self, shaping: &Shaping, network: &Network) -> Result<TakenOver, String> {
        let name = &shaping.netdev;
        let (index, link) =
            network.by_name(name).ok_or_else(|| format!("interface {name} does not exist"))?;
        let new = shaping.uses(link.kind.as_deref()).unwrap_or_default();
        let new = new.without(shaping.owned.ends(link.kind.as_deref()).unwrap_or_default());
        let kernel = self.kernel().map_err(|e| e.to_string())?;
        let mut foreign = TakenOver { index, ..TakenOver::default() };
        for end in new.each() {
            let found = kernel.foreign(index, end).and_then(|found| rehearse(&found, name).map(|()| found));
            match found {
                Ok(found) => foreign.add(&found, end),
                Err(why) => foreign.mark_unrestorable(end, &why),
            }
        }
        Ok(foreign)
    }

    /// Restores the foreign objects at the ends of a netdev that no contract limits any more; returns these ends.
    pub(super) fn restore_foreign(&mut self, foreign: &TakenOver) -> Result<Ends, PlaceError> {
        if foreign.is_empty() {
            return Ok(Ends::default());
        }
        let network = self.network(AlsoRead::default())?;
        // Objects on a gone netdev went with it.
        let Some(link) = network.netdevs.get(&foreign.index) else { return Ok(Ends::BOTH) };
        let is_here = |vnic: &Vnic| {
            netdev(vnic).is_some_and(|name| name == link.name || self.devices.is_of(name, foreign.index))
        };
        let here = self.record.iter().filter(|entry| is_here(&entry.vnic));
        let limited = here.map(|entry| shape::limited(&entry.vnic)).fold(Ways::NONE, Ways::or);
        let free = Ends::BOTH.without(limited.ends(link.kind.as_deref()).unwrap_or_default());
        let kernel = self.kernel()?;
        for step in foreign.restore(link, free) {
            tracing::info!(%step, "giving back");
            kernel.apply(&step).map_err(step_failed)?;
        }
        Ok(free)
    }

    /// Removes restored objects from the record.
    pub(super) fn forget_restored(&mut self, name: &str, restored: Ends) {
        if let Some(entry) = self.record.get_mut(name) {
            entry.taken_over.remove(restored);
        }
    }
}
