//! The readers' side of the shared memory: read-only snapshots.

use super::arms;
use super::layout::{Counter, Layout, MAGIC, OnWireSlot, TrafficSlot, VERSION, VnicSlot};
use super::shared_histogram::SharedHistogram;
use rustix::fs::{SealFlags, fcntl_get_seals, fstat, fstatfs};
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use tidegate_contract::Vnic;
use tidegate_evidence::{
    Delay, DropReason, Histogram, LogStats, MissCause, OnWire, Traffic, VnicStats, Work, WorkerStats,
};

/// Type of the file system whose memory is always present (linux/magic.h, TMPFS_MAGIC).
const TMPFS_MAGIC: u32 = 0x0102_1994;

/// Bound on CPU numbers: another process writes the region.
const CPUS: u64 = 1 << 16;

/// Bound on waiting flows of a vNIC: another process writes the region.
const FLOWS: u64 = 1 << 20;

/// A read-only view of a switch's region.
pub struct Reader {
    layout: *const Layout,
}

// SAFETY: the region consists of atomics only, and this type only reads it.
unsafe impl Send for Reader {}
// SAFETY: as above.
unsafe impl Sync for Reader {}

impl Reader {
    /// Maps a region that another process writes. Reading never faults, and yields only numbers.
    ///
    /// # Errors
    /// The descriptor is not sealed memory of exactly the layout's size, cannot be mapped, or is of another version.
    pub fn open(file: impl AsFd) -> io::Result<Self> {
        let size = size_of::<Layout>();
        let refused = |why: String| Err(io::Error::other(format!("the statistics region {why}")));
        // First: without seals, which only memory files have, the file could shrink at any time, and access
        // would be SIGBUS.
        let seals = fcntl_get_seals(&file).unwrap_or(SealFlags::empty());
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL) {
            return refused("is not memory that is sealed against any other size (F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL)".into());
        }
        // Files of huge pages can be sealed with pages missing.
        let kind = fstatfs(&file)?.f_type as u32;
        if kind != TMPFS_MAGIC {
            return refused(format!("is not plain memory but on a file system of type {kind:#x}"));
        }
        let has = fstat(&file)?.st_size;
        if has != size as i64 {
            return refused(format!("has {has} bytes, expected {size} for this version's layout"));
        }
        // SAFETY: a new read-only mapping of exactly the file's size, which cannot change.
        let start = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), size, ProtFlags::READ, MapFlags::SHARED, &file, 0)?
        };
        let reader = Self { layout: start.cast() };
        let (magic, version) = (reader.layout().magic.get(), reader.layout().version.get());
        if magic != MAGIC || version != VERSION {
            return refused(format!(
                "has layout version {version}, this program reads version {VERSION}: \
                 switch and agent must be of one release"
            ));
        }
        Ok(reader)
    }

    pub(super) fn layout(&self) -> &Layout {
        // SAFETY: mapped in `open` with the size of Layout, unmapped only in drop; atomics only.
        unsafe { &*self.layout }
    }

    /// Returns the counters of all vNICs.
    pub fn vnics(&self) -> Vec<VnicStats> {
        let arms = self.arms();
        (0..self.layout().vnics.len()).filter_map(|index| self.vnic_at(index, &arms)).collect()
    }

    /// Returns the counters of one vNIC.
    pub fn vnic(&self, name: &str) -> Option<VnicStats> {
        self.vnic_at(self.find(name)?, &self.arms())
    }

    /// Returns one vNIC's histogram of largest possible delays.
    pub fn delay(&self, name: &str) -> Option<Histogram> {
        let mut all = self.layout().vnics[self.find(name)?].delay.read();
        let arms = self.arms().into_iter().filter(|(uplink, _)| uplink == name);
        arms.for_each(|(_, slot)| all.add(&slot.delay.read()));
        Some(all)
    }

    /// Returns the number of system calls denied to the switch: 0, unless there is a bug or an intruder.
    pub fn denied_calls(&self) -> u64 {
        self.layout().denied_calls.get()
    }

    /// Returns how many lines the switch's log lacks.
    pub fn log(&self) -> LogStats {
        let layout = self.layout();
        LogStats { lost: layout.log_lost.get(), suppressed: layout.log_suppressed.get() }
    }

    /// Returns the counters of all workers.
    pub fn workers(&self) -> Vec<WorkerStats> {
        let layout = self.layout();
        let used = (layout.workers_used.get() as usize).min(layout.workers.len());
        layout.workers[..used]
            .iter()
            .map(|w| {
                let loop_time = Delay::from(&w.loop_time.read());
                WorkerStats {
                    loops: w.loops.get(),
                    loops_over_budget: w.loops_over_budget.get(),
                    longest_loop_ns: loop_time.max,
                    sleeps: w.sleeps.get(),
                    asleep_ns: w.asleep.get(),
                    awake_ns: w.awake.get(),
                    events_lost: w.events_lost.get(),
                    cpu: w.cpu.get().checked_sub(1).filter(|cpu| *cpu < CPUS),
                    loop_time,
                }
            })
            .collect()
    }

    /// Returns the names of all vNICs, with their indices.
    pub fn names(&self) -> impl Iterator<Item = (usize, String)> + '_ {
        (0..self.layout().vnics.len()).filter_map(|index| Some((index, self.name_at(index)?)))
    }

    /// Returns the names of all slots in use, also of arms, with their indices.
    pub(super) fn all_names(&self) -> impl Iterator<Item = (usize, String)> + '_ {
        self.layout().vnics.iter().enumerate().filter_map(|(index, slot)| Some((index, any_name(slot)?)))
    }

    /// Returns the counters of arms, with their uplinks.
    fn arms(&self) -> Vec<(String, &VnicSlot)> {
        let arm = |slot| Some((arms::uplink_of(&any_name(slot)?)?.to_owned(), slot));
        self.layout().vnics.iter().filter_map(arm).collect()
    }

    /// Returns the number of messages of a vNIC's front ends begun and answered; odd while one is handled.
    pub fn messages(&self, name: &str) -> Option<u64> {
        Some(self.layout().vnics[self.find(name)?].messages.get())
    }

    /// Copies the counters at `index` of a region without a writer.
    pub(super) fn copy_to(&self, index: usize, to: &VnicSlot) {
        self.layout().vnics[index].copy_to(to);
    }

    pub(super) fn find(&self, name: &str) -> Option<usize> {
        (0..self.layout().vnics.len()).find(|i| self.name_at(*i).as_deref() == Some(name))
    }

    /// Returns the vNIC at an index; the uplink of an arm.
    pub(super) fn port_at(&self, index: usize) -> Option<String> {
        let name = any_name(self.layout().vnics.get(index)?)?;
        Some(arms::uplink_of(&name).map(str::to_owned).unwrap_or(name))
    }

    fn name_at(&self, index: usize) -> Option<String> {
        name(self.layout().vnics.get(index)?)
    }

    fn vnic_at(&self, index: usize, arms: &[(String, &VnicSlot)]) -> Option<VnicStats> {
        let slot = &self.layout().vnics[index];
        let generation = slot.generation.load(Acquire);
        let name = self.name_at(index)?;
        let arms = arms.iter().filter(|(uplink, _)| *uplink == name).map(|(_, slot)| *slot).collect();
        let stats = snapshot(slot, arms, name, index);
        (slot.generation.load(Acquire) == generation).then_some(stats)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // SAFETY: the mapping of `open`; no reference into it outlives `self`.
        let _ = unsafe { rustix::mm::munmap(self.layout.cast_mut().cast(), size_of::<Layout>()) };
    }
}

