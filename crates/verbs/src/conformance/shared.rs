//! Regions over memory that others mapped: here pages of a file in memory, as a guest's are.
//!
//! ```text
//!  memfd ─ mmap ─▶ Shared (owner) ◀─ Region::over      a hole punched into the file: the mapping has a new page there,
//!    └ punch                                           the device goes on with the one that it was given
//! ```

use super::end::{End, KEY, Side, sides, take};
use crate::{Access, GRH, Piece, Receive, Region, Status};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::os::fd::OwnedFd;
use std::sync::Arc;

const PAGES: usize = 4;

/// What the pages of a file are.
#[derive(Clone, Copy)]
enum Pages {
    /// Of 4 KiB.
    Small,
    /// Of 2 MiB.
    Huge,
}

impl Pages {
    const fn size(self) -> usize {
        match self {
            Self::Small => 4096,
            Self::Huge => 2 << 20,
        }
    }

    const fn flags(self) -> MemfdFlags {
        match self {
            Self::Small => MemfdFlags::CLOEXEC,
            Self::Huge => MemfdFlags::CLOEXEC.union(MemfdFlags::HUGETLB).union(MemfdFlags::HUGE_2MB),
        }
    }
}

/// A mapping of a file in memory, all of whose pages are there.
struct Shared {
    file: OwnedFd,
    start: *mut u8,
    page: usize,
}

// SAFETY: the checks read and write the pages by one thread, by raw pointers.
unsafe impl std::marker::Send for Shared {}
// SAFETY: the same.
unsafe impl Sync for Shared {}

impl Shared {
    fn new(pages: Pages, fill: u8) -> Arc<Self> {
        let page = pages.size();
        let file = memfd_create("conformance", pages.flags()).unwrap();
        ftruncate(&file, (PAGES * page) as u64).unwrap();
        let (null, both) = (std::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: new pages, at no given address.
        let start = unsafe { mmap(null, PAGES * page, both, MapFlags::SHARED, &file, 0) }.unwrap();
        let shared = Arc::new(Self { file, start: start.cast(), page });
        shared.fill(0, shared.len(), fill);
        shared
    }

    fn len(&self) -> usize {
        PAGES * self.page
    }

    fn region(self: &Arc<Self>, end: &End, access: Access) -> Region {
        // SAFETY: mapped until this is dropped.
        unsafe { Region::over(&end.device, self.start, self.len(), self.clone(), access) }.unwrap()
    }

    fn fill(&self, from: usize, len: usize, byte: u8) {
        assert!(from + len <= self.len());
        // SAFETY: within the mapping.
        unsafe { self.start.add(from).write_bytes(byte, len) };
    }

    fn read(&self, from: usize, len: usize) -> Vec<u8> {
        assert!(from + len <= self.len());
        // SAFETY: within the mapping; no request for these bytes is open.
        unsafe { std::slice::from_raw_parts(self.start.add(from), len) }.to_vec()
    }

    /// Takes a page out of the file: the mapping then has zeros there.
    fn punch(&self, page: usize) {
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.file, how, (page * self.page) as u64, self.page as u64).unwrap();
        self.check_page(page, 0);
    }

    /// Asserts that a page has this byte alone.
    fn check_page(&self, page: usize, byte: u8) {
        assert!(self.read(page * self.page, self.page).iter().all(|other| *other == byte), "page {page}");
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: exactly the pages mapped; regions over them are gone, since they own this.
        unsafe { munmap(self.start.cast(), self.len()) }.unwrap();
    }
}

/// Posts a receive into a region, has a datagram sent to it, and waits.
fn receive_into(b: &Side, piece: Piece<'_>, send: impl FnOnce()) {
    // SAFETY: the bytes are read after the completion.
    unsafe { b.pair.post_receive(&[Receive { id: 9, pieces: &[piece] }]) }.unwrap();
    send();
    let done = take(&b.receives, 1)[0];
    assert_eq!((done.id, done.status), (9, Status::Success));
}

pub fn over(a: &End, b: &End) {
    over_pages(a, b, Pages::Small);
}

