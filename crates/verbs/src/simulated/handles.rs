//! Regions, addresses, completion queues and queue pairs: the parts of a device that are made and dropped.
//!
//! ```text
//!  Sending: Region, Address ─ of this device? ─▶ SendRequest ─▶ QueuePair ─▶ Network ─▶ CompletionQueue ─▶ Completion
//! ```

use super::device::Device;
use super::memory::Memory;
use super::network::error;
use super::pair::{Bytes, Pair, ReceiveRequest, SendRequest};
use super::queue::{ENTRIES_MAX, Queue};
use crate::{Access, Completion, Depths, Error};
use std::any::Any;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Registered memory.
#[derive(Debug)]
pub(crate) struct Region {
    memory: Arc<Memory>,
    access: Access,
    device: Device,
    /// Bytes of others that it has.
    foreign: usize,
}

impl Drop for Region {
    fn drop(&mut self) {
        self.device.with(|machine| machine.foreign -= self.foreign);
    }
}

impl Region {
    pub(crate) fn new(device: &Device, bytes: usize) -> Result<Self, Error> {
        let call = "ibv_reg_mr";
        device.check(call)?;
        let memory = Memory::new(bytes).ok_or(Error::Call { call, error: error(libc::ENOMEM) })?;
        Ok(Self { memory: Arc::new(memory), access: Access::Write, device: device.clone(), foreign: 0 })
    }

    /// # Safety
    /// As the public function.
    pub(crate) unsafe fn over(
        device: &Device,
        start: *mut u8,
        len: usize,
        owner: Arc<dyn Any + Send + Sync>,
        access: Access,
    ) -> Result<Self, Error> {
        while device.with(|machine| machine.pins_slowly) {
            std::thread::sleep(Duration::from_millis(1));
        }
        device.check("ibv_reg_mr")?;
        // SAFETY: the caller's promise.
        let memory = Arc::new(unsafe { Memory::over(start, len, owner) });
        device.with(|machine| machine.foreign += len);
        Ok(Self { memory, access, device: device.clone(), foreign: len })
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

    /// Returns bytes of it; `None` if some are beyond its end, or it is not of `device`.
    fn bytes(&self, device: &Device, from: usize, len: u32) -> Option<Bytes> {
        let may = self.device.is(device) && self.memory.has(from, len as usize);
        may.then(|| Bytes { memory: Arc::downgrade(&self.memory), from, len })
    }
}

/// Returns the bytes of all pieces; `None` if the device may not do this with one of them.
fn bytes_of(device: &Device, pieces: &[Piece<'_>], access: Access) -> Option<Vec<Bytes>> {
    let of = |piece: &Piece<'_>| {
        let may = access == Access::Read || piece.region.access == Access::Write;
        piece.region.bytes(device, piece.from, piece.len).filter(|_| may)
    };
    pieces.iter().map(of).collect()
}

/// A piece of memory.
pub(crate) struct Piece<'a> {
    pub(crate) region: &'a Region,
    pub(crate) from: usize,
    pub(crate) len: u32,
}

/// A buffer to post.
pub(crate) struct Receiving<'a> {
    pub(crate) id: u64,
    pub(crate) pieces: Vec<Piece<'a>>,
}

/// Another host, and how datagrams go to it.
#[derive(Debug)]
pub(crate) struct Address {
    device: Device,
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
        Ok(Self { device: device.clone(), from, to, traffic_class })
    }
}

/// A datagram to send, by parts of the device.
pub(crate) struct Sending<'a> {
    pub(crate) id: u64,
    pub(crate) pieces: Vec<Piece<'a>>,
    pub(crate) is_signalled: bool,
    pub(crate) to: &'a Address,
    pub(crate) queue_pair: u32,
    pub(crate) q_key: u32,
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

    pub(crate) fn take_event(&self) {
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
    queues: [Arc<Place>; 2],
    undestroyed: Arc<AtomicBool>,
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
        let is_of_device = |place: &Arc<Place>| place.device.is(device);
        if !places.iter().all(is_of_device) || depths.iter().any(|&depth| depth == 0 || depth > ENTRIES_MAX) {
            return Err(Error::invalid(call));
        }
        let pair = Pair::new([places[0].number, places[1].number], depths, q_key);
        let number = device.fabric().lock().add_pair(device.index(), pair);
        Ok(Self { device: device.clone(), number, queues: places, undestroyed: Arc::default() })
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn undestroyed(&self) -> Arc<AtomicBool> {
        self.undestroyed.clone()
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
    pub(crate) unsafe fn post_send<'a>(
        &self,
        sends: impl Iterator<Item = Result<Sending<'a>, Error>>,
    ) -> Result<(), (usize, Error)> {
        let call = "ibv_post_send";
        let requests = sends.map(|send| self.send_request(&send?).ok_or(Error::invalid(call)));
        let post =
            |requests| self.device.fabric().lock().post_send(self.device.index(), self.number, requests);
        post_first(call, requests, post)
    }

    /// # Safety
    /// The bytes belong to the device until the completion of the request.
    pub(crate) unsafe fn post_receive<'a>(
        &self,
        receives: impl Iterator<Item = Result<Receiving<'a>, Error>>,
    ) -> Result<(), (usize, Error)> {
        let call = "ibv_post_recv";
        let request = |receive: Receiving<'_>| {
            let pieces = bytes_of(&self.device, &receive.pieces, Access::Write);
            Some(ReceiveRequest { id: receive.id, pieces: pieces? })
        };
        let requests = receives.map(|receive| request(receive?).ok_or(Error::invalid(call)));
        let post =
            |requests| self.device.fabric().lock().post_receive(self.device.index(), self.number, requests);
        post_first(call, requests, post)
    }

    /// Returns the request of a datagram; `None` if a part is not of this device.
    fn send_request(&self, send: &Sending<'_>) -> Option<SendRequest> {
        let pieces = bytes_of(&self.device, &send.pieces, Access::Read)?;
        let Address { device, from, to, traffic_class } = send.to;
        device.is(&self.device).then_some(SendRequest {
            id: send.id,
            pieces,
            is_signalled: send.is_signalled,
            from: *from,
            to: *to,
            traffic_class: *traffic_class,
            queue_pair: send.queue_pair,
            q_key: send.q_key,
        })
    }

    pub(crate) fn fail(&self) -> Result<(), Error> {
        self.device.check("ibv_modify_qp")?;
        self.device.fabric().lock().fail(self.device.index(), self.number);
        Ok(())
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let (mut network, index) = (self.device.fabric().lock(), self.device.index());
        // A device that was taken out has none any more.
        if network.machines[index].is_gone || network.check_call(index, "ibv_destroy_qp").is_ok() {
            network.machines[index].pairs.remove(&self.number);
        } else {
            self.undestroyed.store(true, Ordering::Release);
            std::mem::forget(self.queues.clone());
        }
    }
}

/// Posts the requests before the first that is refused.
///
/// # Errors
/// How many were posted, and why no more were.
fn post_first<R>(
    call: &'static str,
    requests: impl Iterator<Item = Result<R, Error>>,
    post: impl FnOnce(Vec<R>) -> Result<(), (usize, io::Error)>,
) -> Result<(), (usize, Error)> {
    let (mut good, mut refused) = (vec![], None);
    for request in requests {
        match request {
            Ok(request) => good.push(request),
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    let count = good.len();
    post(good).map_err(|(taken, error)| (taken, Error::Call { call, error }))?;
    refused.map_or(Ok(()), |error| Err((count, error)))
}
