//! Notes of a worker for the thread that logs: no worker logs itself.
//!
//! ```text
//!  worker ── note: a few bytes, without waiting ──▶ ring of ROOM ──▶ server::event_log ──▶ tracing
//!                └ full, or enough of that port: counted in its WorkerSlot
//! ```

use crate::capacity::VNICS;
use crate::fdb::PortIndex;
use rtrb::{Consumer, Producer, RingBuffer};
use rustix::io::Errno;
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use tidegate_contract::SharedAddress;

/// Events of one worker that may wait.
pub const ROOM: usize = 1024;
/// Events of one port in one second: a busy front end leaves room for others.
const PER_PORT: u8 = 8;
const SECOND: u64 = 1_000_000_000;

/// One thing that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The worker has no real-time priority.
    NotRealTime {
        /// The intended priority.
        priority: u8,
        /// The kernel's error.
        error: Errno,
    },
    /// The worker cannot watch a tap.
    TapNotPolled {
        /// Its port.
        port: PortIndex,
        /// The kernel's error.
        error: Errno,
    },
    /// A queue starts with frames that an earlier process took and did not deliver.
    FramesLost {
        /// Its port.
        port: PortIndex,
        /// The queue.
        queue: u16,
        /// Number of frames.
        frames: u16,
    },
    /// A port takes an address that several may have.
    AddressTaken {
        /// The port.
        port: PortIndex,
        /// The port that had it.
        from: Option<PortIndex>,
        /// The address.
        address: SharedAddress,
    },
}

impl Event {
    fn port(self) -> Option<PortIndex> {
        match self {
            Self::NotRealTime { .. } => None,
            Self::TapNotPolled { port, .. }
            | Self::FramesLost { port, .. }
            | Self::AddressTaken { port, .. } => Some(port),
        }
    }
}

/// Wakes the thread that logs.
#[derive(Debug, Default)]
pub struct LogWaker(OnceLock<Thread>);

impl LogWaker {
    /// Makes the calling thread the one that logs.
    pub fn listen(&self) {
        let _ = self.0.set(std::thread::current());
    }

    /// Wakes that thread. Makes a system call only if it sleeps; safe in a signal handler.
    pub fn wake(&self) {
        if let Some(thread) = self.0.get() {
            thread.unpark();
        }
    }
}

/// A worker's end.
pub struct Events {
    ring: Producer<Event>,
    waker: Arc<LogWaker>,
    /// Events of each port in this second.
    event_counts: Box<[u8; VNICS]>,
    /// Beginning of that second (ns).
    second: u64,
}

impl Events {
    /// Returns both ends; each event wakes `waker`.
    pub fn new(waker: Arc<LogWaker>) -> (Self, Consumer<Event>) {
        let (ring, consumer) = RingBuffer::new(ROOM);
        (Self { ring, waker, event_counts: Box::new([0; VNICS]), second: 0 }, consumer)
    }

    /// Passes on an event of `now` (ns); `false` if there are too many.
    #[cold]
    pub fn note(&mut self, event: Event, now: u64) -> bool {
        if now.saturating_sub(self.second) >= SECOND {
            self.event_counts.fill(0);
            self.second = now;
        }
        if let Some(port) = event.port() {
            let count = &mut self.event_counts[usize::from(port)];
            if *count == PER_PORT {
                return false;
            }
            *count += 1;
        }
        let fits = self.ring.push(event).is_ok();
        self.waker.wake();
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::testing;
    use std::path::Path;

    #[test]
    fn a_full_ring_is_not_waited_for() {
        let (mut events, mut consumer) = Events::new(Arc::default());
        let event = |port| Event::FramesLost { port, queue: 1, frames: 1 };
        let count = (0..2000).filter(|n| events.note(event(n % 500), 0)).count();
        assert_eq!(count, ROOM);
        assert_eq!(consumer.pop(), Ok(event(0)));
    }

    #[test]
    fn one_port_leaves_room_for_the_others() {
        let (mut events, mut consumer) = Events::new(Arc::default());
        let event = |port| Event::FramesLost { port, queue: 1, frames: 1 };
        for second in 0..3 {
            let count = (0..10_000).filter(|n| events.note(event(7), second * SECOND + n)).count();
            assert_eq!(count, usize::from(PER_PORT));
        }
        assert!(events.note(event(8), 2 * SECOND + 1));
        assert_eq!(std::iter::from_fn(|| consumer.pop().ok()).last(), Some(event(8)));
    }

    #[test]
    fn suppressed_events_are_counted() {
        let (mut worker, _handle, mut consumer) = testing::worker_and_events();
        let event = Event::TapNotPolled { port: 3, error: Errno::PERM };
        (0..100).for_each(|_| worker.note(event));
        assert_eq!(consumer.pop(), Ok(event));
        assert_eq!((consumer.slots(), worker.stats.events_lost.get()), (7, 92));
    }

    /// A reader of the log that stops would stop every frame.
    #[test]
    fn nothing_that_a_worker_runs_logs() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut folders: Vec<_> = ["worker", "port", "slots", "virtio", "sched", "frame", "fdb"]
            .map(|name| source.join(name))
            .into();
        let mut files = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() { folders.push(path) } else { files.push(path) }
            }
        }
        assert!(files.len() > 60, "{files:?}");
        for file in files {
            let text = std::fs::read_to_string(&file).unwrap();
            let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
            let of_tests = file.components().any(|part| part.as_os_str() == "tests");
            for word in ["tracing::", "eprint", "println!", "stderr()"] {
                assert!(of_tests || !code.contains(word), "{}: {word}", file.display());
            }
        }
    }
}
