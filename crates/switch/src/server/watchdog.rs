//! Reports to the service manager that the switch is alive. Without reports, it ends this process and starts
//! another one.
//!
//! ```text
//!  control thread ─ turned lately? ─▶ table ─ can be locked? ─▶ each worker ─ answers? ─▶ WATCHDOG=1
//!                        └────────────────── no: not told ───────────────┘
//! ```
//!
//! A worker answers between two loops, so an answer proves progress. Port threads are not asked: the front
//! end of a port can delay its thread, and harms only that port.

use super::Switch;
pub use super::liveness::Watchdog;
use crate::clock::clock;
use crate::worker::WorkerHandle;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tidegate_service::Notifier;
use tidegate_service::housekeeping;

/// Reports that the switch is up, and then within each `interval` (if any) that it is alive.
///
/// # Errors
/// The thread cannot start.
pub fn start(switch: &Arc<Switch>, manager: Notifier, interval: Option<Duration>) -> io::Result<()> {
    log_notify_error(manager.ready());
    let Some(interval) = interval else { return Ok(()) };
    switch.watchdog.get_or_init(|| Watchdog::new(interval));
    let switch = switch.clone();
    let watch = move || {
        let Some(watchdog) = switch.watchdog.get() else { return };
        loop {
            housekeeping::follow();
            if watchdog.control_thread_turns(clock()) {
                drop(switch.lock());
                switch
                    .workers
                    .iter()
                    .enumerate()
                    .for_each(|(id, worker)| wait_for_answer(id, worker, watchdog));
                log_notify_error(manager.alive());
            } else {
                tracing::error!(
                    "the control thread makes no progress; the service manager will restart this switch"
                );
            }
            std::thread::sleep(watchdog.pause());
        }
    };
    std::thread::Builder::new().name("watchdog".into()).spawn(watch).map(drop)
}

/// Waits until a worker has answered.
fn wait_for_answer(id: usize, worker: &WorkerHandle, watchdog: &Watchdog) {
    let answer = worker.ask();
    while answer.recv_timeout(watchdog.pause()).is_err() {
        tracing::error!("worker {id} makes no progress; the service manager will restart this switch");
    }
}

fn log_notify_error(result: io::Result<()>) {
    if let Err(error) = result {
        tracing::warn!(%error, "cannot tell the service manager that the switch is alive");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_control_thread_is_alive_while_it_reports() {
        let watchdog = Watchdog::new(Duration::from_secs(8));
        assert_eq!((watchdog.pause(), watchdog.micros()), (Duration::from_secs(2), 8_000_000));
        let began = watchdog.control.load(Ordering::Relaxed);
        let after = |seconds: u64| began + seconds * 1_000_000_000;
        assert!(watchdog.control_thread_turns(began));
        // Late by one pause.
        assert!(watchdog.control_thread_turns(after(3)));
        assert!(!watchdog.control_thread_turns(after(4)));
        watchdog.control.store(after(4), Ordering::Relaxed);
        assert!(watchdog.control_thread_turns(after(5)));
    }
}
