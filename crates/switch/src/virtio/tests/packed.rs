//! The packed queue, one behaviour and one lie at a time.

use super::super::packed::LOOK;
use super::super::{Chain, Features, GuestMemory, MAX_SPANS, Queue, RingError, RingPart, Single};
use super::{GUEST_ADDR, Guest, layout, spec};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidegate_frontend::driver::{Buffer, DriverFeatures, DriverQueue, Used};
use tidegate_frontend::memory::SharedMemory;

const PLAIN: Features = Features { packed: true, event_idx: false, indirect: false, in_order: false };
const INDIRECT: Features = Features { packed: true, event_idx: true, indirect: true, in_order: false };
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const AVAIL: u16 = 1 << 7;
const USED: u16 = 1 << 15;

fn flags(guest: &Guest, slot: u16) -> u16 {
    let at = guest.driver.desc_addr() + 16 * u64::from(slot) + 14;
    u16::from_le(guest.memory.word(at).load(Ordering::Acquire))
}

#[test]
fn a_batch_comes_back_at_once_in_places_one_after_the_other() {
    let mut guest = Guest::new(5, PLAIN);
    let mut chain = Chain::new();
    let buffer = Buffer::writable(GUEST_ADDR, 64);
    let a = guest.driver.add(&[buffer; 2]).unwrap();
    let b = guest.driver.add(&[buffer]).unwrap();
    assert!(guest.driver.publish());
    assert_eq!(guest.device.available(), Ok(2));
    for head in [a, b] {
        assert_eq!(guest.device.pop_writable(&mut chain), Ok(true));
        assert_eq!(chain.head(), head);
    }
    guest.device.complete(b, 7);
    guest.device.complete(a, 0);
    assert_eq!(flags(&guest, 0), AVAIL | NEXT | WRITE, "nothing is written before all is shown");
    assert_eq!(flags(&guest, 1), AVAIL | WRITE);
    assert_eq!(guest.driver.reap(), None);
    assert!(guest.device.publish());
    assert_eq!(flags(&guest, 0), AVAIL | USED | WRITE);
    assert_eq!(flags(&guest, 1), AVAIL | USED, "nothing written: no length");
    assert_eq!(flags(&guest, 2), AVAIL | WRITE, "a chain of two has one used descriptor");
    assert_eq!(guest.driver.reap(), Some(Used { head: b, len: 7 }));
    assert_eq!(guest.driver.reap(), Some(Used { head: a, len: 0 }));
    assert_eq!((guest.driver.free(), guest.driver.base()), (5, 0x8003_8003));
}

#[test]
fn receive_buffers_need_not_have_been_seen() {
    for in_order in [false, true] {
        let mut guest = Guest::new(8, Features { in_order, ..PLAIN });
        let mut singles = [Single::EMPTY; 8];
        let buffer = Buffer::writable(GUEST_ADDR, 64);
        (0..3).for_each(|_| _ = guest.driver.add(&[buffer]).unwrap());
        assert!(guest.driver.publish());
        assert_eq!(guest.device.pop_singles::<true>(&mut singles), 3, "as many as there are");
        guest.device.put_back(&singles[1..3]);
        assert_eq!((guest.device.pending(), guest.device.in_flight()), (2, 1), "what is put back was seen");
        guest.driver.add(&[buffer; 2]).unwrap();
        (0..3).for_each(|_| _ = guest.driver.add(&[buffer]).unwrap());
        let _ = guest.driver.publish();
        assert_eq!(guest.device.pop_singles::<true>(&mut singles[1..]), 2, "up to a chain of two");
        assert_eq!(guest.device.available(), Ok(4));
        guest.device.complete_all(singles[..3].iter().map(|single| (single.head, 9)));
        assert!(guest.device.publish());
        let back: Vec<u32> = std::iter::from_fn(|| guest.driver.reap()).map(|used| used.len).collect();
        assert_eq!(back, [9; 3]);
    }
}

#[test]
fn no_place_in_flight_is_taken_for_a_receive_buffer() {
    let mut guest = Guest::new(4, PLAIN);
    let mut singles = [Single::EMPTY; 8];
    (0..4).for_each(|_| _ = guest.driver.add(&[Buffer::writable(GUEST_ADDR, 64)]).unwrap());
    let _ = guest.driver.publish();
    // Up to the end of the ring, then none: all of it is in flight, whatever the driver writes.
    assert_eq!(guest.device.pop_singles::<true>(&mut singles), 4);
    for slot in 0..4 {
        guest.driver.write_raw_desc(guest.driver.desc_addr(), slot, GUEST_ADDR, 64, WRITE | USED, slot);
    }
    assert_eq!(guest.device.pop_singles::<true>(&mut singles[4..]), 0);
    assert_eq!(guest.device.in_flight(), 4);
}