fn over_pages(a: &End, b: &End, pages: Pages) {
    let (a, b, to) = sides(a, b);
    let (guest, other) = (Shared::new(pages, b'g'), Shared::new(pages, b'o'));
    let page = pages.size();
    let (from, into) = (guest.region(&a.end, Access::Read), other.region(&b.end, Access::Write));
    assert_eq!((from.start(), from.len()), (guest.start, guest.len()));
    // A header of the sender's own, and two bytes on both sides of a page's end, as they are when the datagram leaves.
    guest.fill(2 * page - 1, 2, b'G');
    a.write(0, b"head");
    let body = Piece { region: &from, from: 2 * page - 2, len: 4 };
    receive_into(&b, Piece { region: &into, from: 100, len: 128 }, || {
        a.send_pieces(&to, (b.pair.number(), KEY), &[&[a.piece(0, 4), body]]);
    });
    assert_eq!(other.read(100 + GRH, 9), b"headgGGgo");
    assert_eq!(other.read(0, 100), [b'o'; 100]);
    // The owner stays as long as the region, also when others let it go.
    let watch = Arc::downgrade(&guest);
    drop(guest);
    assert!(watch.upgrade().is_some());
    drop(from);
    assert!(watch.upgrade().is_none());
    for (start, len) in [(other.start, 0), (std::ptr::null_mut(), page), (other.start, usize::MAX)] {
        // SAFETY: refused.
        let region = unsafe { Region::over(&a.end.device, start, len, other.clone(), Access::Read) };
        let error = region.unwrap_err().to_string();
        assert!(error.starts_with("ibv_reg_mr: "), "{error}");
    }
}

/// Prints which bytes a device has where a hole was punched after the registration. A real one has pinned the pages; the
/// simulated one goes by the mapping. None fails, and none has bytes of others.
pub fn holes(a: &End, b: &End) {
    holes_of(a, b, Pages::Small);
}

/// The same of pages of 2 MiB, where a machine has set some aside.
pub fn huge(a: &End, b: &End) {
    over_pages(a, b, Pages::Huge);
    holes_of(a, b, Pages::Huge);
}

fn holes_of(a: &End, b: &End, pages: Pages) {
    let (a, b, to) = sides(a, b);
    let (guest, page) = (Shared::new(pages, b'1'), pages.size());
    guest.punch(0);
    let region = guest.region(&a.end, Access::Write);
    let sent_from = |from| {
        b.post(1);
        let piece = Piece { region: &region, from, len: 64 };
        a.send_pieces(&to, (b.pair.number(), KEY), &[&[piece]]);
        let bytes = b.payloads(1).remove(0);
        assert!(bytes.len() == 64 && bytes.iter().all(|byte| *byte == bytes[0]), "{bytes:?}");
        bytes[0]
    };
    let sent = || sent_from(page);
    assert_eq!((sent(), sent_from(0)), (b'1', 0));
    guest.fill(0, page, b'0');
    assert_eq!(sent_from(0), b'0', "a hole of before has a page of both");
    guest.punch(1);
    let of_a_hole = sent();
    assert!([0, b'1'].contains(&of_a_hole), "{of_a_hole}");
    guest.fill(page, page, b'2');
    let written = sent();
    assert!([of_a_hole, b'2'].contains(&written), "{written}");
    // The same for what arrives.
    guest.punch(2);
    receive_into(&a, Piece { region: &region, from: 2 * page, len: 64 }, || {
        b.send(&b.address(&a.end, 0), a.pair.number(), KEY, &[b"came"]);
    });
    let came = guest.read(2 * page + GRH, 4);
    assert!(came == b"came" || came == [0; 4], "{came:?}");
    let word = |byte| match byte {
        0 => "zeros",
        b'1' => "what the page had",
        _ => "what the mapping has",
    };
    let arrived = if came == b"came" { "is in the mapping" } else { "is not in the mapping" };
    println!(
        "  of a hole the device sends {}, of a page written anew {}; what arrives {arrived}",
        word(of_a_hole),
        word(written)
    );
    guest.check_page(3, b'1');
}
