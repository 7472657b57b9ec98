//! One owner for each object of the library, and each call of it. An owner keeps alive what its object needs, and gives the object back
//! when it is dropped, so that objects may be dropped in any order. The owner of memory is in `memory`.
//!
//! ```text
//!  Opened ◀── Domain ◀─┬─ Memory
//!  (device)            ├─ Handle (address)
//!                      ├─ Queue (completion queue, its channel)
//!                      └─ Pair ──▶ Queue, Queue
//! ```

use super::batch::Batch;
use super::functions::Functions;
use super::layout::{
    AddressAttributes, AsyncEvent, Channel, CompletionQueue, Context, DeviceAttributes, GidEntry,
    InitAttributes, Opaque, PairAttributes, PortAttributes, QueuePair, ReceiveRequest, SendRequest,
    WorkCompletion,
};
use crate::Error;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::ffi::{CStr, c_int};
use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The one port that is used: devices count from 1.
pub(super) const PORT: u8 = 1;

/// What opens a device, and which file it needs.
const OPEN: &str = "ibv_open_device (it has to read and write /dev/infiniband/uverbs*)";

/// An object of the library.
pub(super) struct Raw<T>(NonNull<T>);

// SAFETY: the library may be called from any thread at any time for any object, but for the call that ends an object (ibv_*(3)). An owner
// makes that call when it is dropped, so no other thread has it. Of the objects we read only what never changes.
unsafe impl<T> Send for Raw<T> {}
// SAFETY: the same.
unsafe impl<T> Sync for Raw<T> {}

impl<T> fmt::Debug for Raw<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T> Raw<T> {
    pub(super) fn as_ptr(&self) -> *mut T {
        self.0.as_ptr()
    }
}

/// An open device.
#[derive(Debug)]
pub(super) struct Opened {
    functions: Arc<Functions>,
    context: Raw<Context>,
}

/// An open device with its protection domain.
#[derive(Debug)]
pub(super) struct Domain {
    opened: Opened,
    raw: Raw<Opaque>,
    /// Most elements of a request.
    elements: u32,
}

/// An address handle.
#[derive(Debug)]
pub(super) struct Handle {
    raw: Raw<Opaque>,
    domain: Arc<Domain>,
}

/// A completion queue, and the channel of its events.
#[derive(Debug)]
pub(super) struct Queue {
    raw: Raw<CompletionQueue>,
    channel: Raw<Channel>,
    domain: Arc<Domain>,
}

/// A queue pair.
#[derive(Debug)]
pub(super) struct Pair {
    raw: Raw<QueuePair>,
    domain: Arc<Domain>,
    queues: [Arc<Queue>; 2],
    undestroyed: Arc<AtomicBool>,
}

/// Returns an object that the library made, or why it made none.
pub(super) fn made<T>(call: &'static str, raw: *mut T) -> Result<Raw<T>, Error> {
    NonNull::new(raw).map(Raw).ok_or_else(|| Error::Call { call, error: io::Error::last_os_error() })
}

/// Reads the answer of a call: 0, an error's number, or -1 with the number elsewhere.
fn done(call: &'static str, answer: c_int) -> Result<(), Error> {
    match answer {
        0 => Ok(()),
        -1 => Err(Error::Call { call, error: io::Error::last_os_error() }),
        error => Err(Error::Call { call, error: io::Error::from_raw_os_error(error.saturating_abs()) }),
    }
}

fn descriptor(number: RawFd) -> Option<BorrowedFd<'static>> {
    // SAFETY: an open descriptor of an object whose owner the callers borrow or just made.
    (number >= 0).then(|| unsafe { BorrowedFd::borrow_raw(number) })
}

fn never_block(call: &'static str, fd: Option<BorrowedFd<'_>>) -> Result<(), Error> {
    let fd = fd.ok_or_else(|| Error::invalid(call))?;
    let set = fcntl_getfl(fd).and_then(|flags| fcntl_setfl(fd, flags | OFlags::NONBLOCK));
    set.map_err(|error| Error::Call { call, error: error.into() })
}

