//! Logs the workers' events and the denied system calls: neither workers nor signal handlers may wait for the log.
//!
//! ```text
//!  workers ── events ──▶ ┐
//!  SIGSYS ── denied ───▶ ┴ thread `teller` ──▶ tracing
//! ```
//!
//! The thread sleeps until it is woken, and works at most ten times a second.

use super::Switch;
use crate::confine::violation;
use crate::fdb::PortIndex;
use crate::worker::events::{Event, LogWaker};
use rtrb::Consumer;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tidegate_service::housekeeping;

/// Pause after work. Meanwhile, waking the thread takes no system call.
const PAUSE: Duration = Duration::from_millis(100);

/// Starts the thread, which logs `events`, one ring per worker.
///
/// # Errors
/// The thread cannot start.
pub fn spawn(switch: Arc<Switch>, waker: Arc<LogWaker>, mut events: Vec<Consumer<Event>>) -> io::Result<()> {
    let log_events = move || {
        waker.listen();
        violation::wake_on_violation(&waker);
        let mut lost = vec![0; events.len()];
        loop {
            housekeeping::follow();
            let mut busy = violation::log_new();
            for (worker, ring) in events.iter_mut().enumerate() {
                while let Ok(event) = ring.pop() {
                    switch.log_event(worker, event);
                    busy = true;
                }
                let lost_now = switch.region.layout().workers[worker].events_lost.get();
                let more = lost_now - std::mem::replace(&mut lost[worker], lost_now);
                if more > 0 {
                    tracing::warn!(worker, "{more} more suppressed: events of this worker");
                }
            }
            if busy { std::thread::sleep(PAUSE) } else { std::thread::park() }
        }
    };
    std::thread::Builder::new().name("teller".into()).spawn(log_events).map(drop)
}

impl Switch {
    fn log_event(&self, worker: usize, event: Event) {
        match event {
            Event::NotRealTime { priority, error } => tracing::warn!(
                worker,
                priority,
                %error,
                "worker gets no real-time priority (needs CPUSchedulingPolicy= of the unit, CAP_SYS_NICE or RLIMIT_RTPRIO)"
            ),
            Event::TapNotPolled { port, error } => tracing::error!(
                vnic = self.name_of(port),
                %error,
                "the switch cannot poll this vNIC's tap: frames that the vNIC sends may wait"
            ),
            Event::FramesLost { port, queue, frames } => tracing::warn!(
                vnic = self.name_of(port),
                queue,
                frames,
                "the previous process ended, and these frames were lost"
            ),
            Event::AddressTaken { port, from, address } => tracing::info!(
                vnic = self.name_of(port),
                from = from.map(|from| self.name_of(from)),
                %address,
                "shared address taken"
            ),
        }
    }

    /// Publishes the numbers of messages that the log lost or suppressed.
    pub(super) fn publish_log(&self) {
        let (layout, counts) = (self.region.layout(), tidegate_log::counts());
        layout.log_lost.set(counts.lost);
        layout.log_suppressed.set(counts.suppressed);
    }

    /// Returns the vNIC at an index; empty if it has gone meanwhile.
    fn name_of(&self, index: PortIndex) -> String {
        let table = self.lock();
        let entry = table.entries.values().find(|entry| entry.index == index);
        entry.map_or_else(String::new, |entry| entry.vnic.name.clone())
    }
}
