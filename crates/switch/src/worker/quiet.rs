//! Ports that have nothing to send cost nothing: they are not polled, and their drivers are asked
//! for kicks.
//!
//! ```text
//!              nothing for IDLE_LOOPS loops, kicks asked for
//!  polled ports ─────────────────────────────────────────────▶ quiet ports
//!        ▲                                                          │
//!        └──────────── a kick, seen asleep or every LOOK ns ◀───────┘
//! ```
//!
//! Real-time ports, taps and rings without a kick are always polled.

use super::{Worker, clock};
use crate::fdb::PortIndex;
use crate::port::{NEVER, Port};

/// Loops without a frame after which a port is quiet: longer than the pauses of a busy sender.
const IDLE_LOOPS: u16 = 1024;
/// How often a busy worker looks for kicks, ns. That is a system call, of some 300 ns.
const LOOK: u64 = 50_000;

impl Worker {
    /// Notes whether a polled port had anything to send; `true` where it became quiet by that.
    pub(super) fn note_idle(&self, port: &mut Port, active: bool) -> bool {
        if active {
            port.idle_loops = 0;
            return false;
        }
        port.idle_loops += 1;
        if port.idle_loops < IDLE_LOOPS {
            return false;
        }
        port.idle_loops = 0;
        let realtime = port.contract.deadline.is_some();
        let busy = realtime || port.throttled_since != NEVER || port.pauses > 0;
        let tx = &mut port.link.tx;
        if busy || !tx.can_be_quiet() {
            return false;
        }
        if tx.request_kicks(false) {
            tx.suppress_kicks();
            return false;
        }
        port.quiet = true;
        true
    }

    /// Polls a quiet port again. What it sent arrived at `since` or later.
    pub(super) fn wake_port(&mut self, index: PortIndex, since: u64) {
        let Some(port) = &mut self.ports[index as usize] else { return };
        if !std::mem::take(&mut port.quiet) {
            return;
        }
        port.idle_loops = 0;
        port.link.tx.suppress_kicks();
        port.link.tx.woke(since);
        self.polled.push(index);
    }

    /// While there is work: looks for kicks and for taps' frames, now and then.
    pub(super) fn look_for_kicks(&mut self) {
        let quiet = self.polled.len() < self.owned.len();
        if quiet && self.now.saturating_sub(self.looked) >= LOOK {
            let since = std::mem::replace(&mut self.looked, clock());
            self.wait(Some(0), since);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::testing;

    #[test]
    fn only_a_port_that_kicks_becomes_quiet() {
        let (mut worker, _handle) = testing::worker();
        testing::add_port(&mut worker, 0);
        let mut port = worker.ports[0].take().unwrap();
        let quiet = |worker: &Worker, port: &mut Port, active| {
            (0..IDLE_LOOPS).any(|_| worker.note_idle(port, active))
        };
        assert!(!quiet(&worker, &mut port, true));
        port.pauses = 1;
        assert!(!quiet(&worker, &mut port, false));
        port.pauses = 0;
        assert!(quiet(&worker, &mut port, false) && port.quiet);
        worker.polled.clear();
        worker.ports[0] = Some(port);
        worker.wake_port(0, 7);
        worker.wake_port(0, 7);
        assert_eq!(worker.polled, [0]);
        assert!(!worker.ports[0].as_ref().unwrap().quiet);
    }
}
