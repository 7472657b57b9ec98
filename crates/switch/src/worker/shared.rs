//! Takes shared addresses for own ports.
//!
//! ```text
//!  frame ─▶ decide ─▶ Refused::Take ─▶ Holder: free, or announced and not too often? ─▶ FDB, event ─▶ decided on again
//! ```

use super::Worker;
use super::events::Event;
use crate::frame::policy::shared::Taking;
use crate::holder::TakeOutcome;
use crate::port::Port;

impl Worker {
    /// Takes the shared addresses that a frame of the port uses; `false` if the port does not have all of
    /// them then.
    #[inline(never)]
    pub(super) fn take_shared(&mut self, port: &Port, taking: Taking) -> bool {
        for (number, announces) in taking.iter() {
            let Some((address, holder)) = port.contract.policy.shared(number) else { return false };
            let taken = holder.take(port.index, announces, self.now);
            if let Some(mac) = address.mac() {
                holder.lead(&self.fdb, port.segment, mac);
            }
            match taken {
                TakeOutcome::Refused => return false,
                TakeOutcome::Own => {}
                TakeOutcome::Free => {
                    self.note(Event::AddressTaken { port: port.index, from: None, address: *address })
                }
                TakeOutcome::From(from) => {
                    self.note(Event::AddressTaken { port: port.index, from: Some(from), address: *address });
                }
            }
        }
        true
    }
}
