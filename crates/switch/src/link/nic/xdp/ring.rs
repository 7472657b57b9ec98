//! The memory that a link shares with the kernel: rings and frames of AF_XDP (Documentation/networking/af_xdp.rst).
//!
//! ```text
//!  we push, publish ──▶ │ fill: empty chunks      │ ──▶ kernel      we push, publish ──▶ │ send: frames     │ ──▶ kernel
//!  we pop, release ◀─── │ receive: frames         │ ◀── kernel      we pop, release ◀─── │ completion: sent │ ◀── kernel
//! ```
//!
//! The kernel is trusted to keep its side of the rings; numbers from it are bounded all the same. All `unsafe` of AF_XDP is
//! here.

use super::form::{CHUNK, Form};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// A frame in its chunk (`struct xdp_desc`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Desc {
    /// Its place in the shared memory.
    pub at: u64,
    /// Its length (bytes).
    pub len: u32,
    /// Flags.
    pub options: u32,
}

/// Shared memory, as long as it is mapped.
struct Mapping {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: a place for memory, the same in each thread. The kernel has it, too, and all workers map the chunks of a queue: a ring has one owner,
// and a chunk one place.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(file: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Self, Errno> {
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let at = unsafe { mmap(std::ptr::null_mut(), len, rights, MapFlags::SHARED, file, offset)? };
        NonNull::new(at.cast()).map(|at| Self { at, len }).ok_or(Errno::NOMEM)
    }

    /// Returns the place of `count` values of `T`; `None` if they are not inside, or not aligned.
    fn place<T>(&self, offset: u64, count: usize) -> Option<NonNull<T>> {
        let offset = usize::try_from(offset).ok()?;
        let end = size_of::<T>().checked_mul(count)?.checked_add(offset)?;
        let aligned = offset.is_multiple_of(align_of::<T>());
        // SAFETY: inside of the mapping.
        (aligned && end <= self.len).then(|| unsafe { self.at.add(offset).cast() })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: made by `mmap` with this length; no place in it outlives its owner.
        _ = unsafe { munmap(self.at.as_ptr().cast(), self.len) };
    }
}

/// One of four rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Frames that arrived.
    Receive,
    /// Frames to send.
    Send,
    /// Empty chunks for frames that arrive.
    Fill,
    /// Chunks whose frames are sent.
    Completion,
}

/// A ring, as one of its two sides sees it.
pub struct Ring<T> {
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    size: u32,
    /// Our place: of the next entry that we push, or pop.
    own: u32,
    _mapping: Mapping,
}

