//! Calls that change a port whose half another worker has: put off until it is back.

use super::{Call, Worker, WorkerHandle};
use crate::fdb::PortIndex;
use std::sync::mpsc::sync_channel;

impl Worker {
    /// Runs another thread's call for an own port as soon as nothing of the port is lent.
    pub fn call_when_returned(&mut self, index: PortIndex, call: Call) {
        if self.take_back(index) {
            call(self);
        } else {
            self.put_off.push((index, call));
        }
    }

    /// Retries put-off calls. `true` if there were any: the worker must not sleep.
    #[cold]
    pub(super) fn retry_put_off_calls(&mut self) -> bool {
        for (index, call) in std::mem::take(&mut self.put_off) {
            self.call_when_returned(index, call);
        }
        true
    }
}

impl WorkerHandle {
    /// Like [`call`](Self::call), for a change of a port: runs as soon as nothing of the port is
    /// [lent](super::lending).
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
        self.send(Box::new(move |worker| worker.call_when_returned(port, call)));
        answer.recv().expect("the worker runs as long as the process")
    }
}
