//! The layout of the shared memory. Any change here changes [`VERSION`], so that a reader never misreads
//! another version's region.

use super::shared_histogram::SharedHistogram;
use crate::capacity::{VNICS, WORKERS};
use crate::frame::LinkLocals;
use crate::frame::policy::link_local::LINK_LOCALS_MAX;
use std::net::Ipv6Addr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use tidegate_evidence::{DropReason, MISSES, MissCause};

/// `tgstats` and a NUL, big-endian.
pub const MAGIC: u64 = 0x7467_7374_6174_7300;
/// Version of this layout.
pub const VERSION: u64 = 10;
/// Long loops recorded per worker.
pub const LONG_LOOPS: usize = 64;
/// Longest vNIC name (bytes).
pub const NAME: usize = 64;
/// In [`MissRecord::behind`] and [`LoopRecord::port`]: no vNIC in particular.
pub const NO_PORT: u64 = u64::MAX;

/// A counter with one writer and any number of readers.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`; only the slot's owner may call this.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Replaces the value.
    #[inline]
    pub fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }

    /// Raises the value to `n` if it is lower.
    #[inline]
    pub fn raise(&self, n: u64) {
        if n > self.get() {
            self.set(n);
        }
    }

    /// Returns the value.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The region: `/proc/PID/fd` of the switch or the descriptor from `hello`.
#[repr(C, align(4096))]
pub struct Layout {
    /// [`MAGIC`].
    pub magic: Counter,
    /// [`VERSION`].
    pub version: Counter,
    /// Workers running.
    pub workers_used: Counter,
    /// System calls denied to the process; see [`crate::confine::violation`].
    pub denied_calls: Counter,
    /// Lines that the log lost, because its reader is too slow.
    pub log_lost: Counter,
    /// Lines that the log suppressed above its limit per kind.
    pub log_suppressed: Counter,
    /// One per worker.
    pub workers: [WorkerSlot; WORKERS],
    /// One per vNIC, at the port's index.
    pub vnics: [VnicSlot; VNICS],
}

/// The counters of one worker.
#[repr(C, align(64))]
pub struct WorkerSlot {
    /// Loops that found work.
    pub loops: Counter,
    /// Loops longer than the host budget H.
    pub loops_over_budget: Counter,
    /// Duration of loops that found work (ns).
    pub loop_time: SharedHistogram,
    /// Times it slept.
    pub sleeps: Counter,
    /// Time asleep (ns).
    pub asleep: Counter,
    /// Time awake without work (ns).
    pub awake: Counter,
    /// [Events](crate::worker::events) missing in the log for lack of room.
    pub events_lost: Counter,
    /// 1 + the number of the worker's own CPU; 0: none.
    pub cpu: Counter,
    /// Loops of 50 us or more in which a frame waited that missed its deadline; the next record goes to
    /// `long_loops_seen % LONG_LOOPS`.
    pub long_loops_seen: Counter,
    /// The latest of these loops.
    pub long_loops: [LoopRecord; LONG_LOOPS],
}

/// A long loop. Readers take no lock, as for [`MissRecord`].
#[repr(C)]
pub struct LoopRecord {
    /// Number among the worker's long loops, from 1; written last.
    pub number: Counter,
    /// End (ns, CLOCK_MONOTONIC).
    pub at: Counter,
    /// Duration (ns).
    pub took: Counter,
    /// Its longest single part: a [`LoopPart`](super::LoopPart) as a number.
    pub part: Counter,
    /// Port index of the vNIC whose traffic that part was, or [`NO_PORT`].
    pub port: Counter,
    /// Duration of that part (ns).
    pub share: Counter,
    /// Wire bytes delivered in that part; 0 if not counted.
    pub bytes: Counter,
}

/// Frames and bytes in one direction.
#[repr(C)]
pub struct TrafficSlot {
    /// Frames from or to the guest: a super-frame is one.
    pub frames: Counter,
    /// Frames on the wire: a super-frame counts its segments.
    pub wire_frames: Counter,
    /// Wire bytes, including the headers of every segment.
    pub wire_bytes: Counter,
    /// Frames dropped, by reason.
    pub dropped: [Counter; DropReason::COUNT],
    /// Frames marked "congestion experienced" and not dropped: their flow's queue exceeded its target for too long.
    pub marked: Counter,
    /// Flows with frames that wait now for this direction's rate.
    pub flows_now: Counter,
    /// Largest number of flows that waited at once.
    pub flows_most: Counter,
}

