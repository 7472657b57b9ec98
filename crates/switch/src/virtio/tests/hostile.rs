//! Drivers that lie: each way by name, then at random.

use super::super::{Chain, Features, GuestMemory, MAX_CHAIN_BYTES, MAX_SPANS, RingError, RingLayout};
use super::{GUEST_ADDR, Guest, layout, spec};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidegate_frontend::driver::{DriverFeatures, DriverQueue};
use tidegate_frontend::memory::SharedMemory;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// Ring size of the lies by name.
const SIZE: u16 = 4;
/// Memory of such a guest (`Guest` makes 1 MiB).
const END: u64 = GUEST_ADDR + (1 << 20);
/// Place of an indirect table in lies.
const TABLE: u64 = GUEST_ADDR + 0x8_0000;

#[derive(Clone, Copy, PartialEq)]
enum Queue {
    Transmit,
    Receive,
}
use Queue::{Receive, Transmit};

/// (address, length, flags, next)
type Desc = (u64, u32, u16, u16);

struct Lie {
    name: &'static str,
    queue: Queue,
    indirect: bool,
    ring: &'static [Desc],
    table: &'static [Desc],
    expected: RingError,
}

const LIES: &[Lie] = &[
    Lie {
        name: "writable buffer to transmit",
        queue: Transmit,
        indirect: false,
        ring: &[(GUEST_ADDR, 64, WRITE, 0)],
        table: &[],
        expected: RingError::WritableInTransmit { head: 0 },
    },
    Lie {
        name: "writable buffer after readable ones",
        queue: Transmit,
        indirect: false,
        ring: &[(GUEST_ADDR, 64, NEXT, 1), (GUEST_ADDR, 64, WRITE, 0)],
        table: &[],
        expected: RingError::WritableInTransmit { head: 0 },
    },
    Lie {
        name: "readable buffer to receive into",
        queue: Receive,
        indirect: false,
        ring: &[(GUEST_ADDR, 64, 0, 0)],
        table: &[],
        expected: RingError::ReadableInReceive { head: 0 },
    },
    Lie {
        name: "readable buffer after writable ones",
        queue: Receive,
        indirect: false,
        ring: &[(GUEST_ADDR, 64, WRITE | NEXT, 1), (GUEST_ADDR, 64, 0, 0)],
        table: &[],
        expected: RingError::ReadableInReceive { head: 0 },
    },
    Lie {
        name: "empty writable buffer to transmit",
        queue: Transmit,
        indirect: false,
        ring: &[(GUEST_ADDR, 0, WRITE, 0)],
        table: &[],
        expected: RingError::WritableInTransmit { head: 0 },
    },
    Lie {
        name: "chain that is its own next",
        queue: Transmit,
        indirect: false,
        ring: &[(GUEST_ADDR, 1, NEXT, 0)],
        table: &[],
        expected: RingError::Loop { head: 0, most: SIZE },
    },
    Lie {
        name: "loop of two empty buffers",
        queue: Transmit,
        indirect: false,
        ring: &[(0, 0, NEXT, 1), (0, 0, NEXT, 0)],
        table: &[],
        expected: RingError::Loop { head: 0, most: SIZE },
    },
    Lie {
        name: "loop in an indirect table",
        queue: Transmit,
        indirect: true,
        ring: &[(TABLE, 32, INDIRECT, 0)],
        table: &[(GUEST_ADDR, 1, NEXT, 1), (GUEST_ADDR, 1, NEXT, 0)],
        expected: RingError::Loop { head: 0, most: SIZE },
    },
    Lie {
        name: "next just past the table",
        queue: Transmit,
        indirect: false,
        ring: &[(GUEST_ADDR, 1, NEXT, SIZE)],
        table: &[],
        expected: RingError::Next { head: 0, next: SIZE, entries: SIZE as u32 },
    },
    Lie {
        name: "next just past the indirect table, though within the ring",
        queue: Transmit,
        indirect: true,
        ring: &[(TABLE, 32, INDIRECT, 0)],
        table: &[(GUEST_ADDR, 1, NEXT, 2)],
        expected: RingError::Next { head: 0, next: 2, entries: 2 },
    },
    Lie {
        name: "indirect though not negotiated",
        queue: Transmit,
        indirect: false,
        ring: &[(TABLE, 16, INDIRECT, 0)],
        table: &[(GUEST_ADDR, 1, 0, 0)],
        expected: RingError::IndirectNotNegotiated { head: 0 },
    },
    Lie {
        name: "indirect and next",
        queue: Transmit,
        indirect: true,
        ring: &[(TABLE, 16, INDIRECT | NEXT, 1)],
        table: &[(GUEST_ADDR, 1, 0, 0)],
        expected: RingError::IndirectNext { head: 0 },
    },
    Lie {
        name: "indirect in indirect, at once",
        queue: Transmit,
        indirect: true,
        ring: &[(TABLE, 16, INDIRECT, 0)],
        table: &[(TABLE, 16, INDIRECT, 0)],
        expected: RingError::IndirectNested { head: 0 },
    },
    Lie {
        name: "indirect in indirect, later",
        queue: Transmit,
        indirect: true,
        ring: &[(TABLE, 32, INDIRECT, 0)],
        table: &[(GUEST_ADDR, 1, NEXT, 1), (TABLE, 32, INDIRECT, 0)],
        expected: RingError::IndirectNested { head: 0 },
    },
    Lie {
        name: "indirect table of no bytes",
        queue: Transmit,
        indirect: true,
        ring: &[(TABLE, 0, INDIRECT, 0)],
        table: &[],
        expected: RingError::IndirectLength { head: 0, len: 0 },
    },
    Lie {
        name: "indirect table of one and a half entries",
        queue: Transmit,
        indirect: true,
        ring: &[(TABLE, 24, INDIRECT, 0)],
        table: &[(GUEST_ADDR, 1, 0, 0)],
        expected: RingError::IndirectLength { head: 0, len: 24 },
    },
    Lie {
        name: "indirect table past the end of memory",
        queue: Transmit,
        indirect: true,
        ring: &[(END - 16, 32, INDIRECT, 0)],
        table: &[],
        expected: RingError::Unmapped { head: 0, addr: END - 16, len: 32 },
    },
    Lie {
        name: "indirect table nowhere",
        queue: Transmit,
        indirect: true,
        ring: &[(u64::MAX - 15, 16, INDIRECT, 0)],
        table: &[],
        expected: RingError::Unmapped { head: 0, addr: u64::MAX - 15, len: 16 },
    },
    Lie {
        name: "writable buffer in an indirect table to transmit",
        queue: Transmit,
        indirect: true,
        ring: &[(TABLE, 16, INDIRECT, 0)],
        table: &[(GUEST_ADDR, 1, WRITE, 0)],
        expected: RingError::WritableInTransmit { head: 0 },
    },
    Lie {
        name: "readable buffer in an indirect table marked writable",
        queue: Receive,
        indirect: true,
        ring: &[(TABLE, 16, INDIRECT | WRITE, 0)],
        table: &[(GUEST_ADDR, 1, 0, 0)],
        expected: RingError::ReadableInReceive { head: 0 },
    },
    Lie {
        name: "buffer below memory",
        queue: Transmit,
        indirect: false,
        ring: &[(GUEST_ADDR - 1, 2, 0, 0)],
        table: &[],
        expected: RingError::Unmapped { head: 0, addr: GUEST_ADDR - 1, len: 2 },
    },
    Lie {
        name: "buffer reaching past memory by one byte",
        queue: Receive,
        indirect: false,
        ring: &[(END - 1, 2, WRITE, 0)],
        table: &[],
        expected: RingError::Unmapped { head: 0, addr: END - 1, len: 2 },
    },
    Lie {
        name: "buffer wrapping around the address space",
        queue: Receive,
        indirect: false,
        ring: &[(u64::MAX, u32::MAX, WRITE, 0)],
        table: &[],
        expected: RingError::Unmapped { head: 0, addr: u64::MAX, len: u32::MAX },
    },
    Lie {
        name: "second buffer of the chain outside memory",
        queue: Transmit,
        indirect: false,
        ring: &[(GUEST_ADDR, 1, NEXT, 1), (0, 1, 0, 0)],
        table: &[],
        expected: RingError::Unmapped { head: 0, addr: 0, len: 1 },
    },
    Lie {
        name: "lengths that sum up past the limit",
        queue: Transmit,
        indirect: false,
        ring: &[
            (GUEST_ADDR, 1 << 20, NEXT, 1),
            (GUEST_ADDR, (MAX_CHAIN_BYTES - (1 << 20)) / 2, NEXT, 2),
            (GUEST_ADDR, (MAX_CHAIN_BYTES - (1 << 20)) / 2, NEXT, 3),
            (GUEST_ADDR, 1, 0, 0),
        ],
        table: &[],
        expected: RingError::TooManyBytes { head: 0 },
    },
];

