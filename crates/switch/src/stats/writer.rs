//! The switch's side of the shared memory.

use super::layout::{Layout, MAGIC, NAME, VERSION, VnicSlot};
use super::reader::Reader;
use crate::frame::LinkLocals;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The shared region, mapped for writing. Never unmapped: workers have references into it until the process ends.
pub struct Region {
    layout: &'static Layout,
    file: OwnedFd,
    /// Inherited counters that no port has claimed yet: index and vNIC.
    inherited: Mutex<BTreeMap<usize, String>>,
}

impl Region {
    /// Creates a region, all zero, in a sealed memfd: its size never changes, so no reader gets SIGBUS.
    pub fn create() -> io::Result<Self> {
        let size = size_of::<Layout>();
        let file =
            rustix::fs::memfd_create("tidegate-stats", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, size as u64)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        // SAFETY: a new mapping of a file of exactly this size.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                size,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &file,
                0,
            )?
        };
        // SAFETY: page-aligned and large enough; all fields are atomics, for which zero is valid; the mapping
        // is never removed.
        let layout: &'static Layout = unsafe { &*start.cast::<Layout>() };
        layout.version.set(VERSION);
        layout.magic.set(MAGIC);
        Ok(Self { layout, file, inherited: Mutex::default() })
    }

    /// Returns the content of the region.
    pub fn layout(&self) -> &'static Layout {
        self.layout
    }

    /// Returns the memfd, for readers.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Copies the counters of a region whose switch has ended, each vNIC's at its index. They continue when
    /// [`claim`](Self::claim)ed by the same vNIC.
    pub fn inherit(&self, from: &Reader) {
        for (index, name) in from.all_names() {
            from.copy_to(index, self.claim(index, &name));
            self.inherited().insert(index, name);
        }
    }

    /// Copies the counters of a region once more, for vNICs that claimed theirs and have not counted since.
    pub fn renew(&self, from: &Reader) {
        for (index, name) in from.all_names() {
            if super::reader::any_name(&self.layout.vnics[index]).as_deref() == Some(name.as_str()) {
                from.copy_to(index, &self.layout.vnics[index]);
            }
        }
    }

    /// Returns the index of a vNIC's inherited counters, if any.
    pub fn inherited_index(&self, name: &str) -> Option<usize> {
        self.inherited().iter().find(|(_, own)| *own == name).map(|(index, _)| *index)
    }

    /// Whether inherited counters wait at `index` for their vNIC.
    pub fn is_reserved(&self, index: usize) -> bool {
        self.inherited().contains_key(&index)
    }

    fn inherited(&self) -> MutexGuard<'_, BTreeMap<usize, String>> {
        self.inherited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives slot `index` to vNIC `name`: with counters at zero, unless they were [inherited](Self::inherit) for it.
    pub fn claim(&self, index: usize, name: &str) -> &'static VnicSlot {
        let slot = &self.layout.vnics[index];
        if self.inherited().remove(&index).is_some_and(|own| own == name) {
            return slot;
        }
        let generation = slot.generation.load(Relaxed);
        slot.generation.store(generation | 1, Release);
        clear(slot);
        for (i, cell) in slot.name.iter().enumerate() {
            let byte = if i < NAME - 1 { name.as_bytes().get(i).copied() } else { None };
            cell.store(byte.unwrap_or(0), Relaxed);
        }
        slot.generation.store((generation | 1) + 1, Release);
        slot
    }

    /// Frees slot `index`: readers see an empty name.
    pub fn release(&self, index: usize) {
        let slot = &self.layout.vnics[index];
        slot.name[0].store(0, Release);
    }
}

fn clear(slot: &VnicSlot) {
    for traffic in [&slot.tx, &slot.rx] {
        traffic.clear();
    }
    slot.on_wire.clear();
    slot.throttled.set(0);
    slot.throttled_now.set(0);
    slot.forget_waits_tx();
    slot.forget_waits_rx();
    slot.work.clear();
    slot.delay.reset();
    slot.delay_least.reset();
    slot.realtime_delivered.set(0);
    slot.realtime_worst.set(0);
    slot.realtime_worst_least.set(0);
    slot.misses.iter().for_each(|c| c.set(0));
    slot.misses_possible.set(0);
    slot.misses_asleep.set(0);
    slot.misses_seen.set(0);
    slot.miss_log.iter().for_each(|m| m.number.set(0));
    slot.messages.set(0);
    slot.set_link_local(&LinkLocals::default());
}
