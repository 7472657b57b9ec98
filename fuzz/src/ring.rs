//! A device at work on a ring whose driver writes anything anywhere between any two of its steps.
//!
//! ```text
//!  bytes ─▶ step, step, step, ...
//!            │ driver: a descriptor, an index, a chain as it should be, raw bytes    ─▶ guest memory
//!            └ device: look, pop, pop singles, put back, rewind, complete, publish,
//!                      be killed and recovered                                       ─▶ the queue
//! ```
//!
//! The device keeps to its own contract (it completes what it popped, once), as the worker does.

use crate::bytes::Bytes;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::sync::Arc;
use tidegate_switch::virtio::memory::RegionSpec;
use tidegate_switch::virtio::{
    Chain, Features, GuestMemory, Inflight, MAX_CHAIN_BYTES, MAX_SPANS, Queue, RingLayout, Single, Span,
};

/// Guest addresses of two regions side by side, and of one behind a hole. User addresses are the same.
const REGIONS: [(u64, u64); 3] = [(0x1000, 0x4000), (0x5000, 0x1000), (0x8000, 0x1000)];
/// The step at which the device is killed, and another one takes its place.
const KILLED: u8 = 0x7f;
/// Entries of the largest ring.
const MOST: u16 = 128;
/// Where the descriptors are,
const DESC: u64 = 0x1000;
/// the available ring or, packed, the driver's events,
const AVAIL: u64 = 0x2000;
/// the used ring or the device's events,
const USED: u64 = 0x3000;
/// and indirect tables.
const TABLE: u64 = 0x4000;

/// The memory of a guest, made once for each thread.
struct Guest {
    memory: Arc<GuestMemory>,
    /// Where each region is in this process.
    mapped: [*mut u8; 3],
    /// What a queue leaves to its successor, which the front end may write to as well.
    inflight: Inflight,
}

thread_local! {
    static GUEST: Guest = Guest::new();
}

impl Guest {
    fn new() -> Self {
        let region = |(guest_addr, size): (u64, u64)| {
            let fd = memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("a memfd");
            ftruncate(&fd, size).expect("its length");
            RegionSpec { guest_addr, user_addr: guest_addr, size, mmap_offset: 0, fd }
        };
        let memory = GuestMemory::map(REGIONS.map(region)).expect("mapped");
        let mapped = REGIONS.map(|(at, size)| memory.translate(at, size).expect("a region"));
        let inflight = Inflight::create(2, MOST).expect("a region");
        Self { memory: Arc::new(memory), mapped, inflight }
    }

    fn clear(&self) {
        for (start, (_, size)) in self.mapped.iter().zip(REGIONS) {
            // SAFETY: a mapped region of that size, of this thread alone.
            unsafe { start.write_bytes(0, size as usize) };
        }
        self.write_inflight(0, &vec![0; self.inflight.bytes() as usize - INFLIGHT_HEADER]);
    }

    /// Writes to the region behind its header, which is read only before it is mapped.
    fn write_inflight(&self, at: usize, bytes: &[u8]) {
        let room = (self.inflight.bytes() as usize - INFLIGHT_HEADER).saturating_sub(at);
        let bytes = &bytes[..bytes.len().min(room)];
        rustix::io::pwrite(self.inflight.fd(), bytes, (INFLIGHT_HEADER + at) as u64)
            .expect("a memfd takes it");
    }

    /// Writes what of `bytes` is inside a region.
    fn write(&self, at: u64, bytes: &[u8]) {
        for (i, byte) in (0..).zip(bytes) {
            if let Some(to) = self.memory.translate(at.wrapping_add(i), 1) {
                // SAFETY: one mapped byte, of this thread alone.
                unsafe { to.write(*byte) };
            }
        }
    }

    /// Two bytes of a region.
    fn read_u16(&self, at: u64) -> u16 {
        let from = self.memory.translate(at, 2).expect("in a region");
        // SAFETY: two mapped bytes, of this thread alone.
        u16::from_le_bytes(unsafe { from.cast::<[u8; 2]>().read() })
    }