#[test]
fn every_lie_is_named() {
    let mut chain = Chain::new();
    for lie in LIES {
        let mut guest = Guest::new(
            SIZE,
            Features { packed: false, event_idx: false, indirect: lie.indirect, in_order: false },
        );
        for (table, descs) in [(guest.driver.desc_addr(), lie.ring), (TABLE, lie.table)] {
            for (i, &(addr, len, flags, next)) in (0u16..).zip(descs) {
                guest.driver.write_raw_desc(table, i, addr, len, flags, next);
            }
        }
        guest.memory.word(guest.driver.avail_addr() + 2).store(1, Ordering::Release);
        let name = lie.name;
        assert_eq!(guest.device.available(), Ok(1), "{name}");
        for again in [false, true] {
            let result = match lie.queue {
                Transmit => guest.device.pop_readable(&mut chain),
                Receive => guest.device.pop_writable(&mut chain),
            };
            assert_eq!(result, Err(lie.expected), "{name}, again: {again}");
            assert!(lie.expected.is_fatal(), "{name}");
            assert_eq!(chain.spans(), &[], "{name}: nothing of it may be used");
        }
        assert_eq!(guest.device.in_flight(), 0, "{name}: it was not popped");
    }
}

/// The same lies in a packed ring, without those about `next`, which it lacks, and about nested tables,
/// which mean nothing there.
#[test]
fn every_lie_is_named_in_a_packed_ring() {
    let mut chain = Chain::new();
    let mut told = 0;
    for lie in LIES {
        if matches!(
            lie.expected,
            RingError::Next { .. } | RingError::Loop { .. } | RingError::IndirectNested { .. }
        ) {
            continue;
        }
        let mut guest = Guest::new(
            SIZE,
            Features { packed: true, event_idx: false, indirect: lie.indirect, in_order: false },
        );
        for (i, &(addr, len, flags, _)) in (0u16..).zip(lie.table) {
            guest.driver.write_raw_desc(TABLE, i, addr, len, flags, 0);
        }
        for &(addr, len, flags, _) in lie.ring {
            guest.driver.offer_raw(addr, len, flags, 0);
        }
        let name = lie.name;
        assert!(guest.device.available().unwrap() >= 1, "{name}");
        for again in [false, true] {
            let result = match lie.queue {
                Transmit => guest.device.pop_readable(&mut chain),
                Receive => guest.device.pop_writable(&mut chain),
            };
            assert_eq!(result, Err(lie.expected), "{name}, again: {again}");
            assert_eq!(chain.spans(), &[], "{name}: nothing of it may be used");
        }
        assert_eq!(guest.device.in_flight(), 0, "{name}: it was not popped");
        told += 1;
    }
    assert!(told > 15, "{told} lies");
}

