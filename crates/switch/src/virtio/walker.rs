//! From descriptors to buffers: the only code that uses a driver's descriptors, after checks.
//!
//! ```text
//!   ring ──▶ descriptor ──links──▶ descriptor ──links──▶ ...      at most `most` of them
//!                │                     │ INDIRECT: goes on in a table of its own
//!                ▼                     ▼
//!            direction, length, translation  ──▶ Chain: spans
//! ```
//!
//! A layout defines only how a descriptor is read and which one follows it ([`Links`]).

pub(super) use super::limits::MAX_DESCRIPTORS;
use super::memory::{GuestMemory, Region};
use super::{Chain, RingError, Span};
use crate::prefetch::{self, LINE};
use std::sync::Arc;

/// Descriptor flag: the chain continues (virtio 1.2, 2.7.5 and 2.8.6).
pub(super) const DESC_NEXT: u16 = 1;
/// Descriptor flag: the device writes this buffer; without it, it reads.
pub(super) const DESC_WRITE: u16 = 2;
/// Descriptor flag: the buffer holds a table of descriptors (virtio 1.2, 2.7.5.3 and 2.8.7).
pub(super) const DESC_INDIRECT: u16 = 4;
/// Bytes of a descriptor.
pub(super) const DESC_BYTES: u32 = 16;
/// The flags that distinguish a chain of one buffer ...
pub(super) const SINGLE_MASK: u16 = DESC_NEXT | DESC_WRITE | DESC_INDIRECT;

/// ... and their values, `WRITE`: in a receive queue.
#[inline]
pub(super) const fn single<const WRITE: bool>() -> u16 {
    if WRITE { DESC_WRITE } else { 0 }
}

/// Most descriptors of a chain in a ring of `size`. "A driver MUST NOT create a descriptor chain
/// longer than the Queue Size" (virtio 1.2, 2.7.5.3.1), and a loop is infinitely long.
#[inline]
pub(super) fn longest_chain(size: u16) -> u16 {
    size.min(MAX_DESCRIPTORS)
}

/// How descriptors of a layout are laid out and linked.
pub(super) trait Links {
    /// Parses the second half of a descriptor.
    fn parse(addr: u64, rest: u64) -> Descriptor;

    /// Whether an entry of an indirect table may not be INDIRECT; if not, the flag means nothing
    /// there.
    const NESTING_IS_WRONG: bool;

    /// Index of the descriptor that follows `desc`, which is the one at `index` of `table`; `None`
    /// at the end of the chain. `Err` holds an index that leads out of the table.
    fn next(table: &Table, index: u16, desc: Descriptor) -> Result<Option<u16>, u16>;
}

/// Descriptors in a row: the ring's, or an indirect table.
#[derive(Clone, Copy)]
pub(super) struct Table {
    start: *mut u8,
    pub(super) entries: u32,
    pub(super) indirect: bool,
}

impl Table {
    /// The descriptors of a ring.
    ///
    /// # Safety
    /// `size` descriptors at `start` are mapped as long as the value is used.
    #[inline]
    pub(super) unsafe fn of_ring(start: *mut u8, size: u16) -> Self {
        Self { start, entries: size.into(), indirect: false }
    }

    #[inline]
    fn read<L: Links>(&self, index: u16) -> Descriptor {
        debug_assert!(u32::from(index) < self.entries);
        // SAFETY: the table has `entries` mapped descriptors, and callers stay below.
        unsafe { Descriptor::read::<L>(self.start.add(usize::from(index) * DESC_BYTES as usize)) }
    }
}

/// A descriptor, read once.
#[derive(Clone, Copy)]
pub(super) struct Descriptor {
    pub(super) addr: u64,
    pub(super) len: u32,
    pub(super) flags: u16,
    /// The next descriptor in a split ring, the buffer id in a packed one.
    pub(super) link: u16,
}

impl Descriptor {
    /// Reads each byte once: the driver may change it between two reads.
    ///
    /// # Safety
    /// 16 bytes at `ptr` are mapped.
    #[inline]
    pub(super) unsafe fn read<L: Links>(ptr: *const u8) -> Self {
        let [addr, rest] = if ptr.cast::<u64>().is_aligned() {
            let words = ptr.cast::<u64>();
            // SAFETY: mapped by contract, aligned as just seen.
            unsafe { [words.read_volatile(), words.add(1).read_volatile()] }
        } else {
            // Only an indirect table can be here; the standard does not align it.
            // SAFETY: mapped by contract; bytes need no alignment.
            let byte = |i: usize| unsafe { ptr.add(i).read_volatile() };
            [0, 8].map(|at| u64::from_ne_bytes(std::array::from_fn(|i| byte(at + i))))
        };
        // Virtio 1.x rings are little-endian on every machine.
        L::parse(u64::from_le(addr), u64::from_le(rest))
    }
}

/// How a chain ended.
#[derive(Clone, Copy)]
pub(super) struct End {
    /// Descriptors of the ring it takes; entries of an indirect table are none.
    pub(super) taken: u16,
    /// `link` of the last one in the ring.
    pub(super) link: u16,
}