/// Worker time charged to one vNIC.
#[repr(C)]
pub struct WorkSlot {
    /// Time to take its frames, and to deliver those that are not queued (ns).
    pub take: Counter,
    /// Time to deliver its queued frames (ns).
    pub deliver: Counter,
    /// Number of these queued frames.
    pub delivered: Counter,
    /// Extra time of deliveries to it because its buffers are small (ns).
    pub buffers: Counter,
    /// Time to handle the kicks of its driver (ns).
    pub kicks: Counter,
}

/// What an uplink put on the wire; all 0 for other ports.
#[repr(C)]
pub struct OnWireSlot {
    /// Outer frames.
    pub frames: Counter,
    /// Their bytes, with outer headers.
    pub bytes: Counter,
    /// Copies of floods among them, beyond the first of each.
    pub copies: Counter,
}

/// The counters of one vNIC.
#[repr(C, align(64))]
pub struct VnicSlot {
    /// Odd while the slot changes hands; 0 while free.
    pub generation: AtomicU64,
    /// The vNIC's name, NUL padded.
    pub name: [AtomicU8; NAME],
    /// Frames from the VM.
    pub tx: TrafficSlot,
    /// Frames to the VM.
    pub rx: TrafficSlot,
    /// What went on the wire between hosts.
    pub on_wire: OnWireSlot,
    /// Time during which the VM had frames waiting for tokens (ns).
    pub throttled: Counter,
    /// 1 while it waits for tokens.
    pub throttled_now: Counter,
    /// Waits for `tx.max` of its frames that left (ns); 0: no wait. Only while it has that limit.
    pub tokens_tx: SharedHistogram,
    /// Waits for `rx.max` of frames to it that left its queue (ns); 0: no wait. Only while it has that limit.
    pub tokens_rx: SharedHistogram,
    /// As `tokens_tx`, for frames that waited by flow with no frame of their flow before them: until their
    /// first part left.
    pub sparse_tx: SharedHistogram,
    /// As `sparse_tx`, for frames to it.
    pub sparse_rx: SharedHistogram,
    /// Worker time.
    pub work: WorkSlot,
    /// Largest possible Tr - Ts of its delivered frames (ns), for the time in which the worker was awake.
    pub delay: SharedHistogram,
    /// Smallest possible Tr - Ts of the same frames (ns).
    pub delay_least: SharedHistogram,
    /// Real-time frames delivered, in time or late.
    pub realtime_delivered: Counter,
    /// Worst Tr - Ts of a real-time frame delivered under the deadline in force (ns), by its largest possible value.
    pub realtime_worst: Counter,
    /// The same by the smallest possible value (ns).
    pub realtime_worst_least: Counter,
    /// Certain deadline misses by cause: dropped, or late even by the smallest delay.
    pub misses: [Counter; MissCause::COUNT],
    /// Possible misses: late by the largest delay, in time by the smallest.
    pub misses_possible: Counter,
    /// Frames that are late only if the worker's wake-up, which it cannot measure, took that long.
    pub misses_asleep: Counter,
    /// Number of records so far; the next goes to `misses_seen % MISSES`.
    pub misses_seen: Counter,
    /// The latest misses: all certain and possible ones; of those only by sleep, the longest in each second.
    pub miss_log: [MissRecord; MISSES],
    /// Messages of front ends begun and answered: odd while one is handled. Never falls: a connection stored
    /// at one value is correct while the counter has it.
    pub messages: Counter,
    /// Its link-local addresses, high and low half; 0: none.
    pub link_local: [[Counter; 2]; LINK_LOCALS_MAX],
}

impl TrafficSlot {
    fn copy_to(&self, to: &Self) {
        to.frames.set(self.frames.get());
        to.wire_frames.set(self.wire_frames.get());
        to.wire_bytes.set(self.wire_bytes.get());
        self.dropped.iter().zip(&to.dropped).for_each(|(from, to)| to.set(from.get()));
        to.marked.set(self.marked.get());
        // The waiting frames went with the old port.
        to.flows_now.set(0);
        to.flows_most.set(self.flows_most.get());
    }

