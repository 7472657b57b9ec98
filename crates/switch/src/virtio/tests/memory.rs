//! Valid and invalid memory tables, and translation at their edges.

use super::super::backing::Unfit;
use super::super::memory::{GuestMemory, MapError, RegionSpec};
use super::super::{RingError, Span};
use super::{GUEST_ADDR, spec};
use crate::quota::MAX_REGIONS;
use proptest::prelude::*;
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use std::os::fd::OwnedFd;
use tidegate_frontend::memory::SharedMemory;

const PAGE: u64 = 4096;

fn file(size: u64) -> OwnedFd {
    let fd = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, size).unwrap();
    fd
}

fn region(guest_addr: u64, size: u64) -> RegionSpec {
    RegionSpec { guest_addr, user_addr: 0x7f00_0000_0000 + guest_addr, size, mmap_offset: 0, fd: file(size) }
}

#[test]
fn unusable_tables_are_refused_with_the_reason() {
    let pipe = std::io::pipe().unwrap().0;
    let read_only = {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("memory"), [0; 4096]).unwrap();
        std::fs::File::open(dir.path().join("memory")).unwrap()
    };
    let cases: Vec<(&str, Vec<RegionSpec>, MapError)> = vec![
        ("no regions", vec![], MapError::NoRegions),
        (
            "65 regions",
            (0..65).map(|i| region(i * PAGE, PAGE)).collect(),
            MapError::TooManyRegions(MAX_REGIONS + 1),
        ),
        ("empty", vec![region(0, PAGE), RegionSpec { size: 0, ..region(PAGE, PAGE) }], MapError::Empty(1)),
        (
            "guest address overflows",
            vec![RegionSpec { guest_addr: u64::MAX - PAGE + 1, ..region(0, PAGE) }],
            MapError::Overflow(0),
        ),
        (
            "user address overflows",
            vec![RegionSpec { user_addr: u64::MAX - 1, ..region(0, PAGE) }],
            MapError::Overflow(0),
        ),
        (
            "offset overflows",
            vec![RegionSpec { mmap_offset: u64::MAX - 1, ..region(0, PAGE) }],
            MapError::Overflow(0),
        ),
        (
            "offset beyond what files can have",
            vec![RegionSpec { mmap_offset: i64::MAX as u64, ..region(0, PAGE) }],
            MapError::Overflow(0),
        ),
        ("overlap by one byte", vec![region(PAGE, PAGE), region(1, PAGE)], MapError::Overlap(0, 1)),
        ("same place", vec![region(0, PAGE), region(PAGE, PAGE), region(0, 1)], MapError::Overlap(0, 2)),
        (
            "file ends early",
            vec![RegionSpec { mmap_offset: PAGE, fd: file(2 * PAGE - 1), ..region(0, PAGE) }],
            MapError::FileTooSmall { region: 0, end: 2 * PAGE, file: 2 * PAGE - 1 },
        ),
        (
            "a pipe",
            vec![RegionSpec { fd: pipe.into(), ..region(0, PAGE) }],
            MapError::Unfit { region: 0, reason: Unfit::NotAFile },
        ),
        (
            "read-only",
            vec![RegionSpec { fd: read_only.into(), ..region(0, PAGE) }],
            MapError::System { region: 0, call: "mmap", errno: rustix::io::Errno::ACCESS },
        ),
    ];
    for (name, specs, expected) in cases {
        assert_eq!(GuestMemory::map(specs).expect_err(name), expected, "{name}");
    }
}

#[test]
fn the_unshared_memory_error_says_what_to_change_in_the_qemu_line() {
    let text = MapError::NoRegions.to_string();
    assert!(text.starts_with("guest memory is not shared"), "{text}");
    assert!(text.contains("-object memory-backend-memfd,") && text.contains("share=on"), "{text}");
}

#[test]
fn addresses_translate_up_to_the_last_byte_and_no_further() {
    let memory = SharedMemory::new(GUEST_ADDR, 2 * PAGE as usize).unwrap();
    let map = GuestMemory::map(vec![spec(&memory)]).unwrap();
    memory.write(GUEST_ADDR + 2 * PAGE - 2, b"ab");
    let last = map.translate(GUEST_ADDR + 2 * PAGE - 1, 1).unwrap();
    // SAFETY: one byte that was just translated.
    assert_eq!(unsafe { last.read_volatile() }, b'b');
    assert_eq!(map.translate_user(memory.user_addr() + 2 * PAGE - 1, 1), Some(last));

    for (addr, len) in [
        (GUEST_ADDR - 1, 1),
        (GUEST_ADDR - 1, 2),
        (GUEST_ADDR + 2 * PAGE, 1),
        (GUEST_ADDR + 2 * PAGE, 0),
        (GUEST_ADDR + 2 * PAGE - 1, 2),
        (GUEST_ADDR, 2 * PAGE + 1),
        (GUEST_ADDR, u64::MAX),
        (GUEST_ADDR + 1, u64::MAX),
        (u64::MAX, 1),
        (u64::MAX, u64::MAX),
        (0, 1),
    ] {
        assert_eq!(map.translate(addr, len), None, "{addr:#x} + {len}");
        let user = addr.wrapping_sub(GUEST_ADDR).wrapping_add(memory.user_addr());
        assert_eq!(map.translate_user(user, len), None, "user {user:#x} + {len}");
    }
}

