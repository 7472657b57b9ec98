//! Moves ports to other workers.
//!
//! ```text
//!  move_port ─┬ tap ────────────────────────────────────────────────────────────────────────┬▶ relocate ─▶ workers
//!             └ vhost-user ─▶ its thread, between two messages: kicks for the new worker ───┘
//! ```
//!
//! A port moves under the table's lock, so only its own thread, which moves it, could change it meanwhile.

use super::Switch;
use super::table::{End, Entry, Table};
use crate::clock::clock;
use crate::fdb::PortIndex;
use crate::moved::{Moved, Outcome};
use crate::vhost_user::kick::Kick;
use crate::worker::moving;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Longest pause (ns) of a port without deadlines until receivers have taken its frames: as long as frames
/// wait for a worker that is behind.
const PATIENCE: u64 = 10_000_000;
/// Longest wait for the end of the previous move.
const SETTLE: Duration = Duration::from_millis(20);
/// Longest wait for a port's thread, which may be handling a message.
const THREAD: Duration = Duration::from_secs(5);
/// Steps of a move that must fit into H. Each takes at most one loop of a worker.
const STEPS: u64 = 4;

impl Switch {
    /// Moves a port to another worker while it runs. No frame is lost.
    ///
    /// # Errors
    /// The reason why the port stays. A port with deadlines stays if the move would take longer than H.
    pub fn move_port(&self, name: &str, worker: usize) -> Outcome {
        if worker >= self.workers.len() {
            return Err(format!("there is no worker {worker}, of {}", self.workers.len()));
        }
        let table = self.lock();
        let entry = table.entries.get(name).ok_or_else(|| format!("{name} is not a port"))?;
        if entry.worker == worker {
            return Ok(Moved { sending: 0, receiving: 0 });
        }
        let index = entry.index;
        let End::Vhost { thread, .. } = &entry.end else {
            return self.relocate_in(table, index, worker, Vec::new());
        };
        let outcome = thread.move_to(worker);
        drop(table);
        match outcome.recv_timeout(THREAD) {
            Ok(outcome) => outcome,
            Err(RecvTimeoutError::Disconnected) => Err(format!("{name} is being removed")),
            Err(RecvTimeoutError::Timeout) => self.give_up(name, index, &outcome),
        }
    }

    /// Withdraws an order that a port's thread has not begun; otherwise returns the order's outcome.
    fn give_up(&self, name: &str, index: PortIndex, outcome: &Receiver<Outcome>) -> Outcome {
        if let Some(Entry { index: found, end: End::Vhost { thread, .. }, .. }) =
            self.lock().entries.get(name)
            && *found == index
        {
            thread.cancel_move();
        }
        // A withdrawn order closes the channel; an order in progress is answered.
        outcome
            .recv()
            .unwrap_or_else(|_| Err(format!("{name}: the port's thread is busy with the front end")))
    }

    /// Moves a port; its drivers kick the new worker by `kicks`. Called by the port's thread, if there is one.
    pub(super) fn relocate(&self, index: PortIndex, worker: usize, kicks: Vec<(u16, Kick)>) -> Outcome {
        self.relocate_in(self.lock(), index, worker, kicks)
    }

    fn relocate_in(
        &self,
        mut table: MutexGuard<'_, Table>,
        index: PortIndex,
        worker: usize,
        kicks: Vec<(u16, Kick)>,
    ) -> Outcome {
        let host_latency = table.host.host_latency.get();
        let Some(entry) = table.entries.values().find(|entry| entry.index == index) else {
            return Err("the port is being removed".into());
        };
        let (name, from) = (entry.vnic.name.clone(), entry.worker);
        if from == worker {
            return Ok(Moved { sending: 0, receiving: 0 });
        }
        let urgent = has_deadlines(&table, entry);
        let _still = self.nothing_moves();
        self.settled()?;
        let patience = match urgent {
            true => self.rehearse(host_latency / STEPS).map(|()| host_latency / 2)?,
            false => PATIENCE,
        };
        let outcome = moving::begin(&self.workers, index, (from, worker), kicks, patience);
        let moved = outcome.recv().expect("the workers run as long as the process")?;
        self.realtime_changed();
        if let Some(entry) = table.entries.get_mut(&name) {
            entry.worker = worker;
            if let Some(published) = &mut entry.published {
                published.worker = worker as u16;
            }
        }
        if urgent && moved.sending.max(moved.receiving) > host_latency {
            tracing::warn!(
                vnic = name,
                sending_us = moved.sending / 1000,
                receiving_us = moved.receiving / 1000,
                "moving the port to worker {worker} took longer than host-latency"
            );
        }
        tracing::debug!(vnic = name, from, to = worker, ?moved, "port moved");
        Ok(moved)
    }

    /// Prevents moves while the guard lives.
    pub(super) fn nothing_moves(&self) -> MutexGuard<'_, ()> {
        self.moving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until every worker is done with the previous move.
    fn settled(&self) -> Result<(), String> {
        let end = Instant::now() + SETTLE;
        while !self.workers.iter().all(|worker| worker.call(|worker| worker.is_settled())) {
            if Instant::now() > end {
                return Err(
                    "a worker has not yet received all frames that were under way to the port that moved \
                     last"
                        .into(),
                );
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }

    /// Checks that all workers answer within `most` ns. The first round wakes sleepers.
    fn rehearse(&self, most: u64) -> Result<(), String> {
        let mut slowest = 0;
        for _ in 0..2 {
            let (answer, answers) = channel();
            let asked = clock();
            for worker in self.workers.iter() {
                let answer = answer.clone();
                worker.call_first(move |_| answer.send(clock()).unwrap_or(()));
            }
            drop(answer);
            slowest = answers.iter().map(|at| at.saturating_sub(asked)).max().unwrap_or(0);
        }
        if slowest > most {
            return Err(format!(
                "a worker answered a call only after {} us: during a move, a vNIC with a deadline would wait \
                 for longer than host-latency",
                slowest / 1000
            ));
        }
        Ok(())
    }
}

fn has_deadlines(table: &Table, entry: &Entry) -> bool {
    entry.vnic.deadline.is_some() || table.receivers_with_deadlines().contains(entry.vnic.name.as_str())
}