    pub(super) fn clear(&self) {
        let Self { frames, wire_frames, wire_bytes, dropped, marked, flows_now, flows_most } = self;
        let others = [frames, wire_frames, wire_bytes, marked, flows_now, flows_most];
        others.into_iter().chain(dropped).for_each(|counter| counter.set(0));
    }

    /// Records the number of flows with waiting frames.
    #[inline]
    pub fn note_flows(&self, flows: u64) {
        self.flows_now.set(flows);
        self.flows_most.raise(flows);
    }
}

impl OnWireSlot {
    fn counters(&self) -> [&Counter; 3] {
        let Self { frames, bytes, copies } = self;
        [frames, bytes, copies]
    }

    fn copy_to(&self, to: &Self) {
        self.counters().iter().zip(to.counters()).for_each(|(from, to)| to.set(from.get()));
    }

    pub(super) fn clear(&self) {
        self.counters().iter().for_each(|counter| counter.set(0));
    }
}

impl WorkSlot {
    fn counters(&self) -> [&Counter; 5] {
        let Self { take, deliver, delivered, buffers, kicks } = self;
        [take, deliver, delivered, buffers, kicks]
    }

    fn copy_to(&self, to: &Self) {
        self.counters().iter().zip(to.counters()).for_each(|(from, to)| to.set(from.get()));
    }

    pub(super) fn clear(&self) {
        self.counters().iter().for_each(|counter| counter.set(0));
    }
}

impl VnicSlot {
    /// Counts `frames` delivered at `at`, whose clock started between `started` and `started_by` (ns).
    #[inline]
    pub fn note_delay(&self, started: u64, started_by: u64, at: u64, frames: u64) {
        self.delay.record_many(at.saturating_sub(started), frames);
        self.delay_least.record_many(at.saturating_sub(started_by), frames);
    }

    /// Counts `frames` from the vNIC that left after `ns` of waiting for `tx.max`; 0: no wait.
    #[inline]
    pub fn note_token_wait_tx(&self, ns: u64, frames: u64) {
        self.tokens_tx.record_many(ns, frames);
    }

    /// Counts `frames` to the vNIC that left its queue, or needed none, after `ns` of waiting for `rx.max`; 0: no wait.
    #[inline]
    pub fn note_token_wait_rx(&self, ns: u64, frames: u64) {
        self.tokens_rx.record_many(ns, frames);
    }

    /// Counts a frame from the vNIC that waited by flow with none of its flow before it, until its first part
    /// left after `ns`.
    #[inline]
    pub fn note_sparse_tx(&self, ns: u64) {
        self.sparse_tx.record_many(ns, 1);
    }

    /// As [`note_sparse_tx`](Self::note_sparse_tx), for a frame to the vNIC.
    #[inline]
    pub fn note_sparse_rx(&self, ns: u64) {
        self.sparse_rx.record_many(ns, 1);
    }

    /// Clears the waits of frames from the vNIC, because their limit changes.
    pub fn forget_waits_tx(&self) {
        self.tokens_tx.reset();
        self.sparse_tx.reset();
    }

    /// As [`forget_waits_tx`](Self::forget_waits_tx), for frames to the vNIC.
    pub fn forget_waits_rx(&self) {
        self.tokens_rx.reset();
        self.sparse_rx.reset();
    }

    /// Counts `frames` delivered under a deadline, with their largest and smallest possible delay (ns).
    #[inline]
    pub fn note_realtime(&self, most: u64, least: u64, frames: u64) {
        self.realtime_delivered.add(frames);
        self.realtime_worst.raise(most);
        self.realtime_worst_least.raise(least);
    }

