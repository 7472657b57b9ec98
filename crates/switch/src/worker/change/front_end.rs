//! A front end's changes of its port: features, memory, rings and their notifications, the log of a
//! migration.
//!
//! Replaced objects are returned for the caller to give up: unmapping memory and a descriptor's last close
//! may take long.

use crate::fdb::PortIndex;
use crate::link::rdma::{Feed, PortHalf};
use crate::link::vhost::land::Land;
use crate::link::vhost::{Control, ReleasedHalves, Ring};
use crate::vhost_user::VringSetup;
use crate::vhost_user::kick::Kick;
use crate::vhost_user::notifier::Call;
use crate::virtio::{DirtyLog, GuestMemory};
use crate::worker::Worker;
use crate::worker::events::Event;
use std::sync::Arc;

/// Kick and call of a queue.
pub type Notifications = (Option<Kick>, Option<Call>);

impl Worker {
    /// Sets the negotiated virtio features.
    pub fn set_features(&mut self, index: PortIndex, features: u64) {
        if let Some(mut vhost) = self.vhost(index) {
            vhost.set_features(features);
        }
    }

    /// Sets a new memory table of a quiet port, which its rings then use. Returns the old one: unmapping
    /// takes long.
    pub fn set_memory(
        &mut self,
        index: PortIndex,
        memory: &Arc<GuestMemory>,
    ) -> Result<Option<Arc<GuestMemory>>, String> {
        self.vhost(index).map_or(Ok(None), |mut vhost| vhost.set_memory(memory))
    }

    /// Begins or ends the log of written guest pages. Returns the former log: unmapping takes long.
    pub fn set_log(&mut self, index: PortIndex, log: Option<DirtyLog>) -> Option<DirtyLog> {
        self.vhost(index)?.set_log(log)
    }

    /// Sets where the log also has a queue's used ring.
    pub fn set_used_log(&mut self, index: PortIndex, queue: u16, log: Option<u64>) {
        if let Some(ring) = self.ring(index, queue) {
            ring.written.used_log = log;
        }
    }

    /// Puts a queue into service.
    pub fn start_queue(&mut self, index: PortIndex, queue: u16, setup: VringSetup) -> Result<(), String> {
        let (id, now) = (self.id, self.now);
        let Some(mut vhost) = self.vhost(index) else { return Ok(()) };
        let lost = vhost.start(queue, setup, index, id, now).map_err(|error| error.to_string())?;
        if lost > 0 {
            self.note(Event::FramesLost { port: index, queue, frames: lost });
        }
        Ok(())
    }

    /// Takes a quiet port's queue out of service; returns where it stopped, and its notifications, for the
    /// caller to give up.
    pub fn stop_queue(&mut self, index: PortIndex, queue: u16) -> Option<(u32, Notifications)> {
        let Ring { queue, kick, call, .. } = self.vhost(index)?.stop(queue)?;
        Some((queue.retire(), (kick, call)))
    }

    /// SET_VRING_ENABLE.
    pub fn enable_queue(&mut self, index: PortIndex, queue: u16, enabled: bool) {
        let now = self.now;
        let Some(mut vhost) = self.vhost(index) else { return };
        if !vhost.enable(queue, enabled, now) {
            self.clear_egress(index);
            self.settle();
        }
    }

    /// Replaces a queue's call. Returns the former one for the caller to give up.
    pub fn set_call(&mut self, index: PortIndex, queue: u16, call: Option<Call>) -> Option<Call> {
        std::mem::replace(&mut self.ring(index, queue)?.call, call)
    }

    /// Replaces a queue's kick. Returns the former one for the caller to give up.
    pub fn set_kick(&mut self, index: PortIndex, queue: u16, kick: Option<Kick>) -> Option<Kick> {
        std::mem::replace(&mut self.ring(index, queue)?.kick, kick)
    }

