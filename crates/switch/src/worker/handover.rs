//! Prepares a worker's ports for another process that takes over.
//!
//! ```text
//!  pause_all ─▶ loops: what is in flight is delivered ─▶ is_drained ─▶ put_back: what waits for tokens
//!   └▶ what waits by flow: back, or delivered in time ─▶ or dropped      └▶ levels: tokens, by port
//! ```

use super::Worker;
use crate::clock::clock;
use crate::fdb::PortIndex;
use crate::port::Port;
use crate::sched::TokenBucket;
use serde::{Deserialize, Serialize};
use tidegate_evidence::DropReason;

/// Tokens of one port (bytes); negative is debt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Levels {
    /// Of `tx.max`.
    pub tx: Option<i64>,
    /// Of `rx.max`.
    pub rx: Option<i64>,
    /// For copies of flooded frames.
    pub flood: i64,
}

impl Worker {
    /// Stops taking frames from all own ports. Frames that wait by flow go back to their rings, or leave as
    /// tokens come.
    pub fn pause_all(&mut self) {
        for index in self.owned.clone() {
            self.pause(index);
            self.drain(index);
        }
    }

    /// Drops own ports' frames that wait by flow; `true` if there were any.
    pub fn drop_all_waiting(&mut self) -> bool {
        let mut any = false;
        for index in &self.owned {
            let Some(port) = &mut self.ports[*index as usize] else { continue };
            any |= port.waits();
            port.drop_waiting(DropReason::SenderReset);
        }
        any
    }

    /// Reverts [`pause_all`](Self::pause_all).
    pub fn resume_all(&mut self) {
        for index in self.owned.clone() {
            self.resume(index);
        }
    }

    /// Whether all frames of own ports have arrived or been dropped, except those that wait for tokens, and
    /// no own link holds a frame.
    pub fn is_drained(&self) -> bool {
        let in_flight = |port: &Port| {
            port.link.tx.in_flight() > port.link.tx.waiting() || !port.egress.outstanding.is_empty()
        };
        !self.owned.iter().filter_map(|index| self.ports[*index as usize].as_deref()).any(in_flight)
    }

    /// Puts frames that wait for tokens back into their rings, where the next process finds them.
    pub fn put_back_pending(&mut self) {
        for index in &self.owned {
            if let Some(port) = &mut self.ports[*index as usize] {
                port.link.tx.untake_pending();
            }
        }
    }

    /// Drops own ports' frames in flight; `true` when none remain. Other workers have to
    /// [drop](Worker::drop_source) theirs before.
    pub fn is_all_quiet(&mut self) -> bool {
        let owned = self.owned.clone();
        owned.into_iter().all(|index| self.is_quiet(index))
    }

    /// Drops all frames to own ports, those that their links hold included.
    pub fn drop_all(&mut self) {
        for index in self.owned.clone() {
            self.cancel_at(index, DropReason::SenderReset);
        }
        for source in 0..self.infos.len() as PortIndex {
            if self.infos[source as usize].is_some() {
                self.drop_source(source);
            }
        }
    }

    /// Returns the tokens of own ports.
    pub fn levels(&mut self) -> Vec<(PortIndex, Levels)> {
        let now = clock();
        let of = |port: &Port| Levels {
            tx: port.shaper.as_ref().map(|bucket| bucket.available(now)),
            rx: port.contract.egress.rate.map(|_| port.egress.scheduler.tokens(now)),
            flood: port.flood.available(now),
        };
        let ports = self.owned.iter().filter_map(|index| self.ports[*index as usize].as_deref());
        ports.map(|port| (port.index, of(port))).collect()
    }

    /// Sets an own port's tokens to those it had in another process.
    pub fn set_levels(&mut self, index: PortIndex, levels: Levels) {
        let now = clock();
        let Some(port) = &mut self.ports[index as usize] else { return };
        let level = |bucket: &mut TokenBucket, level: i64| bucket.lower(now, level);
        if let (Some(shaper), Some(tx)) = (&mut port.shaper, levels.tx) {
            level(shaper, tx);
        }
        if let Some(rx) = levels.rx {
            port.egress.scheduler.lower_tokens(now, rx);
        }
        level(&mut port.flood, levels.flood);
    }
}