#[test]
fn a_long_chain_of_nothing_is_not_walked_to_its_end() {
    let mut guest = Guest::new(1024, Features::default());
    for i in 0..1024 {
        guest.driver.write_raw_desc(
            guest.driver.desc_addr(),
            i,
            GUEST_ADDR,
            u32::from(i == 1023),
            NEXT,
            i + 1,
        );
    }
    guest.driver.write_raw_desc(guest.driver.desc_addr(), 1023, GUEST_ADDR, 1, 0, 0);
    guest.memory.word(guest.driver.avail_addr() + 2).store(1, Ordering::Release);
    assert_eq!(guest.device.available(), Ok(1));
    let error = RingError::Loop { head: 0, most: 128 };
    assert_eq!(guest.device.pop_readable(&mut Chain::new()), Err(error));
}

#[test]
fn heads_beyond_the_table_are_refused() {
    let mut chain = Chain::new();
    for head in [SIZE, SIZE + 1, 0x7fff, u16::MAX] {
        let mut guest = Guest::starting_at(SIZE, Features::default(), 7);
        guest.memory.word(guest.driver.avail_addr() + 4 + 2 * 3).store(head, Ordering::Relaxed);
        guest.memory.word(guest.driver.avail_addr() + 2).store(8, Ordering::Release);
        assert_eq!(guest.device.available(), Ok(1));
        let error = RingError::Head { entry: 7, head, size: SIZE };
        assert_eq!(guest.device.pop_readable(&mut chain), Err(error));
    }
}

