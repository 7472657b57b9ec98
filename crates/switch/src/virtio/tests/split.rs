//! The split queue, one behaviour at a time.

use super::super::layout::need_event;
use super::super::{
    Chain, Features, GuestMemory, MAX_CHAIN_BYTES, MAX_SPANS, Queue, RingError, RingPart, Span,
};
use super::{GUEST_ADDR, Guest, layout, spec};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidegate_frontend::driver::{Buffer, DriverFeatures, DriverQueue, Used};
use tidegate_frontend::memory::SharedMemory;

const PLAIN: Features = Features { packed: false, event_idx: false, indirect: false, in_order: false };
const INDIRECT: Features = Features { packed: false, event_idx: false, indirect: true, in_order: false };

fn content(spans: &[Span]) -> Vec<u8> {
    let byte = |span: &Span, i: usize| {
        // SAFETY: the spans come from a queue whose memory lives as long as the test.
        unsafe { span.ptr.add(i).read_volatile() }
    };
    spans.iter().flat_map(|span| (0..span.len as usize).map(|i| byte(span, i))).collect()
}

#[test]
fn a_frame_goes_out_and_its_buffers_come_back() {
    let mut guest = Guest::new(8, PLAIN);
    let mut chain = Chain::new();
    let (header, payload) = (guest.place(b"header"), guest.place(b"payload"));
    let head = guest.driver.add(&[Buffer::readable(header, 6), Buffer::readable(payload, 7)]).unwrap();
    assert_eq!(guest.device.available(), Ok(0), "not published");
    assert!(guest.driver.publish());
    assert_eq!(guest.device.pop_readable(&mut chain), Ok(false), "not looked for");
    assert_eq!(guest.device.available(), Ok(1));
    assert_eq!(guest.device.pop_readable(&mut chain), Ok(true));
    assert_eq!((chain.head(), chain.bytes()), (head, 13));
    assert_eq!(content(chain.spans()), b"headerpayload");
    assert_eq!(guest.device.pop_readable(&mut chain), Ok(false));
    guest.device.complete(head, 0);
    assert_eq!(guest.driver.reap(), None, "not published");
    assert!(guest.device.publish());
    assert_eq!(guest.driver.reap(), Some(Used { head, len: 0 }));
}

#[test]
fn empty_buffers_are_skipped() {
    let mut guest = Guest::new(4, PLAIN);
    let mut chain = Chain::new();
    let data = guest.place(b"x");
    // An empty buffer has no bytes that could be outside the map.
    guest.driver.add(&[Buffer::readable(1, 0), Buffer::readable(data, 1), Buffer::readable(2, 0)]).unwrap();
    guest.driver.add(&[Buffer::readable(0, 0)]).unwrap();
    assert!(guest.driver.publish());
    assert_eq!(guest.device.available(), Ok(2));
    assert_eq!(guest.device.pop_readable(&mut chain), Ok(true));
    assert_eq!(content(chain.spans()), b"x");
    assert_eq!(guest.device.pop_readable(&mut chain), Ok(true));
    assert_eq!((chain.spans(), chain.bytes()), (&[][..], 0));
}

#[test]
fn an_indirect_table_may_end_a_plain_chain_and_need_not_be_aligned() {
    let mut guest = Guest::new(4, INDIRECT);
    let mut chain = Chain::new();
    let (a, b) = (guest.place(b"plain,"), guest.place(b"indirect"));
    let table = guest.memory.alloc(32 + 16, 16) + 3;
    let driver = &guest.driver;
    driver.write_raw_desc(driver.desc_addr(), 2, a, 6, 1, 3);
    driver.write_raw_desc(driver.desc_addr(), 3, table, 32, 4 | 2, 0); // WRITE means nothing here
    driver.write_raw_desc(table, 0, b, 2, 1, 1);
    driver.write_raw_desc(table, 1, b + 2, 6, 0, 0);
    guest.memory.word(driver.avail_addr() + 4).store(2, Ordering::Relaxed);
    guest.memory.word(driver.avail_addr() + 2).store(1, Ordering::Release);
    assert_eq!(guest.device.available(), Ok(1));
    assert_eq!(guest.device.pop_readable(&mut chain), Ok(true));
    assert_eq!((chain.head(), chain.spans().len()), (2, 3));
    assert_eq!(content(chain.spans()), b"plain,indirect");
}