    /// Whether all of a span is in one region.
    fn contains(&self, span: &Span) -> bool {
        self.mapped.iter().zip(REGIONS).any(|(start, (_, size))| {
            let offset = span.ptr.addr().wrapping_sub(start.addr()) as u64;
            offset < size && u64::from(span.len) <= size - offset
        })
    }
}

/// Bytes before the queues of an in-flight region.
const INFLIGHT_HEADER: usize = 128;

/// The driver's own idea of where it is.
struct Driver {
    packed: bool,
    size: u16,
    /// Split: the next available index. Packed: the next place.
    next: u16,
    wrap: bool,
}

impl Driver {
    fn desc(&self, guest: &Guest, at: u64, addr: u64, len: u32, flags: u16, link: u16) {
        let rest = match self.packed {
            true => [link.to_le_bytes(), flags.to_le_bytes()],
            false => [flags.to_le_bytes(), link.to_le_bytes()],
        };
        guest.write(at, &addr.to_le_bytes());
        guest.write(at + 8, &len.to_le_bytes());
        guest.write(at + 12, &rest.concat());
    }

    /// One descriptor where the device looks next, and the sign that it is there.
    fn offer(&mut self, guest: &Guest, addr: u64, len: u32, flags: u16, link: u16) {
        let slot = self.next % self.size;
        if self.packed {
            let mine = if self.wrap { 1 << 7 } else { 1 << 15 };
            let flags = flags & !(1 << 7 | 1 << 15) | mine;
            self.desc(guest, DESC + 16 * u64::from(slot), addr, len, flags, link);
            self.next = slot + 1;
            if self.next == self.size {
                (self.next, self.wrap) = (0, !self.wrap);
            }
            return;
        }
        self.desc(guest, DESC + 16 * u64::from(slot), addr, len, flags, link);
        guest.write(AVAIL + 4 + 2 * u64::from(slot), &slot.to_le_bytes());
        self.next = self.next.wrapping_add(1);
        guest.write(AVAIL + 2, &self.next.to_le_bytes());
    }
}

/// An address, mostly of something.
fn address(bytes: &mut Bytes) -> u64 {
    match bytes.u8() {
        kind @ 0..=0xdf => 0x1000 + u64::from(kind % 8) * 0x1000 + u64::from(bytes.u16() % 0x1000),
        0xe0..=0xef => u64::MAX - u64::from(bytes.u8()),
        _ => bytes.u64(),
    }
}

/// What the device holds.
#[derive(Default)]
struct Held {
    /// Heads popped and not completed, in the order of their pops.
    heads: Vec<u16>,
    /// Chains that a predecessor is known to have popped, by the base and the used index alone: they
    /// never come back.
    before: u16,
    /// How many of the last of them may be rewound: nothing was completed since.
    fresh: usize,
}

/// Takes `data` for a ring and steps on it.
///
/// # Panics
/// Where the queue hands out what is not the guest's, or loses count.
pub fn run(data: &[u8]) {
    GUEST.with(|guest| run_on(guest, data));
}

