//! Virtqueues: their state, before they start and after.

use super::super::kick::Kick;
use super::super::notifier::Call;
use super::super::reply::{Result, refuse};
use super::super::saved::{Numbered, SharedFd};
use super::super::{NOT_SHARED, VringSetup, shared, used_bytes};
use super::Connection;
use crate::virtio::{MAX_ENTRIES, Queue};
use vhost::vhost_user::message::{VhostUserVringAddr, VhostUserVringAddrFlags, VhostUserVringState};

/// The state of one virtqueue.
#[derive(Debug, Default)]
pub struct Vring {
    pub size: Option<u16>,
    pub addresses: Option<Addresses>,
    /// `None` until SET_VRING_BASE: the beginning, which depends on the layout.
    pub base: Option<u32>,
    /// SET_VRING_ADDR with VHOST_VRING_F_LOG: the used ring's guest address in the dirty log.
    pub log: Option<u64>,
    /// Of a running queue.
    pub kick: Option<Kick>,
    pub call: Option<Call>,
    pub err: Option<Numbered>,
    pub enabled: bool,
    pub running: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    pub desc: u64,
    pub avail: u64,
    pub used: u64,
}

/// Returns the error of a message about a missing queue.
pub fn no_queue(message: &str, index: u32, queue_pairs: u16) -> String {
    format!(
        "{message}: queue index {index}, but the port has {queue_pairs} queue pairs (0 to {}); raise `queues` in the \
         contract or lower it in the VM",
        queue_pairs * 2 - 1
    )
}

