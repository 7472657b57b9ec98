//! The guest's memory, and the log of writes to it.

use super::super::reply::{Result, exceeded, refuse};
use super::super::saved::{Numbered, SharedFd};
use super::super::service::Shared;
use super::super::used_bytes;
use super::Connection;
use super::vrings::Vring;
use crate::quota::Amounts;
use crate::vhost_user::exchange::MAX_MEM_SLOTS;
use crate::virtio::memory::{GuestMemory, RegionSpec};
use std::sync::Arc;
use vhost::vhost_user::message::{VhostUserMemoryRegion, VhostUserSingleMemoryRegion};

/// Whether two descriptions mean the same bytes at the same addresses.
fn is_same(a: &RegionSpec<Numbered>, b: &RegionSpec<Numbered>) -> bool {
    let place = |r: &RegionSpec<Numbered>| (r.guest_addr, r.user_addr, r.size, r.mmap_offset);
    let file =
        |r: &RegionSpec<Numbered>| rustix::fs::fstat(&r.fd).map(|stat| (stat.st_dev, stat.st_ino)).ok();
    place(a) == place(b) && file(a).is_some() && file(a) == file(b)
}

impl Connection<'_> {
    /// SET_MEM_TABLE.
    pub(super) fn set_mem_table(
        &mut self,
        message: &str,
        regions: &[(VhostUserMemoryRegion, SharedFd)],
    ) -> Result<()> {
        let specs = regions.iter().map(|(region, file)| self.region(message, region, file.clone()));
        let specs = specs.collect::<Result<_>>()?;
        self.set_regions(message, specs)
    }

    /// ADD_MEM_REG. QEMU before 8.0 sends every region once per queue pair.
    pub(super) fn add_mem_reg(&mut self, region: &VhostUserSingleMemoryRegion, file: SharedFd) -> Result<()> {
        let added = self.region("ADD_MEM_REG", region, file)?;
        if self.regions.iter().any(|known| is_same(known, &added)) {
            return Ok(());
        }
        let mut regions = self.regions.clone();
        if regions.len() == MAX_MEM_SLOTS {
            return refuse(format!("ADD_MEM_REG: more than {MAX_MEM_SLOTS} regions"));
        }
        regions.push(added);
        self.set_regions("ADD_MEM_REG", regions)
    }

    /// REM_MEM_REG. QEMU before 8.0 removes every region once per queue pair.
    pub(super) fn rem_mem_reg(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
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
            // An empty table cannot be mapped. The workers keep the old one, unused, until there is a new
            // one.
            if let Some(index) = self.vrings.iter().position(|vring| vring.running) {
                return refuse(format!(
                    "REM_MEM_REG: the last region cannot be removed while queue {index} is running"
                ));
            }
            self.service.errands.give_up(std::mem::take(&mut self.regions));
            self.status.update(|now| now.memory_preallocated = None);
            return Ok(());
        }
        self.set_regions("REM_MEM_REG", regions)
    }

    fn region(
        &self,
        message: &str,
        region: &VhostUserMemoryRegion,
        file: SharedFd,
    ) -> Result<RegionSpec<Numbered>> {
        Ok(RegionSpec {
            guest_addr: region.guest_phys_addr,
            user_addr: region.user_addr,
            size: region.memory_size,
            mmap_offset: region.mmap_offset,
            fd: self.numbered(message, file)?,
        })
    }

    /// Maps `regions` and passes them to the workers.
    fn set_regions(&mut self, message: &str, regions: Vec<RegionSpec<Numbered>>) -> Result<()> {
        let bytes = regions.iter().fold(0u64, |sum, region| sum.saturating_add(region.size));
        let need = Amounts { bytes, regions: regions.len() as u64, descriptors: 0 };
        let charge = self.service.account.charge(need).map_err(|why| exceeded(message, why))?;
        let memory = GuestMemory::map(&regions).map_err(|why| format!("{message}: {why}"))?;
        let (files, is_on_disk) = Shared::memory(&regions, memory.disk().is_some());
        let memory = Arc::new(memory.charged(charge).with_files(files.clone()));
        if let Some(disk) = memory.disk() {
            if self.status.has_deadline() {
                return refuse(format!(
                    "{message}: guest memory is on a disk ({disk}), and the switch cannot keep a deadline \
                     there: use memory-backend-memfd, or memory-backend-file on tmpfs or hugetlbfs; or \
                     remove the deadline from the contract"
                ));
            }
            tracing::warn!(
                port = self.service.name,
                "guest memory is on a disk ({disk}): all frames wait whenever the kernel reads a page from \
                 the disk; use memory-backend-memfd, or memory-backend-file on tmpfs or hugetlbfs"
            );
        }
        if let Err(reason) = self.control.set_memory(memory.clone()) {
            return refuse(format!("{message}: {reason}"));
        }
        let preallocated = memory.preallocated();
        let shared = {
            let mut shared = self.service.shared();
            shared.disk = is_on_disk;
            std::mem::replace(&mut shared.files, files)
        };
        let before = (shared, self.memory.replace(memory), std::mem::replace(&mut self.regions, regions));
        self.service.errands.give_up(before);
        self.set_log(message)?;
        self.status.update(|now| now.memory_preallocated = Some(preallocated));
        Ok(())
    }

    /// SET_LOG_BASE.
    pub(super) fn set_log_base(
        &mut self,
        message: &str,
        size: u64,
        offset: u64,
        file: SharedFd,
    ) -> Result<()> {
        let need = Amounts { bytes: size, regions: 1, descriptors: 0 };
        let charge = self.service.account.charge(need).map_err(|why| exceeded(message, why))?;
        let file = self.numbered(message, file)?;
        let before = self.logging.set_base(file, size, offset, charge);
        self.service.errands.give_up(before.map_err(|why| format!("{message}: {why}"))?);
        self.service.shared().other = true;
        self.set_log(message)
    }

    /// Begins or ends logging, once the front end has named the log.
    pub(super) fn set_log(&mut self, message: &str) -> Result<()> {
        let packed = self.is_packed();
        let used = |vring: &Vring| match (vring.log, vring.size) {
            (Some(at), Some(size)) => Some((at, used_bytes(packed, size))),
            _ => None,
        };
        let rings: Vec<_> = self.vrings.iter().filter_map(used).collect();
        match self.logging.log(self.memory.as_ref(), &rings) {
            Ok(None) if !self.logging.on => {}
            Ok(log) => {
                self.logging.on = log.is_some();
                self.control.set_log(log);
            }
            Err(error) => return refuse(format!("{message}: {error}")),
        }
        Ok(())
    }
}
