//! Regions, addresses, completion queues and queue pairs: the parts of a device that are made and dropped.
//!
//! ```text
//!  Region ─ bytes ─┐
//!  Address ─ send ─┴▶ SendRequest ─▶ QueuePair ─▶ Network ─▶ CompletionQueue ─▶ Completion
//! ```

use super::device::Device;
use super::memory::Memory;
use super::network::error;
use super::pair::{Bytes, Pair, ReceiveRequest, SendRequest};
use super::queue::{ENTRIES_MAX, Queue};
use crate::{Completion, Depths, Error};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Registered memory.
#[derive(Debug)]
pub(crate) struct Region {
    memory: Arc<Memory>,
    device: usize,
}

impl Region {
    pub(crate) fn new(device: &Device, bytes: usize) -> Result<Self, Error> {
        let call = "ibv_reg_mr";
        device.check(call)?;
        let memory = Memory::new(bytes).ok_or(Error::Call { call, error: error(libc::ENOMEM) })?;
        Ok(Self { memory: Arc::new(memory), device: device.index() })
    }

    pub(crate) fn len(&self) -> usize {
        self.memory.len()
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.memory.start()
    }

    pub(crate) fn local_key(&self) -> u32 {
        (self.memory.start() as usize >> 12) as u32
    }

    fn bytes(&self, from: usize, len: u32) -> Bytes {
        Bytes { memory: Arc::downgrade(&self.memory), device: self.device, from, len }
    }

    /// Returns the request of a buffer in this region.
    pub(crate) fn receive(&self, id: u64, from: usize, len: u32) -> ReceiveRequest {
        ReceiveRequest { id, bytes: self.bytes(from, len) }
    }
}

/// Another host, and how datagrams go to it.
#[derive(Debug)]
pub(crate) struct Address {
    from: IpAddr,
    to: IpAddr,
    traffic_class: u8,
}

impl Address {
    pub(crate) fn new(device: &Device, from: u8, to: IpAddr, traffic_class: u8) -> Result<Self, Error> {
        let call = "ibv_create_ah";
        device.check(call)?;
        let refused = |number| Error::Call { call, error: error(number) };
        let gid = device.gids()?.into_iter().find(|gid| gid.index == from && gid.is_roce_v2);
        let from = gid.ok_or(refused(libc::EINVAL))?.address;
        if from.is_ipv4() != to.is_ipv4() {
            return Err(refused(libc::EINVAL));
        }
        let network = device.fabric().lock();
        if !network.machines.iter().any(|machine| machine.addresses.contains(&to)) {
            return Err(refused(libc::EHOSTUNREACH));
        }
        Ok(Self { from, to, traffic_class })
    }

    /// Returns the request of a datagram to this host, with the keys of a queue pair there.
    pub(crate) fn send(
        &self,
        (id, is_signalled): (u64, bool),
        (region, from, len): (&Region, usize, u32),
        (queue_pair, q_key): (u32, u32),
    ) -> SendRequest {
        let bytes = region.bytes(from, len);
        let Self { from, to, traffic_class } = *self;
        SendRequest { id, bytes, is_signalled, from, to, traffic_class, queue_pair, q_key }
    }
}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    place: Arc<Place>,
}

/// A completion queue's place in the fabric, which its queue pairs hold as well.
#[derive(Debug)]
struct Place {
    device: Device,
    number: u64,
    event: Arc<OwnedFd>,
}

impl CompletionQueue {
    pub(crate) fn new(device: &Device, entries: u32) -> Result<Self, Error> {
        let call = "ibv_create_cq";
        device.check(call)?;
        let queue = Queue::new(entries).map_err(|error| Error::Call { call, error })?;
        let event = queue.event().clone();
        let number = device.fabric().lock().add_queue(queue);
        Ok(Self { place: Arc::new(Place { device: device.clone(), number, event }) })
    }

    pub(crate) fn poll(&self, to: &mut [Completion]) -> Result<usize, Error> {
        let Place { device, number, .. } = &*self.place;
        let polled = device.fabric().lock().poll(device.index(), *number, to);
        polled.map_err(|error| Error::Call { call: "ibv_poll_cq", error })
    }

    pub(crate) fn arm(&self) -> Result<(), Error> {
        let Place { device, number, .. } = &*self.place;
        let call = "ibv_req_notify_cq";
        device.check(call)?;
        let mut network = device.fabric().lock();
        let queue = network.queues.get_mut(number).ok_or(Error::invalid(call))?;
        queue.arm().map_err(|error| Error::Call { call, error })
    }

    pub(crate) fn take_events(&self) {
        // Reading sets the counter to 0; without events there is nothing to read.
        let _ = rustix::io::read(&self.place.event, &mut [0; 8]);
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.place.event.as_fd()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.device.fabric().lock().queues.remove(&self.number);
    }
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct QueuePair {
    device: Device,
    number: u32,
    _queues: [Arc<Place>; 2],
}

impl QueuePair {
    pub(crate) fn new(
        device: &Device,
        sends: &CompletionQueue,
        receives: &CompletionQueue,
        depths: Depths,
        q_key: u32,
    ) -> Result<Self, Error> {
        let call = "ibv_create_qp";
        device.check(call)?;
        let places = [sends, receives].map(|queue| queue.place.clone());
        let depths = [depths.send, depths.receive];
        let is_of_device = |place: &Arc<Place>| {
            place.device.index() == device.index() && place.device.fabric().is(device.fabric())
        };
        if !places.iter().all(is_of_device) || depths.iter().any(|&depth| depth == 0 || depth > ENTRIES_MAX) {
            return Err(Error::invalid(call));
        }
        let pair = Pair::new([places[0].number, places[1].number], depths, q_key);
        let number = device.fabric().lock().add_pair(device.index(), pair);
        Ok(Self { device: device.clone(), number, _queues: places })
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn set_q_key(&self, q_key: u32) -> Result<(), Error> {
        let call = "ibv_modify_qp";
        self.device.check(call)?;
        let mut network = self.device.fabric().lock();
        let pair = network.machines[self.device.index()].pairs.get_mut(&self.number);
        let pair = pair.filter(|pair| !pair.has_failed).ok_or(Error::invalid(call))?;
        pair.q_key = q_key;
        Ok(())
    }

    /// # Safety
    /// The bytes belong to the device until the completion of the request, or of a later one.
    pub(crate) unsafe fn post_send(
        &self,
        requests: impl Iterator<Item = SendRequest>,
    ) -> Result<(), (usize, Error)> {
        let mut network = self.device.fabric().lock();
        let posted = network.post_send(self.device.index(), self.number, requests);
        posted.map_err(|refused| of_call("ibv_post_send", refused))
    }

    /// # Safety
    /// The bytes belong to the device until the completion of the request.
    pub(crate) unsafe fn post_receive(
        &self,
        requests: impl Iterator<Item = ReceiveRequest>,
    ) -> Result<(), (usize, Error)> {
        let mut network = self.device.fabric().lock();
        let posted = network.post_receive(self.device.index(), self.number, requests);
        posted.map_err(|refused| of_call("ibv_post_recv", refused))
    }

    pub(crate) fn fail(&self) -> Result<(), Error> {
        self.device.check("ibv_modify_qp")?;
        self.device.fabric().lock().fail(self.device.index(), self.number);
        Ok(())
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.device.fabric().lock().machines[self.device.index()].pairs.remove(&self.number);
    }
}

fn of_call(call: &'static str, (taken, error): (usize, io::Error)) -> (usize, Error) {
    (taken, Error::Call { call, error })
}