/// Collects the buffers of chains, in one guest's memory.
#[derive(Debug)]
pub(super) struct Walker {
    indirect: bool,
    /// Region of the last buffer; mostly also of the next one.
    region: Region,
    memory: Arc<GuestMemory>,
}

impl Walker {
    /// `indirect`: VIRTIO_F_INDIRECT_DESC was negotiated.
    pub(super) fn new(memory: Arc<GuestMemory>, indirect: bool) -> Self {
        Self { indirect, region: Region::NONE, memory }
    }

    /// Goes on in a new memory table.
    pub(super) fn remap(&mut self, memory: Arc<GuestMemory>) {
        self.region = Region::NONE;
        self.memory = memory;
    }

    /// Returns the address of the buffer of a chain of [one descriptor](single), and prefetches it; `None`
    /// if anything is wrong.
    #[inline]
    pub(super) fn buffer<const WRITE: bool>(&mut self, addr: u64, len: u32) -> Option<*mut u8> {
        let ptr = self.translate(addr, len).filter(|_| len != 0)?;
        for line in [ptr, ptr.wrapping_add(LINE)] {
            if WRITE { prefetch::for_writing(line) } else { prefetch::for_reading(line) }
        }
        Some(ptr)
    }

    /// Collects the buffers of the chain that starts at descriptor `first` of the ring and has at most
    /// `most` of them. `chain` is empty; errors name its head. Always inlined: a super-frame fills many
    /// chains, and each of the four rings calls it.
    #[inline(always)]
    pub(super) fn walk<L: Links, const WRITE: bool>(
        &mut self,
        ring: Table,
        first: u16,
        most: u16,
        chain: &mut Chain,
    ) -> Result<End, RingError> {
        let head = chain.head();
        let (mut table, mut index) = (ring, first);
        let mut end = End { taken: 0, link: 0 };
        for read in 1..=most {
            let mut desc = table.read::<L>(index);
            if !table.indirect {
                end = End { taken: end.taken + 1, link: desc.link };
            }
            if desc.flags & DESC_INDIRECT != 0 && (!table.indirect || L::NESTING_IS_WRONG) {
                if table.indirect {
                    return Err(RingError::IndirectNested { head });
                }
                (table, index) = (self.indirect_table(head, desc)?, 0);
                desc = table.read::<L>(index);
                if desc.flags & DESC_INDIRECT != 0 && L::NESTING_IS_WRONG {
                    return Err(RingError::IndirectNested { head });
                }
            }
            match (WRITE, desc.flags & DESC_WRITE != 0) {
                (true, false) => return Err(RingError::ReadableInReceive { head }),
                (false, true) => return Err(RingError::WritableInTransmit { head }),
                _ => {}
            }
            // An empty buffer is odd, but nothing forbids it.
            if desc.len != 0 {
                self.push(desc, chain)?;
            }
            match L::next(&table, index, desc) {
                Ok(None) => {
                    chain.set_descriptors(read);
                    return Ok(end);
                }
                Ok(Some(next)) => index = next,
                Err(next) => return Err(RingError::Next { head, next, entries: table.entries }),
            }
        }
        Err(RingError::Loop { head, most })
    }

    /// Checks and translates the table of an indirect descriptor. It may end a chain of plain ones
    /// (2.7.5.3.2); its WRITE flag means nothing.
    fn indirect_table(&mut self, head: u16, desc: Descriptor) -> Result<Table, RingError> {
        let Descriptor { addr, len, flags, .. } = desc;
        if !self.indirect {
            return Err(RingError::IndirectNotNegotiated { head });
        }
        if flags & DESC_NEXT != 0 {
            return Err(RingError::IndirectNext { head });
        }
        if len == 0 || !len.is_multiple_of(DESC_BYTES) {
            return Err(RingError::IndirectLength { head, len });
        }
        let start = self.translate(addr, len).ok_or(RingError::Unmapped { head, addr, len })?;
        Ok(Table { start, entries: len / DESC_BYTES, indirect: true })
    }

    /// Translates a buffer and appends it.
    #[inline]
    fn push(&mut self, desc: Descriptor, chain: &mut Chain) -> Result<(), RingError> {
        let Descriptor { addr, len, .. } = desc;
        if let Some(ptr) = self.translate(addr, len) {
            return chain.push(Span { ptr, len });
        }
        self.push_crossing(addr, len, chain)
    }

    #[cold]
    fn push_crossing(&self, addr: u64, len: u32, chain: &mut Chain) -> Result<(), RingError> {
        let head = chain.head();
        match self.memory.translate_spans(addr, len, |span| chain.push(span))? {
            true => Ok(()),
            false => Err(RingError::Unmapped { head, addr, len }),
        }
    }

    #[inline]
    fn translate(&mut self, addr: u64, len: u32) -> Option<*mut u8> {
        let len = u64::from(len);
        if let Some(ptr) = self.region.translate(addr, len) {
            return Some(ptr);
        }
        self.region = *self.memory.region(addr)?;
        self.region.translate(addr, len)
    }
}
