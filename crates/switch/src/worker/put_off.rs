//! Calls that change a port which another worker has borrowed: put off until it is back.

use super::{Call, Worker, WorkerHandle};
use crate::fdb::PortIndex;
use std::sync::mpsc::sync_channel;

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

impl WorkerHandle {
    /// As [`call`](Self::call), for what `call` changes of a port, as soon as nothing of the port is [lent](super::lending).
    ///
    /// # Panics
    /// As [`call`](Self::call).
    pub fn call_on<T: Send + 'static>(
        &self,
        port: PortIndex,
        call: impl FnOnce(&mut Worker) -> T + Send + 'static,
    ) -> T {
        let (reply, answer) = sync_channel(1);
        let call: Call = Box::new(move |worker| {
            let _ = reply.send(call(worker));
        });
        self.send(Box::new(move |worker| worker.when_back(port, call)));
        answer.recv().expect("the worker runs as long as the process")
    }
}