impl Connection<'_> {
    fn vring(&mut self, message: &str, index: u32) -> Result<(u16, &mut Vring)> {
        let pairs = self.queue_pairs;
        match self.vrings.get_mut(index as usize) {
            Some(vring) => Ok((index as u16, vring)),
            None => refuse(no_queue(message, index, pairs)),
        }
    }

    /// SET_VRING_NUM.
    pub(super) fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let packed = self.is_packed();
        let (index, vring) = self.vring("SET_VRING_NUM", index)?;
        let size = u16::try_from(num).ok().filter(|size| (1..=MAX_ENTRIES).contains(size));
        if size.is_none_or(|size| !packed && !size.is_power_of_two()) {
            let kind = if packed { "from 1" } else { "a power of two" };
            return refuse(format!(
                "SET_VRING_NUM: {num} entries for queue {index}, expected {kind} up to {MAX_ENTRIES}"
            ));
        }
        if vring.running && vring.size != size {
            return refuse(format!("SET_VRING_NUM: queue {index} is running"));
        }
        vring.size = size;
        Ok(())
    }

    /// SET_VRING_ADDR.
    pub(super) fn set_vring_addr(&mut self, request: &VhostUserVringAddr) -> Result<()> {
        let (index, vring) = self.vring("SET_VRING_ADDR", request.index)?;
        let (desc, avail, used) = (request.descriptor, request.available, request.used);
        let addresses = Some(Addresses { desc, avail, used });
        if vring.running && vring.addresses != addresses {
            return refuse(format!("SET_VRING_ADDR: queue {index} is running"));
        }
        vring.addresses = addresses;
        let logged = request.flags & VhostUserVringAddrFlags::VHOST_VRING_F_LOG.bits() != 0;
        let log = logged.then_some(request.log);
        if std::mem::replace(&mut vring.log, log) != log {
            if vring.running {
                self.control.set_used_log(index, log);
            }
            self.set_log("SET_VRING_ADDR")?;
        }
        Ok(())
    }

    /// SET_VRING_BASE.
    pub(super) fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let packed = self.is_packed();
        let (index, vring) = self.vring("SET_VRING_BASE", index)?;
        // A packed ring uses all 32 bits; they are checked with its size.
        if !packed && base > u16::MAX.into() {
            return refuse(format!("SET_VRING_BASE: index {base} for queue {index}, expected at most 65535"));
        }
        if vring.running {
            return refuse(format!("SET_VRING_BASE: queue {index} is running"));
        }
        vring.base = Some(base);
        Ok(())
    }

    /// GET_VRING_BASE.
    pub(super) fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
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

    /// SET_VRING_KICK.
    pub(super) fn set_vring_kick(&mut self, index: u8, event: Option<SharedFd>) -> Result<()> {
        let (index, _) = self.vring("SET_VRING_KICK", index.into())?;
        let kick = self.kick(index, event)?;
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

    /// SET_VRING_CALL.
    pub(super) fn set_vring_call(&mut self, index: u8, event: Option<SharedFd>) -> Result<()> {
        let (index, _) = self.vring("SET_VRING_CALL", index.into())?;
        let call = self.call(index, event)?;
        let vring = &mut self.vrings[usize::from(index)];
        self.service.errands.give_up(std::mem::replace(&mut vring.call, call.clone()));
        if vring.running {
            self.control.set_call(index, call);
        }
        Ok(())
    }

    /// SET_VRING_ERR.
    pub(super) fn set_vring_err(&mut self, index: u8, event: Option<SharedFd>) -> Result<()> {
        let (index, _) = self.vring("SET_VRING_ERR", index.into())?;
        let err = self.event("SET_VRING_ERR", index, event)?;
        self.service.errands.give_up(std::mem::replace(&mut self.vrings[usize::from(index)].err, err));
        Ok(())
    }

    /// SET_VRING_ENABLE.
    pub(super) fn enable(&mut self, index: u32, enabled: bool) -> Result<()> {
        let (index, vring) = self.vring("SET_VRING_ENABLE", index)?;
        vring.enabled = enabled;
        if vring.running {
            self.control.enable_queue(index, enabled);
        }
        self.publish();
        Ok(())
    }

    /// Whether the queues were stopped during a migration, and have not restarted: the guest does not run
    /// here.
    pub fn has_migrated(&self) -> bool {
        let was_stopped = self.vrings.iter().any(|vring| vring.base.is_some());
        self.logging.all && was_stopped && !self.vrings.iter().any(|vring| vring.running)
    }

    fn start(&mut self, index: u16, kick: Option<Kick>) -> Result<()> {
        let missing = |what: &str| refuse(format!("SET_VRING_KICK for queue {index} before {what}"));
        if self.features.is_none() {
            return missing("SET_FEATURES");
        }
        if self.regions.is_empty() {
            return missing(&format!("any memory: {NOT_SHARED}"));
        }
        let (packed, starts_enabled) = (self.is_packed(), self.starts_enabled());
        let vring = &mut self.vrings[usize::from(index)];
        let Some(size) = vring.size else {
            return missing("SET_VRING_NUM");
        };
        let Some(Addresses { desc, avail, used }) = vring.addresses else {
            return missing("SET_VRING_ADDR");
        };
        let entries = u64::from(size);
        let parts = match packed {
            true => [(desc, 16 * entries), (avail, 4), (used, 4)],
            false => [(desc, 16 * entries), (avail, 6 + 2 * entries), (used, used_bytes(packed, size))],
        };
        if !self.memory_is_alive && shared::is_blank(&self.regions, &parts) {
            return refuse(format!(
                "SET_VRING_KICK for queue {index}, but guest memory is all zeros here: {NOT_SHARED}"
            ));
        }
        self.memory_is_alive = true;
        let inflight = Some(self.queue_inflight(index, size)?);
        let vring = &mut self.vrings[usize::from(index)];
        let setup = VringSetup {
            size,
            desc,
            avail,
            used,
            base: vring.base.unwrap_or(Queue::first_base(packed)),
            log: vring.log,
            kick: kick.clone(),
            // Stored here too: a front end may restart the queue without sending it again.
            call: vring.call.clone(),
            inflight,
        };
        if let Err(reason) = self.control.start_queue(index, setup) {
            return refuse(format!("queue {index} cannot start: {reason}"));
        }
        vring.running = true;
        vring.kick = kick;
        vring.enabled |= starts_enabled;
        if vring.enabled {
            self.control.enable_queue(index, true);
        }
        self.publish();
        Ok(())
    }
}
