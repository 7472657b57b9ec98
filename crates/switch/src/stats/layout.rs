//! What stands where in the shared memory. Changing anything here changes
//! [`VERSION`], so a reader never misreads another version's region.

use super::shared_histogram::SharedHistogram;
use crate::capacity::{VNICS, WORKERS};
use crate::frame::LinkLocals;
use crate::frame::policy::link_local::MOST;
use std::net::Ipv6Addr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use tidegate_evidence::{DropReason, MISSES, MissCause};

/// `tgstats` and a NUL, big-endian.
pub const MAGIC: u64 = 0x7467_7374_6174_7300;
/// Version of this layout.
pub const VERSION: u64 = 8;
/// Long loops remembered per worker.
pub const LONG_LOOPS: usize = 64;
/// Longest vNIC name, bytes.
pub const NAME: usize = 64;
/// In [`MissRecord::behind`] and [`LoopRecord::port`]: no vNIC in particular.
pub const NOBODY: u64 = u64::MAX;

/// A counter with one writer and any number of readers.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds; only the slot's owner may call this.
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

    /// The value.
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
    /// Lines of the log that were not written: the program that reads it is too slow.
    pub log_lost: Counter,
    /// Lines of the log that the limit left out: enough of their kind were written.
    pub log_suppressed: Counter,
    /// One per worker.
    pub workers: [WorkerSlot; WORKERS],
    /// One per vNIC, at the port's index.
    pub vnics: [VnicSlot; VNICS],
}

/// One worker's account of itself.
#[repr(C, align(64))]
pub struct WorkerSlot {
    /// Loops that found work.
    pub loops: Counter,
    /// Loops longer than the host budget H.
    pub loops_over_budget: Counter,
    /// How long the loops that found work took, ns.
    pub loop_time: SharedHistogram,
    /// Times it slept.
    pub sleeps: Counter,
    /// Time asleep, ns.
    pub asleep: Counter,
    /// Time awake with nothing to do, ns.
    pub awake: Counter,
    /// [Events](crate::worker::events) that the log does not tell of: more than there was room for.
    pub events_lost: Counter,
    /// 1 + the number of the CPU that it has for itself; 0 where it has none.
    pub cpu: Counter,
    /// Loops of 50 us or more in which a frame waited that missed its deadline; the next goes to
    /// `long_loops_seen % LONG_LOOPS`.
    pub long_loops_seen: Counter,
    /// The latest of them.
    pub long_loops: [LoopRecord; LONG_LOOPS],
}

/// A long loop. Read without a lock, as a [`MissRecord`] is.
#[repr(C)]
pub struct LoopRecord {
    /// Which of the worker's, counting from 1; written last.
    pub number: Counter,
    /// When it ended, ns of CLOCK_MONOTONIC.
    pub at: Counter,
    /// How long it took, ns.
    pub took: Counter,
    /// Its longest single part: a [`LoopPart`](super::LoopPart) as a number.
    pub part: Counter,
    /// Port index of the vNIC whose traffic that was, or [`NOBODY`].
    pub port: Counter,
    /// How long that part took, ns.
    pub share: Counter,
    /// Bytes on the wire that were delivered in it; 0 where they were not counted.
    pub bytes: Counter,
}

/// Frames and bytes one way.
#[repr(C)]
pub struct TrafficSlot {
    /// Frames as the guest hands them over: a super-frame is one.
    pub frames: Counter,
    /// Frames on the wire: a super-frame counts its segments.
    pub wire_frames: Counter,
    /// Wire bytes, headers of every segment included.
    pub wire_bytes: Counter,
    /// Frames dropped, by reason.
    pub dropped: [Counter; DropReason::COUNT],
    /// Frames that were marked "congestion experienced" in place of being dropped: their flow's queue stood for longer
    /// than its target.
    pub marked: Counter,
    /// Flows of which frames wait now, for the rate of this way.
    pub flows_now: Counter,
    /// The most flows that waited at a time.
    pub flows_most: Counter,
}

/// Time of its worker that one vNIC is charged.
#[repr(C)]
pub struct WorkSlot {
    /// To take what it sends, and to deliver of it what is not queued, ns.
    pub take: Counter,
    /// To deliver its frames that were queued, ns.
    pub deliver: Counter,
    /// Those frames.
    pub delivered: Counter,
    /// What deliveries to it take longer because its buffers are small, ns.
    pub buffers: Counter,
    /// To hear the kicks of its driver, ns.
    pub kicks: Counter,
}