#[test]
fn a_full_ring_goes_round_and_round() {
    for size in [1, 2, 3, 7, 1000] {
        let mut guest = Guest::new(size, PLAIN);
        let mut chain = Chain::new();
        for round in 0..5 {
            while guest.driver.add(&[Buffer::readable(GUEST_ADDR, 9)]).is_some() {}
            let _ = guest.driver.publish();
            let mut popped = 0;
            while guest.device.available().unwrap() > 0 {
                assert_eq!(guest.device.pop_readable(&mut chain), Ok(true));
                popped += 1;
                guest.device.complete(chain.head(), 0);
            }
            assert_eq!(popped, size, "round {round}");
            let _ = guest.device.publish();
            assert_eq!(std::iter::from_fn(|| guest.driver.reap()).count(), usize::from(size));
        }
    }
}

#[test]
fn a_look_has_an_end_and_the_next_goes_on_there() {
    let mut guest = Guest::new(256, PLAIN);
    let mut chain = Chain::new();
    while guest.driver.add(&[Buffer::readable(GUEST_ADDR, 9)]).is_some() {}
    assert!(guest.driver.publish());
    for look in 1..=4 {
        assert_eq!(guest.device.available(), Ok(look * LOOK));
    }
    assert_eq!(guest.device.available(), Ok(256));
    for _ in 0..256 {
        assert_eq!(guest.device.pop_readable(&mut chain), Ok(true));
    }
    assert_eq!(guest.device.pop_readable(&mut chain), Ok(false));
    assert_eq!((guest.device.available(), guest.device.in_flight()), (Ok(0), 256));
    guest.device.rewind(256);
    assert_eq!((guest.device.pending(), guest.device.in_flight(), guest.device.next_avail()), (256, 0, 0));
    assert_eq!(guest.device.available(), Ok(256), "and no more than there are");
}

#[test]
fn a_long_chain_is_one() {
    let mut guest = Guest::new(128, PLAIN);
    let mut chain = Chain::new();
    let buffer = Buffer::readable(GUEST_ADDR, 1);
    guest.driver.add(&vec![buffer; MAX_SPANS]).unwrap();
    guest.driver.add(&vec![buffer; 30]).unwrap();
    assert!(guest.driver.publish());
    assert_eq!(guest.device.available(), Ok(1), "the look ended in it");
    assert_eq!(guest.device.available(), Ok(2));
    assert_eq!(guest.device.pop_readable(&mut chain), Ok(true));
    assert_eq!(chain.spans().len(), MAX_SPANS);
    assert_eq!(guest.device.pop_readable(&mut chain), Ok(true));
    assert_eq!(chain.spans().len(), 30);
}

/// Table entries have no meaningful flag but WRITE (virtio 1.2, 2.8.7).
#[test]
fn an_indirect_table_ends_with_its_length() {
    let mut guest = Guest::new(4, INDIRECT);
    let mut chain = Chain::new();
    let table = guest.memory.alloc(64, 16) + 5;
    for (i, flags) in [(0, 0), (1, NEXT), (2, 4)] {
        guest.driver.write_raw_desc(table, i, GUEST_ADDR + 64 * u64::from(i), 8, flags, 99);
    }
    guest.driver.offer_raw(table, 48, 4 | WRITE, 3);
    assert_eq!(guest.device.available(), Ok(1));
    assert_eq!(guest.device.pop_readable(&mut chain), Ok(true));
    assert_eq!((chain.head(), chain.bytes(), chain.spans().len()), (3, 24, 3));
}

