//! Brings one contract into force, or ends it.

use super::record::Entry;
use super::shape;
use super::state::KernelPlace;
use crate::foreign::TakenOver;
use crate::tc::Ends;
use tidegate_contract::Vnic;
use tidegate_place::{Adopt, PlaceError};

impl KernelPlace {
    /// Records a contract, and brings the kernel to the state of the record. Foreign objects are taken over as `adopt` allows. On
    /// an error the record is as before, and changes in the kernel are undone if possible.
    pub(super) fn enforce(&mut self, vnic: &Vnic, adopt: Adopt) -> Result<(), PlaceError> {
        let known = self.record.known(&vnic.attach);
        let (mut owned, mut foreign, port, devices) = known.map_or_else(Default::default, |entry| {
            (entry.owned, entry.taken_over, entry.port, entry.devices)
        });
        if adopt != Adopt::No {
            let found = self.find_foreign(vnic, owned, adopt)?;
            if foreign.index != found.index {
                foreign = TakenOver::default();
            }
            foreign.add(&found, Ends::BOTH);
            owned = owned.or(shape::limited(vnic));
        }
        let entry = Entry {
            vnic: vnic.clone(),
            owned: shape::limited(vnic),
            taken_over: foreign.clone(),
            port: port.clone(),
            devices,
        };
        let before = self.record.set(&vnic.name, Some(entry));
        let former = before.as_ref().map(|entry| &entry.vnic);
        let result = self
            .note(&vnic.name)
            .and_then(|()| self.settle_from(former, Some(vnic), Some(owned)))
            .and_then(|()| self.restore_foreign(&foreign))
            .map(|restored| self.forget_restored(&vnic.name, restored))
            .and_then(|()| self.restore_port(port.as_ref()));
        if result.is_err() {
            // Its port may have been saved just now.
            let port = self.record.set(&vnic.name, before).and_then(|entry| entry.port);
            let undone = self
                .settle(Some(vnic), None)
                .and_then(|()| self.restore_foreign(&foreign).map(drop))
                .and_then(|()| self.restore_port(port.as_ref()));
            if let Err(error) = undone {
                tracing::warn!(vnic = vnic.name, %error, "cannot undo the failed change; trying again soon");
            }
        }
        result
    }

    /// Removes a contract, and restores the foreign objects. The contract stays on record until all of its objects are gone,
    /// and on disk until the removal is accepted.
    pub(super) fn release(&mut self, vnic: &Vnic) -> Result<(), PlaceError> {
        let known = self.record.known(&vnic.attach);
        let (foreign, port) = known.map_or_else(Default::default, |entry| (entry.taken_over, entry.port));
        let before = self.record.set(&vnic.name, None);
        let result = self
            .settle(Some(vnic), None)
            .and_then(|()| self.restore_foreign(&foreign).map(drop))
            .and_then(|()| self.restore_port(port.as_ref()));
        if result.is_err() {
            self.record.set(&vnic.name, before);
            if let Err(error) = self.settle(Some(vnic), None) {
                tracing::warn!(vnic = vnic.name, %error, "cannot restore its limits; trying again soon");
            }
        }
        result
    }

    pub(super) fn note(&mut self, name: &str) -> Result<(), PlaceError> {
        let failed = |e| {
            PlaceError::Failed(format!("nothing was changed, because the change cannot be recorded: {e}"))
        };
        self.record.note(name).map_err(failed)
    }
}