/// One vNIC.
#[repr(C, align(64))]
pub struct VnicSlot {
    /// Odd while the slot changes hands, 0 while free.
    pub generation: AtomicU64,
    /// The vNIC's name, NUL padded.
    pub name: [AtomicU8; NAME],
    /// What the VM sent.
    pub tx: TrafficSlot,
    /// What the VM received.
    pub rx: TrafficSlot,
    /// Time during which the VM had frames waiting for tokens, ns.
    pub throttled: Counter,
    /// 1 while it waits for tokens.
    pub throttled_now: Counter,
    /// How long frames that it sent, and that left, waited for its `tx.max`, ns: 0 for one that did not wait. Only
    /// while it has that limit.
    pub tokens_tx: SharedHistogram,
    /// How long frames to it, that left its queue, waited for its `rx.max`, ns: 0 for one that did not wait. Only
    /// while it has that limit.
    pub tokens_rx: SharedHistogram,
    /// The same of what waited by flow, of frames that found none of their flow before them: until the first part left.
    pub sparse_tx: SharedHistogram,
    /// As `sparse_tx`, of frames to it.
    pub sparse_rx: SharedHistogram,
    /// Time of its worker.
    pub work: WorkSlot,
    /// Tr - Ts of frames it sent and that were delivered, ns: the most that it can have been while the worker was awake.
    pub delay: SharedHistogram,
    /// The least that it can have been, of the same frames, ns.
    pub delay_least: SharedHistogram,
    /// Real-time frames delivered, in time or late.
    pub realtime_delivered: Counter,
    /// The worst Tr - Ts of a real-time frame delivered under the deadline in force, ns: the most that it can have been.
    pub realtime_worst: Counter,
    /// The worst of the least that it can have been, ns.
    pub realtime_worst_least: Counter,
    /// Certain deadline misses by cause: dropped, or late even by the least delay.
    pub misses: [Counter; MissCause::COUNT],
    /// Possible ones: late by the most delay, in time by the least.
    pub misses_possible: Counter,
    /// Frames that are late only if the worker's wake-up, which it cannot measure, took that long.
    pub misses_asleep: Counter,
    /// Records so far; the next goes to `misses_seen % MISSES`.
    pub misses_seen: Counter,
    /// The latest misses: all certain and possible ones; of those only by sleep the longest in each second.
    pub miss_log: [MissRecord; MISSES],
    /// Messages of front ends begun and answered: odd while one is being handled. Never falls, so what was
    /// kept of a connection at one value is the truth while it has that value.
    pub messages: Counter,
    /// The link-local addresses that it holds, high and low half; 0 where there is none.
    pub link_local: [[Counter; 2]; MOST],
}

impl TrafficSlot {
    fn copy_to(&self, to: &Self) {
        to.frames.set(self.frames.get());
        to.wire_frames.set(self.wire_frames.get());
        to.wire_bytes.set(self.wire_bytes.get());
        self.dropped.iter().zip(&to.dropped).for_each(|(from, to)| to.set(from.get()));
        to.marked.set(self.marked.get());
        // What waited, waited at the port that is gone.
        to.flows_now.set(0);
        to.flows_most.set(self.flows_most.get());
    }

    /// Sets all to zero.
    pub(super) fn clear(&self) {
        let Self { frames, wire_frames, wire_bytes, dropped, marked, flows_now, flows_most } = self;
        let others = [frames, wire_frames, wire_bytes, marked, flows_now, flows_most];
        others.into_iter().chain(dropped).for_each(|counter| counter.set(0));
    }

    /// Of so many flows frames wait now.
    #[inline]
    pub fn note_flows(&self, flows: u64) {
        self.flows_now.set(flows);
        self.flows_most.raise(flows);
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

    /// Sets all to zero.
    pub(super) fn clear(&self) {
        self.counters().iter().for_each(|counter| counter.set(0));
    }
}

impl VnicSlot {
    /// Counts `frames` that were delivered at `at`, whose clock started between `started` and `started_by`.
    #[inline]
    pub fn note_delay(&self, started: u64, started_by: u64, at: u64, frames: u64) {
        self.delay.record_many(at.saturating_sub(started), frames);
        self.delay_least.record_many(at.saturating_sub(started_by), frames);
    }

