//! Hints to the processor: it loads memory that is read or written soon into its cache.
//!
//! A hint neither faults nor reads in the sense of the language: any address is allowed, mapped or not.

/// Bytes of a cache line.
pub const LINE: usize = 64;

/// Hints that the cache line of `ptr` is read soon.
#[inline]
pub fn for_reading(ptr: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; any address is allowed.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(ptr.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = ptr;
}

/// Hints that the cache line of `ptr` is written soon: it is fetched for this processor alone.
#[inline]
pub fn for_writing(ptr: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, as above. Assembly, because the intrinsic becomes a prefetch for reading if the target
    // is not known to have the instruction; processors without it ignore it.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) ptr.addr(), options(nomem, nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = ptr;
}