#[test]
fn a_chain_may_have_as_many_descriptors_as_the_ring() {
    let mut guest = Guest::new(16, PLAIN);
    let mut chain = Chain::new();
    let data = guest.place(b"x");
    guest.driver.add(&[Buffer::readable(data, 1); 16]).unwrap();
    assert!(guest.driver.publish());
    assert_eq!(guest.device.available(), Ok(1));
    assert_eq!(guest.device.pop_readable(&mut chain), Ok(true));
    assert_eq!(chain.spans().len(), 16);
}

#[test]
fn too_many_buffers_cost_the_frame_not_the_queue() {
    let mut guest = Guest::new(128, INDIRECT);
    let mut chain = Chain::new();
    let data = guest.place(b"x");
    let many = [Buffer::readable(data, 1); MAX_SPANS + 1];
    let heads = [
        guest.driver.add_indirect(&many[..MAX_SPANS]).unwrap(),
        guest.driver.add_indirect(&many).unwrap(),
        guest.driver.add(&many[..1]).unwrap(),
    ];
    assert!(guest.driver.publish());
    assert_eq!(guest.device.available(), Ok(3));
    assert_eq!(guest.device.pop_readable(&mut chain), Ok(true));
    assert_eq!(chain.spans().len(), MAX_SPANS);
    let error = guest.device.pop_readable(&mut chain).unwrap_err();
    assert_eq!(error, RingError::TooManySpans { head: heads[1] });
    assert!(!error.is_fatal());
    assert_eq!((chain.head(), chain.spans()), (heads[1], &[][..]), "nothing of it may be used");
    guest.device.complete(chain.head(), 0);
    assert_eq!(guest.device.pop_readable(&mut chain), Ok(true));
    assert_eq!(chain.head(), heads[2]);
    assert!(guest.device.publish());
    assert_eq!(guest.driver.reap(), Some(Used { head: heads[1], len: 0 }));
}

#[test]
fn buffers_crossing_regions_are_split_and_gaps_are_refused() {
    let low = Arc::new(SharedMemory::new(GUEST_ADDR, 0x4000).unwrap());
    let high = SharedMemory::new(GUEST_ADDR + 0x4000, 0x1000).unwrap();
    let map = Arc::new(GuestMemory::map(vec![spec(&high), spec(&low)]).unwrap());
    let mut driver = DriverQueue::new(&low, 8, DriverFeatures::default());
    let mut device = Queue::new(Arc::clone(&map), layout(&driver, &low), 0, PLAIN).unwrap();
    let mut chain = Chain::new();
    low.write(GUEST_ADDR + 0x3ffd, b"abc");
    high.write(GUEST_ADDR + 0x4000, b"de");
    driver.add(&[Buffer::readable(GUEST_ADDR + 0x3ffd, 5)]).unwrap();
    let head = driver.add(&[Buffer::readable(GUEST_ADDR + 0x4ffd, 4)]).unwrap();
    assert!(driver.publish());
    assert_eq!(device.available(), Ok(2));
    assert_eq!(device.pop_readable(&mut chain), Ok(true));
    assert_eq!(chain.spans().iter().map(|s| s.len).collect::<Vec<_>>(), [3, 2]);
    assert_eq!(content(chain.spans()), b"abcde");
    let error = device.pop_readable(&mut chain).unwrap_err();
    assert_eq!(error, RingError::Unmapped { head, addr: GUEST_ADDR + 0x4ffd, len: 4 });
}