#[test]
fn the_largest_ring_cannot_be_made_available_twice() {
    const LARGEST: u16 = 1 << 15;
    let mut chain = Chain::new();
    let mut guest = Guest::starting_at(LARGEST, Features::default(), 0);
    guest.driver.write_raw_desc(guest.driver.desc_addr(), 0, GUEST_ADDR, 1, 0, 0);
    let index = |guest: &Guest, index: u16| {
        guest.memory.word(guest.driver.avail_addr() + 2).store(index, Ordering::Release);
    };
    index(&guest, 1);
    assert_eq!(guest.device.available(), Ok(1));
    assert_eq!(guest.device.pop_readable(&mut chain), Ok(true));
    // All of the ring beyond the chains in flight, and one more: 2^15 beyond the popped ones, but fewer
    // beyond those given back, modulo 2^16.
    index(&guest, LARGEST);
    assert_eq!(guest.device.available(), Ok(LARGEST - 1));
    for avail in [LARGEST + 1, LARGEST + 2, 0xffff] {
        index(&guest, avail);
        let error = RingError::AvailableIndex { avail, used: 0, size: LARGEST };
        assert_eq!(guest.device.available(), Err(error));
    }
}

#[test]
fn available_indices_that_cannot_be_are_refused() {
    let mut chain = Chain::new();
    let mut guest = Guest::starting_at(SIZE, Features::default(), 0xfffe);
    let index = |guest: &Guest, index: u16| {
        guest.memory.word(guest.driver.avail_addr() + 2).store(index, Ordering::Release);
    };
    for head in 0..SIZE {
        guest.driver.write_raw_desc(guest.driver.desc_addr(), head, GUEST_ADDR, 1, 0, 0);
    }
    for avail in [3, 0x8000, 0xfffd] {
        index(&guest, avail);
        let error = RingError::AvailableIndex { avail, used: 0xfffe, size: SIZE };
        assert_eq!(guest.device.available(), Err(error));
    }
    index(&guest, 2);
    assert_eq!(guest.device.available(), Ok(4));
    for _ in 0..3 {
        assert_eq!(guest.device.pop_readable(&mut chain), Ok(true));
    }
    // Backwards, to popped entries.
    index(&guest, 0);
    assert_eq!(
        guest.device.available(),
        Err(RingError::AvailableIndex { avail: 0, used: 0xfffe, size: SIZE })
    );
    // More than the ring has, counting those in flight; allowed once they are back.
    index(&guest, 3);
    assert_eq!(
        guest.device.available(),
        Err(RingError::AvailableIndex { avail: 3, used: 0xfffe, size: SIZE })
    );
    guest.device.complete(0, 0);
    let _ = guest.device.publish();
    assert_eq!(guest.device.available(), Ok(2));
}

