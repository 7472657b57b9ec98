//! The thread that moves ports to better workers: real-time ones apart from best-effort taps, then together
//! with those they talk with.
//!
//! ```text
//!  each second: workers' work ─▶ placement (pure) ─▶ a step ─▶ its ports move, one after the other
//!               directions ──────────▲
//! ```

use super::Switch;
use super::placement::Role;
use super::placement::plan::{MoveReason, Step};
use super::placement::{Measurement, Placer, VnicDemand};
use super::table::{End, Entry, Table};
use crate::clock::clock;
use crate::fdb::PortIndex;
use crate::port::talk::most_pairs;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tidegate_service::housekeeping;

/// Interval of its looks.
const PAUSE: Duration = Duration::from_secs(1);
/// Cost of dropped frames in one loop, beyond the burst, for a vNIC with a deadline.
const DROPPED: u64 = crate::worker::DROPPED as u64;

/// Starts the thread, unless there is only one worker.
///
/// # Errors
/// The thread cannot start.
pub fn spawn(switch: &Arc<Switch>) -> io::Result<()> {
    switch.directed.choose_workers();
    if switch.workers.len() < 2 {
        return Ok(());
    }
    let switch = switch.clone();
    let look = move || {
        let (mut placer, mut measured_at, mut loops) = (Placer::default(), clock(), 0);
        loop {
            std::thread::sleep(PAUSE);
            housekeeping::follow();
            let now = switch.loops();
            // Each call to a worker is one loop of it.
            let works =
                now.saturating_sub(std::mem::replace(&mut loops, now)) > 2 * switch.workers.len() as u64;
            if works || switch.moves_are_due() {
                switch.place(&mut placer, &mut measured_at);
                loops = switch.loops();
            }
        }
    };
    std::thread::Builder::new().name("placer".into()).spawn(look).map(drop)
}

impl Switch {
    /// Returns the number of loops of all workers that found work.
    fn loops(&self) -> u64 {
        self.region.layout().workers.iter().map(|worker| worker.loops.get()).sum()
    }

    /// Measures once, and moves ports if worthwhile. `measured_at`: time of the last measurement (ns).
    pub fn place(&self, placer: &mut Placer, measured_at: &mut u64) {
        let measurement = self.measure(measured_at);
        let Some(Step { moves, reason }) = placer.evaluate(&measurement) else { return };
        for (port, worker) in moves {
            let name =
                self.lock().entries.values().find(|entry| entry.index == port).map(|e| e.vnic.name.clone());
            let Some(name) = name else { continue };
            let outcome = self.move_port(&name, worker);
            if reason == MoveReason::Directed {
                self.directed.note_move(&name, outcome.as_ref().map(|_| ()).map_err(Clone::clone));
            }
            match outcome {
                Ok(moved) => tracing::info!(
                    vnic = name,
                    worker,
                    why = ?reason,
                    paused_us = moved.sending.max(moved.receiving) / 1000,
                    "vNIC moved to another worker"
                ),
                // A later look tries once more.
                Err(reason) => tracing::debug!(vnic = name, worker, reason, "vNIC not moved"),
            }
        }
    }

    fn measure(&self, measured_at: &mut u64) -> Measurement {
        let directed = self.directed.vnics();
        let vnics = vnics(&self.lock(), &directed);
        let now = clock();
        let time = now.saturating_sub(std::mem::replace(measured_at, now));
        let mut measurement = Measurement { time, vnics, ..Measurement::default() };
        for worker in self.workers.iter() {
            let room = Vec::with_capacity(most_pairs(measurement.vnics.len()));
            let work = worker.call(move |worker| worker.work_done(room));
            measurement.busy.push(work.busy);
            measurement.talk.extend(work.traffic);
        }
        self.directed.note_traffic(time, &measurement.talk);
        measurement
    }
}

fn vnics(table: &Table, directed: &BTreeMap<String, usize>) -> BTreeMap<PortIndex, VnicDemand> {
    let receivers = table.receivers_with_deadlines();
    let seat = |entry: &Entry| {
        let deadline = entry.vnic.deadline.filter(|_| entry.suspended().is_none());
        let burst = entry.vnic.tx.burst.map_or(0, |burst| burst.get());
        let role = match (&entry.end, deadline.is_some() || receivers.contains(entry.vnic.name.as_str())) {
            (_, true) => Role::RealTime,
            (End::Tap { .. }, false) => Role::BestEffortTap,
            (End::Vhost { .. }, false) => Role::BestEffort,
        };
        let realtime = deadline.map_or(0, |_| burst + DROPPED);
        VnicDemand { worker: entry.worker, realtime, role, directed: directed.get(&entry.vnic.name).copied() }
    };
    table.entries.values().map(|entry| (entry.index, seat(entry))).collect()
}