    /// Copies all counters, but not the slot's owner.
    pub(super) fn copy_to(&self, to: &Self) {
        self.tx.copy_to(&to.tx);
        self.rx.copy_to(&to.rx);
        self.on_wire.copy_to(&to.on_wire);
        to.throttled.set(self.throttled.get());
        self.tokens_tx.copy_to(&to.tokens_tx);
        self.tokens_rx.copy_to(&to.tokens_rx);
        self.sparse_tx.copy_to(&to.sparse_tx);
        self.sparse_rx.copy_to(&to.sparse_rx);
        self.work.copy_to(&to.work);
        self.delay.copy_to(&to.delay);
        self.delay_least.copy_to(&to.delay_least);
        to.realtime_delivered.set(self.realtime_delivered.get());
        to.realtime_worst.set(self.realtime_worst.get());
        to.realtime_worst_least.set(self.realtime_worst_least.get());
        self.misses.iter().zip(&to.misses).for_each(|(from, to)| to.set(from.get()));
        to.misses_possible.set(self.misses_possible.get());
        to.misses_asleep.set(self.misses_asleep.get());
        to.misses_seen.set(self.misses_seen.get());
        self.miss_log.iter().zip(&to.miss_log).for_each(|(from, to)| from.copy_to(to));
        to.messages.set(self.messages.get());
        self.link_local
            .iter()
            .flatten()
            .zip(to.link_local.iter().flatten())
            .for_each(|(f, t)| t.set(f.get()));
    }

    /// Records the link-local addresses of the vNIC.
    pub fn set_link_local(&self, claimed: &LinkLocals) {
        let none = std::iter::repeat(Ipv6Addr::UNSPECIFIED);
        for ([high, low], ip) in self.link_local.iter().zip(claimed.iter().chain(none)) {
            high.set((ip.to_bits() >> 64) as u64);
            low.set(ip.to_bits() as u64);
        }
    }

    /// Returns the recorded link-local addresses.
    pub fn link_local(&self) -> impl Iterator<Item = Ipv6Addr> + '_ {
        let word = |[high, low]: &[Counter; 2]| u128::from(high.get()) << 64 | u128::from(low.get());
        self.link_local.iter().map(word).map(Ipv6Addr::from_bits).filter(Ipv6Addr::is_unicast_link_local)
    }
}

/// One miss. Readers take no lock: `number` shows whether the record was overwritten meanwhile.
#[repr(C)]
pub struct MissRecord {
    /// Number of the miss, from 1; written last.
    pub number: Counter,
    /// Delivery or drop (Tr; ns, CLOCK_MONOTONIC).
    pub at: Counter,
    /// Port index of the receiver.
    pub egress: Counter,
    /// [`MissCause`] as a number.
    pub cause: Counter,
    /// [`DropReason`] as a number, or [`NO_PORT`] if it was delivered late.
    pub dropped: Counter,
    /// Port index of the vNIC it waited behind, or [`NO_PORT`].
    pub behind: Counter,
    /// Largest possible Tr - Ts (ns), without `slept`.
    pub delay: Counter,
    /// Smallest possible Tr - Ts (ns).
    pub delay_least: Counter,
    /// Possible extra delay because the worker slept (ns); 0: it was awake.
    pub slept: Counter,
    /// The first poll that showed the frame, or the later end of its wait for tokens (ns, CLOCK_MONOTONIC).
    /// Between `at - delay - slept` and `seen`, the frame waited for the worker to look.
    pub seen: Counter,
    /// The worker of its sender.
    pub by: Counter,
    /// Td (ns).
    pub deadline: Counter,
    /// Wait for its envelope's tokens before its deadline's clock started (ns).
    pub tokens: Counter,
    /// Wait before a worker looked (ns).
    pub worker: Counter,
    /// Wait in the queue (ns).
    pub queue: Counter,
    /// Wait for receive buffers (ns).
    pub buffers: Counter,
}

impl MissRecord {
    fn copy_to(&self, to: &Self) {
        to.number.set(0);
        to.at.set(self.at.get());
        to.egress.set(self.egress.get());
        to.cause.set(self.cause.get());
        to.dropped.set(self.dropped.get());
        to.behind.set(self.behind.get());
        to.delay.set(self.delay.get());
        to.delay_least.set(self.delay_least.get());
        to.slept.set(self.slept.get());
        to.seen.set(self.seen.get());
        to.by.set(self.by.get());
        to.deadline.set(self.deadline.get());
        to.tokens.set(self.tokens.get());
        to.worker.set(self.worker.get());
        to.queue.set(self.queue.get());
        to.buffers.set(self.buffers.get());
        to.number.set(self.number.get());
    }
}
