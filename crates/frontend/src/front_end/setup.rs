//! Negotiation, memory and queues.

use super::{
    EVENT_IDX, FrontEnd, FrontEndError, IN_ORDER, INDIRECT_DESC, PROTOCOL_FEATURES, RING_PACKED, Result, Step,
};
use crate::driver::DriverFeatures;
use crate::queue::Queue;
use std::os::fd::AsRawFd;
use vhost::vhost_user::message::{FrontendReq, VhostUserHeaderFlag, VhostUserInflight};
use vhost::vhost_user::{VhostUserFrontend, VhostUserProtocolFeatures};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};

impl FrontEnd {
    /// Sends SET_VRING_ENABLE; without protocol features a started queue runs anyway.
    ///
    /// # Errors
    /// The back end refused.
    pub fn enable_queue(&mut self, index: usize, enabled: bool) -> Result<()> {
        if self.features & PROTOCOL_FEATURES == 0 {
            return Ok(());
        }
        self.protocol()?.set_vring_enable(index, enabled).step("SET_VRING_ENABLE")
    }

    /// Stops virtqueue `index` (GET_VRING_BASE). Returns the next available index, or both places of a
    /// packed ring.
    ///
    /// # Errors
    /// The back end refused.
    pub fn stop_queue(&mut self, index: usize) -> Result<u32> {
        self.protocol()?.get_vring_base(index).step("GET_VRING_BASE")
    }

    /// Describes virtqueue `index` and starts it at its [base](DriverQueue::base).
    ///
    /// # Errors
    /// The back end refused.
    pub fn start_queue(&mut self, index: usize) -> Result<()> {
        let link = self.link.as_ref().ok_or(FrontEndError::NotConnected)?;
        let (protocol, queue) = (&link.protocol, &self.queues[index]);
        let ring = &queue.ring;
        let base = ring.base();
        let config = VringConfigData {
            queue_max_size: ring.size(),
            queue_size: ring.size(),
            flags: 0,
            desc_table_addr: self.memory.to_user(ring.desc_addr()),
            used_ring_addr: self.memory.to_user(ring.used_addr()),
            avail_ring_addr: self.memory.to_user(ring.avail_addr()),
            log_addr: None,
        };
        protocol.set_vring_num(index, ring.size()).step("SET_VRING_NUM")?;
        match u16::try_from(base) {
            Ok(base) => protocol.set_vring_base(index, base).step("SET_VRING_BASE")?,
            // The `vhost` crate cannot send both halves of a packed ring's base.
            Err(_) => link.send_raw(FrontendReq::SET_VRING_BASE, &[index as u32, base])?,
        }
        protocol.set_vring_addr(index, &config).step("SET_VRING_ADDR")?;
        protocol.set_vring_call(index, &queue.call).step("SET_VRING_CALL")?;
        protocol.set_vring_kick(index, &queue.kick).step("SET_VRING_KICK")
    }

    /// Passes the memory, also repeatedly.
    ///
    /// # Errors
    /// The back end refused.
    pub fn share_memory(&mut self) -> Result<()> {
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: self.memory.guest_addr(),
            memory_size: self.memory.size(),
            userspace_addr: self.memory.user_addr(),
            mmap_offset: 0,
            mmap_handle: self.memory.fd().as_raw_fd(),
        };
        let (share, slots) = (
            self.options.share,
            self.protocol_features.contains(VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS),
        );
        let link = self.link.as_mut().ok_or(FrontEndError::NotConnected)?;
        if !share {
            // The `vhost` crate cannot send an empty table.
            return Ok(link.send_raw(FrontendReq::SET_MEM_TABLE, &[0, 0])?);
        }
        if slots {
            link.protocol.add_mem_region(&region).step("ADD_MEM_REG")?;
        } else {
            link.protocol.set_mem_table(&[region]).step("SET_MEM_TABLE")?;
        }
        Ok(())
    }

    /// Passes the in-flight region, after a request for one if there is none.
    pub(super) fn share_inflight(&mut self) -> Result<()> {
        let (queues, entries) = (self.options.queue_pairs * 2, self.options.queue_size);
        let link = self.link.as_mut().ok_or(FrontEndError::NotConnected)?;
        let (region, file) = match &self.inflight {
            Some(inflight) => inflight,
            None => {
                let wanted = VhostUserInflight::new(0, 0, queues, entries);
                let made = link.protocol.get_inflight_fd(&wanted).step("GET_INFLIGHT_FD")?;
                self.inflight.insert(made)
            }
        };
        link.protocol.set_inflight_fd(region, file.as_raw_fd()).step("SET_INFLIGHT_FD")
    }

    pub(super) fn negotiate(&mut self, vrings: u64) -> Result<()> {
        let (wanted, wanted_protocol) = (self.options.features, self.options.protocol_features);
        let protocol = self.protocol()?;
        protocol.set_owner().step("SET_OWNER")?;
        let features = protocol.get_features().step("GET_FEATURES")? & wanted;
        let mut protocol_features = VhostUserProtocolFeatures::empty();
        if features & PROTOCOL_FEATURES != 0 {
            let offered = protocol.get_protocol_features().step("GET_PROTOCOL_FEATURES")?;
            protocol_features = offered & wanted_protocol;
            protocol.set_protocol_features(protocol_features).step("SET_PROTOCOL_FEATURES")?;
            if protocol_features.contains(VhostUserProtocolFeatures::REPLY_ACK) {
                protocol.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
            }
            if protocol_features.contains(VhostUserProtocolFeatures::MQ) {
                let has = protocol.get_queue_num().step("GET_QUEUE_NUM")?;
                if has < vrings {
                    let wanted = vrings;
                    return Err(FrontEndError::Queues { has, wanted });
                }
            }
        }
        protocol.set_features(features).step("SET_FEATURES")?;
        self.features = features;
        self.protocol_features = protocol_features;
        Ok(())
    }

    pub(super) fn new_queue(&self, receive: bool) -> Result<Queue> {
        let features = DriverFeatures {
            packed: self.features & RING_PACKED != 0,
            event_idx: self.features & EVENT_IDX != 0,
            indirect: self.features & INDIRECT_DESC != 0,
            in_order: self.features & IN_ORDER != 0,
        };
        let (size, buffer_size) = (self.options.queue_size, self.options.buffer_size);
        let mut queue = Queue::new(&self.memory, size, features, buffer_size)?;
        if receive {
            while queue.give_buffer() {}
            // There is no back end to kick yet.
            let _ = queue.ring.publish();
        }
        Ok(queue)
    }
}
