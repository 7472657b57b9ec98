//! The conversation with NICs: begun when there is something to say, and anew when it broke off.

use crate::counters::{Counted, Meter};
use crate::device::{Nic, NicError, Pf, Step, undo};
use std::collections::BTreeMap;
use tidegate_place::PlaceError;

/// One conversation, and the counters that it has read: a new conversation counts from its own first reading.
#[derive(Debug, Default)]
pub struct Conversation(Option<(Nic, Meter)>);

impl Conversation {
    fn open(&mut self) -> Result<(&mut Nic, &mut Meter), NicError> {
        let (nic, meter) = match &mut self.0 {
            Some(open) => open,
            none => none.insert((Nic::open()?, Meter::default())),
        };
        Ok((nic, meter))
    }

    /// Asks the NICs' drivers one question; on an error the next question opens a new conversation.
    pub fn ask<T>(
        &mut self,
        question: impl FnOnce(&mut Nic) -> Result<T, NicError>,
    ) -> Result<T, PlaceError> {
        let answer = self.open().and_then(|(nic, _)| question(nic));
        answer.map_err(|error| self.broken_off(&error))
    }

    /// Totals of a PF's VFs, by VF.
    pub fn counters(&mut self, pf: &Pf) -> Result<BTreeMap<u16, Counted>, PlaceError> {
        let answer = self.open().and_then(|(nic, meter)| meter.read(nic, pf));
        answer.map_err(|error| self.broken_off(&error))
    }

    fn broken_off(&mut self, error: &NicError) -> PlaceError {
        self.0 = None;
        PlaceError::Unreachable(format!("cannot talk to NICs' drivers: {error}"))
    }

    /// Does all steps, and keeps `pf` up to date. If a step of the function `about`, or of a group, fails, the steps that
    /// were done are undone; a failed step of another function is tried again soon.
    pub fn apply(&mut self, steps: &[Step], pf: &mut Pf, about: Option<u16>) -> Result<(), PlaceError> {
        let (nic, _) = self.open().map_err(|e| PlaceError::Unreachable(e.to_string()))?;
        let before = pf.clone();
        let mut done: Vec<Step> = Vec::new();
        for step in steps {
            tracing::debug!(%step, "doing");
            match nic.apply(step) {
                Ok(()) => {
                    step.done(pf);
                    done.push(step.clone());
                }
                Err(error) if step.vf() == about || step.vf().is_none() => {
                    for back in undo(&done, &before) {
                        match nic.apply(&back) {
                            Ok(()) => back.done(pf),
                            Err(error) => tracing::warn!(%error, "cannot undo this step; trying again soon"),
                        }
                    }
                    return Err(PlaceError::Failed(error.to_string()));
                }
                Err(error) => tracing::warn!(%error, "a step for another contract failed; trying again soon"),
            }
        }
        Ok(())
    }
}