/// A slow, obvious walker that works on addresses: returns the buffers of a chain, or none if anything is
/// wrong with it.
fn reference(
    memory: &SharedMemory,
    ring: &RingLayout,
    head: u16,
    write: bool,
    indirect: bool,
) -> Option<Vec<Desc>> {
    let read = |table: u64, i: u16| -> Desc {
        let bytes = memory.bytes(table + 16 * u64::from(i), 16);
        let number =
            |range: std::ops::Range<usize>| bytes[range].iter().rev().fold(0, |n, &b| n << 8 | u64::from(b));
        (number(0..8), number(8..12) as u32, number(12..14) as u16, number(14..16) as u16)
    };
    let inside = |addr: u64, len: u32| {
        addr >= GUEST_ADDR && u128::from(addr) + u128::from(len) <= u128::from(GUEST_ADDR + memory.size())
    };
    let (mut table, mut entries) = (ring.desc - memory.user_addr() + GUEST_ADDR, u32::from(ring.size));
    let (mut index, mut nested, mut buffers, mut walked) = (head, false, Vec::new(), 0);
    loop {
        if u32::from(index) >= entries || walked == ring.size {
            return None;
        }
        let (addr, len, flags, next) = read(table, index);
        if flags & INDIRECT != 0 {
            if nested || !indirect || flags & NEXT != 0 || len == 0 || len % 16 != 0 || !inside(addr, len) {
                return None;
            }
            (table, entries, index, nested) = (addr, len / 16, 0, true);
            continue;
        }
        if (flags & WRITE != 0) != write {
            return None;
        }
        if len > 0 {
            buffers.push((addr, len, flags, next));
        }
        if len > 0 && !inside(addr, len) {
            return None;
        }
        walked += 1;
        if flags & NEXT == 0 {
            break;
        }
        index = next;
    }
    let total: u64 = buffers.iter().map(|b| u64::from(b.1)).sum();
    (buffers.len() <= MAX_SPANS && total <= u64::from(MAX_CHAIN_BYTES)).then_some(buffers)
}

const RANDOM_SIZE: u16 = 16;
const RANDOM_PAGES: u64 = 1;