#[test]
fn too_many_buffers_cost_the_frame_not_the_queue() {
    let mut guest = Guest::new(128, INDIRECT);
    let mut chain = Chain::new();
    let many = [Buffer::readable(GUEST_ADDR, 1); MAX_SPANS + 1];
    let heads = [
        guest.driver.add(&many).unwrap(),
        guest.driver.add_indirect(&many).unwrap(),
        guest.driver.add(&many[..1]).unwrap(),
    ];
    let _ = guest.driver.publish();
    assert_eq!(guest.device.available(), Ok(1));
    assert_eq!(guest.device.available(), Ok(3));
    for head in &heads[..2] {
        let error = guest.device.pop_readable(&mut chain).unwrap_err();
        assert!(!error.is_fatal(), "{error}");
        assert_eq!((chain.head(), chain.spans()), (*head, &[][..]));
        guest.device.complete(chain.head(), 0);
    }
    assert_eq!(guest.device.pop_readable(&mut chain), Ok(true));
    guest.device.complete(heads[2], 0);
    assert!(guest.device.publish());
    for head in heads {
        assert_eq!(guest.driver.reap(), Some(Used { head, len: 0 }));
    }
}

/// GET_VRING_BASE, then SET_VRING_BASE, in every place of the ring, with and without the half that some
/// front ends omit.
#[test]
fn a_restarted_device_goes_on_where_the_ring_is() {
    let mut guest = Guest::new(3, INDIRECT);
    let mut chain = Chain::new();
    guest.driver.disable_interrupts();
    for (round, places) in [1, 1, 2, 3, 1, 2, 2, 1, 3].into_iter().enumerate() {
        let head = guest.driver.add(&vec![Buffer::writable(GUEST_ADDR, 16); places]).unwrap();
        let _ = guest.driver.publish();
        assert_eq!(guest.device.available(), Ok(1));
        assert_eq!(guest.device.pop_writable(&mut chain), Ok(true));
        guest.device.complete(head, round as u32);
        let _ = guest.device.publish();
        assert_eq!(guest.driver.reap(), Some(Used { head, len: round as u32 }));
        let base = guest.device.base();
        assert_eq!(base, guest.driver.base());
        assert_eq!(base >> 16, base & 0xffff, "nothing is in flight");
        let base = if round % 2 == 0 { base } else { base & 0xffff };
        let layout = layout(&guest.driver, &guest.memory);
        guest.device = Queue::new(Arc::clone(&guest.map), layout, base, INDIRECT).unwrap();
        assert!(guest.device.publish(), "an interrupt may be due");
        assert!(!guest.device.publish(), "once");
    }
}

#[test]
fn rings_that_cannot_be_are_refused() {
    let memory = Arc::new(SharedMemory::new(GUEST_ADDR, 0x4000).unwrap());
    let map = Arc::new(GuestMemory::map(vec![spec(&memory)]).unwrap());
    let driver = DriverQueue::new(&memory, 17, DriverFeatures { packed: true, ..Default::default() });
    let good = layout(&driver, &memory);
    let end = memory.user_addr() + memory.size();
    let mut cases = vec![];
    for size in [0, 32769, u16::MAX] {
        cases.push((super::RingLayout { size, ..good }, RingError::PackedSize(size)));
    }
    let unmapped = |part, addr, len| RingError::PartUnmapped { part, addr, len };
    let unaligned = |part, addr, align| RingError::PartUnaligned { part, addr, align };
    cases.extend([
        (super::RingLayout { desc: end - 256, ..good }, unmapped(RingPart::Descriptors, end - 256, 272)),
        (super::RingLayout { avail: end - 2, ..good }, unmapped(RingPart::DriverEvents, end - 2, 4)),
        (super::RingLayout { used: end, ..good }, unmapped(RingPart::DeviceEvents, end, 4)),
        (
            super::RingLayout { desc: good.desc + 8, ..good },
            unaligned(RingPart::Descriptors, good.desc + 8, 16),
        ),
        (
            super::RingLayout { avail: good.avail + 2, ..good },
            unaligned(RingPart::DriverEvents, good.avail + 2, 4),
        ),
        (
            super::RingLayout { used: good.used + 2, ..good },
            unaligned(RingPart::DeviceEvents, good.used + 2, 4),
        ),
    ]);
    for (layout, expected) in cases {
        let error =
            Queue::new(Arc::clone(&map), layout, Queue::first_base(true), PLAIN).expect_err("refused");
        assert_eq!(error, expected, "{layout:?}");
    }
    // Places beyond the ring, an available place before the used one, more than the ring between.
    for base in [17, 0x8011_8000, 0x8000_0011, 0x8005_8004, 0x8004_0005, 0x7fff_7fff] {
        let error = Queue::new(Arc::clone(&map), good, base, PLAIN).expect_err("refused");
        assert_eq!(error, RingError::PackedBase { base, size: 17 });
    }
    for base in [16, 0x8010_8010, 0x8004_0004, 0x8004_8006, 0x0010_8000] {
        let queue = Queue::new(Arc::clone(&map), good, base, PLAIN).unwrap();
        assert_eq!(queue.base() & 0xffff, base & 0xffff);
    }
    let split = Queue::new(map, super::RingLayout { size: 16, ..good }, 0x1_0000, Features::default());
    assert_eq!(split.expect_err("refused"), RingError::NoIndex(0x1_0000));
}

