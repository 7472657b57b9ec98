//! A front end's messages, checked, and turned into calls of [`PortControl`].
//!
//! ```text
//!  Request ─▶ obey ─┬▶ features   set_features
//!                   ├▶ memory     set_memory, set_log
//!                   ├▶ inflight   the region that queues are started with
//!                   ├▶ vrings     NUM, BASE, ADDR: kept     KICK: start_queue, set_kick   GET_VRING_BASE: stop_queue
//!                   │             ENABLE: kept while the queue is stopped, else enable_queue
//!                   └▶ counters   listen, set_call
//!  Reply ◀──────────┘             kept: for the process after this one
//! ```
//!
//! A queue starts at SET_VRING_KICK: front ends send it last, and a queue that is polled too early has an
//! empty ring.
//!
//! Unneeded objects are [given up](super::errands): closing a descriptor or unmapping memory may take long.

mod counters;
mod features;
mod inflight;
mod memory;
mod moving;
mod restore;
mod vrings;

use super::PortControl;
use super::exchange::{self, MessageHandler};
use super::logging::Logging;
use super::notifier::Notifier;
use super::reply::{Reply, Result, exceeded, refuse};
use super::request::Request;
use super::saved::{Numbered, SharedFd};
use super::service::Service;
use super::status::{ConnectionStatus, State};
use super::wire::Header;
use crate::virtio::Inflight;
use crate::virtio::memory::{GuestMemory, RegionSpec};
use counters::EndedQueues;
use std::sync::Arc;
use tidegate_contract::Mac;
use vhost::vhost_user::VhostUserProtocolFeatures;
use vhost::vhost_user::message::FrontendReq;
use vrings::Vring;
pub use vrings::no_queue;

/// A front end's side of a port, from its first message to its last.
pub struct Connection<'a> {
    control: &'a mut (dyn PortControl + Send),
    status: &'a ConnectionStatus,
    service: &'a Service,
    notifier: &'a Notifier,
    queue_pairs: u16,
    /// `None` until SET_FEATURES. Without LOG_ALL, which comes and goes.
    features: Option<u64>,
    logging: Logging,
    protocol_features: u64,
    /// The table as sent: ADD_MEM_REG and REM_MEM_REG change it.
    regions: Vec<RegionSpec<Numbered>>,
    /// The workers' copy of it.
    memory: Option<Arc<GuestMemory>>,
    /// The guest has written into it.
    memory_is_alive: bool,
    vrings: Vec<Vring>,
    /// The in-flight region; made when the first queue starts, unless the front end asks for it or brings
    /// one.
    inflight: Option<Inflight>,
    /// The region's file, for the agent, which stores it for a restart.
    inflight_file: Option<Numbered>,
}

impl<'a> Connection<'a> {
    /// Returns the connection of a front end without state, on a port of so many queue pairs.
    pub fn new(
        control: &'a mut (dyn PortControl + Send),
        status: &'a ConnectionStatus,
        service: &'a Service,
        notifier: &'a Notifier,
        queue_pairs: u16,
    ) -> Self {
        let vrings = (0..queue_pairs * 2).map(|_| Vring::default()).collect();
        Self {
            control,
            status,
            service,
            notifier,
            queue_pairs,
            features: None,
            logging: Logging::default(),
            protocol_features: 0,
            regions: Vec::new(),
            memory: None,
            memory_is_alive: false,
            vrings,
            inflight: None,
            inflight_file: None,
        }
    }