    /// Whether an RDMA device may fill receive buffers of a port.
    ///
    /// # Errors
    /// Why not.
    pub fn can_land(&mut self, index: PortIndex) -> Result<(), &'static str> {
        let vhost = self.ports[index as usize].as_mut().and_then(|port| port.link.vhost());
        vhost.map_or(Err("no front end is connected"), |vhost| vhost.can_land())
    }

    /// Lets an RDMA device fill receive buffers of a port.
    ///
    /// # Errors
    /// It [cannot](Self::can_land): the half, for the caller to drop.
    pub fn land(&mut self, index: PortIndex, half: PortHalf) -> Result<(), PortHalf> {
        let vhost = self.ports[index as usize].as_mut().and_then(|port| port.link.vhost());
        match vhost {
            Some(mut vhost) => vhost.land(half),
            None => Err(half),
        }
    }

    /// Gives an RDMA device no more buffers of a port; returns by which it had them, for the caller to drop.
    #[must_use = "a worker has no time to destroy a queue pair"]
    pub fn close_landing(&mut self, index: PortIndex, number: u32) -> Option<Feed> {
        let mut vhost = self.ports[index as usize].as_mut()?.link.vhost()?;
        vhost.landing().filter(|landing| landing.number == number)?;
        vhost.close_landing()
    }

    /// Gives a port's guest the buffers back that an RDMA device had, once the device is done; whether none is left, and what is left
    /// for the caller to drop.
    #[must_use = "a worker has no time to free memory"]
    pub fn end_landing(&mut self, index: PortIndex, number: u32) -> (bool, Option<Box<Land>>) {
        let Some(mut vhost) = self.ports[index as usize].as_mut().and_then(|port| port.link.vhost()) else {
            return (true, None);
        };
        if vhost.landing().is_none_or(|landing| landing.number != number) {
            return (true, None);
        }
        let left = vhost.end_landing();
        (left.is_some(), left)
    }

    /// Takes rings and memory from a quiet port whose front end went away. Returns them for the caller to
    /// stop listening to its kicks and to unmap: tens of milliseconds for each gigabyte.
    #[must_use = "a worker has no time to unmap memory"]
    pub fn disconnect(&mut self, index: PortIndex) -> Option<ReleasedHalves> {
        self.clear_egress(index);
        self.settle();
        let gone = self.vhost(index)?.disconnect();
        if let Some(port) = &mut self.ports[index as usize] {
            port.broken = false;
        }
        Some(gone)
    }

    /// Returns the link of a port that will change, which is polled again.
    fn vhost(&mut self, index: PortIndex) -> Option<Control<'_>> {
        self.wake_port(index, self.kicks_checked_at(), self.last_woke());
        self.ports[index as usize].as_mut()?.link.vhost()
    }

    /// Returns one of its rings.
    fn ring(&mut self, index: PortIndex, queue: u16) -> Option<&mut Ring> {
        self.vhost(index)?.ring(queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::virtio::memory::RegionSpec;
    use crate::worker::testing;
    use tidegate_frontend::memory::SharedMemory;

    fn memory() -> Arc<GuestMemory> {
        let shared = SharedMemory::new(0, 1 << 16).unwrap();
        let fd = shared.fd().try_clone_to_owned().unwrap();
        let (user_addr, size) = (shared.user_addr(), shared.size());
        Arc::new(
            GuestMemory::map(vec![RegionSpec { guest_addr: 0, user_addr, size, mmap_offset: 0, fd }])
                .unwrap(),
        )
    }

    #[test]
    fn a_worker_leaves_it_to_others_to_unmap_memory() {
        let (mut worker, _handle) = testing::worker();
        testing::add_port(&mut worker, 0);
        let maps = [memory(), memory(), memory()];
        let watch = maps.each_ref().map(Arc::downgrade);
        let there = || watch.each_ref().map(|memory| memory.strong_count() > 0);
        let mut kept = Vec::new();
        for memory in maps {
            kept.push(worker.set_memory(0, &memory).unwrap());
        }
        assert_eq!(there(), [true; 3]);
        kept.clear();
        assert_eq!(there(), [false, false, true]);
        let gone = worker.disconnect(0);
        assert!(there()[2] && worker.set_memory(0, &memory()).unwrap().is_none());
        drop(gone);
        assert!(!there()[2]);
        drop(worker.set_memory(0, &memory()).unwrap());
        let mut port = worker.remove_port(0).unwrap();
        assert!(port.link.vhost().unwrap().has_memory());
    }
}