/// Returns the slot's vNIC; `None` while the slot is free or changes hands, for an arm, or for an invalid name.
pub(super) fn name(slot: &VnicSlot) -> Option<String> {
    stored_name(slot).filter(|name| Vnic::is_name(name))
}

/// Returns the slot's vNIC or arm.
pub(super) fn any_name(slot: &VnicSlot) -> Option<String> {
    stored_name(slot).filter(|name| Vnic::is_name(name) || arms::uplink_of(name).is_some())
}

fn stored_name(slot: &VnicSlot) -> Option<String> {
    if slot.generation.load(Acquire) % 2 == 1 {
        return None;
    }
    let bytes: Vec<u8> = slot.name.iter().map(|c| c.load(Relaxed)).take_while(|b| *b != 0).collect();
    String::from_utf8(bytes).ok()
}

/// Reads a slot, with what its arms took in.
fn snapshot(slot: &VnicSlot, arms: Vec<&VnicSlot>, name: String, index: usize) -> VnicStats {
    let all = || std::iter::once(slot).chain(arms.iter().copied());
    let work =
        |count: fn(&VnicSlot) -> &Counter| all().map(|slot| count(slot).get()).fold(0, u64::wrapping_add);
    VnicStats {
        name,
        index,
        tx: arms.iter().fold(traffic(&slot.tx), |sum, arm| together(sum, &traffic(&arm.tx))),
        rx: traffic(&slot.rx),
        on_wire: on_wire(slot),
        throttled_ns: slot.throttled.get(),
        throttled: slot.throttled_now.get() != 0,
        tokens_tx: recorded(&slot.tokens_tx),
        tokens_rx: recorded(&slot.tokens_rx),
        sparse_tx: recorded(&slot.sparse_tx),
        sparse_rx: recorded(&slot.sparse_rx),
        work: Some(Work {
            take_ns: work(|slot| &slot.work.take),
            deliver_ns: work(|slot| &slot.work.deliver),
            delivered: work(|slot| &slot.work.delivered),
            buffers_ns: work(|slot| &slot.work.buffers),
            kicks_ns: work(|slot| &slot.work.kicks),
        }),
        delay: recorded_by(all().map(|slot| &slot.delay)).unwrap_or_default(),
        delay_least: recorded_by(all().map(|slot| &slot.delay_least)).unwrap_or_default(),
        realtime_delivered: slot.realtime_delivered.get(),
        realtime_worst_ns: slot.realtime_worst.get(),
        realtime_worst_least_ns: slot.realtime_worst_least.get(),
        misses: MissCause::ALL
            .iter()
            .map(|c| (c.label().to_owned(), slot.misses[*c as usize].get()))
            .filter(|(_, n)| *n > 0)
            .collect(),
        misses_possible: slot.misses_possible.get(),
        misses_asleep: slot.misses_asleep.get(),
        link_local: slot.link_local().collect(),
    }
}