#[test]
fn largest_rings_work() {
    let memory = Arc::new(SharedMemory::new(GUEST_ADDR, 1 << 20).unwrap());
    let map = Arc::new(GuestMemory::map(vec![spec(&memory)]).unwrap());
    let mut driver = DriverQueue::new(&memory, 32768, DriverFeatures { packed: true, ..Default::default() });
    let mut device = Queue::new(map, layout(&driver, &memory), driver.base(), PLAIN).unwrap();
    let mut chain = Chain::new();
    for _ in 0..3 {
        while driver.add(&[Buffer::readable(GUEST_ADDR, 9)]).is_some() {}
        let _ = driver.publish();
        let mut ids = Vec::new();
        while device.available().unwrap() > 0 {
            assert_eq!(device.pop_readable(&mut chain), Ok(true));
            ids.push(chain.head());
        }
        assert_eq!((ids.len(), device.in_flight()), (32768, 32768));
        ids.iter().rev().for_each(|&id| device.complete(id, 0));
        let _ = device.publish();
        assert_eq!(std::iter::from_fn(|| driver.reap()).count(), 32768);
    }
}

#[test]
fn descriptors_in_flight_are_never_read() {
    let mut guest = Guest::new(3, PLAIN);
    let mut chain = Chain::new();
    for id in 0..3 {
        guest.driver.offer_raw(GUEST_ADDR, 1, 0, id);
    }
    assert_eq!(guest.device.available(), Ok(3));
    for _ in 0..3 {
        assert_eq!(guest.device.pop_readable(&mut chain), Ok(true));
    }
    // All of it a second time, as if it had come back.
    for id in 0..3 {
        guest.driver.offer_raw(GUEST_ADDR, 1, 0, id);
    }
    assert_eq!((guest.device.available(), guest.device.in_flight()), (Ok(0), 3));
    assert!(!guest.device.request_kicks());
    guest.device.complete(1, 0);
    assert_eq!(guest.device.available(), Ok(0), "not shown yet");
    assert!(!guest.device.request_kicks());
    let _ = guest.device.publish();
    assert_eq!(guest.device.available(), Ok(0), "the used descriptor is in its place");
}

#[test]
fn lies_about_ids_and_flags_are_named() {
    let mut chain = Chain::new();
    let offer = |ids: &[(u16, u16)]| {
        let mut guest = Guest::new(4, PLAIN);
        ids.iter().for_each(|&(flags, id)| guest.driver.offer_raw(GUEST_ADDR, 1, flags, id));
        guest.device.available().unwrap();
        guest
    };
    for id in [4, 5, u16::MAX] {
        let error = RingError::BufferId { head: 0, id, size: 4 };
        assert_eq!(offer(&[(0, id)]).device.pop_readable(&mut chain), Err(error));
    }
    let mut guest = offer(&[(0, 2), (NEXT, 0), (0, 2)]);
    assert_eq!(guest.device.pop_readable(&mut chain), Ok(true));
    for _ in 0..2 {
        let error = RingError::BufferIdInFlight { head: 1, id: 2 };
        assert_eq!(guest.device.pop_readable(&mut chain), Err(error));
    }
    assert_eq!(guest.device.in_flight(), 1);
    // Available when looked at, not when popped; in every way of being unavailable.
    for flags in [0, AVAIL | USED, USED] {
        let mut guest = offer(&[(0, 0)]);
        guest.driver.write_raw_desc(guest.driver.desc_addr(), 0, GUEST_ADDR, 1, flags, 0);
        assert_eq!(guest.device.pop_readable(&mut chain), Err(RingError::TakenBack { head: 0 }));
        assert_eq!(chain.spans(), &[]);
    }
    // A ring full of NEXT, and a chain that continues into one in flight.
    let mut guest = offer(&[(NEXT, 0); 4]);
    assert_eq!(guest.device.pop_readable(&mut chain), Err(RingError::Loop { head: 0, most: 4 }));
    let mut guest = offer(&[(0, 0), (0, 1), (NEXT, 2), (NEXT, 3)]);
    for _ in 0..2 {
        assert_eq!(guest.device.pop_readable(&mut chain), Ok(true));
    }
    assert_eq!(guest.device.pop_readable(&mut chain), Err(RingError::Loop { head: 2, most: 2 }));
    assert_eq!((guest.device.in_flight(), guest.device.pending()), (2, 1));
}

