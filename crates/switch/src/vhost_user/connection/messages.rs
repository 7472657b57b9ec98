//! The messages of a front end, as the `vhost` crate hands them over, one function each.
//!
//! ```text
//!  BackendReqHandler ── message, descriptors ─▶ checked here ─▶ Connection
//! ```

use super::super::features::{self, F_RING_PACKED, VHOST_F_LOG_ALL, VHOST_USER_F_PROTOCOL_FEATURES};
use super::super::kept::Numbered;
use super::{Addresses, Connection, MAX_REGIONS, refuse};
use crate::virtio::memory::RegionSpec;
use crate::virtio::{Inflight, Queue};
use std::fs::File;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{
    Error, GpuBackend, Result, VhostUserBackendReqHandlerMut, VhostUserProtocolFeatures,
};

/// Largest ring (virtio 1.2, 2.7 and 2.8).
const MAX_RING: u32 = 32768;

/// A message that cannot come, because what it needs was not offered.
fn not_offered<T>(what: &'static str) -> Result<T> {
    Err(Error::InvalidOperation(what))
}

fn region_spec(region: &VhostUserMemoryRegion, fd: Numbered) -> RegionSpec<Numbered> {
    RegionSpec {
        guest_addr: region.guest_phys_addr,
        user_addr: region.user_addr,
        size: region.memory_size,
        mmap_offset: region.mmap_offset,
        fd,
    }
}

/// Whether two descriptions mean the same bytes at the same addresses.
fn is_same(a: &RegionSpec<Numbered>, b: &RegionSpec<Numbered>) -> bool {
    let place = |r: &RegionSpec<Numbered>| (r.guest_addr, r.user_addr, r.size, r.mmap_offset);
    let file =
        |r: &RegionSpec<Numbered>| rustix::fs::fstat(&r.fd).map(|stat| (stat.st_dev, stat.st_ino)).ok();
    place(a) == place(b) && file(a).is_some() && file(a) == file(b)
}