// SAFETY: its places are in its mapping, which it owns; the other side uses atomics as it does.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    /// Maps a ring of `size` entries, a power of two, of an AF_XDP socket, which must not have been used before.
    ///
    /// # Errors
    /// The socket is no such one.
    pub fn map(socket: BorrowedFd<'_>, kind: Kind, size: u32) -> Result<Self, Errno> {
        let all = offsets(socket)?;
        let (places, page) = match kind {
            Kind::Receive => (all.rx, libc::XDP_PGOFF_RX_RING as u64),
            Kind::Send => (all.tx, libc::XDP_PGOFF_TX_RING as u64),
            Kind::Fill => (all.fr, libc::XDP_UMEM_PGOFF_FILL_RING),
            Kind::Completion => (all.cr, libc::XDP_UMEM_PGOFF_COMPLETION_RING),
        };
        let len = places.desc as usize + size as usize * size_of::<T>();
        let mapping = Mapping::new(socket, page, len)?;
        Self::at(mapping, &places, size).ok_or(Errno::INVAL)
    }

    fn at(mapping: Mapping, places: &libc::xdp_ring_offset, size: u32) -> Option<Self> {
        Some(Self {
            producer: mapping.place(places.producer, 1)?,
            consumer: mapping.place(places.consumer, 1)?,
            flags: mapping.place(places.flags, 1)?,
            entries: mapping.place(places.desc, size as usize)?,
            size,
            own: 0,
            _mapping: mapping,
        })
    }

    fn load(place: NonNull<AtomicU32>) -> u32 {
        // SAFETY: in the mapping, aligned; all sides use atomics.
        unsafe { place.as_ref() }.load(Ordering::Acquire)
    }

    fn store(place: NonNull<AtomicU32>, value: u32) {
        // SAFETY: as for `load`.
        unsafe { place.as_ref() }.store(value, Ordering::Release);
    }

    /// Returns the place of entry `number`.
    fn entry(&self, number: u32) -> NonNull<T> {
        // SAFETY: there are `size` entries in the mapping.
        unsafe { self.entries.add((number & (self.size - 1)) as usize) }
    }

    /// Returns how many pushed entries the other side has not taken.
    #[inline]
    pub fn untaken(&self) -> u32 {
        self.own.wrapping_sub(Self::load(self.consumer)).min(self.size)
    }

    /// Returns how many entries can be pushed.
    #[inline]
    pub fn room(&self) -> u32 {
        self.size - self.untaken()
    }

    /// Writes an entry, which the other side sees after [`publish`](Self::publish). The caller has looked for
    /// [room](Self::room): else the entry takes the place of one that the other side did not take.
    #[inline]
    pub fn push(&mut self, entry: T) {
        // SAFETY: in the mapping. With room, the entry is ours until it is published.
        unsafe { self.entry(self.own).write(entry) };
        self.own = self.own.wrapping_add(1);
    }

    /// Shows pushed entries to the other side.
    #[inline]
    pub fn publish(&self) {
        Self::store(self.producer, self.own);
    }

    /// Returns how many entries can be popped.
    #[inline]
    pub fn filled(&self) -> u32 {
        Self::load(self.producer).wrapping_sub(self.own).min(self.size)
    }

    /// Takes the next entry; `None` without one.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if self.filled() == 0 {
            return None;
        }
        // SAFETY: the other side published it, and does not write it until it is released.
        let entry = unsafe { self.entry(self.own).read() };
        self.own = self.own.wrapping_add(1);
        Some(entry)
    }

    /// Gives the places of popped entries back.
    #[inline]
    pub fn release(&self) {
        Self::store(self.consumer, self.own);
    }

    /// Sets the flag of the kernel's side.
    #[cfg(test)]
    pub fn need_wakeup(&self, needed: bool) {
        Self::store(self.flags, if needed { libc::XDP_RING_NEED_WAKEUP } else { 0 });
    }

    /// Whether the kernel takes pushed entries only when it is called.
    #[inline]
    pub fn needs_wakeup(&self) -> bool {
        Self::load(self.flags) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// The frames that a link shares with the kernel.
pub struct Frames(Mapping);

impl Frames {
    /// Maps the shared memory of a queue.
    ///
    /// # Errors
    /// It cannot be mapped, or is not of this form.
    pub fn map(memory: BorrowedFd<'_>, form: Form) -> Result<Self, Errno> {
        let len = form.memory();
        // Beyond its end an access would be a fault.
        if rustix::fs::fstat(memory)?.st_size != len as i64 {
            return Err(Errno::INVAL);
        }
        Mapping::new(memory, 0, len).map(Self)
    }

    /// Returns `len` bytes at `at`, of a chunk that the kernel does not have: it is in no ring. `None` if they are not in one
    /// chunk.
    #[inline]
    pub fn bytes(&mut self, at: u64, len: usize) -> Option<&mut [u8]> {
        let within = usize::try_from(at).ok()? % CHUNK;
        if len > CHUNK - within {
            return None;
        }
        let place = self.0.place::<u8>(at, len)?;
        // SAFETY: in the mapping. A chunk has one place: the kernel writes only to chunks in its rings, and other workers, which map the same
        // memory, touch only chunks whose frames they took. The borrow excludes a second one here.
        Some(unsafe { std::slice::from_raw_parts_mut(place.as_ptr(), len) })
    }
}

/// Asks for the places in the rings of a socket.
fn offsets(socket: BorrowedFd<'_>) -> Result<libc::xdp_mmap_offsets, Errno> {
    // SAFETY: plain integers; all zero is a valid value.
    let mut all: libc::xdp_mmap_offsets = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::xdp_mmap_offsets>() as libc::socklen_t;
    let (level, name) = (libc::SOL_XDP, libc::XDP_MMAP_OFFSETS);
    // SAFETY: the kernel writes at most `len` bytes into `all`.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut all).cast(), &raw mut len) };
    match result {
        0 if len as usize == size_of::<libc::xdp_mmap_offsets>() => Ok(all),
        0 => Err(Errno::INVAL),
        _ => Err(crate::link::vxlan::sockets::last_error()),
    }
}

#[cfg(test)]
const PLACES: libc::xdp_ring_offset =
    libc::xdp_ring_offset { producer: 0, consumer: 64, desc: 256, flags: 128 };

/// Returns both sides of an empty ring without a socket.
#[cfg(test)]
pub fn both_sides<T: Copy>(size: u32) -> (Ring<T>, Ring<T>) {
    use std::os::fd::AsFd;
    let len = PLACES.desc as usize + size as usize * size_of::<T>();
    let memory = rustix::fs::memfd_create("ring", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&memory, len as u64).unwrap();
    let side = || Ring::at(Mapping::new(memory.as_fd(), 0, len).unwrap(), &PLACES, size).unwrap();
    (side(), side())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::os::fd::AsFd;

    const SIZE: u32 = 8;

    /// Returns both sides of a ring, whose places begin at `from`.
    fn sides(from: u32) -> (Ring<u64>, Ring<u64>) {
        let (mut ours, mut theirs) = both_sides(SIZE);
        (ours.own, theirs.own) = (from, from);
        ours.publish();
        theirs.release();
        (ours, theirs)
    }

    proptest! {
        /// The model is a queue; places wrap around.
        #[test]
        fn entries_come_out_once_and_in_order(
            from in prop_oneof![Just(0u32), Just(u32::MAX - 5), any::<u32>()],
            steps in prop::collection::vec((any::<bool>(), 0..12u32), 1..100),
        ) {
            let (mut ours, mut theirs) = sides(from);
            let mut model = VecDeque::new();
            let mut next = 0;
            for (push, count) in steps {
                if push {
                    prop_assert_eq!(ours.room() as usize, SIZE as usize - model.len());
                    for _ in 0..count.min(ours.room()) {
                        ours.push(next);
                        model.push_back(next);
                        next += 1;
                    }
                    ours.publish();
                } else {
                    prop_assert_eq!(theirs.filled() as usize, model.len());
                    for _ in 0..count {
                        prop_assert_eq!(theirs.pop(), model.pop_front());
                    }
                    theirs.release();
                }
                prop_assert_eq!(ours.untaken() as usize, model.len());
            }
        }
    }

    #[test]
    fn places_outside_are_refused() {
        let memory = rustix::fs::memfd_create("ring", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&memory, 4096).unwrap();
        let mapping = || Mapping::new(memory.as_fd(), 0, 4096).unwrap();
        let with = |places: libc::xdp_ring_offset| Ring::<u64>::at(mapping(), &places, SIZE).is_some();
        assert!(with(PLACES));
        assert!(!with(libc::xdp_ring_offset { desc: 4096 - 63, ..PLACES }));
        assert!(!with(libc::xdp_ring_offset { desc: u64::MAX - 7, ..PLACES }));
        assert!(!with(libc::xdp_ring_offset { producer: 2, ..PLACES }), "not aligned");
        let form = Form::new(1).unwrap();
        assert!(Frames::map(memory.as_fd(), form).is_err(), "too short");
        rustix::fs::ftruncate(&memory, form.memory() as u64).unwrap();
        let mut frames = Frames::map(memory.as_fd(), form).unwrap();
        assert!(frames.bytes(4000, 96).is_some() && frames.bytes(4000, 97).is_none());
        assert!(frames.bytes(form.memory() as u64, 1).is_none() && frames.bytes(u64::MAX, 1).is_none());
    }
}