    /// Counts `frames` that it sent, and that left: each waited `ns` for its `tx.max`, 0 where it did not wait.
    #[inline]
    pub fn note_token_wait_tx(&self, ns: u64, frames: u64) {
        self.tokens_tx.record_many(ns, frames);
    }

    /// Counts `frames` to it that left its queue, or needed none: each waited `ns` for its `rx.max`, 0 where it did not wait.
    #[inline]
    pub fn note_token_wait_rx(&self, ns: u64, frames: u64) {
        self.tokens_rx.record_many(ns, frames);
    }

    /// Counts a frame that it sent, that waited by flow with none of its flow before it, and whose first part left after `ns`.
    #[inline]
    pub fn note_sparse_tx(&self, ns: u64) {
        self.sparse_tx.record_many(ns, 1);
    }

    /// As [`note_sparse_tx`](Self::note_sparse_tx), of a frame to it.
    #[inline]
    pub fn note_sparse_rx(&self, ns: u64) {
        self.sparse_rx.record_many(ns, 1);
    }

    /// What it sent waits for another limit from now on, which what waited until now says nothing about.
    pub fn forget_waits_tx(&self) {
        self.tokens_tx.reset();
        self.sparse_tx.reset();
    }

    /// As [`forget_waits_tx`](Self::forget_waits_tx), of what it receives.
    pub fn forget_waits_rx(&self) {
        self.tokens_rx.reset();
        self.sparse_rx.reset();
    }

    /// Counts `frames` delivered under a deadline, with the most and the least that their delay can have been, ns.
    #[inline]
    pub fn note_realtime(&self, most: u64, least: u64, frames: u64) {
        self.realtime_delivered.add(frames);
        self.realtime_worst.raise(most);
        self.realtime_worst_least.raise(least);
    }

    /// Copies all counters, not whose they are.
    pub(super) fn copy_to(&self, to: &Self) {
        self.tx.copy_to(&to.tx);
        self.rx.copy_to(&to.rx);
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

    /// Writes down the link-local addresses that a vNIC holds.
    pub fn set_link_local(&self, held: &LinkLocals) {
        let none = std::iter::repeat(Ipv6Addr::UNSPECIFIED);
        for ([high, low], ip) in self.link_local.iter().zip(held.iter().chain(none)) {
            high.set((ip.to_bits() >> 64) as u64);
            low.set(ip.to_bits() as u64);
        }
    }

    /// The link-local addresses that were written down.
    pub fn link_local(&self) -> impl Iterator<Item = Ipv6Addr> + '_ {
        let word = |[high, low]: &[Counter; 2]| u128::from(high.get()) << 64 | u128::from(low.get());
        self.link_local.iter().map(word).map(Ipv6Addr::from_bits).filter(Ipv6Addr::is_unicast_link_local)
    }
}

/// One miss. Read without a lock: a record that is overwritten while it is
/// read is recognised by `number`.
#[repr(C)]
pub struct MissRecord {
    /// Which miss this is, counting from 1; written last.
    pub number: Counter,
    /// When it was delivered or dropped (Tr), ns of CLOCK_MONOTONIC.
    pub at: Counter,
    /// Port index it was sent to.
    pub egress: Counter,
    /// [`MissCause`] as a number.
    pub cause: Counter,
    /// [`DropReason`] as a number, or [`NOBODY`] where it was delivered late.
    pub dropped: Counter,
    /// Port index of the vNIC it waited behind, or [`NOBODY`].
    pub behind: Counter,
    /// Tr - Ts, ns: the most that it can have been, but for `slept`.
    pub delay: Counter,
    /// The least that it can have been, ns.
    pub delay_least: Counter,
    /// How much longer it can have been because the worker slept, ns: 0 where it was awake.
    pub slept: Counter,
    /// The first poll that showed the frame, ns of CLOCK_MONOTONIC; where it waited for tokens after that, the end of
    /// that wait. Between `at - delay - slept` and `seen` it waited for the worker to look.
    pub seen: Counter,
    /// The worker that owned its sender.
    pub by: Counter,
    /// Td, ns.
    pub deadline: Counter,
    /// Waited before its deadline's clock started, for its envelope, ns.
    pub tokens: Counter,
    /// Waited before a worker looked, ns.
    pub worker: Counter,
    /// Waited in the queue, ns.
    pub queue: Counter,
    /// Waited for receive buffers, ns.
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