impl VhostUserBackendReqHandlerMut for Connection<'_> {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    /// No longer used by the protocol, which leaves to "disable all rings" at most.
    fn reset_owner(&mut self) -> Result<()> {
        for index in 0..self.vrings.len() {
            self.enable(index as u32, false)?;
        }
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        let hidden = if self.status.has_deadline() { features::F_IN_ORDER } else { 0 };
        Ok(features::offered(self.queue_pairs) & !hidden)
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        let excess = features & !features::offered(self.queue_pairs);
        if excess != 0 {
            return refuse(format!("SET_FEATURES: {} not offered", features::names(excess).join(", ")));
        }
        let logs = features & VHOST_F_LOG_ALL != 0;
        let features = features & !VHOST_F_LOG_ALL;
        if std::mem::replace(&mut self.logging.all, logs) != logs {
            self.set_log("SET_FEATURES")?;
        }
        if self.features == Some(features) {
            return Ok(());
        }
        if let Some(index) = self.vrings.iter().position(|vring| vring.running) {
            return refuse(format!("SET_FEATURES: other features while queue {index} is running"));
        }
        if (features ^ self.features.unwrap_or(0)) & F_RING_PACKED != 0 {
            // What was a base in one layout is none in the other. Before the first SET_FEATURES,
            // front ends send none.
            self.vrings.iter_mut().for_each(|vring| vring.base = None);
        }
        self.features = Some(features);
        let virtio = features & !VHOST_USER_F_PROTOCOL_FEATURES;
        self.control.set_features(virtio);
        self.status.update(|now| now.features = virtio);
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(features::offered_protocol())
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        let excess = features & !features::offered_protocol().bits();
        if excess != 0 {
            return refuse(format!("SET_PROTOCOL_FEATURES: {excess:#x} not offered"));
        }
        self.protocol_features = features;
        self.status.update(|now| now.protocol_features = features);
        Ok(())
    }

    /// In virtqueues, two for a pair. QEMU compares it with its queue pairs, and
    /// so lets a VM with too many of them start; its first message for one of
    /// those is then refused.
    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.vrings.len() as u64)
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy_listening: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        let regions = regions.iter().zip(files);
        let specs = regions
            .map(|(region, file)| Ok(region_spec(region, self.numbered("SET_MEM_TABLE", file.into())?)));
        let specs = specs.collect::<Result<_>>()?;
        self.set_regions("SET_MEM_TABLE", specs)?;
        Ok(None)
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(MAX_REGIONS as u64)
    }

    /// QEMU before 8.0 sends every region once per queue pair.
    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy_listening: Option<bool>,
    ) -> Result<Option<u64>> {
        let added = region_spec(region, self.numbered("ADD_MEM_REG", file.into())?);
        if self.regions.iter().any(|known| is_same(known, &added)) {
            self.service.errands.give_up(added);
            return Ok(None);
        }
        let mut regions = self.regions.clone();
        if regions.len() == MAX_REGIONS {
            return refuse(format!("ADD_MEM_REG: more than {MAX_REGIONS} regions"));
        }
        regions.push(added);
        self.set_regions("ADD_MEM_REG", regions)?;
        Ok(None)
    }

    /// QEMU before 8.0 takes every region away once per queue pair.
    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let (guest, user, size) = (region.guest_phys_addr, region.user_addr, region.memory_size);
        let mut same =
            self.regions.iter().map(|r| (r.guest_addr, r.user_addr, r.size) == (guest, user, size));
        let Some(gone) = same.position(|same| same) else {
            if self.queue_pairs > 1 {
                return Ok(());
            }
            return refuse(format!("REM_MEM_REG: no region of {size} bytes at guest address {guest:#x}"));
        };
        let mut regions = self.regions.clone();
        regions.remove(gone);
        if regions.is_empty() {
            // An empty table cannot be mapped. The workers keep the old one, unused,
            // until there is a new one.
            if let Some(index) = self.vrings.iter().position(|vring| vring.running) {
                return refuse(format!("REM_MEM_REG: the last region, while queue {index} is running"));
            }
            self.has_memory = false;
            self.service.errands.give_up(std::mem::take(&mut self.regions));
            self.status.update(|now| now.memory_preallocated = None);
            return Ok(());
        }
        self.set_regions("REM_MEM_REG", regions)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let packed = self.is_packed();
        let (index, vring) = self.vring("SET_VRING_NUM", index)?;
        if num == 0 || num > MAX_RING || (!packed && !num.is_power_of_two()) {
            let kind = if packed { "from 1" } else { "a power of two" };
            return refuse(format!(
                "SET_VRING_NUM: {num} entries for queue {index}, expected {kind} up to {MAX_RING}"
            ));
        }
        let size = Some(num as u16);
        if vring.running && vring.size != size {
            return refuse(format!("SET_VRING_NUM: queue {index} is running"));
        }
        vring.size = size;
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        flags: VhostUserVringAddrFlags,
        desc: u64,
        used: u64,
        avail: u64,
        log: u64,
    ) -> Result<()> {
        let (index, vring) = self.vring("SET_VRING_ADDR", index)?;
        let addresses = Some(Addresses { desc, avail, used });
        if vring.running && vring.addresses != addresses {
            return refuse(format!("SET_VRING_ADDR: queue {index} is running"));
        }
        vring.addresses = addresses;
        let log = flags.contains(VhostUserVringAddrFlags::VHOST_VRING_F_LOG).then_some(log);
        if std::mem::replace(&mut vring.log, log) != log {
            if vring.running {
                self.control.set_used_log(index, log);
            }
            self.set_log("SET_VRING_ADDR")?;
        }
        Ok(())
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let packed = self.is_packed();
        let (index, vring) = self.vring("SET_VRING_BASE", index)?;
        // Of a packed ring all 32 bits mean something; whether they can be is seen with its size.
        if !packed && base > u16::MAX.into() {
            return refuse(format!("SET_VRING_BASE: index {base} for queue {index}, expected at most 65535"));
        }
        if vring.running {
            return refuse(format!("SET_VRING_BASE: queue {index} is running"));
        }
        vring.base = Some(base);
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let (index, vring) = self.vring("GET_VRING_BASE", index)?;
        let kick = vring.kick.take();
        if std::mem::take(&mut vring.running)
            && let Some(next) = self.control.stop_queue(index)
        {
            self.vrings[usize::from(index)].base = Some(next);
        }
        self.service.errands.give_up(kick);
        self.publish();
        let base = self.vrings[usize::from(index)].base;
        let base = base.unwrap_or(Queue::first_base(self.is_packed()));
        Ok(VhostUserVringState::new(index.into(), base))
    }

    fn set_vring_kick(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let (index, _) = self.vring("SET_VRING_KICK", index.into())?;
        let kick = self.kick(index, file)?;
        let vring = &mut self.vrings[usize::from(index)];
        if !vring.running {
            let started = self.start(index, kick.clone());
            if let (Err(_), Some(kick)) = (&started, kick) {
                self.forget(kick);
            }
            return started;
        }
        self.service.errands.give_up(std::mem::replace(&mut vring.kick, kick.clone()));
        self.control.set_kick(index, kick);
        Ok(())
    }

    fn set_vring_call(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let (index, _) = self.vring("SET_VRING_CALL", index.into())?;
        let call = self.call(index, file)?;
        let vring = &mut self.vrings[usize::from(index)];
        self.service.errands.give_up(std::mem::replace(&mut vring.call, call.clone()));
        if vring.running {
            self.control.set_call(index, call);
        }
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let (index, _) = self.vring("SET_VRING_ERR", index.into())?;
        let err = self.event("SET_VRING_ERR", index, file)?;
        self.service.errands.give_up(std::mem::replace(&mut self.vrings[usize::from(index)].err, err));
        Ok(())
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.enable(index, enable)
    }

    fn reset_device(&mut self) -> Result<()> {
        not_offered("RESET_DEVICE")
    }

    fn get_config(&mut self, _: u32, _: u32, _: VhostUserConfigFlags) -> Result<Vec<u8>> {
        not_offered("CONFIG")
    }

    fn set_config(&mut self, _: u32, _: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        not_offered("CONFIG")
    }

    fn set_gpu_socket(&mut self, _: GpuBackend) -> Result<()> {
        not_offered("GPU")
    }

    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> Result<File> {
        not_offered("SHARED_OBJECT")
    }

    /// A new region, for at least as many queues as the port has.
    fn get_inflight_fd(&mut self, wanted: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        self.none_runs("GET_INFLIGHT_FD")?;
        let queues = wanted.num_queues.max(self.queue_pairs * 2);
        let inflight = match Inflight::create(queues, wanted.queue_size) {
            Ok(inflight) => inflight,
            Err(error) => return refuse(format!("GET_INFLIGHT_FD: {error}")),
        };
        let file = inflight.fd().try_clone_to_owned().map_err(Error::ReqHandlerError)?;
        let made = VhostUserInflight::new(inflight.bytes(), 0, queues, wanted.queue_size);
        self.use_inflight(inflight)?;
        self.service.shared().other = true;
        Ok((made, file.into()))
    }

    /// What GET_INFLIGHT_FD gave, to this connection or one before it.
    fn set_inflight_fd(&mut self, given: &VhostUserInflight, file: File) -> Result<()> {
        let inflight = match Inflight::open(file.into()) {
            Ok(inflight) => inflight,
            Err(error) => return refuse(format!("SET_INFLIGHT_FD: {error}")),
        };
        let made = (inflight.bytes(), 0, inflight.queues(), inflight.entries());
        if (given.mmap_size, given.mmap_offset, given.num_queues, given.queue_size) != made {
            return refuse("SET_INFLIGHT_FD: not the size, offset, queues and entries of GET_INFLIGHT_FD");
        }
        self.set_inflight(inflight)
    }

    fn set_device_state_fd(
        &mut self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> Result<Option<File>> {
        not_offered("DEVICE_STATE")
    }

    fn check_device_state(&mut self) -> Result<()> {
        not_offered("DEVICE_STATE")
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        not_offered("SHMEM")
    }

    fn set_log_base(&mut self, log: &VhostUserLog, file: File) -> Result<()> {
        // Copies: the message is packed.
        let (size, offset) = (log.mmap_size, log.mmap_offset);
        self.set_log_file("SET_LOG_BASE", file, size, offset)?;
        self.set_log("SET_LOG_BASE")
    }
}