#[test]
fn a_region_may_start_anywhere_in_its_file() {
    let memory = SharedMemory::new(0, 3 * PAGE as usize).unwrap();
    memory.write(PAGE + 100, b"here");
    let map = GuestMemory::map(vec![RegionSpec {
        guest_addr: 0x9000,
        user_addr: 0x1_0000,
        size: PAGE,
        mmap_offset: PAGE + 100,
        ..spec(&memory)
    }])
    .unwrap();
    for ptr in [map.translate(0x9000, PAGE), map.translate_user(0x1_0000, PAGE)] {
        let first = ptr.unwrap().cast::<[u8; 4]>();
        // SAFETY: four of the bytes just translated.
        let first = unsafe { first.read_volatile() };
        assert_eq!(&first, b"here");
    }
}

#[test]
fn memory_is_unmapped_when_dropped() {
    let map = GuestMemory::map(vec![region(0, PAGE)]).unwrap();
    let start = map.translate(0, 1).unwrap().addr();
    let mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().any(|line| line.starts_with(&format!("{start:x}-")) && line.contains("memfd:test"))
    };
    assert!(mapped());
    drop(map);
    assert!(!mapped());
}

#[test]
fn memory_is_preallocated_when_every_page_of_every_region_is_there() {
    let sparse = || file(4 * PAGE);
    let full = || {
        let fd = file(4 * PAGE);
        fallocate(&fd, FallocateFlags::empty(), 0, 4 * PAGE).unwrap();
        fd
    };
    let half = file(4 * PAGE);
    fallocate(&half, FallocateFlags::empty(), 0, 2 * PAGE).unwrap();
    let low = |fd| RegionSpec { fd, ..region(0, 2 * PAGE) };
    let high = |fd| RegionSpec { mmap_offset: 2 * PAGE, fd, ..region(0x10_0000, 2 * PAGE) };
    let preallocated = |specs| GuestMemory::map(specs).unwrap().preallocated();

    assert!(preallocated(vec![low(full())]));
    assert!(!preallocated(vec![low(sparse())]));
    assert!(!preallocated(vec![low(full()), high(sparse())]));
    let shared = full();
    assert!(preallocated(vec![low(shared.try_clone().unwrap()), high(shared)]));
    // Enough blocks for either region, not for both.
    assert!(!preallocated(vec![low(half.try_clone().unwrap()), high(half)]));
    // Enough blocks for the region, elsewhere in its file.
    let beside = file(4 * PAGE);
    fallocate(&beside, FallocateFlags::empty(), 2 * PAGE, 2 * PAGE).unwrap();
    assert!(!preallocated(vec![low(beside)]));
    // As QEMU leaves out what lies under the VGA memory.
    let but_one_page = RegionSpec { size: PAGE, ..low(full()) };
    assert!(preallocated(vec![but_one_page]));
}

proptest! {
    /// Spans against the obvious: byte by byte.
    #[test]
    fn spans_are_what_translating_each_byte_gives(
        sizes in prop::collection::vec((1u64..40, 0u64..3), 1..5),
        start in 0u64..120,
        len in 0u32..120,
    ) {
        let mut at = 7;
        let mut specs = Vec::new();
        for (size, gap) in sizes {
            specs.insert(0, region(at, size)); // the order of a table means nothing
            at += size + gap;
        }
        let map = GuestMemory::map(specs).unwrap();
        let mut spans: Vec<Span> = Vec::new();
        let mapped = map.translate_spans(start, len, |span| { spans.push(span); Ok::<_, RingError>(()) }).unwrap();

        let bytes: Vec<_> = (0..u64::from(len)).map(|i| map.translate(start + i, 1)).collect();
        prop_assert_eq!(mapped, bytes.iter().all(Option::is_some));
        let got: Vec<_> = spans.iter().flat_map(|s| (0..s.len as usize).map(|i| s.ptr.wrapping_add(i))).collect();
        let expected: Vec<_> = bytes.iter().map_while(|b| *b).collect();
        prop_assert_eq!(got, expected);
        prop_assert!(spans.iter().all(|span| span.len > 0));
        prop_assert_eq!(map.translate(start, len.into()).is_some() && len > 0, mapped && spans.len() == 1);
    }
}
