//! Decides on a taken frame, and learns its sender's address.
//!
//! ```text
//!  head ─▶ decide ─┬▶ address claimed? ─▶ again
//!                  ├▶ shared address taken? ─▶ again
//!                  ├▶ dropped: why
//!                  └▶ learn ─▶ may be sent
//! ```

use super::Worker;
use super::decide::{NotSent, Sender};
use crate::fdb::NotLearned;
use crate::port::Port;
use crate::slots::Frame;
use tidegate_contract::Mac;
use tidegate_evidence::DropReason;

impl Worker {
    /// Decides on a frame by its copied head.
    #[inline(always)]
    pub(super) fn inspect(&mut self, port: &mut Port, frame: &mut Frame) -> Result<(), DropReason> {
        let head_len = frame.head_len as usize;
        let decision = loop {
            // Terminates: a claim adds to the held addresses, and a taken address was not the port's
            // before; another port takes it away seldom.
            let head = &mut frame.bytes[..head_len];
            let sender = Sender::of(port).with_stamp(frame.stamp.is_some());
            match sender.decide(head, frame.len as usize, &frame.vnet) {
                Ok(decision) => break decision,
                Err(NotSent::Dropped(reason)) => return Err(reason),
                Err(NotSent::Claim(ip)) if self.claim(port, ip) => {}
                Err(NotSent::Claim(_)) => return Err(DropReason::LinkLocal),
                Err(NotSent::Take(taking)) if self.take_shared(port, taking) => {}
                Err(NotSent::Take(_)) => return Err(DropReason::Shared),
            }
        };
        frame.headers = decision.headers;
        frame.offload = decision.offload;
        frame.wire_frames = decision.wire_frames;
        frame.wire_bytes = decision.wire_bytes;
        if port.contract.is_uplink {
            return self.learn_from_host(port, frame);
        }
        frame.segment = port.segment;
        let Some(info) = &self.infos[port.index as usize] else { return Err(DropReason::NoReceiver) };
        if info.learns && !self.learn(port, decision.headers.src) {
            // Another vNIC's own address, from behind a bridge: spoofed.
            return Err(DropReason::SourceMac);
        }
        Ok(())
    }

    /// Learns that an address is behind a port; `false` if it is another vNIC's own.
    #[inline]
    pub(super) fn learn(&self, port: &Port, src: Mac) -> bool {
        let seconds = (self.now / 1_000_000_000) as u32;
        self.fdb.learn(port.segment, src, port.index, seconds) != Err(NotLearned::Pinned)
    }
}