/// Chains that grow, shrink and join between the look and the pop.
#[test]
fn chains_that_change_after_the_look_do_no_harm() {
    let mut chain = Chain::new();
    let mut guest = Guest::new(8, PLAIN);
    let rewrite = |guest: &Guest, slot: u16, flags: u16| {
        let (at, id) = (guest.driver.desc_addr(), slot);
        guest.driver.write_raw_desc(at, slot, GUEST_ADDR, 1, flags | AVAIL, id);
    };
    (0..4).for_each(|id| guest.driver.offer_raw(GUEST_ADDR, 1, 0, id));
    assert_eq!(guest.device.available(), Ok(4));
    (0..3).for_each(|slot| rewrite(&guest, slot, NEXT));
    assert_eq!(guest.device.pop_readable(&mut chain), Ok(true));
    assert_eq!((chain.head(), chain.spans().len()), (3, 4));
    assert_eq!((guest.device.pending(), guest.device.in_flight()), (0, 1));
    assert_eq!(guest.device.available(), Ok(0));
    (4..7).for_each(|_| guest.driver.offer_raw(GUEST_ADDR, 1, NEXT, 4));
    guest.driver.offer_raw(GUEST_ADDR, 1, 0, 7);
    assert_eq!(guest.device.available(), Ok(1));
    rewrite(&guest, 4, 0);
    assert_eq!(guest.device.pop_readable(&mut chain), Ok(true));
    assert_eq!((chain.head(), chain.spans().len(), guest.device.pending()), (4, 1, 0));
    assert_eq!(guest.device.available(), Ok(1), "the rest is a chain of its own now");
    assert_eq!(guest.device.pop_readable(&mut chain), Ok(true));
    assert_eq!((chain.head(), chain.spans().len()), (7, 3));
}

/// An interrupt is due iff the driver's place is among those passed, by counting them.
#[test]
fn an_interrupt_is_due_when_the_place_is_passed() {
    let size = 5;
    for start in 0..size {
        for batch in 1..=size {
            // The place asked for, counted from where the used descriptors begin.
            for asked in 0..size {
                let mut guest = Guest::starting_at(size, INDIRECT, 0x8000 | start);
                assert!(guest.device.publish());
                let mut chain = Chain::new();
                for _ in 0..batch {
                    guest.driver.add(&[Buffer::readable(GUEST_ADDR, 1)]).unwrap();
                }
                let _ = guest.driver.publish();
                let place = start + asked;
                let bits = if place < size { 0x8000 | place } else { place - size };
                guest.memory.word(guest.driver.avail_addr()).store(bits.to_le(), Ordering::Relaxed);
                guest.memory.word(guest.driver.avail_addr() + 2).store(2u16.to_le(), Ordering::Relaxed);
                guest.device.available().unwrap();
                for _ in 0..batch {
                    assert_eq!(guest.device.pop_readable(&mut chain), Ok(true));
                    guest.device.complete(chain.head(), 0);
                }
                assert_eq!(guest.device.publish(), asked < batch, "{asked} of {batch} from {start}");
            }
        }
    }
}

/// A guest's bytes anywhere in its ring, and then a step of the device.
#[derive(Clone, Debug)]
struct Noise {
    slot: u16,
    desc: (u64, u32, u16, u16),
    step: u8,
}