fn run_on(guest: &Guest, data: &[u8]) {
    guest.clear();
    let mut bytes = Bytes::new(data);
    let kind = bytes.u8();
    let (packed, writable, in_order) = (kind & 1 != 0, kind & 8 != 0, kind & 0x40 != 0);
    let features = Features { packed, event_idx: kind & 2 != 0, indirect: kind & 4 != 0, in_order };
    let size = match packed {
        true => 1 + u16::from(bytes.u8()) % MOST,
        false => 1 << (bytes.u8() % 8),
    };
    let base = match (kind >> 4) & 3 {
        0 => bytes.u32(),
        1 => bytes.u16().into(),
        _ => Queue::first_base(packed),
    };
    if !packed {
        guest.write(USED + 2, &(base as u16).to_le_bytes());
        guest.write(AVAIL + 2, &(base as u16).to_le_bytes());
    }
    let layout = RingLayout { size, desc: DESC, avail: AVAIL, used: USED };
    let start = |base| {
        let inflight = if kind & 0x80 != 0 { guest.inflight.queue(u16::from(!writable)) } else { None };
        Queue::with_inflight(guest.memory.clone(), layout, base, features, inflight)
    };
    let Ok(mut queue) = start(base) else { return };
    let (next, wrap) = match packed {
        true => (base as u16 & 0x7fff, base & 0x8000 != 0),
        false => (base as u16, true),
    };
    let mut driver = Driver { packed, size, next, wrap };
    let mut held = Held { before: queue.in_flight(), ..Held::default() };
    let mut lied = false;
    while !bytes.is_empty() {
        let step = bytes.u8();
        if step == KILLED {
            if kind & 0x80 == 0 {
                continue;
            }
            // Nothing is said to the queue: its successor finds what it left.
            match start(queue.base()) {
                Ok(successor) => queue = successor,
                Err(error) => return assert!(!error.to_string().is_empty()),
            }
            (held, lied) = (Held { before: queue.in_flight(), ..Held::default() }, false);
        } else if step & 0x80 != 0 {
            drive(guest, &mut driver, step & 0x7f, &mut bytes);
        } else if !work(guest, &mut queue, &mut held, step, writable, lied, &mut bytes) {
            // Nothing is popped any more; what is in flight still comes back.
            lied = true;
        }
        let (in_flight, kept) = (usize::from(queue.in_flight()), usize::from(held.before) + held.heads.len());
        // In order, what is done may have to wait for what is not.
        assert!(in_flight == kept || in_order && in_flight > kept, "{in_flight} in flight, {kept} kept");
        assert!(queue.in_flight() <= size, "{} in flight of {size}", queue.in_flight());
    }
    for head in held.heads.drain(..) {
        queue.complete(head, 0);
    }
    let _ = queue.publish();
    // A used place of 0 in the round of 0 is not told from a front end that leaves it out.
    let told = !packed || queue.base() >> 16 != 0;
    // In order, what the used index does not show is popped again; the driver may have written to that index.
    let shown = packed || guest.read_u16(USED + 2) == queue.base() as u16;
    let settled = !in_order || queue.in_flight() == 0 && shown;
    if told
        && settled
        && let Ok(again) = Queue::new(guest.memory.clone(), layout, queue.base(), features)
    {
        assert_eq!(again.base(), queue.base());
    }
}

/// A step of the driver.
fn drive(guest: &Guest, driver: &mut Driver, step: u8, bytes: &mut Bytes) {
    match step % 8 {
        // As it should be, or nearly: one buffer.
        0 | 1 => {
            let (addr, len, link) = (address(bytes), u32::from(bytes.u16()), u16::from(bytes.u8()));
            driver.offer(guest, addr, len, u16::from(step >> 3) & 7, link);
        }
        2 => {
            let table = TABLE + u64::from(step >> 3) * 16;
            driver.offer(guest, table, bytes.u16().into(), 4, bytes.u8().into());
        }
        // Any descriptor of the ring or of a table.
        3 | 4 => {
            let start = if step % 8 == 3 { DESC } else { TABLE };
            let at = start + 16 * u64::from(bytes.u8());
            let (addr, len) = (address(bytes), bytes.u32());
            driver.desc(guest, at, addr, len, bytes.u16(), bytes.u16());
        }
        5 => {
            driver.next = driver.next.wrapping_add(u16::from(bytes.u8()))
                % if driver.packed { driver.size } else { u16::MAX }
        }
        // The index and its like, of either side.
        6 => {
            let at = [AVAIL, AVAIL + 2, USED, USED + 2][usize::from(step >> 3 & 3)];
            guest.write(at, &bytes.u16().to_le_bytes());
        }
        _ if step & 8 != 0 => {
            let at = bytes.u16() % 0x2000;
            let len = bytes.u8() & 31;
            guest.write_inflight(at.into(), bytes.take(len.into()));
        }
        _ => {
            let at = address(bytes);
            let len = bytes.u8() & 31;
            guest.write(at, bytes.take(len.into()));
        }
    }
}