    /// Obeys a message about this front end's state; `None` if it needs no reply.
    fn change(&mut self, request: Request) -> Result<Option<Reply>> {
        use Request as R;
        match request {
            // Answered already.
            R::GetFeatures | R::GetProtocolFeatures | R::GetQueueNum | R::GetMaxMemSlots => {}
            R::GetVringBase(index) => return Ok(Some(Reply::of(&self.get_vring_base(index)?))),
            R::GetInflightFd(wanted) => return self.get_inflight_fd(&wanted).map(Some),
            R::SetLogBase(log, file) => {
                self.set_log_base("SET_LOG_BASE", log.mmap_size, log.mmap_offset, file)?;
                return Ok(Some(Reply::of(&log)));
            }
            R::SetOwner => {}
            R::ResetOwner => (0..self.vrings.len()).try_for_each(|index| self.enable(index as u32, false))?,
            R::SetFeatures(features) => self.set_features(features)?,
            R::SetProtocolFeatures(features) => self.set_protocol_features(features)?,
            R::SetMemTable(regions) => self.set_mem_table("SET_MEM_TABLE", &regions)?,
            R::AddMemReg(region, file) => self.add_mem_reg(&region, file)?,
            R::RemMemReg(region) => self.rem_mem_reg(&region)?,
            R::SetVringNum(vring) => self.set_vring_num(vring.index, vring.num)?,
            R::SetVringAddr(vring) => self.set_vring_addr(&vring)?,
            R::SetVringBase(vring) => self.set_vring_base(vring.index, vring.num)?,
            R::SetVringKick((queue, event)) => self.set_vring_kick(queue, event)?,
            R::SetVringCall((queue, event)) => self.set_vring_call(queue, event)?,
            R::SetVringErr((queue, event)) => self.set_vring_err(queue, event)?,
            R::SetVringEnable(index, enabled) => self.enable(index, enabled)?,
            R::SetInflightFd(given, file) => self.set_inflight_fd("SET_INFLIGHT_FD", &file, Some(&given))?,
            R::SendRarp(mac) => self.announce(mac),
        }
        Ok(None)
    }

    /// Ends the connection. If the front end is to blame, its error descriptors (SET_VRING_ERR) are
    /// signalled.
    pub fn close(&mut self, reason: &str, blame: bool) {
        self.control.disconnect(reason);
        let vrings = std::mem::take(&mut self.vrings);
        let regions = std::mem::take(&mut self.regions);
        let inflight = (self.inflight.take(), self.inflight_file.take());
        let memory = (self.memory.take(), std::mem::take(&mut self.logging));
        let calls = self.notifier.forget();
        let shared = std::mem::take(&mut *self.service.shared());
        self.service.errands.give_up(EndedQueues { vrings, blame, report: self.service.report.clone() });
        self.service.errands.give_up((regions, shared, inflight, memory, calls));
    }

    /// Charges a descriptor to the port.
    fn numbered(&self, message: &str, fd: SharedFd) -> Result<Numbered> {
        Numbered::charged(fd, &self.service.account).map_err(|why| exceeded(message, why))
    }

    /// SEND_RARP.
    fn announce(&mut self, mac: Mac) {
        if !self.control.announce(mac) {
            // QEMU sends the address of its own configuration, which the guest need not use.
            tracing::debug!(%mac, "SEND_RARP: none of the contract's addresses (`mac`, `allowed.macs`); not announced");
        }
    }

    fn publish(&self) {
        let carries = |vring: &Vring| vring.running && vring.enabled;
        let pairs = self.vrings.chunks(2).filter(|pair| pair.iter().all(carries)).count() as u16;
        self.status.update(|now| {
            now.queue_pairs = pairs;
            now.state = if pairs > 0 { State::Ready } else { State::Connected };
        });
    }
}

impl MessageHandler for Connection<'_> {
    fn allows(&self, header: &Header) -> Result<()> {
        exchange::belongs(header, self.protocol_features)?;
        // QEMU enables queues before SET_FEATURES, too.
        let code = header.code;
        if code == FrontendReq::SET_VRING_ENABLE && self.features.is_some() && self.starts_enabled() {
            return refuse(format!("{code:?}: PROTOCOL_FEATURES was not negotiated"));
        }
        Ok(())
    }

    fn acknowledges(&self) -> bool {
        exchange::has(self.protocol_features, VhostUserProtocolFeatures::REPLY_ACK)
    }

    fn handle(&mut self, request: Request) -> Result<Option<Reply>> {
        match exchange::about_port(&request, self.queue_pairs, self.status.excludes_in_order()) {
            None => self.change(request),
            answer => Ok(answer),
        }
    }
}
