//! From a tap to an egress: what was read waits in the tap's pool, since a tap has no ring to wait in.
//!
//! ```text
//!  tap ─▶ read ─▶ inspect ─▶ waiting ─▶ tokens? ─▶ egress
//!            │                  ▲          │
//!            └─ pool full:      └── no ────┘
//!               dropped, counted
//! ```

use super::ingress::{BATCH, Sent};
use super::{Worker, budget};
use crate::port::tap::Read;
use crate::port::vhost::Pending;
use crate::port::{Link, Port};
use crate::stats::DropReason;

impl Worker {
    /// Takes what a tap holds, while `budget` lasts; `true` where there was anything.
    pub(super) fn ingress_tap(&mut self, port: &mut Port, budget: &mut i64) -> bool {
        let mut worked = false;
        let realtime = port.contract.cut_to.is_some();
        let now = self.now;
        let Link::Tap(tap) = &port.link else { return false };
        // Those that are read in this loop are charged when they are read.
        let mut waited = tap.waiting.len();
        for queue in 0..tap.queues.len() {
            for _ in 0..BATCH {
                let Link::Tap(tap) = &mut port.link else { return worked };
                if !tap.queues[queue].readable {
                    break;
                }
                if *budget <= 0 && !realtime {
                    worked = true;
                    break;
                }
                let arrival = tap.last_empty;
                match tap.read(queue) {
                    Read::Frame(reference) => {
                        worked = true;
                        let inspected = self.inspect(port, reference.get_mut());
                        let frame = reference.get();
                        *budget -= budget::queued(frame.len.max(frame.wire_bytes));
                        match inspected {
                            Ok(()) => {
                                let Link::Tap(tap) = &mut port.link else { return worked };
                                tap.waiting.push_back(Pending { frame: reference, arrival, sent: 0 });
                            }
                            Err(reason) => {
                                port.count_tx_drop(reason);
                                super::settle::give_back(port, reference);
                            }
                        }
                    }
                    Read::Full => {
                        worked = true;
                        *budget -= budget::queued(0);
                        port.count_tx_drop(DropReason::PoolFull);
                    }
                    Read::Malformed => {
                        worked = true;
                        *budget -= budget::queued(0);
                        port.count_tx_drop(DropReason::Malformed);
                    }
                    Read::Empty => {
                        tap.last_empty = now;
                        break;
                    }
                    Read::Gone(error) => {
                        tap.queues[queue].readable = false;
                        self.fault(port, &format!("the tap cannot be read: {error}"));
                        break;
                    }
                }
            }
        }
        let mut throttled = false;
        while let Link::Tap(tap) = &mut port.link {
            if waited > 0 && *budget <= 0 && !realtime {
                worked = true;
                break;
            }
            let Some(pending) = tap.waiting.pop_front() else { break };
            let cost = budget::queued(pending.frame.get().wire_bytes);
            match self.try_send(port, pending) {
                Sent::Yes => {
                    if waited > 0 {
                        waited -= 1;
                        *budget -= cost;
                    }
                    worked = true;
                }
                Sent::At(at) => {
                    self.wake_at(at);
                    throttled = true;
                    break;
                }
                Sent::NoSlot => break,
                Sent::Behind => {
                    worked = true;
                    break;
                }
            }
        }
        port.set_throttled(throttled, now);
        worked
    }
}