fn on_wire(slot: &VnicSlot) -> Option<OnWire> {
    let OnWireSlot { frames, bytes, copies } = &slot.on_wire;
    let all = OnWire { frames: frames.get(), bytes: bytes.get(), copies: copies.get() };
    (all.frames > 0).then_some(all)
}

fn recorded(histogram: &SharedHistogram) -> Option<Delay> {
    recorded_by(std::iter::once(histogram))
}

fn recorded_by<'a>(histograms: impl Iterator<Item = &'a SharedHistogram>) -> Option<Delay> {
    // Idle vNICs have empty histograms; the agent reads a thousand vNICs twice a second.
    let mut used = histograms.filter(|histogram| !histogram.is_empty());
    let mut all = used.next()?.read();
    used.for_each(|histogram| all.add(&histogram.read()));
    Some(Delay::from(&all))
}

/// Adds what an arm took in to what its uplink did.
fn together(mut sum: Traffic, arm: &Traffic) -> Traffic {
    sum.frames = sum.frames.wrapping_add(arm.frames);
    sum.wire_frames = sum.wire_frames.wrapping_add(arm.wire_frames);
    sum.wire_bytes = sum.wire_bytes.wrapping_add(arm.wire_bytes);
    for (reason, frames) in &arm.dropped {
        let dropped = sum.dropped.entry(reason.clone()).or_default();
        *dropped = dropped.wrapping_add(*frames);
    }
    sum
}