fn noise() -> impl Strategy<Value = Noise> {
    let addr = prop_oneof![8 => Just(GUEST_ADDR), 1 => any::<u64>()];
    let ownership = prop_oneof![4 => Just(AVAIL), 4 => Just(USED), 1 => Just(0), 1 => Just(AVAIL | USED)];
    let flags = (prop_oneof![6 => Just(0), 4 => Just(NEXT), 1 => any::<u16>()], ownership)
        .prop_map(|(flags, ownership)| flags & !(AVAIL | USED) | ownership);
    let desc = (addr, 0u32..100, flags, 0u16..9);
    (0u16..8, desc, 0u8..8).prop_map(|(slot, desc, step)| Noise { slot, desc, step })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// Whatever is written into the ring between the device's steps, popped chains are in the guest's own
    /// memory, no id is in flight twice, and at most the ring's size is in flight.
    #[test]
    fn noise_is_survived(
        size in 1u16..=8,
        base in any::<u16>(),
        noise in prop::collection::vec(noise(), 1..200),
    ) {
        let mut guest = Guest::starting_at(size, INDIRECT, base);
        let start = guest.map.translate(GUEST_ADDR, 1 << 20).unwrap().addr();
        let mut chain = Chain::new();
        let mut open: Vec<(u16, u16)> = Vec::new();
        for Noise { slot, desc: (addr, len, flags, id), step } in noise {
            let driver = &guest.driver;
            driver.write_raw_desc(driver.desc_addr(), slot % size, addr, len, flags, id);
            match step {
                0..2 => { guest.device.available().unwrap(); }
                2..5 => {
                    let before = guest.device.base();
                    match guest.device.pop_readable(&mut chain) {
                        Ok(true) => {}
                        Err(error) if !error.is_fatal() => {}
                        Ok(false) => continue,
                        Err(_) => {
                            prop_assert_eq!(guest.device.base(), before, "nothing was popped");
                            prop_assert_eq!(chain.spans(), &[]);
                            continue;
                        }
                    }
                    let places = distance(before, guest.device.base(), size);
                    prop_assert!((1..=size).contains(&places));
                    prop_assert!(chain.head() < size && open.iter().all(|(id, _)| *id != chain.head()));
                    for span in chain.spans() {
                        let at = span.ptr.addr();
                        prop_assert!(at >= start && at + span.len as usize <= start + (1 << 20));
                    }
                    open.push((chain.head(), places));
                }
                // The oldest first, so that the last popped can be put back.
                5 => if !open.is_empty() { guest.device.complete(open.remove(0).0, 3) },
                6 => { let _ = guest.device.publish(); }
                _ => {
                    let n = open.len().min(2);
                    guest.device.rewind(n as u16);
                    open.truncate(open.len() - n);
                }
            }
            prop_assert_eq!(usize::from(guest.device.in_flight()), open.len());
            prop_assert!(open.iter().map(|(_, places)| places).sum::<u16>() <= size);
            prop_assert!(guest.device.pending() <= size);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// The same for receive buffers that are taken many at a time.
    #[test]
    fn noise_in_a_receive_ring_is_survived(
        size in 1u16..=8,
        base in any::<u16>(),
        in_order in any::<bool>(),
        noise in prop::collection::vec((noise(), 0usize..6), 1..200),
    ) {
        let mut guest = Guest::starting_at(size, Features { in_order, ..PLAIN }, base);
        let start = guest.map.translate(GUEST_ADDR, 1 << 20).unwrap().addr();
        let mut open: Vec<u16> = Vec::new();
        for (Noise { slot, desc: (addr, len, flags, id), step }, most) in noise {
            let driver = &guest.driver;
            driver.write_raw_desc(driver.desc_addr(), slot % size, addr, len, flags, id);
            match step {
                0 => { guest.device.available().unwrap(); }
                1..5 => {
                    let mut singles = vec![Single::EMPTY; most];
                    let popped = guest.device.pop_singles::<true>(&mut singles);
                    for single in &singles[..popped] {
                        let at = single.ptr.addr();
                        prop_assert!(single.len > 0);
                        prop_assert!(at >= start && at + single.len as usize <= start + (1 << 20));
                        prop_assert!(!open.contains(&single.head));
                        open.push(single.head);
                    }
                    if step == 4 && popped > 0 {
                        guest.device.put_back(&singles[popped - 1..popped]);
                        open.pop();
                    }
                }
                5 => if !open.is_empty() { guest.device.complete(open.remove(0), 3) },
                _ => { let _ = guest.device.publish(); }
            }
            prop_assert_eq!(usize::from(guest.device.in_flight()), open.len());
            prop_assert!(open.len() <= usize::from(size));
            prop_assert!(guest.device.pending() <= size);
        }
    }
}

/// Returns the places from one base's available half to another's.
fn distance(from: u32, to: u32, size: u16) -> u16 {
    let place = |base: u32| u32::from(size) * ((base >> 15) & 1) + (base & 0x7fff);
    ((place(to) + 2 * u32::from(size) - place(from)) % (2 * u32::from(size))) as u16
}