/// Descriptors that are nearly right, so that some chains get far.
fn descriptor() -> impl Strategy<Value = Desc> {
    let end = GUEST_ADDR + RANDOM_PAGES * 4096;
    let addr = prop_oneof![
        12 => (GUEST_ADDR..end).prop_map(|a| a & !15),
        2 => GUEST_ADDR..end,
        1 => end - 20..end + 20,
        1 => GUEST_ADDR - 20..GUEST_ADDR + 20,
        1 => any::<u64>(),
    ];
    let len = prop_oneof![
        8 => (0u32..20).prop_map(|n| n * 16),
        3 => 0u32..2000,
        1 => any::<u32>(),
    ];
    let flags = prop_oneof![6 => Just(0), 8 => Just(NEXT), 4 => Just(INDIRECT), 2 => any::<u16>()];
    let next = prop_oneof![20 => 0..RANDOM_SIZE, 1 => any::<u16>()];
    (addr, len, flags, next)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// Whatever a guest writes into its memory, spans are inside it, and a chain is accepted iff the
    /// reference accepts it, with the same buffers.
    #[test]
    fn random_rings_are_walked_as_the_reference_does(
        descs in prop::collection::vec(descriptor(), RANDOM_PAGES as usize * 256),
        noise in prop::collection::vec((0..RANDOM_PAGES * 4096, any::<u8>()), 0..100),
        flip_write in any::<bool>(),
        indirect in prop::bool::weighted(0.8),
        heads in prop::collection::vec(prop_oneof![30 => 0..RANDOM_SIZE, 1 => any::<u16>()], RANDOM_SIZE as usize),
        base in any::<u16>(),
    ) {
        let memory = Arc::new(SharedMemory::new(GUEST_ADDR, (RANDOM_PAGES * 4096) as usize).unwrap());
        let map = Arc::new(GuestMemory::map(vec![spec(&memory)]).unwrap());
        let driver = DriverQueue::new(&memory, RANDOM_SIZE, DriverFeatures::default());
        let layout = layout(&driver, &memory);
        // All of memory is descriptors, so that indirect tables are anywhere.
        for (i, &(addr, len, flags, next)) in (0u16..).zip(&descs) {
            let flags = if flip_write { flags ^ WRITE } else { flags };
            driver.write_raw_desc(GUEST_ADDR, i, addr, len, flags, next);
        }
        for (offset, byte) in noise {
            memory.write(GUEST_ADDR + offset, &[byte]);
        }
        memory.word(driver.used_addr() + 2).store(base, Ordering::Relaxed);
        for (i, &head) in (0u16..).zip(&heads) {
            memory.word(driver.avail_addr() + 4 + 2 * u64::from(base.wrapping_add(i) % RANDOM_SIZE)).store(head, Ordering::Relaxed);
        }
        let start = map.translate(GUEST_ADDR, memory.size()).unwrap().addr();
        let end = start + memory.size() as usize;
        let mut chain = Chain::new();
        for (i, &head) in (0u16..).zip(&heads) {
            // A queue for each head, as an error is the end of one.
            let at = base.wrapping_add(i);
            memory.word(driver.avail_addr() + 2).store(at.wrapping_add(1), Ordering::Relaxed);
            memory.word(driver.used_addr() + 2).store(at, Ordering::Relaxed);
            for write in [false, true] {
                let features = Features { packed: false, event_idx: false, indirect, in_order: false };
                let mut queue = super::super::Queue::new(Arc::clone(&map), layout, at.into(), features).unwrap();
                prop_assert_eq!(queue.available(), Ok(1));
                let result = if write { queue.pop_writable(&mut chain) } else { queue.pop_readable(&mut chain) };
                for span in chain.spans() {
                    prop_assert!(span.len > 0 && span.ptr.addr() >= start && span.ptr.addr() + span.len as usize <= end);
                }
                let expected = reference(&memory, &layout, head, write, indirect);
                prop_assert_eq!(result.is_ok(), expected.is_some(), "{:?} but {:?}", result, expected);
                let got: Vec<_> = chain.spans().iter().map(|s| (s.ptr.addr() - start, s.len)).collect();
                let expected: Vec<_> = expected.unwrap_or_default().iter()
                    .map(|b| ((b.0 - GUEST_ADDR) as usize, b.1)).collect();
                prop_assert_eq!(got, expected);
            }
        }
    }

    /// Noise, indices included: an error at the worst, and every call returns.
    #[test]
    fn noise_is_survived(
        bytes in prop::collection::vec(any::<u8>(), 4096),
        base in any::<u16>(),
        write in any::<bool>(),
    ) {
        let memory = SharedMemory::new(GUEST_ADDR, 4096).unwrap();
        memory.write(GUEST_ADDR, &bytes);
        let map = Arc::new(GuestMemory::map(vec![spec(&memory)]).unwrap());
        let user = memory.user_addr();
        let layout = RingLayout { size: 64, desc: user, avail: user + 1024, used: user + 2048 };
        let features = Features { packed: false, event_idx: true, indirect: true, in_order: false };
        memory.word(GUEST_ADDR + 2050).store(base, Ordering::Relaxed);
        let mut queue = super::super::Queue::new(map, layout, base.into(), features).unwrap();
        let _ = (queue.available(), queue.publish(), queue.request_kicks());
        memory.word(GUEST_ADDR + 1026).store(base.wrapping_add(64), Ordering::Relaxed);
        prop_assert_eq!(queue.available(), Ok(64));
        let mut chain = Chain::new();
        while let Ok(true) = if write { queue.pop_writable(&mut chain) } else { queue.pop_readable(&mut chain) } {
            queue.complete(chain.head(), chain.bytes());
        }
        let _ = queue.publish();
        queue.suppress_kicks();
    }
}
