//! Misses of deadlines as readers see them, and the loops of workers in which late frames waited.
//!
//! ```text
//!  slot of a vNIC: latest misses ──┬▶ misses: egress, cause, and behind which vNIC
//!                                  └▶ late waits: those that a worker caused
//!  slot of a worker: long loops ────▶ long loops: part, and whose traffic
//! ```

use super::Reader;
use super::layout::{LONG_LOOPS, LoopRecord, MissRecord, NO_PORT};
use super::part::LoopPart;
use tidegate_evidence::{DropReason, MISSES, Miss, MissCause, time_of_day};

/// The wait of a frame for its worker that made it miss its deadline, certainly or possibly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LateWait {
    /// [`Miss::number`].
    pub number: u64,
    /// [`Miss::by`].
    pub worker: usize,
    /// Earliest possible start of the wait, while the worker slept (ns, CLOCK_MONOTONIC).
    pub asleep: u64,
    /// Earliest possible start while the worker was awake; not before `asleep`.
    pub from: u64,
    /// End of the wait; not before `from`.
    pub to: u64,
    /// The frame was late only if it waited beyond this time (ns); 0 if it was dropped.
    pub deadline: u64,
}

/// A loop in which a frame waited that missed its deadline.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LongLoop {
    /// Number among the worker's long loops, from 1.
    pub number: u64,
    /// Start (ns, CLOCK_MONOTONIC).
    pub began: u64,
    /// End (ns, CLOCK_MONOTONIC).
    pub ended: u64,
    /// Its longest single part.
    pub part: LoopPart,
    /// The vNIC whose traffic that part was, if it is known and still exists.
    pub port: Option<String>,
    /// Duration of that part (ns).
    pub share: u64,
    /// Bytes delivered in that part; 0 if not counted.
    pub bytes: u64,
}

impl Reader {
    /// Returns the latest misses of a vNIC, oldest first.
    pub fn misses(&self, name: &str) -> Vec<Miss> {
        let Some(index) = self.find(name) else { return Vec::new() };
        let slot = &self.layout().vnics[index];
        let seen = slot.misses_seen.get();
        (seen.saturating_sub(MISSES as u64)..seen)
            .filter_map(|n| self.miss(&slot.miss_log[n as usize % MISSES], n + 1))
            .collect()
    }

    /// Returns the latest frames of a vNIC that their worker made late, oldest first.
    pub fn late_waits(&self, name: &str) -> Vec<LateWait> {
        let Some(index) = self.find(name) else { return Vec::new() };
        let slot = &self.layout().vnics[index];
        let seen = slot.misses_seen.get();
        let wait = |number: u64| {
            let record = &slot.miss_log[(number - 1) as usize % MISSES];
            let to = record.at.get();
            let from = to.saturating_sub(record.delay.get());
            let deadline = if record.dropped.get() == NO_PORT { record.deadline.get() } else { 0 };
            let worker = usize::try_from(record.by.get()).unwrap_or(usize::MAX);
            let asleep = from.saturating_sub(record.slept.get());
            let is_ours = record.cause.get() == MissCause::Worker as u64;
            let wait = LateWait { number, worker, asleep, from, to, deadline };
            (is_ours && record.number.get() == number).then_some(wait)
        };
        (seen.saturating_sub(MISSES as u64) + 1..=seen).filter_map(wait).collect()
    }

    /// Returns the latest loops of a worker in which late frames waited, oldest first.
    pub fn long_loops(&self, worker: usize) -> Vec<LongLoop> {
        let Some(slot) = self.layout().workers.get(worker) else { return Vec::new() };
        let seen = slot.long_loops_seen.get();
        (seen.saturating_sub(LONG_LOOPS as u64)..seen)
            .filter_map(|n| self.long_loop(&slot.long_loops[n as usize % LONG_LOOPS], n + 1))
            .collect()
    }

    fn long_loop(&self, record: &LoopRecord, number: u64) -> Option<LongLoop> {
        let (ended, took, port) = (record.at.get(), record.took.get(), record.port.get());
        let port = usize::try_from(port).ok().filter(|_| port != NO_PORT);
        let found = LongLoop {
            number,
            began: ended.saturating_sub(took),
            ended,
            part: *LoopPart::ALL.get(usize::try_from(record.part.get()).ok()?)?,
            port: port.and_then(|port| self.port_at(port)),
            share: record.share.get().min(took),
            bytes: record.bytes.get(),
        };
        (record.number.get() == number).then_some(found)
    }

    fn miss(&self, record: &MissRecord, number: u64) -> Option<Miss> {
        let cause = *MissCause::ALL.get(record.cause.get() as usize)?;
        let dropped = record.dropped.get();
        let behind = record.behind.get();
        let miss = Miss {
            number,
            at: time_of_day(record.at.get()),
            egress: self.port_at(record.egress.get() as usize).unwrap_or_else(|| "(gone)".into()),
            cause: cause.label().into(),
            dropped: (dropped != NO_PORT)
                .then(|| DropReason::ALL.get(dropped as usize).map(|r| r.label().into()))
                .flatten(),
            behind: (behind != NO_PORT).then(|| self.port_at(behind as usize)).flatten(),
            delay: record.delay.get(),
            delay_least: record.delay_least.get(),
            slept: record.slept.get(),
            seen: Some(time_of_day(record.seen.get())),
            by: Some(record.by.get()),
            deadline: record.deadline.get(),
            tokens: record.tokens.get(),
            worker: record.worker.get(),
            queue: record.queue.get(),
            buffers: record.buffers.get(),
            culprit: None,
        };
        (record.number.get() == number).then_some(miss)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Region;

    #[test]
    fn a_miss_is_as_long_ago_as_it_is() {
        let region = Region::create().unwrap();
        let slot = region.claim(0, "plc1");
        let hour = 3_600_000_000_000;
        let record = &slot.miss_log[0];
        record.at.set(crate::clock::clock().saturating_sub(hour));
        record.number.set(1);
        slot.misses_seen.set(1);
        let [miss] = &Reader::open(region.file()).unwrap().misses("plc1")[..] else { panic!("one miss") };
        let now =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
        // A machine may be up for less than an hour.
        let ago = hour.min(crate::clock::clock());
        assert!((now - miss.at).abs_diff(ago) < 10_000_000_000, "{} ns ago", now - miss.at);
    }
}