#[test]
fn rings_that_cannot_be_are_refused() {
    let memory = Arc::new(SharedMemory::new(GUEST_ADDR, 0x4000).unwrap());
    let map = Arc::new(GuestMemory::map(vec![spec(&memory)]).unwrap());
    let driver = DriverQueue::new(&memory, 16, DriverFeatures::default());
    let good = layout(&driver, &memory);
    let end = memory.user_addr() + memory.size();
    let unmapped = |part, addr, len| RingError::PartUnmapped { part, addr, len };
    let unaligned = |part, addr, align| RingError::PartUnaligned { part, addr, align };
    let used_of = |index: u16| memory.word(driver.used_addr() + 2).store(index, Ordering::Relaxed);
    let mut cases = vec![];
    for size in [0, 3, 1000, u16::MAX] {
        cases.push((super::RingLayout { size, ..good }, RingError::Size(size)));
    }
    let (desc, avail, used) = (end - 255, end - 36, end - 132);
    cases.extend([
        (super::RingLayout { desc, ..good }, unmapped(RingPart::Descriptors, desc, 256)),
        (super::RingLayout { avail, ..good }, unmapped(RingPart::Available, avail, 38)),
        (super::RingLayout { used, ..good }, unmapped(RingPart::Used, used, 134)),
        (super::RingLayout { used: u64::MAX, ..good }, unmapped(RingPart::Used, u64::MAX, 134)),
        (
            super::RingLayout { desc: good.desc + 8, ..good },
            unaligned(RingPart::Descriptors, good.desc + 8, 16),
        ),
        (
            super::RingLayout { avail: good.avail + 1, ..good },
            unaligned(RingPart::Available, good.avail + 1, 2),
        ),
        (super::RingLayout { used: good.used + 2, ..good }, unaligned(RingPart::Used, good.used + 2, 4)),
    ]);
    for (layout, expected) in cases {
        let error = Queue::new(Arc::clone(&map), layout, 0, PLAIN).expect_err("refused");
        assert_eq!(error, expected, "{layout:?}");
    }
    used_of(5);
    assert!(Queue::new(Arc::clone(&map), good, 5 + 16, PLAIN).is_ok());
    for base in [4u16, 5 + 17] {
        let error = Queue::new(Arc::clone(&map), good, base.into(), PLAIN).expect_err("refused");
        assert_eq!(error, RingError::Base { base, used: 5, size: 16 });
    }
}

#[test]
fn receive_buffers_found_too_few_are_put_back() {
    let mut guest = Guest::starting_at(4, PLAIN, 0xffff);
    let mut chain = Chain::new();
    let heads: Vec<_> =
        (0..3).map(|i| guest.driver.add(&[Buffer::writable(GUEST_ADDR + i * 16, 16)]).unwrap()).collect();
    assert!(guest.driver.publish());
    assert_eq!(guest.device.available(), Ok(3));
    let pop = |guest: &mut Guest, chain: &mut Chain| {
        assert_eq!(guest.device.pop_writable(chain), Ok(true));
        chain.head()
    };
    assert_eq!(pop(&mut guest, &mut chain), heads[0]);
    guest.device.complete(heads[0], 1);
    assert_eq!(pop(&mut guest, &mut chain), heads[1]);
    assert_eq!(pop(&mut guest, &mut chain), heads[2]);
    assert_eq!(guest.device.in_flight(), 2);
    guest.device.rewind(2);
    assert_eq!((guest.device.in_flight(), guest.device.pending()), (0, 2));
    assert_eq!(guest.device.next_avail(), 0);
    assert_eq!(pop(&mut guest, &mut chain), heads[1]);
    guest.device.complete(heads[1], 2);
    assert!(guest.device.publish());
    assert_eq!(guest.driver.reap(), Some(Used { head: heads[0], len: 1 }));
    assert_eq!(guest.driver.reap(), Some(Used { head: heads[1], len: 2 }));
    assert_eq!(guest.driver.reap(), None);
}

#[test]
#[should_panic(expected = "rewinding 1 chains of 0")]
fn a_chain_that_was_not_popped_cannot_be_put_back() {
    Guest::new(4, PLAIN).device.rewind(1);
}