fn traffic(slot: &TrafficSlot) -> Traffic {
    let flows_most = slot.flows_most.get().min(FLOWS);
    Traffic {
        frames: slot.frames.get(),
        wire_frames: slot.wire_frames.get(),
        wire_bytes: slot.wire_bytes.get(),
        dropped: DropReason::ALL
            .iter()
            .map(|r| (r.label().to_owned(), slot.dropped[*r as usize].get()))
            .filter(|(_, n)| *n > 0)
            .collect(),
        marked: slot.marked.get(),
        flows_now: slot.flows_now.get().min(flows_most),
        flows_most,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Region;
    use crate::stats::layout::NO_PORT;
    use std::collections::BTreeMap;

    #[test]
    fn a_reader_sees_what_was_counted() {
        let region = Region::create().unwrap();
        let slot = region.claim(7, "plc1");
        slot.tx.frames.add(3);
        slot.tx.dropped[DropReason::SourceMac as usize].add(2);
        slot.misses[MissCause::Queue as usize].add(1);
        slot.delay.record(5_000);
        let reader = Reader::open(region.file()).unwrap();
        let stats = reader.vnic("plc1").unwrap();
        assert_eq!((stats.index, stats.tx.frames, stats.delay.max), (7, 3, 5_000));
        assert_eq!(stats.tx.dropped, BTreeMap::from([("source_mac".to_owned(), 2)]));
        assert_eq!(stats.misses, BTreeMap::from([("queue".to_owned(), 1)]));

        region.release(7);
        assert!(reader.vnic("plc1").is_none());
        region.claim(7, "plc2");
        assert_eq!(reader.vnic("plc2").unwrap().tx.frames, 0);
    }

    #[test]
    fn what_arms_take_in_counts_as_their_uplinks() {
        let region = Region::create().unwrap();
        let slots = [(3, "net0"), (5, "net0@1"), (9, "net0@12"), (4, "net00@1")]
            .map(|(index, name)| region.claim(index, name));
        for (frames, slot) in [1, 10, 100, 1000].into_iter().zip(slots) {
            slot.tx.frames.add(frames);
            slot.tx.dropped[DropReason::PoolFull as usize].add(frames);
            slot.work.take.add(frames);
            slot.delay.record(frames);
        }
        let reader = Reader::open(region.file()).unwrap();
        let stats = reader.vnic("net0").unwrap();
        assert_eq!((stats.index, stats.tx.frames, stats.work.unwrap().take_ns), (3, 111, 111));
        assert_eq!(stats.tx.dropped["pool_full"], 111);
        assert_eq!((stats.delay.count, stats.delay.max), (3, 100));
        assert_eq!(reader.delay("net0").unwrap().count(), 3);
        assert_eq!(reader.vnics().len(), 1, "an arm without its uplink is none");
        // Misses behind it, and long loops of its workers.
        let miss = &slots[0].miss_log[0];
        for (field, value) in
            [(&miss.egress, 3), (&miss.behind, 5), (&miss.dropped, NO_PORT), (&miss.number, 1)]
        {
            field.set(value);
        }
        slots[0].misses_seen.set(1);
        let worker = &region.layout().workers[1];
        let record = &worker.long_loops[0];
        record.port.set(9);
        record.number.set(1);
        worker.long_loops_seen.set(1);
        let [miss] = &reader.misses("net0")[..] else { panic!("one miss") };
        assert_eq!((&*miss.egress, miss.behind.as_deref()), ("net0", Some("net0")));
        let [long] = &reader.long_loops(1)[..] else { panic!("one loop") };
        assert_eq!(long.port.as_deref(), Some("net0"));
        // Another process goes on with all of them.
        let next = Region::create().unwrap();
        next.inherit(&reader);
        assert_eq!(next.inherited_index("net0@12"), Some(9));
        assert_eq!(Reader::open(next.file()).unwrap().vnic("net0").unwrap().tx.frames, 111);
        next.claim(9, "other").tx.frames.add(7);
        assert_eq!(Reader::open(next.file()).unwrap().vnic("net0").unwrap().tx.frames, 11);
    }

    #[test]
    fn counters_go_on_in_another_region() {
        let old = Region::create().unwrap();
        let slot = old.claim(7, "plc1");
        slot.tx.frames.add(3);
        slot.rx.dropped[DropReason::Late as usize].add(1);
        slot.note_delay(100, 4_000, 5_100, 1);
        slot.note_realtime(5_000, 1_100, 1);
        slot.misses_possible.add(2);
        slot.misses_asleep.add(4);
        slot.work.buffers.set(17);
        slot.messages.set(12);
        slot.note_token_wait_tx(865_000_000, 3);
        slot.note_token_wait_rx(0, 2);
        slot.note_sparse_tx(300_000);
        slot.note_sparse_rx(7);
        slot.tx.marked.add(6);
        slot.tx.dropped[DropReason::FlowCap as usize].add(5);
        slot.tx.note_flows(9);
        slot.tx.note_flows(0);
        let miss = &slot.miss_log[0];
        miss.number.set(1);
        miss.behind.set(9);
        miss.delay.set(5_000);
        miss.delay_least.set(1_100);
        miss.slept.set(3_000);
        miss.seen.set(4_000);
        miss.by.set(3);
        slot.misses_seen.set(1);
        old.claim(9, "bulk").rx.wire_bytes.add(10);
        let (before, misses) = {
            let reader = Reader::open(old.file()).unwrap();
            (reader.vnics(), reader.misses("plc1").len())
        };
        let new = Region::create().unwrap();
        new.inherit(&Reader::open(old.file()).unwrap());
        let reader = Reader::open(new.file()).unwrap();
        assert_eq!((new.inherited_index("plc1"), new.inherited_index("x")), (Some(7), None));
        new.claim(7, "plc1");
        new.claim(9, "bulk");
        assert_eq!((reader.vnics(), reader.misses("plc1").len()), (before, misses));
        let miss = &reader.misses("plc1")[0];
        assert_eq!((miss.behind.as_deref(), miss.by), (Some("bulk"), Some(3)));
        assert_eq!((miss.delay, miss.delay_least, miss.slept), (5_000, 1_100, 3_000));
        let stats = reader.vnic("plc1").unwrap();
        assert_eq!((stats.delay.max, stats.delay_least.max), (5_000, 1_100));
        assert_eq!((stats.realtime_worst_ns, stats.realtime_worst_least_ns), (5_000, 1_100));
        assert_eq!((stats.misses_possible, stats.misses_asleep), (2, 4));
        let waits = [stats.tokens_tx, stats.tokens_rx, stats.sparse_tx, stats.sparse_rx];
        let waits = waits.map(|waits| waits.map(|waits| (waits.count, waits.max)));
        assert_eq!(waits, [Some((3, 865_000_000)), Some((2, 0)), Some((1, 300_000)), Some((1, 7))]);
        assert_eq!((stats.tx.marked, stats.tx.flows_now, stats.tx.flows_most), (6, 0, 9));
        assert_eq!(stats.tx.dropped["flow_cap"], 5);
        assert_eq!(reader.messages("plc1"), Some(12));
        // Once only, and only for the same vNIC.
        new.claim(7, "plc1");
        assert_eq!(reader.vnic("plc1").unwrap().tx.frames, 0);
        new.inherit(&Reader::open(old.file()).unwrap());
        assert!(new.is_reserved(9));
        new.claim(9, "other");
        assert!(!new.is_reserved(9));
        assert_eq!(reader.vnic("other").unwrap().rx.wire_bytes, 0);
    }

    #[test]
    fn another_version_is_refused() {
        let region = Region::create().unwrap();
        region.layout().version.set(VERSION + 1);
        assert!(Reader::open(region.file()).is_err());
    }
}