/// A step of the device; `false` where the driver was found out.
fn work(
    guest: &Guest,
    queue: &mut Queue,
    held: &mut Held,
    step: u8,
    writable: bool,
    lied: bool,
    bytes: &mut Bytes,
) -> bool {
    match step % 8 {
        0 if !lied => return queue.available().is_ok(),
        1 | 2 if !lied => return pop(guest, queue, held, writable),
        3 if !lied => singles(guest, queue, held, writable, usize::from(step >> 3), bytes),
        4 => {
            // In any order.
            if !held.heads.is_empty() {
                let head = held.heads.remove(usize::from(bytes.u8()) % held.heads.len());
                held.fresh = 0;
                queue.complete(head, bytes.u16().into());
            }
        }
        5 => {
            let _ = queue.publish();
        }
        6 if !lied => {
            let n = usize::from(step >> 3).min(held.fresh);
            held.heads.truncate(held.heads.len() - n);
            held.fresh -= n;
            queue.rewind(n as u16);
        }
        _ if step & 8 != 0 => queue.suppress_kicks(),
        _ if step & 16 != 0 => queue.remap(guest.memory.clone()).expect("the ring is where it was"),
        _ => {
            let _ = queue.request_kicks();
        }
    }
    true
}

fn pop(guest: &Guest, queue: &mut Queue, held: &mut Held, writable: bool) -> bool {
    let mut chain = Chain::new();
    let pending = queue.pending();
    let popped = if writable { queue.pop_writable(&mut chain) } else { queue.pop_readable(&mut chain) };
    match popped {
        Ok(false) => {
            assert_eq!(pending, 0);
            return true;
        }
        Ok(true) => {
            assert!(chain.spans().len() <= MAX_SPANS);
            let sum: u64 = chain.spans().iter().map(|span| u64::from(span.len)).sum();
            assert!(sum == u64::from(chain.bytes()) && sum <= u64::from(MAX_CHAIN_BYTES));
            chain.spans().iter().for_each(|span| touch(guest, span, writable));
        }
        Err(error) if error.is_fatal() => {
            // As it is told.
            assert!(!error.to_string().is_empty());
            return false;
        }
        Err(_) => {}
    }
    held.heads.push(chain.head());
    held.fresh += 1;
    true
}

/// A batch; the last of it goes back, as frames do that cannot go the fast way.
fn singles(
    guest: &Guest,
    queue: &mut Queue,
    held: &mut Held,
    writable: bool,
    most: usize,
    bytes: &mut Bytes,
) {
    let mut batch = [Single::EMPTY; 16];
    let batch = &mut batch[..most.clamp(1, 16)];
    let popped = match writable {
        true => queue.pop_singles::<true>(batch),
        false => queue.pop_singles::<false>(batch),
    };
    for single in &batch[..popped] {
        touch(guest, &Span { ptr: single.ptr, len: single.len }, writable);
    }
    let kept = usize::from(bytes.u8()) % (popped + 1);
    queue.put_back(&batch[kept..popped]);
    held.heads.extend(batch[..kept].iter().map(|single| single.head));
    // `rewind` is not for these.
    held.fresh = 0;
}

/// Reads or writes both ends of a buffer: the driver may have put it over the ring itself.
fn touch(guest: &Guest, span: &Span, writable: bool) {
    assert!(span.len > 0 && guest.contains(span), "{span:?} is not in the guest's memory");
    for at in [span.ptr, span.ptr.wrapping_add(span.len as usize - 1)] {
        // SAFETY: in a mapped region, as was just seen; of this thread alone.
        unsafe {
            match writable {
                true => at.write_volatile(0x5a),
                false => drop(at.read_volatile()),
            }
        }
    }
}
