//! A front end's state, to the next process and from the one before.

use super::super::features::VHOST_F_LOG_ALL;
use super::super::kick::Kick;
use super::super::notifier::Call;
use super::super::reply::{Result, refuse};
use super::super::saved::{Number, Numbered, SavedConnection, SavedRegion, SavedVring, SharedFd};
use super::Connection;
use crate::vhost_user::exchange::MAX_MEM_SLOTS;
use std::collections::HashMap;
use vhost::vhost_user::message::{VhostUserMemoryRegion, VhostUserVringAddr, VhostUserVringAddrFlags};

/// The descriptors of a connection that is restored, by their numbers.
type Descriptors = HashMap<Number, SharedFd>;

impl Connection<'_> {
    /// Returns the front end's state on `stream`, and its descriptors.
    pub fn saved_state(&self, stream: &Numbered) -> (SavedConnection, Vec<Numbered>) {
        let mut descriptors = vec![stream.clone()];
        descriptors.extend(self.regions.iter().map(|region| region.fd.clone()));
        let mut number = |fd: Option<&Numbered>| -> Option<Number> {
            descriptors.extend(fd.cloned());
            fd.map(Numbered::number)
        };
        let vrings = self.vrings.iter().map(|vring| SavedVring {
            size: vring.size,
            addresses: vring.addresses.map(|at| (at.desc, at.avail, at.used)),
            base: vring.base,
            log: vring.log,
            kick: number(vring.kick.as_ref().map(Kick::event)),
            call: number(vring.call.as_ref().map(Call::event)),
            err: number(vring.err.as_ref()),
            enabled: vring.enabled,
            running: vring.running,
        });
        let regions = self.regions.iter().map(|region| SavedRegion {
            guest_addr: region.guest_addr,
            user_addr: region.user_addr,
            size: region.size,
            mmap_offset: region.mmap_offset,
            file: region.fd.number(),
        });
        let log = self.logging.saved_log();
        let logs = if self.logging.all { VHOST_F_LOG_ALL } else { 0 };
        let saved = SavedConnection {
            stream: stream.number(),
            features: self.features.map(|features| features | logs),
            protocol_features: self.protocol_features,
            regions: regions.collect(),
            memory_is_alive: self.memory_is_alive,
            vrings: vrings.collect(),
            inflight: self.inflight_file.as_ref().map(Numbered::number),
            log: log.as_ref().map(|(log, _)| *log),
        };
        descriptors.extend(self.inflight_file.clone());
        descriptors.extend(log.map(|(_, file)| file));
        (saved, descriptors)
    }

    /// Restores a front end's state of a process that is gone: features, memory, and queues. Checked like
    /// messages.
    ///
    /// # Errors
    /// An invalid state; closing the connection makes the front end start over.
    pub fn restore_memory(&mut self, saved: &SavedConnection, descriptors: &Descriptors) -> Result<()> {
        let (has, was) = (self.vrings.len(), saved.vrings.len());
        if has != was {
            return refuse(format!("the port has {has} queues now, and had {was} before"));
        }
        if saved.regions.len() > MAX_MEM_SLOTS {
            return refuse(format!("more than {MAX_MEM_SLOTS} memory regions"));
        }
        self.set_protocol_features(saved.protocol_features)?;
        if let Some(features) = saved.features {
            self.set_features(features)?;
        }
        if let Some(log) = &saved.log {
            self.set_log_base("saved dirty log", log.size, log.offset, find(descriptors, log.file)?)?;
        }
        if !saved.regions.is_empty() {
            let regions =
                saved.regions.iter().map(|SavedRegion { guest_addr, user_addr, size, mmap_offset, file }| {
                    let region = VhostUserMemoryRegion::new(*guest_addr, *size, *user_addr, *mmap_offset);
                    Ok((region, find(descriptors, *file)?))
                });
            self.set_mem_table("saved memory table", &regions.collect::<Result<Vec<_>>>()?)?;
        }
        self.memory_is_alive = saved.memory_is_alive;
        if let Some(file) = saved.inflight {
            self.set_inflight_fd("saved in-flight region", &find(descriptors, file)?, None)?;
        }
        for (index, vring) in (0..).zip(&saved.vrings) {
            if let Some(size) = vring.size {
                self.set_vring_num(index, size.into())?;
            }
            if let Some((desc, avail, used)) = vring.addresses {
                let (log, mut flags) = (vring.log.unwrap_or(0), VhostUserVringAddrFlags::empty());
                flags.set(VhostUserVringAddrFlags::VHOST_VRING_F_LOG, vring.log.is_some());
                self.set_vring_addr(&VhostUserVringAddr::new(index, flags, desc, used, avail, log))?;
            }
            if let Some(base) = vring.base {
                self.set_vring_base(index, base)?;
            }
            self.set_vring_call(index as u8, find_some(descriptors, vring.call)?)?;
            self.set_vring_err(index as u8, find_some(descriptors, vring.err)?)?;
            self.enable(index, vring.enabled)?;
        }
        Ok(())
    }

    /// Starts the queues that ran, after [`restore_memory`](Self::restore_memory): each where the in-flight
    /// region says. Calls their drivers: the last completions may be unannounced.
    ///
    /// # Errors
    /// As there.
    pub fn restore_queues(&mut self, saved: &SavedConnection, descriptors: &Descriptors) -> Result<()> {
        for (index, vring) in (0..).zip(&saved.vrings).filter(|(_, vring)| vring.running) {
            self.set_vring_kick(index, find_some(descriptors, vring.kick)?)?;
            if let Some(call) = &self.vrings[usize::from(index)].call {
                call.signal();
            }
        }
        Ok(())
    }
}

fn find(descriptors: &Descriptors, number: Number) -> Result<SharedFd> {
    descriptors.get(&number).cloned().ok_or_else(|| format!("descriptor {number} is missing").into())
}

fn find_some(descriptors: &Descriptors, number: Option<Number>) -> Result<Option<SharedFd>> {
    number.map(|number| find(descriptors, number)).transpose()
}