/// Calls `each` with each device and its name until that returns something.
pub(super) fn find_device<T>(
    functions: &Functions,
    mut each: impl FnMut(*mut Opaque, &str) -> Option<T>,
) -> Result<Option<T>, Error> {
    let mut number = 0;
    // SAFETY: it writes to that number.
    let list = unsafe { (functions.get_device_list)(&raw mut number) };
    let list = match made("ibv_get_device_list", list) {
        // The kernel's part, ib_uverbs, is not loaded: it comes with a device.
        Err(Error::Call { error, .. }) if error.raw_os_error() == Some(libc::ENOSYS) => return Ok(None),
        list => list?,
    };
    let mut found = None;
    for i in 0..usize::try_from(number).unwrap_or(0) {
        // SAFETY: the list has that many devices.
        let device = unsafe { *list.as_ptr().add(i) };
        // SAFETY: the device lives as long as the list.
        let name = unsafe { (functions.get_device_name)(device) };
        if name.is_null() {
            continue;
        }
        // SAFETY: a string in the device that ends with a zero.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        found = each(device, &name);
        if found.is_some() {
            break;
        }
    }
    // SAFETY: the list is not used any more. Devices that were opened stay.
    unsafe { (functions.free_device_list)(list.as_ptr()) };
    Ok(found)
}

impl Opened {
    /// Opens a device of [`find_device`].
    fn new(functions: &Arc<Functions>, device: *mut Opaque) -> Result<Self, Error> {
        // SAFETY: the caller has the device from the list, which is still there.
        let context = made(OPEN, unsafe { (functions.open_device)(device) })?;
        let opened = Self { functions: functions.clone(), context };
        // SAFETY: the context is open.
        let events = descriptor(unsafe { (*opened.context.as_ptr()).async_fd });
        never_block("ibv_open_device: its events", events)?;
        Ok(opened)
    }
}

impl Domain {
    /// Opens a device of [`find_device`] and makes a protection domain in it.
    pub(super) fn open(functions: &Arc<Functions>, device: *mut Opaque) -> Result<Arc<Self>, Error> {
        let opened = Opened::new(functions, device)?;
        // SAFETY: the context is open.
        let raw = made("ibv_alloc_pd", unsafe { (functions.alloc_pd)(opened.context.as_ptr()) })?;
        let mut domain = Self { opened, raw, elements: 0 };
        domain.elements = domain.ask_elements()?;
        Ok(Arc::new(domain))
    }

    fn ask_elements(&self) -> Result<u32, Error> {
        let mut attributes = DeviceAttributes::default();
        // SAFETY: it writes to the attributes, and not beyond them.
        let answer = unsafe { (self.functions().query_device)(self.context(), &raw mut attributes) };
        done("ibv_query_device", answer)?;
        Ok(attributes.max_sge.max(0).unsigned_abs())
    }

    pub(super) fn raw(&self) -> *mut Opaque {
        self.raw.as_ptr()
    }

    /// Returns the most elements of a request, as the device told when it was opened.
    pub(super) fn elements(&self) -> u32 {
        self.elements
    }

    pub(super) fn functions(&self) -> &Functions {
        &self.opened.functions
    }

    fn context(&self) -> *mut Context {
        self.opened.context.as_ptr()
    }

    pub(super) fn port(&self) -> Result<PortAttributes, Error> {
        let mut attributes = PortAttributes::default();
        // SAFETY: it writes to the attributes, and not beyond them.
        let answer = unsafe { (self.functions().query_port)(self.context(), PORT, &raw mut attributes) };
        done("ibv_query_port", answer)?;
        Ok(attributes)
    }

