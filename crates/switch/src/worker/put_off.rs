//! Calls that change a port which another worker has borrowed: put off until it is back.

use super::{Call, Worker};
use crate::fdb::PortIndex;

impl Worker {
    /// Does what another thread asks of an own port, as soon as nothing of the port is lent.
    pub fn when_back(&mut self, index: PortIndex, call: Call) {
        if self.take_back(index) {
            call(self);
        } else {
            self.put_off.push((index, call));
        }
    }

    /// Tries again what was put off. `true` where there was anything: it is not left to a sleep.
    #[cold]
    pub(super) fn put_off_calls(&mut self) -> bool {
        for (index, call) in std::mem::take(&mut self.put_off) {
            self.when_back(index, call);
        }
        true
    }
}