#[test]
fn a_restarted_device_owes_an_interrupt_and_goes_on_where_the_ring_is() {
    let mut guest = Guest::starting_at(
        4,
        Features { packed: false, event_idx: true, indirect: false, in_order: false },
        65534,
    );
    let mut chain = Chain::new();
    guest.driver.disable_interrupts();
    assert!(guest.device.publish(), "the device before us may have been killed before the interrupt");
    assert!(!guest.device.publish(), "once");
    for round in 0..6u32 {
        let head = guest.driver.add(&[Buffer::writable(GUEST_ADDR, 16)]).unwrap();
        let _ = guest.driver.publish();
        assert_eq!(guest.device.available(), Ok(1));
        assert_eq!(guest.device.pop_writable(&mut chain), Ok(true));
        guest.device.complete(head, round);
        assert!(!guest.device.publish(), "not asked for");
        assert_eq!(guest.driver.reap(), Some(Used { head, len: round }));
        // Stopped and started again at every index around the wrap.
        let base = guest.device.next_avail();
        assert_eq!(base, 65535u16.wrapping_add(round as u16));
        let layout = layout(&guest.driver, &guest.memory);
        let features = Features { packed: false, event_idx: true, indirect: false, in_order: false };
        guest.device = Queue::new(Arc::clone(&guest.map), layout, base.into(), features).unwrap();
        assert!(guest.device.publish());
    }
}

#[test]
fn a_new_memory_table_moves_the_rings() {
    let mut guest = Guest::new(4, PLAIN);
    let mut chain = Chain::new();
    let data = guest.place(b"data");
    guest.driver.add(&[Buffer::readable(data, 4)]).unwrap();
    assert!(guest.driver.publish());

    let without = SharedMemory::new(0, 0x1000).unwrap();
    let without = Arc::new(GuestMemory::map(vec![spec(&without)]).unwrap());
    let desc = guest.memory.to_user(guest.driver.desc_addr());
    let error = RingError::PartUnmapped { part: RingPart::Descriptors, addr: desc, len: 64 };
    assert_eq!(guest.device.remap(without), Err(error));
    assert_eq!(guest.device.available(), Ok(1), "still in the old table");
    assert_eq!(guest.device.pop_readable(&mut chain), Ok(true));
    let old = chain.spans()[0].ptr;
    guest.device.rewind(1);

    let again = Arc::new(GuestMemory::map(vec![spec(&guest.memory)]).unwrap());
    guest.device.remap(Arc::clone(&again)).unwrap();
    assert_eq!(guest.device.pop_readable(&mut chain), Ok(true));
    assert_eq!(content(chain.spans()), b"data");
    assert_eq!(Some(chain.spans()[0].ptr), again.translate(data, 4));
    assert_ne!(chain.spans()[0].ptr, old);
}

#[test]
fn a_chain_may_be_as_long_as_the_limit() {
    let memory = Arc::new(SharedMemory::new(GUEST_ADDR, 2 * MAX_CHAIN_BYTES as usize).unwrap());
    let map = Arc::new(GuestMemory::map(vec![spec(&memory)]).unwrap());
    let mut driver = DriverQueue::new(&memory, 4, DriverFeatures::default());
    let mut device = Queue::new(map, layout(&driver, &memory), 0, PLAIN).unwrap();
    let half = Buffer::writable(GUEST_ADDR, MAX_CHAIN_BYTES / 2);
    driver.add(&[half, half]).unwrap();
    let head = driver.add(&[half, Buffer { len: half.len + 1, ..half }]).unwrap();
    assert!(driver.publish());
    assert_eq!(device.available(), Ok(2));
    let mut chain = Chain::new();
    assert_eq!(device.pop_writable(&mut chain), Ok(true));
    assert_eq!(chain.bytes(), MAX_CHAIN_BYTES);
    assert_eq!(device.pop_writable(&mut chain), Err(RingError::TooManyBytes { head }));
}

/// An event is needed iff it is among the indices passed, by counting them.
#[test]
fn need_event_is_whether_the_event_was_passed() {
    for old in [0u16, 1, 100, 65535, 65530, 32767] {
        for step in [0u16, 1, 2, 7, 256, 32768, 65535] {
            for event in (0..20).chain(65500..=65535).chain(32700..32800).chain(90..110) {
                let new = old.wrapping_add(step);
                let passed = (0..step).any(|i| old.wrapping_add(i) == event);
                assert_eq!(need_event(event, new, old), passed, "{event} in {old} + {step}");
            }
        }
    }
}
