//! The thread of each worker that writes [best effort into taps](crate::link::tap::writer), and when a worker uses it.
//!
//! ```text
//!  CpuAssigner: which workers have deadlines to keep, how many CPUs there are ─▶ worker: hands over, or writes itself
//! ```

use super::{Switch, reprioritise, schedule};
use crate::link::writer::{TapWriter, Writer};
use crate::worker::WorkerHandle;
use std::io;
use std::sync::mpsc::channel;

/// The writers' SCHED_FIFO priority, if workers have one: like the softirqs that the writes run, above
/// ordinary threads and below workers.
const PRIORITY: u8 = 1;

/// Starts the writer of a worker; returns the worker's end.
///
/// # Errors
/// The thread cannot start.
pub(super) fn spawn(
    worker: u16,
    handle: &WorkerHandle,
    realtime_priority: Option<u8>,
) -> io::Result<TapWriter> {
    let (writer, tap_writer) = Writer::new();
    let bell = handle.bell().clone();
    let (ready, is_ready) = channel();
    let run = move || {
        if realtime_priority.is_some() {
            // A service manager's policy only allows a lower priority. If both fail, best effort is slower.
            let _ = schedule(libc::SCHED_FIFO, PRIORITY).or_else(|_| reprioritise(PRIORITY));
        }
        // The caller waits for this: later, the right to set priorities is gone.
        let _ = ready.send(());
        writer.run(|| bell.ring());
    };
    let thread = std::thread::Builder::new().name(format!("writer-{worker}")).spawn(run)?;
    let _ = is_ready.recv();
    Ok(tap_writer(worker, thread.thread().clone()))
}

impl Switch {
    /// Makes workers with deadlines (`realtime`) hand best effort over to their writers, if there are more
    /// CPUs than workers. `before`: the last decision.
    pub(super) fn hand_over(&self, realtime: &[bool], cpus: Option<usize>, before: &mut Vec<bool>) {
        let now: Vec<bool> =
            realtime.iter().map(|has| *has && cpus.is_some_and(|cpus| cpus > realtime.len())).collect();
        before.resize(now.len(), false);
        for (worker, _) in
            now.iter().zip(before.iter()).enumerate().filter(|(_, (now, before))| now != before)
        {
            let hands_over = now[worker];
            self.workers[worker].call(move |worker| worker.set_hands_over(hands_over));
        }
        *before = now;
    }
}