    /// Returns a GID of the port, if there is one at this index of its table.
    pub(super) fn gid(&self, index: u8) -> Result<Option<GidEntry>, Error> {
        let (mut entry, size) = (GidEntry::default(), size_of::<GidEntry>());
        // SAFETY: it writes to an entry of that size.
        let answer = unsafe {
            (self.functions().query_gid)(self.context(), PORT.into(), index.into(), &raw mut entry, 0, size)
        };
        match done("ibv_query_gid_ex", answer) {
            Ok(()) => Ok(Some(entry)),
            Err(Error::Call { error, .. }) if error.raw_os_error() == Some(libc::ENODATA) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes and drops what the device has to tell of itself: the kernel would keep each event for as long as the device is open.
    pub(super) fn drop_events(&self) {
        let mut event = AsyncEvent { element: null_mut(), event_type: 0 };
        // A bound: a device in trouble may tell something all the time.
        for _ in 0..1024 {
            // SAFETY: it writes the event. The descriptor does not block.
            if unsafe { (self.functions().get_async_event)(self.context(), &raw mut event) } != 0 {
                return;
            }
            // SAFETY: an event just taken. A thread that ends its object at this moment waits for this call.
            unsafe { (self.functions().ack_async_event)(&raw mut event) };
        }
    }
}

impl Handle {
    pub(super) fn new(domain: &Arc<Domain>, mut attributes: AddressAttributes) -> Result<Self, Error> {
        // SAFETY: the domain is there; it reads the attributes.
        let raw = unsafe { (domain.functions().create_ah)(domain.raw.as_ptr(), &raw mut attributes) };
        Ok(Self { raw: made("ibv_create_ah", raw)?, domain: domain.clone() })
    }

    pub(super) fn raw(&self) -> *mut Opaque {
        self.raw.as_ptr()
    }

    pub(super) fn is_of(&self, domain: &Arc<Domain>) -> bool {
        Arc::ptr_eq(&self.domain, domain)
    }
}

impl Queue {
    pub(super) fn new(domain: &Arc<Domain>, entries: c_int) -> Result<Arc<Self>, Error> {
        let functions = domain.functions();
        // SAFETY: the context is open.
        let channel =
            made("ibv_create_comp_channel", unsafe { (functions.create_comp_channel)(domain.context()) })?;
        match Self::create(domain, &channel, entries) {
            Ok(raw) => Ok(Arc::new(Self { raw, channel, domain: domain.clone() })),
            Err(error) => {
                // SAFETY: nothing uses the channel.
                unsafe { (functions.destroy_comp_channel)(channel.as_ptr()) };
                Err(error)
            }
        }
    }

    fn create(
        domain: &Domain,
        channel: &Raw<Channel>,
        entries: c_int,
    ) -> Result<Raw<CompletionQueue>, Error> {
        // SAFETY: the channel was just made.
        never_block("ibv_create_comp_channel: its events", descriptor(unsafe { (*channel.as_ptr()).fd }))?;
        // SAFETY: the context is open; completion vector 0 is there on each device.
        let raw = unsafe {
            (domain.functions().create_cq)(domain.context(), entries, null_mut(), channel.as_ptr(), 0)
        };
        made("ibv_create_cq", raw)
    }

    /// Takes completions.
    pub(super) fn poll(&self, to: &mut [WorkCompletion]) -> Result<usize, Error> {
        let call = "ibv_poll_cq";
        let most = c_int::try_from(to.len()).unwrap_or(c_int::MAX);
        // SAFETY: the queue and its context live as long as this owner. It writes up to that many completions.
        let found = unsafe {
            let poll = (*(*self.raw.as_ptr()).context).ops.poll_cq.ok_or_else(|| Error::invalid(call))?;
            poll(self.raw.as_ptr(), most, to.as_mut_ptr())
        };
        if found < 0 {
            return Err(Error::Call { call, error: io::Error::from_raw_os_error(libc::EIO) });
        }
        Ok((found as usize).min(to.len()))
    }

    pub(super) fn arm(&self) -> Result<(), Error> {
        let call = "ibv_req_notify_cq";
        // SAFETY: the queue and its context live as long as this owner.
        let answer = unsafe {
            let arm =
                (*(*self.raw.as_ptr()).context).ops.req_notify_cq.ok_or_else(|| Error::invalid(call))?;
            arm(self.raw.as_ptr(), 0)
        };
        done(call, answer)
    }

    /// Takes an event and acknowledges it. Each [`arm`](Self::arm) makes one at most: to look for a second one
    /// would be a system call for each frame.
    pub(super) fn take_event(&self) {
        let (mut queue, mut context) = (null_mut(), null_mut());
        // SAFETY: it writes both pointers. The channel has this queue alone, and does not block.
        let answer = unsafe {
            (self.domain.functions().get_cq_event)(self.channel.as_ptr(), &raw mut queue, &raw mut context)
        };
        if answer == 0 {
            // SAFETY: one event of this queue was just taken.
            unsafe { (self.domain.functions().ack_cq_events)(self.raw.as_ptr(), 1) };
        }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is open as long as its owner lives; `create` checked that it has a descriptor.
        unsafe { BorrowedFd::borrow_raw((*self.channel.as_ptr()).fd) }
    }

    pub(super) fn is_of(&self, domain: &Arc<Domain>) -> bool {
        Arc::ptr_eq(&self.domain, domain)
    }
}

impl Pair {
    /// Makes a queue pair of `attributes`, whose queues are filled in.
    pub(super) fn new(
        domain: &Arc<Domain>,
        sends: &Arc<Queue>,
        receives: &Arc<Queue>,
        mut attributes: InitAttributes,
    ) -> Result<Self, Error> {
        attributes.send_cq = sends.raw.as_ptr();
        attributes.recv_cq = receives.raw.as_ptr();
        // SAFETY: the domain and both queues are there. It reads the attributes, and writes what it gives into them.
        let raw = unsafe { (domain.functions().create_qp)(domain.raw.as_ptr(), &raw mut attributes) };
        let raw = made("ibv_create_qp", raw)?;
        let queues = [sends.clone(), receives.clone()];
        Ok(Self { raw, domain: domain.clone(), queues, undestroyed: Arc::default() })
    }

    pub(super) fn number(&self) -> u32 {
        // SAFETY: the object lives as long as its owner.
        unsafe { (*self.raw.as_ptr()).qp_num }
    }

    pub(super) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// Returns what its drop sets if the library does not destroy it.
    pub(super) fn undestroyed(&self) -> Arc<AtomicBool> {
        self.undestroyed.clone()
    }

    pub(super) fn modify(&self, mut attributes: PairAttributes, mask: c_int) -> Result<(), Error> {
        // SAFETY: the object lives as long as its owner; it reads the attributes.
        let answer =
            unsafe { (self.domain.functions().modify_qp)(self.raw.as_ptr(), &raw mut attributes, mask) };
        done("ibv_modify_qp", answer)
    }

    /// Posts datagrams.
    ///
    /// # Safety
    /// The memory that the requests name belongs to the device until their completions; their addresses are of its domain.
    ///
    /// # Errors
    /// How many of them were taken, and why no more were.
    pub(super) unsafe fn send(&self, batch: &mut Batch<SendRequest>) -> Result<(), (usize, Error)> {
        let call = "ibv_post_send";
        let (first, mut bad) = (batch.chained(), null_mut());
        // SAFETY: the pair and its context live as long as this owner, the chain as long as the batch; the rest is the caller's promise.
        let answer = unsafe {
            let post =
                (*(*self.raw.as_ptr()).context).ops.post_send.ok_or_else(|| (0, Error::invalid(call)))?;
            post(self.raw.as_ptr(), first, &raw mut bad)
        };
        done(call, answer).map_err(|error| (taken(first, bad, batch.len()), error))
    }

    /// Posts buffers.
    ///
    /// # Safety
    /// The memory that the requests name belongs to the device until their completions.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub(super) unsafe fn receive(&self, batch: &mut Batch<ReceiveRequest>) -> Result<(), (usize, Error)> {
        let call = "ibv_post_recv";
        let (first, mut bad) = (batch.chained(), null_mut());
        // SAFETY: the pair and its context live as long as this owner, the chain as long as the batch; the rest is the caller's promise.
        let answer = unsafe {
            let post =
                (*(*self.raw.as_ptr()).context).ops.post_recv.ok_or_else(|| (0, Error::invalid(call)))?;
            post(self.raw.as_ptr(), first, &raw mut bad)
        };
        done(call, answer).map_err(|error| (taken(first, bad, batch.len()), error))
    }
}

/// Returns how many of `len` requests the device took, the first of them at `first`, when the one at `bad` was the first that it did not
/// take. Where it names none, it took all, and failed afterwards (rxe: the doorbell): they stay the device's until they are flushed.
fn taken<T>(first: *const T, bad: *const T, len: usize) -> usize {
    let bytes = bad.addr().wrapping_sub(first.addr());
    if bad.is_null() { len } else { (bytes / size_of::<T>()).min(len) }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: all objects of the context are gone: their owners kept it alive.
        unsafe { (self.functions.close_device)(self.context.as_ptr()) };
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: all objects of the domain are gone.
        unsafe { (self.functions().dealloc_pd)(self.raw.as_ptr()) };
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the owner alone uses the handle. Requests that name it fail, or have a copy of it.
        unsafe { (self.domain.functions().destroy_ah)(self.raw.as_ptr()) };
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: its queue pairs are gone: they kept it alive. All events that were taken are acknowledged, so it does not wait.
        let is_gone = unsafe { (self.domain.functions().destroy_cq)(self.raw.as_ptr()) } == 0;
        if is_gone {
            // SAFETY: its only queue is gone.
            unsafe { (self.domain.functions().destroy_comp_channel)(self.channel.as_ptr()) };
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // SAFETY: the owner alone uses the pair.
        if unsafe { (self.domain.functions().destroy_qp)(self.raw.as_ptr()) } != 0 {
            self.undestroyed.store(true, Ordering::Release);
            // It still has them.
            std::mem::forget((self.domain.clone(), self.queues.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_before_the_bad_one_were_taken() {
        let requests = [0_u64; 4];
        let first = requests.as_ptr();
        for (bad, expected) in [(0, 0), (1, 1), (3, 3), (9, 4)] {
            assert_eq!(taken(first, first.wrapping_add(bad), 4), expected);
        }
        assert_eq!(taken(first, std::ptr::null(), 4), 4);
        assert_eq!(taken(first, first.wrapping_sub(1), 4), 4, "never more than there are");
    }

    #[test]
    fn answers_are_numbers_of_errors() {
        assert!(done("call", 0).is_ok());
        for answer in [libc::EACCES, -libc::EACCES] {
            let error = done("call", answer).unwrap_err();
            assert!(error.to_string().starts_with("call: Permission denied"), "{error}");
        }
    }
}
