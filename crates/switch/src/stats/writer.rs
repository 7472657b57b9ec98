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

/// The shared region, mapped for writing. Never unmapped: workers keep
/// references into it for as long as the process lives.
pub struct Region {
    layout: &'static Layout,
    file: OwnedFd,
    /// Counters that no port has claimed yet, by their index.
    inherited: Mutex<BTreeMap<usize, String>>,
}

impl Region {
    /// A new region, all zero, in a sealed memfd (its size can never change, so no
    /// reader is ever hit by SIGBUS).
    pub fn create() -> io::Result<Self> {
        let size = size_of::<Layout>();
        let file =
            rustix::fs::memfd_create("tidegate-stats", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, size as u64)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        // SAFETY: a fresh mapping of a file of exactly this size; nothing else is mapped there.
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
        // SAFETY: page-aligned, large enough, zero is a valid value of every field,
        // all fields are atomics, and the mapping is never removed.
        let layout: &'static Layout = unsafe { &*start.cast::<Layout>() };
        layout.version.set(VERSION);
        layout.magic.set(MAGIC);
        Ok(Self { layout, file, inherited: Mutex::default() })
    }

    /// What is in the region.
    pub fn layout(&self) -> &'static Layout {
        self.layout
    }

    /// The memfd, to hand to readers.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Takes over the counters of a region whose switch is gone, each vNIC at its index: they go on when
    /// [`claim`](Self::claim)ed by their names.
    pub fn inherit(&self, from: &Reader) {
        for (index, name) in from.names() {
            from.copy_to(index, self.claim(index, &name));
            self.inherited().insert(index, name);
        }
    }

    /// Copies the counters of a region once more, for vNICs that claimed theirs and have not counted since.
    pub fn renew(&self, from: &Reader) {
        for (index, name) in from.names() {
            if super::reader::name(&self.layout.vnics[index]).as_deref() == Some(name.as_str()) {
                from.copy_to(index, &self.layout.vnics[index]);
            }
        }
    }

    /// The index at which a vNIC's counters go on; `None` where it has none.
    pub fn inherited_index(&self, name: &str) -> Option<usize> {
        self.inherited().iter().find(|(_, own)| *own == name).map(|(index, _)| *index)
    }

    /// Whether counters wait there for their vNIC.
    pub fn is_reserved(&self, index: usize) -> bool {
        self.inherited().contains_key(&index)
    }

    fn inherited(&self) -> MutexGuard<'_, BTreeMap<usize, String>> {
        self.inherited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives slot `index` to vNIC `name`: with all counters at zero, unless they were
    /// [inherited](Self::inherit) for it.
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
