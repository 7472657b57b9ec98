//! Frames that lie in one buffer each, from one guest's memory into another's, by way of a copy of their head.

use crate::frame::VnetHdr;
use crate::virtio::Span;

/// Bytes of a frame that are copied and decided on: fewer than [`HEADER_MAX`](crate::frame::HEADER_MAX),
/// which applies to frames with longer headers.
pub const HEAD: usize = 128;
/// Fewest bytes that are copied as two halves.
const HEAD_MIN: usize = 32;

/// The virtio header of a frame without requests.
pub const COMPLETE: [u8; VnetHdr::LEN] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0];

/// Copies the virtio header, and the frame's first `head_len` bytes into `head`.
///
/// # Safety
/// `header_len + head_len` bytes at `from` are mapped.
#[inline(always)]
pub unsafe fn read(
    from: *const u8,
    header_len: usize,
    head: &mut [u8; HEAD],
    head_len: usize,
) -> [u8; VnetHdr::LEN] {
    let mut vnet = [0u8; VnetHdr::LEN];
    // SAFETY: mapped by contract; constant lengths, so that each copy is a few moves.
    unsafe {
        if header_len == VnetHdr::LEN {
            std::ptr::copy_nonoverlapping(from, vnet.as_mut_ptr(), VnetHdr::LEN);
        } else {
            std::ptr::copy_nonoverlapping(from, vnet.as_mut_ptr(), VnetHdr::LEGACY_LEN);
        }
        copy_head(from.wrapping_add(header_len), head.as_mut_ptr(), head_len);
    }
    vnet
}

/// Writes the virtio header and a frame: its head from our copy, the rest from `from`, where the frame begins.
///
/// # Safety
/// `len` bytes, 32 at least, at `from` are readable, `header_len + len` bytes at `to` writable.
#[inline(always)]
pub unsafe fn write(
    to: *mut u8,
    header_len: usize,
    vnet: &[u8; VnetHdr::LEN],
    head: &[u8; HEAD],
    from: *const u8,
    len: usize,
) {
    // SAFETY: by contract. A guest may send from the buffer it receives into, and gets the result within
    // its memory: hence `copy` if both sides are guests' memory.
    unsafe {
        let to = write_header(to, header_len, vnet);
        copy_head(head.as_ptr(), to, len.min(HEAD));
        if len > HEAD {
            std::ptr::copy(from.wrapping_add(HEAD), to.wrapping_add(HEAD), len - HEAD);
        }
    }
}

/// Writes the virtio header, the head of a frame, and the rest of it.
///
/// # Safety
/// `rest` is readable, and all bytes together are writable at `to`.
#[inline(always)]
pub unsafe fn write_parts(
    to: *mut u8,
    header_len: usize,
    vnet: &[u8; VnetHdr::LEN],
    head: &[u8],
    rest: Span,
) {
    // SAFETY: by contract; `copy` as above.
    unsafe {
        let to = write_header(to, header_len, vnet);
        if (HEAD_MIN..=HEAD).contains(&head.len()) {
            copy_head(head.as_ptr(), to, head.len());
        } else {
            std::ptr::copy_nonoverlapping(head.as_ptr(), to, head.len());
        }
        if rest.len > 0 {
            std::ptr::copy(rest.ptr.cast_const(), to.wrapping_add(head.len()), rest.len as usize);
        }
    }
}

/// Writes the virtio header; returns where the frame begins.
///
/// # Safety
/// `header_len` bytes at `to` are writable.
#[inline(always)]
unsafe fn write_header(to: *mut u8, header_len: usize, vnet: &[u8; VnetHdr::LEN]) -> *mut u8 {
    // SAFETY: writable by contract; constant lengths, so that each copy is a few moves.
    unsafe {
        if header_len == VnetHdr::LEN {
            std::ptr::copy_nonoverlapping(vnet.as_ptr(), to, VnetHdr::LEN);
        } else {
            std::ptr::copy_nonoverlapping(vnet.as_ptr(), to, VnetHdr::LEGACY_LEN);
        }
    }
    to.wrapping_add(header_len)
}

/// Copies `len` bytes, [`HEAD_MIN`] to [`HEAD`], as two halves that overlap: no call, no loop.
///
/// # Safety
/// `len` bytes at `from` are readable and at `to` writable; only one of them is in a guest's memory.
#[inline(always)]
unsafe fn copy_head(from: *const u8, to: *mut u8, len: usize) {
    debug_assert!((HEAD_MIN..=HEAD).contains(&len));
    // SAFETY: each half is within the `len` bytes.
    unsafe {
        if len > 64 {
            std::ptr::copy_nonoverlapping(from, to, 64);
            let at = len - 64;
            std::ptr::copy_nonoverlapping(from.wrapping_add(at), to.wrapping_add(at), 64);
        } else {
            std::ptr::copy_nonoverlapping(from, to, 32);
            let at = len - 32;
            std::ptr::copy_nonoverlapping(from.wrapping_add(at), to.wrapping_add(at), 32);
        }
    }
}
