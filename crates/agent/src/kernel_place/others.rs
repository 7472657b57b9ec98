//! What others made at the ends of a netdev: taken over, and given back when no contract limits that end any more.

use super::settle::placed;
use super::{Beside, KernelPlace, observe, shape, step_failed};
use crate::api::types::Adopt;
use crate::place::PlaceError;
use tidegate_contract::Vnic;
use tidegate_kernel::{Ends, Network, Shaping, Theirs, Ways, rehearse};

impl KernelPlace {
    /// What a contract takes over. Unless that is to be done anyway, all of it can be given back.
    pub(super) fn find_theirs(
        &mut self,
        vnic: &Vnic,
        held: Ways,
        adopt: Adopt,
    ) -> Result<Theirs, PlaceError> {
        let network = self.network(Beside::of([vnic].into_iter()))?;
        let placed = placed(&self.record, &self.devices);
        let all: Vec<&Vnic> = placed.iter().map(AsRef::as_ref).collect();
        let shaping = shape::shaping(&self.devices.placed(vnic), held, &all);
        let shaping = shaping.map_err(|why| PlaceError::Failed(why.join("; ")))?;
        let theirs = self.theirs(&shaping, &network).map_err(PlaceError::Failed)?;
        if !theirs.lost.is_empty() {
            let (name, why) = (&shaping.netdev, &theirs.lost);
            if adopt != Adopt::Anyway {
                return Err(PlaceError::Failed(format!("interface {name} cannot be taken over: {why}")));
            }
            tracing::warn!(
                vnic = vnic.name,
                "what others made on interface {name} is taken over, and is not put back when the contract goes: {why}"
            );
        }
        Ok(theirs)
    }

    /// What others made where a shaping has no hold yet: what can be made again, and why the rest cannot.
    pub(super) fn theirs(&mut self, shaping: &Shaping, network: &Network) -> Result<Theirs, String> {
        let name = &shaping.netdev;
        let (index, link) = network.by_name(name).ok_or_else(|| format!("interface {name} is not there"))?;
        let new = shaping.uses(link.kind.as_deref()).unwrap_or_default();
        let new = new.without(shaping.held.ends(link.kind.as_deref()).unwrap_or_default());
        let kernel = self.kernel().map_err(|e| e.to_string())?;
        let mut theirs = Theirs { index, ..Theirs::default() };
        for end in new.each() {
            let found = kernel.theirs(index, end).and_then(|found| rehearse(&found, name).map(|()| found));
            match found {
                Ok(found) => theirs.add(&found, end),
                Err(why) => theirs.lose(end, &why),
            }
        }
        Ok(theirs)
    }

    /// Makes again what others had at the ends of a netdev that no contract limits any more; which ends those are.
    pub(super) fn give_back(&mut self, theirs: &Theirs) -> Result<Ends, PlaceError> {
        if theirs.is_empty() {
            return Ok(Ends::default());
        }
        let network = self.network(Beside::default())?;
        // What was on a netdev that is gone went with it.
        let Some(link) = network.links.get(&theirs.index) else { return Ok(Ends::BOTH) };
        let is_here = |vnic: &Vnic| {
            observe::netdev(vnic)
                .is_some_and(|name| name == link.name || self.devices.is_of(name, theirs.index))
        };
        let here = self.record.iter().filter(|told| is_here(&told.vnic));
        let limited = here.map(|told| shape::limited(&told.vnic)).fold(Ways::NONE, Ways::or);
        let free = Ends::BOTH.without(limited.ends(link.kind.as_deref()).unwrap_or_default());
        let kernel = self.kernel()?;
        for step in theirs.again(link, free) {
            tracing::info!(%step, "giving back");
            kernel.apply(&step).map_err(step_failed)?;
        }
        Ok(free)
    }

    /// What was given back is not remembered any more.
    pub(super) fn forget_given(&mut self, name: &str, given: Ends) {
        if let Some(told) = self.record.get_mut(name) {
            told.theirs.remove(given);
        }
    }
}
